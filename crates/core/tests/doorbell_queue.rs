//! The doorbell queue, rule by rule: one thread, time under the test's control.
#![cfg(not(campanile_loom))]

mod doorbell_historic;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use campanile_core::doorbell::{
    Clock, CommandRing, Completed, DepthError, DoorbellQueue, MAX_DEPTH, Patience, Poisoned, QueueFault, ReserveError,
    Slot, TicketError, Wrap, Written,
};
use campanile_core::sync::atomic::Ordering;
use doorbell_historic as historic;

/// Positions from which a few slots cross a boundary that a narrower or a signed counter would trip over.
const STARTS: [u64; 7] =
    [0, (1 << 16) - 2, (1 << 32) - 2, (1 << 56) - 2, (1 << 63) - 2, u64::MAX - 1, u64::MAX - (1 << 20)];

/// A clock that each look moves on by 1 ns.
struct Looks(Cell<u64>);

impl Clock for Looks {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.replace(self.0.get() + 1))
    }
}

/// Calls `wait` with patience for a few polls, between which `relax` runs.
fn relaxing<R>(relax: impl Fn(u32), wait: impl FnOnce(&Patience<'_>) -> R) -> R {
    let clock = Looks(Cell::new(0));
    wait(&Patience { clock: &clock, deadline: Duration::from_nanos(8), abort: &|| false, relax: &relax })
}

fn shortly<R>(wait: impl FnOnce(&Patience<'_>) -> R) -> R {
    relaxing(|_| {}, wait)
}

fn aborted<R>(wait: impl FnOnce(&Patience<'_>) -> R) -> R {
    let clock = Looks(Cell::new(0));
    wait(&Patience { clock: &clock, deadline: Duration::MAX, abort: &|| true, relax: &|_| {} })
}

fn queue(depth: u32, start: u64) -> DoorbellQueue {
    DoorbellQueue::starting_at(depth, start).expect("a power of two")
}

/// Reserves and publishes.
fn post(queue: &DoorbellQueue, slots: usize) -> Written {
    let reservation = queue.reserve(slots, Wrap::Allowed).expect("room");
    shortly(|patience| reservation.publish(patience)).expect("its turn")
}

/// Executes all that is rung, of which there must be `count`.
fn execute(queue: &DoorbellQueue, count: usize) {
    let mut executor = queue.executor().expect("the only one");
    assert_eq!(executor.pending().expect("sound").len(), count);
    executor.complete(count as u32).expect("rung");
}

fn fault(result: Result<impl Sized, impl Into<ReserveError>>) -> QueueFault {
    match result.map_err(Into::into) {
        Err(ReserveError::Poisoned(poisoned)) => poisoned.fault,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("not poisoned"),
    }
}

#[test]
fn depth_is_a_power_of_two() {
    for shift in 0..32 {
        assert_eq!(queue(1 << shift, 0).depth(), 1 << shift);
    }
    for (depth, nearest) in [(0, 1), (3, 4), (100, 128), (MAX_DEPTH - 1, MAX_DEPTH), (u32::MAX, MAX_DEPTH)] {
        assert_eq!(DoorbellQueue::new(depth).err(), Some(DepthError { depth, nearest }));
        assert!(CommandRing::<u8>::new(depth).is_err());
    }
}

#[test]
fn an_operation_goes_through_the_four_counters() {
    for start in STARTS {
        let queue = queue(4, start);
        let at = |slots: u64| start.wrapping_add(slots);
        let counters = || {
            let state = queue.state();
            assert!(state.is_ordered());
            [state.completed.raw(), state.rung.raw(), state.written.raw(), state.reserved.raw()]
                .map(|raw| raw.wrapping_sub(start))
        };
        let reservation = queue.reserve(2, Wrap::Allowed).expect("room");
        let slots: Vec<_> = reservation.slots().collect();
        assert_eq!(slots, [0, 1].map(|n| Slot { position: at(n), index: (at(n) % 4) as usize }));
        assert_eq!(counters(), [0, 0, 0, 2]);
        let ticket = shortly(|patience| reservation.publish(patience)).expect("its turn");
        assert_eq!((counters(), ticket.raw()), ([0, 0, 2, 2], at(2)));
        let mut bell = Vec::new();
        assert_eq!(queue.ring(|value| bell.push(value.raw())).expect("sound").raw(), at(2));
        assert_eq!(queue.ring(|value| bell.push(value.raw())).expect("sound").raw(), at(2));
        assert_eq!((counters(), bell), ([0, 2, 2, 2], vec![at(2)]));
        assert_eq!(queue.test(ticket), Ok(false));
        let mut executor = queue.executor().expect("the only one");
        assert!(queue.executor().is_none());
        executor.complete(1).expect("rung");
        assert_eq!((counters(), queue.test(ticket)), ([1, 2, 2, 2], Ok(false)));
        executor.complete(1).expect("rung");
        assert_eq!((counters(), queue.test(ticket)), ([2, 2, 2, 2], Ok(true)));
        drop(executor);
        assert!(queue.executor().is_some());
    }
}

#[test]
fn padding_keeps_slots_from_wrapping() {
    for start in [5, (1 << 32) - 3, u64::MAX - 2] {
        let queue = queue(8, start); // Three slots to the end of the ring.
        let reservation = queue.reserve(4, Wrap::Padded).expect("3 + 4 ≤ 8");
        assert_eq!(reservation.padding().map(|slot| slot.index).collect::<Vec<_>>(), [5, 6, 7]);
        assert_eq!(reservation.slots().map(|slot| slot.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let ticket = shortly(|patience| reservation.publish(patience)).expect("its turn");
        assert_eq!(ticket.raw(), start.wrapping_add(7), "one publish for both");
        assert_eq!(queue.reserve(4, Wrap::Padded).err(), Some(ReserveError::Busy { needed: 4, free: 1 }));
        queue.ring(|_| {}).expect("sound");
        execute(&queue, 7);
        let reservation = queue.reserve(4, Wrap::Padded).expect("room");
        assert_eq!(reservation.padding().len(), 0, "it fits as it is");
        shortly(|patience| reservation.publish(patience)).expect("its turn");
    }
}

#[test]
fn what_can_never_fit_is_refused_wherever_the_ring_stands() {
    for depth in [1, 2, 8] {
        for start in 0..u64::from(depth) {
            let queue = queue(depth, start);
            let limit = queue.largest(Wrap::Padded);
            assert_eq!(limit, depth.div_ceil(2));
            let needed = limit as usize + 1;
            assert_eq!(
                queue.reserve(needed, Wrap::Padded).err(),
                Some(ReserveError::TooLarge { needed, limit, depth })
            );
            let padded = queue.reserve(limit as usize, Wrap::Padded).expect("always fits");
            shortly(|patience| padded.publish(patience)).expect("its turn");
            let needed = depth as usize + 1;
            let refused = queue.reserve(needed, Wrap::Allowed).err();
            assert_eq!(refused, Some(ReserveError::TooLarge { needed, limit: depth, depth }));
            assert!(matches!(queue.reserve(usize::MAX, Wrap::Allowed), Err(ReserveError::TooLarge { .. })));
        }
    }
}

#[test]
fn nothing_is_legal() {
    let ring = CommandRing::<u64>::new(1).expect("a power of two");
    let empty = shortly(|patience| ring.post(&[], patience)).expect("legal");
    assert_eq!(ring.test(empty), Ok(true));
    let full = shortly(|patience| ring.post(&[1], patience)).expect("room");
    let empty = shortly(|patience| ring.post(&[], patience)).expect("legal on a full ring");
    assert_eq!(empty, full, "a flush");
    assert_eq!(ring.test(empty), Ok(false));
    let queue = queue(2, 0);
    drop(queue.reserve(0, Wrap::Padded).expect("legal")); // Owns nothing, abandons nothing.
    assert_eq!(queue.check(), Ok(()));
}

#[test]
fn commands_without_bytes_take_their_turn() {
    let ring = CommandRing::<()>::new(2).expect("a power of two");
    let ticket = shortly(|patience| ring.post(&[(), ()], patience)).expect("room");
    ring.ring(|_| {}).expect("sound");
    assert_eq!(ring.execute(|()| Ok(())), Ok(2));
    assert_eq!(ring.test(ticket), Ok(true));
}

#[test]
fn an_engine_completes_later_than_it_starts() {
    for start in STARTS {
        let ring = CommandRing::starting_at(4, start).expect("a power of two");
        let post = |commands: &[u32]| shortly(|patience| ring.post(commands, patience)).expect("room");
        let position = |slot: u64| start.wrapping_add(slot);
        let ticket = post(&[10, 11, 12]);
        let executor = ring.executor().expect("the only one");
        assert!(ring.executor().is_none(), "one at a time");
        assert_eq!(executor.command(position(0)), Ok(None), "it is not rung");
        ring.ring(|_| {}).expect("sound");
        let started: Vec<_> = executor.pending().expect("sound").map(|slot| slot.position).collect();
        assert_eq!(started, [position(0), position(1), position(2)]);
        let commands: Vec<_> = started.iter().map(|&at| executor.command(at).expect("sound")).collect();
        assert_eq!(commands, [Some(10), Some(11), Some(12)]);
        drop(executor);
        assert_eq!(ring.test(ticket), Ok(false), "what was started is not complete");
        assert_eq!(shortly(|patience| ring.post(&[13, 14], patience)).map(|_| ()), {
            Err(ReserveError::Busy { needed: 2, free: 1 })
        });
        // Another thread's turn: it finds the same, and learns that two are done.
        let mut executor = ring.executor().expect("it was given back");
        assert_eq!(executor.command(position(0)), Ok(Some(10)));
        executor.complete(2).expect("rung");
        assert_eq!(executor.command(position(0)), Ok(None), "it is complete");
        assert_eq!(executor.command(position(2)), Ok(Some(12)));
        let second = post(&[13, 14]);
        assert_eq!(ring.cancel(second), Ok(true));
        ring.ring(|_| {}).expect("sound");
        let left: Vec<_> = (2..6).map(|slot| executor.command(position(slot)).expect("sound")).collect();
        assert_eq!(left, [Some(12), None, None, None], "cancelled, and never posted");
        executor.complete(1).expect("rung");
        assert_eq!((ring.test(ticket), ring.test(second)), (Ok(true), Ok(false)));
        let poisoned = executor.fail(7);
        assert_eq!(poisoned.fault, QueueFault::Completion { position: position(3), status: 7 });
        assert_eq!(ring.test(second), Err(TicketError::Poisoned(poisoned)));
    }
}

#[test]
fn flush_changes_nothing_and_waits_for_no_reservation() {
    let queue = queue(8, u64::MAX);
    let own = post(&queue, 2);
    let unpublished = queue.reserve(3, Wrap::Allowed).expect("room");
    let before = queue.state();
    let ticket = queue.flush();
    assert_eq!(queue.state(), before);
    assert_eq!(ticket, own);
    shortly(|patience| {
        let clock = patience.clock.now();
        queue.ring(|_| {}).expect("sound");
        execute(&queue, 2);
        queue.wait(ticket, |_| unreachable!("rung already"), patience).expect("complete");
        assert_eq!(patience.clock.now(), clock + Duration::from_nanos(1), "it did not even look at the clock");
    });
    shortly(|patience| unpublished.publish(patience)).expect("its turn");
}

#[test]
fn wait_rings_up_to_written_only() {
    let queue = queue(8, 0);
    let ticket = post(&queue, 2);
    let unpublished = queue.reserve(3, Wrap::Allowed).expect("room");
    let rung = Cell::new(0);
    let relax = |_| execute(&queue, if queue.test(ticket) == Ok(true) { 0 } else { 2 });
    relaxing(relax, |patience| queue.wait(ticket, |value| rung.set(value.raw()), patience))
        .expect("executed meanwhile");
    assert_eq!(rung.get(), 2);
    shortly(|patience| unpublished.publish(patience)).expect("its turn");
}

#[test]
fn tickets_complete_in_order_and_are_tested_in_any() {
    let queue = queue(8, u64::MAX - 3);
    let tickets = [1, 2, 3].map(|slots| post(&queue, slots));
    queue.ring(|_| {}).expect("sound");
    let done = || [2, 0, 1].map(|n| queue.test(tickets[n]).expect("sound"));
    let mut executor = queue.executor().expect("the only one");
    let mut seen = Vec::new();
    for _ in 0..6 {
        executor.complete(1).expect("rung");
        seen.push(done());
    }
    let [t, f] = [true, false];
    assert_eq!(seen, [[f, t, f], [f, t, f], [f, t, t], [f, t, t], [f, t, t], [t, t, t]]);
}

#[test]
fn a_wait_ends_at_the_deadline_and_at_an_abort_and_leaves_the_queue_sound() {
    let queue = queue(2, 0);
    let ticket = post(&queue, 2);
    let timeout = shortly(|patience| queue.wait(ticket, |_| {}, patience));
    assert_eq!(timeout, Err(TicketError::Timeout { ticket, state: queue.state() }));
    let abort = aborted(|patience| queue.wait(ticket, |_| {}, patience));
    assert_eq!(abort, Err(TicketError::Aborted { ticket, state: queue.state() }));
    let timeout = shortly(|patience| queue.reserve_within(1, Wrap::Allowed, |_| {}, patience)).err();
    assert_eq!(timeout, Some(ReserveError::Timeout { needed: 1, state: queue.state() }));
    let abort = aborted(|patience| queue.reserve_within(1, Wrap::Allowed, |_| {}, patience)).err();
    assert_eq!(abort, Some(ReserveError::Aborted { needed: 1, state: queue.state() }));
    let relax = |polls| {
        if polls == 3 {
            execute(&queue, 2);
        }
    };
    let reservation = relaxing(relax, |patience| queue.reserve_within(2, Wrap::Allowed, |_| {}, patience));
    shortly(|patience| reservation.expect("room by then").publish(patience)).expect("its turn");
}

#[test]
fn a_foreign_ticket_is_refused_at_once() {
    let queue = queue(2, u64::MAX);
    let ticket = Written::from_raw(0);
    assert_eq!(queue.test(ticket), Err(TicketError::Unknown { ticket, state: queue.state() }));
    assert!(shortly(|patience| queue.wait(ticket, |_| {}, patience)).is_err());
    assert_eq!(queue.check(), Ok(()), "the caller's mistake, not the queue's");
}

/// After a fault everything says so, except for tickets that were complete before.
fn assert_poisoned(queue: &DoorbellQueue, complete: Written, open: Written, expected: QueueFault) {
    assert_eq!(fault(queue.reserve(1, Wrap::Allowed)), expected);
    assert_eq!(fault(queue.reserve(0, Wrap::Allowed)), expected);
    assert_eq!(fault(shortly(|patience| queue.reserve_within(1, Wrap::Allowed, |_| {}, patience))), expected);
    assert_eq!(fault(queue.ring(|_| panic!("rang"))), expected);
    assert_eq!(fault(queue.executor().expect("free").pending()), expected);
    assert_eq!(queue.test(complete), Ok(true));
    for answer in [queue.test(open).map(|_| ()), shortly(|patience| queue.wait(open, |_| panic!("rang"), patience))] {
        assert!(
            matches!(answer, Err(TicketError::Poisoned(Poisoned { fault, .. })) if fault == expected),
            "{answer:?}"
        );
    }
    assert_eq!(queue.abort().fault, expected, "the first fault stays");
}

/// A queue of four slots at `start` with one complete ticket and an open one.
fn half_done(start: u64) -> (DoorbellQueue, Written, Written) {
    let queue = queue(4, start);
    let complete = post(&queue, 1);
    queue.ring(|_| {}).expect("sound");
    execute(&queue, 1);
    let open = post(&queue, 1);
    queue.ring(|_| {}).expect("sound");
    (queue, complete, open)
}

#[test]
fn a_producer_that_vanishes_poisons_at_the_deadline_of_the_next() {
    for start in STARTS {
        let (queue, complete, open) = half_done(start);
        std::mem::forget(queue.reserve(1, Wrap::Allowed).expect("room"));
        let next = queue.reserve(1, Wrap::Allowed).expect("room");
        let after_next = queue.reserve(1, Wrap::Allowed).expect("room");
        let expected = QueueFault::ProducerStalled { position: start.wrapping_add(2) };
        assert_eq!(fault(shortly(|patience| next.publish(patience))), expected);
        assert_eq!(fault(shortly(|patience| after_next.publish(patience))), expected);
        assert_poisoned(&queue, complete, open, expected);
        assert_eq!(queue.flush().raw(), start.wrapping_add(2), "never published");
    }
}

#[test]
fn a_producer_that_vanishes_with_the_whole_ring_poisons_at_the_deadline_of_who_waits_for_room() {
    let queue = queue(2, u64::MAX);
    let complete = queue.flush();
    std::mem::forget(queue.reserve(2, Wrap::Allowed).expect("room"));
    assert_eq!(queue.reserve(1, Wrap::Allowed).err(), Some(ReserveError::Busy { needed: 1, free: 0 }));
    let expected = QueueFault::ProducerStalled { position: u64::MAX };
    assert_eq!(fault(shortly(|patience| queue.reserve_within(1, Wrap::Allowed, |_| {}, patience))), expected);
    assert_poisoned(&queue, complete, Written::from_raw(0), expected);
}

/// At the first and the last look an unpublished reservation holds the ring, but not the same one: nobody is dead.
#[test]
fn a_ring_that_others_keep_filling_is_a_timeout_and_no_poison() {
    let queue = queue(1, 0);
    let first = Cell::new(queue.reserve(1, Wrap::Allowed).ok());
    let relax = |_| {
        if let Some(first) = first.take() {
            shortly(|patience| first.publish(patience)).expect("its turn");
            queue.ring(|_| {}).expect("sound");
            execute(&queue, 1);
            std::mem::forget(queue.reserve(1, Wrap::Allowed).expect("room"));
        }
    };
    let starved = relaxing(relax, |patience| queue.reserve_within(1, Wrap::Allowed, |_| {}, patience)).err();
    assert_eq!(starved, Some(ReserveError::Timeout { needed: 1, state: queue.state() }));
    assert_eq!(queue.check(), Ok(()));
}

#[test]
fn a_dropped_reservation_poisons_at_once() {
    for start in STARTS {
        let (queue, complete, open) = half_done(start);
        drop(queue.reserve(2, Wrap::Allowed).expect("room"));
        assert_poisoned(&queue, complete, open, QueueFault::Abandoned { position: start.wrapping_add(2) });
    }
}

#[test]
fn an_abort_ends_a_turn_and_the_queue() {
    for start in STARTS {
        let (queue, complete, open) = half_done(start);
        let slow = queue.reserve(1, Wrap::Allowed).expect("room");
        let next = queue.reserve(1, Wrap::Allowed).expect("room");
        let expected = QueueFault::Aborted { position: start.wrapping_add(2) };
        assert_eq!(fault(aborted(|patience| next.publish(patience))), expected);
        assert_eq!(fault(shortly(|patience| slow.publish(patience))), expected, "although it is its turn");
        assert_poisoned(&queue, complete, open, expected);

        let (queue, complete, open) = half_done(start);
        assert_eq!(queue.abort().fault, expected);
        assert_poisoned(&queue, complete, open, expected);
    }
}

#[test]
fn a_completion_error_names_its_slot() {
    for start in STARTS {
        let (queue, complete, open) = half_done(start);
        let poisoned = queue.executor().expect("the only one").fail(u32::MAX);
        let expected = QueueFault::Completion { position: start.wrapping_add(1), status: u32::MAX };
        assert_eq!(poisoned.fault, expected);
        assert_poisoned(&queue, complete, open, expected);
        assert!(poisoned.to_string().contains("status 0xffffffff"), "{poisoned}");
    }
}

#[test]
fn completing_what_was_not_rung_is_an_overrun() {
    let (queue, complete, open) = half_done(u64::MAX - 1);
    post(&queue, 1);
    let expected = QueueFault::Overrun { position: 0 };
    assert_eq!(fault(queue.executor().expect("the only one").complete(2)), expected);
    assert_poisoned(&queue, complete, open, expected);
}

#[test]
fn an_engine_that_runs_ahead_is_an_overrun() {
    let (queue, _, _) = half_done(u64::MAX - 1);
    queue.counters().completed.store(Completed::from_raw(7), Ordering::Release);
    assert_eq!(fault(queue.executor().expect("the only one").pending()), QueueFault::Overrun { position: 0 });
}

#[test]
fn a_panic_in_a_command_or_in_the_bell_poisons() {
    let ring = CommandRing::starting_at(4, u64::MAX).expect("a power of two");
    shortly(|patience| ring.post(&[1, 2, 3], patience)).expect("room");
    ring.ring(|_| {}).expect("sound");
    let run = |&command: &i32| if command == 2 { panic!("on purpose") } else { Ok(()) };
    assert!(catch_unwind(AssertUnwindSafe(|| ring.execute(run))).is_err());
    assert_eq!(fault(ring.execute(|_| panic!("executed twice"))), QueueFault::Unwound { position: 0 });
    assert_eq!(ring.state().completed.raw(), 0);

    let queue = queue(4, u64::MAX);
    post(&queue, 2);
    assert!(catch_unwind(AssertUnwindSafe(|| queue.ring(|_| panic!("on purpose")))).is_err());
    assert_eq!(fault(queue.ring(|_| panic!("rang twice"))), QueueFault::Unwound { position: 1 });
}

#[test]
fn cancelled_commands_complete_without_running() {
    let ring = CommandRing::starting_at(4, u64::MAX).expect("a power of two");
    let execute = || {
        let mut done = Vec::new();
        ring.ring(|_| {}).expect("sound");
        ring.execute(|&command| {
            done.push(command);
            Ok(())
        })
        .expect("sound");
        done
    };
    for _ in 0..8 {
        let [a, b, c] =
            [&[1][..], &[2, 3], &[4]].map(|list| shortly(|patience| ring.post(list, patience)).expect("room"));
        assert_eq!(ring.cancel(b), Ok(true));
        assert_eq!(execute(), [1, 4]);
        assert!([a, b, c].iter().all(|&ticket| ring.test(ticket) == Ok(true)));
        assert_eq!(ring.cancel(b), Ok(false), "too late");
        assert_eq!(ring.cancel(c), Ok(false), "too late");
    }
    let foreign = Written::from_raw(1 << 20);
    assert!(matches!(ring.cancel(foreign), Err(TicketError::Unknown { .. })));
}

#[test]
fn the_first_failing_command_stops_the_ring() {
    let ring = CommandRing::starting_at(4, u64::MAX).expect("a power of two");
    let good = shortly(|patience| ring.post(&[1], patience)).expect("room");
    let bad = shortly(|patience| ring.post(&[2, 3], patience)).expect("room");
    ring.ring(|_| {}).expect("sound");
    let mut done = Vec::new();
    let run = |&command: &i32| {
        done.push(command);
        if command == 2 { Err(5) } else { Ok(()) }
    };
    let expected = QueueFault::Completion { position: 0, status: 5 };
    assert_eq!(fault(ring.execute(run)), expected);
    assert_eq!(done, [1, 2]);
    assert_eq!(ring.test(good), Ok(true));
    assert!(matches!(ring.test(bad), Err(TicketError::Poisoned(poisoned)) if poisoned.fault == expected));
    assert_eq!(fault(shortly(|patience| ring.post(&[4], patience))), expected);
}

/// A command that aborts the ring is the last one to run.
#[test]
fn an_abort_stops_the_executor_between_commands() {
    let ring = CommandRing::new(4).expect("a power of two");
    shortly(|patience| ring.post(&[1, 2, 3], patience)).expect("room");
    ring.ring(|_| {}).expect("sound");
    let mut done = Vec::new();
    let run = |&command: &i32| {
        done.push(command);
        ring.abort();
        Ok(())
    };
    assert_eq!(fault(ring.execute(run)), QueueFault::Aborted { position: 3 });
    assert_eq!(done, [1]);
}

/// First form of the historic bug: the engine is told of a slot that its owner has not written.
#[test]
fn historic_flush_exposes_a_stale_slot() {
    let queue = queue(4, u64::MAX);
    let _unwritten = std::mem::ManuallyDrop::new(queue.reserve(2, Wrap::Allowed).expect("room"));
    let pending = || queue.executor().expect("the only one").pending().expect("sound").len();
    queue.flush();
    queue.ring(|_| {}).expect("sound");
    assert_eq!(pending(), 0);
    historic::flush(&queue, |_| {});
    assert_eq!(pending(), 2, "stale slots are pending");
}

/// Second form: the owner's turn was stepped over. By equality it waits for ever, by `≥` it learns at once.
#[test]
fn historic_flush_makes_a_producer_wait_for_ever() {
    for start in STARTS {
        let queue = queue(4, start);
        let reservation = queue.reserve(2, Wrap::Allowed).expect("room");
        queue.flush();
        assert!(historic::is_my_turn(&queue, &reservation));
        historic::flush(&queue, |_| {});
        let waited = shortly(|patience| patience.until(|| Ok::<_, ()>(historic::is_my_turn(&queue, &reservation))));
        assert!(waited.expect("no error").is_err(), "by equality");
        let skipped = shortly(|patience| reservation.publish(patience));
        assert_eq!(fault(skipped), QueueFault::Overrun { position: start });
    }
}

#[test]
fn errors_say_what_was_given_and_what_to_do() {
    let queue = queue(4, 0);
    std::mem::forget(queue.reserve(2, Wrap::Allowed).expect("room"));
    let busy = queue.reserve(3, Wrap::Allowed).expect_err("full").to_string();
    assert_eq!(busy, "the queue is full: 3 slots needed, 2 free; ring the doorbell, make progress, and try again");
    let large = queue.reserve(5, Wrap::Allowed).expect_err("too large").to_string();
    assert!(large.starts_with("5 slots needed at once, a queue of depth 4 gives at most 4;"), "{large}");
    let next = queue.reserve(1, Wrap::Allowed).expect("room");
    let stalled = shortly(|patience| next.publish(patience)).expect_err("stalled").to_string();
    assert!(stalled.contains("position 0 did not publish it before the deadline"), "{stalled}");
    assert!(stalled.contains("completed 0 ≤ rung 0 ≤ written 0 ≤ reserved 3, depth 4"), "{stalled}");
}
