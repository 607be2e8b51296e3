//! Emulated devices for the tests on GPUs.

use campanile_gpu::{Cache, Device, Emulation, Gpu, Settings};

/// Some, or none where no compiler is found.
pub fn devices(ranks: usize, wave: u32, schedule: u64) -> Option<Vec<Device>> {
    let emulation = Emulation { devices: ranks as u32, wave, schedule, ..Emulation::default() };
    let gpu = Gpu::emulator(emulation, &Settings::default()).unwrap();
    if !campanile_gpu::has_compiler(&gpu) {
        println!("not run: no C++ compiler for the emulator's kernels");
        return None;
    }
    Some(gpu.devices().unwrap())
}

/// Compiled kernels, for all tests.
pub fn cache() -> Cache {
    Cache::at(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("moe-kernels"))
}
