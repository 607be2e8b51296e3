//! `campanile check`: the conformance suite on this machine.
//!
//! Ranks that are processes are a job for each case, so that a transport that crashes or hangs fails one case and not
//! the run. Ranks that are threads run all cases in this process.

mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use campanile::bootstrap::{Exit, Failure, Launch, Outcome, Output, ThreadBootstrap, join};
use campanile::core::selection::Preference;
use campanile::core::{Bootstrap, Config, ConfigError, HugePages, Node, OpenOptions, Probed, Rank, Shutdown, Source};
use campanile::{Plugins, TransportPlugin};
use campanile_testkit::conformance::{Case, RanksAre, Suite, WindowsIn, cases, run, window_memory};
use serde::{Deserialize, Serialize};

use crate::device;
use crate::exit::Error;
use crate::job::Job;
use crate::progress;
use crate::ranks::{Ranks, RanksAs, duration};
use report::{Listed, Report, Tested, Verdict};

/// Arguments of `campanile check`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Transport, one of those that `campanile info` lists, or the path of a plugin's file [default: what
    /// CAMPANILE_TRANSPORT says first, else shm]
    #[arg(long)]
    transport: Option<String>,
    /// On which devices: gpu and emulator examine transport p2p on them, host whatever transport there is
    #[arg(long, value_enum, default_value_t)]
    device: device::Kind,
    /// Number of ranks; some cases need 3
    #[arg(long, short = 'n', default_value_t = 3)]
    ranks: usize,
    /// What ranks are
    #[arg(long = "as", value_name = "KIND", default_value = "processes")]
    ranks_as: RanksAs,
    /// What the windows of the cases are in: memory of the host, or of the device that the transport has on each rank
    /// [default: host; with --device gpu or emulator device]
    #[arg(long, value_name = "MEMORY")]
    windows: Option<Windows>,
    /// Only groups and cases with this in their name; may be given again
    #[arg(long = "case", value_name = "FILTER")]
    filters: Vec<String>,
    /// Upper bound of every wait in a case: seconds, or with a unit (500ms); a case may take three times as long
    /// [default: what CAMPANILE_TIMEOUT says, else 10s]
    #[arg(long, value_parser = duration)]
    timeout: Option<Duration>,
    /// Where random delays and bytes come from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Most MiB that a case may take on a rank; offsets beyond 4 GiB of a peer need 4097 [default: 1024, or a quarter of
    /// what is available if that is less]
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    /// Print what would be run, and run nothing
    #[arg(long)]
    list: bool,
    /// Print one JSON object instead of the report
    #[arg(long)]
    json: bool,
}

/// What windows are in.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Windows {
    Host,
    Device,
}

impl Windows {
    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Device => "device",
        }
    }
}

impl Args {
    /// What windows are in: who asks for devices asks for their memory.
    fn windows(&self) -> Windows {
        let of_device = if self.device == device::Kind::Host { Windows::Host } else { Windows::Device };
        self.windows.unwrap_or(of_device)
    }
}

impl From<Windows> for WindowsIn {
    fn from(windows: Windows) -> Self {
        match windows {
            Windows::Host => Self::Host,
            Windows::Device => Self::Device,
        }
    }
}

/// Waits of a case, where nobody says how long they may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a case, where nobody says how many there may be. Gigabytes take tens of seconds to be zeroed.
const MEMORY: u64 = 1 << 30;

/// One case as every rank is told of it. The transport is in the configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    case: String,
    timeout: Duration,
    seed: u64,
    memory: u64,
    windows: Windows,
}

impl Part {
    /// One rank's part: the verdict as JSON.
    pub fn run(&self, config: &Config) -> anyhow::Result<Vec<u8>> {
        let case = cases().find(|case| case.name() == self.case);
        let case = case.with_context(|| format!("there is no case {:?}", self.case))?;
        let suite = Suite {
            timeout: self.timeout,
            seed: self.seed,
            memory: self.memory,
            windows_in: self.windows.into(),
            ..Suite::new(plugin(config)?, RanksAre::Processes)
        };
        let report = run(&suite, &join(config)?, &[case], |_| {})?;
        let verdicts: Vec<Verdict> = report.outcomes.into_iter().map(|outcome| outcome.verdict.into()).collect();
        Ok(serde_json::to_vec(&verdicts)?)
    }
}

/// The transport that is examined, for the rest of the process: a case that hangs is left behind with it.
fn plugin(config: &Config) -> Result<&'static dyn TransportPlugin, ConfigError> {
    let transport = Arc::clone(&Plugins::of(config)?.preferred(config)?.transport);
    Ok(&**Box::leak(Box::new(transport)))
}

