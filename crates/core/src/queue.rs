//! Queues: ordered work to a peer or an engine, with a doorbell.
//!
//! Posting queues work, ringing makes the engine look at it, a ticket tells when it is done. Whether posts complete in
//! order, and what rings by itself, is the backend's business; what may be relied on is in [`contract`](crate::contract).

use std::time::{Duration, Instant};

use crate::{Completion, Op, PostError, QueueError, Rank, Ticket};

/// What a queue leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueTarget {
    /// One connected peer.
    Peer(Rank),
    /// An engine that reaches every peer (copy engine, CPU engine).
    Engine(u32),
}

/// Who posts. A queue whose view was given to a device is not posted to from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initiator {
    /// Host code.
    Host,
    /// Kernels.
    Device,
}

/// How a queue is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Slots; an operation takes one or more.
    pub depth: usize,
    /// Who posts.
    pub initiator: Initiator,
    /// Ask for puts to be delivered in order even where the caps do not promise it.
    pub ordered: bool,
}

impl QueueOptions {
    /// Most slots of a queue that a host allocates: some 7 MB of commands.
    pub const MAX_DEPTH: usize = 1 << 16;
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { depth: 256, initiator: Initiator::Host, ordered: false }
    }
}

/// What became of a cancelled ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// Everything up to the ticket had completed.
    TooLate,
    /// What had not started will not run; the queue is failed if it cannot tell which.
    Stopped,
}

/// An ordered work queue. Any number of threads may post, ring, flush, test and make progress at once; nothing here
/// locks or allocates.
pub trait Queue: Send + Sync {
    /// Queues a list of operations as one contiguous publish, or nothing of it.
    ///
    /// # Errors
    /// [`PostError::Busy`] for now, [`PostError::TooLarge`] for ever, [`PostError::Invalid`] for a bad address or
    /// size, [`PostError::Queue`] once the queue has failed.
    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError>;

    /// Rings the doorbell up to what has been written (never up to what is only reserved).
    ///
    /// # Errors
    /// [`QueueError`] once the queue has failed.
    fn ring(&self) -> Result<(), QueueError>;

    /// A pure snapshot: everything that had been published when it was taken. Never rings, never waits.
    fn flush(&self) -> Ticket;

    /// Whether a ticket has come that far.
    ///
    /// # Errors
    /// [`QueueError`] once the queue has failed, or if the ticket is of another queue.
    fn test(&self, ticket: Ticket, completion: Completion) -> Result<bool, QueueError>;

    /// Does or drives some work; the number of operations that it completed.
    ///
    /// # Errors
    /// [`QueueError`] once the queue has failed.
    fn progress(&self) -> Result<usize, QueueError>;

    /// Best effort: may still complete, may fail the queue.
    ///
    /// # Errors
    /// [`QueueError::ForeignTicket`].
    fn cancel(&self, ticket: Ticket) -> Result<Cancelled, QueueError>;

    /// Rings, makes progress and waits until a ticket has come that far.
    ///
    /// # Errors
    /// [`QueueError::Timeout`] after `timeout`, else as [`test`](Self::test).
    fn wait(&self, ticket: Ticket, completion: Completion, timeout: Duration) -> Result<(), QueueError> {
        self.ring()?;
        let mut start = None;
        loop {
            if self.test(ticket, completion)? {
                return Ok(());
            }
            if self.progress()? == 0 {
                let start = *start.get_or_insert_with(Instant::now);
                let waited = start.elapsed();
                if waited >= timeout {
                    let state = self.describe();
                    return Err(QueueError::Timeout { queue: ticket.queue(), position: ticket.mark(), waited, state });
                }
                std::thread::yield_now();
            }
        }
    }

    /// The state of the queue's counters, for errors and people.
    fn describe(&self) -> String;
}
