//! Transports that are files, one written in C (`tests/mailbox`) and the two of the guide's page "Your own transport": what
//! is built on transports runs over them unchanged. The mailbox does so whether ranks are threads or processes, and names a
//! rank that dies. This program starts itself as the ranks of its jobs. Without a C compiler what is written in C is not
//! run, and it says so.

mod cases;
#[path = "plugins/compiler.rs"]
mod compiler;
#[path = "plugins/library.rs"]
mod library;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use campanile::bootstrap::{Launch, Outcome, Output, ThreadBootstrap, configuration, join};
use campanile::core::{MoeCombine, MoeMode};
use campanile::moe::RankInput;
use campanile::moe::exchange::{ExchangeOptions, Layout, config, with_experts};
use campanile::moe::model::solve;
use campanile::moe::routing::{Router, Routing};
use campanile::{
    Barrier, CommOptions, Communicator, Condition, DType, MemoryKind, Moe, Problem, Set, Tokens, TransportPlugin,
    options,
};
use campanile_plugin::Loader;
use rustix::process::{Pid, Signal, getpid, kill_process};

use cases::{Case, case};

const RANKS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(10);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
type Part = fn(&Arc<Communicator>) -> Result<()>;

/// What every rank of a job does.
const PARTS: [(&str, Part); 4] =
    [("barrier", barrier), ("ring_of_messages", ring_of_messages), ("large_both_ways", large_both_ways), ("moe", moe)];

fn main() -> ExitCode {
    if std::env::var_os("CAMPANILE_RANK").is_some() {
        return rank();
    }
    let mut cases = Vec::new();
    let in_rust = library::Library::Inproc.file();
    for (name, part) in PARTS {
        let library = in_rust.clone();
        cases.push(case(format!("{name}_over_the_example_in_rust"), move || threads(&library, part)));
    }
    // Without a compiler it says so, and what is in C is not run.
    if let Some(library) = compiler::transport("examples/transport_c") {
        example_in_c(&mut cases, &library);
    }
    if let Some(library) = compiler::transport("tests/mailbox") {
        mailbox(&mut cases, &library);
    }
    cases::run(cases, 1)
}

fn example_in_c(cases: &mut Vec<Case>, library: &Path) {
    for (name, part) in PARTS {
        let library = library.to_owned();
        cases.push(case(format!("{name}_over_the_example_in_c"), move || threads(&library, part)));
    }
}

fn mailbox(cases: &mut Vec<Case>, mailbox: &Path) {
    for (name, part) in PARTS {
        let library = mailbox.to_owned();
        cases.push(case(format!("{name}_of_threads"), move || threads(&library, part)));
        let library = mailbox.to_owned();
        cases.push(case(format!("{name}_of_processes"), move || processes(&library, name)));
    }
    for culprit in [0, 2] {
        let library = mailbox.to_owned();
        let name = format!("killing_rank_{culprit}_is_named_by_all_others");
        cases.push(case(name, move || killed(&library, culprit)));
    }
    let library = mailbox.to_owned();
    cases.push(case("a_forked_child_hides_no_death", move || killed_behind_a_child(&library)));
    for sanitizer in ["thread", "address,undefined"] {
        cases.push(case(format!("sanitizer_{sanitizer}"), move || sanitized(sanitizer)));
    }
}

fn load(library: &Path) -> &'static dyn TransportPlugin {
    Loader::default().load_file(library).expect("the library is a plugin")
}

fn threads(library: &Path, part: Part) {
    let plugin = load(library);
    let options = CommOptions { timeout: TIMEOUT, ..CommOptions::default() };
    std::thread::scope(|scope| {
        let rank = |bootstrap: ThreadBootstrap| {
            let options = options.clone();
            scope.spawn(move || part(&Arc::new(Communicator::new(Arc::new(bootstrap), plugin, options)?)))
        };
        let ranks: Vec<_> = ThreadBootstrap::world(RANKS).into_iter().map(rank).collect();
        for (number, rank) in ranks.into_iter().enumerate() {
            if let Err(error) = rank.join().expect("no rank panics") {
                panic!("rank {number}: {error}");
            }
        }
    });
}

