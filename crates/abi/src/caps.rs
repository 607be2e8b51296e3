//! Capabilities: what a transport gives natively.

/// The peer is this rank itself.
pub const CLASS_OWN: u32 = 0;
/// The peer is another rank of the same node.
pub const CLASS_NODE: u32 = 1;
/// The peer is a rank of another node.
pub const CLASS_REMOTE: u32 = 2;

/// Updates are atomic among the node's CPUs.
pub const ATOMICITY_CPU: u32 = 0;
/// Updates are atomic on the GPU.
pub const ATOMICITY_GPU: u32 = 1;
/// Updates are atomic on the NIC.
pub const ATOMICITY_NIC: u32 = 2;

/// Of [`Caps::signal_flags`]: setting a word is native.
pub const SIGNAL_SET_NATIVE: u32 = 1;
/// Of [`Caps::signal_flags`]: adding to a word is native.
pub const SIGNAL_ADD_NATIVE: u32 = 2;
/// Of [`Caps::signal_flags`]: a strong signal costs no drain.
pub const SIGNAL_STRONG_NATIVE: u32 = 4;
/// Of [`Caps::signal_flags`]: the target must make progress, or wait, for a signal to land.
pub const SIGNAL_TARGET_PROGRESS: u32 = 8;

/// First guess of what an operation costs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Picoseconds until a small put is seen.
    pub latency_ps: u64,
    /// Bytes a second of a large one.
    pub bytes_per_s: u64,
}

/// What a transport gives for one (peer class, memory kind, operation). The host zeroes it, the plugin fills it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Bytes of this struct, as the host knows it.
    pub struct_size: u64,
    /// Most bytes of one operation.
    pub max_bytes: u64,
    /// Whether pointers to the peer's memory can be had: 0 or 1.
    pub load_store: u32,
    /// Whether puts of one (queue, peer) are delivered in order: 0 or 1.
    pub ordered_puts: u32,
    /// Most bytes of an inline put.
    pub inline_bytes: u32,
    /// Required alignment of addresses and lengths, in bytes; 1 for none.
    pub alignment: u32,
    /// Bits of a signal word that arrive together.
    pub signal_bits: u32,
    /// What signals can do: `SIGNAL_*_NATIVE`, `SIGNAL_TARGET_PROGRESS`.
    pub signal_flags: u32,
    /// Among whom updates are atomic: `ATOMICITY_*`.
    pub atomicity: u32,
    /// Must be 0.
    pub reserved: u32,
    /// First guess of the cost.
    pub cost: Cost,
}
