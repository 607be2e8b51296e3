//! The bug that the doorbell queue exists to end, kept so that the checkers can be seen to find it.
//!
//! A library of device-initiated communication had one counter for "reserved" and "written", and a second one as the turn
//! of producers and the last doorbell value. Its flush took the first for what was written:
//!
//! - it rang the doorbell up to it, over slots whose owners were still writing: **stale slots executed**;
//! - it stored it as the turn. An owner that waited for `turn == start` never saw that value again: **it waited for
//!   ever**. (Found on 16 GPUs: a wave that waited for 15541 with the turn at 15543.)
//!
//! Here the same steps on the counters of a [`DoorbellQueue`], where the turn is `Written` and the doorbell `Rung`.

use campanile_core::doorbell::{DoorbellQueue, Reservation, Rung, Written};
use campanile_core::sync::atomic::Ordering;

/// The flush: rings up to the reservation counter and stores it as the turn.
pub fn flush(queue: &DoorbellQueue, bell: impl FnOnce(Rung)) -> Written {
    let counters = queue.counters();
    let reserved = counters.reserved.load(Ordering::Acquire).raw();
    bell(Rung::from_raw(reserved));
    counters.rung.store(Rung::from_raw(reserved), Ordering::Release);
    counters.written.store(Written::from_raw(reserved), Ordering::Release);
    Written::from_raw(reserved)
}

/// Whether the turn of `reservation` has come, by equality.
pub fn is_my_turn(queue: &DoorbellQueue, reservation: &Reservation<'_>) -> bool {
    let start = reservation.slots().next().expect("it has slots").position;
    queue.counters().written.load(Ordering::Acquire).raw() == start
}
