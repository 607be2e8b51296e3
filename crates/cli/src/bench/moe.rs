//! `campanile bench moe`: dispatch and combine, round after round, beside copies of the same bytes.
//!
//! A round is dispatch, then combine by results that the experts wrote in place in the first round, each between two
//! barriers. The weights are not asked back, except in the first and last round, which are not timed. The same ranks copy
//! the same bytes (the limit) before the timed rounds and after them, not in between: the copies take the caches, which
//! the rounds need some ten rounds to win back. The result of the first and of the last round is compared with the scalar
//! model, bit for bit, each rank its own tokens. What differs on devices stands in [`device`].

mod device;
mod report;

use std::sync::Arc;

use anyhow::{Context, anyhow};
use campanile::core::{MoeCombine, MoeMode};
use campanile::host::clock::now_ns;
use campanile::moe::exchange::{Layout, with_experts};
use campanile::moe::routing::{Router, Routing};
use campanile::moe::{RankInput, RankOutput, Received, Solution, model, number};
use campanile::{Barrier, Communicator, DType, Moe, MoeConfig, Outputs, Problem, Set, Tokens};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::{Span, Summary, print_json};
use crate::buffer::Buffer;
use crate::device::{Devices, Kind};
use crate::exit::Error;
use crate::job::Job;
use crate::limit::Limit;
use crate::moe_file::{MAX_EXPERTS, MAX_HIDDEN, MAX_TOPK};
use crate::output::print;
use crate::progress;
use crate::ranks::{Options, Ranks, named};
use crate::traffic::{row_bytes, rows};
use report::{Phase, Report};

/// Arguments of `campanile bench moe`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of ranks
    #[arg(long, short = 'n', default_value_t = 2)]
    ranks: usize,
    /// Tokens of each rank
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Elements of a row
    #[arg(long, default_value_t = 7168)]
    hidden: usize,
    /// Slots of a token
    #[arg(long, default_value_t = 8)]
    topk: usize,
    /// Number of experts
    #[arg(long, default_value_t = 256)]
    experts: usize,
    /// Type of the rows: f32, f16, bf16, f8_e4m3, f8_e4m3fnuz or f4_e2m1; results are of the same type, bf16 for f8 and f4
    #[arg(long, default_value = "bf16", value_parser = dtype)]
    dtype: DType,
    /// Rounds that are timed
    #[arg(long, default_value_t = 50)]
    iters: usize,
    /// Rounds before them
    #[arg(long, default_value_t = 5)]
    warmup: usize,
    /// Schedule of dispatch, on devices also of combine [default: what CAMPANILE_MOE_MODE says, else auto]
    #[arg(long, value_parser = named::<MoeMode>(&["auto", "throughput", "low-latency"]))]
    mode: Option<MoeMode>,
    /// Who moves the results [default: what CAMPANILE_MOE_COMBINE says, else auto]
    #[arg(long, value_parser = named::<MoeCombine>(&["auto", "pull", "push"]))]
    combine: Option<MoeCombine>,
    /// Where the ranks' data lies, and what works on it
    #[arg(long, value_enum, default_value_t)]
    device: Kind,
    /// Multiprocessors that dispatch and combine may take, as so many blocks; needs --device gpu or emulator [default:
    /// what the geometry table says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sms: Option<u32>,
    /// Launch graphs instead of kernels, and time kernels and whole rounds inside a graph of 10; needs --device gpu or emulator
    #[arg(long)]
    graph: bool,
    #[command(flatten)]
    ranks_options: Options,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn dtype(name: &str) -> Result<DType, String> {
    DType::parse(name).ok_or_else(|| DType::ALL.map(DType::name).join(", "))
}

/// Bytes that travel with a row of dispatch, and with a result of a timed combine, which does not ask for the weights.
fn moved(problem: &Problem) -> [usize; 2] {
    [row_bytes(problem)[0], problem.combine_dtype.row_bytes(problem.hidden)]
}

/// Most iterations, and rounds before them: each is kept, by every rank.
const MOST_ITERATIONS: usize = 1_000_000;
/// Copies before the rounds, and again after them.
const COPIES: usize = 10;

