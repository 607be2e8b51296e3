//! The runner: one rank's part of a run.
//!
//! The body of a case runs on a thread of its own; this rank waits for it until the deadline, puts how it ended into the
//! bootstrap, and reads there how it ended elsewhere. So every rank has the same verdict, and goes on to the next case
//! only when all have ended this one.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use campanile_core::{
    Bootstrap, BootstrapError, MemoryKind, OpKind, OpenError, PeerClass, Probed, Rank, Team, Transport, TransportPlugin,
};

use super::case::Case;
use super::finding::{End, Stop, Verdict, failed};
use super::need::Ground;
use super::report::{Outcome, Report};
use super::stage::Stage;

/// What ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RanksAre {
    /// Threads of this process. One dies by dropping its transport.
    Threads,
    /// Processes, a job for each case. One dies by SIGKILL.
    Processes,
}

/// What the windows of the cases are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowsIn {
    /// Memory of the host.
    Host,
    /// Memory of the device that the transport has on each rank.
    Device,
}

/// What is examined, and how. The same on every rank.
#[derive(Clone)]
pub struct Suite {
    /// The transport. Plugins are never unloaded; one that is made at run time is leaked.
    pub plugin: &'static dyn TransportPlugin,
    /// Its device; empty for [that of each rank](Probed::of_rank).
    pub device: String,
    /// What its windows are in.
    pub windows_in: WindowsIn,
    /// What ranks are.
    pub ranks_are: RanksAre,
    /// Upper bound of every wait in a case. A case may take three times as long.
    pub timeout: Duration,
    /// Where random delays and bytes come from.
    pub seed: u64,
    /// Most bytes that a case may take on one rank.
    pub memory: u64,
}

impl Suite {
    /// A suite for that transport, with host memory, waits of 10 s, and cases of up to 64 MiB.
    pub fn new(plugin: &'static dyn TransportPlugin, ranks_are: RanksAre) -> Self {
        let timeout = Duration::from_secs(10);
        let windows_in = WindowsIn::Host;
        Self { plugin, device: String::new(), windows_in, ranks_are, timeout, seed: 1, memory: 64 << 20 }
    }

    /// How long a case may take before it is given up.
    pub fn deadline(&self) -> Duration {
        self.timeout.saturating_mul(3)
    }
}

/// The suite could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// The transport has no usable device.
    #[error("transport {transport} has no usable device: {reasons}")]
    NoDevice {
        /// Transport.
        transport: &'static str,
        /// Its devices and why each was left out.
        reasons: String,
    },
    /// The transport has host memory only.
    #[error("transport {transport} has no device memory on device {device}")]
    NoDeviceMemory {
        /// Transport.
        transport: &'static str,
        /// Its device.
        device: String,
    },
    /// The transport could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The ranks did not find each other.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
}

