//! The doorbell queue under the model checker [loom]: interleavings and stale values, within the bounds below.
//!
//! ```text
//! RUSTFLAGS="--cfg campanile_loom" cargo test -p campanile-core --test doorbell_loom
//! ```
//!
//! # Method
//!
//! A model is a few roles, each a thread, over a ring that starts one slot before the wrap of its counters. Loom runs
//! threads in the order in which they were spawned and derives other interleavings from conflicts that it sees; it
//! remembers only the last access to an atomic, so that a thread's own load hides an earlier load of another thread from
//! its later store, and what follows from their exchange is not tried. Each model is therefore explored once for **every
//! order of spawning**, and asserts that the outcomes which make it worth running were all reached.
//!
//! Roles do not spin for one another but where the queue does: two spinning threads can pass the turn to one another for
//! ever while a third could run, and loom would follow them.
//!
//! # Bounds
//!
//! 2 to 4 threads, 1 to 4 slots, 1 to 6 preemptions: the first number in each model (`LOOM_MAX_PREEMPTIONS` overrides
//! it). All models together take 40 s on two cores; the longest, of four threads, 15 s.
//!
//! [loom]: https://docs.rs/loom
#![cfg(campanile_loom)]

mod doorbell_historic;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::doorbell::{
    Clock, CommandRing, DoorbellQueue, Patience, QueueFault, QueueState, ReserveError, Rung, Slot, TicketError, Wrap,
    Written,
};
use doorbell_historic as historic;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// Explores one model: `roles` in parallel on what `setup` makes, then `verdict`, which drains, checks, and names the
/// outcome. Returns all outcomes that were reached.
fn explore<S: Send + Sync + 'static, O: Ord + Send + 'static, const N: usize>(
    preemptions: usize,
    setup: fn() -> S,
    roles: [fn(&S); N],
    verdict: fn(&S) -> O,
) -> BTreeSet<O> {
    let outcomes = Arc::new(Mutex::new(BTreeSet::new()));
    for order in permutations(N) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound.get_or_insert(preemptions);
        let outcomes = outcomes.clone();
        builder.check(move || {
            let shared = Arc::new(setup());
            let threads = order.iter().map(|&role| {
                let shared = shared.clone();
                thread::spawn(move || roles[role](&shared))
            });
            for thread in threads.collect::<Vec<_>>() {
                thread.join().expect("no panic");
            }
            outcomes.lock().expect("no panic").insert(verdict(&shared));
        });
    }
    std::mem::take(&mut *outcomes.lock().expect("no panic"))
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    let Some(last) = n.checked_sub(1) else {
        return vec![vec![]];
    };
    let insert = |shorter: Vec<usize>| {
        (0..n).map(move |at| {
            let mut longer = shorter.clone();
            longer.insert(at, last);
            longer
        })
    };
    permutations(last).into_iter().flat_map(insert).collect()
}

/// Time is the number of looks at the clock.
struct Looks(Cell<u64>);

impl Clock for Looks {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.replace(self.0.get() + 1))
    }
}

