//! The doorbell queue under real threads: producers × flushers × executors, with delays at random places.
//!
//! Slots are plain words with relaxed access, as an engine has them: if the queue shows a slot too early or too late, its
//! content is not the one that belongs to its position. All checks are of contents and counts.
#![cfg(not(campanile_loom))]

mod doorbell_historic;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use campanile_core::doorbell::{
    Clock, CommandRing, DoorbellQueue, Patience, QueueFault, ReserveError, Rung, Slot, Wrap, Written,
};
use doorbell_historic as historic;

struct Monotonic(Instant);

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Calls `wait` with patience for that long, yielding between polls.
fn within<R>(limit: Duration, wait: impl FnOnce(&Patience<'_>) -> R) -> R {
    let clock = Monotonic(Instant::now());
    wait(&Patience { clock: &clock, deadline: limit, abort: &|| false, relax: &|_| thread::yield_now() })
}

/// Longer than anything here takes; only a bug waits for it.
const LONG: Duration = Duration::from_secs(30);

/// Xorshift64 (Marsaglia, 2003), seeded per thread: the delays of a run are the same each time.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    /// Nothing, a few spins, or a few time slices given away.
    fn delay(&mut self) {
        match self.below(8) {
            0 => (0..self.below(3)).for_each(|_| thread::yield_now()),
            1 | 2 => (0..self.below(200)).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
    }
}

/// A slot that its owner has not written yet.
const STALE: u64 = 0;
/// A slot of padding.
const PADDING: u64 = 1;

/// The operation `sequence` of a producer, as a word that is neither [`STALE`] nor [`PADDING`].
fn operation(producer: usize, sequence: u64) -> u64 {
    (producer as u64 + 1) << 32 | sequence
}

struct Stress {
    queue: DoorbellQueue,
    slots: Vec<AtomicU64>,
    /// What the executors took, in order; they append while they hold the role.
    done: Mutex<Vec<u64>>,
    doorbell: AtomicU64,
    start: u64,
    finished: AtomicBool,
}

impl Stress {
    fn new(depth: u32, start: u64) -> Self {
        Self {
            queue: DoorbellQueue::starting_at(depth, start).expect("a power of two"),
            slots: (0..depth).map(|_| AtomicU64::new(STALE)).collect(),
            done: Mutex::default(),
            doorbell: AtomicU64::new(start),
            start,
            finished: AtomicBool::new(false),
        }
    }

    /// The doorbell: a register that must never go back, slow at times, so that two that ring at once would show.
    fn bell(&self, value: Rung) {
        if value.raw().is_multiple_of(4) {
            thread::yield_now();
        }
        let last = self.doorbell.swap(value.raw(), Ordering::Relaxed);
        assert!(value.raw().wrapping_sub(last) as i64 > 0, "the doorbell went from {last} to {value}");
    }

    fn ring(&self) {
        self.queue.ring(|value| self.bell(value)).expect("sound");
    }

    /// Posts lists of 0 to `largest` operations until `count` have been posted, with delays between all steps, and waits
    /// for all tickets in another order than theirs.
    fn produce(&self, producer: usize, count: u64) {
        let mut random = Random::new(producer as u64 + 1);
        let mut tickets = Vec::new();
        let mut sequence = 0;
        while sequence < count {
            let wrap = if random.below(2) == 0 { Wrap::Padded } else { Wrap::Allowed };
            let wanted = random.below(u64::from(self.queue.largest(wrap)) + 1).min(count - sequence);
            let taken = within(LONG, |patience| {
                self.queue.reserve_within(wanted as usize, wrap, |value| self.bell(value), patience)
            });
            let reservation = taken.expect("room in time");
            random.delay();
            reservation.padding().for_each(|slot| self.slots[slot.index].store(PADDING, Ordering::Relaxed));
            for Slot { index, .. } in reservation.slots() {
                let last = self.slots[index].swap(operation(producer, sequence), Ordering::Relaxed);
                assert_eq!(last, STALE, "overwritten before it was executed");
                sequence += 1;
                random.delay();
            }
            tickets.push(within(LONG, |patience| reservation.publish(patience)).expect("its turn in time"));
            random.delay();
            let flushed = self.queue.flush();
            let own = tickets[tickets.len() - 1];
            assert!(flushed.raw().wrapping_sub(own.raw()) as i64 >= 0, "flush {flushed} does not cover {own}");
            if random.below(3) == 0 {
                self.ring();
            }
        }
        while !tickets.is_empty() {
            let ticket = tickets.swap_remove(random.below(tickets.len() as u64) as usize);
            within(LONG, |patience| self.queue.wait(ticket, |value| self.bell(value), patience)).expect("in time");
            assert_eq!(self.queue.test(ticket), Ok(true));
        }
    }

    /// Takes snapshots, looks whether the state is ordered, and rings now and then.
    fn flush(&self, seed: u64) {
        let mut random = Random::new(seed);
        let mut last = Written::from_raw(self.start);
        while !self.finished.load(Ordering::Relaxed) {
            let ticket = self.queue.flush();
            assert!(ticket.raw().wrapping_sub(last.raw()) as i64 >= 0, "flush went from {last} to {ticket}");
            last = ticket;
            let state = self.queue.state();
            assert!(state.is_ordered(), "{state}");
            let complete = self.queue.test(ticket).expect("sound");
            assert!(!complete || self.queue.state().completed.reaches(ticket));
            if random.below(4) == 0 {
                self.ring();
            }
            random.delay();
            thread::yield_now();
        }
    }

    /// Waits for the producers, lets everybody else end, and only then minds a panic.
    fn finish<T>(&self, producers: Vec<ScopedJoinHandle<'_, T>>) -> Vec<T> {
        let ended: Vec<_> = producers.into_iter().map(|producer| producer.join()).collect();
        self.finished.store(true, Ordering::Relaxed);
        ended.into_iter().map(|ended| ended.expect("no producer panics")).collect()
    }

    /// Executes until all producers are done. Stale slots end up in `done` like all others.
    fn execute(&self, seed: u64) {
        let mut random = Random::new(seed);
        while !self.finished.load(Ordering::Relaxed) {
            if let Some(mut executor) = self.queue.executor() {
                for Slot { index, .. } in executor.pending().expect("sound") {
                    let content = self.slots[index].swap(STALE, Ordering::Relaxed);
                    if content != PADDING {
                        self.done.lock().expect("no panic").push(content);
                    }
                    executor.complete(1).expect("rung");
                    random.delay();
                }
            }
            thread::yield_now();
        }
    }
}

/// Each operation was executed once, those of one producer in order, and nothing else was.
fn assert_exactly_once(done: &[u64], producers: usize, count: u64) {
    let mut next = vec![0; producers];
    for &word in done {
        assert_ne!(word, STALE, "a stale slot was executed");
        let producer = (word >> 32) as usize - 1;
        assert_eq!(word, operation(producer, next[producer]), "out of order, lost or executed twice");
        next[producer] += 1;
    }
    assert_eq!(next, vec![count; producers]);
}

#[test]
fn producers_flushers_and_executors() {
    const PRODUCERS: usize = 4;
    const COUNT: u64 = 250;
    for (depth, start) in [(1, (1 << 16) - 300), (2, 0), (8, (1 << 32) - 700), (64, u64::MAX - 800), (16, u64::MAX - 1)]
    {
        let stress = &Stress::new(depth, start);
        thread::scope(|scope| {
            for seed in [1, 2] {
                scope.spawn(move || stress.flush(100 + seed));
                scope.spawn(move || stress.execute(200 + seed));
            }
            stress
                .finish((0..PRODUCERS).map(|producer| scope.spawn(move || stress.produce(producer, COUNT))).collect());
        });
        assert_exactly_once(&stress.done.lock().expect("no panic"), PRODUCERS, COUNT);
        let state = stress.queue.state();
        assert_eq!(state.completed.raw(), state.reserved.raw(), "{state}");
        assert_eq!(stress.doorbell.load(Ordering::Relaxed), state.rung.raw());
    }
}

/// Lists longer than the ring are refused, all others arrive, with one thread as producer, engine and waiter at once.
#[test]
fn command_ring_with_progress_in_the_wait() {
    const PRODUCERS: usize = 4;
    const LISTS: u64 = 300;
    for depth in [1, 4] {
        let ring = CommandRing::starting_at(depth, u64::MAX - 500).expect("a power of two");
        let done = Mutex::new(Vec::new());
        let refused = AtomicUsize::new(0);
        let progress = |_| {
            let run = |&word: &u64| {
                done.lock().expect("no panic").push(word);
                Ok(())
            };
            if ring.execute(run).expect("sound") == 0 {
                thread::yield_now();
            }
        };
        let produce = |producer: usize| {
            let clock = Monotonic(Instant::now());
            let patience = Patience { clock: &clock, deadline: LONG, abort: &|| false, relax: &progress };
            let mut random = Random::new(producer as u64 + 1);
            let (mut sequence, mut tickets) = (0, Vec::new());
            for _ in 0..LISTS {
                let length = random.below(u64::from(depth) + 2);
                let list: Vec<_> = (sequence..sequence + length).map(|n| operation(producer, n)).collect();
                match ring.post_within(&list, |_| {}, &patience) {
                    Ok(ticket) => tickets.push(ticket),
                    Err(ReserveError::TooLarge { .. }) if length > u64::from(depth) => {
                        refused.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    Err(error) => panic!("{error}"),
                }
                sequence += length;
                random.delay();
            }
            for ticket in tickets.into_iter().rev() {
                ring.wait(ticket, |_| {}, &patience).expect("in time");
            }
            sequence
        };
        let posted: Vec<u64> = thread::scope(|scope| {
            let produce = &produce;
            let producers: Vec<_> = (0..PRODUCERS).map(|producer| scope.spawn(move || produce(producer))).collect();
            producers.into_iter().map(|producer| producer.join().expect("no panic")).collect()
        });
        let done = done.into_inner().expect("no panic");
        for (producer, &count) in posted.iter().enumerate() {
            let own = done.iter().filter(|&&word| word >> 32 == producer as u64 + 1);
            assert!(own.copied().eq((0..count).map(|sequence| operation(producer, sequence))));
        }
        assert_eq!(done.len() as u64, posted.iter().sum::<u64>());
        assert!(refused.into_inner() > 0);
    }
}

/// A clock at which a deadline passes once the queue stands still before the dead producer's slots.
struct Standstill<'a> {
    queue: &'a DoorbellQueue,
    /// Position of those slots, and whether it is known yet.
    dead: &'a OnceLock<u64>,
}

impl Clock for Standstill<'_> {
    fn now(&self) -> Duration {
        Duration::from_nanos((self.dead.get() == Some(&self.queue.flush().raw())).into())
    }
}

