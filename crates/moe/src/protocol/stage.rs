//! [`Stage`]: where the round of a set is.

use super::Phase;

/// Where the round of a set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// There is none: the last one is over.
    Closed,
    /// In a phase.
    Running(Phase),
    /// Between this phase and the next.
    After(Phase),
}

impl Stage {
    /// For messages.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Closed => "once it is over",
            Self::Running(Phase::DispatchSend) => "during dispatch send",
            Self::Running(Phase::DispatchReceive) => "during dispatch receive",
            Self::Running(Phase::CombineSend) => "during combine send",
            Self::Running(Phase::CombineReceive) => "during combine receive",
            Self::Running(Phase::Release) => "during release",
            Self::After(Phase::DispatchSend) => "between dispatch send and dispatch receive",
            Self::After(Phase::DispatchReceive) => "between dispatch and combine",
            Self::After(Phase::CombineSend) => "between combine send and combine receive",
            Self::After(Phase::CombineReceive | Phase::Release) => "once it is over",
        }
    }

    /// Whether `phase` of the same round may begin now; a dispatch begins another one.
    pub const fn allows(self, phase: Phase) -> bool {
        matches!(
            (self, phase),
            (Self::Closed, Phase::DispatchSend)
                | (Self::After(Phase::DispatchSend), Phase::DispatchReceive)
                | (Self::After(Phase::DispatchReceive), Phase::CombineSend | Phase::Release)
                | (Self::After(Phase::CombineSend), Phase::CombineReceive)
        )
    }
}