/// The benchmark as every rank is told of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    tokens: usize,
    hidden: usize,
    topk: usize,
    experts: usize,
    dtype: String,
    iters: usize,
    warmup: usize,
    mode: String,
    combine: String,
    /// What works on it.
    pub device: Kind,
    sms: Option<u32>,
    graph: bool,
}

/// What a rank measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Measured {
    dispatch: Vec<Span>,
    combine: Vec<Span>,
    /// Of copies of what dispatch and what combine moves.
    limits: [Vec<Span>; 2],
    /// Rows to each rank.
    rows: Vec<u64>,
    verified: bool,
    combine_by: String,
    transport: String,
    /// On a device.
    device: Option<device::Measured>,
}

/// Copies what dispatch and what combine moves, some times.
fn copy_all(limits: &[Option<Limit>], spans: &mut [Vec<Span>; 2], barrier: &mut Barrier) -> anyhow::Result<()> {
    for (limit, spans) in limits.iter().zip(spans) {
        let Some(limit) = limit else { continue };
        for _ in 0..COPIES {
            spans.push(limit.copy(barrier)?);
        }
    }
    Ok(())
}

impl Settings {
    /// The problem with the tokens of one rank only: what it sends and must get out depends on no other's.
    fn problem(&self, rank: usize, ranks: usize) -> anyhow::Result<Problem> {
        let dtype = DType::parse(&self.dtype).context("the type of the rows")?;
        let scales = dtype.default_scales(self.hidden);
        let expert_rank = Problem::block_map(self.experts, ranks);
        let routed = Router::new(Routing::Uniform, self.topk, 0).route(rank, ranks, self.tokens, &expert_rank);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(rank as u64);
        let mut float = || (random.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0;
        let mut input = RankInput {
            tokens: self.tokens,
            x: vec![0; self.tokens * dtype.row_bytes(self.hidden)],
            scales: (0..self.tokens * scales).map(|_| 0.5 + float() / 4.0).collect(),
            topk_idx: routed.topk_idx,
            topk_weights: routed.topk_weights,
        };
        for row in input.x.chunks_exact_mut(dtype.row_bytes(self.hidden)) {
            (0..self.hidden).for_each(|h| number::write(dtype, row, h, float()));
        }
        let mut inputs = vec![RankInput::default(); ranks];
        inputs[rank] = input;
        Ok(Problem {
            dtype,
            combine_dtype: dtype.default_combine(),
            hidden: self.hidden,
            topk: self.topk,
            scales,
            quantize: false,
            expert_scale: Some((0..self.experts).map(|expert| 1.0 + (expert % 4) as f32 / 4.0).collect()),
            expert_rank,
            weighted: true,
            ranks: inputs,
        })
    }

    fn config(&self, problem: &Problem) -> anyhow::Result<MoeConfig> {
        Ok(MoeConfig {
            dtype: problem.dtype,
            scales: problem.scales,
            combine_dtype: problem.combine_dtype,
            sets: 1,
            mode: self.mode.parse()?,
            combine: self.combine.parse()?,
            ..MoeConfig::new(self.tokens.max(1), self.hidden, self.topk, problem.expert_rank.clone())
        })
    }

    /// One rank's part: what it measured, as JSON.
    pub fn run(&self, comm: &Arc<Communicator>, devices: Option<&Devices>) -> anyhow::Result<Vec<u8>> {
        let measured = match devices {
            None => self.run_on_host(comm)?,
            Some(devices) => device::run(self, comm, devices)?,
        };
        Ok(serde_json::to_vec(&measured)?)
    }

    fn run_on_host(&self, comm: &Arc<Communicator>) -> anyhow::Result<Measured> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let problem = self.problem(rank, ranks)?;
        let mut moe = Moe::new(comm, self.config(&problem)?)?;
        let mut barrier = Barrier::new(comm)?;
        let rows = rows(&problem).swap_remove(rank);
        let mut limits = Vec::new();
        for bytes in moved(&problem) {
            let to_each = rows.iter().map(|&rows| rows as usize * bytes).collect();
            limits.push(Limit::new(comm, to_each, self.tokens * bytes)?);
        }
        let (combine_by, transport) = (moe.combine_by().to_string(), comm.transport().info().name.to_owned());
        let mut measured = Measured { rows, combine_by, transport, ..Measured::default() };

        let x = Buffer::of(&problem.ranks[rank].x)?;
        let tokens = Tokens { x: x.as_slice(), ..Tokens::of(&problem, rank) };
        let mut out = Buffer::new(self.tokens * problem.combine_dtype.row_bytes(self.hidden))?;
        let out = out.as_mut_slice();
        let mut weights = vec![0.0; self.tokens * self.topk];
        let expected = Expected::of(&problem);
        let verify = |out: &[u8], weights: &[f32]| expected.verify(rank, out.to_vec(), weights.to_vec());

        let handle = moe.dispatch(Set(0), &tokens)?;
        with_experts(&mut moe, &problem, Layout::Rows, handle, |moe, handle, outputs| {
            moe.combine(handle, outputs, out, Some(&mut weights))
        })?;
        verify(out, &weights).context("the first round")?;

        let mut round =
            |out: &mut [u8], weights: Option<&mut [f32]>, barrier: &mut Barrier| -> anyhow::Result<[Span; 2]> {
                barrier.wait()?;
                let dispatch = now_ns();
                let handle = moe.dispatch(Set(0), &tokens)?;
                let dispatched = now_ns();
                barrier.wait()?;
                let combine = now_ns();
                moe.combine(handle, Outputs::InPlace, out, weights)?;
                Ok([[dispatch, dispatched], [combine, now_ns()]])
            };
        copy_all(&limits, &mut measured.limits, &mut barrier)?;
        for _ in 0..self.warmup {
            round(out, None, &mut barrier)?;
        }
        for _ in 0..self.iters {
            let [dispatch, combine] = round(out, None, &mut barrier)?;
            measured.dispatch.push(dispatch);
            measured.combine.push(combine);
        }
        copy_all(&limits, &mut measured.limits, &mut barrier)?;
        out.fill(0xa5);
        weights.fill(f32::NAN);
        round(out, Some(&mut weights), &mut barrier)?;
        verify(out, &weights).context("the last round")?;
        measured.verified = true;
        Ok(measured)
    }
}

