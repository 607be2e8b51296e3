//! Errors on their way across: a status, numbers and two texts on one side, the core's error types on the other.
//!
//! For each error type both directions stand side by side, so that what one writes the other reads.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use campanile_abi as abi;
use campanile_core::{ControlError, Fault, OpenError, PostError, QueueError, Rank, Wait, WaitError, WaitState};

use crate::codes::{memory_code, memory_kind, nanoseconds};
use crate::text;

/// What an error record says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: i32,
    pub(crate) numbers: [u64; 4],
    pub(crate) what: String,
    pub(crate) reason: String,
}

impl Failure {
    fn new<const N: usize>(status: i32, numbers: [u64; N], what: impl Into<String>, reason: impl Into<String>) -> Self {
        let mut four = [0; 4];
        four[..N].copy_from_slice(&numbers);
        Self { status, numbers: four, what: what.into(), reason: reason.into() }
    }

    /// An argument of a call that is not legal.
    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Self::new(abi::STATUS_INVALID, [], "", reason)
    }

    /// A panic that was caught in `function`.
    pub(crate) fn panicked(function: &str, message: &str) -> Self {
        Self::new(abi::STATUS_PANICKED, [], function, message)
    }

    /// Fills the host's record; returns the status.
    ///
    /// # Safety
    /// `record` is the one that the host gave to the call that runs, or null.
    pub(crate) unsafe fn write(&self, record: *mut abi::Error) -> i32 {
        // SAFETY: the caller's promise; version 1.0 of the record has all these fields.
        if let Some(record) = unsafe { record.as_mut() } {
            record.numbers = self.numbers;
            text::fill(&mut record.what, &self.what);
            text::fill(&mut record.reason, &self.reason);
        }
        self.status
    }

    /// What a plugin wrote.
    pub(crate) fn read(status: i32, record: &abi::Error) -> Self {
        Self { status, numbers: record.numbers, what: text::read(&record.what), reason: text::read(&record.reason) }
    }

    /// For people, where no error type says more.
    pub(crate) fn describe(&self) -> String {
        match (self.status, self.what.as_str(), self.reason.as_str()) {
            (abi::STATUS_PANICKED, what, reason) => format!("panic in {what}: {reason}"),
            (status, "", "") => format!("status {status}, without a word"),
            (_, "", text) | (_, text, "") => text.to_owned(),
            (_, what, reason) => format!("{what}: {reason}"),
        }
    }

    fn waited(&self, index: usize) -> Duration {
        Duration::from_nanos(self.numbers[index])
    }

    fn rank(&self) -> Rank {
        Rank(self.numbers[0] as u32)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::NoDevice { available, .. } => Self::new(abi::STATUS_NO_DEVICE, [], "", available),
            OpenError::System { reason, .. } => Self::new(abi::STATUS_FAILED, [], "", reason),
            other => Self::new(abi::STATUS_FAILED, [], "", other.to_string()),
        }
    }
}

impl Failure {
    pub(crate) fn into_open(self, transport: &'static str, device: &str) -> OpenError {
        match self.status {
            abi::STATUS_NO_DEVICE => {
                OpenError::NoDevice { transport, device: device.to_owned(), available: self.reason }
            }
            _ => OpenError::System { transport, reason: self.describe() },
        }
    }
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Timeout { what, waited } => Self::new(abi::STATUS_TIMEOUT, [nanoseconds(waited)], what, ""),
            ControlError::PeerGone { peer, what } => Self::new(abi::STATUS_PEER_GONE, [peer.0.into()], what, ""),
            ControlError::Memory { bytes, kind, reason } => {
                Self::new(abi::STATUS_MEMORY, [bytes as u64, memory_code(kind).into()], "", reason)
            }
            ControlError::BadPeerData { peer, what, reason } => {
                Self::new(abi::STATUS_BAD_PEER_DATA, [peer.0.into()], what, reason)
            }
            ControlError::Unsupported { what, reason, .. } => Self::new(abi::STATUS_UNSUPPORTED, [], what, reason),
            ControlError::System { what, reason } => Self::new(abi::STATUS_FAILED, [], what, reason),
            other => Self::new(abi::STATUS_FAILED, [], "", other.to_string()),
        }
    }
}