/// One of many producers vanishes in the middle of its work: all others end with the same error, which names it, and what
/// was executed is a sound beginning.
#[test]
fn one_dead_producer_is_named_to_all() {
    const PRODUCERS: usize = 4;
    const PUBLISHED: u64 = 20;
    for round in 0..20 {
        let stress = Stress::new(8, u64::MAX - 10);
        let dead = OnceLock::new();
        let produce = |producer: usize| {
            let began = Instant::now();
            let patience = Patience {
                clock: &Standstill { queue: &stress.queue, dead: &dead },
                deadline: Duration::from_nanos(1),
                abort: &|| began.elapsed() > LONG,
                relax: &|_| thread::yield_now(),
            };
            let mut random = Random::new(round * 10 + producer as u64 + 1);
            let mut sequence = 0;
            loop {
                let taken = stress.queue.reserve_within(1, Wrap::Allowed, |value| stress.bell(value), &patience);
                let reservation = match taken {
                    Ok(reservation) => reservation,
                    Err(ReserveError::Timeout { .. }) => continue, // It stood still only since it began to wait.
                    Err(ReserveError::Poisoned(poisoned)) => return Some(poisoned.fault),
                    Err(error) => panic!("{error}"),
                };
                let slot = reservation.slots().next().expect("one slot");
                if producer == 0 && sequence == PUBLISHED {
                    std::mem::forget(reservation);
                    dead.set(slot.position).expect("one dies");
                    return None;
                }
                stress.slots[slot.index].store(operation(producer, sequence), Ordering::Relaxed);
                sequence += 1;
                random.delay();
                if let Err(poisoned) = reservation.publish(&patience) {
                    return Some(poisoned.fault);
                }
                if let Err(poisoned) = stress.queue.ring(|value| stress.bell(value)) {
                    return Some(poisoned.fault);
                }
            }
        };
        let execute = || {
            while !stress.finished.load(Ordering::Relaxed) {
                let mut executor = stress.queue.executor().expect("the only one");
                for slot in executor.pending().into_iter().flatten() {
                    let content = stress.slots[slot.index].swap(STALE, Ordering::Relaxed);
                    stress.done.lock().expect("no panic").push(content);
                    executor.complete(1).expect("rung");
                }
                drop(executor);
                thread::yield_now();
            }
        };
        let faults = thread::scope(|scope| {
            scope.spawn(execute);
            let produce = &produce;
            stress.finish((0..PRODUCERS).map(|producer| scope.spawn(move || produce(producer))).collect())
        });
        let position = *dead.get().expect("one died");
        let named = Some(QueueFault::ProducerStalled { position });
        assert_eq!(faults, [None, named, named, named]);
        assert_eq!(stress.queue.flush().raw(), position);
        let done = stress.done.into_inner().expect("no panic");
        assert!(!done.contains(&STALE), "a stale slot was executed");
        let own: Vec<_> = done.iter().copied().filter(|word| word >> 32 == 1).collect();
        assert!(own.len() as u64 <= PUBLISHED, "more than it published");
        assert!(own.iter().copied().eq((0..own.len() as u64).map(|sequence| operation(0, sequence))));
    }
}

