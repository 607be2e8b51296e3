//! Faults: what is wrong with a job, and whose fault it was first.
//!
//! A fault fits into one word, so that all ranks can share the first one: the first writer wins, everybody else adopts
//! it, and chained waits do not blame a neighbour.

use std::fmt;

use crate::Rank;

/// What happened to the culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// Its process ended, or its transport was dropped without a shutdown.
    Died,
    /// It left by an orderly shutdown while others still needed it.
    Left,
    /// It did not signal within the deadline (stopped, stuck or too slow).
    Stalled,
    /// It called abort.
    Aborted,
    /// It broke the protocol or its queue failed.
    Failed,
}

impl FaultKind {
    const ALL: [Self; 5] = [Self::Died, Self::Left, Self::Stalled, Self::Aborted, Self::Failed];
}

/// The first culprit of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Who.
    pub culprit: Rank,
    /// What.
    pub kind: FaultKind,
    /// Who noticed it.
    pub reporter: Rank,
}

impl Fault {
    /// Ranks that fit into a fault word: 2^24.
    pub const MAX_RANKS: usize = 1 << 24;

    /// The fault as a word, never 0.
    pub fn to_word(self) -> u64 {
        let kind = Self::kind_number(self.kind);
        (u64::from(kind) << 48) | (u64::from(self.reporter.0 & 0xff_ffff) << 24) | u64::from(self.culprit.0 & 0xff_ffff)
    }

    /// The fault that a word says; `None` for 0.
    ///
    /// An unknown kind (written by a newer version) reads as [`FaultKind::Failed`].
    pub fn from_word(word: u64) -> Option<Self> {
        (word != 0).then(|| Self {
            culprit: Rank((word & 0xff_ffff) as u32),
            reporter: Rank((word >> 24 & 0xff_ffff) as u32),
            kind: *FaultKind::ALL.get((word >> 48) as usize - 1).unwrap_or(&FaultKind::Failed),
        })
    }

    fn kind_number(kind: FaultKind) -> u16 {
        let position = FaultKind::ALL.iter().position(|&other| other == kind).expect("ALL lists every kind");
        position as u16 + 1
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            FaultKind::Died => "died",
            FaultKind::Left => "left before the others were done",
            FaultKind::Stalled => "did not go on within the deadline (stopped, stuck or too slow)",
            FaultKind::Aborted => "aborted",
            FaultKind::Failed => "failed",
        };
        write!(f, "{} {what}", self.culprit)?;
        if self.reporter != self.culprit {
            write!(f, " (seen by {})", self.reporter)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for kind in FaultKind::ALL {
            let fault = Fault { culprit: Rank(0), kind, reporter: Rank(0xff_fffe) };
            assert_ne!(fault.to_word(), 0);
            assert_eq!(Fault::from_word(fault.to_word()), Some(fault));
        }
        assert_eq!(Fault::from_word(0), None);
        assert_eq!(Fault::from_word(99 << 48).map(|fault| fault.kind), Some(FaultKind::Failed));
    }
}
