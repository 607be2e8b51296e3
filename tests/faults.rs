//! Ranks that die, stop, leave or abort: every other rank gets an error that names the culprit, within the deadline, and
//! nothing is left behind. This program starts itself as the ranks of its jobs.

mod cases;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use campanile::bootstrap::{Launch, Outcome, Output, configuration};
use campanile::moe::exchange::{Layout, with_experts};
use campanile::moe::{RankInput, routing};
use campanile::{
    AllGather, Barrier, Broadcast, CommError, Communicator, DType, FaultKind, MemoryKind, Moe, MoeConfig, MoeError,
    Problem, Set, Tokens, world,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};

use cases::case;

const RANKS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(3);

/// Runs rounds as long as it is told to go on, given the number of the next.
type Rounds = fn(&Arc<Communicator>, u64, &dyn Fn(u64) -> bool) -> Result<(), MoeError>;

/// What one rank does to itself.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Kill,
    Stop,
    Abort,
    Leave,
    Panic,
}

impl Deed {
    const ALL: [Self; 5] = [Self::Kill, Self::Stop, Self::Abort, Self::Leave, Self::Panic];

    /// What the others must say of it.
    fn kind(self) -> FaultKind {
        match self {
            Self::Kill | Self::Panic => FaultKind::Died,
            Self::Stop => FaultKind::Stalled,
            Self::Abort => FaultKind::Aborted,
            Self::Leave => FaultKind::Left,
        }
    }
}

fn main() -> ExitCode {
    if std::env::var_os("CAMPANILE_RANK").is_some() {
        return rank();
    }
    let mut cases = Vec::new();
    for deed in Deed::ALL {
        for culprit in [0, 2] {
            let name = format!("{deed:?}_of_rank_{culprit}_is_named_by_all_others").to_lowercase();
            cases.push(case(name, move || one_fails(deed, culprit, "moe")));
        }
        let name = format!("{deed:?}_in_a_barrier").to_lowercase();
        cases.push(case(name, move || one_fails(deed, 1, "barrier")));
        let name = format!("{deed:?}_in_collectives").to_lowercase();
        cases.push(case(name, move || one_fails(deed, 1, "collectives")));
        let name = format!("{deed:?}_while_windows_are_made").to_lowercase();
        cases.push(case(name, move || one_fails(deed, 2, "windows")));
    }
    cases.push(case("a_mismatch_names_rank_and_field", mismatch));
    cases.push(case("a_missing_rank_is_named", missing));
    cases.push(case("too_little_memory_is_an_error_on_every_rank", too_little_memory));
    // They wait more than they work.
    cases::run(cases, 3)
}

/// Runs a job of this program; what each rank wrote, and how long the job took.
fn job(arguments: &[&str], timeout: Duration) -> (Outcome, Duration) {
    let start = Instant::now();
    let outcome = Launch::current_exe(arguments, RANKS)
        .expect("this program has a path")
        .env("CAMPANILE_TIMEOUT", format!("{}ms", timeout.as_millis()))
        .env("RUST_BACKTRACE", "0")
        .timeout(Some(Duration::from_secs(60)))
        .output(Output::Captured)
        .run()
        .expect("the job starts");
    (outcome, start.elapsed())
}

fn said(outcome: &Outcome, rank: usize) -> String {
    String::from_utf8_lossy(&outcome.ranks[rank].stdout).into_owned()
}

fn one_fails(deed: Deed, culprit: usize, what: &str) {
    // A different moment in each run of the suite.
    let seed = std::process::id().to_string();
    let (outcome, took) = job(&[what, &format!("{deed:?}"), &culprit.to_string(), &seed], TIMEOUT);
    let expected = format!("fault {culprit} {:?}", deed.kind());
    for rank in (0..RANKS).filter(|rank| *rank != culprit) {
        let said = said(&outcome, rank);
        assert!(
            said.contains(&expected),
            "rank {rank}: expected {expected:?} (seed {seed}), it said {said:?}; {outcome}"
        );
        assert!(said.contains(&format!("rank {culprit}")), "the message names the culprit: {said}");
    }
    // The deadline of one wait, the launcher's two grace periods, and room for a busy machine.
    assert!(took < TIMEOUT + Duration::from_secs(20), "took {took:?}");
}

fn mismatch() {
    let (outcome, _) = job(&["mismatch"], TIMEOUT);
    for rank in 0..RANKS {
        let said = said(&outcome, rank);
        assert!(said.contains("hidden") && said.contains("rank"), "rank {rank} said {said:?}");
    }
}

fn missing() {
    let (outcome, _) = job(&["missing"], TIMEOUT);
    for rank in (0..RANKS).filter(|rank| *rank != 3) {
        let said = said(&outcome, rank);
        assert!(said.contains("missing rank 3"), "rank {rank} said {said:?}");
    }
}

fn too_little_memory() {
    let (outcome, _) = job(&["memory"], TIMEOUT);
    for rank in 0..RANKS {
        let said = said(&outcome, rank);
        assert!(said.contains("rank 2") && said.contains("bytes"), "rank {rank} said {said:?}");
    }
}