impl Failure {
    /// `call` is named where the plugin says nothing.
    pub(crate) fn into_control(self, transport: &'static str, call: &'static str) -> ControlError {
        let what = if self.what.is_empty() { call.to_owned() } else { self.what.clone() };
        match self.status {
            abi::STATUS_TIMEOUT => ControlError::Timeout { what, waited: self.waited(0) },
            abi::STATUS_PEER_GONE => ControlError::PeerGone { peer: self.rank(), what },
            abi::STATUS_MEMORY => ControlError::Memory {
                bytes: self.numbers[0] as usize,
                kind: memory_kind(self.numbers[1] as u32),
                reason: self.reason,
            },
            abi::STATUS_BAD_PEER_DATA => {
                ControlError::BadPeerData { peer: self.rank(), what: for_ever(&what), reason: self.reason }
            }
            abi::STATUS_UNSUPPORTED => {
                ControlError::Unsupported { transport, what: for_ever(&what), reason: self.reason }
            }
            abi::STATUS_PANICKED => {
                ControlError::System { what: format!("transport {transport}: {call}"), reason: self.describe() }
            }
            status if self.reason.is_empty() => {
                ControlError::System { what, reason: format!("status {status} of transport {transport}") }
            }
            _ => ControlError::System { what, reason: self.reason },
        }
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Busy { needed, free } => Self::new(abi::STATUS_BUSY, [needed as u64, free as u64], "", ""),
            PostError::TooLarge { needed, depth } => {
                Self::new(abi::STATUS_TOO_LARGE, [needed as u64, depth as u64], "", "")
            }
            PostError::Invalid { index, reason } => Self::new(abi::STATUS_INVALID, [index as u64], "", reason),
            PostError::Queue(error) => error.into(),
            other => Self::new(abi::STATUS_FAILED, [], "", other.to_string()),
        }
    }
}

impl Failure {
    pub(crate) fn into_post(self, queue: u64) -> PostError {
        let number = |index: usize| self.numbers[index] as usize;
        match self.status {
            abi::STATUS_BUSY => PostError::Busy { needed: number(0), free: number(1) },
            abi::STATUS_TOO_LARGE => PostError::TooLarge { needed: number(0), depth: number(1) },
            abi::STATUS_INVALID => PostError::Invalid { index: number(0), reason: self.reason },
            _ => PostError::Queue(self.into_queue(queue)),
        }
    }
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Completion { position, reason, .. } => {
                Self::new(abi::STATUS_COMPLETION, [position], "", reason)
            }
            QueueError::Poisoned { reason, .. } => Self::new(abi::STATUS_POISONED, [], "", reason),
            QueueError::ForeignTicket { .. } => Self::new(abi::STATUS_FOREIGN_TICKET, [], "", ""),
            QueueError::Timeout { position, waited, state, .. } => {
                Self::new(abi::STATUS_TIMEOUT, [nanoseconds(waited), position], "", state)
            }
            QueueError::Unsupported { level, reason, .. } => Self::new(abi::STATUS_UNSUPPORTED, [], level, reason),
            other => Self::new(abi::STATUS_FAILED, [], "", other.to_string()),
        }
    }
}

impl Failure {
    pub(crate) fn into_queue(self, queue: u64) -> QueueError {
        match self.status {
            abi::STATUS_COMPLETION => QueueError::Completion { queue, position: self.numbers[0], reason: self.reason },
            abi::STATUS_FOREIGN_TICKET => QueueError::ForeignTicket { queue, given: queue },
            abi::STATUS_TIMEOUT => {
                QueueError::Timeout { queue, position: self.numbers[1], waited: self.waited(0), state: self.reason }
            }
            abi::STATUS_UNSUPPORTED => QueueError::Unsupported { queue, level: self.what, reason: self.reason },
            _ => QueueError::Poisoned { queue, reason: self.describe() },
        }
    }
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Timeout { operation, fault, state, waited } => {
                Self::new(abi::STATUS_TIMEOUT, [nanoseconds(waited), state.seen, fault.to_word()], operation, "")
            }
            WaitError::Fault { operation, fault, state } => {
                Self::new(abi::STATUS_FAULT, [fault.to_word(), state.seen], operation, "")
            }
            WaitError::Invalid { reason, .. } => Self::invalid(reason),
            other => Self::new(abi::STATUS_FAILED, [], "", other.to_string()),
        }
    }
}

impl Failure {
    /// The error of a wait of `rank`.
    pub(crate) fn into_wait(self, rank: Rank, wait: &Wait<'_>) -> WaitError {
        let operation = wait.operation;
        let invalid = |reason: String| WaitError::Invalid { operation, reason };
        match self.status {
            abi::STATUS_TIMEOUT => match Fault::from_word(self.numbers[2]) {
                Some(fault) => {
                    let state = wait_state(rank, wait, self.numbers[1]);
                    WaitError::Timeout { operation, fault, state, waited: self.waited(0) }
                }
                None => invalid("the transport tells of a time-out without a culprit".to_owned()),
            },
            abi::STATUS_FAULT => match Fault::from_word(self.numbers[0]) {
                Some(fault) => WaitError::Fault { operation, fault, state: wait_state(rank, wait, self.numbers[1]) },
                None => invalid("the transport tells of a fault without a culprit".to_owned()),
            },
            _ => invalid(self.describe()),
        }
    }
}

