//! `campanile bench broadcast` and `campanile bench all-gather`.
//!
//! Columns and sizes follow nccl-tests: a size is what ends up on every rank (the message; all blocks together); `algbw` is
//! size over time, `busbw` of all-gather is `algbw` × (n − 1) / n. Calls run in batches of about 20 ms without a barrier
//! in between; the root of a broadcast moves on by one with every call, so a call cannot begin before the one before has
//! reached its root. A batch lasts from its first rank's start to its last rank's end, and its time over its calls is one
//! value. Results are checked, in poisoned buffers, before and after.
//!
//! The limit is as many bytes as the collective must write, copied by the ranks that must write them, all at once.

use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};
use campanile::host::clock::now_ns;
use campanile::{AllGather, Barrier, Broadcast, Communicator};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde::{Deserialize, Serialize};

use super::{Span, percentile, print_json, size};
use crate::buffer::Buffer;
use crate::exit::Error;
use crate::job::Job;
use crate::limit::Limit;
use crate::output::print;
use crate::progress;
use crate::ranks::{Options, Ranks};

/// Arguments of the commands.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of ranks
    #[arg(long, short = 'n', default_value_t = 2)]
    ranks: usize,
    /// Smallest size in bytes; K, M and G are powers of 1024
    #[arg(long, short = 'b', default_value = "1K", value_parser = size::parse)]
    min_bytes: usize,
    /// Largest size
    #[arg(long, short = 'e', default_value = "16M", value_parser = size::parse)]
    max_bytes: usize,
    /// Factor from one size to the next
    #[arg(long, short = 'f', default_value_t = 4)]
    step: usize,
    /// Batches that are timed for each size
    #[arg(long, default_value_t = 20)]
    batches: usize,
    #[command(flatten)]
    ranks_options: Options,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// [`Broadcast`].
    Broadcast,
    /// [`AllGather`].
    AllGather,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::AllGather => "all-gather",
        }
    }

    /// What nccl-tests multiplies `algbw` with.
    fn bus_factor(self, ranks: usize) -> f64 {
        match self {
            Self::Broadcast => 1.0,
            Self::AllGather => (ranks - 1) as f64 / ranks as f64,
        }
    }
}

/// Where the bytes are that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Form {
    /// In memory of the caller's.
    Copy,
    /// In the input of the collective.
    Input,
}

const FORMS: [Form; 2] = [Form::Copy, Form::Input];
/// Most batches: the spans of each are kept, by every rank.
const MOST_BATCHES: usize = 1000;
/// What a batch takes, roughly.
const BATCH_NS: u64 = 20_000_000;
/// Most rounds of calls in a batch; a round is a call for every root.
const MOST_ROUNDS: u64 = 5_000;

/// The benchmark as every rank is told of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    kind: Kind,
    sizes: Vec<usize>,
    batches: usize,
}

/// One rank's part of one size.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Part {
    /// Calls in a batch, by form.
    calls: [usize; 2],
    /// By form.
    spans: [Vec<Span>; 2],
    limit: Vec<Span>,
}

/// The collective with its buffers.
enum Subject {
    Broadcast { broadcast: Broadcast, data: Buffer },
    AllGather { all_gather: AllGather, block: Buffer, all: Buffer },
}

impl Subject {
    /// For a size; every rank's input holds what [`verify`](Self::verify) expects of it.
    fn new(comm: &Arc<Communicator>, kind: Kind, bytes: usize) -> anyhow::Result<Self> {
        let rank = comm.rank();
        Ok(match kind {
            Kind::Broadcast => {
                let mut broadcast = Broadcast::new(comm, bytes)?;
                fill(broadcast.input()?, rank);
                Self::Broadcast { broadcast, data: Buffer::new(bytes)? }
            }
            Kind::AllGather => {
                let mut all_gather = AllGather::new(comm, bytes)?;
                fill(all_gather.input()?, rank);
                let mut block = Buffer::new(bytes)?;
                fill(block.as_mut_slice(), rank);
                Self::AllGather { all_gather, block, all: Buffer::new(bytes * comm.ranks())? }
            }
        })
    }

    fn call(&mut self, form: Form, rank: usize, root: usize) -> anyhow::Result<()> {
        match self {
            Self::Broadcast { broadcast, data } => match form {
                Form::Input if rank == root => broadcast.send_input(data.as_slice().len())?,
                _ => broadcast.run(root, data.as_mut_slice())?,
            },
            Self::AllGather { all_gather, block, all } => match form {
                Form::Copy => all_gather.run(block.as_slice(), all.as_mut_slice())?,
                Form::Input => all_gather.run_input(block.as_slice().len(), all.as_mut_slice())?,
            },
        }
        Ok(())
    }

