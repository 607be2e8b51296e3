//! Times of dispatch and combine, with the link's limit from the same run.
//!
//! `dispatch` and `combine` are one launch each between two events of a stream, behind a round that was launched just
//! before, so that the launch itself is hidden where the kernel is long. `pair` is a round of a graph of ten, `in graph`
//! a dispatch and a combine of such a graph, between stamps, less what a stamp takes. Medians over iterations, the slowest rank. Results come back by pull or by
//! push, which has arms for the number of blocks that send.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use campanile_core::MoeCombine;
use campanile_gpu::{Cache, Coherence, Compile, Device, Graph, Grid, Pins, Plan, Residency, Source, Stamps, Stream};
use campanile_moe::gpu::exchange::DeviceProblem;
use campanile_moe::gpu::{GpuMoe, GpuMoeOptions, Index};
use campanile_moe::model::{compare, solve};
use campanile_moe::protocol::Set;
use campanile_moe::routing::{Router, Routing};
use campanile_moe::{DType, MoeConfig, Problem, RankInput, Solution};
use serde_json::json;

use crate::case::{PATIENCE, Result};

const TOPK: usize = 8;
const EXPERTS: usize = 256;
/// Rounds of a graph.
const ROUNDS: usize = 10;
const SET: Set = Set(0);

/// A benchmark: its sizes and type.
#[derive(Clone, Copy)]
pub struct Shape {
    pub tokens: usize,
    pub hidden: usize,
    pub dtype: DType,
    /// Whether x is bf16, quantised to the type by dispatch.
    pub quantize: bool,
}

impl Shape {
    /// Tokens of all ranks.
    pub fn problem(&self, ranks: usize) -> Problem {
        let expert_rank = Problem::block_map(EXPERTS, ranks);
        let scales = self.dtype.default_scales(self.hidden);
        let rank = |rank: usize| {
            let routed = Router::new(Routing::Uniform, TOPK, 1).route(rank, ranks, self.tokens, &expert_rank);
            // Small positive numbers in each of the types.
            let x_dtype = if self.quantize { DType::BF16 } else { self.dtype };
            let x = (0..self.tokens * x_dtype.row_bytes(self.hidden)).map(|at| match x_dtype {
                DType::BF16 => [(at * 7 + rank) as u8 & 0x7f, 0x3f][at % 2],
                _ => 0x30 + (at * 7 + rank) as u8 % 16,
            });
            RankInput {
                tokens: self.tokens,
                x: x.collect(),
                scales: vec![0.5; if self.quantize { 0 } else { self.tokens * scales }],
                topk_idx: routed.topk_idx,
                topk_weights: routed.topk_weights,
            }
        };
        Problem {
            dtype: self.dtype,
            combine_dtype: DType::BF16,
            hidden: self.hidden,
            topk: TOPK,
            scales,
            quantize: self.quantize,
            expert_scale: None,
            weighted: true,
            ranks: (0..ranks).map(rank).collect(),
            expert_rank,
        }
    }

    /// The operation for them.
    pub fn config(&self, problem: &Problem, combine: MoeCombine) -> MoeConfig {
        MoeConfig {
            combine,
            dtype: self.dtype,
            scales: problem.scales,
            quantize: self.quantize,
            sets: 1,
            ..MoeConfig::new(self.tokens, self.hidden, TOPK, problem.expert_rank.clone())
        }
    }
}

/// Times of one geometry, microseconds.
#[derive(Clone, Copy, Default)]
struct Times {
    dispatch: f64,
    combine: f64,
    pair: f64,
    /// A dispatch and a combine of a graph of rounds.
    in_graph: [f64; 2],
}

