//! Ranks on emulated devices, for tests of the operation on GPUs.

#![allow(dead_code, reason = "not every test that has this module needs all of it")]

use std::path::PathBuf;
use std::time::Duration;

use campanile::core::selection::Preference;
use campanile::gpu::{Cache, Gpu, Settings, has_compiler};
use campanile::moe::routing::{Router, Routing};
use campanile::moe::{RankInput, number};
use campanile::{Config, DType, GpuChoice, MoeConfig, Problem};

/// Slots of a token.
pub const TOPK: usize = 3;
/// Experts, two on each of four ranks and fewer of more.
pub const EXPERTS: usize = 8;

/// Compiled kernels, for all tests.
pub fn kernels() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels")
}

/// A configuration whose ranks have emulated devices.
pub fn config(timeout: Duration) -> Config {
    let p2p = Preference::of(["p2p"]).expect("one name");
    let config = Config::default().with_transport(p2p).and_then(|config| config.with_gpu(GpuChoice::Emulator));
    config.and_then(|config| config.with_timeout(timeout)).expect("these values are allowed")
}

/// The emulated devices and their kernels; `None`, and a word about it, without a C++ compiler.
pub fn devices() -> Option<(Gpu, Cache)> {
    let gpu = Gpu::choose(GpuChoice::Emulator, &Settings::default()).expect("the emulator needs nothing");
    if !has_compiler(&gpu) {
        println!("not run: no C++ compiler for the emulator's kernels");
        return None;
    }
    Some((gpu, Cache::at(kernels())))
}

/// The operation of these tests.
pub fn moe_config(ranks: usize, tokens: usize, hidden: usize) -> MoeConfig {
    MoeConfig::new(tokens, hidden, TOPK, Problem::block_map(EXPERTS, ranks))
}

/// The part of one rank, which is all that it needs of the problem.
pub fn problem(rank: usize, ranks: usize, tokens: usize, hidden: usize) -> Problem {
    let expert_rank = Problem::block_map(EXPERTS, ranks);
    let routed = Router::new(Routing::Uniform, TOPK, 1).route(rank, ranks, tokens, &expert_rank);
    let mut x = vec![0; tokens * DType::BF16.row_bytes(hidden)];
    for element in 0..tokens * hidden {
        number::write(DType::BF16, &mut x, element, (element % 61) as f32 - rank as f32);
    }
    let mut inputs = vec![RankInput::default(); ranks];
    inputs[rank] =
        RankInput { tokens, x, topk_idx: routed.topk_idx, topk_weights: routed.topk_weights, ..RankInput::default() };
    Problem {
        dtype: DType::BF16,
        combine_dtype: DType::BF16,
        hidden,
        topk: TOPK,
        scales: 0,
        quantize: false,
        expert_rank,
        expert_scale: None,
        weighted: true,
        ranks: inputs,
    }
}
