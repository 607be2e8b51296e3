//! The entry: [`Gpu`], a call table that was filled, and [`Backend`], from what.

use std::fmt;
use std::sync::Arc;

use campanile_core::GpuChoice;

use crate::calls::Calls;
use crate::emulator::{Emulation, Emulator};
use crate::vendor::{Dialect, Vendor};
use crate::{CallError, Device, LoadError, Settings};

/// What stands behind a call table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// NVIDIA's driver and NVRTC.
    Cuda,
    /// AMD's HIP runtime and hipRTC.
    Hip,
    /// The CPU.
    Emulator,
}

impl Backend {
    /// The name that devices are called by: `cuda:0`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::Emulator => "emulator",
        }
    }

    /// Those that a choice allows, in order of preference.
    #[must_use]
    pub const fn of(choice: GpuChoice) -> &'static [Self] {
        match choice {
            GpuChoice::Auto => &[Self::Cuda, Self::Hip],
            GpuChoice::Cuda => &[Self::Cuda],
            GpuChoice::Hip => &[Self::Hip],
            GpuChoice::Emulator => &[Self::Emulator],
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda => "CUDA",
            Self::Hip => "HIP",
            Self::Emulator => "the emulator",
        })
    }
}

/// A call table, filled. Cheap to clone; the libraries stay loaded for the life of the process.
///
/// ```
/// use campanile_gpu::{Backend, Gpu, Settings};
///
/// // A machine without the library is an error that says what was tried.
/// match Gpu::open(Backend::Cuda, &Settings::default()) {
///     Ok(gpu) => println!("{}, {} devices", gpu.version()?, gpu.devices()?.len()),
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), campanile_gpu::CallError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gpu {
    calls: Arc<dyn Calls>,
}

impl Gpu {
    /// Loads what `backend` needs and starts it; the emulator with its defaults.
    ///
    /// # Errors
    /// [`LoadError`]: no such library (with the names that were tried), or it does not start.
    pub fn open(backend: Backend, settings: &Settings) -> Result<Self, LoadError> {
        match backend {
            Backend::Cuda => Ok(Self { calls: Arc::new(Vendor::open(Dialect::Cuda, settings)?) }),
            Backend::Hip => Ok(Self { calls: Arc::new(Vendor::open(Dialect::Hip, settings)?) }),
            Backend::Emulator => Self::emulator(Emulation::default(), settings),
        }
    }

    /// Opens the first of the allowed backends that has a device.
    ///
    /// ```
    /// use campanile_core::GpuChoice;
    /// use campanile_gpu::{Gpu, Settings};
    ///
    /// let gpu = Gpu::choose(GpuChoice::Emulator, &Settings::default())?;
    /// assert_eq!(gpu.backend().name(), "emulator");
    /// # Ok::<(), campanile_gpu::LoadError>(())
    /// ```
    ///
    /// # Errors
    /// [`LoadError::NoDevice`], with the reason for each backend.
    pub fn choose(choice: GpuChoice, settings: &Settings) -> Result<Self, LoadError> {
        let mut reasons = Vec::new();
        for &backend in Backend::of(choice) {
            match Self::open(backend, settings) {
                Ok(gpu) => match gpu.calls.device_count() {
                    Ok(0) => reasons.push(format!("{backend} sees no device")),
                    Ok(_) => return Ok(gpu),
                    Err(error) => reasons.push(error.to_string()),
                },
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(LoadError::NoDevice { choice, reasons: reasons.join("; ") })
    }

    /// Emulated devices.
    ///
    /// # Errors
    /// [`LoadError::Emulator`] for a wave or a number of devices that there is not.
    pub fn emulator(emulation: Emulation, settings: &Settings) -> Result<Self, LoadError> {
        Ok(Self { calls: Arc::new(Emulator::new(emulation, settings)?) })
    }

    /// The table itself, for what the types above it do not say.
    #[must_use]
    pub fn calls(&self) -> &dyn Calls {
        &*self.calls
    }

    /// What stands behind it.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.calls.backend()
    }

    /// Library and version, for people.
    ///
    /// # Errors
    /// Those of the call.
    pub fn version(&self) -> Result<String, CallError> {
        self.calls.version()
    }

    /// All devices that this process sees.
    ///
    /// # Errors
    /// Those of the call.
    pub fn devices(&self) -> Result<Vec<Device>, CallError> {
        (0..self.calls.device_count()?).map(|ordinal| self.device(ordinal)).collect()
    }

    /// The device of that ordinal.
    ///
    /// # Errors
    /// [`CallError::Unsupported`] if there is none.
    pub fn device(&self, ordinal: u32) -> Result<Device, CallError> {
        let count = self.calls.device_count()?;
        if ordinal >= count {
            return Err(CallError::Unsupported {
                backend: self.backend(),
                what: format!("use device {ordinal}"),
                reason: format!("it sees {count} devices, counted from 0"),
            });
        }
        Device::new(self.clone(), ordinal)
    }
}