/// Runs `cases` as one rank of the job that `bootstrap` tells of, and calls `observer` after each. Collective, with the
/// same suite and cases on every rank; once for a bootstrap.
///
/// # Errors
/// [`SuiteError`] if there is nothing to examine. What is wrong with the transport is in the report.
pub fn run(
    suite: &Suite,
    bootstrap: &Arc<dyn Bootstrap>,
    cases: &[&'static Case],
    mut observer: impl FnMut(&Outcome),
) -> Result<Report, SuiteError> {
    let (rank, ranks) = (bootstrap.rank(), bootstrap.ranks());
    let team = Team::world(ranks);
    let nodes = bootstrap.all_gather(&team, "nodes", bootstrap.node().identity().as_bytes(), suite.timeout)?;
    let near = nodes.iter().all(|node| *node == nodes[rank.index()]);
    let lower = nodes[..rank.index()].iter().filter(|node| **node == nodes[rank.index()]);
    let device = device(suite, lower.count())?;
    let stage_in = |memory, scope: &str| Stage::new(suite, (&device, memory), bootstrap, scope, &nodes);
    // Opened to be asked for its caps; nobody connects to it.
    let transport = stage_in(MemoryKind::Host, "caps").try_open(suite.timeout)?;
    let memory = window_memory(suite.windows_in, &*transport, &device)?;
    let stage = |scope: &str| stage_in(memory, scope);
    let others = if near { PeerClass::Node } else { PeerClass::Remote };
    let ground = Ground { suite, ranks, transport: &*transport, others, memory };
    let mut report = Report::default();
    for &case in cases {
        let start = Instant::now();
        let stage = stage(case.name());
        let lacks = case.needs().iter().find_map(|&need| ground.lacks(need));
        let end = match lacks {
            Some(reason) => End::Stopped(Stop::Skipped { reason }),
            None => play(case, stage.clone(), suite.deadline()),
        };
        stage.put_end(&end)?;
        let all_ended = Instant::now() + suite.deadline() + suite.timeout;
        let ends = (0..ranks).map(|member| {
            let end = stage.end_of(member, all_ended.saturating_duration_since(Instant::now()))?;
            let lost = || End::Stopped(failed("an end of its part", "none: it crashed, or it hangs"));
            Ok((Rank::new(member), end.unwrap_or_else(lost)))
        });
        let verdict = Verdict::of_ranks(&ends.collect::<Result<Vec<_>, BootstrapError>>()?);
        let outcome = Outcome { case, verdict, took: start.elapsed() };
        observer(&outcome);
        report.outcomes.push(outcome);
    }
    Ok(report)
}

/// The device that is asked for, or that of this rank.
fn device(suite: &Suite, number_on_node: usize) -> Result<String, SuiteError> {
    if !suite.device.is_empty() {
        return Ok(suite.device.clone());
    }
    let probed = suite.plugin.probe();
    if let Some(device) = Probed::of_rank(&probed, number_on_node) {
        return Ok(device.to_owned());
    }
    let reason = |probed: &Probed| Some(format!("{}: {}", probed.device, probed.usable.as_ref().err()?));
    let reasons: Vec<_> = probed.iter().filter_map(reason).collect();
    let reasons = if reasons.is_empty() { "it lists none".to_owned() } else { reasons.join("; ") };
    Err(SuiteError::NoDevice { transport: suite.plugin.info().name, reasons })
}

/// The memory of windows of a transport that was opened on `device`.
///
/// # Errors
/// [`SuiteError::NoDeviceMemory`].
pub fn window_memory(windows_in: WindowsIn, transport: &dyn Transport, device: &str) -> Result<MemoryKind, SuiteError> {
    if windows_in == WindowsIn::Host {
        return Ok(MemoryKind::Host);
    }
    let is_there = |kind: &MemoryKind| transport.caps(PeerClass::Own, *kind, OpKind::Put).is_some();
    (0..64)
        .map(MemoryKind::Device)
        .find(is_there)
        .ok_or_else(|| SuiteError::NoDeviceMemory { transport: transport.info().name, device: device.to_owned() })
}

/// Runs a body on a thread of its own until its deadline; a thread that hangs is left behind.
fn play(case: &'static Case, stage: Stage, deadline: Duration) -> End {
    let (sender, receiver) = mpsc::channel();
    let rank = stage.rank();
    let steps = stage.clone();
    let body = move || {
        let end = match catch_unwind(AssertUnwindSafe(|| case.body()(&stage))) {
            Ok(Ok(())) => End::Done,
            Ok(Err(stop)) => End::Stopped(stop),
            Err(panic) => End::Stopped(failed("no panic", format!("a panic: {}", message(&*panic)))),
        };
        // Nobody listens any more if this thread was left behind.
        let _ = sender.send(end);
    };
    let thread = std::thread::Builder::new().name(format!("{} {rank}", case.name()));
    if let Err(error) = thread.spawn(body) {
        return End::Stopped(Stop::Skipped { reason: format!("no thread can be started: {error}") });
    }
    receiver.recv_timeout(deadline).unwrap_or_else(|_| {
        let seen = format!("it hangs after meeting {} of this rank", steps.meetings());
        End::Stopped(failed(format!("an end within {deadline:.1?}"), seen))
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