fn job(library: &Path, arguments: &[&str]) -> Outcome {
    Launch::current_exe(arguments, RANKS)
        .expect("this program has a path")
        .env("MAILBOX", library)
        .env("CAMPANILE_TIMEOUT", format!("{}ms", TIMEOUT.as_millis()))
        .env("RUST_BACKTRACE", "0")
        .timeout(Some(Duration::from_secs(60)))
        .output(Output::Captured)
        .run()
        .expect("the job starts")
}

fn said(outcome: &Outcome, rank: usize) -> String {
    String::from_utf8_lossy(&outcome.ranks[rank].stdout).into_owned()
}

fn processes(library: &Path, part: &str) {
    let outcome = job(library, &[part]);
    for rank in 0..RANKS {
        assert_eq!(said(&outcome, rank), "done\n", "rank {rank}; {outcome}");
    }
}

fn killed(library: &Path, culprit: usize) {
    let outcome = job(library, &["kill", &culprit.to_string()]);
    let expected = format!("rank {culprit} died");
    for rank in (0..RANKS).filter(|rank| *rank != culprit) {
        let said = said(&outcome, rank);
        assert!(said.contains(&expected), "rank {rank}: expected {expected:?}, it said {said:?}; {outcome}");
    }
}

/// The child that the killed rank had forked holds its sockets for longer than anybody waits.
fn killed_behind_a_child(library: &Path) {
    let outcome = job(library, &["kill", "1", "behind a child"]);
    let child = said(&outcome, 1).trim().parse().ok().and_then(Pid::from_raw).expect("the rank tells its child");
    kill_process(child, Signal::KILL).expect("the child lives on");
    for rank in [0, 2] {
        let said = said(&outcome, rank);
        assert!(said.contains("rank 1 died"), "rank {rank} said {said:?}; {outcome}");
    }
}

/// A child that has left the group of this process, so that it is not killed with it. It ends by itself in the end.
fn fork() -> Result<i32> {
    // SAFETY: the child calls nothing but system calls.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            // SAFETY: system calls without memory.
            unsafe {
                libc::setpgid(0, 0);
                libc::alarm(60);
                libc::pause();
                libc::_exit(0)
            }
        }
        pid => Ok(pid),
    }
}

/// The C driver, two ranks of one process, under a sanitizer that the compiler may not have.
fn sanitized(sanitizer: &str) {
    let sanitize = format!("-fsanitize={sanitizer}");
    let flags = [&compiler::C11[..], &[&sanitize, "-fno-sanitize-recover=all"]].concat();
    if !compiler::knows(&flags) {
        println!("sanitizer {sanitizer}: not run: this compiler does not have it, or it does not run here");
        return;
    }
    let mut sources = compiler::sources("tests/mailbox");
    sources.push(compiler::workspace().join("tests/mailbox_driver.c"));
    let program = compiler::scratch(&format!("mailbox_driver_{}", sanitizer.replace(',', "_")));
    let program = compiler::build(&sources, program, &flags).expect("`knows` said that there is a compiler");
    let ran = Command::new(program).output().expect("the driver starts");
    let said = [ran.stdout, ran.stderr].concat();
    assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&said));
}

