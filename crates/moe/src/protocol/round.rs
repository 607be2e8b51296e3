//! Sets, epochs, rounds and the phases of a round.

use std::fmt;

/// One of the independent buffer sets of an operation, numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Set(pub u32);

impl Set {
    /// The set as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "set {}", self.0)
    }
}

/// Number of a round of a set. It wraps; two epochs are compared by their signed difference.
///
/// ```
/// use campanile_moe::protocol::Epoch;
/// assert_eq!(Epoch(u32::MAX).next(), Epoch(0));
/// assert_eq!(Epoch(1).since(Epoch(u32::MAX)), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The first epoch of a fresh communicator: its words start as zeroes.
    pub const FIRST: Self = Self(1);

    /// The epoch of the round after this one.
    #[inline]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// The epoch of the round before this one.
    #[inline]
    pub const fn prev(self) -> Self {
        Self(self.0.wrapping_sub(1))
    }

    /// Rounds from `earlier` to this one; negative if `earlier` is later. Right as long as they are less than 2³¹ apart.
    #[inline]
    pub const fn since(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}", self.0)
    }
}

/// One use of a set, from its dispatch to its combine or release. The token inside a user's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    /// The set that is used.
    pub set: Set,
    /// Which use of it this is.
    pub epoch: Epoch,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.epoch, self.set)
    }
}

/// How results travel back. The same on all ranks in one round; a difference is found out by the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combine {
    /// The source reads them from the owner's `outputs`.
    Pull,
    /// The owner writes them into the source's `returns`.
    Push,
}

/// A phase of a round. One runs at a time on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Rows go out to their owners.
    DispatchSend,
    /// Rows of all sources are taken in.
    DispatchReceive,
    /// Results are offered, or pushed, to their sources.
    CombineSend,
    /// Results of all owners are read and reduced.
    CombineReceive,
    /// The round ends without results.
    Release,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DispatchSend => "dispatch send",
            Self::DispatchReceive => "dispatch receive",
            Self::CombineSend => "combine send",
            Self::CombineReceive => "combine receive",
            Self::Release => "release",
        })
    }
}
