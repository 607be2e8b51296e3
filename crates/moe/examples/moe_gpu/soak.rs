//! A soak: one captured graph a rank, replayed with fresh tokens, counts and routing each time, every element of every
//! round checked.
//!
//! A replay is a round on each of two sets. The graph takes the inputs from pinned memory, which the host fills anew, and
//! poisons what the round must write: outputs and the results that experts leave in the window, and the rows once the
//! experts have read them. Numbers are small integers, so sums are exact in any order and each rank knows its results
//! from its own tokens: x times the sum of the weights of its valid slots. A stale row, a lost one or one of another round
//! is another number. No rank waits for another but through the words.

use campanile_core::MoeMode;
use campanile_gpu::{Address, Coherence, Device, DeviceMemory, Graph, HostMemory, Stream};
use campanile_moe::gpu::{DeviceOut, DeviceTokens, GpuMoe, GpuMoeError, GpuMoeOptions, Index};
use campanile_moe::protocol::Set;
use campanile_moe::{MoeConfig, Problem};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::case::{PATIENCE, Result};

const CAPACITY: usize = 48;
const HIDDEN: usize = 136;
const TOPK: usize = 5;
/// Of each rank.
const EXPERTS: usize = 3;
const SETS: usize = 2;
const POISON: u8 = 0x7e;
/// Bytes of a row of x and of out, both bf16.
const ROW: usize = HIDDEN * 2;
/// Where in a set's input the tensors begin; the count is in front.
const X: usize = 16;
const INDEX: usize = X + CAPACITY * ROW;
const WEIGHTS: usize = INDEX + CAPACITY * TOPK * 4;
const INPUT: usize = (WEIGHTS + CAPACITY * TOPK * 4).next_multiple_of(16);
/// A set's output: sums, then weights.
const OUT_WEIGHTS: usize = CAPACITY * ROW;
const OUTPUT: usize = OUT_WEIGHTS + CAPACITY * TOPK * 4;

/// Runs `rounds` rounds, two a replay, on as many ranks as there are devices.
pub fn run(
    devices: &[Device],
    mode: MoeMode,
    options: &GpuMoeOptions,
    cache: &campanile_gpu::Cache,
    rounds: usize,
) -> Result<()> {
    let ranks = devices.len();
    let config = MoeConfig {
        mode,
        sets: SETS as u32,
        ..MoeConfig::new(CAPACITY, HIDDEN, TOPK, Problem::block_map(EXPERTS * ranks, ranks))
    };
    let operations = GpuMoe::in_process(devices, &config, options, cache)?;
    let soak = |(seed, moe): (usize, &GpuMoe)| -> Result<()> {
        let result = Part::new(moe, ranks, seed as u64).and_then(|mut part| part.soak(rounds.div_ceil(SETS)));
        if result.is_err() {
            // So that the others do not wait for it.
            operations.iter().for_each(GpuMoe::abort);
        }
        result.map_err(|error| format!("rank {seed}: {error}").into())
    };
    std::thread::scope(|scope| {
        let soak = &soak;
        let ranks: Vec<_> = operations.iter().enumerate().map(|part| scope.spawn(move || soak(part))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().map_err(|_| "a rank panicked")?)
    })
}

/// One rank's part.
struct Part<'a> {
    moe: &'a GpuMoe,
    stream: Stream,
    graph: Graph,
    /// Inputs of the sets, filled by the host.
    input: HostMemory,
    output: DeviceMemory,
    experts: usize,
    random: Xoshiro256PlusPlus,
    /// Holds what the graph uses.
    _memories: [DeviceMemory; 2],
}

