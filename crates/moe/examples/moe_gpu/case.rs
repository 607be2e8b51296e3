//! Cases: problems of every kind for the operation on GPUs, run as ranks of one process and held against the model.

#[path = "arranged.rs"]
mod arranged;

use std::time::Duration;

use campanile_core::{MoeCombine, MoeMode};
use campanile_gpu::{Cache, Device};
use campanile_moe::exchange::Layout;
use campanile_moe::gpu::exchange::{Arranged, DeviceProblem};
use campanile_moe::gpu::{GpuMoe, GpuMoeError, GpuMoeOptions, Index};
use campanile_moe::model::{compare, solve};
use campanile_moe::protocol::Set;
use campanile_moe::{DType, MoeConfig, Problem, RankInput, Solution};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Bounds every wait of the host.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A problem in short.
#[derive(Clone, Debug)]
pub struct Case {
    /// Tokens of each rank.
    pub tokens: Vec<usize>,
    pub hidden: usize,
    pub topk: usize,
    pub experts: usize,
    pub dtype: DType,
    pub combine_dtype: DType,
    pub scales: usize,
    pub quantize: bool,
    pub weighted: bool,
    pub scaled_experts: bool,
    /// All slots go here.
    pub only: Option<i32>,
    pub index: Index,
    /// Bytes that x and out are shifted by.
    pub shift: usize,
    /// The schedule: low latency, where it can be had, if it is not throughput.
    pub mode: MoeMode,
    /// How results come back.
    pub combine: MoeCombine,
    /// In which layout the experts work, with groups of this many rows.
    pub layout: Layout,
    pub alignment: usize,
    /// Whether the rows are copied into the layout, or read in place by its map.
    pub copied: bool,
}

impl Case {
    /// A small bf16 case of ragged ranks.
    pub fn new(tokens: &[usize]) -> Self {
        Self {
            tokens: tokens.to_vec(),
            hidden: 40,
            topk: 4,
            experts: 9,
            dtype: DType::BF16,
            combine_dtype: DType::BF16,
            scales: 0,
            quantize: false,
            weighted: true,
            scaled_experts: true,
            only: None,
            index: Index::I32,
            shift: 0,
            mode: MoeMode::Auto,
            combine: MoeCombine::Pull,
            layout: Layout::Rows,
            alignment: 4,
            copied: true,
        }
    }

    /// The cases that every number of ranks is tried with, every other one in the schedule for throughput.
    pub fn all(ranks: usize) -> Vec<Self> {
        let ragged: Vec<usize> = (0..ranks).map(|rank| [5, 9, 0, 1, 33, 2, 7, 4][rank % 8]).collect();
        let base = Self::new(&ragged);
        let fp8 = Self { dtype: DType::F8E4M3, scales: 3, ..base.clone() };
        let halves = Self { dtype: DType::F16, combine_dtype: DType::F16, ..base.clone() };
        let floats = Self { dtype: DType::F32, combine_dtype: DType::F32, ..base.clone() };
        let cases = vec![
            base.clone(),
            // Rows that are no multiple of 16 bytes, and odd addresses.
            Self { hidden: 7, ..base.clone() },
            Self { hidden: 24, shift: 2, ..base.clone() },
            Self { hidden: 1, topk: 1, ..base.clone() },
            fp8.clone(),
            Self { hidden: 100, combine_dtype: DType::F32, index: Index::I64, ..fp8 },
            halves.clone(),
            Self { hidden: 13, combine_dtype: DType::BF16, index: Index::I64, topk: 5, ..halves },
            floats.clone(),
            Self { hidden: 3, combine_dtype: DType::F16, shift: 4, ..floats },
            // Many slots, few experts: duplicates; more rows a token than the sum is unrolled for.
            Self { topk: 16, experts: 2 * ranks, hidden: 136, ..base.clone() },
            Self { weighted: false, scaled_experts: false, topk: 8, ..base.clone() },
            Self { only: Some(0), ..base.clone() },
            Self { only: Some(-1), ..base.clone() },
            // Vectors beyond one turn of a wave, more tokens than a block routes at a time.
            Self { hidden: 1400, tokens: vec![3; ranks], ..base.clone() },
            Self {
                hidden: 8,
                tokens: (0..ranks).map(|rank| if rank == 0 { 900 } else { 2 }).collect(),
                ..base.clone()
            },
            // No rank has a token.
            Self { tokens: vec![0; ranks], ..base },
        ];
        Self::alternate(cases, ranks)
    }

