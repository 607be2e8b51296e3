//! The calls of CUDA and HIP, through the [`Driver`](super::table::Driver)'s symbols.
//!
//! Every `unsafe` below hands the caller's handles and addresses on under the contract of [`Calls`]; out-pointers are
//! to locals of the type that the table states.

#![allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::numbers::{
    self, CAPTURE_THREAD_LOCAL, COPY_DEFAULT, CUDA_MAX_DYNAMIC_SHARED, HIP_FINE, HIP_HOST_COHERENT,
    HIP_IMPORTS_BY_VALUE, HIP_UNCACHED, HOST_PORTABLE_MAPPED, IPC_LAZY_PEER_ACCESS, LOCATION_DEVICE, NON_BLOCKING,
    PEER_ACCESS_ALREADY_ENABLED, POSIX_FD, READ_WRITE, RECOMMENDED, WAIT_GREATER_OR_EQUAL,
};
use super::table::{AccessDescription, Location};
use super::{Dialect, Vendor, base_options, hip_version};
use crate::calls::{
    Address, AllocationHandle, Attribute, Calls, EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, Grid,
    IpcBytes, ModuleHandle, Result, StreamHandle,
};
use crate::{Backend, CallError, Coherence, CompileError, Source};

impl Calls for Vendor {
    fn backend(&self) -> Backend {
        match self.dialect {
            Dialect::Cuda => Backend::Cuda,
            Dialect::Hip => Backend::Hip,
        }
    }

    fn version(&self) -> Result<String> {
        let name = self.library.name();
        let version = self.integer(|version| unsafe { self.driver.driver_version(version) })?;
        Ok(match self.dialect {
            Dialect::Cuda => format!("{name}, CUDA {}.{}", version / 1000, version % 1000 / 10),
            Dialect::Hip => format!("{name}, HIP {}", hip_version(version)),
        })
    }

    fn device_count(&self) -> Result<u32> {
        Ok(self.contexts.len() as u32)
    }

    fn device_name(&self, device: u32) -> Result<String> {
        let mut name = [0u8; 256];
        // One byte less than there is, so that the text always ends.
        unsafe { self.driver.device_name(name.as_mut_ptr().cast(), name.len() as c_int - 1, device as c_int)? };
        let text = CStr::from_bytes_until_nul(&name).map_or_else(|_| "?".into(), CStr::to_string_lossy);
        Ok(text.into_owned())
    }

    fn attribute(&self, device: u32, attribute: Attribute) -> Result<i32> {
        let Some(number) = numbers::attribute(self.dialect, attribute) else { return Ok(1) };
        self.integer(|value| unsafe { self.driver.device_attribute(value, number, device as c_int) })
    }

    fn memory_info(&self, device: u32) -> Result<(usize, usize)> {
        self.enter(device)?;
        let (mut free, mut total) = (0, 0);
        unsafe { self.driver.memory_info(&raw mut free, &raw mut total)? };
        Ok((free, total))
    }

    fn device_synchronize(&self, device: u32) -> Result<()> {
        self.enter(device)?;
        unsafe { self.driver.synchronize() }
    }

    fn can_access_peer(&self, device: u32, peer: u32) -> Result<bool> {
        let can = self.integer(|can| unsafe { self.driver.can_access_peer(can, device as c_int, peer as c_int) })?;
        Ok(can != 0)
    }

    fn enable_peer_access(&self, device: u32, peer: u32) -> Result<()> {
        self.enter(device)?;
        let enabled = match self.dialect {
            Dialect::Cuda => unsafe { self.driver.enable_peer_context(self.context(peer)?, 0) },
            Dialect::Hip => unsafe { self.driver.enable_peer_device(peer as c_int, 0) },
        };
        match enabled {
            Err(error) if error.code() == Some(PEER_ACCESS_ALREADY_ENABLED) => Ok(()),
            enabled => enabled,
        }
    }

    fn allocate(&self, device: u32, bytes: usize, coherence: Coherence) -> Result<Address> {
        self.enter(device)?;
        let mut address = 0;
        let flags = match (self.dialect, coherence) {
            (Dialect::Cuda, _) | (_, Coherence::Coarse) => None,
            (Dialect::Hip, Coherence::Fine) => Some(HIP_FINE),
            (Dialect::Hip, Coherence::Uncached) => Some(HIP_UNCACHED),
        };
        match flags {
            None => unsafe { self.driver.allocate(&raw mut address, bytes)? },
            Some(flags) => unsafe { self.driver.allocate_with_flags(&raw mut address, bytes, flags)? },
        }
        Ok(address)
    }

    unsafe fn free(&self, device: u32, address: Address) -> Result<()> {
        self.enter(device)?;
        unsafe { self.driver.free(address) }
    }

