//! The GPU call table: [`Calls`], what CUDA, HIP and the emulator have in common.
//!
//! One method a call, with the arguments that both vendors' calls have; devices are named in each call that depends on
//! one, so no "current device" shows through. Handles and addresses are plain numbers here; [`Device`](crate::Device)
//! and the types that it makes own them, and are what a program uses.
//!
//! **Safety of the `unsafe` methods.** The caller upholds, for each: handles came from this table, are of the kind
//! asked for, and were not destroyed; addresses are mapped for the device for as many bytes as the call names, until
//! the stream has done the work; host memory likewise.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::{Backend, CallError, Coherence, CompileError, Source};

/// The outcome of a call.
pub type Result<T> = std::result::Result<T, CallError>;

/// An address in the space that host and devices share (unified addressing).
pub type Address = u64;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub usize);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    )+};
}

handles! {
    /// Physical memory that can be mapped and exported (`CUmemGenericAllocationHandle`).
    AllocationHandle;
    /// An event.
    EventHandle;
    /// A captured graph.
    GraphHandle;
    /// A graph that can be launched.
    GraphExecHandle;
    /// A loaded module.
    ModuleHandle;
    /// A kernel of a module.
    FunctionHandle;
}

/// A stream, and the device that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamHandle {
    /// The library's handle (`CUstream`, `hipStream_t`).
    pub raw: usize,
    /// The device.
    pub device: u32,
}

/// A legacy IPC handle: 64 opaque bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct IpcBytes(pub [u8; 64]);

impl fmt::Debug for IpcBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IpcBytes")
    }
}

/// What a device says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attribute {
    /// Lanes of a wave.
    WaveSize,
    /// Multiprocessors (compute units on AMD).
    Multiprocessors,
    /// The most threads that a block can have.
    MaxThreads,
    /// The most bytes of shared memory that a block can have, by asking for them.
    MaxSharedBytes,
    /// Compute capability, or the two first digits of the gfx number.
    Major,
    /// See [`Major`](Self::Major).
    Minor,
    /// Whether memory can be made, mapped and shared as file descriptors; 0 or 1.
    SharesByDescriptor,
    /// Whether a stream can wait for a word of memory; 0 or 1.
    StreamWaitsForMemory,
    /// Where the device sits on the PCI bus.
    PciDomain,
    /// See [`PciDomain`](Self::PciDomain).
    PciBus,
    /// See [`PciDomain`](Self::PciDomain).
    PciDevice,
}

/// A launch: how many blocks of how many threads, and shared memory sized at launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

/// The calls. See the [module](self) for the contract of the `unsafe` ones.
#[allow(clippy::missing_safety_doc, reason = "one contract for all, at the module")]
pub trait Calls: fmt::Debug + Send + Sync {
    /// Which library stands behind it.
    fn backend(&self) -> Backend;
    /// The version of the driver or runtime, for people.
    fn version(&self) -> Result<String>;
    /// How many devices this process sees.
    fn device_count(&self) -> Result<u32>;
    /// The product's name.
    fn device_name(&self, device: u32) -> Result<String>;
    /// What the device says of itself.
    fn attribute(&self, device: u32, attribute: Attribute) -> Result<i32>;
    /// Bytes of device memory: (free, total).
    fn memory_info(&self, device: u32) -> Result<(usize, usize)>;
    /// Waits for all work of a device. Unbounded, as all waits of the vendors' calls are.
    fn device_synchronize(&self, device: u32) -> Result<()>;

    /// Whether `device` can load from and store to memory of `peer`.
    fn can_access_peer(&self, device: u32, peer: u32) -> Result<bool>;
    /// Lets `device` reach plain allocations of `peer`. Doing it twice is no error.
    fn enable_peer_access(&self, device: u32, peer: u32) -> Result<()>;

    /// Plain device memory; 0 bytes are refused, as the vendors do.
    fn allocate(&self, device: u32, bytes: usize, coherence: Coherence) -> Result<Address>;
    /// Frees plain memory. Waits for the device.
    unsafe fn free(&self, device: u32, address: Address) -> Result<()>;
    /// Pinned host memory that all devices reach at the same address; 0 bytes are refused.
    fn host_allocate(&self, device: u32, bytes: usize) -> Result<*mut u8>;
    /// Frees pinned host memory.
    unsafe fn host_free(&self, device: u32, pointer: *mut u8) -> Result<()>;

