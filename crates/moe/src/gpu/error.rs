//! Errors of the operation on GPUs: [`GpuMoeError`], and [`Failure`], what a kernel has recorded.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use campanile_gpu::{CallError, CompileError};

use crate::PlanError;
use crate::protocol::{Phase, Set, Word};

/// Why a launch gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// A word was not reached within the deadline.
    Timeout,
    /// The host raised the abort word.
    Aborted,
    /// A word that no correct peer could have written: the ranks disagree on their calls, or it was overwritten.
    Protocol,
    /// A phase that is not the next one of the set's round: a dispatch on a set whose round is open, a receive without its
    /// send, a combine without a dispatch. Or more tokens than the capacity, or a combine of others than were dispatched.
    Misuse,
}

/// The first failure of a rank, as its kernel recorded it. Nothing was published after it, and later launches end at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind.
    pub kind: FailureKind,
    /// In which phase.
    pub phase: Phase,
    /// Of which set.
    pub set: Set,
    /// Whose word was waited for; this rank itself for a misuse.
    pub peer: usize,
    /// Which word.
    pub word: Word,
    /// The value that was waited for; for a misuse the capacity, or the tokens of the dispatch.
    pub expected: u64,
    /// The value that was there; the token count for a misuse.
    pub seen: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, phase, set, peer, word, expected, seen } = self;
        match kind {
            FailureKind::Timeout => {
                write!(
                    f,
                    "{phase} on {set}: rank {peer} did not bring {word} to {expected:#x} in time; it is at {seen:#x}"
                )
            }
            FailureKind::Aborted => {
                write!(
                    f,
                    "{phase} on {set}: aborted while {word} of rank {peer} was at {seen:#x}, not yet at {expected:#x}"
                )
            }
            FailureKind::Protocol => write!(
                f,
                "{phase} on {set}: {word} of rank {peer} holds {seen:#x}, which nobody who waits for {expected:#x} may find; \
                 the ranks disagree on their calls, or the word was overwritten"
            ),
            FailureKind::Misuse => write!(
                f,
                "{phase} on {set} with {seen} tokens, where {expected} is the most, or the number of the dispatch; and it must be the \
                 next phase of the set's round: dispatch, send and receive, when the last round is over; then once combine, \
                 send and receive, or release"
            ),
        }
    }
}

/// An operation on GPUs could not be made or done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuMoeError {
    /// The config is not one.
    #[error("moe: {0}")]
    Config(#[from] PlanError),
    /// Tokens, devices or options do not fit the config.
    #[error("moe: {what} {given}; {allowed}")]
    Argument {
        /// What.
        what: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// A call of the GPU's library failed.
    #[error("moe: {0}")]
    Call(#[from] CallError),
    /// A kernel did not compile.
    #[error("moe: {0}")]
    Compile(#[from] CompileError),
    /// A kernel cannot be launched as the geometry says.
    #[error("moe: {0}")]
    Launch(#[from] campanile_gpu::PlanError),
    /// A kernel gave up.
    #[error("moe: rank {rank}: {failure}")]
    Failed {
        /// The rank that gave up.
        rank: usize,
        /// Why.
        failure: Failure,
    },
}

/// Reads a record; `None` while there was no failure.
///
/// # Safety
/// `record` points to a `MoeRecord` that only kernels write.
pub(super) unsafe fn read_record(record: *const u8) -> Option<Failure> {
    // SAFETY: the caller's promise; the record is aligned to 8 and all accesses to it are atomic.
    unsafe {
        let word = |at: usize| (*record.add(at).cast::<AtomicU32>()).load(Ordering::Relaxed);
        let value = |at: usize| (*record.add(at).cast::<AtomicU64>()).load(Ordering::Relaxed);
        let kind = match (*record.cast::<AtomicU32>()).load(Ordering::Acquire) {
            0 => return None,
            1 => FailureKind::Timeout,
            2 => FailureKind::Aborted,
            3 => FailureKind::Protocol,
            _ => FailureKind::Misuse,
        };
        let phases =
            [Phase::DispatchSend, Phase::DispatchReceive, Phase::CombineSend, Phase::CombineReceive, Phase::Release];
        Some(Failure {
            kind,
            phase: phases[(word(4) as usize).min(phases.len() - 1)],
            set: Set(word(32)),
            peer: word(8) as usize,
            word: Word::ALL[(word(12) as usize).min(Word::ALL.len() - 1)],
            expected: value(16),
            seen: value(24),
        })
    }
}
