//! Collectives behind every decorator: the same bits, by load / store and by queue, and counters that add up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use campanile_collectives::{AllGather, Barrier};
use campanile_core::{CommOptions, MemoryKind, MoeCombine, MoeMode, OpKind, PeerClass, Rank};
use campanile_moe::exchange::{ExchangeOptions, Layout, run};
use campanile_moe::model::{compare, solve};
use campanile_moe::{DType, Problem, RankInput, Solution};
use campanile_testkit::decorate::{Stack, Stats, Trace};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

mod common;
use common::{job, options, queues, stack};

/// Decorators that hide load / store: windows go by queues whatever the path.
const HIDING: [&str; 9] = [
    "check",
    "throttle(latency=20us)",
    "throttle(latency=5us, bandwidth=100MB/s)",
    "fault(seed=1)",
    "fault(seed=2, delay=100us)",
    "fault(seed=3, delay=100us, reorder=yes)",
    "lean",
    "lean(max_bytes=40, strong=yes)",
    "lean(delay=200us, max_bytes=96)",
];

const STACKS: [&str; 6] = [
    "plain+stats+trace",
    "stats+check",
    "throttle(latency=5us)+stats",
    "fault(delay=50us, reorder=yes)+check",
    "lean+check+stats",
    "throttle(latency=2us)+fault(delay=20us)+trace",
];

fn problem(seed: u64) -> Problem {
    const TOKENS: [usize; 3] = [6, 9, 0];
    const HIDDEN: usize = 37;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut rank = |tokens: usize| RankInput {
        tokens,
        x: (0..tokens * HIDDEN).flat_map(|_| (0x3f80 ^ (random.next_u32() as u16 & 0x83ff)).to_le_bytes()).collect(),
        scales: Vec::new(),
        topk_idx: (0..tokens * 3).map(|_| (random.next_u32() % 8) as i32 - 1).collect(),
        topk_weights: (0..tokens * 3).map(|_| (random.next_u32() % 2000) as f32 / 700.0 - 1.0).collect(),
    };
    let ranks = TOKENS.into_iter().map(&mut rank).collect();
    Problem {
        dtype: DType::BF16,
        combine_dtype: DType::BF16,
        hidden: HIDDEN,
        topk: 3,
        scales: 0,
        quantize: false,
        expert_rank: Problem::block_map(7, TOKENS.len()),
        expert_scale: None,
        weighted: true,
        ranks,
    }
}

/// Three rounds with other tokens each, on one job.
fn moe(stack: &Stack, comm: &CommOptions) {
    let problems: Vec<_> = (0..3).map(problem).collect();
    let how =
        ExchangeOptions { layout: Layout::ALL[0], mode: MoeMode::Auto, combine: MoeCombine::Push, keep_received: true };
    let ended = job(3, stack, comm, |comm| {
        let round = |problem| run(&comm, problem, &how).unwrap_or_else(|error| panic!("{stack:?}: {error}")).output;
        let rounds: Vec<_> = problems.iter().map(round).collect();
        // Nobody leaves while others still send it words that it does not wait for.
        comm.agree("all rounds", &[]).expect("nobody fails");
        rounds
    });
    for (round, problem) in problems.iter().enumerate() {
        let ranks = ended.iter().map(|rank| rank[round].clone()).collect();
        if let Err(mismatch) = compare(problem, &solve(problem), &Solution { ranks }) {
            panic!("{stack:?}, round {round}: {mismatch}");
        }
    }
}

/// After each barrier every rank has entered it, and what it put before is there.
fn barrier(stack: &Stack, comm: &CommOptions) {
    const RANKS: usize = 3;
    let entered: Vec<_> = (0..RANKS).map(|_| AtomicU64::new(0)).collect();
    job(RANKS, stack, comm, |comm| {
        let mut barrier = Barrier::new(&comm).expect("a barrier");
        for round in 1..=20 {
            entered[comm.rank()].fetch_add(1, Ordering::Relaxed);
            barrier.wait().unwrap_or_else(|error| panic!("{stack:?}: {error}"));
            for (rank, count) in entered.iter().enumerate() {
                let count = count.load(Ordering::Relaxed);
                assert!(
                    (round..=round + 1).contains(&count),
                    "{stack:?}, round {round}: rank {rank} has entered {count}"
                );
            }
        }
    });
}

#[test]
fn decorators_that_hide_load_and_store() {
    for text in HIDING {
        let stack = stack(text);
        let maps = job(2, &stack, &options(), |comm| {
            let caps = comm.transport().caps(PeerClass::Node, MemoryKind::Host, OpKind::Put).expect("puts");
            let window = comm.window(64, MemoryKind::Host).expect("a window");
            (comm.maps_all(), caps.load_store, window.map(1 - comm.rank()).is_some())
        });
        assert_eq!(maps, [(false, false, false); 2], "{text}");
        barrier(&stack, &options());
        moe(&stack, &options());
    }
}

#[test]
fn decorators_that_do_not() {
    for text in ["plain", "stats", "trace"] {
        let stack = stack(text);
        assert_eq!(job(2, &stack, &options(), |comm| comm.maps_all()), [true; 2], "{text}");
        for comm in [options(), queues()] {
            barrier(&stack, &comm);
            moe(&stack, &comm);
        }
    }
}

#[test]
fn stacks_of_two_and_three() {
    for text in STACKS {
        barrier(&stack(text), &queues());
        moe(&stack(text), &queues());
    }
}

