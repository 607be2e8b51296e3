//! Memory order of the MoE protocol, under loom's model of the C11 memory.
//!
//! Ranks are threads; words are atomics, stored with release and loaded with acquire; routing, rows, outputs and returns
//! are plain cells, in which loom finds any access that is not ordered by the words. Each rank goes through a whole round
//! and the dispatch of the next, so every plane is written, read and written again. What the protocol itself decides is
//! checked in `protocol_model`, over far more programs.
//!
//! Runs under `--cfg campanile_loom` only. Bounds: two ranks with at most 3 preemptions, 4 for the release (18,726
//! executions by pull, 23,301 by push, 36,666 by release); three ranks that switch only where they wait (2,216). About 10 s
//! of one core in all.
#![cfg(campanile_loom)]

use campanile_moe::protocol::{Combine, Epoch, Protocol, Round, Seen, Set, WordCondition, WordMap, WordStore};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};

const SET: Set = Set(0);

/// How the first round ends.
#[derive(Clone, Copy)]
enum End {
    Pull,
    Push,
    Release,
}

/// How words are stored and loaded.
#[derive(Clone, Copy)]
struct Order {
    store: Ordering,
    load: Ordering,
}

const RIGHT: Order = Order { store: Ordering::Release, load: Ordering::Acquire };

/// One row of a plane, from one rank to another.
#[derive(Clone, Copy)]
enum Plane {
    Routing,
    Rows,
    Outputs,
    Returns,
}

struct Memory {
    ranks: usize,
    /// `[reader][offset / 8]`.
    words: Vec<Vec<AtomicU64>>,
    /// `[plane][writer][reader]`: the epoch of the round.
    cells: Vec<UnsafeCell<u32>>,
}

