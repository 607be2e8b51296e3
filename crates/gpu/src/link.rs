//! What the links between devices carry: [`measure`], the limits that every ratio of a benchmark is taken to.
//!
//! **Model.** A [`LinkRank`] is one rank's part: its window, and a kernel or a call for each [`Arm`]. All ranks run the same
//! arms in the same order, one at a time and interleaved over iterations, so that they see the same machine. [`measure`]
//! does that with threads of one process; ranks that are processes drive their [`LinkRank`] themselves.
//!
//! **Definitions.** A value is the time of one iteration: between two events of a stream around the transfer, of the
//! slowest rank, after all ranks have met. A rate is what one GPU sends, or takes, over the median: 10^9 bytes a second.
//!
//! | arm | what moves |
//! |---|---|
//! | [`PeerStores`](Arm::PeerStores) | a kernel loads own memory and stores into peers' windows, 16 bytes a lane |
//! | [`PeerLoads`](Arm::PeerLoads) | a kernel loads from peers' windows, 8 × 16 bytes in flight a lane, and keeps nothing |
//! | [`BulkLoads`](Arm::BulkLoads) | one thread a block has 16 chunks of 8 KiB of peers' windows on their way to shared memory; keeps nothing |
//! | [`CopyEngines`](Arm::CopyEngines) | copy calls of the library into peers' windows, a stream a peer |
//! | [`HbmCopy`](Arm::HbmCopy) | a kernel copies within own memory; bytes read and bytes written both count |
//! | [`HbmCopyCall`](Arm::HbmCopyCall) | a copy call of the library within own memory; the same |
//! | [`Flag`](Arm::Flag) | two kernels of one thread raise a word in each other's window in turn; a round trip is one turn of both, one way is half of it |
//! | [`HostFlag`](Arm::HostFlag) | the same between a kernel and a thread of the host, with words in pinned memory |
//!
//! Patterns: *all to all* moves the same bytes to or from every peer, all ranks at once; *pair* is rank 0 with rank 1, the
//! others idle; *own* is every rank by itself, all at once. Ranks that share a device measure that device's memory, and
//! [`LinkReport::shared`] says so.

mod rank;
mod threads;

use serde::Serialize;

use crate::{CallError, CompileError, DeviceCommunicatorError, PlanError};

pub use rank::{LinkLayout, LinkRank};
pub use threads::measure;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Arm {
    /// Stores of a kernel into peers' windows.
    PeerStores,
    /// Loads of a kernel from peers' windows.
    PeerLoads,
    /// Bulk loads from peers' windows into shared memory.
    BulkLoads,
    /// Copy calls into peers' windows.
    CopyEngines,
    /// A copy by a kernel in own memory.
    HbmCopy,
    /// A copy call in own memory.
    HbmCopyCall,
    /// A flag between two devices.
    Flag,
    /// A flag between a device and the host.
    HostFlag,
}

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Every rank with every other.
    AllToAll,
    /// Rank 0 with rank 1.
    Pair,
    /// Every rank by itself.
    Own,
}

/// All that is measured, in the order of each iteration.
pub const ARMS: [(Arm, Pattern); 12] = [
    (Arm::PeerStores, Pattern::AllToAll),
    (Arm::PeerLoads, Pattern::AllToAll),
    (Arm::BulkLoads, Pattern::AllToAll),
    (Arm::CopyEngines, Pattern::AllToAll),
    (Arm::PeerStores, Pattern::Pair),
    (Arm::PeerLoads, Pattern::Pair),
    (Arm::BulkLoads, Pattern::Pair),
    (Arm::CopyEngines, Pattern::Pair),
    (Arm::HbmCopy, Pattern::Own),
    (Arm::HbmCopyCall, Pattern::Own),
    (Arm::Flag, Pattern::Pair),
    (Arm::HostFlag, Pattern::Own),
];

impl Arm {
    /// Whether it is about time, not about bytes.
    #[must_use]
    pub fn is_latency(self) -> bool {
        matches!(self, Self::Flag | Self::HostFlag)
    }

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PeerStores => "peer stores",
            Self::PeerLoads => "peer loads",
            Self::BulkLoads => "bulk loads",
            Self::CopyEngines => "copy engines",
            Self::HbmCopy => "HBM copy, kernel",
            Self::HbmCopyCall => "HBM copy, call",
            Self::Flag => "flag round trip",
            Self::HostFlag => "flag round trip with the host",
        }
    }
}

impl Pattern {
    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AllToAll => "all to all",
            Self::Pair => "pair",
            Self::Own => "own",
        }
    }

    /// Whether a rank takes part.
    #[must_use]
    pub fn includes(self, arm: Arm, rank: usize) -> bool {
        match (self, arm) {
            (Self::AllToAll, _) => true,
            (Self::Pair, Arm::Flag) => rank < 2,
            (Self::Pair, _) => rank == 0,
            (Self::Own, Arm::HostFlag) => rank == 0,
            (Self::Own, _) => true,
        }
    }
}

/// How it is measured.
#[derive(Clone, Copy, Debug)]
pub struct LinkOptions {
    /// Bytes that a rank moves in an iteration; rounded up to 64 KiB a peer.
    pub bytes: usize,
    /// Iterations that count.
    pub iterations: usize,
    /// Iterations before them.
    pub warmup: usize,
    /// Round trips of a flag in an iteration.
    pub round_trips: u32,
    /// Blocks of each kernel, at most one a multiprocessor; `None`: what is fastest as far as known.
    pub sms: Option<u32>,
}