impl<'a> Part<'a> {
    fn new(moe: &'a GpuMoe, ranks: usize, seed: u64) -> Result<Self> {
        let device = moe.device();
        let (stream, input) = (device.stream()?, device.allocate_host(SETS * INPUT)?);
        let inputs = device.allocate(SETS * INPUT, Coherence::Coarse)?;
        let output = device.allocate(SETS * OUTPUT, Coherence::Coarse)?;
        let planes = (0..SETS as u32).flat_map(|set| [moe.rows(Set(set)), moe.outputs(Set(set))]);
        let plane_bytes = |stride: usize| stride * CAPACITY * ranks;
        let poison =
            device.allocate(planes.map(|plane| plane_bytes(plane.stride)).max().unwrap_or(0), Coherence::Coarse)?;
        // SAFETY: the memory outlives the stream's work.
        unsafe { stream.fill(&poison, POISON)? };
        let graph = stream.capture::<GpuMoeError>(|stream| {
            // SAFETY: all memories live as long as the graph; planes have one row a rank and token of the capacity.
            // A rank may write its results between dispatch and combine; its rows are read by its experts alone, and
            // nobody sends it others before its combine.
            unsafe {
                stream.copy(inputs.address(), input.address(), SETS * INPUT)?;
                stream.fill(&output, POISON)?;
                for set in 0..SETS {
                    let (set, at) = (Set(set as u32), inputs.address() + (set * INPUT) as Address);
                    let tokens = DeviceTokens {
                        count: at,
                        x: at + X as Address,
                        stride: ROW,
                        scales: 0,
                        topk_idx: at + INDEX as Address,
                        index: Index::I32,
                        topk_weights: at + WEIGHTS as Address,
                    };
                    let out = output.address() + (set.index() * OUTPUT) as Address;
                    let to = DeviceOut { count: at, out, stride: ROW, out_weights: out + OUT_WEIGHTS as Address };
                    let (rows, outputs) = (moe.rows(set), moe.outputs(set));
                    moe.dispatch(set, stream, &tokens)?;
                    stream.copy(outputs.address, poison.address(), plane_bytes(outputs.stride))?;
                    moe.scale(set, stream, 0)?;
                    stream.copy(rows.address, poison.address(), plane_bytes(rows.stride))?;
                    moe.combine(set, stream, &to)?;
                }
            }
            Ok(())
        })?;
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        Ok(Self { moe, stream, graph, input, output, experts: EXPERTS * ranks, random, _memories: [inputs, poison] })
    }

    fn soak(&mut self, replays: usize) -> Result<()> {
        let mut given = vec![0; SETS * INPUT];
        let mut got = vec![0; SETS * OUTPUT];
        let mut wanted = vec![0; SETS * OUTPUT];
        for replay in 0..replays {
            wanted.fill(POISON);
            for (given, wanted) in given.chunks_exact_mut(INPUT).zip(wanted.chunks_exact_mut(OUTPUT)) {
                self.draw(given, wanted);
            }
            // SAFETY: as long as the vector; the last replay has ended, so nobody reads it.
            unsafe { self.input.as_ptr().copy_from_nonoverlapping(given.as_ptr(), given.len()) };
            // SAFETY: the graph's memories live as long as `self`.
            unsafe { self.graph.launch(&self.stream)? };
            self.moe.finish(&self.stream, PATIENCE)?;
            self.stream.download(&self.output, 0, &mut got)?;
            if let Some(at) = (0..got.len()).find(|&at| got[at] != wanted[at]) {
                let (set, at) = (at / OUTPUT, at % OUTPUT);
                let place = if at < OUT_WEIGHTS {
                    format!("token {}, element {}", at / ROW, at % ROW / 2)
                } else {
                    format!("weight {}", (at - OUT_WEIGHTS) / 4)
                };
                let (got, wanted) = (got[set * OUTPUT + at], wanted[set * OUTPUT + at]);
                return Err(format!("replay {replay}, set {set}, {place}: byte {got:#x}, not {wanted:#x}").into());
            }
        }
        Ok(())
    }

    /// Draws the input of a set, and what must come back.
    fn draw(&mut self, given: &mut [u8], wanted: &mut [u8]) {
        // Half of all rounds are ragged, the others are empty, full or of a single token.
        let tokens = match self.random.next_u32() % 8 {
            0 => 0,
            1 => 1,
            2 | 3 => CAPACITY,
            _ => self.random.next_u32() as usize % (CAPACITY + 1),
        };
        given[..4].copy_from_slice(&(tokens as u32).to_le_bytes());
        for token in 0..tokens {
            let mut factor = 0;
            for slot in 0..TOPK {
                let drawn = self.random.next_u32();
                let valid = !drawn.is_multiple_of(8);
                let expert = if valid { (drawn >> 8) as i32 % self.experts as i32 } else { -1 };
                let weight = 1 + (drawn >> 4) % 3;
                factor += if valid { weight } else { 0 };
                let at = (token * TOPK + slot) * 4;
                given[INDEX + at..][..4].copy_from_slice(&expert.to_le_bytes());
                given[WEIGHTS + at..][..4].copy_from_slice(&(weight as f32).to_le_bytes());
                let back = if valid { weight as f32 } else { 0.0 };
                wanted[OUT_WEIGHTS + at..][..4].copy_from_slice(&back.to_le_bytes());
            }
            let first = self.random.next_u32();
            for element in 0..HIDDEN {
                // Up to 15 · 16 = 240: exact in bf16.
                let x = 1 + (first + element as u32 * 7) % 16;
                let at = token * ROW + element * 2;
                given[X + at..][..2].copy_from_slice(&bf16(x));
                wanted[at..][..2].copy_from_slice(&bf16(x * factor));
            }
        }
    }
}

/// A small integer as bf16.
fn bf16(value: u32) -> [u8; 2] {
    ((value as f32).to_bits().wrapping_shr(16) as u16).to_le_bytes()
}
