//! The engine against the scalar model, bit for bit, over a grid of shapes, routings, types, layouts, schedules,
//! combines and paths, with payloads that hold every kind of number.

use campanile::core::{MoeCombine, MoeMode};
use campanile::moe::exchange::{ExchangeOptions, Layout, run};
use campanile::moe::model::{compare, solve};
use campanile::moe::{DType, Problem, RankInput, Solution};
use campanile::{CommOptions, MoeError, Path, threads};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Any bits: one in eight elements is a NaN, an infinity, a zero, a subnormal or a value near the overflow.
fn element(dtype: DType, random: &mut Xoshiro256PlusPlus) -> Vec<u8> {
    let bits = random.next_u32();
    let special = random.next_u32().is_multiple_of(8);
    match dtype {
        DType::F32 => {
            let specials =
                [0x7fc0_1234, 0xff80_0001, 0x7f80_0000, 0xff80_0000, 0x8000_0000, 1, 0x807f_ffff, 0x7f7f_ffff];
            let bits = if special { specials[bits as usize % 8] } else { 0x3f80_0000 ^ (bits & 0x83ff_ffff) };
            bits.to_le_bytes().to_vec()
        }
        DType::F16 => {
            let specials = [0x7e12, 0xfd01, 0x7c00, 0xfc00, 0x8000, 1, 0x83ff, 0x7bff];
            let bits = if special { specials[bits as usize % 8] } else { 0x3c00 ^ (bits as u16 & 0x8fff) };
            bits.to_le_bytes().to_vec()
        }
        DType::BF16 => {
            let specials = [0x7fd2, 0xff81, 0x7f80, 0xff80, 0x8000, 1, 0x807f, 0x7f7f];
            let bits = if special { specials[bits as usize % 8] } else { 0x3f80 ^ (bits as u16 & 0x83ff) };
            bits.to_le_bytes().to_vec()
        }
        _ => vec![bits as u8],
    }
}

struct Shape {
    tokens: Vec<usize>,
    hidden: usize,
    topk: usize,
    expert_rank: Vec<u32>,
    dtype: DType,
    combine_dtype: DType,
    scales: usize,
    /// Whether x is bf16, which dispatch quantises.
    quantize: bool,
    weighted: bool,
    scaled_experts: bool,
    /// Chance in 8 that a slot is dropped.
    dropped: u32,
    /// All slots of all tokens go to this expert.
    only: Option<i32>,
}

fn problem(shape: &Shape, seed: u64) -> Problem {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let experts = shape.expert_rank.len() as u32;
    let float = |random: &mut Xoshiro256PlusPlus| match random.next_u32() % 16 {
        0 => -0.0,
        1 => f32::from_bits(1),
        2 => -1.5e38,
        _ => (random.next_u32() % 2000) as f32 / 700.0 - 1.0,
    };
    let (x_dtype, scales) = if shape.quantize { (DType::BF16, 0) } else { (shape.dtype, shape.scales) };
    let parts = x_dtype.row_bytes(shape.hidden) / x_dtype.bytes();
    let mut rank = |&tokens: &usize| RankInput {
        tokens,
        x: (0..tokens * parts).flat_map(|_| element(x_dtype, &mut random)).collect(),
        scales: (0..tokens * scales).map(|_| float(&mut random)).collect(),
        topk_idx: (0..tokens * shape.topk)
            .map(|_| match (random.next_u32() % 8 < shape.dropped, shape.only) {
                (true, _) => -1,
                (false, Some(expert)) => expert,
                // Duplicates happen on their own.
                (false, None) => (random.next_u32() % experts) as i32,
            })
            .collect(),
        topk_weights: (0..if shape.weighted { tokens * shape.topk } else { 0 }).map(|_| float(&mut random)).collect(),
    };
    let ranks = shape.tokens.iter().map(&mut rank).collect();
    Problem {
        dtype: shape.dtype,
        combine_dtype: shape.combine_dtype,
        hidden: shape.hidden,
        topk: shape.topk,
        scales: shape.scales,
        quantize: shape.quantize,
        expert_rank: shape.expert_rank.clone(),
        expert_scale: shape.scaled_experts.then(|| (0..experts).map(|e| 0.25 + e as f32 / 3.0).collect()),
        weighted: shape.weighted,
        ranks,
    }
}

fn check(problem: &Problem, options: &ExchangeOptions, path: Path) {
    problem.validate().expect("the generator makes valid problems");
    let comm = CommOptions { path, ..CommOptions::default() };
    let ended = threads::<_, MoeError>(problem.ranks.len(), &comm, |comm| run(&comm, problem, options));
    let ranks: Vec<_> = ended.into_iter().map(|rank| rank.unwrap().output).collect();
    let mut expected = solve(problem);
    if !options.keep_received {
        expected.ranks.iter_mut().for_each(|rank| rank.received = Default::default());
    }
    if let Err(mismatch) = compare(problem, &expected, &Solution { ranks }) {
        panic!("{options:?}, path {}: {mismatch}", path.name());
    }
}

