//! Emulated devices, and operations on them.

use campanile_gpu::{Cache, Device, Emulation, Gpu, Settings};
use campanile_moe::gpu::exchange::DeviceProblem;
use campanile_moe::gpu::{Failure, GpuMoe, GpuMoeError, GpuMoeOptions, Index};

use crate::case::Case;

/// Devices of 16 resident blocks; none without a C++ compiler.
pub fn devices(ranks: usize, wave: u32, schedule: u64) -> Option<Vec<Device>> {
    emulate(Emulation { devices: ranks as u32, wave, schedule, ..Emulation::default() })
}

pub fn emulate(emulation: Emulation) -> Option<Vec<Device>> {
    let gpu = Gpu::emulator(emulation, &Settings::default()).unwrap();
    if !campanile_gpu::has_compiler(&gpu) {
        println!("not run: no C++ compiler for the emulator's kernels");
        return None;
    }
    Some(gpu.devices().unwrap())
}

pub fn cache() -> Cache {
    Cache::at(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("moe-kernels"))
}

/// Operations of two ranks, and their parts of a case.
pub fn pair(options: &GpuMoeOptions) -> Option<(Vec<GpuMoe>, Vec<DeviceProblem>)> {
    let devices = devices(2, 32, 0)?;
    let case = Case::new(&[5, 9]);
    let operations = GpuMoe::in_process(&devices, &case.config(2), options, &cache()).unwrap();
    let problem = case.problem(1);
    let part = |moe| DeviceProblem::new(moe, &problem, Index::I32, 0).unwrap();
    let parts = operations.iter().map(part).collect();
    Some((operations, parts))
}

pub fn failure(moe: &GpuMoe) -> Failure {
    match moe.check() {
        Err(GpuMoeError::Failed { failure, .. }) => failure,
        other => panic!("{other:?}"),
    }
}
