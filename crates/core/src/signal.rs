//! Signals: words in a window with one writer.
//!
//! A signal is a 64-bit word, 8-byte aligned, that only one rank ever writes. It is a monotone counter or a tagged
//! {epoch, count}; it is never reset, and it is compared by signed difference, so that it may wrap.

use std::fmt;

use crate::{Rank, Region};

/// What makes a waiter go on.
///
/// ```
/// use campanile_core::Condition;
/// assert!(Condition::AtLeast(u64::MAX).holds(3)); // wrapped: 3 is 4 past u64::MAX
/// assert!(!Condition::AtLeast(5).holds(4));
/// assert!(Condition::Tag { mask: 0xff00, value: 0x0700 }.holds(0x0701));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The word is not before this value: `(seen − value) as i64 ≥ 0`.
    AtLeast(u64),
    /// The bits under `mask` equal `value`.
    Tag {
        /// Which bits count.
        mask: u64,
        /// What they must be.
        value: u64,
    },
}

impl Condition {
    /// Whether a word of that value fulfils it.
    #[inline]
    pub const fn holds(self, seen: u64) -> bool {
        match self {
            Self::AtLeast(value) => seen.wrapping_sub(value) as i64 >= 0,
            Self::Tag { mask, value } => seen & mask == value,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(value) => write!(f, "at least {}", WordValue(*value)),
            Self::Tag { mask, value } => write!(f, "{value:#x} under {mask:#x}"),
        }
    }
}

/// A word for people: a number, or {epoch, count} where the upper half is used.
///
/// ```
/// use campanile_core::WordValue;
/// assert_eq!(WordValue(7).to_string(), "7");
/// assert_eq!(WordValue((3 << 32) | 5).to_string(), "(3, 5)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordValue(pub u64);

impl fmt::Display for WordValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 >> 32 {
            0 => write!(f, "{}", self.0),
            epoch => write!(f, "({epoch}, {})", self.0 as u32),
        }
    }
}

/// How a signal changes its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SignalAction {
    /// The word becomes the value.
    Set = 0,
    /// The value is added.
    Add = 1,
}

/// What a visible signal promises; see [`contract`](crate::contract).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Strength {
    /// The put it is bundled with is visible.
    Weak = 0,
    /// All earlier puts of the same (queue, peer) are visible.
    Strong = 1,
}

/// One wait for one signal of one peer, with what an error must tell.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    /// Region of this rank that holds the word.
    pub region: &'a Region,
    /// Offset of the word in it, a multiple of 8.
    pub offset: usize,
    /// What to wait for.
    pub condition: Condition,
    /// The word's only writer.
    pub peer: Rank,
    /// What is being done, for the error: `"moe dispatch"`.
    pub operation: &'static str,
    /// Which word it is, for the error: `"META"`.
    pub slot: &'static str,
    /// Which use of the set, for the error.
    pub epoch: u64,
}