    /// In one schedule and the other; by `first` which comes first.
    fn alternate(cases: Vec<Self>, first: usize) -> Vec<Self> {
        let modes = [MoeMode::Auto, MoeMode::Throughput];
        cases.into_iter().enumerate().map(|(number, case)| Self { mode: modes[(number + first) % 2], ..case }).collect()
    }

    /// The cases of the scaled types, given and quantised in dispatch.
    pub fn types(ranks: usize) -> Vec<Self> {
        let base = Self::new(&(0..ranks).map(|rank| [5, 9, 0, 1, 33, 2, 7, 4][rank % 8]).collect::<Vec<_>>());
        let fnuz = Self { dtype: DType::F8E4M3FNUZ, scales: 3, ..base.clone() };
        let fp4 = Self { dtype: DType::F4E2M1, scales: 2, ..base.clone() };
        let given = [
            fnuz.clone(),
            Self { hidden: 101, scales: 101, combine_dtype: DType::F32, ..fnuz },
            fp4.clone(),
            // An odd number of elements, blocks that begin within a byte, odd addresses.
            Self { hidden: 25, scales: 5, combine_dtype: DType::F32, shift: 1, ..fp4.clone() },
            Self { hidden: 1, scales: 1, combine_dtype: DType::F16, ..fp4.clone() },
            Self { hidden: 1536, scales: 48, ..fp4 },
        ];
        let quantized = |(dtype, (hidden, scales, shift))| Self {
            dtype,
            hidden,
            scales,
            shift,
            quantize: true,
            combine_dtype: DType::F32,
            ..base.clone()
        };
        // Blocks of a power of two of vectors, also as many as a wave of 64 has lanes, and one block more than there are
        // elements for; then sizes that are no power of two, more than a wave, and odd; odd addresses; no elements.
        let shapes = [
            (1152, 9, 0),
            (272, 18, 0),
            (7, 2, 0),
            (16, 1, 0),
            (48, 3, 0),
            (2048, 2, 0),
            (2048, 1, 0),
            (1600, 2, 0),
            (1120, 10, 0),
            (1, 1, 0),
            (5, 4, 0),
            (40, 40, 0),
            (1030, 9, 0),
            (64, 4, 2),
            (40, 3, 1),
        ];
        let ocp = shapes.map(|shape| (DType::F8E4M3, shape));
        // Only the codes are another type's.
        let fnuz = shapes[..3].iter().map(|shape| (DType::F8E4M3FNUZ, *shape));
        let cases = given.into_iter().chain(ocp.into_iter().chain(fnuz).map(quantized)).collect();
        Self::alternate(cases, ranks)
    }

    /// Type of x.
    pub fn x_dtype(&self) -> DType {
        self.config(1).x_dtype()
    }

    /// The problem, of any bits.
    pub fn problem(&self, seed: u64) -> Problem {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let ranks = self.tokens.len();
        let rank = |&tokens: &usize| RankInput {
            tokens,
            x: (0..tokens * self.x_dtype().row_bytes(self.hidden) / self.x_dtype().bytes())
                .flat_map(|_| element(self.x_dtype(), &mut random))
                .collect(),
            scales: (0..if self.quantize { 0 } else { tokens * self.scales }).map(|_| float(&mut random)).collect(),
            topk_idx: (0..tokens * self.topk)
                .map(|_| match (random.next_u32() % 8, self.only) {
                    (0, _) => -1,
                    (_, Some(expert)) => expert,
                    (_, None) => (random.next_u32() as usize % self.experts) as i32,
                })
                .collect(),
            topk_weights: (0..if self.weighted { tokens * self.topk } else { 0 }).map(|_| float(&mut random)).collect(),
        };
        Problem {
            dtype: self.dtype,
            combine_dtype: self.combine_dtype,
            hidden: self.hidden,
            topk: self.topk,
            scales: self.scales,
            quantize: self.quantize,
            expert_rank: Problem::block_map(self.experts, ranks),
            expert_scale: self.scaled_experts.then(|| (0..self.experts).map(|e| 0.25 + e as f32 / 3.0).collect()),
            weighted: self.weighted,
            ranks: self.tokens.iter().map(rank).collect(),
        }
    }

