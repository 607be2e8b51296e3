//! The CPU emulator as a call table: [`Emulator`].
//!
//! **Model.** Devices share the memory of this process, and by descriptor that of others, so each can be a rank. All
//! device memory lies in memfds, so that it can be exported. A stream is a thread that does its tasks in order; a
//! kernel is a function of a shared object that the machine's C++ compiler made of the same source as a GPU's, and runs
//! as `kernels/emulator/runtime.h` says. Kernels, copies and waits of several streams are concurrent, as on GPUs.
//!
//! **What it keeps of the real thing.** Asynchrony: calls return before the work is done. Errors of kernels are sticky:
//! every later wait on the device reports them. Handles that are not alive are refused with code 400, as CUDA and HIP
//! do. A graph is the list of captured tasks, done in the order in which they were captured, whatever streams they came
//! from. What it does not keep: caches, speed.

mod compile;
mod memory;
mod module;
mod registry;
mod stream;

use std::ffi::{CStr, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use crate::calls::{
    Address, AllocationHandle, Attribute, Calls, EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, Grid,
    IpcBytes, ModuleHandle, Result, StreamHandle,
};
use crate::{Backend, CallError, Coherence, CompileError, LoadError, Settings, Source};
use compile::Compiler;
use memory::{Allocation, Memories};
use module::{Kernel, Module};
use registry::Registry;
use stream::{Event, Stream, Task};

/// Threads that a multiprocessor holds, and blocks; as on the real ones, roughly.
const MULTIPROCESSOR_THREADS: u32 = 2048;
const MULTIPROCESSOR_BLOCKS: u32 = 4;
const MAX_THREADS: u32 = 1024;
const MAX_SHARED_BYTES: u32 = 160 << 10;
/// A page: what virtual memory comes in.
const GRANULARITY: usize = 64 << 10;

/// What is emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulation {
    /// Devices, 1 to 64.
    pub devices: u32,
    /// Lanes of a wave: 32 as on NVIDIA, or 64 as on AMD.
    pub wave: u32,
    /// Multiprocessors of each device, 1 to 64; each holds 4 blocks, so this bounds how many blocks may wait for each
    /// other.
    pub multiprocessors: u32,
    /// In which order the threads of a block take turns: 0 is by number, any other value one drawn from it. What depends
    /// on the order is wrong on a GPU, so tests run with several.
    pub schedule: u64,
}

impl Default for Emulation {
    /// Four devices of 64 lanes and 16 blocks.
    fn default() -> Self {
        Self { devices: 4, wave: 64, multiprocessors: 4, schedule: 0 }
    }
}

impl Emulation {
    /// Blocks that a multiprocessor holds.
    fn resident_blocks(&self, threads: u32) -> u32 {
        (MULTIPROCESSOR_THREADS / threads.max(1)).min(MULTIPROCESSOR_BLOCKS)
    }
}

/// The emulator.
#[derive(Debug)]
pub(crate) struct Emulator {
    emulation: Emulation,
    cxx: String,
    compiler: OnceLock<std::result::Result<Compiler, String>>,
    memories: Memories,
    allocations: Registry<Allocation>,
    streams: Registry<Stream>,
    events: Registry<Event>,
    graphs: Registry<Vec<Task>>,
    modules: Registry<Module>,
    kernels: Registry<Kernel>,
    /// The first error of a kernel on each device.
    faults: Vec<Arc<OnceLock<CallError>>>,
}

impl Emulator {
    pub(crate) fn new(emulation: Emulation, settings: &Settings) -> std::result::Result<Self, LoadError> {
        let refuse = |given: String, allowed| Err(LoadError::Emulator { given, allowed });
        if !(1..=64).contains(&emulation.devices) {
            return refuse(format!("{} devices", emulation.devices), "1 to 64 devices");
        }
        if !matches!(emulation.wave, 32 | 64) {
            return refuse(format!("a wave of {}", emulation.wave), "waves of 32 or 64");
        }
        if !(1..=64).contains(&emulation.multiprocessors) {
            return refuse(format!("{} multiprocessors", emulation.multiprocessors), "1 to 64 multiprocessors");
        }
        Ok(Self {
            emulation,
            cxx: settings.cxx.clone().unwrap_or_else(|| "c++".to_owned()),
            compiler: OnceLock::new(),
            memories: Memories::default(),
            allocations: Registry::new("allocation"),
            streams: Registry::new("stream"),
            events: Registry::new("event"),
            graphs: Registry::new("graph"),
            modules: Registry::new("module"),
            kernels: Registry::new("kernel"),
            faults: (0..emulation.devices).map(|_| Arc::default()).collect(),
        })
    }

