//! Graphs: replayed with fresh tokens, counts and routing, every element checked.

use campanile_gpu::{Emulation, Pins};
use campanile_moe::gpu::GpuMoeOptions;
use campanile_moe::protocol::Epoch;

use crate::emulated::{cache, devices, emulate};
use crate::soak;

#[test]
fn replays_take_fresh_tokens_counts_and_routing() {
    for (ranks, wave, schedule) in [(3, 32, 2), (2, 64, 5)] {
        let Some(devices) = devices(ranks, wave, schedule) else { return };
        let options = GpuMoeOptions { first: Epoch(u32::MAX - 2), ..GpuMoeOptions::default() };
        soak::run(&devices, &options, &cache(), 10).unwrap();
    }
}

/// As the soak runs on one GPU: several ranks on a device.
#[test]
fn replays_of_ranks_that_share_a_device() {
    let Some(devices) = emulate(Emulation { devices: 1, wave: 64, schedule: 3, ..Emulation::default() }) else {
        return;
    };
    let pins = Pins { blocks: Some(3), threads: Some(64), shared_bytes: None };
    let options = GpuMoeOptions { dispatch: pins, combine: pins, ..GpuMoeOptions::default() };
    let ranks: Vec<_> = (0..3).map(|_| devices[0].clone()).collect();
    soak::run(&ranks, &options, &cache(), 6).unwrap();
}