/// What a rank must get out.
struct Expected<'a> {
    problem: &'a Problem,
    solution: Solution,
}

impl<'a> Expected<'a> {
    fn of(problem: &'a Problem) -> Self {
        let mut solution = model::solve(problem);
        solution.ranks.iter_mut().for_each(|rank| rank.received = Received::default());
        Self { problem, solution }
    }

    /// Compares what `rank` got, bit for bit.
    fn verify(&self, rank: usize, out: Vec<u8>, out_weights: Vec<f32>) -> Result<(), model::Mismatch> {
        let mut got = Solution { ranks: vec![RankOutput::default(); self.solution.ranks.len()] };
        got.ranks[rank] = RankOutput { out, out_weights, ..RankOutput::default() };
        model::compare(self.problem, &self.solution, &got).map(drop)
    }
}

/// Runs the command.
pub fn main(args: &Args) -> Result<(), Error> {
    let ranks = Ranks::on(args.device, args.ranks, &args.ranks_options, args.combine)?;
    let bounds = [
        ("--iters", args.iters, 1, MOST_ITERATIONS),
        ("--warmup", args.warmup, 0, MOST_ITERATIONS),
        ("--hidden", args.hidden, 1, MAX_HIDDEN),
        ("--topk", args.topk, 1, MAX_TOPK),
        ("--experts", args.experts, 1, MAX_EXPERTS),
    ];
    if let Some((name, value, least, most)) =
        bounds.into_iter().find(|(_, value, least, most)| !(least..=most).contains(&value))
    {
        return Err(Error::input(anyhow!("{name} is {value}; it is {least} to {most}")));
    }
    // Rows in, rows received and results, on every rank, are three times this at least; experts and weights of a row are
    // 8 bytes a slot.
    let row_bytes = args.dtype.row_bytes(args.hidden) + 8 * args.topk;
    let payload = args.ranks as u128 * args.tokens as u128 * row_bytes as u128;
    if let Ok(available) = campanile::host::memory::available()
        && payload * 3 > u128::from(available)
    {
        return Err(Error::input(anyhow!(
            "--ranks {} with --tokens {} of {} elements and {} slots need more than {} bytes; {available} are available",
            args.ranks,
            args.tokens,
            args.hidden,
            args.topk,
            payload * 3
        )));
    }
    let settings = Settings {
        tokens: args.tokens,
        hidden: args.hidden,
        topk: args.topk,
        experts: args.experts,
        dtype: args.dtype.name().to_owned(),
        iters: args.iters,
        warmup: args.warmup,
        mode: args.mode.unwrap_or(ranks.config().moe_mode()).to_string(),
        combine: args.combine.unwrap_or(ranks.config().moe_combine()).to_string(),
        device: args.device,
        sms: args.sms,
        graph: args.graph,
    };
    let devices = settings.check_device(&ranks, args.ranks)?;
    let spinner = progress::spinner("exchanging");
    let results = ranks.run(&Job::BenchMoe(settings.clone()), |comm| settings.run(comm, devices.as_ref()))?;
    spinner.finish_and_clear();
    let measured = results.iter().map(|result| serde_json::from_slice(result).context("a rank's result"));
    let measured: Vec<Measured> = measured.collect::<anyhow::Result<_>>().map_err(Error::Failure)?;

    let own: u64 = measured.iter().enumerate().map(|(rank, measured)| measured.rows[rank]).sum();
    let all: u64 = measured.iter().flat_map(|measured| &measured.rows).sum();
    let problem = settings.problem(0, 1)?;
    let spans = |pick: fn(&Measured) -> &Vec<Span>| measured.iter().map(|m| pick(m).clone()).collect::<Vec<_>>();
    let of_devices: Option<Vec<_>> = measured.iter().map(|measured| measured.device.as_ref()).collect();
    let phase = |which: usize, row: usize, rounds: Vec<Vec<Span>>, copies: Vec<Vec<Span>>| {
        let (wire_bytes, logical_bytes) = ((all - own) * row as u64, all * row as u64);
        let summary = Summary::of_ranks(&rounds);
        let rate = |us: f64| wire_bytes as f64 / us / 1e3;
        let copied = (!copies[0].is_empty() && wire_bytes > 0).then(|| rate(Summary::of_ranks(&copies).median_us));
        let pulled = usize::from(which == 1 && measured[0].combine_by == MoeCombine::Pull.to_string());
        let link = of_devices.as_ref().map(|ranks| ranks.iter().map(|rank| rank.link[pulled]).sum());
        let limit_gbps = copied.or(link.filter(|&link: &f64| link > 0.0));
        let kernel_us = of_devices.as_ref().map(|ranks| device::slowest(ranks, |rank| &rank.kernel_us[which]));
        let wire_gbps = rate(kernel_us.unwrap_or(summary.median_us));
        Phase {
            kernel_us,
            end_to_end_us: summary.median_us,
            grid: of_devices.as_ref().map(|ranks| ranks[0].grids[which]),
            schedule: of_devices.as_ref().map(|ranks| ranks[0].schedules[which].clone()),
            summary,
            wire_bytes,
            logical_bytes,
            wire_gbps,
            limit_gbps,
            ratio: limit_gbps.map(|limit| wire_gbps / limit),
        }
    };
    let [dispatch_row, combine_row] = moved(&problem);
    let report = Report {
        ranks: args.ranks,
        ranks_as: args.ranks_options.ranks_as.name(),
        device: args.device.name(),
        tokens: args.tokens,
        hidden: args.hidden,
        topk: args.topk,
        experts: args.experts,
        dtype: args.dtype.name(),
        combine_dtype: problem.combine_dtype.name(),
        iters: args.iters,
        warmup: args.warmup,
        transport: measured[0].transport.clone(),
        path: ranks.config().path().name(),
        mode: &settings.mode,
        combine_by: &measured[0].combine_by,
        sms: of_devices.as_ref().map(|ranks| ranks[0].sms),
        graph: args.graph,
        dispatch: phase(0, dispatch_row, spans(|m| &m.dispatch), spans(|m| &m.limits[0])),
        combine: phase(1, combine_row, spans(|m| &m.combine), spans(|m| &m.limits[1])),
        round_us: of_devices.as_ref().filter(|_| args.graph).map(|ranks| device::slowest(ranks, |rank| &rank.round_us)),
        verified: measured.iter().all(|measured| measured.verified),
    };
    if args.json { print_json(&report) } else { print(&report.text()) }
}