/// What a run with a given flush shows: stale slots executed, and producers whose turn never comes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    stale: usize,
    stuck: usize,
}

/// Producers that await their turn by equality, as it was done then, against flushers. Each producer stays between reserve
/// and write until a flush has been made, so that the race takes place in every round and not by luck.
fn findings(flush: fn(&DoorbellQueue)) -> Findings {
    const ROUNDS: usize = 50;
    let mut findings = Findings::default();
    for round in 0..ROUNDS as u64 {
        let stress = Stress::new(4, u64::MAX - round);
        let flushes = AtomicUsize::new(0);
        let stuck = AtomicUsize::new(0);
        let await_flush = || {
            let seen = flushes.load(Ordering::Acquire);
            let flushed =
                within(LONG, |patience| patience.until(|| Ok::<_, ()>(flushes.load(Ordering::Acquire) > seen + 1)));
            flushed.expect("no error").expect("the flusher runs");
        };
        let produce = |producer| {
            let reservation = stress.queue.reserve(1, Wrap::Allowed).expect("room for all");
            await_flush();
            let slot = reservation.slots().next().expect("one slot");
            stress.slots[slot.index].store(operation(producer, 0), Ordering::Relaxed);
            let turn = || Ok::<_, ()>(historic::is_my_turn(&stress.queue, &reservation));
            // For ever: longer than it takes all others to flush, execute and leave.
            let limit = Duration::from_millis(20);
            if within(limit, |patience| patience.until(turn)).expect("no error").is_err() {
                let passed = stress.queue.flush().raw().wrapping_sub(slot.position) as i64 > 0;
                stuck.fetch_add(passed.into(), Ordering::Relaxed);
                std::mem::forget(reservation);
            } else if within(LONG, |patience| reservation.publish(patience)).is_ok() {
                let _ = stress.queue.ring(|_| {});
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stress.finished.load(Ordering::Relaxed) {
                    flush(&stress.queue);
                    let mut executor = stress.queue.executor().expect("the only one");
                    for slot in executor.pending().into_iter().flatten() {
                        stress.done.lock().expect("no panic").push(stress.slots[slot.index].load(Ordering::Relaxed));
                        let _ = executor.complete(1);
                    }
                    flushes.fetch_add(1, Ordering::Release);
                    thread::yield_now();
                }
            });
            let produce = &produce;
            stress.finish([0, 1].map(|producer| scope.spawn(move || produce(producer))).into());
        });
        findings.stale += stress.done.into_inner().expect("no panic").iter().filter(|&&word| word == STALE).count();
        findings.stuck += stuck.into_inner();
    }
    findings
}

#[test]
fn a_flush_shows_nothing_stale_and_stops_nobody() {
    assert_eq!(findings(|queue| _ = queue.flush()), Findings::default());
}

#[test]
fn the_historic_flush_is_found_in_both_forms() {
    let found = findings(|queue| _ = historic::flush(queue, |_| {}));
    assert!(found.stale > 0 && found.stuck > 0, "{found:?}");
}
