//! `campanile moe`: one exchange, on a file or on a made-up problem, verified.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use campanile::core::{MoeCombine, MoeMode};
use campanile::moe::exchange::{self, ExchangeOptions, Exchanged, Layout, Times};
use campanile::moe::gpu::{self, GpuMoeOptions};
use campanile::moe::model;
use campanile::moe::{RankOutput, Received, Solution};
use campanile::{Barrier, Communicator, DType, Problem};
use serde::{Deserialize, Serialize};

use crate::device::{self, Devices};
use crate::device_limit::DeviceLimit;
use crate::exit::Error;
use crate::job::Job;
use crate::limit::Limit;
use crate::moe_file::{self, GenerateOptions, generate};
use crate::moe_report::{Phase, Report, Run, Shape, Verification};
use crate::output::print;
use crate::progress;
use crate::ranks::{Options, Ranks, named};
use crate::traffic::{row_bytes, rows};

/// Arguments of `campanile moe`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Problem to exchange, a safetensors file: x.R, topk_idx.R and, optional, topk_weights.R, scales.R, expert_scale,
    /// expert_rank; metadata experts. Without it a problem is made up: 128 tokens a rank, hidden 7168, top-8 of 256, bf16
    #[arg(long, short)]
    input: Option<PathBuf>,
    /// Where to write out.R and, with weights, out_weights.R, as safetensors
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Also write what every rank received: recv_x.R, recv_src.R, recv_topk_idx.R, …
    #[arg(long, requires = "output")]
    dump_recv: bool,
    /// Number of ranks; with --input, that of the file [default: 4]
    #[arg(long, short = 'n')]
    ranks: Option<usize>,
    /// Schedule of dispatch, on devices also of combine [default: what CAMPANILE_MOE_MODE says, else auto]
    #[arg(long, value_parser = named::<MoeMode>(&["auto", "throughput", "low-latency"]))]
    mode: Option<MoeMode>,
    /// Who moves the results [default: what CAMPANILE_MOE_COMBINE says, else auto]
    #[arg(long, value_parser = named::<MoeCombine>(&["auto", "pull", "push"]))]
    combine: Option<MoeCombine>,
    /// In which layout the experts work: rows, compact or expert-major
    #[arg(long, value_parser = layout, default_value = "rows")]
    layout: Layout,
    /// Type of the results: bf16, f16 or f32 [default: that of x, bf16 for f8 and f4]
    #[arg(long, value_parser = combine_dtype)]
    combine_dtype: Option<DType>,
    /// Quantise rows, which are bf16, in dispatch: fp8 (OCP E4M3) or fp8-fnuz, with a scale for each 128 elements
    #[arg(long, value_parser = quantize)]
    quantize: Option<DType>,
    /// Where the ranks' data lies, and what works on it
    #[arg(long, value_enum, default_value_t)]
    device: device::Kind,
    #[command(flatten)]
    ranks_options: Options,
    /// Print one JSON object instead of the report
    #[arg(long)]
    json: bool,
}

fn layout(name: &str) -> Result<Layout, String> {
    Layout::parse(name).ok_or_else(|| "rows, compact or expert-major".to_owned())
}

fn combine_dtype(name: &str) -> Result<DType, String> {
    DType::parse(name).filter(|dtype| dtype.is_combine()).ok_or_else(|| "bf16, f16 or f32".to_owned())
}

fn quantize(name: &str) -> Result<DType, String> {
    match name {
        "fp8" => Ok(DType::F8E4M3),
        "fp8-fnuz" => Ok(DType::F8E4M3FNUZ),
        _ => Err("fp8 or fp8-fnuz".to_owned()),
    }
}

/// The exchange as every rank is told of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exchange {
    /// File of the problem; `None`: made up.
    input: Option<PathBuf>,
    ranks: usize,
    combine_dtype: Option<String>,
    quantize: Option<String>,
    layout: String,
    mode: String,
    combine: String,
    keep_received: bool,
    /// What works on it.
    pub device: device::Kind,
}