/// One rank of a job: does what its arguments say and writes how it ended.
fn rank() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let config = configuration().expect("the launcher sets it");
    let me = config.rank().expect("the launcher sets it") as usize;
    if arguments == ["missing"] && me == 3 {
        return ExitCode::SUCCESS;
    }
    let ended = world(&config).map_err(|error| error.to_string()).and_then(|comm| {
        let ended = match arguments[..] {
            ["moe", deed, culprit, seed] => play(deed, culprit, seed, me, &comm, moe_rounds),
            ["barrier", deed, culprit, seed] => play(deed, culprit, seed, me, &comm, barriers),
            ["collectives", deed, culprit, seed] => play(deed, culprit, seed, me, &comm, collectives),
            ["windows", deed, culprit, seed] => play(deed, culprit, seed, me, &comm, windows),
            ["mismatch"] => Moe::new(&comm, MoeConfig::new(4, 8 + me, 1, vec![0])).map(|_| ()),
            ["memory"] => {
                if me == 2 {
                    // No more address space: its part of the window cannot be mapped.
                    setrlimit(Resource::As, Rlimit { current: Some(1 << 20), maximum: None })
                        .expect("a limit may sink");
                }
                comm.window(64 << 20, MemoryKind::Host).map(|_| ()).map_err(Into::into)
            }
            _ => unreachable!("the arguments are this program's own"),
        };
        ended.map_err(|error| match error.fault() {
            Some(fault) => format!("fault {} {:?}: {error}", fault.culprit.0, fault.kind),
            None => error.to_string(),
        })
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            std::io::stdout().flush().expect("the launcher reads");
            ExitCode::FAILURE
        }
    }
}

/// Runs rounds until the culprit does its deed, at a random moment: from a thread of its own where that is possible, so that
/// it falls into any state, else between two rounds.
fn play(
    deed: &str,
    culprit: &str,
    seed: &str,
    me: usize,
    comm: &Arc<Communicator>,
    rounds: Rounds,
) -> Result<(), MoeError> {
    let (culprit, seed): (usize, u64) = (culprit.parse().expect("a rank"), seed.parse().expect("a seed"));
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let moment = Duration::from_micros(u64::from(random.next_u32() % 20_000));
    let last = u64::from(random.next_u32() % 40);
    if me != culprit {
        return rounds(comm, seed, &|_| true);
    }
    let signal = |signal: Signal| {
        std::thread::spawn(move || {
            std::thread::park_timeout(moment);
            kill_process(getpid(), signal).expect("a process may signal itself");
        });
        rounds(comm, seed, &|_| true)
    };
    match deed {
        "Kill" => signal(Signal::KILL),
        "Stop" => signal(Signal::STOP),
        "Abort" => {
            rounds(comm, seed, &|round| round < last)?;
            comm.abort();
            // Until the others have learned of it: leaving at once would be told as leaving.
            std::thread::park_timeout(Duration::from_millis(300));
            Ok(())
        }
        "Leave" => rounds(comm, seed, &|round| round < last),
        "Panic" => {
            rounds(comm, seed, &|round| round < last)?;
            panic!("as planned");
        }
        _ => unreachable!("the deeds are this program's own"),
    }
}

fn barriers(comm: &Arc<Communicator>, _: u64, go_on: &dyn Fn(u64) -> bool) -> Result<(), MoeError> {
    let mut barrier = Barrier::new(comm)?;
    let mut round = 0;
    while go_on(round) {
        barrier.wait().map_err(|error: CommError| MoeError::from(error))?;
        round += 1;
    }
    Ok(())
}

/// Broadcasts from every rank and all-gathers, of more than a ring and of a few bytes.
fn collectives(comm: &Arc<Communicator>, _: u64, go_on: &dyn Fn(u64) -> bool) -> Result<(), MoeError> {
    let ranks = comm.ranks();
    let (mut broadcast, mut all_gather) = (Broadcast::new(comm, 1 << 20)?, AllGather::new(comm, 1 << 18)?);
    let mut data = vec![1; 1 << 20];
    let mut round = 0;
    while go_on(round) {
        let bytes = if round % 2 == 0 { 1 << 20 } else { 64 };
        broadcast.run(round as usize % ranks, &mut data[..bytes])?;
        all_gather.run_in_place(&mut data[..bytes])?;
        round += 1;
    }
    Ok(())
}

fn windows(comm: &Arc<Communicator>, _: u64, go_on: &dyn Fn(u64) -> bool) -> Result<(), MoeError> {
    let mut round = 0;
    while go_on(round) {
        comm.window(4096, MemoryKind::Host)?;
        round += 1;
    }
    Ok(())
}

fn moe_rounds(comm: &Arc<Communicator>, seed: u64, go_on: &dyn Fn(u64) -> bool) -> Result<(), MoeError> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let (tokens, hidden, topk) = (16, 512, 2);
    let expert_rank = Problem::block_map(8, ranks);
    let routed = routing::Router::new(routing::Routing::Uniform, topk, seed).route(rank, ranks, tokens, &expert_rank);
    let mut inputs = vec![RankInput::default(); ranks];
    inputs[rank] = RankInput {
        tokens,
        x: vec![1; tokens * DType::BF16.row_bytes(hidden)],
        topk_idx: routed.topk_idx,
        topk_weights: routed.topk_weights,
        ..RankInput::default()
    };
    let problem = Problem {
        dtype: DType::BF16,
        combine_dtype: DType::BF16,
        hidden,
        topk,
        scales: 0,
        quantize: false,
        expert_rank: expert_rank.clone(),
        expert_scale: None,
        weighted: true,
        ranks: inputs,
    };
    let mut moe = Moe::new(comm, MoeConfig::new(tokens, hidden, topk, expert_rank))?;
    let mut out = vec![0; tokens * DType::BF16.row_bytes(hidden)];
    let mut round = 0;
    while go_on(round) {
        let handle = moe.dispatch(Set(round as u32 % 2), &Tokens::of(&problem, rank))?;
        with_experts(&mut moe, &problem, Layout::Rows, handle, |moe, handle, outputs| {
            moe.combine(handle, outputs, &mut out, None)
        })?;
        round += 1;
    }
    Ok(())
}