/// Calls `wait` with the patience of that many polls.
fn within<R>(polls: u64, wait: impl FnOnce(&Patience<'_>) -> R) -> R {
    let clock = Looks(Cell::new(1));
    let deadline = Duration::from_nanos(polls);
    wait(&Patience { clock: &clock, deadline, abort: &|| false, relax: &|_| thread::yield_now() })
}

const FOR_EVER: u64 = u64::MAX;

/// A position close to the wrap of the counters, so that each model crosses it.
const START: u64 = u64::MAX;

const fn after_start(slots: u64) -> u64 {
    START.wrapping_add(slots)
}

/// A command ring, and what was executed from it.
struct Ring {
    ring: CommandRing<u64>,
    done: Mutex<Vec<u64>>,
    notes: Mutex<Vec<u64>>,
}

impl Ring {
    fn new(depth: u32) -> Self {
        let ring = CommandRing::starting_at(depth, START).expect("a power of two");
        Self { ring, done: Mutex::default(), notes: Mutex::default() }
    }

    fn post(&self, commands: &[u64]) -> Written {
        within(FOR_EVER, |patience| self.ring.post(commands, patience)).expect("room for all")
    }

    fn ring(&self) {
        self.ring.ring(|_| {}).expect("sound");
    }

    fn execute(&self) -> u32 {
        let run = |&command: &u64| {
            self.done.lock().expect("no panic").push(command);
            Ok(())
        };
        self.ring.execute(run).expect("sound")
    }

    fn done(&self) -> Vec<u64> {
        self.done.lock().expect("no panic").clone()
    }

    fn note(&self, note: u64) {
        self.notes.lock().expect("no panic").push(note);
    }

    fn notes(&self) -> Vec<u64> {
        self.notes.lock().expect("no panic").clone()
    }

    fn state(&self) -> QueueState {
        let state = self.ring.state();
        assert!(state.is_ordered(), "{state}");
        state
    }
}

/// Two producers with two commands each, one executor: all are executed, lists stay together.
#[test]
fn posts_are_executed_in_order() {
    let produce_10: fn(&Ring) = |shared| {
        shared.post(&[10, 11]);
        shared.ring();
    };
    let produce_20: fn(&Ring) = |shared| {
        shared.post(&[20, 21]);
        shared.ring();
    };
    let execute: fn(&Ring) = |shared| shared.note(shared.execute().into());
    let outcomes = explore(
        3,
        || Ring::new(4),
        [produce_10, produce_20, execute],
        |shared| {
            shared.execute();
            let done = shared.done();
            assert!(done == [10, 11, 20, 21] || done == [20, 21, 10, 11], "{done:?}");
            (done[0], shared.notes()[0])
        },
    );
    assert_eq!(outcomes, [10, 20].iter().flat_map(|&first| [0, 2, 4].map(|early| (first, early))).collect());
}

/// Two producers that do not ring, a flusher that rings, waits for nothing and looks at its ticket, an executor.
#[test]
fn producers_flusher_and_executor() {
    let produce_10: fn(&Ring) = |shared| {
        shared.post(&[10]);
    };
    let produce_20: fn(&Ring) = |shared| {
        shared.post(&[20]);
    };
    let flush: fn(&Ring) = |shared| {
        let ticket = shared.ring.flush();
        shared.ring();
        shared.note(ticket.raw().wrapping_sub(START));
        let complete = shared.ring.test(ticket).expect("sound");
        let state = shared.state();
        assert!(!complete || state.completed.reaches(ticket), "{state}");
        assert!(state.rung.raw().wrapping_sub(ticket.raw()) <= 2, "{state}");
    };
    let execute: fn(&Ring) = |shared| {
        shared.execute();
    };
    let outcomes = explore(
        1,
        || Ring::new(2),
        [produce_10, produce_20, flush, execute],
        |shared| {
            let early = shared.done().len();
            shared.ring();
            shared.execute();
            let done = shared.done();
            assert!(done == [10, 20] || done == [20, 10], "{done:?}");
            (early, shared.notes()[0])
        },
    );
    assert!([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 2)].iter().all(|it| outcomes.contains(it)), "{outcomes:?}");
}

/// The ringer acquires from the last producer only; that one must have acquired from those before it.
#[test]
fn turns_chain_visibility() {
    let produce_10: fn(&Ring) = |shared| {
        shared.post(&[10]);
    };
    let produce_20: fn(&Ring) = |shared| {
        shared.post(&[20]);
    };
    let execute: fn(&Ring) = |shared| {
        shared.ring();
        shared.note(shared.execute().into());
    };
    let outcomes = explore(
        4,
        || Ring::new(2),
        [produce_10, produce_20, execute],
        |shared| {
            shared.ring();
            shared.execute();
            let done = shared.done();
            assert!(done == [10, 20] || done == [20, 10], "{done:?}");
            (done[0], shared.notes()[0])
        },
    );
    assert_eq!(outcomes, [10, 20].iter().flat_map(|&first| [0, 1, 2].map(|early| (first, early))).collect());
}