/// Times ranks on these devices, each of which is `sharing` ranks'.
pub fn run(
    devices: &[Device],
    sharing: u32,
    options: &GpuMoeOptions,
    cache: &Cache,
    counts: &[usize],
    small: bool,
    by: MoeCombine,
) -> Result<()> {
    let ranks = devices.len();
    let mut rows = Vec::new();
    let (stores, loads) = link(devices, cache, small)?;
    println!("link, all ranks at once: peer stores {stores:.0} GB/s, peer loads {loads:.0} GB/s a GPU");
    let hidden = if small { 64 } else { 7168 };
    println!(
        "{:>6} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>15} {:>14}",
        "tokens", "type", "dispatch", "combine", "dispatch", "combine", "pair", "in graph", "GB/s of limit"
    );
    for &tokens in counts {
        for (dtype, quantize) in [(DType::F8E4M3, false), (DType::F8E4M3, true), (DType::BF16, false)] {
            let shape = Shape { tokens, hidden, dtype, quantize };
            let problem = shape.problem(ranks);
            let most = devices[0].multiprocessors() / sharing;
            for (number, options) in arms(tokens, small, sharing, most, options, by).into_iter().enumerate() {
                let operations = GpuMoe::in_process(devices, &shape.config(&problem, by), &options, cache)?;
                let part = |moe| DeviceProblem::new(moe, &problem, Index::I32, 0);
                let parts = operations.iter().map(part).collect::<std::result::Result<Vec<_>, _>>()?;
                if number == 0 {
                    verify(&operations, &parts, &problem)?;
                }
                let times = time(&operations, &parts, cache, small)?;
                let bytes = |row: usize| -> f64 {
                    let wire = (0..ranks).map(|rank| crossing(&problem, rank) * row);
                    wire.max().unwrap_or(0) as f64
                };
                let out =
                    bytes(dtype.row_bytes(hidden) + problem.scales * 4 + 4 * (1 + 2 * TOPK)) / times.dispatch / 1e3;
                let back = bytes(2 * hidden) / times.combine / 1e3;
                let limit = if by == MoeCombine::Push { stores } else { loads };
                let [dispatch, combine] = operations[0].grids();
                let grid = |grid: Grid| format!("{}x{}", grid.blocks, grid.threads);
                let senders = options.senders.map_or_else(String::new, |senders| format!(" {senders} send"));
                println!(
                    "{tokens:>6} {:>8} {:>9} {:>9} {:>9.1} {:>9.1} {:>9.1} {:>7.1} {:>7.1} {:>6.0} {:>3.0}% {:>4.0} {:>3.0}%{senders}",
                    if quantize { "to fp8" } else { dtype.name() },
                    grid(dispatch),
                    grid(combine),
                    times.dispatch,
                    times.combine,
                    times.pair,
                    times.in_graph[0],
                    times.in_graph[1],
                    out,
                    100.0 * out / stores,
                    back,
                    100.0 * back / limit,
                );
                rows.push(json!({
                    "ranks": ranks, "tokens": tokens, "hidden": hidden, "topk": TOPK, "experts": EXPERTS,
                    "dtype": dtype.name(), "quantize": quantize, "combine": by.to_string(), "senders": options.senders,
                    "dispatch_grid": grid(dispatch), "combine_grid": grid(combine),
                    "dispatch_us": times.dispatch, "combine_us": times.combine, "pair_graph_us": times.pair,
                    "in_graph_us": times.in_graph, "dispatch_wire_gbs": out, "combine_wire_gbs": back,
                }));
            }
        }
    }
    println!("{}", json!({ "peer_stores_gbs": stores, "peer_loads_gbs": loads, "rows": rows }));
    Ok(())
}

/// What is tried, the table's geometry first; where several ranks share a device, of at most `most` blocks, since the blocks
/// of a combine wait for the other ranks' first ones.
fn arms(
    tokens: usize,
    small: bool,
    sharing: u32,
    most: u32,
    options: &GpuMoeOptions,
    by: MoeCombine,
) -> Vec<GpuMoeOptions> {
    if by == MoeCombine::Pull {
        let pinned = |pins: [Pins; 2]| GpuMoeOptions { dispatch: pins[0], combine: pins[1], ..*options };
        return geometries(tokens, small, sharing, most).into_iter().map(pinned).collect();
    }
    let arm = |blocks: u32, threads, senders: u32| {
        let blocks = if sharing > 1 { blocks.min(most) } else { blocks }.max(1);
        let combine = Pins { blocks: Some(blocks), threads: Some(threads), shared_bytes: None };
        let dispatch = if sharing > 1 { combine } else { Pins::default() };
        GpuMoeOptions { dispatch, combine, senders: Some(senders.min(blocks)), ..*options }
    };
    let mut all = if sharing > 1 { Vec::new() } else { vec![*options] };
    match tokens {
        _ if small => all.push(arm(2, 64, 1)),
        4096 => {
            all.extend([32, 48, 64, 88, 110, 132].map(|senders| arm(132, 512, senders)));
            all.extend([arm(264, 256, 128), arm(264, 256, 176), arm(24, 512, 16), arm(24, 512, 20)]);
        }
        128 => all.extend([arm(132, 512, 44), arm(132, 512, 132), arm(64, 512, 32), arm(128, 256, 64)]),
        _ => all.extend([arm(16, 256, 2), arm(16, 256, 8), arm(8, 512, 1), arm(4, 256, 1)]),
    }
    all
}