    fn cxx(&self) -> std::result::Result<&Compiler, CompileError> {
        self.compiler
            .get_or_init(|| Compiler::open(&self.cxx))
            .as_ref()
            .map_err(|reason| CompileError::NoCompiler(reason.clone()))
    }

    /// Refuses devices that there are not, which the real libraries do in every call.
    fn check(&self, device: u32) -> Result<()> {
        if device < self.emulation.devices {
            return Ok(());
        }
        Err(failed("device", format!("device {device}"), INVALID_DEVICE, "there is no such device"))
    }
}

/// `CUDA_ERROR_INVALID_VALUE`, `hipErrorInvalidValue`, and so on: the emulator uses the numbers that both have.
const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const INVALID_DEVICE: i32 = 101;
const INVALID_IMAGE: i32 = 200;
const INVALID_HANDLE: i32 = 400;
const NOT_FOUND: i32 = 500;
const NOT_READY: i32 = 600;
const LAUNCH_FAILED: i32 = 719;
const CAPTURE_UNSUPPORTED: i32 = 900;
const CAPTURE_INVALIDATED: i32 = 901;

fn failed(call: &'static str, arguments: String, code: i32, text: impl Into<String>) -> CallError {
    CallError::Failed { call, arguments, code, text: text.into() }
}

// The emulator's tables look every handle up, so the `unsafe` of these methods is about addresses alone; they are
// handed on to the stream's thread under the contract of `Calls`.
impl Calls for Emulator {
    fn backend(&self) -> Backend {
        Backend::Emulator
    }

    fn version(&self) -> Result<String> {
        Ok(format!("emulator, {} devices, wave {}", self.emulation.devices, self.emulation.wave))
    }

    fn device_count(&self) -> Result<u32> {
        Ok(self.emulation.devices)
    }

    fn device_name(&self, device: u32) -> Result<String> {
        self.check(device)?;
        Ok(format!("emulated device of {} lanes", self.emulation.wave))
    }

    fn attribute(&self, device: u32, attribute: Attribute) -> Result<i32> {
        self.check(device)?;
        let value = match attribute {
            Attribute::WaveSize => self.emulation.wave,
            Attribute::Multiprocessors => self.emulation.multiprocessors,
            Attribute::MaxThreads => MAX_THREADS,
            Attribute::MaxSharedBytes => MAX_SHARED_BYTES,
            Attribute::SharesByDescriptor | Attribute::StreamWaitsForMemory => 1,
            Attribute::PciDevice => device,
            Attribute::Major | Attribute::Minor | Attribute::PciDomain | Attribute::PciBus => 0,
        };
        Ok(value as i32)
    }

    fn memory_info(&self, device: u32) -> Result<(usize, usize)> {
        self.check(device)?;
        let info = rustix::system::sysinfo();
        let unit = info.mem_unit as usize;
        Ok((info.freeram as usize * unit, info.totalram as usize * unit))
    }

    fn device_synchronize(&self, device: u32) -> Result<()> {
        self.check(device)?;
        for stream in self.streams.all() {
            if stream.device() == device {
                stream.synchronize()?;
            }
        }
        Ok(())
    }

    fn can_access_peer(&self, device: u32, peer: u32) -> Result<bool> {
        self.check(device)?;
        self.check(peer)?;
        Ok(device != peer)
    }

    fn enable_peer_access(&self, device: u32, peer: u32) -> Result<()> {
        self.check(device)?;
        self.check(peer)
    }

    fn allocate(&self, device: u32, bytes: usize, _coherence: Coherence) -> Result<Address> {
        self.check(device)?;
        self.memories.allocate(bytes)
    }

    unsafe fn free(&self, device: u32, address: Address) -> Result<()> {
        self.device_synchronize(device)?;
        self.memories.free(address)
    }

    fn host_allocate(&self, device: u32, bytes: usize) -> Result<*mut u8> {
        self.check(device)?;
        Ok(self.memories.allocate(bytes)? as *mut u8)
    }

    unsafe fn host_free(&self, device: u32, pointer: *mut u8) -> Result<()> {
        self.device_synchronize(device)?;
        self.memories.free(pointer as Address)
    }

    fn granularity(&self, device: u32, _coherence: Coherence) -> Result<usize> {
        self.check(device)?;
        Ok(GRANULARITY)
    }

