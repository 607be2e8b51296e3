//! Operations, as they lie in a list that is posted.
//!
//! An [`Op`] has a fixed size; each kind uses what it needs of the [`Payload`]. New kinds fit into the rest of it. The core's
//! own operations have this very layout, so a list crosses as a pointer; whoever receives one checks every tag.

/// A put: local memory to a peer.
pub const OP_PUT: u32 = 1;
/// A put and a signal in one reservation.
pub const OP_PUT_SIGNAL: u32 = 2;
/// Bytes that travel inside the operation.
pub const OP_PUT_INLINE: u32 = 3;
/// A signal without a put.
pub const OP_SIGNAL: u32 = 4;
/// A peer's memory to local memory.
pub const OP_GET: u32 = 5;
/// An atomic on a 64-bit word of a peer.
pub const OP_ATOMIC: u32 = 6;
/// Earlier operations are delivered before later ones; no payload.
pub const OP_FENCE: u32 = 7;

/// The word becomes the value.
pub const SIGNAL_SET: u32 = 0;
/// The value is added to the word.
pub const SIGNAL_ADD: u32 = 1;

/// Visible: the put it is bundled with is visible.
pub const STRENGTH_WEAK: u32 = 0;
/// Visible: all earlier puts of the same (queue, peer) are visible.
pub const STRENGTH_STRONG: u32 = 1;

/// `word += operand`.
pub const ATOMIC_ADD: u32 = 0;
/// `word += operand`, the old value goes to the result.
pub const ATOMIC_FETCH_ADD: u32 = 1;
/// `if word == compare { word = operand }`, the old value goes to the result.
pub const ATOMIC_COMPARE_SWAP: u32 = 2;
/// `word = operand`, the old value goes to the result.
pub const ATOMIC_SWAP: u32 = 3;

/// Most bytes that travel inside an operation.
pub const INLINE_BYTES: usize = 64;

/// A place in this rank's registered memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LocalAddress {
    /// Key of the region.
    pub region: u64,
    /// Bytes from its start.
    pub offset: u64,
}

/// A place in a peer's imported memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RemoteAddress {
    /// Key of the region.
    pub region: u64,
    /// Bytes from its start.
    pub offset: u64,
}

/// The change of a signal word.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SignalUpdate {
    /// The word, 8-byte aligned.
    pub target: RemoteAddress,
    /// By what.
    pub value: u64,
    /// How it changes: `SIGNAL_*`.
    pub action: u32,
    /// What it promises once it is visible: `STRENGTH_*`.
    pub strength: u32,
}

/// Payload of [`OP_PUT`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// From; unchanged by the caller until local completion.
    pub source: LocalAddress,
    /// To.
    pub target: RemoteAddress,
    /// How many bytes; 0 is legal.
    pub bytes: u64,
}

/// Payload of [`OP_PUT_SIGNAL`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PutSignal {
    /// From; unchanged by the caller until local completion.
    pub source: LocalAddress,
    /// To.
    pub target: RemoteAddress,
    /// How many bytes; 0 is legal, the signal still fires.
    pub bytes: u64,
    /// Fires after the bytes.
    pub signal: SignalUpdate,
}

/// Payload of [`OP_PUT_INLINE`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PutInline {
    /// The bytes.
    pub data: [u8; INLINE_BYTES],
    /// How many, at most [`INLINE_BYTES`].
    pub bytes: u8,
    /// Not to be read.
    pub reserved: [u8; 7],
    /// To.
    pub target: RemoteAddress,
}

/// Payload of [`OP_GET`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Get {
    /// From.
    pub source: RemoteAddress,
    /// To; undefined until local completion.
    pub target: LocalAddress,
    /// How many bytes; 0 is legal.
    pub bytes: u64,
}

/// Payload of [`OP_ATOMIC`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Atomic {
    /// Which: `ATOMIC_*`.
    pub kind: u32,
    /// Not to be read.
    pub reserved: u32,
    /// What is added, or what the word becomes.
    pub operand: u64,
    /// Where the old value goes; not to be read of [`ATOMIC_ADD`].
    pub result: LocalAddress,
    /// What the word must be; of [`ATOMIC_COMPARE_SWAP`] only.
    pub compare: u64,
    /// The word, 8-byte aligned.
    pub target: RemoteAddress,
}

/// What an operation needs, by its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Payload {
    /// Of [`OP_PUT`].
    pub put: Put,
    /// Of [`OP_PUT_SIGNAL`].
    pub put_signal: PutSignal,
    /// Of [`OP_PUT_INLINE`].
    pub put_inline: PutInline,
    /// Of [`OP_SIGNAL`].
    pub signal: SignalUpdate,
    /// Of [`OP_GET`].
    pub get: Get,
    /// Of [`OP_ATOMIC`].
    pub atomic: Atomic,
    /// Fixes the size.
    pub size: [u64; 11],
}

/// An operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Op {
    /// Which: `OP_*`. An unknown one is [`STATUS_INVALID`](crate::STATUS_INVALID).
    pub kind: u32,
    /// Not to be read.
    pub reserved: u32,
    /// What it needs.
    pub payload: Payload,
}
