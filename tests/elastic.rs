//! Ranks that die one after the other or two at once: the survivors mask them and go on, with the right results. This
//! program starts itself as the ranks of its jobs.

mod cases;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use campanile::bootstrap::{Launch, Output, configuration};
use campanile::core::Path;
use campanile::moe::exchange::{Layout, with_experts};
use campanile::moe::{RankInput, model, routing};
use campanile::{
    Barrier, Communicator, Condition, DType, MemoryKind, Moe, MoeConfig, MoeError, Problem, Set, Tokens, world,
};
use rustix::process::{Pid, Signal, getpid, kill_process};

use cases::case;

const RANKS: usize = 5;
/// Of a wait; a stopped rank is found after it.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Rounds that the last survivors run and verify.
const ROUNDS: u64 = 20;

const EXPERTS: usize = 10;
const HIDDEN: usize = 96;
const TOPK: usize = 3;
const TOKENS: usize = 12;

fn main() -> ExitCode {
    if std::env::var_os("CAMPANILE_RANK").is_some() {
        return rank();
    }
    // Which rank goes how: `kill` at a random moment, `stop` likewise, `both` two ranks at one moment.
    let mut cases = Vec::new();
    for path in [Path::LoadStore, Path::Queue] {
        for deeds in ["kill:3 kill:0", "stop:1 kill:4", "kill:0 kill:1 kill:2 kill:3", "both:1:3"] {
            cases.push(case(format!("{} {deeds}", path.name()), move || survivors_go_on(path, deeds)));
        }
    }
    // They wait more than they work.
    cases::run(cases, 2)
}

fn culprits(deeds: &str) -> Vec<(&str, Vec<usize>)> {
    let deed = |deed: &str| -> Vec<usize> { deed.split(':').skip(1).map(|rank| rank.parse().unwrap()).collect() };
    deeds.split(' ').map(|text| (text.split(':').next().unwrap(), deed(text))).collect()
}

fn survivors_go_on(path: Path, deeds: &str) {
    let seed = std::process::id().to_string();
    let outcome = Launch::current_exe([deeds, &seed], RANKS)
        .expect("this program has a path")
        .env("CAMPANILE_TIMEOUT", format!("{}s", TIMEOUT.as_secs()))
        .env("CAMPANILE_PATH", path.name())
        .timeout(Some(Duration::from_secs(90)))
        // The survivors are to go on, not to be ended.
        .grace(Duration::from_secs(60))
        .output(Output::Captured)
        .run()
        .expect("the job starts");
    let gone: Vec<usize> = culprits(deeds).into_iter().flat_map(|(_, ranks)| ranks).collect();
    for rank in (0..RANKS).filter(|rank| !gone.contains(rank)) {
        let said = String::from_utf8_lossy(&outcome.ranks[rank].stdout);
        let expected = format!("{ROUNDS} rounds without {gone:?}\n");
        assert_eq!(said, expected, "rank {rank} (seed {seed}); {outcome}");
    }
    // A stopped rank that comes back is fenced off: it learns that the others went on without it.
    for (_, ranks) in culprits(deeds).iter().filter(|(deed, _)| *deed == "stop") {
        let said = String::from_utf8_lossy(&outcome.ranks[ranks[0]].stdout);
        assert!(said.contains("fault of rank"), "the fenced rank said {said:?} (seed {seed}); {outcome}");
    }
}

fn rank() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let config = configuration().expect("the launcher sets it");
    let me = config.rank().expect("the launcher sets it") as usize;
    let seed: u64 = arguments[1].parse().expect("a seed");
    let ended = world(&config).map_err(|error| error.to_string());
    match ended.and_then(|comm| {
        let told = |error: MoeError| match error.fault() {
            Some(fault) => format!("fault of {}: {error}", fault.culprit),
            None => error.to_string(),
        };
        play(me, &comm, &culprits(&arguments[0]), seed).map_err(told)
    }) {
        Ok(dead) => {
            println!("{ROUNDS} rounds without {dead:?}");
            std::io::stdout().flush().expect("the launcher reads");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            std::io::stdout().flush().expect("the launcher reads");
            ExitCode::FAILURE
        }
    }
}

