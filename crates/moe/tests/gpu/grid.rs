//! Every case, summed by pull and by push, with any number of ranks, by any geometry: the same bits as the model.

use campanile_core::MoeCombine;
use campanile_gpu::{Emulation, Pins};
use campanile_moe::gpu::GpuMoeOptions;
use campanile_moe::protocol::Epoch;

use crate::case::Case;
use crate::emulated::{cache, devices, emulate};

const BOTH: [MoeCombine; 2] = [MoeCombine::Pull, MoeCombine::Push];

/// Two rounds of these cases.
fn check(cases: impl IntoIterator<Item = Case>, combine: MoeCombine, wave: u32, schedule: u64) {
    for case in cases {
        let Some(devices) = devices(case.tokens.len(), wave, schedule) else { return };
        Case { combine, ..case }.check(&devices, &GpuMoeOptions::default(), &cache(), 2).unwrap();
    }
}

#[test]
fn two_ranks_pull_at_wave_32() {
    check(Case::all(2), MoeCombine::Pull, 32, 32);
}

#[test]
fn two_ranks_push_at_wave_32() {
    check(Case::all(2), MoeCombine::Push, 32, 32);
}

#[test]
fn three_ranks_pull_at_wave_64() {
    check(Case::all(3), MoeCombine::Pull, 64, 64);
}

#[test]
fn three_ranks_push_at_wave_64() {
    check(Case::all(3), MoeCombine::Push, 64, 64);
}

#[test]
fn one_rank_and_eight() {
    for combine in BOTH {
        for (ranks, wave) in [(1, 32), (8, 64), (5, 32)] {
            let cases = Case::all(ranks);
            check([0, 1, 5, 10].map(|case| cases[case].clone()), combine, wave, 3);
        }
    }
}

/// Ranks of a case in which only these have tokens, on four emulated devices, each of which is several ranks.
fn many_ranks(ranks: usize, first: usize, last: usize, case: Case, threads: u32) {
    let Some(devices) = devices(4, 32, 0) else { return };
    let devices: Vec<_> = (0..ranks).map(|rank| devices[rank % 4].clone()).collect();
    let mut tokens = vec![0; ranks];
    (tokens[0], tokens[ranks - 1]) = (first, last);
    let pins = Pins { blocks: Some(1), threads: Some(threads), shared_bytes: None };
    let options = GpuMoeOptions { dispatch: pins, combine: pins, ..GpuMoeOptions::default() };
    Case { tokens, hidden: 16, ..case }.check(&devices, &options, &cache(), 1).unwrap();
}

/// More ranks than are looked at at a time.
#[test]
fn more_than_a_group_of_ranks() {
    many_ranks(66, 12, 5, Case { topk: 8, experts: 70, ..Case::new(&[]) }, 64);
}

/// More ranks than a wave has lanes, more routes a token than that.
#[test]
fn more_ranks_than_lanes() {
    let case = Case { topk: 64, experts: 80, combine: MoeCombine::Push, ..Case::new(&[]) };
    many_ranks(40, 3, 2, case, 32);
}

/// Six rounds on two sets, across the wrap of the epoch.
#[test]
fn epochs_wrap() {
    for (combine, wave) in [(MoeCombine::Pull, 32), (MoeCombine::Push, 64)] {
        let Some(devices) = devices(2, wave, 0) else { return };
        let options = GpuMoeOptions { first: Epoch(u32::MAX), ..GpuMoeOptions::default() };
        Case { combine, ..Case::new(&[5, 9]) }.check(&devices, &options, &cache(), 6).unwrap();
    }
}

/// Any geometry gives the same bits.
#[test]
fn geometry_is_free() {
    let Some(devices) = devices(2, 32, 9) else { return };
    for (blocks, threads) in [(1, 32), (7, 64), (2, 256)] {
        let pins = Pins { blocks: Some(blocks), threads: Some(threads), shared_bytes: None };
        let options = GpuMoeOptions { dispatch: pins, combine: pins, ..GpuMoeOptions::default() };
        let case = Case { hidden: 1200, ..Case::new(&[40, 3]) };
        case.check(&devices, &options, &cache(), 2).unwrap();
    }
}

/// So does any number of senders, also where fewer blocks are resident.
#[test]
fn senders_are_free() {
    for (schedule, (blocks, threads, senders)) in [(1, 32, 1), (9, 64, 2), (9, 64, 9), (2, 256, 1)].iter().enumerate() {
        let multiprocessors = if schedule % 2 == 0 { 4 } else { 1 };
        let emulation = Emulation { devices: 2, wave: 32, schedule: schedule as u64, multiprocessors };
        let Some(devices) = emulate(emulation) else { return };
        let pins = Pins { blocks: Some(*blocks), threads: Some(*threads), shared_bytes: None };
        let options = GpuMoeOptions { combine: pins, senders: Some(*senders), ..GpuMoeOptions::default() };
        let case = Case { hidden: 1200, combine: MoeCombine::Push, ..Case::new(&[60, 3]) };
        case.check(&devices, &options, &cache(), 2).unwrap();
    }
}