    /// What sizes of physical memory are multiples of.
    fn granularity(&self, device: u32, coherence: Coherence) -> Result<usize>;
    /// Physical memory; `bytes` is a multiple of the granularity.
    fn allocation_create(&self, device: u32, bytes: usize, coherence: Coherence) -> Result<AllocationHandle>;
    /// Gives the handle back; the memory lives on while it is mapped or exported.
    unsafe fn allocation_release(&self, allocation: AllocationHandle) -> Result<()>;
    /// A descriptor that another process can import.
    unsafe fn allocation_export(&self, allocation: AllocationHandle) -> Result<OwnedFd>;
    /// Physical memory that another process has exported, of `bytes` bytes.
    fn allocation_import(&self, device: u32, fd: BorrowedFd<'_>, bytes: usize) -> Result<AllocationHandle>;
    /// Address space without memory.
    fn address_reserve(&self, device: u32, bytes: usize) -> Result<Address>;
    /// Gives address space back.
    unsafe fn address_free(&self, address: Address, bytes: usize) -> Result<()>;
    /// Maps a whole allocation at a reserved address.
    unsafe fn map(&self, address: Address, bytes: usize, allocation: AllocationHandle) -> Result<()>;
    /// Unmaps what [`map`](Self::map) mapped.
    unsafe fn unmap(&self, address: Address, bytes: usize) -> Result<()>;
    /// Lets `device` load and store there.
    unsafe fn set_access(&self, device: u32, address: Address, bytes: usize) -> Result<()>;

    /// A legacy handle of a plain allocation.
    unsafe fn ipc_export(&self, device: u32, address: Address) -> Result<IpcBytes>;
    /// Maps a plain allocation of another process.
    unsafe fn ipc_open(&self, device: u32, handle: IpcBytes) -> Result<Address>;
    /// Unmaps it.
    unsafe fn ipc_close(&self, device: u32, address: Address) -> Result<()>;

    /// Copies, between any two memories.
    unsafe fn copy(&self, target: Address, source: Address, bytes: usize, stream: StreamHandle) -> Result<()>;
    /// Sets each byte.
    unsafe fn set(&self, target: Address, value: u8, bytes: usize, stream: StreamHandle) -> Result<()>;

    /// A stream that does not wait for others.
    fn stream_create(&self, device: u32) -> Result<StreamHandle>;
    /// Destroys it; work that is in flight ends first, in the background.
    unsafe fn stream_destroy(&self, stream: StreamHandle) -> Result<()>;
    /// Waits until its work is done. Unbounded: bound it with [`stream_done`](Self::stream_done).
    unsafe fn stream_synchronize(&self, stream: StreamHandle) -> Result<()>;
    /// Whether its work is done.
    unsafe fn stream_done(&self, stream: StreamHandle) -> Result<bool>;
    /// Writes a 64-bit word, after the stream's earlier work.
    unsafe fn stream_write(&self, stream: StreamHandle, address: Address, value: u64) -> Result<()>;
    /// Holds the stream until the 64-bit word is at least `value`. The word does not wrap: CUDA compares as on a circle,
    /// HIP does not. There is no deadline: whoever aborts writes the word.
    unsafe fn stream_wait(&self, stream: StreamHandle, address: Address, value: u64) -> Result<()>;

    /// An event that keeps the time.
    fn event_create(&self, device: u32) -> Result<EventHandle>;
    /// Destroys it.
    unsafe fn event_destroy(&self, event: EventHandle) -> Result<()>;
    /// Records what the stream has been given so far.
    unsafe fn event_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()>;
    /// Makes the stream wait for what was recorded.
    unsafe fn event_wait(&self, event: EventHandle, stream: StreamHandle) -> Result<()>;
    /// Waits, on the host, for what was recorded.
    unsafe fn event_synchronize(&self, event: EventHandle) -> Result<()>;
    /// Whether what was recorded is done.
    unsafe fn event_done(&self, event: EventHandle) -> Result<bool>;
    /// Milliseconds between two events that are done.
    unsafe fn event_elapsed(&self, start: EventHandle, end: EventHandle) -> Result<f32>;

    /// From here on the stream records instead of running, for this thread's calls.
    unsafe fn capture_begin(&self, stream: StreamHandle) -> Result<()>;
    /// Ends the recording.
    unsafe fn capture_end(&self, stream: StreamHandle) -> Result<GraphHandle>;
    /// Destroys a graph; what was instantiated from it lives on.
    unsafe fn graph_destroy(&self, graph: GraphHandle) -> Result<()>;
    /// Makes a graph ready to launch.
    unsafe fn graph_instantiate(&self, graph: GraphHandle) -> Result<GraphExecHandle>;
    /// Destroys it.
    unsafe fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Result<()>;
    /// Brings what its launches need onto the device, so that the first is as fast as the others.
    unsafe fn graph_upload(&self, graph: GraphExecHandle, stream: StreamHandle) -> Result<()>;
    /// Launches it.
    unsafe fn graph_launch(&self, graph: GraphExecHandle, stream: StreamHandle) -> Result<()>;

    /// Loads machine code: a cubin, a code object, or a shared object for the emulator.
    fn module_load(&self, device: u32, image: &[u8]) -> Result<ModuleHandle>;
    /// Unloads it.
    unsafe fn module_unload(&self, device: u32, module: ModuleHandle) -> Result<()>;
    /// Looks a kernel up, which also loads it where loading is lazy.
    unsafe fn function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle>;
    /// Bytes of the kernel's only argument; `None` where the driver cannot tell.
    unsafe fn argument_bytes(&self, module: ModuleHandle, name: &CStr) -> Result<Option<usize>>;
    /// Allows the kernel this much dynamic shared memory.
    unsafe fn allow_shared_bytes(&self, function: FunctionHandle, bytes: u32) -> Result<()>;
    /// How many blocks of a kernel fit on one multiprocessor.
    unsafe fn resident_blocks(&self, device: u32, function: FunctionHandle, grid: Grid) -> Result<u32>;
    /// Launches a kernel of one argument, a struct at `argument`, which is copied before the call returns.
    unsafe fn launch(
        &self,
        function: FunctionHandle,
        grid: Grid,
        argument: *const c_void,
        stream: StreamHandle,
    ) -> Result<()>;

    /// Name and version of the run-time compiler: a part of the key of the cache.
    fn compiler(&self) -> std::result::Result<String, CompileError>;
    /// What the compiler calls the device, such as `sm_90`, `gfx942`, `wave64`.
    fn target(&self, device: u32) -> Result<String>;
    /// What every kernel is compiled with for a target.
    fn base_options(&self, target: &str) -> Vec<String>;
    /// Compiles for a target; `options` are all options, [`base_options`](Self::base_options) first.
    fn compile(&self, source: &Source, target: &str, options: &[String]) -> std::result::Result<Vec<u8>, CompileError>;
}
