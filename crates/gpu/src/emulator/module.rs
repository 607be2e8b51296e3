//! Modules of the emulator: shared objects, loaded from memory.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{Emulation, INVALID_IMAGE, LAUNCH_FAILED, NOT_FOUND, failed};
use crate::CallError;
use crate::calls::{Grid, Result};
use crate::library::said;

/// `EmulatorLaunch` of `kernels/emulator/runtime.h`.
#[repr(C)]
struct Launch {
    kernel: EntryPoint,
    arguments: *const c_void,
    blocks: u32,
    threads: u32,
    shared_bytes: usize,
    schedule: u64,
    message: *mut c_char,
    message_bytes: usize,
    resident: u32,
}

type EntryPoint = unsafe extern "C" fn(*const c_void);
type LaunchFunction = unsafe extern "C" fn(*const Launch) -> c_int;

/// A loaded shared object.
#[derive(Debug)]
pub(super) struct Module {
    library: Library,
    launch: LaunchFunction,
    /// The loader knows libraries by their path, in which the descriptor is a number: it stays taken as long as the
    /// library is loaded. Dropped after it.
    _file: File,
}

impl Module {
    /// Loads it from memory, as the other backends do; the loader wants a path, which a memfd has.
    pub(super) fn load(image: &[u8]) -> Result<Self> {
        let refuse = |text: String| failed("module_load", format!("bytes {}", image.len()), INVALID_IMAGE, text);
        let fd = memfd_create("emulated-gpu-module", MemfdFlags::CLOEXEC).map_err(|errno| refuse(errno.to_string()))?;
        let mut file = File::from(fd);
        file.write_all(image).map_err(|error| refuse(error.to_string()))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: an image that the emulator compiled; its initialisers are those of the C++ library.
        let library =
            unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| refuse(said(&error)))?;
        // SAFETY: every image contains the runtime, which defines it with this signature.
        let launch = unsafe { library.get::<LaunchFunction>("emulator_launch") }
            .map(|symbol| *symbol)
            .map_err(|error| refuse(said(&error)))?;
        Ok(Self { library, launch, _file: file })
    }
}

/// A kernel of a module, which it keeps loaded.
#[derive(Debug)]
pub(super) struct Kernel {
    module: Arc<Module>,
    entry: EntryPoint,
    name: String,
    argument_bytes: u32,
    max_threads: u32,
    emulation: Emulation,
}

impl Kernel {
    pub(super) fn find(module: &Arc<Module>, name: &CStr, emulation: Emulation) -> Result<Self> {
        let name = name.to_string_lossy().into_owned();
        let missing = |_| failed("function", name.clone(), NOT_FOUND, "the module has no such kernel");
        let library = &module.library;
        // SAFETY: CAMPANILE_KERNEL defines these three with these types.
        unsafe {
            let entry = *library.get::<EntryPoint>(&name).map_err(missing)?;
            let word = |suffix: &str| library.get::<*const u32>(format!("{name}_{suffix}")).map(|word| **word);
            let argument_bytes = word("argument_bytes").map_err(missing)?;
            let max_threads = word("max_threads").map_err(missing)?;
            Ok(Self { module: module.clone(), entry, name, argument_bytes, max_threads, emulation })
        }
    }

    pub(super) fn is_of(&self, module: &Arc<Module>) -> bool {
        Arc::ptr_eq(&self.module, module)
    }

    pub(super) fn argument_bytes(&self) -> usize {
        self.argument_bytes as usize
    }

    pub(super) fn max_threads(&self) -> u32 {
        self.max_threads
    }

    /// # Safety
    /// `argument` is the struct that the kernel takes.
    pub(super) unsafe fn copy_argument(&self, argument: *const c_void) -> Arc<[u128]> {
        let words = self.argument_bytes().div_ceil(size_of::<u128>());
        let mut copy = vec![0u128; words];
        // SAFETY: the caller's promise; the copy has room, and 16-byte alignment, which is the most a kernel asks.
        unsafe {
            std::ptr::copy_nonoverlapping(argument.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), self.argument_bytes());
        }
        copy.into()
    }

    /// Runs a launch to its end, on this thread and one for each block that is resident.
    ///
    /// # Safety
    /// The contract of the kernel holds for its argument.
    pub(super) unsafe fn run(&self, grid: Grid, argument: &[u128]) -> Result<()> {
        let mut message = [0u8; 256];
        let launch = Launch {
            kernel: self.entry,
            arguments: argument.as_ptr().cast(),
            blocks: grid.blocks,
            threads: grid.threads,
            shared_bytes: grid.shared_bytes as usize,
            schedule: self.emulation.schedule,
            message: message.as_mut_ptr().cast(),
            message_bytes: message.len(),
            resident: self.emulation.resident_blocks(grid.threads) * self.emulation.multiprocessors,
        };
        // SAFETY: the struct is the runtime's; the caller's promise for the kernel.
        if unsafe { (self.module.launch)(&raw const launch) } == 0 {
            return Ok(());
        }
        let text = CStr::from_bytes_until_nul(&message).map_or_else(|_| "?".into(), CStr::to_string_lossy);
        Err(self.failed(grid, &text))
    }

    fn failed(&self, grid: Grid, text: &str) -> CallError {
        let arguments = format!("kernel {}, blocks {}, threads {}", self.name, grid.blocks, grid.threads);
        failed("launch", arguments, LAUNCH_FAILED, text)
    }
}
