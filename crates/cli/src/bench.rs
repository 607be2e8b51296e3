//! `campanile bench`: measurements beside the limit of the same machine, in the same run.
//!
//! One iteration lasts from the first rank's start to the last rank's end, on one clock. Medians and percentiles are over
//! iterations, `max_over_mean` is over ranks. Wire bytes go to other ranks, scales, routing and weights included; logical
//! bytes include what stays. A rate is of all ranks together, 10^9 bytes a second.

pub use campanile::gpu::link::percentile;
use serde::Serialize;

use crate::exit::Error;
use crate::output::print;

pub mod barrier;
pub mod collective;
mod device_barrier;
pub mod link;
pub mod moe;
pub mod put;
mod size;

/// What is measured.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// MoE dispatch and combine
    Moe(moe::Args),
    /// The barrier
    Barrier(barrier::Args),
    /// Broadcast, with every rank in turn as its root
    Broadcast(collective::Args),
    /// All-gather
    AllGather(collective::Args),
    /// One-sided puts between two ranks, by load / store and by the queue
    Put(put::Args),
    /// Links between GPUs: the limits that ratios are taken to
    ///
    /// An iteration runs each arm once, all ranks (threads of this process) meeting before it; its value is the time between
    /// two events of a stream around the transfer, of the slowest rank. Medians and 99th percentiles are over iterations.
    /// GB/s is 10^9 bytes a second that one GPU sends or takes, over the median.
    ///
    /// Peer stores: a kernel loads own memory and stores into peers' windows. Peer loads: a kernel loads from peers' windows
    /// and keeps nothing. Bulk loads: the same, by bulk copies into shared memory (sm_90). Copy engines: copy calls of the
    /// library into peers' windows, a stream a peer. All to all: the same bytes with every peer, all ranks at once; pair:
    /// rank 0 with rank 1, the others idle. HBM copy: within own memory; bytes read and bytes written both count.
    ///
    /// Flag: two kernels raise a word in each other's window in turn; a round trip is one turn of both, one way is half of
    /// it. With the host: the same between a kernel and a thread, in pinned memory. Barrier: the device barrier of all
    /// ranks, one of many in a launch, and one launch of many in a graph.
    ///
    /// Where ranks share a device, a peer's window is other memory of the same device and no link is crossed; copy calls may
    /// then be kernels of the library.
    Link(link::Args),
}

/// Runs the command.
pub fn main(command: &Command) -> Result<(), Error> {
    match command {
        Command::Moe(args) => moe::main(args),
        Command::Barrier(args) => barrier::main(args),
        Command::Broadcast(args) => collective::main(collective::Kind::Broadcast, args),
        Command::AllGather(args) => collective::main(collective::Kind::AllGather, args),
        Command::Put(args) => put::main(args),
        Command::Link(args) => link::main(args),
    }
}

/// Start and end of one rank's part of one iteration, in nanoseconds of one clock.
pub type Span = [u64; 2];

/// What many iterations took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Median over iterations, µs.
    pub median_us: f64,
    /// 99th percentile over iterations, µs.
    pub p99_us: f64,
    /// Largest of the ranks' medians over their mean.
    pub max_over_mean: f64,
}

impl Summary {
    /// Of the spans of every rank: `[rank][iteration]`, the same number of iterations on each.
    pub fn of_ranks(ranks: &[Vec<Span>]) -> Self {
        let iterations = ranks.first().map_or(0, Vec::len);
        let whole = (0..iterations).map(|i| {
            let start = ranks.iter().map(|rank| rank[i][0]).min().unwrap_or(0);
            let end = ranks.iter().map(|rank| rank[i][1]).max().unwrap_or(0);
            us(end.saturating_sub(start))
        });
        let own = |rank: &Vec<Span>| percentile(rank.iter().map(|[start, end]| us(end - start)).collect(), 0.5);
        let medians: Vec<_> = ranks.iter().map(own).collect();
        let mean = medians.iter().sum::<f64>() / medians.len().max(1) as f64;
        let most = medians.iter().copied().fold(0.0, f64::max);
        let whole: Vec<_> = whole.collect();
        Self {
            median_us: percentile(whole.clone(), 0.5),
            p99_us: percentile(whole, 0.99),
            max_over_mean: if mean > 0.0 { most / mean } else { 1.0 },
        }
    }
}

fn us(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

/// Prints one JSON object.
pub fn print_json(value: &impl Serialize) -> Result<(), Error> {
    print(&(serde_json::to_string(value)? + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_lasts_from_the_first_start_to_the_last_end() {
        let ranks = vec![vec![[1_000, 3_000], [10_000, 12_000]], vec![[2_000, 9_000], [11_000, 14_000]]];
        let summary = Summary::of_ranks(&ranks);
        assert_eq!(summary.median_us, 4.0);
        assert_eq!(summary.p99_us, 8.0);
        // Medians of the ranks: 2 and 3 (nearest rank of [3, 7] at 0.5 is the first).
        assert_eq!(summary.max_over_mean, 3.0 / 2.5);
    }
}
