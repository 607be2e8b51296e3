//! The words: where they lie, what they hold, how they are compared.

use std::fmt;

use super::{Combine, Epoch, Set};

/// The words that one source writes into a waiter's line of one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Word {
    /// Tagged: counts and routing of the round have landed, and how many rows there are.
    Meta,
    /// Counter: rows delivered.
    Rows,
    /// Counter: results pushed into the waiter's `returns`.
    Returned,
    /// Tagged: the writer's outputs for the waiter stand, and it no longer reads the waiter's rows. See [`Ready`].
    ReadyC,
    /// Tagged: the writer has finished reading the waiter's results.
    DoneC,
}

impl Word {
    /// All words, in the order of the line.
    pub const ALL: [Self; 5] = [Self::Meta, Self::Rows, Self::Returned, Self::ReadyC, Self::DoneC];

    /// Name of the word in messages: `"READY_C"`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "META",
            Self::Rows => "ROWS",
            Self::Returned => "RETURNED",
            Self::ReadyC => "READY_C",
            Self::DoneC => "DONE_C",
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An epoch and a count in one 64-bit word.
///
/// The epoch is the high half, so that tagged words of growing epochs grow as 64-bit numbers under signed difference.
///
/// ```
/// use campanile_moe::protocol::{Epoch, TaggedWord};
/// let word = TaggedWord { epoch: Epoch(7), count: 3 };
/// assert_eq!(word.pack(), 0x0000_0007_0000_0003);
/// assert_eq!(TaggedWord::unpack(word.pack()), word);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaggedWord {
    /// The round that wrote it.
    pub epoch: Epoch,
    /// What it counts.
    pub count: u32,
}

impl TaggedWord {
    /// The word in memory.
    #[inline]
    pub const fn pack(self) -> u64 {
        (self.epoch.0 as u64) << 32 | self.count as u64
    }

    /// The parts of a word in memory.
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self { epoch: Epoch((word >> 32) as u32), count: word as u32 }
    }
}

/// What `READY_C` says about the outputs, in its count. Each of them is the credit for the next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Ready {
    /// Results stand in the owner's `outputs`.
    Pull = 0,
    /// Results were pushed.
    Push = 1,
    /// The round was released: there are none.
    Released = 2,
}

impl From<Combine> for Ready {
    fn from(combine: Combine) -> Self {
        match combine {
            Combine::Pull => Self::Pull,
            Combine::Push => Self::Push,
        }
    }
}

/// A tagged word in memory.
#[inline]
pub(super) const fn tagged(epoch: Epoch, count: u32) -> u64 {
    TaggedWord { epoch, count }.pack()
}

/// Whether `word` is not before `bound`, across the wrap: `(word − bound) as i64 ≥ 0`.
#[inline]
pub(super) const fn at_least(word: u64, bound: u64) -> bool {
    word.wrapping_sub(bound) as i64 >= 0
}

/// Where the words lie: one cache line for each (set, source), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WordMap {
    /// Number of sets, at least 1.
    pub sets: u32,
    /// Number of ranks, at least 1.
    pub ranks: usize,
}

impl WordMap {
    /// Bytes of a line, its alignment too: no two sources write into one cache line.
    pub const LINE: usize = 64;

    /// Bytes of all words of one rank, to be aligned to [`LINE`](Self::LINE).
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.sets as usize * self.ranks * Self::LINE
    }

    /// Offset in bytes, from the start of a waiter's words, of the word that `source` writes there.
    #[inline]
    pub const fn offset(&self, set: Set, source: usize, word: Word) -> usize {
        debug_assert!(set.0 < self.sets && source < self.ranks);
        (set.index() * self.ranks + source) * Self::LINE + word as usize * 8
    }

    /// What every word holds before the round `first`, its set's first: 0 for [`Epoch::FIRST`].
    ///
    /// It carries the epoch before, and so stands for the credits that the first round needs.
    #[inline]
    pub const fn initial(first: Epoch) -> u64 {
        TaggedWord { epoch: first.prev(), count: 0 }.pack()
    }
}