/// What a wait of `rank` that failed was waiting for.
pub(crate) fn wait_state(rank: Rank, wait: &Wait<'_>, seen: u64) -> Box<WaitState> {
    Box::new(WaitState {
        rank,
        peer: wait.peer,
        slot: wait.slot,
        offset: wait.offset,
        epoch: wait.epoch,
        expected: wait.condition,
        seen,
    })
}

/// The same text, kept for ever: some fields of errors are names in the program's text, which a plugin's are not. A plugin
/// says few different ones; beyond [`MOST`] they are all called the same.
fn for_ever(text: &str) -> &'static str {
    const MOST: usize = 256;
    static TEXTS: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = texts.get(text) {
        return kept;
    }
    if texts.len() >= MOST {
        return "a call of a plugin";
    }
    let kept: &'static str = Box::leak(text.into());
    texts.insert(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use campanile_core::{Condition, FaultKind, MemoryKind, Region, RegionKey};
    use std::sync::Arc;

    fn across(failure: Failure) -> Failure {
        // SAFETY: all bits zero are a record.
        let mut record: abi::Error = unsafe { std::mem::zeroed() };
        // SAFETY: the record is here.
        let status = unsafe { failure.write(&raw mut record) };
        Failure::read(status, &record)
    }

    #[test]
    fn control_errors_cross() {
        let text = || "text".to_owned();
        let errors = [
            ControlError::Timeout { what: text(), waited: Duration::from_millis(1500) },
            ControlError::PeerGone { peer: Rank(3), what: text() },
            ControlError::Memory { bytes: 7, kind: MemoryKind::Device(1), reason: text() },
            ControlError::BadPeerData { peer: Rank(3), what: "blob", reason: text() },
            ControlError::Unsupported { transport: "t", what: "w", reason: text() },
            ControlError::System { what: text(), reason: text() },
        ];
        for error in errors {
            let given = error.to_string();
            assert_eq!(across(error.into()).into_control("t", "call").to_string(), given);
        }
    }

    #[test]
    fn queue_and_post_errors_cross() {
        let text = || "text".to_owned();
        let queue = 5;
        let errors = [
            QueueError::Completion { queue, position: 9, reason: text() },
            QueueError::Poisoned { queue, reason: text() },
            QueueError::ForeignTicket { queue, given: queue },
            QueueError::Timeout { queue, position: 9, waited: Duration::from_secs(2), state: text() },
            QueueError::Unsupported { queue, level: text(), reason: text() },
        ];
        let errors = errors.into_iter().map(PostError::Queue).chain([
            PostError::Busy { needed: 3, free: 2 },
            PostError::TooLarge { needed: 3, depth: 2 },
            PostError::Invalid { index: 4, reason: text() },
        ]);
        for error in errors {
            assert_eq!(across(error.clone().into()).into_post(queue), error);
        }
    }

    #[test]
    fn wait_errors_cross() {
        let region = Region::new(RegionKey(1), std::ptr::null_mut(), 64, MemoryKind::Host, Arc::new(()));
        let wait = Wait {
            region: &region,
            offset: 8,
            condition: Condition::AtLeast(4),
            peer: Rank(1),
            operation: "operation",
            slot: "slot",
            epoch: 2,
        };
        let fault = Fault { culprit: Rank(1), kind: FaultKind::Stalled, reporter: Rank(0) };
        let state = || wait_state(Rank(0), &wait, 3);
        let errors = [
            WaitError::Timeout { operation: "operation", fault, state: state(), waited: Duration::from_secs(1) },
            WaitError::Fault { operation: "operation", fault, state: state() },
            WaitError::Invalid { operation: "operation", reason: "text".to_owned() },
        ];
        for error in errors {
            assert_eq!(across(error.clone().into()).into_wait(Rank(0), &wait), error);
        }
        let blank = Failure { status: abi::STATUS_FAULT, ..Failure::default() };
        assert!(matches!(blank.into_wait(Rank(0), &wait), WaitError::Invalid { .. }));
    }

    #[test]
    fn open_errors_cross() {
        let error = OpenError::NoDevice { transport: "t", device: "d".to_owned(), available: "a, b".to_owned() };
        assert_eq!(across(error.clone().into()).into_open("t", "d").to_string(), error.to_string());
        let panic = across(Failure::panicked("open", "oh")).into_open("t", "d").to_string();
        assert!(panic.contains("panic in open: oh"), "{panic}");
    }
}
