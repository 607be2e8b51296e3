//! Combine by push on GPUs, in the emulator: the same bits as the model on the grid of cases, at waves 32 and 64; words as
//! the host has them; deadlines and aborts.

#[path = "../examples/moe_gpu/case.rs"]
mod case;
mod gpu_devices;

use campanile_core::MoeCombine;
use campanile_gpu::Pins;
use campanile_moe::gpu::GpuMoeOptions;

use case::Case;
use gpu_devices::{cache, devices};

fn pushed(case: Case) -> Case {
    Case { combine: MoeCombine::Push, ..case }
}

/// Every case at both waves, with few ranks.
fn grid(wave: u32, ranks: usize) {
    let Some(devices) = devices(ranks, wave, u64::from(wave)) else { return };
    for case in Case::all(ranks) {
        pushed(case).check(&devices, &GpuMoeOptions::default(), &cache(), 2).unwrap();
    }
}

#[test]
fn grid_of_two_ranks_wave_32() {
    grid(32, 2);
}

#[test]
fn grid_of_three_ranks_wave_64() {
    grid(64, 3);
}

#[test]
fn one_rank_and_eight() {
    for (ranks, wave) in [(1, 32), (8, 64), (5, 32)] {
        let Some(devices) = devices(ranks, wave, 3) else { return };
        let cases = Case::all(ranks);
        for case in [&cases[0], &cases[1], &cases[5], &cases[10]] {
            pushed(case.clone()).check(&devices, &GpuMoeOptions::default(), &cache(), 2).unwrap();
        }
    }
}

/// Any geometry and any number of senders gives the same bits.
#[test]
fn geometry_is_free() {
    for (schedule, (blocks, threads, senders)) in
        [(1, 32, 1), (7, 64, 2), (7, 64, 7), (2, 256, 1)].into_iter().enumerate()
    {
        let Some(devices) = devices(2, 32, schedule as u64) else { return };
        let pins = Pins { blocks: Some(blocks), threads: Some(threads), shared_bytes: None };
        let options = GpuMoeOptions { combine: pins, senders: Some(senders), ..GpuMoeOptions::default() };
        let case = Case { hidden: 1200, ..Case::new(&[60, 3]) };
        pushed(case).check(&devices, &options, &cache(), 2).unwrap();
    }
}
