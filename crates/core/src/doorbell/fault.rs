//! The sticky fault of a queue: why it stopped, in one word.

use thiserror::Error;

use super::counter::Counters;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Why a queue stopped for good. The first fault stays; positions are slots since the queue began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QueueFault {
    /// A producer reserved and did not publish before the deadline of one that waits behind it.
    #[error(
        "the producer that reserved position {position} did not publish it before the deadline of a \
         successor: it died or is stuck between reserve and publish"
    )]
    ProducerStalled {
        /// Start of the reservation that was not published.
        position: u64,
    },
    /// A reservation was dropped, by an early return or a panic, without being published.
    #[error("the reservation at position {position} was dropped without being published")]
    Abandoned {
        /// Start of that reservation.
        position: u64,
    },
    /// The abort flag rose while a producer waited for its turn, or the queue was aborted.
    #[error("the queue was aborted when position {position} was next to be published")]
    Aborted {
        /// Where the published slots ended.
        position: u64,
    },
    /// A counter was found beyond a turn that only its owner can end: protocol error.
    #[error(
        "protocol error: a counter has passed position {position}, whose owner has not taken that \
         step; something that does not own the range rang, published or completed it"
    )]
    Overrun {
        /// The position whose turn was skipped.
        position: u64,
    },
    /// The engine reported that an operation failed. It and all later ones are not complete.
    #[error("the operation at position {position} failed with completion status {status:#x}")]
    Completion {
        /// The slot that failed.
        position: u64,
        /// The engine's own code, e.g. an `ibv_wc_status`.
        status: u32,
    },
    /// The code that executed a slot, or rang the bell for it, panicked halfway.
    #[error("a panic left the slot at position {position} half done")]
    Unwound {
        /// The slot at work, or the doorbell value that was being rung.
        position: u64,
    },
}

/// [`QueueFault`] in one word, so that it is set once, by one compare-and-swap, and never seen in part.
///
/// Bits 56..64 hold the kind (0 = no fault). Bits 0..56 hold the low bits of the position, which suffice
/// to restore it next to a counter, as all positions in flight lie within one depth; for
/// [`QueueFault::Completion`] they hold the status, since there the position is where `Completed` stopped.
pub(super) struct FaultWord(AtomicU64);

const PAYLOAD_BITS: u32 = 56;
const PAYLOAD: u64 = (1 << PAYLOAD_BITS) - 1;

const PRODUCER_STALLED: u64 = 1;
const ABANDONED: u64 = 2;
const ABORTED: u64 = 3;
const OVERRUN: u64 = 4;
const COMPLETION: u64 = 5;
const UNWOUND: u64 = 6;

impl FaultWord {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Records `fault` unless there is one already.
    pub(super) fn set(&self, fault: QueueFault) {
        let (kind, payload) = match fault {
            QueueFault::ProducerStalled { position } => (PRODUCER_STALLED, position),
            QueueFault::Abandoned { position } => (ABANDONED, position),
            QueueFault::Aborted { position } => (ABORTED, position),
            QueueFault::Overrun { position } => (OVERRUN, position),
            QueueFault::Completion { status, .. } => (COMPLETION, u64::from(status)),
            QueueFault::Unwound { position } => (UNWOUND, position),
        };
        let word = kind << PAYLOAD_BITS | payload & PAYLOAD;
        // Release: a reader of a completion fault must see where `Completed` stopped. A fault that came
        // first stays, and is acquired by whoever reports it.
        let _ = self.0.compare_exchange(0, word, Ordering::Release, Ordering::Relaxed);
    }

    /// The fault, if there is one. Acquires what was done before it was set.
    #[inline]
    pub(super) fn get(&self, counters: &Counters) -> Option<QueueFault> {
        match self.0.load(Ordering::Acquire) {
            0 => None,
            word => Some(decode(word, counters)),
        }
    }
}

#[cold]
fn decode(word: u64, counters: &Counters) -> QueueFault {
    let completed = counters.completed.load(Ordering::Relaxed).raw();
    let payload = word & PAYLOAD;
    let unused = u64::BITS - PAYLOAD_BITS;
    let from_completed = (payload.wrapping_sub(completed) << unused) as i64 >> unused;
    let position = completed.wrapping_add_signed(from_completed);
    match word >> PAYLOAD_BITS {
        PRODUCER_STALLED => QueueFault::ProducerStalled { position },
        ABANDONED => QueueFault::Abandoned { position },
        ABORTED => QueueFault::Aborted { position },
        COMPLETION => QueueFault::Completion { position: completed, status: payload as u32 },
        UNWOUND => QueueFault::Unwound { position },
        _ => QueueFault::Overrun { position },
    }
}