impl Exchange {
    /// The problem, from its file or made up.
    pub fn problem(&self) -> anyhow::Result<Problem> {
        let mut problem = match &self.input {
            Some(path) => moe_file::read(path)?,
            None => generate(&GenerateOptions { ranks: self.ranks, ..GenerateOptions::default() }),
        };
        if let Some(dtype) = &self.quantize {
            if problem.dtype != DType::BF16 {
                bail!("--quantize takes bf16 rows, and x.0 is {}; leave it out", problem.dtype);
            }
            problem = problem.quantized(DType::parse(dtype).context("the type to quantise to")?);
        }
        if let Some(dtype) = &self.combine_dtype {
            problem.combine_dtype = DType::parse(dtype).context("the combine type")?;
        }
        Ok(problem)
    }

    fn options(&self) -> anyhow::Result<ExchangeOptions> {
        Ok(ExchangeOptions {
            layout: Layout::parse(&self.layout).context("the layout")?,
            mode: self.mode.parse()?,
            combine: self.combine.parse()?,
            keep_received: self.keep_received,
        })
    }

    /// One rank's part.
    pub fn run(
        &self,
        comm: &Arc<Communicator>,
        problem: &Problem,
        devices: Option<&Devices>,
    ) -> anyhow::Result<Vec<u8>> {
        let Some(devices) = devices else {
            let exchanged = exchange::run(comm, problem, &self.options()?)?;
            return Ok(encode(comm, &exchanged, Limits { copies: measure_limits(comm, problem)?, link: None }));
        };
        let device = devices.of_rank(comm)?;
        let gpu = GpuMoeOptions::default();
        let exchanged = gpu::exchange::run(comm, &device, problem, &self.options()?, &gpu, &devices.cache)?;
        let link = DeviceLimit::new(comm, &device, &devices.cache)?.measure(&mut Barrier::new(comm)?)?;
        Ok(encode(comm, &exchanged, Limits { copies: None, link: Some(link) }))
    }
}

/// Spans of the copies of what dispatch and what combine moves, if they can be had.
fn measure_limits(comm: &Arc<Communicator>, problem: &Problem) -> anyhow::Result<Option<Copies>> {
    let rows = rows(problem);
    let mut barrier = Barrier::new(comm)?;
    let mut spans = Copies::default();
    for (copies, row) in spans.iter_mut().zip(row_bytes(problem)) {
        let bytes = rows[comm.rank()].iter().map(|&rows| rows as usize * row).collect();
        let most = rows.iter().flatten().max().map_or(0, |&rows| rows as usize * row);
        let Some(limit) = Limit::new(comm, bytes, most)? else { return Ok(None) };
        for _ in 0..COPIES {
            copies.push(limit.copy(&mut barrier)?);
        }
    }
    Ok(Some(spans))
}

/// Copies of which the fastest is the limit: one alone is at the mercy of whatever else runs.
const COPIES: usize = 5;

/// Spans of a rank's copies of what dispatch and what combine moves.
type Copies = [Vec<[u64; 2]>; 2];

/// What the phases of a rank are held against.
#[derive(Default, Serialize, Deserialize)]
struct Limits {
    /// Copies of what dispatch and what combine moves, on the host.
    copies: Option<Copies>,
    /// GB/s of stores to a peer and of loads from one, on a device.
    link: Option<[f64; 2]>,
}

/// What stands before the tensors of a rank's result.
#[derive(Serialize, Deserialize)]
struct Header {
    transport: String,
    combine: String,
    dispatch: [u64; 2],
    combine_span: [u64; 2],
    limits: Limits,
    /// Bytes of each tensor.
    lengths: [usize; 7],
}