impl Default for LinkOptions {
    /// 256 MiB, 20 iterations after 3, 1000 round trips.
    fn default() -> Self {
        Self { bytes: 256 << 20, iterations: 20, warmup: 3, round_trips: 1000, sms: None }
    }
}

/// One figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkRow {
    /// What.
    pub arm: Arm,
    /// Who.
    pub pattern: Pattern,
    /// Median of the iterations, µs; of a flag, of its round trips.
    pub median_us: f64,
    /// 99th percentile (nearest rank) of the same.
    pub p99_us: f64,
    /// Bytes that a GPU moves in an iteration; 0 for a flag.
    pub bytes: u64,
    /// Bytes over the median, 10^9 bytes a second; `None` for a flag.
    pub gbps: Option<f64>,
}

/// An arm that is not there, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// What.
    pub arm: Arm,
    /// Why not.
    pub reason: String,
}

/// All figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkReport {
    /// Ranks.
    pub ranks: usize,
    /// Whether ranks share a device: a "peer" is then another window of the same device's memory.
    pub shared: bool,
    /// Figures, in the order of [`ARMS`].
    pub rows: Vec<LinkRow>,
    /// What is not among them.
    pub left_out: Vec<LeftOut>,
}

impl LinkReport {
    /// The figure of an arm.
    #[must_use]
    pub fn row(&self, arm: Arm, pattern: Pattern) -> Option<&LinkRow> {
        self.rows.iter().find(|row| row.arm == arm && row.pattern == pattern)
    }

    /// The rate of an arm.
    #[must_use]
    pub fn gbps(&self, arm: Arm, pattern: Pattern) -> Option<f64> {
        self.row(arm, pattern)?.gbps
    }

    /// One way of a flag between two devices, µs: half a round trip.
    #[must_use]
    pub fn flag_us(&self) -> Option<f64> {
        Some(self.row(Arm::Flag, Pattern::Pair)?.median_us / 2.0)
    }
}

/// Why links cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Too few ranks or iterations.
    #[error("{what} {given}; at least {least} needed")]
    Options {
        /// What was given.
        what: &'static str,
        /// How many.
        given: usize,
        /// How many must be.
        least: &'static str,
    },
    /// Another rank has failed, or did not come within the deadline.
    #[error("another rank has failed, or did not come within {seconds} s")]
    Alone {
        /// The deadline.
        seconds: u64,
    },
    /// A flag was not answered.
    #[error("a flag was not answered within {seconds} s")]
    Flag {
        /// The deadline.
        seconds: u64,
    },
    /// The windows could not be made.
    #[error(transparent)]
    Communicator(#[from] DeviceCommunicatorError),
    /// A kernel could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A kernel could not be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The nearest-rank percentile; 0 of nothing.
///
/// ```
/// use campanile_gpu::link::percentile;
/// assert_eq!(percentile(vec![3.0, 1.0, 2.0, 9.0], 0.5), 2.0);
/// ```
#[must_use]
pub fn percentile(mut values: Vec<f64>, fraction: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (fraction * values.len() as f64).ceil() as usize;
    values.get(rank.clamp(1, values.len().max(1)) - 1).copied().unwrap_or(0.0)
}

impl LinkRow {
    /// Of the times of each iteration on the slowest rank, in µs; `bytes` are what a GPU moves.
    #[must_use]
    pub fn new(arm: Arm, pattern: Pattern, times_us: &[f64], bytes: u64) -> Self {
        let median_us = percentile(times_us.to_vec(), 0.5);
        let gbps = (!arm.is_latency() && median_us > 0.0).then(|| bytes as f64 / median_us / 1e3);
        Self { arm, pattern, median_us, p99_us: percentile(times_us.to_vec(), 0.99), bytes, gbps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_median() {
        let times: Vec<f64> = (1..=100).map(f64::from).collect();
        let row = LinkRow::new(Arm::PeerStores, Pattern::Pair, &times, 50_000);
        assert_eq!((row.median_us, row.p99_us, row.gbps), (50.0, 99.0, Some(1.0)));
        let flag = LinkRow::new(Arm::Flag, Pattern::Pair, &[3.0, 2.0, 9.0], 0);
        assert_eq!((flag.median_us, flag.gbps), (3.0, None));
        let report = LinkReport { ranks: 2, shared: false, rows: vec![flag, row], left_out: vec![] };
        assert_eq!((report.flag_us(), report.gbps(Arm::PeerStores, Pattern::Pair)), (Some(1.5), Some(1.0)));
        assert_eq!(report.gbps(Arm::PeerStores, Pattern::AllToAll), None);
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let values: Vec<_> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(values.clone(), 0.5), 50.0);
        assert_eq!(percentile(values.clone(), 0.99), 99.0);
        assert_eq!(percentile(values, 1.0), 100.0);
        assert_eq!(percentile(vec![7.0], 0.01), 7.0);
        assert_eq!(percentile(vec![], 0.5), 0.0);
    }

    #[test]
    fn who_takes_part() {
        let ranks = |(arm, pattern): (Arm, Pattern)| -> Vec<usize> {
            (0..4).filter(|&rank| pattern.includes(arm, rank)).collect()
        };
        assert_eq!(ranks((Arm::PeerLoads, Pattern::AllToAll)), [0, 1, 2, 3]);
        assert_eq!(ranks((Arm::PeerLoads, Pattern::Pair)), [0]);
        assert_eq!(ranks((Arm::Flag, Pattern::Pair)), [0, 1]);
        assert_eq!(ranks((Arm::HostFlag, Pattern::Own)), [0]);
        assert_eq!(ranks((Arm::HbmCopy, Pattern::Own)), [0, 1, 2, 3]);
    }
}
