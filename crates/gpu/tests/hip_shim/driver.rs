//! `hip*`: the runtime.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::{Mutex, MutexGuard};

use campanile_gpu::Coherence;
use campanile_gpu::calls::{
    AllocationHandle, Attribute, EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, Grid, IpcBytes,
    ModuleHandle,
};

use crate::{
    DEVICE, Failure, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_READY, Result, UNKNOWN, calls, device, exports,
    name_of, shim, stream, text_of,
};

// Numbers of `hip_runtime_api.h`, by its names; written here once more, so that the table of the crate is not believed.
const DEVICE_MALLOC_DEFAULT: c_uint = 0x0;
const DEVICE_MALLOC_FINEGRAINED: c_uint = 0x1;
const DEVICE_MALLOC_UNCACHED: c_uint = 0x3;
const HOST_MALLOC_PORTABLE_MAPPED_COHERENT: c_uint = 0x1 | 0x2 | 0x4000_0000;
const ALLOCATION_TYPE_PINNED: c_int = 0x1;
const ALLOCATION_TYPE_UNCACHED: c_int = 0x4000_0000;
const LOCATION_TYPE_DEVICE: c_int = 1;
const HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: c_int = 0x1;
const ACCESS_PROT_READ_WRITE: c_int = 3;
const STREAM_NON_BLOCKING: c_uint = 0x1;
const STREAM_CAPTURE_MODE_THREAD_LOCAL: c_int = 1;
const STREAM_WAIT_VALUE_GTE: c_uint = 0x0;
const MEMCPY_DEFAULT: c_int = 4;
const IPC_LAZY_ENABLE_PEER_ACCESS: c_uint = 0x01;

/// The first version that has `hipMemAllocationTypeUncached`. It is 7.0.2 in truth; the last figure of a version does not
/// tell that.
const HAS_UNCACHED: c_int = 70_000_000;
/// The first version that imports descriptors by value.
const IMPORTS_BY_VALUE: c_int = 70_100_000;

/// `hipMemAllocationProp`.
#[repr(C)]
pub struct AllocationProp {
    kind: c_int,
    handle_type: c_int,
    location_kind: c_int,
    location_id: c_int,
    win32: *mut c_void,
    flags: [u8; 4],
}

/// `hipMemAccessDesc`.
#[repr(C)]
pub struct AccessDesc {
    location_kind: c_int,
    location_id: c_int,
    flags: c_int,
}

/// Words that a module's globals are read from.
static GLOBALS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The device of each event: HIP records it on streams of that device only.
static EVENTS: Mutex<Option<HashMap<usize, u32>>> = Mutex::new(None);

fn locked<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    mutex.lock().map_err(|_| Failure::Code(UNKNOWN))
}

fn require(holds: bool) -> Result<()> {
    if holds { Ok(()) } else { Err(Failure::Code(INVALID_VALUE)) }
}

fn ready(done: bool) -> Result<()> {
    if done { Ok(()) } else { Err(Failure::Code(NOT_READY)) }
}

fn coherence(flags: c_uint) -> Result<Coherence> {
    match flags {
        DEVICE_MALLOC_DEFAULT => Ok(Coherence::Coarse),
        DEVICE_MALLOC_FINEGRAINED => Ok(Coherence::Fine),
        DEVICE_MALLOC_UNCACHED => Ok(Coherence::Uncached),
        _ => Err(Failure::Code(INVALID_VALUE)),
    }
}

/// Device and coherence of `hipMemAllocationProp`.
fn read_prop(prop: &AllocationProp) -> Result<(u32, Coherence)> {
    require(prop.handle_type == HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && prop.win32.is_null())?;
    require(prop.location_kind == LOCATION_TYPE_DEVICE && prop.flags == [0; 4])?;
    let coherence = match prop.kind {
        ALLOCATION_TYPE_PINNED => Coherence::Coarse,
        ALLOCATION_TYPE_UNCACHED if version() >= HAS_UNCACHED => Coherence::Uncached,
        _ => return Err(Failure::Code(INVALID_VALUE)),
    };
    // HIP takes memory of the current device, whatever the location says: they must be the same.
    require(prop.location_id as u32 == device())?;
    Ok((device(), coherence))
}

fn version() -> c_int {
    std::env::var("HIP_SHIM_VERSION").ok().and_then(|text| text.parse().ok()).unwrap_or(70_200_000)
}