fn encode(comm: &Communicator, exchanged: &Exchanged, limits: Limits) -> Vec<u8> {
    let RankOutput { out, out_weights, received } = &exchanged.output;
    let f32s = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let i32s = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let tensors = [
        out.clone(),
        f32s(out_weights),
        received.x.clone(),
        f32s(&received.scales),
        i32s(&received.src),
        i32s(&received.topk_idx),
        f32s(&received.topk_weights),
    ];
    let header = Header {
        transport: comm.transport().info().name.to_owned(),
        combine: exchanged.combine.to_string(),
        dispatch: exchanged.times.dispatch,
        combine_span: exchanged.times.combine,
        limits,
        lengths: std::array::from_fn(|tensor| tensors[tensor].len()),
    };
    let header = serde_json::to_vec(&header).expect("numbers and names are always JSON");
    [&(header.len() as u64).to_le_bytes()[..], &header, &tensors.concat()].concat()
}

/// What carried the rows of an exchange.
#[derive(Default)]
struct Carrier {
    transport: String,
    combine: MoeCombine,
}

fn decode(bytes: &[u8]) -> Option<(Carrier, Exchanged, Limits)> {
    let (length, bytes) = bytes.split_first_chunk::<8>()?;
    let (header, mut bytes) = bytes.split_at_checked(u64::from_le_bytes(*length) as usize)?;
    let header: Header = serde_json::from_slice(header).ok()?;
    let mut tensors: [&[u8]; 7] = [&[]; 7];
    for (tensor, length) in tensors.iter_mut().zip(header.lengths) {
        (*tensor, bytes) = bytes.split_at_checked(length)?;
    }
    let words = |bytes: &[u8]| -> Vec<[u8; 4]> { bytes.as_chunks::<4>().0.to_vec() };
    let f32s = |bytes: &[u8]| words(bytes).into_iter().map(f32::from_le_bytes).collect::<Vec<_>>();
    let i32s = |bytes: &[u8]| words(bytes).into_iter().map(i32::from_le_bytes).collect::<Vec<_>>();
    let [out, out_weights, x, scales, src, topk_idx, topk_weights] = tensors;
    let received = Received {
        x: x.to_vec(),
        scales: f32s(scales),
        src: i32s(src),
        topk_idx: i32s(topk_idx),
        topk_weights: f32s(topk_weights),
    };
    let exchanged = Exchanged {
        output: RankOutput { out: out.to_vec(), out_weights: f32s(out_weights), received },
        rows_from: Vec::new(),
        combine: header.combine.parse().ok()?,
        times: Times { dispatch: header.dispatch, combine: header.combine_span },
    };
    let carrier = Carrier { transport: header.transport, combine: exchanged.combine };
    bytes.is_empty().then_some((carrier, exchanged, header.limits))
}

