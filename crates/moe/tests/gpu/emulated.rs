//! Emulated devices, and operations on them.

use campanile_core::MoeMode;
use campanile_gpu::{Device, Emulation};
use campanile_moe::gpu::exchange::DeviceProblem;
use campanile_moe::gpu::{Failure, GpuMoe, GpuMoeError, GpuMoeOptions, Index};

use crate::case::Case;

#[path = "../../../gpu/tests/emulated/mod.rs"]
mod machine;

pub use machine::{cache, emulate};

/// Devices of 16 resident blocks; none without a C++ compiler.
pub fn devices(ranks: usize, wave: u32, schedule: u64) -> Option<Vec<Device>> {
    emulate(Emulation { devices: ranks as u32, wave, schedule, ..Emulation::default() })
}

/// The schedules.
pub const MODES: [MoeMode; 2] = [MoeMode::Throughput, MoeMode::LowLatency];

/// Operations of two ranks, and their parts of a case.
pub fn pair(mode: MoeMode, options: &GpuMoeOptions) -> Option<(Vec<GpuMoe>, Vec<DeviceProblem>)> {
    let devices = devices(2, 32, 0)?;
    let case = Case { mode, ..Case::new(&[5, 9]) };
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