/// Whether a rank that is alone can open the transport, and finds the memory of the windows there.
fn opens(plugin: &dyn TransportPlugin, windows: Windows, timeout: Duration) -> anyhow::Result<()> {
    let name = plugin.info().name;
    let probed = plugin.probe();
    let Some(device) = Probed::of_rank(&probed, 0).map(str::to_owned) else {
        let reason = |probed: &Probed| Some(format!("{}: {}", probed.device, probed.usable.as_ref().err()?));
        let reasons: Vec<_> = probed.iter().filter_map(reason).collect();
        bail!("transport {name} has no usable device: {}", reasons.join("; "));
    };
    let options = OpenOptions {
        rank: Rank(0),
        ranks: 1,
        node: Node::new(campanile::host::process::node_identity()?),
        ranks_on_node: 1,
        cores: 0,
        huge_pages: HugePages::default(),
        timeout,
    };
    let transport = plugin.open(&device, options)?;
    window_memory(windows.into(), &*transport, &device)?;
    Ok(transport.shutdown(Shutdown::Drain)?)
}

/// Runs the command.
pub fn main(args: &Args) -> Result<(), Error> {
    let wanted = |case: &&'static Case| {
        let named = |filter: &String| case.name().contains(filter) || case.group().name.contains(filter);
        args.filters.is_empty() || args.filters.iter().any(named)
    };
    let cases: Vec<_> = cases().filter(wanted).collect();
    if cases.is_empty() {
        let filters = args.filters.join(", ");
        return Err(Error::input(anyhow!("no group or case has {filters} in its name; see campanile check --list")));
    }
    if args.list {
        return report::list(&Listed::of(&cases), args.json);
    }
    Ranks::check(args.ranks)?;
    let mut config = campanile::bootstrap::configuration().map_err(Error::input)?;
    if let Some(transport) = &args.transport {
        if !transport.contains('/') && std::path::Path::new(transport).is_file() {
            return Err(Error::input(anyhow!(
                "--transport {transport}: the path of a file needs a slash: ./{transport}"
            )));
        }
        let preference = Preference::of([transport]);
        let preference =
            preference.ok_or_else(|| Error::input(anyhow!("--transport {transport:?} is not one name")))?;
        config = config.with_transport(preference).map_err(Error::input)?;
    }
    let config = args.device.configure(config)?;
    if args.device != device::Kind::Host {
        args.device.open(&config)?;
    }
    let plugin = plugin(&config).map_err(Error::input)?;
    config.launched().map_err(Error::input)?;
    let timeout = args.timeout.unwrap_or_else(|| match config.source("CAMPANILE_TIMEOUT") {
        Some(Source::Default) => TIMEOUT,
        _ => config.timeout(),
    });
    let most = || campanile::host::memory::available().map_or(MEMORY, |bytes| MEMORY.min(bytes / 4));
    let memory = args.memory.map_or_else(most, |mib| mib.saturating_mul(1 << 20));
    let windows_in = args.windows().into();
    let suite = Suite { timeout, seed: args.seed, memory, windows_in, ..Suite::new(plugin, RanksAre::Threads) };

    // What cannot be opened fails here, once, and not in every case.
    opens(plugin, args.windows(), timeout).map_err(Error::input)?;

    let start = Instant::now();
    let spinner = progress::spinner("checking");
    let tested = match args.ranks_as {
        RanksAs::Threads => threads(&suite, args.ranks, &cases, |case| spinner.set_message(case.name()))?,
        RanksAs::Processes => {
            let mut tested = Vec::new();
            for &case in &cases {
                spinner.set_message(case.name());
                let start = Instant::now();
                let verdict = process_job(&suite, args, case, &config)?;
                tested.push(Tested::new(case, verdict, start.elapsed()));
            }
            tested
        }
    };
    spinner.finish_and_clear();
    let report = Report {
        transport: plugin.info().name,
        version: plugin.info().version,
        ranks: args.ranks,
        ranks_as: args.ranks_as.name(),
        windows: args.windows().name(),
        seed: args.seed,
        timeout_s: timeout.as_secs_f64(),
        seconds: start.elapsed().as_secs_f64(),
        cases: tested,
    };
    report.print(args.json)?;
    match report.failed() {
        0 if report.passed() == 0 => Err(Error::Failure(anyhow!("no case could be run; the report says why"))),
        0 => Ok(()),
        failed => Err(Error::Failure(anyhow!("{failed} of {} cases failed", report.cases.len()))),
    }
}