/// One slot: a producer waits until it is executed, and overwrites it.
#[test]
fn slots_are_reused_after_completion() {
    let setup = || {
        let shared = Ring::new(1);
        shared.post(&[10]);
        shared.ring();
        shared
    };
    let produce: fn(&Ring) = |shared| {
        within(FOR_EVER, |patience| shared.ring.post_within(&[20], |_| {}, patience)).expect("sound");
        shared.ring();
    };
    let execute: fn(&Ring) = |shared| shared.note((shared.execute() + shared.execute()).into());
    let outcomes = explore(6, setup, [produce, execute], |shared| {
        shared.execute();
        assert_eq!(shared.done(), [10, 20]);
        shared.notes()[0]
    });
    assert_eq!(outcomes, [1, 2].into());
}

/// One slot, two producers that do not wait: each gets it or is told that the queue is busy.
#[test]
fn a_full_queue_is_busy() {
    fn produce(shared: &Ring, command: u64) {
        match within(FOR_EVER, |patience| shared.ring.post(&[command], patience)) {
            Ok(_) => shared.note(command),
            Err(ReserveError::Busy { needed: 1, free: 0 }) => {}
            Err(error) => panic!("{error}"),
        }
        shared.ring();
    }
    let execute: fn(&Ring) = |shared| {
        shared.execute();
    };
    let outcomes = explore(
        3,
        || Ring::new(1),
        [|shared| produce(shared, 10), |shared| produce(shared, 20), execute],
        |shared| {
            shared.execute();
            let mut done = shared.done();
            let order = done.clone();
            let mut posted = shared.notes();
            done.sort();
            posted.sort();
            assert_eq!(done, posted);
            order
        },
    );
    assert_eq!(outcomes, [vec![10], vec![20], vec![10, 20], vec![20, 10]].into());
}

/// What a command refers to may be overwritten once its ticket is complete.
#[test]
fn sources_are_reusable_after_wait() {
    struct Shared {
        ring: Ring,
        ticket: Written,
        source: UnsafeCell<u64>,
    }
    // SAFETY: the two roles access `source` in an order that the queue upholds; loom checks that it does.
    unsafe impl Sync for Shared {}
    let setup = || {
        let ring = Ring::new(2);
        let ticket = ring.post(&[0]);
        ring.ring();
        Shared { ring, ticket, source: UnsafeCell::new(7) }
    };
    let produce: fn(&Shared) = |shared| {
        within(FOR_EVER, |patience| shared.ring.ring.wait(shared.ticket, |_| {}, patience)).expect("sound");
        // SAFETY: complete: the executor has read it.
        shared.source.with_mut(|source| unsafe { *source = 8 });
    };
    let execute: fn(&Shared) = |shared| {
        let run = |_: &u64| {
            // SAFETY: the producer leaves its source alone until the command is complete.
            shared.source.with(|source| shared.ring.note(unsafe { *source }));
            Ok(())
        };
        shared.ring.ring.execute(run).expect("sound");
    };
    explore(6, setup, [produce, execute], |shared| assert_eq!(shared.ring.notes(), [7]));
}

/// Each thread rings once, at its own time: in the end the engine knows of all.
#[test]
fn no_ring_is_lost() {
    let produce: fn(&Ring) = |shared| {
        shared.post(&[1]);
        shared.ring();
    };
    explore(
        6,
        || Ring::new(2),
        [produce, produce],
        |shared| {
            let state = shared.state();
            assert_eq!(state.rung.raw(), after_start(2), "{state}");
            assert!(!state.ringing, "{state}");
        },
    );
}

