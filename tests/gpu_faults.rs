//! Ranks on emulated devices, each a process, one of which dies, stops, aborts or leaves while kernels of the others wait
//! for it or pull from its memory: every other rank gets an error that names it, its kernels end, nothing is launched
//! afterwards, and nothing is left behind. This program starts itself as the ranks of its jobs.

mod cases;
mod emulated;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use campanile::bootstrap::{Launch, Output, configuration};
use campanile::gpu::Cache;
use campanile::moe::gpu::exchange::DeviceProblem;
use campanile::moe::gpu::{GpuMoe, GpuMoeError, GpuMoeOptions, Index};
use campanile::{Communicator, Config, FaultKind, Set, world};
use rustix::process::{Signal, getpid, kill_process};

use cases::case;
use emulated::{moe_config, problem};

const RANKS: usize = 3;
const CULPRIT: usize = 1;
/// Enough that a pull takes some milliseconds.
const TOKENS: usize = 48;
const HIDDEN: usize = 4096;
/// Bound of a wait that must be reached, for a rank that says nothing.
const SHORT: Duration = Duration::from_secs(3);
/// Bound of all others.
const LONG: Duration = Duration::from_secs(60);

/// What one rank does to itself.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Kill,
    Stop,
    Abort,
    Leave,
}

/// What it has just launched.
const MOMENTS: [&str; 3] = ["nothing", "dispatch", "combine"];

fn main() -> ExitCode {
    if std::env::var_os("CAMPANILE_RANK").is_some() {
        return rank();
    }
    if emulated::devices().is_none() {
        return ExitCode::SUCCESS;
    }
    let mut cases = Vec::new();
    // The first one also compiles what the others take from the cache.
    cases.push(case("rounds_without_a_fault", no_fault));
    for moment in MOMENTS {
        let name = format!("a_rank_that_is_killed_behind_{moment}_is_named");
        cases.push(case(name, move || one_fails(Deed::Kill, moment, LONG, FaultKind::Died)));
    }
    for (deed, moment, timeout, kind) in [
        (Deed::Stop, "dispatch", SHORT, FaultKind::Stalled),
        (Deed::Abort, "combine", LONG, FaultKind::Aborted),
        (Deed::Leave, "nothing", SHORT, FaultKind::Left),
    ] {
        let name = format!("{deed:?}_behind_{moment}_is_named").to_lowercase();
        cases.push(case(name, move || one_fails(deed, moment, timeout, kind)));
    }
    cases::run(cases, 1)
}

/// Runs a job of this program: what each rank said, and the job's outcome in words.
fn job(arguments: &[&str], timeout: Duration) -> (Vec<String>, String) {
    let outcome = Launch::current_exe(arguments, RANKS)
        .expect("this program has a path")
        .config(&emulated::config(timeout))
        .env("CAMPANILE_KERNEL_CACHE", emulated::kernels())
        .env("RUST_BACKTRACE", "0")
        .timeout(Some(Duration::from_secs(120)))
        // For the others to say what they saw; after twice as long one that is stopped is killed.
        .grace(Duration::from_secs(4))
        .output(Output::Captured)
        .run()
        .expect("the job starts");
    let said = outcome.ranks.iter().map(|rank| String::from_utf8_lossy(&rank.stdout).into_owned()).collect();
    (said, outcome.to_string())
}

fn no_fault() {
    let (said, outcome) = job(&["none", "nothing"], LONG);
    assert_eq!(said, ["done\n"; RANKS], "{outcome}");
}

fn one_fails(deed: Deed, moment: &str, timeout: Duration, kind: FaultKind) {
    let start = Instant::now();
    let (said, outcome) = job(&[&format!("{deed:?}"), moment], timeout);
    for rank in (0..RANKS).filter(|rank| *rank != CULPRIT) {
        // First the wait that fails, then the launch that is refused.
        let expected = format!("fault {CULPRIT} {kind:?}\nrefused {CULPRIT} {kind:?}\n");
        assert_eq!(said[rank], expected, "rank {rank}; {outcome}");
    }
    // A deadline that need not be reached is not waited for.
    assert!(timeout == SHORT || start.elapsed() < LONG / 2, "it took {:?}", start.elapsed());
}

/// One rank of a job: rounds until the culprit has done its deed; says how they ended, and fails with them.
fn rank() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [deed, moment] = &arguments[..] else { unreachable!("the arguments are this program's own") };
    let config = configuration().expect("the launcher sets it");
    let comm = world(&config).expect("all ranks come");
    let mut out = std::io::stdout().lock();
    match rounds(&config, &comm, deed, moment, &mut out) {
        Ok(code) => code,
        Err(error) => {
            writeln!(out, "{error}").expect("the launcher reads");
            ExitCode::FAILURE
        }
    }
}

fn named(error: &GpuMoeError) -> String {
    match error.fault() {
        Some(fault) => format!("{} {:?}", fault.culprit.0, fault.kind),
        None => format!("nobody: {error}"),
    }
}

fn rounds(
    config: &Config,
    comm: &Arc<Communicator>,
    deed: &str,
    moment: &str,
    out: &mut impl Write,
) -> Result<ExitCode, GpuMoeError> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let (gpu, _) = emulated::devices().expect("the parent has looked");
    let device = gpu.device(comm.device().expect("p2p has a device for each rank"))?;
    let options = GpuMoeOptions::default();
    let cache = Cache::new(&config.into());
    let moe = GpuMoe::new(comm, &device, moe_config(ranks, TOKENS, HIDDEN), &options, &cache)?;
    let part = DeviceProblem::new(&moe, &problem(rank, ranks, TOKENS, HIDDEN), Index::I32, 0)?;
    let is_culprit = rank == CULPRIT && deed != "none";
    for round in 0..if deed == "none" { 3 } else { u32::MAX } {
        let set = Set(round % 2);
        if is_culprit && round == 2 {
            // SAFETY: the part is alive until the streams are done, or this process has ended.
            unsafe {
                if moment != "nothing" {
                    moe.dispatch(set, &part.stream, &part.tokens)?;
                }
                if moment == "combine" {
                    moe.finish(&part.stream, 2 * LONG)?;
                    moe.combine(set, &part.stream, &part.out)?;
                }
            }
            act(deed, &moe);
            return Ok(ExitCode::SUCCESS);
        }
        // SAFETY: as above.
        unsafe { moe.launch_round(set, &part)? };
        if let Err(error) = moe.finish(&part.stream, 2 * LONG) {
            writeln!(out, "fault {}", named(&error)).expect("the launcher reads");
            // SAFETY: as above.
            let again = unsafe { moe.launch_round(set, &part) }.expect_err("the operation is over");
            writeln!(out, "refused {}", named(&again)).expect("the launcher reads");
            return Ok(ExitCode::FAILURE);
        }
    }
    writeln!(out, "done").expect("the launcher reads");
    Ok(ExitCode::SUCCESS)
}

fn act(deed: &str, moe: &GpuMoe) {
    let signal = |signal| kill_process(getpid(), signal).expect("a process may signal itself");
    match deed {
        "Kill" => signal(Signal::KILL),
        "Stop" => signal(Signal::STOP),
        "Abort" => {
            moe.abort();
            // Until the others have learned of it: leaving at once would be told as leaving.
            std::thread::park_timeout(Duration::from_millis(300));
        }
        "Leave" => {}
        _ => unreachable!("the deeds are this program's own"),
    }
}
