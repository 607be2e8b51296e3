//! CUDA and HIP: the call table filled from `libcuda` + NVRTC, or from `libamdhip64` + hipRTC, by dlopen.
//!
//! Both libraries are one implementation, since HIP's calls are CUDA's under other names; [`Dialect`] says which, and
//! is asked only where they differ: contexts against current devices, the numbers of attributes, a fourth argument
//! here and there. Nothing is linked, and no vendor's header or crate is used.

mod calls;
mod compile;
mod numbers;
mod table;

use std::ffi::c_int;
use std::ptr;
use std::sync::OnceLock;

use crate::calls::{Calls, Result};
use crate::library::{Library, Names};
use crate::{CallError, Coherence, CompileError, LoadError, Settings};
use numbers::{
    ALLOCATION_PINNED, ALLOCATION_UNCACHED, CUDA_RDMA_WITH_VIRTUAL_MEMORY, INVALID_VALUE, LOCATION_DEVICE, NOT_READY,
    POSIX_FD, RDMA_CAPABLE,
};
use table::{AllocationProperties, Driver, Location};

pub(crate) use compile::{Compiler, base_options};

/// Which vendor's names and numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Cuda,
    Hip,
}

/// `HIP_VERSION` as people write it: 70051831 is 7.0.51831.
fn hip_version(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000_000, version / 100_000 % 100, version % 100_000)
}

/// The table over a vendor's library.
#[derive(Debug)]
pub(crate) struct Vendor {
    dialect: Dialect,
    driver: Driver,
    library: Library,
    /// CUDA: the primary context of each device, retained at first use and for the life of the process.
    contexts: Vec<OnceLock<usize>>,
    compiler_path: Option<String>,
    compiler: OnceLock<std::result::Result<Compiler, String>>,
}

impl Vendor {
    /// Loads the library and starts it.
    pub(crate) fn open(dialect: Dialect, settings: &Settings) -> std::result::Result<Self, LoadError> {
        let (names, path, compiler_path) = match dialect {
            Dialect::Cuda => (
                Names {
                    library: "CUDA driver (libcuda)",
                    variable: "CAMPANILE_LIBCUDA",
                    names: ["libcuda.so.1", "libcuda.so"].map(str::to_owned).to_vec(),
                },
                settings.libcuda.as_deref(),
                settings.libnvrtc.clone(),
            ),
            Dialect::Hip => (
                Names {
                    library: "HIP runtime (libamdhip64)",
                    variable: "CAMPANILE_LIBAMDHIP64",
                    names: ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so"]
                        .map(str::to_owned)
                        .to_vec(),
                },
                settings.libamdhip64.as_deref(),
                settings.libhiprtc.clone(),
            ),
        };
        let library = Library::open(names, path)?;
        let driver = Driver::new(&library, dialect);
        let started = || -> Result<u32> {
            let mut count = 0;
            // SAFETY: takes no memory; then a pointer to an int.
            unsafe {
                driver.init(0)?;
                driver.device_count(&raw mut count)?;
            }
            Ok(count.unsigned_abs())
        };
        let devices =
            started().map_err(|source| LoadError::NotStarted { library: library.name().to_owned(), source })?;
        let contexts = (0..devices).map(|_| OnceLock::new()).collect();
        Ok(Self { dialect, driver, library, contexts, compiler_path, compiler: OnceLock::new() })
    }

    /// Makes the device the one that the calling thread's next call means.
    fn enter(&self, device: u32) -> Result<()> {
        match self.dialect {
            // SAFETY: the context is the device's own.
            Dialect::Cuda => unsafe { self.driver.set_context(self.context(device)?) },
            // SAFETY: takes a number.
            Dialect::Hip => unsafe { self.driver.set_device(device as c_int) },
        }
    }

    fn context(&self, device: u32) -> Result<usize> {
        let Some(cell) = self.contexts.get(device as usize) else {
            return Err(self.unsupported(
                format!("use device {device}"),
                format!("it sees {} devices, counted from 0", self.contexts.len()),
            ));
        };
        if let Some(context) = cell.get() {
            return Ok(*context);
        }
        let mut context = 0;
        // SAFETY: the device exists.
        unsafe { self.driver.primary_context(&raw mut context, device as c_int)? };
        Ok(*cell.get_or_init(|| context))
    }

    fn unsupported(&self, what: impl Into<String>, reason: impl Into<String>) -> CallError {
        CallError::Unsupported { backend: self.backend(), what: what.into(), reason: reason.into() }
    }

    fn properties(&self, device: u32, coherence: Coherence) -> Result<AllocationProperties> {
        let kind = match (self.dialect, coherence) {
            (Dialect::Cuda, _) | (_, Coherence::Coarse) => ALLOCATION_PINNED,
            (Dialect::Hip, Coherence::Uncached) => ALLOCATION_UNCACHED,
            (Dialect::Hip, Coherence::Fine) => {
                return Err(self.unsupported(
                    "make fine-grained memory that is shared by descriptor",
                    "HIP has it coarse or uncached; take plain memory or uncached",
                ));
            }
        };
        let mut flags = [0; 8];
        if self.dialect == Dialect::Cuda {
            // So that a NIC can be given the memory.
            let can = self.integer(|can| {
                // SAFETY: a pointer to an int.
                unsafe { self.driver.device_attribute(can, CUDA_RDMA_WITH_VIRTUAL_MEMORY, device as c_int) }
            })?;
            flags[RDMA_CAPABLE] = u8::from(can != 0);
        }
        Ok(AllocationProperties {
            kind,
            handle_types: POSIX_FD,
            location: Location { kind: LOCATION_DEVICE, id: device as c_int },
            win32: ptr::null_mut(),
            flags,
        })
    }

    /// Why `error` came of asking for shared memory of that coherence, where the library's word for it says nothing.
    fn refusal(&self, coherence: Coherence, error: CallError) -> CallError {
        let refused = error.code() == Some(INVALID_VALUE);
        if !(refused && self.dialect == Dialect::Hip && coherence == Coherence::Uncached) {
            return error;
        }
        let version = self.version().unwrap_or_else(|error| error.to_string());
        self.unsupported(
            "make uncached memory that is shared by descriptor",
            format!("it does so since 7.0.2, and this is {version}: {error}"),
        )
    }

    fn integer(&self, call: impl Fn(*mut c_int) -> Result<()>) -> Result<c_int> {
        let mut value = 0;
        call(&raw mut value)?;
        Ok(value)
    }

    fn done(result: Result<()>) -> Result<bool> {
        match result {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some(NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn rtc(&self) -> std::result::Result<&Compiler, CompileError> {
        self.compiler
            .get_or_init(|| {
                let driver = self.integer(|version| {
                    // SAFETY: a pointer to an int.
                    unsafe { self.driver.driver_version(version) }
                });
                Compiler::open(self.dialect, Some(&self.library), self.compiler_path.as_deref(), driver.unwrap_or(0))
                    .map_err(|error| error.to_string())
            })
            .as_ref()
            .map_err(|reason| CompileError::NoCompiler(reason.clone()))
    }
}
