//! What the operator may override: [`Settings`].

use std::path::PathBuf;

use campanile_core::Config;

/// Paths of what is loaded and run. `None` is the usual place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The CUDA driver, `CAMPANILE_LIBCUDA`.
    pub libcuda: Option<String>,
    /// NVRTC, `CAMPANILE_LIBNVRTC`.
    pub libnvrtc: Option<String>,
    /// The HIP runtime, `CAMPANILE_LIBAMDHIP64`.
    pub libamdhip64: Option<String>,
    /// hipRTC, `CAMPANILE_LIBHIPRTC`.
    pub libhiprtc: Option<String>,
    /// The C++ compiler of the emulator, `CAMPANILE_CXX`; `c++` otherwise.
    pub cxx: Option<String>,
    /// The folder of compiled kernels, `CAMPANILE_KERNEL_CACHE`.
    pub kernel_cache: Option<PathBuf>,
}

impl From<&Config> for Settings {
    fn from(config: &Config) -> Self {
        Self {
            libcuda: config.libcuda(),
            libnvrtc: config.libnvrtc(),
            libamdhip64: config.libamdhip64(),
            libhiprtc: config.libhiprtc(),
            cxx: config.cxx(),
            kernel_cache: config.kernel_cache().map(PathBuf::from),
        }
    }
}