/// One rank of a job of processes.
fn rank() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ended = play(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let good = ended.is_ok();
    println!("{}", ended.map_or_else(|error| error.to_string(), |()| "done".to_owned()));
    std::io::stdout().flush().expect("the launcher reads");
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn play(arguments: &[&str]) -> Result<()> {
    let library = PathBuf::from(std::env::var_os("MAILBOX").expect("the parent sets it"));
    let configuration = configuration()?;
    let options = options(&configuration);
    let comm = Arc::new(Communicator::new(join(&configuration)?, load(&library), options)?);
    if let ["kill", culprit, how @ ..] = arguments {
        if comm.rank() == culprit.parse::<usize>()? {
            if !how.is_empty() {
                println!("{}", fork()?);
                std::io::stdout().flush()?;
            }
            std::thread::spawn(|| {
                std::thread::park_timeout(Duration::from_millis(20));
                kill_process(getpid(), Signal::KILL).expect("a process may signal itself");
            });
        }
        let mut barrier = Barrier::new(&comm)?;
        loop {
            barrier.wait()?;
        }
    }
    let (_, part) = PARTS.iter().find(|(name, _)| arguments == [*name]).expect("the parent names a part");
    part(&comm)
}

fn barrier(comm: &Arc<Communicator>) -> Result<()> {
    let mut barrier = Barrier::new(comm)?;
    for _ in 0..200 {
        barrier.wait()?;
    }
    Ok(())
}

/// Every rank puts to the next, announces, and waits for the previous; the message says which round it is of.
fn ring_of_messages(comm: &Arc<Communicator>) -> Result<()> {
    const MESSAGE: usize = 1000;
    const ROUNDS: u64 = 100;
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let (word, thanks, outgoing, incoming) = (0, 64, 128, 128 + MESSAGE);
    let window = comm.window(128 + 2 * MESSAGE, MemoryKind::Host)?;
    for round in 1..=ROUNDS {
        let byte = |from: usize| (from as u64 * 31 + round) as u8;
        window.write(outgoing, &[byte(rank); MESSAGE])?;
        window.put(next, window.region(), outgoing, incoming, MESSAGE)?;
        window.signal(next, word, round)?;
        window.flush(next)?;
        window.wait(previous, word, Condition::AtLeast(round), "a message")?;
        let mut message = [0; MESSAGE];
        window.read(incoming, &mut message)?;
        assert_eq!(message, [byte(previous); MESSAGE], "round {round}");
        window.signal(previous, thanks, round)?;
        window.wait(next, thanks, Condition::AtLeast(round), "thanks")?;
    }
    Ok(())
}

/// Everybody sends everybody more than all sockets and buffers hold, before anybody waits.
fn large_both_ways(comm: &Arc<Communicator>) -> Result<()> {
    const BLOCK: usize = (4 << 20) + 13;
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let data = |from: usize| 8 * ranks + from * BLOCK;
    let window = comm.window(data(ranks + 1), MemoryKind::Host)?;
    let pattern = |from: usize| (0..BLOCK).map(|at| (at * 7 + from) as u8).collect::<Vec<_>>();
    window.write(data(ranks), &pattern(rank))?;
    for peer in 0..ranks {
        window.put(peer, window.region(), data(ranks), data(rank), BLOCK)?;
        window.signal(peer, 8 * rank, 1)?;
    }
    for peer in 0..ranks {
        window.wait(peer, 8 * peer, Condition::AtLeast(1), "a block")?;
        let mut block = vec![0; BLOCK];
        window.read(data(peer), &mut block)?;
        assert!(block == pattern(peer), "the block of rank {peer}");
        window.flush(peer)?;
    }
    let mut barrier = Barrier::new(comm)?;
    barrier.wait()?;
    Ok(())
}

/// An exchange over queues, against the scalar model, bit for bit.
fn moe(comm: &Arc<Communicator>) -> Result<()> {
    assert!(!comm.maps_all(), "it maps nothing");
    let ranks = comm.ranks();
    let (tokens, hidden, topk) = (37, 96, 3);
    let expert_rank = Problem::block_map(8, ranks);
    let input = |rank| {
        let routed = Router::new(Routing::Uniform, topk, 5).route(rank, ranks, tokens, &expert_rank);
        RankInput {
            tokens,
            x: (0..tokens * hidden).flat_map(|at| (at as f32 / 17.0 - rank as f32).to_le_bytes()).collect(),
            topk_idx: routed.topk_idx,
            topk_weights: routed.topk_weights,
            ..RankInput::default()
        }
    };
    let problem = Problem {
        dtype: DType::F32,
        combine_dtype: DType::F32,
        hidden,
        topk,
        scales: 0,
        quantize: false,
        expert_rank: expert_rank.clone(),
        expert_scale: None,
        weighted: true,
        ranks: (0..ranks).map(input).collect(),
    };
    problem.validate()?;
    let expected = &solve(&problem).ranks[comm.rank()];
    for mode in [MoeMode::Throughput, MoeMode::LowLatency] {
        let options = ExchangeOptions { mode, combine: MoeCombine::Push, ..ExchangeOptions::default() };
        let mut moe = Moe::new(comm, config(&problem, &options))?;
        for _ in 0..3 {
            let (mut out, mut weights) = (vec![0xff; tokens * hidden * 4], vec![-1.0; tokens * topk]);
            let handle = moe.dispatch(Set(0), &Tokens::of(&problem, comm.rank()))?;
            with_experts(&mut moe, &problem, Layout::Rows, handle, |moe, handle, outputs| {
                moe.combine(handle, outputs, &mut out, Some(&mut weights))
            })?;
            assert!(out == expected.out, "{mode}: the model gives other bits");
            assert_eq!(weights, expected.out_weights, "{mode}");
        }
    }
    Ok(())
}