/// Geometries of dispatch and of combine by pull.
fn geometries(tokens: usize, small: bool, sharing: u32, most: u32) -> Vec<[Pins; 2]> {
    let pins = |blocks: u32, threads| {
        let blocks = if sharing > 1 { blocks.min(most) } else { blocks };
        Pins { blocks: Some(blocks.max(1)), threads: Some(threads), shared_bytes: None }
    };
    if small {
        return vec![if sharing > 1 { [pins(2, 64); 2] } else { [Pins::default(); 2] }];
    }
    let mut all = if sharing > 1 { Vec::new() } else { vec![[Pins::default(); 2]] };
    all.extend(match tokens {
        4096 => vec![
            [pins(24, 512), pins(24, 512)],
            [pins(24, 512), pins(24, 384)],
            [pins(48, 512), pins(48, 512)],
            [pins(132, 256), pins(132, 384)],
            [pins(264, 256), pins(264, 256)],
        ],
        128 => vec![
            [pins(24, 512), pins(24, 512)],
            [pins(64, 512), pins(64, 512)],
            [pins(128, 512), pins(132, 256)],
            [pins(128, 128), pins(128, 512)],
            [pins(16, 512), pins(16, 512)],
        ],
        _ => vec![
            [pins(1, 512), pins(1, 512)],
            [pins(1, 256), pins(2, 512)],
            [pins(1, 128), pins(4, 256)],
            [pins(2, 512), pins(16, 64)],
        ],
    });
    all.dedup();
    all
}

/// Rows that a rank sends to others.
fn crossing(problem: &Problem, rank: usize) -> usize {
    let owners = |slots: &[i32]| {
        let mut owners: Vec<u32> =
            slots.iter().filter(|e| **e >= 0).map(|e| problem.expert_rank[*e as usize]).collect();
        owners.sort_unstable();
        owners.dedup();
        owners.iter().filter(|owner| **owner as usize != rank).count()
    };
    problem.ranks[rank].topk_idx.chunks_exact(problem.topk).map(owners).sum()
}

fn verify(operations: &[GpuMoe], parts: &[DeviceProblem], problem: &Problem) -> Result<()> {
    for (moe, part) in operations.iter().zip(parts) {
        part.poison(0x5a)?;
        // SAFETY: the part of this rank, alive until its stream is done.
        unsafe { moe.launch_round(SET, part)? };
    }
    let mut got = Solution::default();
    for (moe, part) in operations.iter().zip(parts) {
        moe.finish(&part.stream, PATIENCE)?;
        let mut output = part.output(problem)?;
        output.received = moe.received(SET, &part.stream)?;
        got.ranks.push(output);
    }
    compare(problem, &solve(problem), &got)?;
    Ok(())
}

/// A barrier of threads that spins, so that ranks start together.
pub struct Meeting {
    ranks: usize,
    arrived: AtomicUsize,
}

impl Meeting {
    /// Of so many threads.
    pub fn new(ranks: usize) -> Self {
        Self { ranks, arrived: AtomicUsize::new(0) }
    }