/// Runs the command.
pub fn main(args: &Args) -> Result<(), Error> {
    if let Some(output) = &args.output {
        moe_file::check_writable(output).map_err(Error::input)?;
    }
    let options = &args.ranks_options;
    let config = campanile::bootstrap::configuration().map_err(Error::input)?;
    let combine = args.combine.unwrap_or(config.moe_combine());
    let mut exchange = Exchange {
        input: args.input.clone(),
        ranks: args.ranks.unwrap_or(4),
        combine_dtype: args.combine_dtype.map(|dtype| dtype.name().to_owned()),
        quantize: args.quantize.map(|dtype| dtype.name().to_owned()),
        layout: args.layout.name().to_owned(),
        mode: args.mode.unwrap_or(config.moe_mode()).to_string(),
        combine: combine.to_string(),
        keep_received: args.dump_recv,
        device: args.device,
    };
    Ranks::check(exchange.ranks)?;
    // The ranks read a copy that nobody else can change, so that all of them and the model see the same.
    let snapshot = args.input.as_deref().map(Snapshot::of).transpose().map_err(Error::Input)?;
    exchange.input = snapshot.as_ref().map(Snapshot::path);
    let problem = exchange.problem().map_err(|error| {
        Error::Input(match &args.input {
            Some(input) => rename(error, input),
            None => error,
        })
    })?;
    if let Some(ranks) = args.ranks.filter(|&ranks| ranks != problem.ranks.len()) {
        let found = problem.ranks.len();
        return Err(Error::input(anyhow!(
            "--ranks is {ranks}, but the file has {found} ranks (x.0 to x.{})",
            found - 1
        )));
    }
    exchange.ranks = problem.ranks.len();
    let ranks = Ranks::on(args.device, exchange.ranks, options, Some(combine))?;
    let operation = exchange::config(&problem, &exchange.options().map_err(Error::Failure)?);
    args.device.check_moe(&operation, exchange.ranks, ranks.config().path())?;
    let devices = Devices::open(args.device, ranks.config())?;
    if let Some(devices) = &devices {
        devices.warn_if_shared(exchange.ranks);
    }

    let spinner = progress::spinner("exchanging");
    let results = ranks.run(&Job::Moe(exchange.clone()), |comm| exchange.run(comm, &problem, devices.as_ref()))?;
    spinner.set_message("verifying");
    let decoded = results.iter().map(|result| decode(result).context("a rank's result cannot be read"));
    let (mut carrier, mut exchanged, mut limits) = (Carrier::default(), Vec::new(), Vec::new());
    for decoded in decoded {
        let (of_rank, exchanged_by_rank, limits_of_rank) = decoded?;
        carrier = of_rank; // the same on every rank: communicator and operation agreed on it
        exchanged.push(exchanged_by_rank);
        limits.push(limits_of_rank);
    }
    let spans: Vec<_> = exchanged.iter().map(|exchanged| exchanged.times).collect();
    let solution = Solution { ranks: exchanged.into_iter().map(|exchanged| exchanged.output).collect() };
    let verification = verify(&problem, &solution, exchange.keep_received);
    let verified = verification.verified();
    if let Some(output) = args.output.as_ref().filter(|_| verified) {
        moe_file::write(output, &problem, &solution, args.dump_recv)?;
    }
    spinner.finish_and_clear();

    let report = report(args, &ranks, &exchange, &problem, carrier, &spans, &limits, verification);
    let text = if args.json { report.json() + "\n" } else { report.text(std::io::stdout().is_terminal()) };
    print(&text)?;
    if !verified {
        bail_unverified(args)?;
    }
    Ok(())
}

fn bail_unverified(args: &Args) -> anyhow::Result<()> {
    let kept = if args.output.is_some() { "; the output was not written" } else { "" };
    bail!("the result differs from the model (see the report){kept}; this is a defect of campanile, please report it")
}

/// An error that names the file that the user gave.
fn rename(error: anyhow::Error, input: &std::path::Path) -> anyhow::Error {
    match error.downcast_ref::<moe_file::FileError>() {
        Some(moe_file::FileError::Format { cause, .. }) => anyhow!("{}: {cause}", input.display()),
        _ => error.context(format!("{}", input.display())),
    }
}

fn verify(problem: &Problem, solution: &Solution, kept: bool) -> Verification {
    let mut expected = model::solve(problem);
    if !kept {
        expected.ranks.iter_mut().for_each(|rank| rank.received = Received::default());
    }
    let compared = model::compare(problem, &expected, solution);
    let received_rows = solution.ranks.iter().map(|rank| rank.received.src.len() as u64 / 2).sum();
    match compared {
        Ok(verified) => {
            let bound = model::bound(problem, solution);
            Verification {
                elements: (verified.out + verified.out_weights) as u64,
                received_rows,
                mismatches: 0,
                first_mismatch: None,
                max_error: bound.error,
                max_error_over_bound: bound.ratio,
            }
        }
        Err(mismatch) => Verification {
            elements: expected.ranks.iter().map(|rank| rank.out.len() / problem.combine_dtype.bytes()).sum::<usize>()
                as u64,
            received_rows,
            mismatches: match mismatch {
                model::Mismatch::Element { count, .. } => count as u64,
                _ => 1,
            },
            first_mismatch: Some(mismatch.to_string()),
            max_error: f64::NAN,
            max_error_over_bound: f64::NAN,
        },
    }
}

