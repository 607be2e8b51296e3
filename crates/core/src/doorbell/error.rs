//! Errors of the doorbell queue, one type per kind of operation.

use thiserror::Error;

use super::counter::Written;
use super::fault::QueueFault;
use super::state::QueueState;

/// A depth that a queue cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "queue depth {depth} is not a power of two from 1 to {max}; slots are addressed by the low bits of a 64-bit \
     position, which only then stays seamless where the position wraps; {nearest} would do",
    max = super::MAX_DEPTH,
)]
pub struct DepthError {
    /// What was asked for.
    pub depth: u32,
    /// The next depth upwards that is allowed, or the largest.
    pub nearest: u32,
}

/// The queue has stopped for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the queue is poisoned and must be replaced: {fault} ({state})")]
pub struct Poisoned {
    /// The first fault.
    pub fault: QueueFault,
    /// The counters when this error was made.
    pub state: QueueState,
}

/// Slots could not be reserved, or a list not be posted. Nothing of it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// Not enough free slots now.
    #[error("the queue is full: {needed} slots needed, {free} free; ring the doorbell, make progress, and try again")]
    Busy {
        /// Slots that are needed, padding included.
        needed: u32,
        /// Slots that were free.
        free: u32,
    },
    /// More slots than the queue can ever give at once.
    #[error(
        "{needed} slots needed at once, a queue of depth {depth} gives at most {limit}; split the list, or make the \
         queue deeper"
    )]
    TooLarge {
        /// Slots asked for.
        needed: usize,
        /// The largest reservation: the depth, or half of it (rounded up) where it may not wrap.
        limit: u32,
        /// Slots in the ring.
        depth: u32,
    },
    /// The deadline passed before enough slots were free. The queue itself is sound.
    #[error("{needed} slots did not become free before the deadline ({state}); see that something makes progress")]
    Timeout {
        /// Slots that are needed, padding included.
        needed: u32,
        /// The counters when the deadline had passed.
        state: QueueState,
    },
    /// The abort flag was raised before enough slots were free.
    #[error("aborted before {needed} slots became free ({state})")]
    Aborted {
        /// Slots that are needed, padding included.
        needed: u32,
        /// The counters when the abort was seen.
        state: QueueState,
    },
    /// The queue has stopped for good.
    #[error(transparent)]
    Poisoned(#[from] Poisoned),
}

/// A ticket is not complete and will not be, or not in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TicketError {
    /// The ticket lies beyond all that was written: it is of another queue.
    #[error("ticket {ticket} is beyond all that this queue has written ({state}); test it on the queue that gave it")]
    Unknown {
        /// The ticket that was given.
        ticket: Written,
        /// The counters when this error was made.
        state: QueueState,
    },
    /// The deadline passed first. The queue itself is sound.
    #[error("ticket {ticket} was not complete before the deadline ({state}); see that something makes progress")]
    Timeout {
        /// The ticket that was waited for.
        ticket: Written,
        /// The counters when the deadline had passed.
        state: QueueState,
    },
    /// The abort flag was raised first.
    #[error("aborted before ticket {ticket} was complete ({state})")]
    Aborted {
        /// The ticket that was waited for.
        ticket: Written,
        /// The counters when the abort was seen.
        state: QueueState,
    },
    /// The queue has stopped for good before the ticket was complete.
    #[error(transparent)]
    Poisoned(#[from] Poisoned),
}
