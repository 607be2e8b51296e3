//! `campanile bench barrier`.
//!
//! Barriers run in batches; a batch lasts until its last rank is through, and its time over its barriers is one value.

use std::sync::Arc;

use anyhow::{Context, anyhow};
use campanile::host::clock::now_ns;
use campanile::{Barrier, Communicator};
use serde::{Deserialize, Serialize};

use super::{Span, percentile, print_json};
use crate::exit::Error;
use crate::job::Job;
use crate::output::print;
use crate::ranks::{Options, Ranks};

/// Arguments of `campanile bench barrier`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of ranks
    #[arg(long, short = 'n', default_value_t = 2)]
    ranks: usize,
    /// Barriers that are timed
    #[arg(long, default_value_t = 10_000)]
    iters: usize,
    /// Barriers before them
    #[arg(long, default_value_t = 1_000)]
    warmup: usize,
    #[command(flatten)]
    ranks_options: Options,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Most barriers: each batch of them is kept, by every rank.
const MOST_ITERATIONS: usize = 100_000_000;
/// Barriers in a batch, at most.
const BATCH: usize = 100;

/// The benchmark as every rank is told of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    batches: usize,
    batch: usize,
    warmup: usize,
}

impl Settings {
    /// One rank's part: the spans of the batches as JSON.
    pub fn run(&self, comm: &Arc<Communicator>) -> anyhow::Result<Vec<u8>> {
        let mut barrier = Barrier::new(comm)?;
        for _ in 0..self.warmup {
            barrier.wait()?;
        }
        let mut spans: Vec<Span> = Vec::with_capacity(self.batches);
        for _ in 0..self.batches {
            let start = now_ns();
            for _ in 0..self.batch {
                barrier.wait()?;
            }
            spans.push([start, now_ns()]);
        }
        Ok(serde_json::to_vec(&spans)?)
    }
}

#[derive(Serialize)]
struct Report {
    ranks: usize,
    ranks_as: &'static str,
    iters: usize,
    warmup: usize,
    median_us: f64,
    p99_us: f64,
    max_over_mean: f64,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<(), Error> {
    if args.iters == 0 {
        return Err(Error::input(anyhow!("--iters is 0; at least one barrier is timed")));
    }
    if args.iters > MOST_ITERATIONS {
        return Err(Error::input(anyhow!("--iters is {}; at most {MOST_ITERATIONS} are timed", args.iters)));
    }
    let ranks = Ranks::new(args.ranks, &args.ranks_options, None)?;
    // Twenty batches at least, where there are as many barriers: the figures are over batches.
    let batch = (args.iters / 20).clamp(1, BATCH);
    let settings = Settings { batches: args.iters.div_ceil(batch), batch, warmup: args.warmup };
    let results = ranks.run(&Job::BenchBarrier(settings.clone()), |comm| settings.run(comm))?;
    let spans = results.iter().map(|result| serde_json::from_slice(result).context("a rank's result"));
    let spans: Vec<Vec<Span>> = spans.collect::<anyhow::Result<_>>()?;
    // A batch starts when the one before has ended everywhere, so its ranks' own spans are the makespan, give or take
    // one barrier; the longest is taken.
    let own = |rank: &Vec<Span>| {
        rank.iter().map(|[start, end]| (end - start) as f64 / 1e3 / batch as f64).collect::<Vec<_>>()
    };
    let own: Vec<_> = spans.iter().map(own).collect();
    let longest: Vec<_> = (0..settings.batches).map(|i| own.iter().map(|rank| rank[i]).fold(0.0, f64::max)).collect();
    let medians: Vec<_> = own.into_iter().map(|rank| percentile(rank, 0.5)).collect();
    let mean = medians.iter().sum::<f64>() / medians.len() as f64;
    let report = Report {
        ranks: args.ranks,
        ranks_as: args.ranks_options.ranks_as.name(),
        iters: settings.batches * batch,
        warmup: args.warmup,
        median_us: percentile(longest.clone(), 0.5),
        p99_us: percentile(longest, 0.99),
        max_over_mean: medians.iter().copied().fold(0.0, f64::max) / mean,
    };
    if args.json {
        return print_json(&report);
    }
    let mut text = String::new();
    text += &format!(
        "barrier of {} {}: median {:.3} µs, p99 {:.3} µs, max/mean {:.2} ({} barriers in batches of {batch})\n",
        report.ranks, report.ranks_as, report.median_us, report.p99_us, report.max_over_mean, report.iters
    );
    print(&text)
}
