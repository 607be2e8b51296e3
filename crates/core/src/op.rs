//! Operations: what can be posted to a queue.
//!
//! Plain data. Addresses are (region, offset) on both sides; results go to (region, offset). The layout is that of the
//! plugin boundary, so that a list crosses it as it lies; `campanile-plugin` checks that at compile time.

use std::fmt;

use crate::{RegionKey, RemoteKey, SignalAction, Strength};

/// A place in this rank's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct LocalAddress {
    /// The region.
    pub region: RegionKey,
    /// Bytes from its start.
    pub offset: u64,
}

/// A place in a peer's imported memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RemoteAddress {
    /// The region.
    pub region: RemoteKey,
    /// Bytes from its start.
    pub offset: u64,
}

/// The change of a signal word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SignalUpdate {
    /// The word, 8-byte aligned.
    pub target: RemoteAddress,
    /// By what.
    pub value: u64,
    /// How it changes.
    pub action: SignalAction,
    /// What it promises once it is visible.
    pub strength: Strength,
}

/// Up to [`Inline::MAX`] bytes that travel inside the operation; the source is reusable at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Inline {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl Inline {
    /// Most bytes that fit. A backend may take fewer: see [`Caps::inline_bytes`](crate::Caps::inline_bytes).
    pub const MAX: usize = 64;

    /// These bytes, or `None` if they are more than [`MAX`](Self::MAX).
    pub fn new(data: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        Some(Self { bytes, len: data.len() as u8 })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// An atomic on a 64-bit word of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, u32)]
pub enum AtomicOp {
    /// `word += operand`.
    Add {
        /// What to add.
        operand: u64,
    } = 0,
    /// `word += operand`, the old value goes to `result`.
    FetchAdd {
        /// What to add.
        operand: u64,
        /// Where the old value goes.
        result: LocalAddress,
    } = 1,
    /// `if word == compare { word = swap }`, the old value goes to `result`.
    CompareSwap {
        /// What it becomes.
        swap: u64,
        /// Where the old value goes.
        result: LocalAddress,
        /// What the word must be.
        compare: u64,
    } = 2,
    /// `word = value`, the old value goes to `result`.
    Swap {
        /// What it becomes.
        value: u64,
        /// Where the old value goes.
        result: LocalAddress,
    } = 3,
}

/// An operation. 0 bytes is legal everywhere: nothing moves, a bundled signal still fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, u32)]
#[non_exhaustive]
pub enum Op {
    /// Local memory to a peer.
    Put {
        /// From; unchanged by the caller until local completion.
        source: LocalAddress,
        /// To.
        target: RemoteAddress,
        /// How many.
        bytes: u64,
    } = 1,
    /// A put and a signal in one reservation.
    PutSignal {
        /// From; unchanged by the caller until local completion.
        source: LocalAddress,
        /// To.
        target: RemoteAddress,
        /// How many.
        bytes: u64,
        /// Fires after the bytes.
        signal: SignalUpdate,
    } = 2,
    /// Bytes that travel inside the operation.
    PutInline {
        /// The bytes.
        data: Inline,
        /// To.
        target: RemoteAddress,
    } = 3,
    /// A signal without a put.
    Signal(SignalUpdate) = 4,
    /// A peer's memory to local memory.
    Get {
        /// From.
        source: RemoteAddress,
        /// To; undefined until local completion.
        target: LocalAddress,
        /// How many.
        bytes: u64,
    } = 5,
    /// An atomic on a peer's word.
    Atomic {
        /// Which.
        op: AtomicOp,
        /// The word, 8-byte aligned.
        target: RemoteAddress,
    } = 6,
    /// Earlier operations are delivered before later ones; completes nothing.
    Fence = 7,
}

/// The kinds of [`Op`], for caps and selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpKind {
    /// [`Op::Put`].
    Put,
    /// [`Op::PutSignal`] and [`Op::Signal`].
    PutSignal,
    /// [`Op::PutInline`].
    PutInline,
    /// [`Op::Get`].
    Get,
    /// [`Op::Atomic`].
    Atomic,
    /// [`Op::Fence`].
    Fence,
}

impl OpKind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Put, Self::PutSignal, Self::PutInline, Self::Get, Self::Atomic, Self::Fence];

    /// The name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::PutSignal => "put-signal",
            Self::PutInline => "put-inline",
            Self::Get => "get",
            Self::Atomic => "atomic",
            Self::Fence => "fence",
        }
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Op {
    /// What kind it is.
    pub const fn kind(&self) -> OpKind {
        match self {
            Self::Put { .. } => OpKind::Put,
            Self::PutSignal { .. } | Self::Signal(_) => OpKind::PutSignal,
            Self::PutInline { .. } => OpKind::PutInline,
            Self::Get { .. } => OpKind::Get,
            Self::Atomic { .. } => OpKind::Atomic,
            Self::Fence => OpKind::Fence,
        }
    }

    /// Bytes that it moves between local and remote memory; signals and atomics move none.
    pub const fn bytes(&self) -> u64 {
        match self {
            Self::Put { bytes, .. } | Self::PutSignal { bytes, .. } | Self::Get { bytes, .. } => *bytes,
            Self::PutInline { data, .. } => data.len as u64,
            Self::Signal(_) | Self::Atomic { .. } | Self::Fence => 0,
        }
    }

    /// The change of a signal word that it makes.
    pub const fn signal(&self) -> Option<&SignalUpdate> {
        match self {
            Self::PutSignal { signal, .. } | Self::Signal(signal) => Some(signal),
            _ => None,
        }
    }

    /// A place in the memory of the peer that it reaches; a fence reaches none.
    pub const fn remote(&self) -> Option<RemoteAddress> {
        match self {
            Self::Put { target, .. }
            | Self::PutSignal { target, .. }
            | Self::PutInline { target, .. }
            | Self::Atomic { target, .. } => Some(*target),
            Self::Signal(signal) => Some(signal.target),
            Self::Get { source, .. } => Some(*source),
            Self::Fence => None,
        }
    }
}