/// The bell has one holder at a time, each sees what the last one did, and the values only grow.
#[test]
fn doorbell_values_only_grow() {
    struct Shared {
        ring: Ring,
        register: UnsafeCell<u64>,
    }
    // SAFETY: the queue upholds that one bell is called at a time; loom checks that it does.
    unsafe impl Sync for Shared {}
    let setup = || Shared { ring: Ring::new(2), register: UnsafeCell::new(START) };
    let produce: fn(&Shared) = |shared| {
        shared.ring.post(&[1]);
        let bell = |value: Rung| {
            shared.register.with_mut(|register| {
                // SAFETY: the queue calls one bell at a time.
                let last = unsafe { std::mem::replace(&mut *register, value.raw()) };
                assert!(value.raw().wrapping_sub(last) as i64 > 0, "the doorbell went from {last} to {value}");
            });
            shared.ring.note(value.raw());
        };
        shared.ring.ring.ring(bell).expect("sound");
    };
    let outcomes = explore(6, setup, [produce, produce], |shared| shared.ring.notes());
    assert_eq!(outcomes, [vec![after_start(1), after_start(2)], vec![after_start(2)]].into());
}

/// Two threads execute: each command runs once, in order.
#[test]
fn two_executors_share() {
    let setup = || {
        let shared = Ring::new(4);
        shared.post(&[0, 1]);
        shared.ring();
        shared
    };
    let produce: fn(&Ring) = |shared| {
        shared.post(&[2]);
        shared.ring();
    };
    let execute: fn(&Ring) = |shared| shared.note(shared.execute().into());
    let outcomes = explore(3, setup, [execute, execute, produce], |shared| {
        shared.execute();
        assert_eq!(shared.done(), [0, 1, 2]);
        let mut counts = shared.notes();
        counts.sort();
        counts
    });
    assert_eq!(outcomes, [vec![0, 2], vec![0, 3], vec![1, 2]].into());
}

/// Two threads drive an engine that finishes later than it starts, a third posts into the slot that this frees: whoever
/// drives reads what is pending, also what another has started, and completes one.
#[test]
fn an_engine_is_driven_in_turn() {
    let setup = || {
        let shared = Ring::new(2);
        shared.post(&[0, 1]);
        shared.ring();
        shared
    };
    let drive: fn(&Ring) = |shared| {
        let Some(mut executor) = shared.ring.executor() else { return };
        let pending: Vec<Slot> = executor.pending().expect("sound").collect();
        let command = |slot: &Slot| executor.command(slot.position).expect("sound").expect("it is pending");
        let commands: Vec<u64> = pending.iter().map(command).collect();
        assert!(commands.windows(2).all(|two| two[0] + 1 == two[1]), "{commands:?}");
        shared.done.lock().expect("no panic").push(commands[0]);
        executor.complete(1).expect("rung");
    };
    let produce: fn(&Ring) = |shared| {
        let posted = within(FOR_EVER, |patience| shared.ring.post(&[2], patience));
        shared.note(posted.is_ok().into());
        shared.ring();
    };
    let outcomes = explore(3, setup, [drive, drive, produce], |shared| {
        let (driven, posted) = (shared.done().len(), shared.notes()[0]);
        shared.execute();
        assert_eq!(shared.done(), (0..2 + posted).collect::<Vec<_>>());
        (driven, posted)
    });
    assert_eq!(outcomes, [(1, 0), (1, 1), (2, 0), (2, 1)].into());
}