    fn host_allocate(&self, device: u32, bytes: usize) -> Result<*mut u8> {
        self.enter(device)?;
        let flags = HOST_PORTABLE_MAPPED | if self.dialect == Dialect::Hip { HIP_HOST_COHERENT } else { 0 };
        let mut pointer = ptr::null_mut();
        unsafe { self.driver.host_allocate(&raw mut pointer, bytes, flags)? };
        Ok(pointer)
    }

    unsafe fn host_free(&self, device: u32, pointer: *mut u8) -> Result<()> {
        self.enter(device)?;
        unsafe { self.driver.host_free(pointer) }
    }

    fn granularity(&self, device: u32, coherence: Coherence) -> Result<usize> {
        self.enter(device)?;
        let properties = self.properties(device, coherence)?;
        let mut bytes = 0;
        let asked = unsafe { self.driver.granularity(&raw mut bytes, &properties, RECOMMENDED) };
        asked.map_err(|error| self.refusal(coherence, error))?;
        Ok(bytes)
    }

    fn allocation_create(&self, device: u32, bytes: usize, coherence: Coherence) -> Result<AllocationHandle> {
        self.enter(device)?;
        let properties = self.properties(device, coherence)?;
        let mut allocation = AllocationHandle(0);
        unsafe { self.driver.allocation_create(&raw mut allocation, bytes, &properties, 0)? };
        Ok(allocation)
    }

    unsafe fn allocation_release(&self, allocation: AllocationHandle) -> Result<()> {
        unsafe { self.driver.allocation_release(allocation) }
    }

    unsafe fn allocation_export(&self, allocation: AllocationHandle) -> Result<OwnedFd> {
        let fd = self.integer(|fd| unsafe { self.driver.allocation_export(fd, allocation, POSIX_FD, 0) })?;
        // The library made the descriptor for its caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn allocation_import(&self, device: u32, fd: BorrowedFd<'_>, _bytes: usize) -> Result<AllocationHandle> {
        self.enter(device)?;
        let mut number = fd.as_raw_fd();
        let by_value = match self.dialect {
            Dialect::Cuda => true,
            Dialect::Hip => {
                self.integer(|version| unsafe { self.driver.runtime_version(version) })? >= HIP_IMPORTS_BY_VALUE
            }
        };
        let handle = if by_value { number as usize as *mut c_void } else { (&raw mut number).cast() };
        let mut allocation = AllocationHandle(0);
        unsafe { self.driver.allocation_import(&raw mut allocation, handle, POSIX_FD)? };
        Ok(allocation)
    }

    fn address_reserve(&self, device: u32, bytes: usize) -> Result<Address> {
        self.enter(device)?;
        let mut address = 0;
        unsafe { self.driver.address_reserve(&raw mut address, bytes, 0, 0, 0)? };
        Ok(address)
    }

    unsafe fn address_free(&self, address: Address, bytes: usize) -> Result<()> {
        unsafe { self.driver.address_free(address, bytes) }
    }

    unsafe fn map(&self, address: Address, bytes: usize, allocation: AllocationHandle) -> Result<()> {
        unsafe { self.driver.map(address, bytes, 0, allocation, 0) }
    }

    unsafe fn unmap(&self, address: Address, bytes: usize) -> Result<()> {
        unsafe { self.driver.unmap(address, bytes) }
    }

    unsafe fn set_access(&self, device: u32, address: Address, bytes: usize) -> Result<()> {
        let description =
            AccessDescription { location: Location { kind: LOCATION_DEVICE, id: device as c_int }, flags: READ_WRITE };
        unsafe { self.driver.set_access(address, bytes, &description, 1) }
    }

    unsafe fn ipc_export(&self, device: u32, address: Address) -> Result<IpcBytes> {
        self.enter(device)?;
        let mut handle = IpcBytes([0; 64]);
        unsafe { self.driver.ipc_export(&raw mut handle, address)? };
        Ok(handle)
    }

    unsafe fn ipc_open(&self, device: u32, handle: IpcBytes) -> Result<Address> {
        self.enter(device)?;
        let mut address = 0;
        unsafe { self.driver.ipc_open(&raw mut address, handle, IPC_LAZY_PEER_ACCESS)? };
        Ok(address)
    }

    unsafe fn ipc_close(&self, device: u32, address: Address) -> Result<()> {
        self.enter(device)?;
        unsafe { self.driver.ipc_close(address) }
    }

