//! `campanile doctor`: what this machine gives, whether it matters, what to do.
//!
//! What was found is read by `campanile-host`; what it means is decided in the checks, which are functions of what was
//! found alone. Exit code 0: the configured job can run here. 1: it cannot, and a line says why.

use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use campanile::core::Condition;
use campanile::host::cgroup::cpu_quota;
use campanile::host::filesystem::Space;
use campanile::host::huge_pages::HugePages;
use campanile::host::kernel::Kernel;
use campanile::host::limits::Limits;
use campanile::host::memory::{self, HUGE_PAGE, Pages, SharedMemory};
use campanile::host::namespace::Namespace;
use campanile::host::topology::Topology;
use campanile::{CommError, CommOptions, Communicator, Config, Explanation, MemoryKind, Plugins, threads_over};
use serde::Serialize;

use crate::exit::Error;
use crate::output::print;
use crate::ranks::Ranks;

mod check;
mod cores;
mod libraries;
mod memory_pages;
mod plugin_path;
mod system;

use check::{Check, Verdict};
pub use libraries::main as library;

/// Arguments of `campanile doctor`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Ranks on this machine that the job will have [default: as many as cores, at least 2]
    #[arg(short = 'n', long, value_name = "N")]
    ranks: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    ranks: usize,
    can_run: bool,
    checks: Vec<Check>,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<(), Error> {
    let config = campanile::bootstrap::configuration().map_err(Error::input)?;
    let plugins = Plugins::of(&config).map_err(Error::input)?;
    let topology = Topology::of_machine().map_err(|error| anyhow!("{error}"))?;
    let ranks = args.ranks.unwrap_or(topology.cores().len().max(2));
    Ranks::check(ranks)?;
    let checks = checks(&config, &plugins, &topology, ranks);
    let broken: Vec<_> = checks.iter().filter(|check| check.verdict == Verdict::Broken).map(|it| it.name).collect();
    if args.json {
        let report =
            Report { version: env!("CARGO_PKG_VERSION"), ranks, can_run: broken.is_empty(), checks: checks.clone() };
        crate::bench::print_json(&report)?;
    } else {
        print(&format!(
            "campanile {}, {ranks} ranks on this machine\n\n{}",
            env!("CARGO_PKG_VERSION"),
            check::text(&checks)
        ))?;
    }
    match broken.as_slice() {
        [] => Ok(()),
        broken => Err(Error::Failure(anyhow!("the job cannot run here: see {}", broken.join(", ")))),
    }
}

/// Reads what there is and judges it.
fn checks(config: &Config, plugins: &Plugins, topology: &Topology, ranks: usize) -> Vec<Check> {
    let root = Path::new("/");
    let (kernel, limits) = (Kernel::running(root), Limits::of_process(root));
    let explanation = Explanation::new(plugins, config, ranks);
    let communicator = explanation.map_err(|error| error.to_string()).and_then(|it| it.communicator);
    let text = |error: &dyn std::error::Error| error.to_string();
    let directories = config.plugin_path().unwrap_or_default();
    let directories = directories.split(':').filter(|directory| !directory.is_empty());
    let mut checks = vec![
        transport(communicator, ranks),
        exchange(two_ranks(plugins, config)),
        system::version(&kernel),
        cores::cores(topology, ranks),
        cores::quota(cpu_quota(root), ranks),
        memory_pages::available(memory::available().map_err(|error| text(&error)), ranks),
        memory_pages::huge_pages(&HugePages::of_machine(root), window_pages()),
        system::open_files(&limits, ranks),
        system::namespaces(&Namespace::of_process(root)),
        system::clock(&kernel),
        memory_pages::dev_shm(Space::of(Path::new("/dev/shm")).map_err(|error| text(&error))),
        memory_pages::locked(&limits),
        system::yama(&kernel),
        plugin_path::plugin_path(
            &directories.map(|it| (it.to_owned(), plugin_path::libraries_in(it))).collect::<Vec<_>>(),
        ),
    ];
    checks.extend(libraries::libraries());
    checks
}

/// The transport that the configuration gives so many ranks on this machine.
fn transport(communicator: Result<String, String>, ranks: usize) -> Check {
    let (name, matters) = ("transport", "all: what connects the ranks of this machine, as configured");
    match communicator {
        Ok(transport) => Check::ok(name, format!("{transport} for {ranks} ranks"), matters),
        Err(reasons) => Check::not(
            name,
            Verdict::Broken,
            reasons,
            matters,
            "campanile info --explain shows what could; CAMPANILE_TRANSPORT=auto and CAMPANILE_PATH=auto allow all",
        ),
    }
}

/// What came of an exchange.
fn exchange(ended: Result<(), String>) -> Check {
    let (name, matters) = ("exchange", "all: two ranks connect, write into each other's window and signal");
    match ended {
        Ok(()) => Check::ok(name, "done, every byte as it was sent", matters),
        Err(error) => Check::not(name, Verdict::Broken, error, matters, "see the other lines"),
    }
}

/// Two ranks of this process exchange a page, by the configured transport and path.
fn two_ranks(plugins: &Plugins, config: &Config) -> Result<(), String> {
    let options = plugins.options(config).map_err(|error| error.to_string())?;
    let options = CommOptions { timeout: options.timeout.min(Duration::from_secs(5)), ..options };
    let ranks = threads_over(plugins, 2, &options, |comm| swap(&comm));
    let failed = ranks.into_iter().enumerate().find_map(|(rank, ended)| Some((rank, ended.err()?)));
    failed.map_or(Ok(()), |(rank, error)| Err(format!("rank {rank}: {error}")))
}

/// Sends the other rank a page of a pattern of this rank's own and checks the one that comes. A word and a page for what
/// comes, then a page to send from.
fn swap(comm: &Communicator) -> Result<(), CommError> {
    const PAGE: usize = 4096;
    let window = comm.window(3 * PAGE, MemoryKind::Host)?;
    let other = 1 - comm.rank();
    let pattern = |rank: usize| (0..PAGE).map(|at| (at * 31 + rank + 1) as u8).collect::<Vec<u8>>();
    window.write(2 * PAGE, &pattern(comm.rank()))?;
    window.put(other, window.region(), 2 * PAGE, PAGE, PAGE)?;
    window.signal(other, 0, 1)?;
    window.wait(other, 0, Condition::AtLeast(1), "exchange")?;
    let mut came = vec![0; PAGE];
    window.read(PAGE, &mut came)?;
    if came == pattern(other) {
        return Ok(());
    }
    let reason = "other bytes came than were sent; this is a defect, please report it".to_owned();
    Err(CommError::Misuse { what: "exchange", reason })
}

/// Bytes of a window, and how many of them came in huge pages.
fn window_pages() -> Result<[usize; 2], String> {
    let window = SharedMemory::create("campanile-doctor", HUGE_PAGE, Pages::Huge).map_err(|error| error.to_string())?;
    Ok([HUGE_PAGE, window.huge_bytes()])
}

#[cfg(test)]
mod tests;