/// A failed command stops the queue at its own position, as every thread sees it.
#[test]
fn completion_error_is_sticky() {
    const FAULT: QueueFault = QueueFault::Completion { position: after_start(1), status: 7 };
    let setup = || {
        let shared = Ring::new(2);
        assert_eq!(shared.post(&[0]).raw(), after_start(1));
        assert_eq!(shared.post(&[1]).raw(), after_start(2));
        shared.ring();
        shared
    };
    let execute: fn(&Ring) = |shared| {
        let run = |&command: &u64| if command == 1 { Err(7) } else { Ok(()) };
        assert_eq!(shared.ring.execute(run).expect_err("it fails").fault, FAULT);
    };
    let wait: fn(&Ring) = |shared| {
        let bad = Written::from_raw(after_start(2));
        let waited = within(FOR_EVER, |patience| shared.ring.wait(bad, |_| {}, patience));
        assert!(matches!(waited, Err(TicketError::Poisoned(poisoned)) if poisoned.fault == FAULT), "{waited:?}");
        assert_eq!(shared.ring.test(Written::from_raw(after_start(1))), Ok(true));
    };
    explore(6, setup, [execute, wait], |shared| assert!(shared.ring.check().is_err()));
    // A look that sees the fault sees what completed before it.
    let look: fn(&Ring) = |shared| {
        let good = shared.ring.test(Written::from_raw(after_start(1))).expect("it does not fail");
        shared.note(good.into());
    };
    let outcomes = explore(4, setup, [execute, look], |shared| shared.notes()[0]);
    assert_eq!(outcomes, [0, 1].into());
}

const PUT: u64 = 1;
const SIGNAL: u64 = 2;

/// A cancelled list runs in part or not at all, but never its end without its beginning.
#[test]
fn cancel_keeps_prefixes() {
    let setup = || {
        let shared = Ring::new(2);
        assert_eq!(shared.post(&[PUT, SIGNAL]).raw(), after_start(2));
        shared.ring();
        shared
    };
    let cancel: fn(&Ring) = |shared| {
        let asked = shared.ring.cancel(Written::from_raw(after_start(2))).expect("sound");
        shared.note(asked.into());
    };
    let execute: fn(&Ring) = |shared| {
        shared.execute();
    };
    let outcomes = explore(6, setup, [cancel, execute], |shared| {
        assert_eq!(shared.ring.test(Written::from_raw(after_start(2))), Ok(true), "a cancelled ticket completes, too");
        (shared.notes()[0] == 1, shared.done())
    });
    let all = vec![PUT, SIGNAL];
    assert_eq!(outcomes, [(false, all.clone()), (true, vec![]), (true, vec![PUT]), (true, all)].into());
}

/// A cancel that comes late, when the slots are in use again, touches neither the new commands nor their cancel.
#[test]
fn late_cancel_touches_nothing_newer() {
    let setup = || {
        let shared = Ring::new(2);
        shared.post(&[PUT, SIGNAL]);
        shared.ring();
        shared
    };
    let cancel: fn(&Ring) = |shared| {
        shared.ring.cancel(Written::from_raw(after_start(2))).expect("sound");
    };
    let reuse: fn(&Ring) = |shared| {
        shared.execute();
        let done = shared.done().len();
        shared.post(&[PUT, SIGNAL]);
        shared.ring();
        assert_eq!(shared.execute(), 2);
        let ticket = shared.post(&[PUT, SIGNAL]);
        shared.ring();
        assert!(shared.ring.cancel(ticket).expect("sound"));
        assert_eq!(shared.execute(), 0);
        shared.note(done as u64);
    };
    let outcomes = explore(3, setup, [cancel, reuse], |shared| shared.notes()[0]);
    assert_eq!(outcomes, [0, 1, 2].into());
}