exports! {
    fn hipInit(flags: c_uint) { require(flags == 0)?; shim()? }
    fn hipDriverGetVersion(out: *mut c_int) { *out = version() }
    fn hipRuntimeGetVersion(out: *mut c_int) { *out = version() }
    fn hipGetDeviceCount(out: *mut c_int) { *out = calls()?.device_count()? as c_int }
    fn hipDeviceGetName(name: *mut c_char, bytes: c_int, device: c_int) {
        let text = format!("HIP shim over {}\0", calls()?.device_name(device as u32)?);
        require(text.len() <= bytes as usize)?;
        name.copy_from_nonoverlapping(text.as_ptr().cast(), text.len())
    }
    fn hipDeviceGetAttribute(out: *mut c_int, attribute: c_int, device: c_int) {
        let attribute = match attribute {
            56 => Attribute::MaxThreads,
            87 => Attribute::WaveSize,
            63 => Attribute::Multiprocessors,
            74 => Attribute::MaxSharedBytes,
            67 => Attribute::PciBus,
            68 => Attribute::PciDevice,
            69 => Attribute::PciDomain,
            89 => Attribute::SharesByDescriptor,
            10013 => Attribute::StreamWaitsForMemory,
            // It gives itself out as gfx942, or gfx950.
            23 => { *out = 9; return Ok(()); }
            61 => { *out = if crate::rtc::target() == "gfx950" { 5 } else { 4 }; return Ok(()); }
            _ => return Err(Failure::Code(INVALID_VALUE)),
        };
        *out = calls()?.attribute(device as u32, attribute)?
    }
    fn hipSetDevice(device: c_int) {
        require((device as u32) < calls()?.device_count()?)?;
        DEVICE.set(device as u32)
    }
    fn hipDeviceSynchronize() { calls()?.device_synchronize(device())? }
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) { (*free, *total) = calls()?.memory_info(device())? }

    fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        let apart = std::env::var("HIP_SHIM_APART").ok().and_then(|text| text.parse().ok());
        let together = apart.is_none_or(|apart: c_int| apart != device && apart != peer);
        *can = c_int::from(together && calls()?.can_access_peer(device as u32, peer as u32)?)
    }
    fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) {
        require(flags == 0)?;
        calls()?.enable_peer_access(device(), peer as u32)?
    }

    fn hipMalloc(out: *mut u64, bytes: usize) { *out = calls()?.allocate(device(), bytes, Coherence::Coarse)? }
    fn hipExtMallocWithFlags(out: *mut u64, bytes: usize, flags: c_uint) {
        *out = calls()?.allocate(device(), bytes, coherence(flags)?)?
    }
    fn hipFree(address: u64) { calls()?.free(device(), address)? }
    fn hipHostMalloc(out: *mut *mut u8, bytes: usize, flags: c_uint) {
        require(flags == HOST_MALLOC_PORTABLE_MAPPED_COHERENT)?;
        *out = calls()?.host_allocate(device(), bytes)?
    }
    fn hipHostFree(pointer: *mut u8) { calls()?.host_free(device(), pointer)? }

    fn hipMemGetAllocationGranularity(out: *mut usize, prop: *const AllocationProp, option: c_int) {
        require(option == 0 || option == 1)?;
        let (device, coherence) = read_prop(&*prop)?;
        *out = calls()?.granularity(device, coherence)?
    }
    fn hipMemCreate(out: *mut AllocationHandle, bytes: usize, prop: *const AllocationProp, flags: u64) {
        require(flags == 0)?;
        let (device, coherence) = read_prop(&*prop)?;
        *out = calls()?.allocation_create(device, bytes, coherence)?
    }
    fn hipMemRelease(allocation: AllocationHandle) { calls()?.allocation_release(allocation)? }
    fn hipMemExportToShareableHandle(out: *mut c_int, allocation: AllocationHandle, kind: c_int, flags: u64) {
        require(kind == HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && flags == 0)?;
        *out = calls()?.allocation_export(allocation)?.into_raw_fd()
    }
    fn hipMemImportFromShareableHandle(out: *mut AllocationHandle, handle: *mut c_void, kind: c_int) {
        require(kind == HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !handle.is_null())?;
        let number = if version() >= IMPORTS_BY_VALUE { handle as usize as c_int } else { *handle.cast::<c_int>() };
        let fd = BorrowedFd::borrow_raw(number);
        // HIP knows the size from the descriptor.
        let bytes = std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let bytes = bytes.map_err(|_| Failure::Code(INVALID_VALUE))?.len() as usize;
        *out = calls()?.allocation_import(device(), fd, bytes)?
    }
    fn hipMemAddressReserve(out: *mut u64, bytes: usize, alignment: usize, wanted: u64, flags: u64) {
        require(alignment == 0 && wanted == 0 && flags == 0)?;
        *out = calls()?.address_reserve(device(), bytes)?
    }
    fn hipMemAddressFree(address: u64, bytes: usize) { calls()?.address_free(address, bytes)? }
    fn hipMemMap(address: u64, bytes: usize, offset: usize, allocation: AllocationHandle, flags: u64) {
        require(offset == 0 && flags == 0)?;
        calls()?.map(address, bytes, allocation)?
    }
    fn hipMemUnmap(address: u64, bytes: usize) { calls()?.unmap(address, bytes)? }
    fn hipMemSetAccess(address: u64, bytes: usize, descriptions: *const AccessDesc, count: usize) {
        for description in std::slice::from_raw_parts(descriptions, count) {
            require(description.location_kind == LOCATION_TYPE_DEVICE && description.flags == ACCESS_PROT_READ_WRITE)?;
            calls()?.set_access(description.location_id as u32, address, bytes)?;
        }
    }

    fn hipIpcGetMemHandle(out: *mut IpcBytes, address: u64) { *out = calls()?.ipc_export(device(), address)? }
    fn hipIpcOpenMemHandle(out: *mut u64, handle: IpcBytes, flags: c_uint) {
        require(flags == IPC_LAZY_ENABLE_PEER_ACCESS)?;
        *out = calls()?.ipc_open(device(), handle)?
    }
    fn hipIpcCloseMemHandle(address: u64) { calls()?.ipc_close(device(), address)? }

    fn hipMemcpyAsync(target: u64, source: u64, bytes: usize, kind: c_int, raw: usize) {
        require(kind == MEMCPY_DEFAULT)?;
        calls()?.copy(target, source, bytes, stream(raw)?)?
    }
    fn hipMemcpyDtoH(target: *mut u8, source: u64, bytes: usize) {
        // Only globals are read this way.
        let known = locked(&GLOBALS)?.contains(&(source as usize));
        require(known && bytes == size_of::<u32>())?;
        target.copy_from_nonoverlapping(source as *const u8, bytes)
    }
    fn hipMemsetD8Async(target: u64, value: u8, bytes: usize, raw: usize) {
        calls()?.set(target, value, bytes, stream(raw)?)?
    }

    fn hipStreamCreateWithFlags(out: *mut usize, flags: c_uint) {
        require(flags == STREAM_NON_BLOCKING)?;
        let created = calls()?.stream_create(device())?;
        locked(&shim()?.streams)?.insert(created.raw, created.device);
        *out = created.raw
    }
    fn hipStreamDestroy(raw: usize) {
        let handle = stream(raw)?;
        locked(&shim()?.streams)?.remove(&raw);
        calls()?.stream_destroy(handle)?
    }
    fn hipStreamSynchronize(raw: usize) { calls()?.stream_synchronize(stream(raw)?)? }
    fn hipStreamQuery(raw: usize) { ready(calls()?.stream_done(stream(raw)?)?)? }
    fn hipStreamWriteValue64(raw: usize, address: u64, value: u64, flags: c_uint) {
        require(flags == 0)?;
        calls()?.stream_write(stream(raw)?, address, value)?
    }
    fn hipStreamWaitValue64(raw: usize, address: u64, value: u64, flags: c_uint, mask: u64) {
        require(flags == STREAM_WAIT_VALUE_GTE && mask == u64::MAX)?;
        calls()?.stream_wait(stream(raw)?, address, value)?
    }

    fn hipEventCreateWithFlags(out: *mut EventHandle, flags: c_uint) {
        require(flags == 0)?;
        *out = calls()?.event_create(device())?;
        locked(&EVENTS)?.get_or_insert_default().insert(out.read().0, device());
    }
    fn hipEventDestroy(event: EventHandle) {
        calls()?.event_destroy(event)?;
        locked(&EVENTS)?.get_or_insert_default().remove(&event.0);
    }
    fn hipEventRecord(event: EventHandle, raw: usize) {
        let stream = stream(raw)?;
        let of = locked(&EVENTS)?.get_or_insert_default().get(&event.0).copied();
        if of != Some(stream.device) {
            return Err(Failure::Code(INVALID_HANDLE));
        }
        calls()?.event_record(event, stream)?
    }
    fn hipStreamWaitEvent(raw: usize, event: EventHandle, flags: c_uint) {
        require(flags == 0)?;
        calls()?.event_wait(event, stream(raw)?)?
    }
    fn hipEventSynchronize(event: EventHandle) { calls()?.event_synchronize(event)? }
    fn hipEventQuery(event: EventHandle) { ready(calls()?.event_done(event)?)? }
    fn hipEventElapsedTime(out: *mut f32, start: EventHandle, end: EventHandle) {
        *out = calls()?.event_elapsed(start, end)?
    }

    fn hipStreamBeginCapture(raw: usize, mode: c_int) {
        require(mode == STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        calls()?.capture_begin(stream(raw)?)?
    }
    fn hipStreamEndCapture(raw: usize, out: *mut GraphHandle) { *out = calls()?.capture_end(stream(raw)?)? }
    fn hipGraphDestroy(graph: GraphHandle) { calls()?.graph_destroy(graph)? }
    fn hipGraphInstantiateWithFlags(out: *mut GraphExecHandle, graph: GraphHandle, flags: u64) {
        require(flags == 0)?;
        *out = calls()?.graph_instantiate(graph)?
    }
    fn hipGraphUpload(exec: GraphExecHandle, raw: usize) { calls()?.graph_upload(exec, stream(raw)?)? }
    fn hipGraphExecDestroy(exec: GraphExecHandle) { calls()?.graph_exec_destroy(exec)? }
    fn hipGraphLaunch(exec: GraphExecHandle, raw: usize) { calls()?.graph_launch(exec, stream(raw)?)? }

    fn hipModuleLoadData(out: *mut ModuleHandle, image: *const u8) {
        let image = crate::rtc::image(image).ok_or(Failure::Code(INVALID_VALUE))?;
        *out = calls()?.module_load(device(), &image)?
    }
    fn hipModuleUnload(module: ModuleHandle) { calls()?.module_unload(device(), module)? }
    fn hipModuleGetFunction(out: *mut FunctionHandle, module: ModuleHandle, name: *const c_char) {
        *out = calls()?.function(module, CStr::from_ptr(name))?
    }
    fn hipModuleGetGlobal(out: *mut u64, bytes: *mut usize, module: ModuleHandle, name: *const c_char) {
        let name = CStr::from_ptr(name).to_bytes();
        let kernel = name.strip_suffix(b"_argument_bytes").ok_or(Failure::Code(NOT_FOUND))?;
        let kernel = std::ffi::CString::new(kernel).map_err(|_| Failure::Code(INVALID_VALUE))?;
        let size = calls()?.argument_bytes(module, &kernel)?.ok_or(Failure::Code(NOT_FOUND))?;
        // A word for each look-up, to the end of the process.
        let word = Box::into_raw(Box::new(size as u32)) as usize;
        locked(&GLOBALS)?.push(word);
        (*out, *bytes) = (word as u64, size_of::<u32>())
    }
    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        out: *mut c_int, function: FunctionHandle, threads: c_int, shared_bytes: usize,
    ) {
        let grid = Grid { blocks: 1, threads: threads as u32, shared_bytes: shared_bytes as u32 };
        calls()?.allow_shared_bytes(function, grid.shared_bytes)?;
        *out = calls()?.resident_blocks(device(), function, grid)? as c_int
    }
    fn hipModuleLaunchKernel(
        function: FunctionHandle,
        blocks: c_uint, blocks_y: c_uint, blocks_z: c_uint,
        threads: c_uint, threads_y: c_uint, threads_z: c_uint,
        shared_bytes: c_uint, raw: usize,
        arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        require(blocks_y == 1 && blocks_z == 1 && threads_y == 1 && threads_z == 1 && extra.is_null())?;
        calls()?.launch(function, Grid { blocks, threads, shared_bytes }, *arguments, stream(raw)?)?
    }

    fn hipDrvGetErrorName(code: c_int, out: *mut *const c_char) { *out = name_of(code) }
    fn hipDrvGetErrorString(code: c_int, out: *mut *const c_char) { *out = text_of(code) }
}