/// Each deed ends some ranks, and the others go on without them. Returns the dead in the order of the deeds.
fn play(me: usize, comm: &Arc<Communicator>, deeds: &[(&str, Vec<usize>)], seed: u64) -> Result<Vec<usize>, MoeError> {
    let expert_rank = Problem::block_map(EXPERTS, RANKS);
    let mut moe = Moe::new(comm, MoeConfig::new(TOKENS, HIDDEN, TOPK, expert_rank))?;
    let pids = comm.gather("pids", &std::process::id().to_le_bytes())?;
    let (mut dead, mut alive) = (Vec::new(), None);
    for (deed, culprits) in deeds {
        if culprits.contains(&me) {
            let signal = if *deed == "stop" { Signal::STOP } else { Signal::KILL };
            let moment = Duration::from_micros(seed.wrapping_mul(0x9e37_79b9) % 9_000);
            std::thread::spawn(move || {
                std::thread::park_timeout(moment);
                kill_process(getpid(), signal).expect("a process may signal itself");
            });
        }
        let survivors = Arc::new(survive(comm, &mut moe, &mut dead, culprits, seed)?);
        Barrier::new(&survivors)?.wait()?;
        alive = Some(survivors);
    }
    for round in 0..ROUNDS {
        one_round(&mut moe, &dead, seed ^ round)?;
    }
    let alive = alive.expect("there is a deed");
    // New memory among the survivors.
    let window = alive.window(8 * RANKS, MemoryKind::Host)?;
    for position in 0..alive.ranks() {
        window.signal(position, 8 * alive.rank(), 7)?;
    }
    for position in 0..alive.ranks() {
        window.wait(position, 8 * position, Condition::AtLeast(7), "hello")?;
    }
    // Whoever is first in the team wakes the stopped ones.
    for rank in deeds.iter().filter(|(deed, _)| *deed == "stop" && alive.rank() == 0).flat_map(|(_, ranks)| ranks) {
        let pid = i32::from_le_bytes(pids[*rank].as_slice().try_into().expect("4 bytes"));
        kill_process(Pid::from_raw(pid).expect("a process has a number"), Signal::CONT).expect("it is there, stopped");
    }
    dead.sort_by_key(|rank| deeds.iter().flat_map(|(_, ranks)| ranks).position(|other| other == rank));
    Ok(dead)
}

/// Runs rounds until all of `culprits` are gone and masked; adds them to `dead`.
fn survive(
    comm: &Communicator,
    moe: &mut Moe,
    dead: &mut Vec<usize>,
    culprits: &[usize],
    seed: u64,
) -> Result<Communicator, MoeError> {
    loop {
        let mut error = (0..).find_map(|round| one_round(moe, dead, seed + round).err()).expect("somebody dies");
        loop {
            let Some(culprit) = error.fault().map(|fault| fault.culprit.index()) else { return Err(error) };
            if dead.contains(&culprit) || !culprits.contains(&culprit) {
                return Err(error);
            }
            dead.push(culprit);
            match go_on(comm, moe, dead) {
                Ok(survivors) if culprits.iter().all(|culprit| dead.contains(culprit)) => return Ok(survivors),
                // Another one of them is noticed in the next rounds, or was noticed by now.
                Ok(_) => break,
                Err(next) => error = next,
            }
        }
    }
}

fn go_on(comm: &Communicator, moe: &mut Moe, dead: &[usize]) -> Result<Communicator, MoeError> {
    let survivors = comm.mask(dead)?;
    moe.go_on(&survivors)?;
    Ok(survivors)
}

/// One round among those that are not in `dead`, verified bit for bit.
fn one_round(moe: &mut Moe, dead: &[usize], seed: u64) -> Result<(), MoeError> {
    let expert_rank = Problem::block_map(EXPERTS, RANKS);
    let router = routing::Router::new(routing::Routing::Uniform, TOPK, seed);
    let input = |rank: usize| {
        if dead.contains(&rank) {
            return RankInput::default();
        }
        let mut routed = router.route(rank, RANKS, TOKENS, &expert_rank);
        // What a masked rank would have added is left out.
        let lost = |expert: i32| expert >= 0 && dead.contains(&(expert_rank[expert as usize] as usize));
        routed.topk_idx.iter_mut().filter(|expert| lost(**expert)).for_each(|expert| *expert = -1);
        let x = (0..TOKENS * DType::BF16.row_bytes(HIDDEN)).map(|at| (at * 7 + rank * 31) as u8 & 0x3f).collect();
        RankInput {
            tokens: TOKENS,
            x,
            topk_idx: routed.topk_idx,
            topk_weights: routed.topk_weights,
            ..RankInput::default()
        }
    };
    let problem = Problem {
        dtype: DType::BF16,
        combine_dtype: DType::BF16,
        hidden: HIDDEN,
        topk: TOPK,
        scales: 0,
        quantize: false,
        expert_rank: expert_rank.clone(),
        expert_scale: None,
        weighted: true,
        ranks: (0..RANKS).map(input).collect(),
    };
    let rank = moe.communicator().rank();
    let mut out = vec![0xee; TOKENS * DType::BF16.row_bytes(HIDDEN)];
    let handle = moe.dispatch(Set((seed % 2) as u32), &Tokens::of(&problem, rank))?;
    with_experts(moe, &problem, Layout::Rows, handle, |moe, handle, outputs| {
        moe.combine(handle, outputs, &mut out, None)
    })?;
    assert!(out == model::solve(&problem).ranks[rank].out, "rank {rank}: other bits without {dead:?}, seed {seed}");
    Ok(())
}