/// A producer vanishes between reserve and publish: everybody gets an error with its position, nothing is executed.
#[test]
fn dead_producer_poisons() {
    let setup = || {
        let queue = DoorbellQueue::starting_at(4, START).expect("a power of two");
        std::mem::forget(queue.reserve(1, Wrap::Allowed).expect("room"));
        queue
    };
    let produce: fn(&DoorbellQueue) = |queue| {
        let fault = match queue.reserve(1, Wrap::Allowed) {
            Ok(reservation) => within(2, |patience| reservation.publish(patience)).expect_err("never its turn").fault,
            Err(ReserveError::Poisoned(poisoned)) => poisoned.fault,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(fault, QueueFault::ProducerStalled { position: START });
    };
    let execute: fn(&DoorbellQueue) = |queue| {
        let rang = queue.ring(|value| panic!("rang {value}"));
        let pending = queue.executor().expect("the only one").pending();
        assert!(pending.is_err() || rang.is_err() || pending.is_ok_and(|slots| slots.len() == 0));
    };
    let verdict: fn(&DoorbellQueue) = |queue| {
        assert!(queue.ring(|value| panic!("rang {value}")).is_err());
        assert_eq!(queue.flush().raw(), START);
    };
    explore(2, setup, [produce, produce], verdict);
    explore(3, setup, [produce, execute], verdict);
}

/// A producer that is only slow races the deadline of its successor. Whoever wins: what is executed was posted.
#[test]
fn slow_producer_races_the_deadline() {
    fn produce(shared: &Ring, command: u64) {
        match within(1, |patience| shared.ring.post(&[command], patience)) {
            Ok(_) => shared.note(command),
            Err(ReserveError::Poisoned(poisoned)) => {
                assert_eq!(poisoned.fault, QueueFault::ProducerStalled { position: START });
            }
            Err(error) => panic!("{error}"),
        }
        let _ = shared.ring.ring(|_| {});
    }
    fn execute(shared: &Ring) {
        let _ = shared.ring.execute(|&command| {
            shared.done.lock().expect("no panic").push(command);
            Ok(())
        });
    }
    let outcomes = explore(
        2,
        || Ring::new(2),
        [|shared| produce(shared, 10), |shared| produce(shared, 20), execute],
        |shared| {
            execute(shared);
            let (done, posted) = (shared.done(), shared.notes());
            assert!(done.iter().all(|command| posted.contains(command)), "{posted:?} {done:?}");
            let sound = shared.ring.check().is_ok();
            assert!(!sound || done.len() == 2, "{posted:?} {done:?}");
            (sound, posted.len(), done.len())
        },
    );
    assert_eq!(outcomes, [(false, 1, 0), (false, 1, 1), (true, 2, 2)].into());
}

/// A producer that comes back after its successor has given up publishes nothing.
#[test]
fn slow_producer_learns_of_the_poison() {
    let setup = || (DoorbellQueue::starting_at(2, START).expect("a power of two"), Mutex::new([None; 2]));
    type Shared = (DoorbellQueue, Mutex<[Option<bool>; 2]>);
    fn produce((queue, published): &Shared, who: usize, polls: u64, delay: usize) {
        let Ok(reservation) = queue.reserve(1, Wrap::Allowed) else {
            return;
        };
        (0..delay).for_each(|_| thread::yield_now());
        let outcome = within(polls, |patience| reservation.publish(patience));
        if let Err(poisoned) = outcome {
            assert_eq!(poisoned.fault, QueueFault::ProducerStalled { position: START });
        }
        published.lock().expect("no panic")[who] = Some(outcome.is_ok());
    }
    let outcomes = explore(
        3,
        setup,
        [|shared: &Shared| produce(shared, 0, FOR_EVER, 3), |shared: &Shared| produce(shared, 1, 2, 0)],
        |(queue, published)| {
            let published = *published.lock().expect("no panic");
            let count = published.iter().flatten().filter(|&&ok| ok).count();
            assert_eq!(queue.flush().raw(), after_start(count as u64));
            published
        },
    );
    let [ok, poisoned] = [Some(true), Some(false)];
    assert!([[ok, ok], [poisoned, poisoned]].iter().all(|it| outcomes.contains(it)), "{outcomes:?}");
}

/// A flush only looks: it covers what its thread has posted or learned of, may cover more, and moves no counter.
#[test]
fn flush_is_a_snapshot() {
    let setup = || {
        let shared = Ring::new(4);
        shared.post(&[1]);
        shared
    };
    let produce: fn(&Ring) = |shared| {
        shared.post(&[2, 3]);
    };
    let flush: fn(&Ring) = |shared| {
        let ticket = shared.ring.flush();
        shared.note(ticket.raw().wrapping_sub(START));
        shared.state();
    };
    let outcomes = explore(6, setup, [produce, flush], |shared| {
        let state = shared.state();
        assert_eq!((state.written.raw(), state.rung.raw()), (after_start(3), START), "{state}");
        shared.notes()[0]
    });
    assert_eq!(outcomes, [1, 3].into());
}

/// One producer, one flusher, one executor, over slots of plain memory; the flush is an argument.
fn explore_stale_slots(flush: fn(&(DoorbellQueue, [AtomicU64; 2]))) {
    let setup = || {
        let queue = DoorbellQueue::starting_at(2, START).expect("a power of two");
        (queue, [AtomicU64::new(0), AtomicU64::new(0)])
    };
    let produce: fn(&(DoorbellQueue, [AtomicU64; 2])) = |(queue, slots)| {
        let reservation = queue.reserve(1, Wrap::Allowed).expect("room");
        for slot in reservation.slots() {
            slots[slot.index].store(7, Ordering::Relaxed);
        }
        if within(FOR_EVER, |patience| reservation.publish(patience)).is_ok() {
            let _ = queue.ring(|_| {});
        }
    };
    let execute: fn(&(DoorbellQueue, [AtomicU64; 2])) = |(queue, slots)| {
        let mut executor = queue.executor().expect("the only one");
        for slot in executor.pending().into_iter().flatten() {
            assert_eq!(slots[slot.index].load(Ordering::Relaxed), 7, "stale slot executed");
            let _ = executor.complete(1);
        }
    };
    explore(3, setup, [produce, flush, execute], |_| {});
}

#[test]
fn flush_exposes_no_stale_slot() {
    explore_stale_slots(|(queue, _)| {
        queue.flush();
    });
}

#[test]
#[should_panic(expected = "stale slot executed")]
fn historic_flush_exposes_a_stale_slot() {
    explore_stale_slots(|(queue, _)| {
        historic::flush(queue, |_| {});
    });
}

/// One producer that awaits its turn by equality, as it was done then, and one flusher.
fn explore_turns(flush: fn(&DoorbellQueue)) {
    let produce: fn(&DoorbellQueue) = |queue| {
        let reservation = queue.reserve(1, Wrap::Allowed).expect("room");
        while !historic::is_my_turn(queue, &reservation) {
            thread::yield_now();
        }
        std::mem::forget(reservation);
    };
    explore(4, || DoorbellQueue::starting_at(2, START).expect("a power of two"), [produce, flush], |_| {});
}

#[test]
fn flush_skips_no_turn() {
    explore_turns(|queue| {
        queue.flush();
    });
}

/// Loom reports a thread that waits for ever as a model that does not end.
#[test]
#[should_panic(expected = "exceeded maximum number of branches")]
fn historic_flush_makes_a_producer_wait_for_ever() {
    explore_turns(|queue| {
        historic::flush(queue, |_| {});
    });
}

/// The same flush against this crate's own turn: where the turn was skipped, a named error at once.
#[test]
fn skipped_turn_is_a_named_error() {
    let setup = || (DoorbellQueue::starting_at(2, START).expect("a power of two"), Mutex::new(false));
    let produce: fn(&(DoorbellQueue, Mutex<bool>)) = |(queue, skipped)| {
        let reservation = queue.reserve(1, Wrap::Allowed).expect("room");
        if let Err(error) = within(FOR_EVER, |patience| reservation.publish(patience)) {
            assert_eq!(error.fault, QueueFault::Overrun { position: START });
            *skipped.lock().expect("no panic") = true;
        }
    };
    let flush: fn(&(DoorbellQueue, Mutex<bool>)) = |(queue, _)| {
        historic::flush(queue, |_| {});
    };
    let outcomes = explore(6, setup, [produce, flush], |(_, skipped)| *skipped.lock().expect("no panic"));
    assert_eq!(outcomes, [false, true].into());
}
