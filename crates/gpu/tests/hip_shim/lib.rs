//! A shim of HIP, **test code**: a `libamdhip64.so` with hipRTC inside, that forwards to another call table.
//!
//! It lets the HIP side of the table run for real where there is no AMD GPU: on the emulator (the default), or on an
//! NVIDIA GPU with `HIP_SHIM_BACKEND=cuda`. It proves names, signatures, argument order and struct layouts, and everything
//! above the table. What AMD's runtime refuses as far as its sources tell, it refuses too: memory of a device that is not
//! the current one, events on streams of another device, numbers that are not HIP's. How fast AMD's runtime is, what its
//! caches show and which of its streams wait for each other, it does not tell.
//!
//! | variable | |
//! |---|---|
//! | `HIP_SHIM_BACKEND` | `emulator` or `cuda` |
//! | `HIP_SHIM_TARGET` | the GPU that it gives itself out as, `gfx942` by default, or `gfx950` |
//! | `HIP_SHIM_VERSION` | what `hipRuntimeGetVersion` says, 70200000 by default; before 70100000 descriptors are imported by pointer, before 70000000 there is no uncached memory to share, as with HIP |
//! | `HIP_SHIM_APART` | a device without peer access |

#![allow(missing_docs, reason = "the functions are HIP's, and are documented there")]
#![allow(non_snake_case, reason = "HIP's names")]
#![allow(clippy::missing_safety_doc, reason = "the contracts are HIP's")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "each hands a pointer on under the contract of HIP's call")]

mod driver;
mod rtc;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock};

use campanile_gpu::calls::{Calls, StreamHandle};
use campanile_gpu::{Backend, CallError, Emulation, Gpu, Settings};

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NOT_INITIALIZED: c_int = 3;
const INVALID_DEVICE: c_int = 101;
const INVALID_HANDLE: c_int = 400;
const NOT_FOUND: c_int = 500;
const NOT_READY: c_int = 600;
const UNKNOWN: c_int = 999;

/// What stands behind the shim.
struct Shim {
    gpu: Gpu,
    /// The device of each stream, which HIP's handles do not say.
    streams: Mutex<HashMap<usize, u32>>,
}

static SHIM: OnceLock<Result<Shim, String>> = OnceLock::new();

thread_local! {
    static DEVICE: Cell<u32> = const { Cell::new(0) };
    /// Codes and texts of this thread's errors: the strings must live on.
    static TEXTS: RefCell<HashMap<c_int, CString>> = RefCell::default();
}

/// Why a call fails: a code of HIP, or an error of the table behind.
enum Failure {
    Code(c_int),
    Call(CallError),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

type Result<T, E = Failure> = std::result::Result<T, E>;

fn shim() -> Result<&'static Shim> {
    let opened = SHIM.get_or_init(|| {
        let backend = std::env::var("HIP_SHIM_BACKEND");
        let gpu = match backend.as_deref() {
            Ok("cuda") => Gpu::open(Backend::Cuda, &Settings::default()),
            _ => Gpu::emulator(Emulation::default(), &Settings::default()),
        };
        Ok(Shim { gpu: gpu.map_err(|error| error.to_string())?, streams: Mutex::default() })
    });
    opened.as_ref().map_err(|reason| {
        eprintln!("HIP shim: {reason}");
        Failure::Code(NOT_INITIALIZED)
    })
}

fn calls() -> Result<&'static dyn Calls> {
    Ok(shim()?.gpu.calls())
}

fn device() -> u32 {
    DEVICE.get()
}

fn stream(raw: usize) -> Result<StreamHandle> {
    let streams = shim()?.streams.lock().map_err(|_| Failure::Code(UNKNOWN))?;
    let device = *streams.get(&raw).ok_or(Failure::Code(INVALID_HANDLE))?;
    Ok(StreamHandle { raw, device })
}

/// Runs a call, and gives its code; the text is kept for `hipDrvGetErrorString`.
fn code_of(call: impl FnOnce() -> Result<()>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(Failure::Code(code))) => {
            TEXTS.with_borrow_mut(|texts| texts.remove(&code));
            code
        }
        Ok(Err(Failure::Call(error))) => {
            let code = error.code().unwrap_or(UNKNOWN);
            let text = CString::new(format!("the shim's backend says: {error}")).unwrap_or_default();
            TEXTS.with_borrow_mut(|texts| texts.insert(code, text));
            code
        }
        Err(_) => UNKNOWN,
    }
}

/// The last text of a code on this thread.
fn text_of(code: c_int) -> *const c_char {
    TEXTS.with_borrow(|texts| texts.get(&code).map_or(c"refused by the shim".as_ptr(), |text| text.as_ptr()))
}

/// HIP's name of a code.
fn name_of(code: c_int) -> *const c_char {
    let name = match code {
        SUCCESS => c"hipSuccess",
        INVALID_VALUE => c"hipErrorInvalidValue",
        OUT_OF_MEMORY => c"hipErrorOutOfMemory",
        NOT_INITIALIZED => c"hipErrorNotInitialized",
        INVALID_DEVICE => c"hipErrorInvalidDevice",
        INVALID_HANDLE => c"hipErrorInvalidHandle",
        NOT_FOUND => c"hipErrorNotFound",
        NOT_READY => c"hipErrorNotReady",
        _ => c"hipErrorUnknown",
    };
    name.as_ptr()
}

/// Defines exported functions that return HIP's codes.
macro_rules! exports {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)+) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            #[allow(unused_unsafe, reason = "not each of them touches memory")]
            crate::code_of(|| unsafe { $body; Ok(()) })
        }
    )+};
}
pub(crate) use exports;
