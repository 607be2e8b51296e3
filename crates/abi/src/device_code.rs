//! Code that a transport brings for kernels.

use crate::Text;

/// Version of the device API (`kernels/campanile.h`) that a host of this header compiles.
pub const DEVICE_API: u32 = 1;

/// Each thread may post for itself.
pub const SCOPE_THREAD: u32 = 0;
/// A warp posts together.
pub const SCOPE_WARP: u32 = 1;
/// A block posts together.
pub const SCOPE_BLOCK: u32 = 2;

/// Kernels load from and store to every window: no header.
pub const FORM_MAP: u32 = 0;
/// Kernels post to queues, by a header.
pub const FORM_QUEUE: u32 = 1;

/// What a transport brings for kernels: of the form queue, a header that implements the device API for its queues, and what
/// kernels must know of it to be compiled.
///
/// **Experimental** until two transports bring queues: it may change within a major version. A host refuses a plugin whose
/// device code it cannot compile.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceCode {
    /// Bytes of this struct, as the plugin knows it.
    pub struct_size: u64,
    /// Name of the kind; the header's namespace, a C++ identifier of at most 64 bytes.
    pub kind: Text,
    /// The header, at most 1 MiB without NULs; empty for [`FORM_MAP`].
    pub header: Text,
    /// Version of the device API that it is written against: [`DEVICE_API`] is the host's.
    pub abi: u32,
    /// Smallest group of threads that may post: `SCOPE_*`.
    pub smallest_scope: u32,
    /// Whether the threads of that group must be converged: 0 or 1.
    pub convergence: u32,
    /// Slots of an operation, at most; at least 1.
    pub slots_per_op: u32,
    /// Most bytes of an operation, at least 16; more is posted in pieces.
    pub largest_op: u64,
    /// Required alignment of addresses and lengths in bytes: 1, 2 or 4.
    pub alignment: u32,
    /// Producers that may share a queue; 0: any number.
    pub producers_per_queue: u32,
    /// Whether a strong signal costs no drain: 0 or 1.
    pub native_strong: u32,
    /// Bits of a signal word that arrive together: 64.
    pub signal_bits: u32,
    /// How kernels reach peers: `FORM_*`.
    pub form: u32,
    /// Bytes of the header's struct `Peer`, a multiple of 8; 0 for [`FORM_MAP`].
    pub peer_bytes: u32,
}