    fn allocation_create(&self, device: u32, bytes: usize, _coherence: Coherence) -> Result<AllocationHandle> {
        self.check(device)?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            let text = format!("a multiple of {GRANULARITY} is needed");
            return Err(failed("allocation_create", format!("bytes {bytes}"), INVALID_VALUE, text));
        }
        Ok(AllocationHandle(self.allocations.insert(Allocation::create(bytes)?)))
    }

    unsafe fn allocation_release(&self, allocation: AllocationHandle) -> Result<()> {
        self.allocations.remove(allocation.0).map(drop)
    }

    unsafe fn allocation_export(&self, allocation: AllocationHandle) -> Result<OwnedFd> {
        self.allocations.get(allocation.0)?.export()
    }

    fn allocation_import(&self, device: u32, fd: BorrowedFd<'_>, bytes: usize) -> Result<AllocationHandle> {
        self.check(device)?;
        Ok(AllocationHandle(self.allocations.insert(Allocation::import(fd, bytes)?)))
    }

    fn address_reserve(&self, device: u32, bytes: usize) -> Result<Address> {
        self.check(device)?;
        self.memories.reserve(bytes)
    }

    unsafe fn address_free(&self, address: Address, bytes: usize) -> Result<()> {
        self.memories.release(address, bytes)
    }

    unsafe fn map(&self, address: Address, bytes: usize, allocation: AllocationHandle) -> Result<()> {
        let allocation = self.allocations.get(allocation.0)?;
        // SAFETY: the caller's promise for the address, which the memories check.
        unsafe { self.memories.map(address, bytes, &allocation) }
    }

    unsafe fn unmap(&self, address: Address, bytes: usize) -> Result<()> {
        // SAFETY: as in `map`.
        unsafe { self.memories.unmap(address, bytes) }
    }

    unsafe fn set_access(&self, device: u32, address: Address, bytes: usize) -> Result<()> {
        self.check(device)?;
        // SAFETY: as in `map`.
        unsafe { self.memories.set_access(address, bytes) }
    }

    unsafe fn ipc_export(&self, device: u32, address: Address) -> Result<IpcBytes> {
        self.check(device)?;
        self.memories.ipc_export(address)
    }

    unsafe fn ipc_open(&self, device: u32, handle: IpcBytes) -> Result<Address> {
        self.check(device)?;
        self.memories.ipc_open(handle)
    }

    unsafe fn ipc_close(&self, device: u32, address: Address) -> Result<()> {
        self.device_synchronize(device)?;
        self.memories.free(address)
    }

    unsafe fn copy(&self, target: Address, source: Address, bytes: usize, stream: StreamHandle) -> Result<()> {
        self.streams.get(stream.raw)?.give(Task::Copy { target, source, bytes })
    }

    unsafe fn set(&self, target: Address, value: u8, bytes: usize, stream: StreamHandle) -> Result<()> {
        self.streams.get(stream.raw)?.give(Task::Set { target, value, bytes })
    }

    fn stream_create(&self, device: u32) -> Result<StreamHandle> {
        self.check(device)?;
        let stream = Stream::new(device, self.faults[device as usize].clone())?;
        Ok(StreamHandle { raw: self.streams.insert(stream), device })
    }

    unsafe fn stream_destroy(&self, stream: StreamHandle) -> Result<()> {
        self.streams.remove(stream.raw).map(drop)
    }

    unsafe fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        self.streams.get(stream.raw)?.synchronize()
    }

    unsafe fn stream_done(&self, stream: StreamHandle) -> Result<bool> {
        self.streams.get(stream.raw)?.done()
    }

    unsafe fn stream_write(&self, stream: StreamHandle, address: Address, value: u64) -> Result<()> {
        self.streams.get(stream.raw)?.give(Task::Write { address, value })
    }

    unsafe fn stream_wait(&self, stream: StreamHandle, address: Address, value: u64) -> Result<()> {
        self.streams.get(stream.raw)?.give(Task::Wait { address, value })
    }

    fn event_create(&self, device: u32) -> Result<EventHandle> {
        self.check(device)?;
        Ok(EventHandle(self.events.insert(Event::default())))
    }

    unsafe fn event_destroy(&self, event: EventHandle) -> Result<()> {
        self.events.remove(event.0).map(drop)
    }

    unsafe fn event_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.streams.get(stream.raw)?.record(&self.events.get(event.0)?)
    }

    unsafe fn event_wait(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.streams.get(stream.raw)?.wait_for(&self.events.get(event.0)?)
    }

    unsafe fn event_synchronize(&self, event: EventHandle) -> Result<()> {
        self.events.get(event.0)?.synchronize();
        Ok(())
    }

    unsafe fn event_done(&self, event: EventHandle) -> Result<bool> {
        Ok(self.events.get(event.0)?.done())
    }

    unsafe fn event_elapsed(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        self.events.get(end.0)?.since(&*self.events.get(start.0)?)
    }

    unsafe fn capture_begin(&self, stream: StreamHandle) -> Result<()> {
        self.streams.get(stream.raw)?.capture_begin()
    }

    unsafe fn capture_end(&self, stream: StreamHandle) -> Result<GraphHandle> {
        Ok(GraphHandle(self.graphs.insert(self.streams.get(stream.raw)?.capture_end()?)))
    }

    unsafe fn graph_destroy(&self, graph: GraphHandle) -> Result<()> {
        self.graphs.remove(graph.0).map(drop)
    }

    unsafe fn graph_instantiate(&self, graph: GraphHandle) -> Result<GraphExecHandle> {
        let tasks = self.graphs.get(graph.0)?;
        Ok(GraphExecHandle(self.graphs.insert(tasks.to_vec())))
    }

    unsafe fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Result<()> {
        self.graphs.remove(graph.0).map(drop)
    }

    unsafe fn graph_upload(&self, graph: GraphExecHandle, stream: StreamHandle) -> Result<()> {
        self.graphs.get(graph.0)?;
        self.streams.get(stream.raw)?;
        Ok(())
    }

    unsafe fn graph_launch(&self, graph: GraphExecHandle, stream: StreamHandle) -> Result<()> {
        let tasks = self.graphs.get(graph.0)?;
        self.streams.get(stream.raw)?.give(Task::Graph(tasks))
    }

    fn module_load(&self, device: u32, image: &[u8]) -> Result<ModuleHandle> {
        self.check(device)?;
        Ok(ModuleHandle(self.modules.insert(Module::load(image)?)))
    }

    unsafe fn module_unload(&self, _device: u32, module: ModuleHandle) -> Result<()> {
        let module = self.modules.remove(module.0)?;
        self.kernels.remove_all(|kernel| kernel.is_of(&module));
        Ok(())
    }

    unsafe fn function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle> {
        let kernel = Kernel::find(&self.modules.get(module.0)?, name, self.emulation)?;
        Ok(FunctionHandle(self.kernels.insert(kernel)))
    }

    unsafe fn argument_bytes(&self, module: ModuleHandle, name: &CStr) -> Result<Option<usize>> {
        Ok(Some(Kernel::find(&self.modules.get(module.0)?, name, self.emulation)?.argument_bytes()))
    }

    unsafe fn allow_shared_bytes(&self, function: FunctionHandle, bytes: u32) -> Result<()> {
        self.kernels.get(function.0)?;
        if bytes > MAX_SHARED_BYTES {
            let text = format!("a block has at most {MAX_SHARED_BYTES}");
            return Err(failed("allow_shared_bytes", format!("bytes {bytes}"), INVALID_VALUE, text));
        }
        Ok(())
    }

    unsafe fn resident_blocks(&self, device: u32, function: FunctionHandle, grid: Grid) -> Result<u32> {
        self.check(device)?;
        let kernel = self.kernels.get(function.0)?;
        if grid.threads > kernel.max_threads() || grid.shared_bytes > MAX_SHARED_BYTES {
            return Ok(0);
        }
        Ok(self.emulation.resident_blocks(grid.threads))
    }

    unsafe fn launch(
        &self,
        function: FunctionHandle,
        grid: Grid,
        argument: *const c_void,
        stream: StreamHandle,
    ) -> Result<()> {
        let kernel = self.kernels.get(function.0)?;
        // SAFETY: the caller's argument is what the kernel takes.
        let argument = unsafe { kernel.copy_argument(argument) };
        self.streams.get(stream.raw)?.give(Task::Kernel { kernel, grid, argument })
    }

    fn compiler(&self) -> std::result::Result<String, CompileError> {
        Ok(self.cxx()?.version().to_owned())
    }

    fn target(&self, device: u32) -> Result<String> {
        self.check(device)?;
        Ok(format!("wave{}", self.emulation.wave))
    }

    fn base_options(&self, target: &str) -> Vec<String> {
        compile::base_options(target)
    }

    fn compile(&self, source: &Source, target: &str, options: &[String]) -> std::result::Result<Vec<u8>, CompileError> {
        self.cxx()?.compile(source, target, options)
    }
}
