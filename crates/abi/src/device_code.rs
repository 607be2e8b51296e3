//! Code that a transport brings for kernels.

use crate::Text;

/// Each thread may post for itself.
pub const SCOPE_THREAD: u32 = 0;
/// A warp posts together.
pub const SCOPE_WARP: u32 = 1;
/// A block posts together.
pub const SCOPE_BLOCK: u32 = 2;

/// A header that implements the device API for a transport's queues, and what kernels must know of it to be compiled.
///
/// **Experimental** until two transports use it: it may change within a major version, so `NULL` is what plugins give
/// today.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceCode {
    /// Bytes of this struct, as the plugin knows it.
    pub struct_size: u64,
    /// Name of the kind of queue; the header's namespace.
    pub kind: Text,
    /// The header.
    pub header: Text,
    /// Version of the device API that the header implements.
    pub abi: u32,
    /// Smallest group of threads that may post: `SCOPE_*`.
    pub smallest_scope: u32,
    /// Whether the threads of that group must be converged: 0 or 1.
    pub convergence: u32,
    /// Slots of an operation, at most.
    pub slots_per_op: u32,
    /// Most bytes of an operation.
    pub largest_op: u64,
    /// Required alignment of addresses and lengths, in bytes.
    pub alignment: u32,
    /// Producers that may share a queue; 0: any number.
    pub producers_per_queue: u32,
    /// Whether a strong signal costs no drain: 0 or 1.
    pub native_strong: u32,
    /// Bits of a signal word that arrive together.
    pub signal_bits: u32,
}
