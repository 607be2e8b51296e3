//! Errors, one type per kind of operation.
//!
//! Each message says what was given or seen, what is allowed or expected, and what to do.

use std::time::Duration;

use crate::{Condition, Fault, MemoryKind, Rank, WordValue};

/// A transport could not be opened on a device.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device is not one that `probe` lists.
    #[error("transport {transport} has no device {device:?}; it has: {available}")]
    NoDevice {
        /// Transport.
        transport: &'static str,
        /// What was asked for.
        device: String,
        /// What there is.
        available: String,
    },
    /// The system refused something.
    #[error("transport {transport} cannot be opened: {reason}")]
    System {
        /// Transport.
        transport: &'static str,
        /// Call and cause.
        reason: String,
    },
}

/// A control-plane call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// It did not end in time.
    #[error("{what}: not done after {waited:.1?}")]
    Timeout {
        /// What was waited for, peers by name.
        what: String,
        /// For how long.
        waited: Duration,
    },
    /// A peer is gone.
    #[error("{peer} is gone while {what}")]
    PeerGone {
        /// Who.
        peer: Rank,
        /// What was being done.
        what: String,
    },
    /// This memory cannot be registered or allocated.
    #[error("{bytes} bytes of {kind} memory: {reason}")]
    Memory {
        /// How many.
        bytes: usize,
        /// Where.
        kind: MemoryKind,
        /// Why not.
        reason: String,
    },
    /// Something that a peer sent makes no sense.
    #[error("{peer} sent a bad {what}: {reason}")]
    BadPeerData {
        /// Who.
        peer: Rank,
        /// What it was meant to be.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The transport does not do that.
    #[error("{what}: not supported by transport {transport}: {reason}")]
    Unsupported {
        /// Transport.
        transport: &'static str,
        /// What was asked for.
        what: &'static str,
        /// Why not.
        reason: String,
    },
    /// The system refused something.
    #[error("{what}: {reason}")]
    System {
        /// What was being done.
        what: String,
        /// Call and cause.
        reason: String,
    },
}

/// A post was refused; nothing of it was queued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue is full for now.
    #[error("the queue is full: {needed} slots needed, {free} free; make progress and post again")]
    Busy {
        /// Slots that the list needs.
        needed: usize,
        /// Slots that are free.
        free: usize,
    },
    /// The list can never fit.
    #[error("the list needs {needed} slots, the queue has {depth}; split it or make the queue deeper")]
    TooLarge {
        /// Slots that the list needs.
        needed: usize,
        /// Slots of the queue.
        depth: usize,
    },
    /// An operation is not legal here.
    #[error("operation {index} of the list: {reason}")]
    Invalid {
        /// Position in the list.
        index: usize,
        /// What is wrong, what is allowed.
        reason: String,
    },
    /// The queue has failed before.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A queue has failed. Sticky: every later call on it says the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// An operation completed with an error.
    #[error("queue {queue}: operation at position {position} failed: {reason}")]
    Completion {
        /// Which queue.
        queue: u64,
        /// Its slot, counted from the queue's birth.
        position: u64,
        /// Why.
        reason: String,
    },
    /// A producer reserved slots and did not publish them in time.
    #[error("queue {queue} is poisoned: {reason}")]
    Poisoned {
        /// Which queue.
        queue: u64,
        /// The state of its counters.
        reason: String,
    },
    /// The ticket is of another queue.
    #[error("ticket of queue {given} given to queue {queue}; a ticket is tested on the queue that gave it")]
    ForeignTicket {
        /// Which queue was asked.
        queue: u64,
        /// Whose ticket it is.
        given: u64,
    },
    /// The wait did not end in time.
    #[error("queue {queue}: position {position} not complete after {waited:.1?}: {state}")]
    Timeout {
        /// Which queue.
        queue: u64,
        /// What was waited for.
        position: u64,
        /// How long.
        waited: Duration,
        /// The state of its counters.
        state: String,
    },
    /// The level of completion cannot be had.
    #[error("queue {queue} cannot tell completion for {level}: {reason}")]
    Unsupported {
        /// Which queue.
        queue: u64,
        /// What was asked for.
        level: String,
        /// Why not.
        reason: String,
    },
}