    /// Returns when all are here.
    pub fn meet(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let target = (self.arrived.fetch_add(1, Ordering::AcqRel) / self.ranks + 1) * self.ranks;
        while self.arrived.load(Ordering::Acquire) < target {
            if Instant::now() > deadline {
                return Err("another rank did not come".into());
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

fn time(operations: &[GpuMoe], parts: &[DeviceProblem], cache: &Cache, small: bool) -> Result<Times> {
    let meeting = Meeting::new(operations.len());
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = operations
            .iter()
            .zip(parts)
            .map(|(moe, part)| scope.spawn(|| time_rank(moe, part, cache, &meeting, if small { 4 } else { 40 })))
            .collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a rank panicked")?).collect::<Result<Vec<_>>>()
    })?;
    let slowest = |of: fn(&Times) -> f64| all.iter().map(of).fold(0.0, f64::max);
    Ok(Times {
        dispatch: slowest(|times| times.dispatch),
        combine: slowest(|times| times.combine),
        pair: slowest(|times| times.pair),
        in_graph: [slowest(|times| times.in_graph[0]), slowest(|times| times.in_graph[1])],
    })
}

fn time_rank(moe: &GpuMoe, part: &DeviceProblem, cache: &Cache, meeting: &Meeting, iterations: usize) -> Result<Times> {
    let stream = &part.stream;
    let events = (0..3).map(|_| moe.device().event()).collect::<std::result::Result<Vec<_>, _>>()?;
    // SAFETY: the part outlives its stream's work, which is waited for in every iteration.
    let dispatch = || unsafe { moe.dispatch(SET, stream, &part.tokens) };
    // SAFETY: as above.
    let combine = || unsafe { moe.combine(SET, stream, &part.out) };
    let stamps = Stamps::new(moe.device(), 2 * ROUNDS + 1, cache)?;
    let capture = |stamped: bool| -> Result<Graph> {
        let stamp = |number| if stamped { stamps.stamp(stream, number) } else { Ok(()) };
        stream.capture(|_| {
            stamp(0)?;
            for round in 0..ROUNDS {
                dispatch()?;
                stamp(2 * round + 1)?;
                combine()?;
                stamp(2 * round + 2)?;
            }
            Ok(())
        })
    };
    let (pairs, stamped) = (capture(false)?, capture(true)?);
    let overhead = stamps.overhead(stream)?.as_secs_f64();
    let (mut dispatches, mut combines, mut pair_times, mut in_graph) = (vec![], vec![], vec![], [vec![], vec![]]);
    for _ in 0..iterations {
        meeting.meet()?;
        dispatch()?;
        combine()?;
        events[0].record(stream)?;
        dispatch()?;
        events[1].record(stream)?;
        combine()?;
        events[2].record(stream)?;
        events[2].synchronize(PATIENCE)?;
        moe.check()?;
        dispatches.push(events[1].since(&events[0])?.as_secs_f64() * 1e6);
        combines.push(events[2].since(&events[1])?.as_secs_f64() * 1e6);
        meeting.meet()?;
        events[0].record(stream)?;
        // SAFETY: as above.
        unsafe { pairs.launch(stream)? };
        events[1].record(stream)?;
        events[1].synchronize(PATIENCE)?;
        moe.check()?;
        pair_times.push(events[1].since(&events[0])?.as_secs_f64() * 1e6 / ROUNDS as f64);
        meeting.meet()?;
        // SAFETY: as above.
        unsafe { stamped.launch(stream)? };
        moe.finish(stream, PATIENCE)?;
        let spans = stamps.spans(stream)?;
        for (phase, times) in in_graph.iter_mut().enumerate() {
            let sum: f64 = spans[phase..].iter().step_by(2).map(|span| span.as_secs_f64() - overhead).sum();
            times.push(sum * 1e6 / ROUNDS as f64);
        }
    }
    Ok(Times {
        dispatch: median(dispatches),
        combine: median(combines),
        pair: median(pair_times),
        in_graph: in_graph.map(median),
    })
}

/// The median without the first eighth, which warms up.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.drain(..values.len() / 8);
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The argument of `smoke_copy`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Copy16 {
    source: u64,
    target: u64,
    count: u64,
}

/// GB/s of a GPU that copies to its neighbour, and from it, all at once.
fn link(devices: &[Device], cache: &Cache, small: bool) -> Result<(f64, f64)> {
    let bytes: usize = if small { 1 << 16 } else { 256 << 20 };
    let mut memories = Vec::new();
    for device in devices {
        let memory = device.allocate_virtual(2 * bytes, Coherence::Uncached)?;
        for peer in devices.iter().filter(|peer| peer.ordinal() != device.ordinal()) {
            memory.allow_access(peer)?;
        }
        memories.push(memory);
    }
    let meeting = Meeting::new(devices.len());
    let addresses: Vec<u64> = memories.iter().map(campanile_gpu::VirtualMemory::address).collect();
    let one = |rank: usize| -> Result<[f64; 2]> {
        let device = &devices[rank];
        let module = device.compile(&Source::smoke(), &Compile::default(), cache)?;
        let grid = Grid { blocks: 2 * device.multiprocessors(), threads: 1024, shared_bytes: 0 };
        let plan = Plan::<Copy16>::new(&module, "smoke_copy", grid, Residency::Any)?;
        let stream: Stream = device.stream()?;
        let events = [device.event()?, device.event()?];
        let (own, peer) = (addresses[rank], addresses[(rank + 1) % devices.len()]);
        let mut rates = [0.0; 2];
        for (rate, (source, target)) in rates.iter_mut().zip([(own, peer + bytes as u64), (peer, own + bytes as u64)]) {
            let mut times = Vec::new();
            for _ in 0..12 {
                meeting.meet()?;
                events[0].record(&stream)?;
                // SAFETY: both halves are mapped for this device; the stream is waited for.
                unsafe { plan.launch(&stream, &Copy16 { source, target, count: bytes as u64 / 16 })? };
                events[1].record(&stream)?;
                events[1].synchronize(PATIENCE)?;
                times.push(events[1].since(&events[0])?.as_secs_f64() * 1e9);
            }
            *rate = bytes as f64 / median(times);
        }
        Ok(rates)
    };
    let rates = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..devices.len()).map(|rank| scope.spawn(move || one(rank))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a rank panicked")?).collect::<Result<Vec<_>>>()
    })?;
    let least = |at: usize| rates.iter().map(|rates| rates[at]).fold(f64::INFINITY, f64::min);
    Ok((least(0), least(1)))
}