#[test]
fn counters_agree_at_both_ends_of_a_stack() {
    // What goes in above comes out below, whatever is held back in between; both count the same calls.
    let (above, below) = (Stats::new(), Stats::new());
    for middle in ["plain", "check", "throttle(latency=5us)", "fault(delay=20us)", "fault(delay=20us, reorder=yes)"] {
        let before = (above.snapshot(), below.snapshot());
        let trace = Trace::default();
        let plain = stack(middle);
        // Stacks from code and from text go together by applying one after the other.
        let whole = Stack::new().with(below.clone()).with_all(&plain).with(trace.clone()).with(above.clone());
        moe(&whole, &queues());
        let news = |before: usize, now: &Stats| now.snapshot().ranks.len() - before;
        assert_eq!((news(before.0.ranks.len(), &above), news(before.1.ranks.len(), &below)), (3, 3));
        let totals = |stats: &Stats| {
            let snapshot = stats.snapshot();
            let of = |kind| {
                let counts = snapshot.ranks.iter().flat_map(|rank| &rank.peers).map(|peer| peer.of(kind));
                counts.fold((0, 0), |sum, count| (sum.0 + count.operations, sum.1 + count.bytes))
            };
            [OpKind::Put, OpKind::PutSignal, OpKind::PutInline, OpKind::Get, OpKind::Atomic, OpKind::Fence].map(of)
        };
        assert_eq!(totals(&above), totals(&below), "{middle}");
        assert!(totals(&above)[0].0 > 0 && totals(&above)[1].0 > 0, "{middle}: {}", above.snapshot());
        let posts = |call: &&campanile_testkit::decorate::Call| call.name == "post";
        assert_eq!(trace.dropped(), 0);
        let posted: u64 = above.snapshot().ranks.iter().map(|rank| rank.posts + rank.busy).sum();
        let before: u64 = before.0.ranks.iter().map(|rank| rank.posts + rank.busy).sum();
        assert_eq!(trace.calls().iter().filter(posts).count() as u64, posted - before, "{middle}");
    }
}

#[test]
fn a_fault_ends_every_rank_and_names_the_culprit() {
    let comm = CommOptions { timeout: Duration::from_secs(2), queue_depth: 8, ..queues() };
    for text in [
        "fault(rank=1, fail_post=5)",
        "fault(rank=1, fail_completion=5)",
        // Nothing after it completes: the queue is full in the end.
        "fault(rank=1, drop_completion=5)",
        // A drain waits for it.
        "fault(rank=1, drop_completion=5)+lean",
    ] {
        let ended = job(3, &stack(text), &comm, |comm| {
            let mut barrier = Barrier::new(&comm).expect("a barrier");
            let error = (0..100).find_map(|_| barrier.wait().err()).expect("it cannot go on");
            assert!(barrier.wait().expect_err("the first error is sticky").to_string().contains("failed before"));
            // What everybody learned; the culprit itself may know better what went wrong.
            (error.to_string(), comm.transport().fault().map(|fault| fault.culprit))
        });
        for (error, culprit) in &ended {
            assert_eq!(*culprit, Some(Rank(1)), "{text}: {error}");
        }
        for rank in [0, 2] {
            assert!(ended[rank].0.contains("rank 1"), "{text}: {}", ended[rank].0);
        }
    }
}

#[test]
fn large_blocks_of_two_ranks_are_got_from_private_memory() {
    const BLOCK: usize = 64 << 10;
    for (text, comm, gets) in [("plain", options(), 3), ("check", options(), 0), ("plain", queues(), 0)] {
        let stats = Stats::new();
        let stack = Stack::new().with_all(&stack(text)).with(stats.clone());
        job(2, &stack, &comm, |comm| {
            let mut all_gather = AllGather::new(&comm, BLOCK).expect("an all-gather");
            for call in 0..3 {
                let block = vec![2 * call + comm.rank() as u8; BLOCK];
                let mut all = vec![0xee; 2 * BLOCK];
                all_gather.run(&block, &mut all).unwrap_or_else(|error| panic!("{text}: {error}"));
                assert!(all[..BLOCK].iter().all(|&byte| byte == 2 * call), "{text}: block 0 of call {call}");
                assert!(all[BLOCK..].iter().all(|&byte| byte == 2 * call + 1), "{text}: block 1 of call {call}");
            }
        });
        for rank in stats.snapshot().ranks {
            let got = rank
                .peers
                .iter()
                .map(|peer| peer.of(OpKind::Get))
                .fold((0, 0), |sum, count| (sum.0 + count.operations, sum.1 + count.bytes));
            assert_eq!(got, (gets, gets * BLOCK as u64), "{text}");
        }
    }
}

#[test]
fn a_block_that_was_taken_back_too_early_is_an_error() {
    const BLOCK: usize = 64 << 10;
    let comm = CommOptions { timeout: Duration::from_millis(300), ..options() };
    let both_ended = std::sync::Barrier::new(2);
    let ended = job(2, &Stack::new(), &comm, |comm| {
        let mut all_gather = AllGather::new(&comm, BLOCK).expect("an all-gather");
        let (block, mut all) = (vec![7; BLOCK], vec![0; 2 * BLOCK]);
        // Rank 1 comes when the other has given up: its block is there to be got, but nothing says that it is still its.
        while comm.rank() == 1 && comm.transport().fault().is_none() {
            std::thread::yield_now();
        }
        let ended = all_gather.run(&block, &mut all).map_err(|error| error.to_string());
        both_ended.wait();
        ended
    });
    assert!(ended.iter().all(Result::is_err), "{ended:?}");
    assert!(ended[1].as_ref().is_err_and(|error| error.contains("taken back")), "{ended:?}");
}