    unsafe fn copy(&self, target: Address, source: Address, bytes: usize, stream: StreamHandle) -> Result<()> {
        self.enter(stream.device)?;
        match self.dialect {
            Dialect::Cuda => unsafe { self.driver.copy(target, source, bytes, stream.raw) },
            Dialect::Hip => unsafe { self.driver.copy_kind(target, source, bytes, COPY_DEFAULT, stream.raw) },
        }
    }

    unsafe fn set(&self, target: Address, value: u8, bytes: usize, stream: StreamHandle) -> Result<()> {
        self.enter(stream.device)?;
        unsafe { self.driver.set(target, value, bytes, stream.raw) }
    }

    fn stream_create(&self, device: u32) -> Result<StreamHandle> {
        self.enter(device)?;
        let mut raw = 0;
        unsafe { self.driver.stream_create(&raw mut raw, NON_BLOCKING)? };
        Ok(StreamHandle { raw, device })
    }

    unsafe fn stream_destroy(&self, stream: StreamHandle) -> Result<()> {
        self.enter(stream.device)?;
        unsafe { self.driver.stream_destroy(stream.raw) }
    }

    unsafe fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        self.enter(stream.device)?;
        unsafe { self.driver.stream_synchronize(stream.raw) }
    }

    unsafe fn stream_done(&self, stream: StreamHandle) -> Result<bool> {
        self.enter(stream.device)?;
        Self::done(unsafe { self.driver.stream_query(stream.raw) })
    }

    unsafe fn stream_write(&self, stream: StreamHandle, address: Address, value: u64) -> Result<()> {
        self.enter(stream.device)?;
        unsafe { self.driver.stream_write(stream.raw, address, value, 0) }
    }

    // HIP waits with a shader, on any memory; old runtimes take memory of hipMallocSignalMemory only, and refuse other
    // with code 1.
    unsafe fn stream_wait(&self, stream: StreamHandle, address: Address, value: u64) -> Result<()> {
        self.enter(stream.device)?;
        match self.dialect {
            Dialect::Cuda => unsafe { self.driver.stream_wait(stream.raw, address, value, WAIT_GREATER_OR_EQUAL) },
            Dialect::Hip => unsafe {
                self.driver.stream_wait_mask(stream.raw, address, value, WAIT_GREATER_OR_EQUAL, u64::MAX)
            },
        }
    }

    fn event_create(&self, device: u32) -> Result<EventHandle> {
        self.enter(device)?;
        let mut event = EventHandle(0);
        unsafe { self.driver.event_create(&raw mut event, 0)? };
        Ok(event)
    }

    unsafe fn event_destroy(&self, event: EventHandle) -> Result<()> {
        unsafe { self.driver.event_destroy(event) }
    }

    unsafe fn event_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.enter(stream.device)?;
        unsafe { self.driver.event_record(event, stream.raw) }
    }

    unsafe fn event_wait(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.enter(stream.device)?;
        unsafe { self.driver.event_wait(stream.raw, event, 0) }
    }

    unsafe fn event_synchronize(&self, event: EventHandle) -> Result<()> {
        unsafe { self.driver.event_synchronize(event) }
    }

    unsafe fn event_done(&self, event: EventHandle) -> Result<bool> {
        Self::done(unsafe { self.driver.event_query(event) })
    }

    unsafe fn event_elapsed(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        let mut milliseconds = 0.0;
        unsafe { self.driver.event_elapsed(&raw mut milliseconds, start, end)? };
        Ok(milliseconds)
    }

    unsafe fn capture_begin(&self, stream: StreamHandle) -> Result<()> {
        self.enter(stream.device)?;
        unsafe { self.driver.capture_begin(stream.raw, CAPTURE_THREAD_LOCAL) }
    }

    unsafe fn capture_end(&self, stream: StreamHandle) -> Result<GraphHandle> {
        self.enter(stream.device)?;
        let mut graph = GraphHandle(0);
        unsafe { self.driver.capture_end(stream.raw, &raw mut graph)? };
        Ok(graph)
    }

    unsafe fn graph_destroy(&self, graph: GraphHandle) -> Result<()> {
        unsafe { self.driver.graph_destroy(graph) }
    }

    unsafe fn graph_instantiate(&self, graph: GraphHandle) -> Result<GraphExecHandle> {
        let mut exec = GraphExecHandle(0);
        unsafe { self.driver.graph_instantiate(&raw mut exec, graph, 0)? };
        Ok(exec)
    }

    unsafe fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Result<()> {
        unsafe { self.driver.graph_exec_destroy(graph) }
    }

    unsafe fn graph_upload(&self, graph: GraphExecHandle, stream: StreamHandle) -> Result<()> {
        self.enter(stream.device)?;
        unsafe { self.driver.graph_upload(graph, stream.raw) }
    }

    unsafe fn graph_launch(&self, graph: GraphExecHandle, stream: StreamHandle) -> Result<()> {
        self.enter(stream.device)?;
        unsafe { self.driver.graph_launch(graph, stream.raw) }
    }

    fn module_load(&self, device: u32, image: &[u8]) -> Result<ModuleHandle> {
        self.enter(device)?;
        let mut module = ModuleHandle(0);
        unsafe { self.driver.module_load(&raw mut module, image.as_ptr().cast())? };
        Ok(module)
    }

    unsafe fn module_unload(&self, device: u32, module: ModuleHandle) -> Result<()> {
        self.enter(device)?;
        unsafe { self.driver.module_unload(module) }
    }

    unsafe fn function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle> {
        let mut function = FunctionHandle(0);
        unsafe { self.driver.module_function(&raw mut function, module, name.as_ptr())? };
        if self.dialect == Dialect::Cuda {
            // Lazy loading, the default since CUDA 12.2, may load at the first launch, which waits until the device is
            // idle: for ever, beside a kernel that spins.
            match unsafe { self.driver.function_load(function) } {
                // A driver before 12.4, which loads in the look-up.
                Ok(()) | Err(CallError::MissingSymbol { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(function)
    }

    unsafe fn argument_bytes(&self, module: ModuleHandle, name: &CStr) -> Result<Option<usize>> {
        match self.dialect {
            Dialect::Cuda => {
                let function = unsafe { self.function(module, name)? };
                let (mut offset, mut bytes) = (0, 0);
                match unsafe { self.driver.function_parameter(function, 0, &raw mut offset, &raw mut bytes) } {
                    Ok(()) => Ok(Some(bytes)),
                    // A driver before 12.4.
                    Err(CallError::MissingSymbol { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            }
            Dialect::Hip => {
                let mut symbol = name.to_bytes().to_vec();
                symbol.extend_from_slice(b"_argument_bytes\0");
                let (mut address, mut size, mut bytes) = (0, 0, 0u32);
                unsafe {
                    self.driver.module_global(&raw mut address, &raw mut size, module, symbol.as_ptr().cast())?;
                    self.driver.copy_from_device((&raw mut bytes).cast(), address, size_of::<u32>())?;
                }
                Ok(Some(bytes as usize))
            }
        }
    }

    unsafe fn allow_shared_bytes(&self, function: FunctionHandle, bytes: u32) -> Result<()> {
        match self.dialect {
            Dialect::Cuda => unsafe {
                self.driver.set_function_attribute(function, CUDA_MAX_DYNAMIC_SHARED, bytes as c_int)
            },
            // Nothing to ask for: a kernel of a module may use what the device has.
            Dialect::Hip => Ok(()),
        }
    }

    unsafe fn resident_blocks(&self, device: u32, function: FunctionHandle, grid: Grid) -> Result<u32> {
        self.enter(device)?;
        let blocks = self.integer(|blocks| unsafe {
            self.driver.resident_blocks(blocks, function, grid.threads as c_int, grid.shared_bytes as usize)
        })?;
        Ok(blocks.unsigned_abs())
    }

    unsafe fn launch(
        &self,
        function: FunctionHandle,
        grid: Grid,
        argument: *const c_void,
        stream: StreamHandle,
    ) -> Result<()> {
        self.enter(stream.device)?;
        let mut arguments = [argument.cast_mut()];
        unsafe {
            self.driver.launch(
                function,
                grid.blocks,
                1,
                1,
                grid.threads,
                1,
                1,
                grid.shared_bytes,
                stream.raw,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        }
    }

    fn compiler(&self) -> std::result::Result<String, CompileError> {
        Ok(self.rtc()?.version().to_owned())
    }

    fn target(&self, device: u32) -> Result<String> {
        let major = self.attribute(device, Attribute::Major)?;
        let minor = self.attribute(device, Attribute::Minor)?;
        match (self.dialect, major, minor) {
            (Dialect::Cuda, _, _) => Ok(format!("sm_{major}{minor}")),
            // HIP gives no stepping here; these two are the only products of their kind.
            (Dialect::Hip, 9, 4) => Ok("gfx942".to_owned()),
            (Dialect::Hip, 9, 5) => Ok("gfx950".to_owned()),
            (Dialect::Hip, _, _) => Err(self.unsupported(
                format!("compile for compute capability {major}.{minor}"),
                "the kernels are written for gfx942 (9.4) and gfx950 (9.5)",
            )),
        }
    }

    fn base_options(&self, target: &str) -> Vec<String> {
        base_options(self.dialect, target)
    }

    fn compile(&self, source: &Source, target: &str, options: &[String]) -> std::result::Result<Vec<u8>, CompileError> {
        self.rtc()?.compile(source, target, options)
    }
}
