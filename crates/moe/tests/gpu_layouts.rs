//! Layouts on GPUs, in the emulator: map, offsets and rows as the host has them, results summed to the same bits as the model
//! on the grid of cases, by pull and by push, at waves 32 and 64.

#[path = "../examples/moe_gpu/case.rs"]
mod case;
mod gpu_devices;

use campanile_core::MoeCombine;
use campanile_moe::exchange::Layout;
use campanile_moe::gpu::GpuMoeOptions;

use case::Case;
use gpu_devices::{cache, devices};

/// Every case in one layout. Waves, schedules and ways of combining alternate with the cases.
fn grid(layout: Layout, ranks: usize, alignment: usize) {
    for (wave, by) in [(32, MoeCombine::Pull), (64, MoeCombine::Push)] {
        let Some(devices) = devices(ranks, wave, alignment as u64) else { return };
        for (number, case) in Case::all(ranks).into_iter().enumerate() {
            let case = Case { layout, alignment, combine: by, copied: number % 3 != 2, ..case };
            case.check(&devices, &GpuMoeOptions::default(), &cache(), 2).unwrap();
        }
    }
}

#[test]
fn compact() {
    grid(Layout::Compact, 2, 1);
}

#[test]
fn expert_major() {
    grid(Layout::ExpertMajor, 3, 4);
}