impl Memory {
    fn new(ranks: usize) -> Self {
        let words = WordMap { sets: 1, ranks }.bytes() / 8;
        let initial = WordMap::initial(Epoch::FIRST);
        Self {
            ranks,
            words: (0..ranks).map(|_| (0..words).map(|_| AtomicU64::new(initial)).collect()).collect(),
            cells: (0..4 * ranks * ranks).map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    fn cell(&self, plane: Plane, writer: usize, reader: usize) -> &UnsafeCell<u32> {
        &self.cells[(plane as usize * self.ranks + writer) * self.ranks + reader]
    }
}

/// A rank and the memory that it shares.
struct Rank {
    memory: Arc<Memory>,
    protocol: Protocol,
    order: Order,
    /// The words that this rank writes for itself, by offset / 8: of no interest to loom, so not among its atomics.
    own: Vec<u64>,
}

impl Rank {
    fn wait(&mut self, condition: Option<WordCondition>) {
        let Some(condition) = condition else { return };
        let (rank, at) = (self.protocol.rank(), condition.offset / 8);
        loop {
            let seen =
                if condition.source == rank { self.own[at] } else { self.memory.words[rank][at].load(self.order.load) };
            match self.protocol.observe(&condition, seen) {
                Ok(Seen::Pending) => loom::thread::yield_now(),
                Ok(Seen::Ready(_)) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn store(&mut self, WordStore { peer, offset, value, .. }: WordStore) {
        if peer == self.protocol.rank() {
            self.own[offset / 8] = value;
        } else {
            self.memory.words[peer][offset / 8].store(value, self.order.store);
        }
    }

    fn write(&self, plane: Plane, reader: usize, round: Round) {
        // SAFETY: the protocol lets only one rank at a time have the cell; loom checks just that.
        self.memory.cell(plane, self.protocol.rank(), reader).with_mut(|cell| unsafe { *cell = round.epoch.0 });
    }

    fn read(&self, plane: Plane, writer: usize, round: Round) {
        // SAFETY: as for `write`.
        let epoch = self.memory.cell(plane, writer, self.protocol.rank()).with(|cell| unsafe { *cell });
        assert_eq!(epoch, round.epoch.0);
    }

    fn dispatch(&mut self) -> Round {
        let ranks = self.memory.ranks;
        let active = vec![true; ranks];
        let round = self.protocol.begin_dispatch_send(SET, &active, &vec![1; ranks]).unwrap();
        for peer in 0..ranks {
            let credit = self.protocol.credit(round, peer).unwrap();
            self.wait(credit);
            self.write(Plane::Routing, peer, round);
            let meta = self.protocol.publish_meta(round, peer).unwrap();
            self.store(meta);
            self.write(Plane::Rows, peer, round);
            let rows = self.protocol.publish_rows(round, peer, 1).unwrap();
            self.store(rows);
        }
        self.protocol.finish(round).unwrap();
        self.protocol.begin_dispatch_receive(round, &active).unwrap();
        for peer in 0..ranks {
            let meta = self.protocol.meta(round, peer).unwrap();
            self.wait(meta);
            self.read(Plane::Routing, peer, round);
            let rows = self.protocol.rows(round, peer, 1).unwrap();
            self.wait(rows);
            self.read(Plane::Rows, peer, round);
            let free = self.protocol.outputs_free(SET, peer).unwrap();
            self.wait(free);
        }
        self.protocol.finish(round).unwrap();
        round
    }

    fn combine(&mut self, round: Round, combine: Combine) {
        let ranks = self.memory.ranks;
        let active = vec![true; ranks];
        let plane = match combine {
            Combine::Pull => Plane::Outputs,
            Combine::Push => Plane::Returns,
        };
        self.protocol.begin_combine_send(round, combine, &active).unwrap();
        for peer in 0..ranks {
            self.write(plane, peer, round);
            if combine == Combine::Push {
                let returned = self.protocol.publish_returned(round, peer, 1).unwrap();
                self.store(returned);
            }
            self.read(Plane::Rows, peer, round);
            let ready = self.protocol.publish_ready(round, peer).unwrap();
            self.store(ready);
        }
        self.protocol.finish(round).unwrap();
        self.protocol.begin_combine_receive(round, &active).unwrap();
        for peer in 0..ranks {
            let results = self.protocol.results(round, peer, 1).unwrap();
            self.wait(results);
            self.read(plane, peer, round);
            let done = self.protocol.publish_done(round, peer).unwrap();
            self.store(done);
        }
        self.protocol.finish(round).unwrap();
    }

    fn release(&mut self, round: Round) {
        let ranks = self.memory.ranks;
        self.protocol.begin_release(round, &vec![true; ranks]).unwrap();
        for peer in 0..ranks {
            self.read(Plane::Rows, peer, round);
            let ready = self.protocol.publish_ready(round, peer).unwrap();
            self.store(ready);
            let done = self.protocol.publish_done(round, peer).unwrap();
            self.store(done);
        }
        self.protocol.finish(round).unwrap();
    }

    /// Writes the outputs of the next round without a dispatch before: only `DONE_C` allows it.
    fn clear(&mut self, round: Round) {
        for peer in 0..self.memory.ranks {
            let free = self.protocol.outputs_free(SET, peer).unwrap();
            self.wait(free);
            self.write(Plane::Outputs, peer, round);
        }
    }

    fn run(mut self, end: End) {
        let round = self.dispatch();
        match end {
            End::Pull => {
                self.combine(round, Combine::Pull);
                self.clear(round);
            }
            End::Push => self.combine(round, Combine::Push),
            End::Release => self.release(round),
        }
        self.dispatch();
    }
}

/// Runs all ranks, the last one on loom's own thread.
fn check(ranks: usize, preemptions: usize, end: End, order: Order) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    let executions = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = executions.clone();
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let memory = Arc::new(Memory::new(ranks));
        let rank = |rank| {
            let protocol = Protocol::new(WordMap { sets: 1, ranks }, rank, 1, Epoch::FIRST);
            let own = vec![WordMap::initial(Epoch::FIRST); protocol.map().bytes() / 8];
            Rank { memory: memory.clone(), protocol, order, own }
        };
        let threads: Vec<_> = (1..ranks)
            .map(|other| {
                let other = rank(other);
                loom::thread::spawn(move || other.run(end))
            })
            .collect();
        rank(0).run(end);
        for thread in threads {
            thread.join().unwrap();
        }
    });
    println!("{ranks} ranks, {preemptions} preemptions: {} executions", executions.load(Ordering::Relaxed));
}

#[test]
fn two_ranks_pull() {
    check(2, 3, End::Pull, RIGHT);
}

#[test]
fn two_ranks_push() {
    check(2, 3, End::Push, RIGHT);
}

#[test]
fn two_ranks_release() {
    check(2, 4, End::Release, RIGHT);
}

#[test]
fn three_ranks_release() {
    check(3, 0, End::Release, RIGHT);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_store_is_found() {
    check(2, 2, End::Release, Order { store: Ordering::Relaxed, ..RIGHT });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_load_is_found() {
    check(2, 2, End::Release, Order { load: Ordering::Relaxed, ..RIGHT });
}