    /// The operation that it needs.
    pub fn config(&self, sets: u32) -> MoeConfig {
        let capacity = self.tokens.iter().copied().max().unwrap_or(0).max(1);
        MoeConfig {
            dtype: self.dtype,
            scales: self.scales,
            quantize: self.quantize,
            combine_dtype: self.combine_dtype,
            weighted: self.weighted,
            sets,
            mode: self.mode,
            combine: self.combine,
            ..MoeConfig::new(capacity, self.hidden, self.topk, Problem::block_map(self.experts, self.tokens.len()))
        }
    }

    /// The layout of a rank, if there is one.
    fn arranged(&self, moe: &GpuMoe, cache: &Cache) -> Result<Option<Arranged>> {
        if self.layout == Layout::Rows {
            return Ok(None);
        }
        Ok(Some(Arranged::new(moe, self.layout, self.alignment, self.copied, self.shift, cache)?))
    }

    /// Runs `rounds` rounds of different problems in turn on two sets, from poisoned buffers, and compares every bit.
    pub fn check(&self, devices: &[Device], options: &GpuMoeOptions, cache: &Cache, rounds: usize) -> Result<()> {
        let operations = GpuMoe::in_process(devices, &self.config(2), options, cache)?;
        let problems: Vec<Problem> = (0..rounds).map(|round| self.problem(round as u64 + 1)).collect();
        let parts = operations.iter().map(|moe| {
            problems.iter().map(|problem| DeviceProblem::new(moe, problem, self.index, self.shift)).collect()
        });
        let parts = parts.collect::<std::result::Result<Vec<Vec<_>>, GpuMoeError>>()?;
        for (moe, parts) in operations.iter().zip(&parts) {
            for (set, part) in parts.iter().take(2).enumerate() {
                moe.poison(Set(set as u32), &part.stream, 0xa5)?;
            }
        }
        let arranged = operations.iter().map(|moe| self.arranged(moe, cache)).collect::<Result<Vec<_>>>()?;
        for (round, problem) in problems.iter().enumerate() {
            let set = Set(round as u32 % 2);
            for ((moe, parts), arranged) in operations.iter().zip(&parts).zip(&arranged) {
                let part = &parts[round];
                part.poison(0x5a)?;
                // SAFETY: the part of this rank, alive until the end of the check, which waits for its stream.
                unsafe {
                    match arranged {
                        None => moe.launch_round(set, part)?,
                        Some(arranged) => {
                            arranged.poison(&part.stream, 0x5a)?;
                            arranged.launch_round(moe, set, part)?;
                        }
                    }
                }
            }
            let expected = solve(problem);
            let mut got = Solution::default();
            for (rank, (moe, parts)) in operations.iter().zip(&parts).enumerate() {
                let part = &parts[round];
                moe.finish(&part.stream, PATIENCE)?;
                let mut output = part.output(problem)?;
                output.received = moe.received(set, &part.stream)?;
                let counts = moe.read_expert_counts(set, &part.stream)?;
                let mut wanted = vec![0; moe.plan().local_experts()];
                for &expert in expected.ranks[rank].received.topk_idx.iter().filter(|expert| **expert >= 0) {
                    wanted[expert as usize] += 1;
                }
                if counts != wanted {
                    return Err(
                        format!("{self:?}, round {round}, rank {rank}: counts {counts:?}, not {wanted:?}").into()
                    );
                }
                if let Some(arranged) = &arranged[rank] {
                    let (config, experts) = (moe.plan().config(), moe.plan().local_experts());
                    let received = &expected.ranks[rank].received;
                    arranged::check(arranged, &part.stream, config, received, devices.len(), experts, self.alignment)
                        .map_err(|error| format!("{self:?}, round {round}, rank {rank}: {error}"))?;
                }
                got.ranks.push(output);
            }
            compare(problem, &expected, &got).map_err(|mismatch| format!("{self:?}, round {round}: {mismatch}"))?;
        }
        Ok(())
    }
}

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

fn float(random: &mut Xoshiro256PlusPlus) -> f32 {
    match random.next_u32() % 16 {
        0 => -0.0,
        1 => f32::from_bits(1),
        2 => -1.5e38,
        _ => (random.next_u32() % 2000) as f32 / 700.0 - 1.0,
    }
}
