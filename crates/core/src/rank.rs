//! Ranks: the participants of a job.

use std::fmt;

/// A participant, numbered from 0 in the world team of a job.
///
/// Errors always carry world ranks, so that a message means the same on every rank and in every sub-team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The rank of that index.
    ///
    /// # Panics
    /// If `index` does not fit in 32 bits; a job has fewer ranks than that.
    pub fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("a job has fewer than 2^32 ranks"))
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}
