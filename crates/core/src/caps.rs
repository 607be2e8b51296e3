//! Capabilities: what a transport gives natively.
//!
//! Every backend says what it gives for a (peer class, memory kind, operation); the core emulates the rest or refuses
//! with a reason. A promise made here is tested by the conformance suite.

/// Who may write and read atomics on the same word. Mixed writers are forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtomicityDomain {
    /// The node's CPUs.
    Cpu,
    /// The GPU.
    Gpu,
    /// The NIC.
    Nic,
}

/// What signals can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalCaps {
    /// Bits of a signal word that arrive together.
    pub bits: u32,
    /// `Set` is native.
    pub set: bool,
    /// `Add` is native.
    pub add: bool,
    /// A strong signal costs no drain.
    pub native_strong: bool,
    /// Among whom updates are atomic.
    pub domain: AtomicityDomain,
    /// The target must call `progress` (or wait) for a signal to land.
    pub target_progress: bool,
}

/// First guess of what an operation costs; selection refines it by measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Nanoseconds until a small put is seen.
    pub latency_ns: f64,
    /// Bytes a nanosecond (GB/s) of a large one.
    pub bytes_per_ns: f64,
}

/// What a transport gives for one (peer class, memory kind, operation).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caps {
    /// Pointers to the peer's memory can be had: load / store reaches it.
    pub load_store: bool,
    /// Puts of one (queue, peer) are delivered in order.
    pub ordered_puts: bool,
    /// Most bytes of a `PutInline`.
    pub inline_bytes: u32,
    /// Most bytes of one operation.
    pub max_bytes: u64,
    /// Required alignment of addresses and lengths, in bytes.
    pub alignment: u32,
    /// Signals.
    pub signal: SignalCaps,
    /// First guess of the cost: of load / store where it reaches, else of the queue (see [`selection`](crate::selection)).
    pub cost: Cost,
}

/// Whether a transport can reach a peer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reach {
    /// It can, at about this cost.
    Yes(Cost),
    /// It cannot, for this reason.
    No(String),
}
