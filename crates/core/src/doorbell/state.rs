//! The state of a queue as errors and people see it.

use core::fmt;

use super::counter::{Completed, Counters, Reserved, Rung, Written, distance};
use crate::sync::atomic::Ordering;

/// The counters of a queue at one time, as errors and diagnostics print them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueState {
    /// Slots taken by producers.
    pub reserved: Reserved,
    /// Slots published.
    pub written: Written,
    /// Slots that the engine knows of.
    pub rung: Rung,
    /// Slots finished.
    pub completed: Completed,
    /// Slots in the ring.
    pub depth: u32,
    /// Whether a thread was ringing the doorbell.
    pub ringing: bool,
    /// Whether an executor was at work.
    pub executing: bool,
}

impl QueueState {
    /// Reads the counters from the last stage to the first, each with acquire, so that the copy obeys
    /// `Completed ≤ Rung ≤ Written ≤ Reserved` although the queue moves meanwhile.
    pub(super) fn read(counters: &Counters, depth: u32) -> Self {
        let completed = counters.completed.load(Ordering::Acquire);
        let rung = counters.rung.load(Ordering::Acquire);
        let written = counters.written.load(Ordering::Acquire);
        let reserved = counters.reserved.load(Ordering::Relaxed);
        Self {
            reserved,
            written,
            rung,
            completed,
            depth,
            ringing: counters.ring_requests.load(Ordering::Relaxed) != 0,
            executing: counters.executing.load(Ordering::Relaxed),
        }
    }

    /// Whether `Completed ≤ Rung ≤ Written ≤ Reserved`, wrap-safe. Always so on a sound queue.
    pub fn is_ordered(&self) -> bool {
        distance(self.rung.raw(), self.completed.raw()) >= 0
            && distance(self.written.raw(), self.rung.raw()) >= 0
            && distance(self.reserved.raw(), self.written.raw()) >= 0
    }
}

impl fmt::Display for QueueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "completed {} ≤ rung {} ≤ written {} ≤ reserved {}, depth {}{}{}",
            self.completed,
            self.rung,
            self.written,
            self.reserved,
            self.depth,
            if self.ringing { ", bell held" } else { "" },
            if self.executing { ", executing" } else { "" },
        )
    }
}