/// A wait for a signal did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// Nobody died, but the signal did not come in time.
    #[error("{operation}: time-out after {waited:.1?}: {fault}; {state}")]
    Timeout {
        /// What was being done.
        operation: &'static str,
        /// Whom the chain of waits ends at.
        fault: Fault,
        /// The wait itself.
        state: Box<WaitState>,
        /// How long.
        waited: Duration,
    },
    /// The job has a fault: somebody died, left, stalled or aborted.
    #[error("{operation}: {fault}; {state}")]
    Fault {
        /// What was being done.
        operation: &'static str,
        /// The first culprit.
        fault: Fault,
        /// The wait itself.
        state: Box<WaitState>,
    },
    /// The word is not one that can be waited for.
    #[error("{operation}: {reason}")]
    Invalid {
        /// What was being done.
        operation: &'static str,
        /// What is wrong, what is allowed.
        reason: String,
    },
}

impl WaitError {
    /// The culprit, if there is one.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            Self::Timeout { fault, .. } | Self::Fault { fault, .. } => Some(*fault),
            Self::Invalid { .. } => None,
        }
    }
}

/// What a wait that failed was waiting for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitState {
    /// Who waited.
    pub rank: Rank,
    /// Whose signal.
    pub peer: Rank,
    /// Which word.
    pub slot: &'static str,
    /// Its offset in the region.
    pub offset: usize,
    /// Which use of the set.
    pub epoch: u64,
    /// What it had to be.
    pub expected: Condition,
    /// What it was.
    pub seen: u64,
}

impl std::fmt::Display for WaitState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} waited for {} of {} (epoch {}, offset {}): expected {}, seen {}",
            self.rank,
            self.slot,
            self.peer,
            self.epoch,
            self.offset,
            self.expected,
            WordValue(self.seen)
        )
    }
}

/// Ranks could not exchange something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// Ranks did not come.
    #[error("{what}: missing {missing} after {waited:.1?}; start it, or raise CAMPANILE_TIMEOUT")]
    Missing {
        /// What was exchanged.
        what: String,
        /// Who did not come, by name.
        missing: String,
        /// How long they were waited for.
        waited: Duration,
    },
    /// The store is gone or speaks nonsense.
    #[error("store: {what}: {reason}")]
    Store {
        /// What was being done.
        what: String,
        /// Call and cause.
        reason: String,
    },
}

/// A communicator could not do it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// It failed before, and stays failed.
    #[error("the communicator failed before and stays failed; the first error was: {0}")]
    Failed(Box<CommError>),
    /// A wait failed.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// A queue failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A post was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A control call failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The exchange with the other ranks failed.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// A rank that was needed died, left, stalled or aborted.
    #[error("{what}: {fault}")]
    Fault {
        /// What was being done.
        what: String,
        /// The first culprit.
        fault: Fault,
    },
    /// Another rank could not do its part of a collective call.
    #[error("{what}: {peer} could not: {reason}")]
    Peer {
        /// What was being done together.
        what: String,
        /// Who.
        peer: Rank,
        /// Its error.
        reason: String,
    },
    /// No transport that may be used reaches every rank.
    #[error("no transport reaches every rank, of CAMPANILE_TRANSPORT={preference}: {reasons}; {instead}")]
    NoTransport {
        /// What was asked for.
        preference: String,
        /// Each one, with the first rank that cannot use it and why.
        reasons: String,
        /// What could run instead, as far as this rank knows.
        instead: String,
    },
    /// Ranks were configured differently.
    #[error("{what}: {field} is {given} here and {theirs} on {peer}; every rank must be given the same")]
    Mismatch {
        /// What was being made.
        what: String,
        /// Which field differs.
        field: String,
        /// Here.
        given: String,
        /// There.
        theirs: String,
        /// Where.
        peer: Rank,
    },
    /// A call that is not allowed now or with these arguments.
    #[error("{what}: {reason}")]
    Misuse {
        /// What was called.
        what: &'static str,
        /// What is wrong, what is allowed.
        reason: String,
    },
}

impl CommError {
    /// The culprit, if there is one.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            Self::Failed(first) => first.fault(),
            Self::Wait(error) => error.fault(),
            Self::Fault { fault, .. } => Some(*fault),
            _ => None,
        }
    }
}
