//! The vendors' C calls: two tables of symbols, of the driver (or HIP runtime) and of the run-time compiler.
//!
//! CUDA's driver calls and HIP's have the same signatures under other names, but for the few that [`super`] adapts, so
//! one table serves both: each line is a method, the two names, and the arguments. A method looks its symbol up in what
//! was loaded, calls it, and turns a code other than 0 into an error with the arguments in it. A symbol that a library
//! does not have is an error when it is called, and no earlier: a missing call that nobody needs harms nobody.
//!
//! Only calls whose signature no version changed are used; the `_v2` suffixes name the 64-bit forms of CUDA 3.2 and
//! later. No struct whose layout depends on a version (`cudaDeviceProp`, `hipDeviceProp_t`) is passed; those that are
//! passed are references here, so that an error shows what is in them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::Dialect;
use super::numbers::NOT_READY;
use crate::CallError;
use crate::calls::{
    Address, AllocationHandle, EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, IpcBytes, ModuleHandle,
};
use crate::library::Library;

/// `CUmemLocation`, `hipMemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Location {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

/// `CUmemAllocationProp`, `hipMemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct AllocationProperties {
    pub(super) kind: c_int,
    pub(super) handle_types: c_int,
    pub(super) location: Location,
    pub(super) win32: *mut c_void,
    pub(super) flags: [u8; 8],
}

/// `CUmemAccessDesc`, `hipMemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct AccessDescription {
    pub(super) location: Location,
    pub(super) flags: c_int,
}

/// A compilation in progress, `nvrtcProgram` or `hiprtcProgram`.
pub(super) type Program = *mut c_void;