    /// Runs both forms from every root into poisoned buffers; whether every byte is right.
    fn verify(&mut self, comm: &Communicator) -> anyhow::Result<()> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        for form in FORMS {
            for root in 0..ranks {
                match self {
                    Self::Broadcast { data, .. } if rank == root => fill(data.as_mut_slice(), rank),
                    Self::Broadcast { data, .. } => data.as_mut_slice().fill(0xEE),
                    Self::AllGather { all, .. } => all.as_mut_slice().fill(0xEE),
                }
                self.call(form, rank, root)?;
                match self {
                    Self::Broadcast { data, .. } => check(data.as_slice(), root)?,
                    Self::AllGather { block, all, .. } => {
                        let bytes = block.as_slice().len();
                        for peer in 0..ranks {
                            check(&all.as_slice()[peer * bytes..][..bytes], peer)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// The byte at `index` of what `rank` sends.
fn byte(index: usize, rank: usize) -> u8 {
    (index % 251) as u8 ^ (rank as u8 + 1)
}

fn fill(bytes: &mut [u8], rank: usize) {
    bytes.iter_mut().enumerate().for_each(|(index, to)| *to = byte(index, rank));
}

fn check(bytes: &[u8], rank: usize) -> anyhow::Result<()> {
    let wrong = bytes.iter().enumerate().find(|&(index, &seen)| seen != byte(index, rank));
    ensure!(wrong.is_none(), "a wrong byte of rank {rank}: (index, value) {wrong:?} of {}", bytes.len());
    Ok(())
}

impl Settings {
    /// One rank's part: what each size took as JSON.
    pub fn run(&self, comm: &Arc<Communicator>) -> anyhow::Result<Vec<u8>> {
        let parts = self.sizes.iter().map(|&size| self.of_size(comm, size));
        Ok(serde_json::to_vec(&parts.collect::<anyhow::Result<Vec<_>>>()?)?)
    }

    fn of_size(&self, comm: &Arc<Communicator>, size: usize) -> anyhow::Result<Part> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let bytes = if self.kind == Kind::AllGather { size / ranks } else { size };
        let mut barrier = Barrier::new(comm)?;
        let mut told = Broadcast::new(comm, 8)?;
        let mut subject = Subject::new(comm, self.kind, bytes)?;
        subject.verify(comm)?;
        let mut part = Part::default();
        for batch in 0..=self.batches {
            for (index, form) in FORMS.into_iter().enumerate() {
                // The first batch warms up and sets the size of the others, as rank 0 measures it.
                let calls = if batch == 0 { 2 * ranks } else { part.calls[index] };
                barrier.wait()?;
                let start = now_ns();
                for call in 0..calls {
                    subject.call(form, rank, call % ranks)?;
                }
                let end = now_ns();
                if batch > 0 {
                    part.spans[index].push([start, end]);
                } else {
                    let round = (end - start) / 2;
                    let mut rounds = (BATCH_NS / round.max(1)).clamp(1, MOST_ROUNDS).to_le_bytes();
                    told.run(0, &mut rounds)?;
                    part.calls[index] = u64::from_le_bytes(rounds) as usize * ranks;
                }
            }
        }
        subject.verify(comm)?;
        drop(subject);
        part.limit = self.limit(comm, bytes, &mut barrier)?;
        Ok(part)
    }

    /// Copies as many bytes as a call must write, by the ranks that must write them.
    fn limit(&self, comm: &Arc<Communicator>, bytes: usize, barrier: &mut Barrier) -> anyhow::Result<Vec<Span>> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let copies = match self.kind {
            // All but the root copy the message.
            Kind::Broadcast => (0..ranks).map(|peer| if peer == rank && rank > 0 { bytes } else { 0 }).collect(),
            Kind::AllGather => vec![bytes; ranks],
        };
        let Some(limit) = Limit::new(comm, copies, bytes)? else { return Ok(Vec::new()) };
        (0..=self.batches).map(|_| limit.copy(barrier)).skip(1).collect()
    }
}

#[derive(Serialize)]
struct Row {
    bytes: usize,
    form: Form,
    calls: usize,
    median_us: f64,
    p10_us: f64,
    p90_us: f64,
    p99_us: f64,
    algbw_gbps: f64,
    busbw_gbps: f64,
    /// What copying the same bytes takes; absent where load / store does not reach.
    limit_us: Option<f64>,
    /// The limit over the time.
    of_limit: Option<f64>,
}

impl Row {
    fn new(kind: Kind, ranks: usize, bytes: usize, form: usize, parts: &[&Part]) -> Self {
        let calls = parts[0].calls[form];
        let values: Vec<_> =
            makespans(parts.iter().map(|part| &part.spans[form])).iter().map(|us| us / calls as f64).collect();
        let limit = makespans(parts.iter().map(|part| &part.limit));
        let limit_us = (!limit.is_empty()).then(|| percentile(limit, 0.5));
        let at = |fraction| percentile(values.clone(), fraction);
        let median_us = at(0.5);
        let algbw_gbps = if median_us > 0.0 { bytes as f64 / median_us / 1e3 } else { 0.0 };
        Self {
            bytes,
            form: FORMS[form],
            calls: calls * values.len(),
            median_us,
            p10_us: at(0.1),
            p90_us: at(0.9),
            p99_us: at(0.99),
            algbw_gbps,
            busbw_gbps: algbw_gbps * kind.bus_factor(ranks),
            limit_us,
            of_limit: limit_us.filter(|_| median_us > 0.0).map(|limit| limit / median_us),
        }
    }
}

/// From the first start to the last end of each batch, µs.
fn makespans<'a>(ranks: impl Iterator<Item = &'a Vec<Span>> + Clone) -> Vec<f64> {
    let batches = ranks.clone().next().map_or(0, Vec::len);
    let makespan = |batch: usize| {
        let start = ranks.clone().map(|rank| rank[batch][0]).min().unwrap_or(0);
        let end = ranks.clone().map(|rank| rank[batch][1]).max().unwrap_or(0);
        super::us(end.saturating_sub(start))
    };
    (0..batches).map(makespan).collect()
}

/// Runs the command.
pub fn main(kind: Kind, args: &Args) -> Result<(), Error> {
    let sizes = size::series(args.min_bytes, args.max_bytes, args.step)?;
    if !(1..=MOST_BATCHES).contains(&args.batches) {
        return Err(Error::input(anyhow!("--batches is {}; 1 to {MOST_BATCHES} are timed", args.batches)));
    }
    let ranks = Ranks::new(args.ranks, &args.ranks_options, None)?;
    // Blocks of all-gather are of one size: what is left over is not sent.
    let sizes = match kind {
        Kind::Broadcast => sizes,
        Kind::AllGather => sizes.into_iter().map(|size| size / args.ranks * args.ranks).collect(),
    };
    let settings = Settings { kind, sizes, batches: args.batches };
    let spinner = progress::spinner(kind.name());
    let results = ranks.run(&Job::BenchCollective(settings.clone()), |comm| settings.run(comm))?;
    spinner.finish_and_clear();
    let ranks: Vec<Vec<Part>> = results
        .iter()
        .map(|result| serde_json::from_slice(result).context("a rank's result"))
        .collect::<anyhow::Result<_>>()?;
    let mut rows = Vec::new();
    for (index, &bytes) in settings.sizes.iter().enumerate() {
        let parts: Vec<_> = ranks.iter().map(|rank| &rank[index]).collect();
        rows.extend((0..FORMS.len()).map(|form| Row::new(kind, args.ranks, bytes, form, &parts)));
    }
    if args.json {
        #[derive(Serialize)]
        struct Report {
            collective: &'static str,
            ranks: usize,
            ranks_as: &'static str,
            /// A wrong byte ends a run before there is a report.
            verified: bool,
            rows: Vec<Row>,
        }
        let ranks_as = args.ranks_options.ranks_as.name();
        return print_json(&Report { collective: kind.name(), ranks: args.ranks, ranks_as, verified: true, rows });
    }
    let mut table = comfy_table::Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.set_header(["size", "form", "time µs", "p99 µs", "algbw GB/s", "busbw GB/s", "copy limit µs", "of limit"]);
    for row in &rows {
        let form = if row.form == Form::Copy { "copy" } else { "input" };
        table.add_row([
            row.bytes.to_string(),
            form.to_owned(),
            format!("{:.2}", row.median_us),
            format!("{:.2}", row.p99_us),
            format!("{:.2}", row.algbw_gbps),
            format!("{:.2}", row.busbw_gbps),
            row.limit_us.map_or("–".to_owned(), |limit| format!("{limit:.2}")),
            row.of_limit.map_or("–".to_owned(), |part| format!("{part:.2}")),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    let ranks_as = args.ranks_options.ranks_as.name();
    let head = format!("{} of {} {ranks_as}, results checked, {} batches", kind.name(), args.ranks, args.batches);
    print(&format!("{head}\n{table}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_lasts_from_the_first_start_to_the_last_end() {
        let of = |spans: Vec<Span>| Part { calls: [4, 4], spans: [spans, vec![]], limit: vec![[0, 500]] };
        let parts = [of(vec![[1_000, 3_000]]), of(vec![[2_000, 9_000]])];
        let row = Row::new(Kind::AllGather, 2, 4_000, 0, &parts.iter().collect::<Vec<_>>());
        assert_eq!((row.median_us, row.algbw_gbps, row.busbw_gbps), (2.0, 2.0, 1.0));
        assert_eq!((row.limit_us, row.of_limit, row.calls), (Some(0.5), Some(0.25), 4));
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let mut bytes = vec![0; 1000];
        fill(&mut bytes, 3);
        assert!(check(&bytes, 3).is_ok());
        assert!(check(&bytes, 2).is_err());
        bytes[999] ^= 1;
        assert!(check(&bytes, 3).is_err());
    }
}