/// Runs all cases with threads of this process as ranks. `ended` is told of each case on rank 0.
fn threads(
    suite: &Suite,
    ranks: usize,
    cases: &[&'static Case],
    ended: impl Fn(&'static Case) + Sync,
) -> Result<Vec<Tested>, Error> {
    let ended = &ended;
    let reports = std::thread::scope(|scope| {
        let rank = |(rank, bootstrap): (usize, ThreadBootstrap)| {
            scope.spawn(move || {
                let bootstrap: Arc<dyn Bootstrap> = Arc::new(bootstrap);
                run(suite, &bootstrap, cases, |outcome| {
                    if rank == 0 {
                        ended(outcome.case);
                    }
                })
            })
        };
        let ranks: Vec<_> = ThreadBootstrap::world(ranks).into_iter().enumerate().map(rank).collect();
        let joined = ranks.into_iter().map(|rank| rank.join().map_err(|_| anyhow!("a rank panicked")));
        joined.collect::<Vec<_>>()
    });
    let first = reports.into_iter().next().context("there are no ranks")???;
    Ok(first.outcomes.into_iter().map(|o| Tested::new(o.case, o.verdict.into(), o.took)).collect())
}

/// Runs one case with processes as ranks.
fn process_job(suite: &Suite, args: &Args, case: &'static Case, config: &Config) -> Result<Verdict, Error> {
    let (timeout, seed, memory, ranks, windows) = (suite.timeout, suite.seed, suite.memory, args.ranks, args.windows());
    let job = Job::Check(Part { case: case.name().to_owned(), timeout, seed, memory, windows });
    // A rank gives another one up after a deadline and a wait; a killed one must not end the job before that.
    let patience = suite.deadline() + 2 * suite.timeout;
    let outcome = Launch::current_exe(["rank", &serde_json::to_string(&job)?], ranks)?
        .config(config)
        .output(Output::Captured)
        .grace(patience)
        .timeout(Some(patience + suite.deadline()))
        .forward_signals(true)
        .run()?;
    if let Some(interrupted @ (Failure::Interrupted { .. } | Failure::Output { .. })) = &outcome.failure {
        return Err(Error::Failure(anyhow!("{interrupted}")));
    }
    Ok(judge(&outcome))
}

/// The verdict of a job. Every rank that reaches its end has the same; one that the case lets die has none.
fn judge(outcome: &Outcome) -> Verdict {
    let told = |stdout: &[u8]| serde_json::from_slice::<Vec<Verdict>>(stdout).ok()?.pop();
    let verdict = outcome.ranks.iter().find_map(|rank| told(&rank.stdout));
    // SIGKILL is how a case lets a rank die; a rank that ends otherwise than well has crashed.
    let killed = Exit::Signal(campanile::host::process::Signal::KILL.as_raw());
    let crashed = outcome.ranks.iter().any(|rank| !rank.exit.success() && rank.exit != killed);
    match verdict {
        Some(verdict) if !crashed => verdict,
        Some(verdict) => verdict.and_failed(&outcome.to_string()),
        None => Verdict::failed("a verdict of any rank", &outcome.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use campanile::bootstrap::RankOutcome;

    use super::*;

    fn rank(exit: Exit, verdict: Option<&Verdict>) -> RankOutcome {
        let stdout = verdict.map_or_else(Vec::new, |verdict| serde_json::to_vec(&[verdict]).expect("it is JSON"));
        RankOutcome { exit, stdout }
    }

    #[test]
    fn a_rank_may_die_by_sigkill_and_by_nothing_else() {
        let passed = rank(Exit::Code(0), Some(&Verdict::Passed));
        let of = |ranks: Vec<RankOutcome>| judge(&Outcome { ranks, failure: None });
        assert_eq!(of(vec![passed.clone(), rank(Exit::Signal(9), None)]), Verdict::Passed);
        for exit in [Exit::Signal(11), Exit::Code(1), Exit::Stuck] {
            assert!(matches!(of(vec![passed.clone(), rank(exit, None)]), Verdict::Failed { .. }), "{exit}");
        }
        assert!(matches!(of(vec![rank(Exit::Signal(9), None)]), Verdict::Failed { .. }), "somebody must tell");
        let skipped = Verdict::NotApplicable { reason: "so".to_owned() };
        assert_eq!(of(vec![rank(Exit::Code(0), Some(&skipped))]), skipped);
    }
}