fn base() -> Shape {
    Shape {
        tokens: vec![5, 9, 0],
        hidden: 40,
        topk: 3,
        expert_rank: Problem::block_map(7, 3),
        dtype: DType::BF16,
        combine_dtype: DType::BF16,
        scales: 0,
        quantize: false,
        weighted: true,
        scaled_experts: true,
        dropped: 1,
        only: None,
    }
}

#[test]
fn every_way_of_running_gives_the_same_bits() {
    let problem = problem(&base(), 1);
    for layout in Layout::ALL {
        for mode in [MoeMode::Auto, MoeMode::Throughput, MoeMode::LowLatency] {
            for combine in [MoeCombine::Pull, MoeCombine::Push] {
                let options = ExchangeOptions { layout, mode, combine, keep_received: true };
                check(&problem, &options, Path::Auto);
            }
            let options = ExchangeOptions { layout, mode, combine: MoeCombine::Push, keep_received: true };
            check(&problem, &options, Path::Queue);
        }
    }
}

#[test]
fn shapes() {
    let mut seed = 10;
    for ranks in [1, 2, 3, 5, 7, 8] {
        for hidden in [1, 2, 7, 64, 257, 1030] {
            for (topk, experts) in [(1, 1), (2, 3), (4, 16), (16, 5), (8, 64)] {
                seed += 1;
                let shape = Shape {
                    tokens: (0..ranks).map(|rank| [4, 0, 7, 1][(rank + seed as usize) % 4]).collect(),
                    hidden,
                    topk,
                    expert_rank: Problem::block_map(experts, ranks),
                    ..base()
                };
                let options = ExchangeOptions { keep_received: true, ..ExchangeOptions::default() };
                check(&problem(&shape, seed), &options, Path::Auto);
            }
        }
    }
}

#[test]
fn types() {
    for (seed, dtype) in DType::ALL.into_iter().enumerate() {
        for combine_dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_combine()) {
            for (weighted, scaled_experts) in [(true, true), (true, false), (false, false)] {
                for scales in if dtype.is_scaled() { vec![1, 3, 33] } else { vec![0] } {
                    for layout in Layout::ALL {
                        let shape =
                            Shape { dtype, combine_dtype, scales, weighted, scaled_experts, hidden: 33, ..base() };
                        let options = ExchangeOptions { layout, keep_received: true, ..ExchangeOptions::default() };
                        check(&problem(&shape, seed as u64), &options, Path::Auto);
                    }
                }
            }
        }
    }
}

/// A token's row is quantised once and is the same at all its owners, whoever carries it.
#[test]
fn every_way_of_running_quantises_to_the_same_bits() {
    for dtype in [DType::F8E4M3, DType::F8E4M3FNUZ] {
        for (seed, (hidden, scales)) in [(40, 3), (1, 1), (5, 4), (257, 257), (512, 4)].into_iter().enumerate() {
            let shape = Shape { dtype, hidden, scales, quantize: true, ..base() };
            let problem = problem(&shape, seed as u64);
            for mode in [MoeMode::Throughput, MoeMode::LowLatency] {
                for (layout, combine, path) in [
                    (Layout::Rows, MoeCombine::Pull, Path::Auto),
                    (Layout::Compact, MoeCombine::Push, Path::Auto),
                    (Layout::ExpertMajor, MoeCombine::Push, Path::Queue),
                ] {
                    check(&problem, &ExchangeOptions { layout, mode, combine, keep_received: true }, path);
                }
            }
        }
    }
}

#[test]
fn routings_at_the_edges() {
    let edges = [
        Shape { tokens: vec![0, 0, 0], ..base() },
        Shape { dropped: 8, ..base() },
        Shape { only: Some(6), dropped: 0, ..base() },
        Shape { only: Some(0), dropped: 0, ..base() },
        Shape { expert_rank: vec![2, 2, 2, 2], ..base() },
        Shape { expert_rank: vec![2, 0, 2, 1, 0], ..base() },
        Shape { expert_rank: vec![1], topk: 16, ..base() },
        Shape { tokens: vec![200, 1, 130], dropped: 0, ..base() },
    ];
    for (seed, shape) in edges.iter().enumerate() {
        for combine in [MoeCombine::Pull, MoeCombine::Push] {
            for layout in Layout::ALL {
                let options = ExchangeOptions { combine, layout, keep_received: true, ..ExchangeOptions::default() };
                check(&problem(shape, seed as u64), &options, Path::Auto);
            }
        }
    }
}

#[test]
fn large_rows_that_stream() {
    for combine in [MoeCombine::Pull, MoeCombine::Push] {
        let shape = Shape { tokens: vec![700, 650], hidden: 7168, topk: 2, expert_rank: vec![0, 1, 0, 1], ..base() };
        check(&problem(&shape, 5), &ExchangeOptions { combine, ..ExchangeOptions::default() }, Path::Auto);
    }
    let shape = Shape { tokens: vec![3, 2], hidden: 16384, topk: 2, expert_rank: vec![0, 1, 0, 1], ..base() };
    check(&problem(&shape, 6), &ExchangeOptions::default(), Path::Auto);
}