/// Makes a table: a struct of symbols, and a method for each. `None` is a call that the dialect does not have.
macro_rules! table {
    (
        $(#[$doc:meta])* $table:ident, $texts:ident;
        $($name:ident: $cuda:literal | $hip:literal ($($argument:ident: $type:ty),*);)+
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $table {
            library: String,
            texts: Texts,
            $($name: (&'static str, Option<unsafe extern "C" fn($($type),*) -> c_int>),)+
        }

        impl $table {
            /// Looks all symbols up.
            pub(super) fn new(library: &Library, dialect: Dialect) -> Self {
                Self {
                    library: library.name().to_owned(),
                    texts: Texts::$texts(library, dialect),
                    $($name: {
                        let symbol = match dialect { Dialect::Cuda => $cuda, Dialect::Hip => $hip };
                        // SAFETY: the signature is that of the vendor's documentation of this symbol.
                        (symbol, unsafe { library.function(symbol) })
                    },)+
                }
            }

            /// Whether the library has the first of the calls.
            #[allow(dead_code, reason = "asked of the compiler, which may lie in the runtime's library")]
            pub(super) fn is_there(&self) -> bool {
                [$(self.$name.1.is_some()),*][0]
            }

            $(
                /// # Safety
                /// That of the vendor's call.
                #[allow(clippy::too_many_arguments, reason = "the vendor's signature")]
                pub(super) unsafe fn $name(&self, $($argument: $type),*) -> Result<(), CallError> {
                    let (symbol, function) = self.$name;
                    let Some(function) = function else {
                        return Err(CallError::MissingSymbol { library: self.library.clone(), symbol });
                    };
                    // SAFETY: the caller's promise; the signature is the table's.
                    let code = unsafe { function($($argument),*) };
                    if code == 0 {
                        return Ok(());
                    }
                    if code == NOT_READY {
                        // An answer rather than an error, and asked for often: it allocates nothing.
                        return Err(CallError::Failed {
                            call: symbol,
                            arguments: String::new(),
                            code,
                            text: String::new(),
                        });
                    }
                    let arguments: &[String] = &[$(format!("{} {:?}", stringify!($argument), $argument)),*];
                    Err(CallError::Failed {
                        call: symbol,
                        arguments: arguments.join(", "),
                        code,
                        text: self.texts.of(code),
                    })
                }
            )+
        }
    };
}

table! {
    /// The driver or runtime.
    Driver, driver;
    init: "cuInit" | "hipInit" (flags: c_uint);
    driver_version: "cuDriverGetVersion" | "hipDriverGetVersion" (version: *mut c_int);
    runtime_version: "" | "hipRuntimeGetVersion" (version: *mut c_int);
    device_count: "cuDeviceGetCount" | "hipGetDeviceCount" (count: *mut c_int);
    device_name: "cuDeviceGetName" | "hipDeviceGetName" (name: *mut c_char, bytes: c_int, device: c_int);
    device_attribute: "cuDeviceGetAttribute" | "hipDeviceGetAttribute"
        (value: *mut c_int, attribute: c_int, device: c_int);
    primary_context: "cuDevicePrimaryCtxRetain" | "" (context: *mut usize, device: c_int);
    set_context: "cuCtxSetCurrent" | "" (context: usize);
    set_device: "" | "hipSetDevice" (device: c_int);
    synchronize: "cuCtxSynchronize" | "hipDeviceSynchronize" ();
    memory_info: "cuMemGetInfo_v2" | "hipMemGetInfo" (free: *mut usize, total: *mut usize);

    can_access_peer: "cuDeviceCanAccessPeer" | "hipDeviceCanAccessPeer"
        (can: *mut c_int, device: c_int, peer: c_int);
    enable_peer_context: "cuCtxEnablePeerAccess" | "" (context: usize, flags: c_uint);
    enable_peer_device: "" | "hipDeviceEnablePeerAccess" (peer: c_int, flags: c_uint);

    allocate: "cuMemAlloc_v2" | "hipMalloc" (address: *mut Address, bytes: usize);
    allocate_with_flags: "" | "hipExtMallocWithFlags" (address: *mut Address, bytes: usize, flags: c_uint);
    free: "cuMemFree_v2" | "hipFree" (address: Address);
    host_allocate: "cuMemHostAlloc" | "hipHostMalloc" (pointer: *mut *mut u8, bytes: usize, flags: c_uint);
    host_free: "cuMemFreeHost" | "hipHostFree" (pointer: *mut u8);

    granularity: "cuMemGetAllocationGranularity" | "hipMemGetAllocationGranularity"
        (bytes: *mut usize, properties: &AllocationProperties, option: c_int);
    allocation_create: "cuMemCreate" | "hipMemCreate"
        (allocation: *mut AllocationHandle, bytes: usize, properties: &AllocationProperties, flags: u64);
    allocation_release: "cuMemRelease" | "hipMemRelease" (allocation: AllocationHandle);
    allocation_export: "cuMemExportToShareableHandle" | "hipMemExportToShareableHandle"
        (fd: *mut c_int, allocation: AllocationHandle, kind: c_int, flags: u64);
    allocation_import: "cuMemImportFromShareableHandle" | "hipMemImportFromShareableHandle"
        (allocation: *mut AllocationHandle, fd: *mut c_void, kind: c_int);
    address_reserve: "cuMemAddressReserve" | "hipMemAddressReserve"
        (address: *mut Address, bytes: usize, alignment: usize, wanted: Address, flags: u64);
    address_free: "cuMemAddressFree" | "hipMemAddressFree" (address: Address, bytes: usize);
    map: "cuMemMap" | "hipMemMap"
        (address: Address, bytes: usize, offset: usize, allocation: AllocationHandle, flags: u64);
    unmap: "cuMemUnmap" | "hipMemUnmap" (address: Address, bytes: usize);
    set_access: "cuMemSetAccess" | "hipMemSetAccess"
        (address: Address, bytes: usize, description: &AccessDescription, count: usize);

    ipc_export: "cuIpcGetMemHandle" | "hipIpcGetMemHandle" (handle: *mut IpcBytes, address: Address);
    ipc_open: "cuIpcOpenMemHandle_v2" | "hipIpcOpenMemHandle"
        (address: *mut Address, handle: IpcBytes, flags: c_uint);
    ipc_close: "cuIpcCloseMemHandle" | "hipIpcCloseMemHandle" (address: Address);

    copy: "cuMemcpyAsync" | "" (target: Address, source: Address, bytes: usize, stream: usize);
    copy_kind: "" | "hipMemcpyAsync"
        (target: Address, source: Address, bytes: usize, kind: c_int, stream: usize);
    set: "cuMemsetD8Async" | "hipMemsetD8Async" (target: Address, value: u8, bytes: usize, stream: usize);

    stream_create: "cuStreamCreate" | "hipStreamCreateWithFlags" (stream: *mut usize, flags: c_uint);
    stream_destroy: "cuStreamDestroy_v2" | "hipStreamDestroy" (stream: usize);
    stream_synchronize: "cuStreamSynchronize" | "hipStreamSynchronize" (stream: usize);
    stream_query: "cuStreamQuery" | "hipStreamQuery" (stream: usize);
    stream_write: "cuStreamWriteValue64_v2" | "hipStreamWriteValue64"
        (stream: usize, address: Address, value: u64, flags: c_uint);
    stream_wait: "cuStreamWaitValue64_v2" | ""
        (stream: usize, address: Address, value: u64, flags: c_uint);
    stream_wait_mask: "" | "hipStreamWaitValue64"
        (stream: usize, address: Address, value: u64, flags: c_uint, mask: u64);

    event_create: "cuEventCreate" | "hipEventCreateWithFlags" (event: *mut EventHandle, flags: c_uint);
    event_destroy: "cuEventDestroy_v2" | "hipEventDestroy" (event: EventHandle);
    event_record: "cuEventRecord" | "hipEventRecord" (event: EventHandle, stream: usize);
    event_wait: "cuStreamWaitEvent" | "hipStreamWaitEvent" (stream: usize, event: EventHandle, flags: c_uint);
    event_synchronize: "cuEventSynchronize" | "hipEventSynchronize" (event: EventHandle);
    event_query: "cuEventQuery" | "hipEventQuery" (event: EventHandle);
    event_elapsed: "cuEventElapsedTime" | "hipEventElapsedTime"
        (milliseconds: *mut f32, start: EventHandle, end: EventHandle);

    capture_begin: "cuStreamBeginCapture_v2" | "hipStreamBeginCapture" (stream: usize, mode: c_int);
    capture_end: "cuStreamEndCapture" | "hipStreamEndCapture" (stream: usize, graph: *mut GraphHandle);
    graph_destroy: "cuGraphDestroy" | "hipGraphDestroy" (graph: GraphHandle);
    graph_instantiate: "cuGraphInstantiateWithFlags" | "hipGraphInstantiateWithFlags"
        (exec: *mut GraphExecHandle, graph: GraphHandle, flags: u64);
    graph_upload: "cuGraphUpload" | "hipGraphUpload" (exec: GraphExecHandle, stream: usize);
    graph_exec_destroy: "cuGraphExecDestroy" | "hipGraphExecDestroy" (exec: GraphExecHandle);
    graph_launch: "cuGraphLaunch" | "hipGraphLaunch" (exec: GraphExecHandle, stream: usize);

    module_load: "cuModuleLoadData" | "hipModuleLoadData" (module: *mut ModuleHandle, image: *const c_void);
    module_unload: "cuModuleUnload" | "hipModuleUnload" (module: ModuleHandle);
    module_function: "cuModuleGetFunction" | "hipModuleGetFunction"
        (function: *mut FunctionHandle, module: ModuleHandle, name: *const c_char);
    function_load: "cuFuncLoad" | "" (function: FunctionHandle);
    module_global: "cuModuleGetGlobal_v2" | "hipModuleGetGlobal"
        (address: *mut Address, bytes: *mut usize, module: ModuleHandle, name: *const c_char);
    function_parameter: "cuFuncGetParamInfo" | ""
        (function: FunctionHandle, index: usize, offset: *mut usize, bytes: *mut usize);
    set_function_attribute: "cuFuncSetAttribute" | "" (function: FunctionHandle, attribute: c_int, value: c_int);
    resident_blocks:
        "cuOccupancyMaxActiveBlocksPerMultiprocessor" | "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"
        (blocks: *mut c_int, function: FunctionHandle, threads: c_int, shared_bytes: usize);
    copy_from_device: "cuMemcpyDtoH_v2" | "hipMemcpyDtoH" (target: *mut c_void, source: Address, bytes: usize);
    launch: "cuLaunchKernel" | "hipModuleLaunchKernel" (
        function: FunctionHandle,
        blocks: c_uint, blocks_y: c_uint, blocks_z: c_uint,
        threads: c_uint, threads_y: c_uint, threads_z: c_uint,
        shared_bytes: c_uint, stream: usize,
        arguments: *mut *mut c_void, extra: *mut *mut c_void
    );
}

table! {
    /// The run-time compiler.
    Rtc, compiler;
    version: "nvrtcVersion" | "hiprtcVersion" (major: *mut c_int, minor: *mut c_int);
    create: "nvrtcCreateProgram" | "hiprtcCreateProgram" (
        program: *mut Program, source: *const c_char, name: *const c_char, headers: c_int,
        header_texts: *const *const c_char, header_names: *const *const c_char
    );
    destroy: "nvrtcDestroyProgram" | "hiprtcDestroyProgram" (program: *mut Program);
    compile: "nvrtcCompileProgram" | "hiprtcCompileProgram"
        (program: Program, count: c_int, options: *const *const c_char);
    log_bytes: "nvrtcGetProgramLogSize" | "hiprtcGetProgramLogSize" (program: Program, bytes: *mut usize);
    log: "nvrtcGetProgramLog" | "hiprtcGetProgramLog" (program: Program, text: *mut c_char);
    code_bytes: "nvrtcGetCUBINSize" | "hiprtcGetCodeSize" (program: Program, bytes: *mut usize);
    code: "nvrtcGetCUBIN" | "hiprtcGetCode" (program: Program, code: *mut c_char);
}

/// What a library says of its codes.
#[derive(Debug)]
struct Texts {
    /// `(code, &mut text) -> status`: the name, then a sentence.
    out: [Option<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>; 2],
    /// `code -> text`.
    returned: Option<unsafe extern "C" fn(c_int) -> *const c_char>,
}

impl Texts {
    fn driver(library: &Library, dialect: Dialect) -> Self {
        let (out, returned) = match dialect {
            Dialect::Cuda => (["cuGetErrorName", "cuGetErrorString"], ""),
            Dialect::Hip => (["hipDrvGetErrorName", "hipDrvGetErrorString"], "hipGetErrorString"),
        };
        // SAFETY: the signatures are those of the vendors' documentation.
        unsafe { Self { out: out.map(|symbol| library.function(symbol)), returned: library.function(returned) } }
    }

    fn compiler(library: &Library, dialect: Dialect) -> Self {
        let returned = match dialect {
            Dialect::Cuda => "nvrtcGetErrorString",
            Dialect::Hip => "hiprtcGetErrorString",
        };
        // SAFETY: the signature is that of the vendors' documentation.
        Self { out: [None, None], returned: unsafe { library.function(returned) } }
    }

    fn of(&self, code: c_int) -> String {
        let mut texts = Vec::new();
        for text in self.out.into_iter().flatten() {
            let mut pointer: *const c_char = std::ptr::null();
            // SAFETY: the library writes a pointer to a static string, or leaves it null.
            if unsafe { text(code, &raw mut pointer) } == 0 && !pointer.is_null() {
                // SAFETY: a static string of the library.
                texts.push(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned());
            }
        }
        if texts.is_empty()
            && let Some(text) = self.returned
        {
            // SAFETY: takes any code; returns a static string or null.
            let pointer = unsafe { text(code) };
            if !pointer.is_null() {
                // SAFETY: a static string of the library.
                texts.push(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned());
            }
        }
        if texts.is_empty() { "the library has no text for it".to_owned() } else { texts.join(": ") }
    }
}