#[expect(clippy::too_many_arguments, reason = "a report joins all that the run knows, once")]
fn report(
    args: &Args,
    ranks: &Ranks,
    exchange: &Exchange,
    problem: &Problem,
    carrier: Carrier,
    spans: &[Times],
    limits: &[Limits],
    verification: Verification,
) -> Report {
    let rows = rows(problem);
    let wire: u64 = rows.iter().enumerate().map(|(s, row)| row.iter().sum::<u64>() - row[s]).sum();
    let phase = |which: usize, row: usize, spans: Vec<[u64; 2]>| {
        let copies: Option<Vec<_>> = limits.iter().map(|limits| Some(&limits.copies.as_ref()?[which])).collect();
        let pulled = usize::from(which == 1 && carrier.combine == MoeCombine::Pull);
        let link: Option<f64> = limits.iter().map(|limits| Some(limits.link?[pulled])).sum();
        let limit = copies.map(|copies| {
            let of_all = |copy: usize| copies.iter().map(|rank| rank[copy]).collect::<Vec<_>>();
            let us =
                (0..COPIES).map(|copy| Phase::new(row as u64, &of_all(copy), None).us).fold(f64::INFINITY, f64::min);
            (wire * row as u64) as f64 / us / 1e3
        });
        Phase::new(row as u64, &spans, limit.or(link).filter(|limit| limit.is_finite() && *limit > 0.0))
    };
    let [dispatch_row, combine_row] = row_bytes(problem);
    let input = match &args.input {
        Some(input) => input.display().to_string(),
        None => format!("made up: {}", GenerateOptions { ranks: exchange.ranks, ..GenerateOptions::default() }),
    };
    Report {
        problem: Shape {
            input,
            tokens: problem.ranks.iter().map(|rank| rank.tokens).collect(),
            hidden: problem.hidden,
            topk: problem.topk,
            experts: problem.experts(),
            x_dtype: problem.x_dtype().name(),
            dtype: problem.dtype.name(),
            combine_dtype: problem.combine_dtype.name(),
            weighted: problem.weighted,
            expert_scale: problem.expert_scale.is_some(),
        },
        run: Run {
            ranks_as: ranks.ranks_as().name().to_owned(),
            device: args.device.name().to_owned(),
            transport: carrier.transport,
            path: ranks.config().path().name().to_owned(),
            mode: exchange.mode.clone(),
            combine: carrier.combine.to_string(),
            layout: exchange.layout.clone(),
            output: args.output.as_ref().map(|output| output.display().to_string()),
        },
        dispatch: phase(0, dispatch_row, spans.iter().map(|times| times.dispatch).collect()),
        combine: phase(1, combine_row, spans.iter().map(|times| times.combine).collect()),
        rows,
        verification,
    }
}

/// A copy of the input in memory of this process, which ranks that are processes open too.
struct Snapshot {
    file: std::fs::File,
}

impl Snapshot {
    fn of(path: &std::path::Path) -> anyhow::Result<Self> {
        let context = || format!("{}", path.display());
        // Asked before it is opened: to open a pipe is to wait for its writer.
        if !std::fs::metadata(path).with_context(context)?.is_file() {
            bail!("{} is not a regular file; give a safetensors file", path.display());
        }
        let mut from = std::fs::File::open(path).with_context(context)?;
        let memory = rustix::fs::memfd_create("campanile-input", rustix::fs::MemfdFlags::CLOEXEC)?;
        let mut file = std::fs::File::from(memory);
        std::io::copy(&mut from, &mut file).with_context(context)?;
        Ok(Self { file })
    }

    /// A path that leads to it as long as this process lives, for processes of the same user.
    fn path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }
}
