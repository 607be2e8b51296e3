//! Many rounds of ragged random counts, on more ranks than this machine has cores, on two sets, in every order of phases
//! that the protocol allows, with poisoned buffers; every result is compared with the scalar model.

use std::sync::Arc;

use campanile::core::{MoeCombine, MoeMode};
use campanile::moe::exchange::{Layout, with_experts};
use campanile::moe::{DType, RankInput, RankOutput, Solution, model, number};
use campanile::{
    Barrier, CommOptions, Communicator, Handle, Moe, MoeConfig, MoeError, Path, Problem, Set, Tokens, threads,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const CAPACITY: usize = 12;
const HIDDEN: usize = 24;
const TOPK: usize = 3;

/// The tokens of one rank in one round; the other ranks' are left out, since its results do not depend on them.
fn problem(rank: usize, ranks: usize, round: u64) -> Problem {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(round << 8 | rank as u64);
    let experts = 2 * ranks as u32 + 1;
    // A third of the ranks sends nothing.
    let tokens = (random.next_u32() as usize % (CAPACITY * 3 / 2)).saturating_sub(CAPACITY / 2);
    let mut x = vec![0; tokens * DType::BF16.row_bytes(HIDDEN)];
    for element in 0..tokens * HIDDEN {
        number::write(DType::BF16, &mut x, element, (random.next_u32() % 512) as f32 - 256.0);
    }
    let slot = |random: &mut Xoshiro256PlusPlus| {
        if random.next_u32().is_multiple_of(5) { -1 } else { (random.next_u32() % experts) as i32 }
    };
    let input = RankInput {
        tokens,
        x,
        topk_idx: (0..tokens * TOPK).map(|_| slot(&mut random)).collect(),
        topk_weights: (0..tokens * TOPK).map(|_| (random.next_u32() % 64) as f32 / 16.0).collect(),
        ..RankInput::default()
    };
    let mut inputs = vec![RankInput::default(); ranks];
    inputs[rank] = input;
    Problem {
        dtype: DType::BF16,
        combine_dtype: DType::BF16,
        hidden: HIDDEN,
        topk: TOPK,
        scales: 0,
        quantize: false,
        expert_rank: Problem::block_map(experts as usize, ranks),
        expert_scale: Some((0..experts).map(|expert| 1.0 + expert as f32).collect()),
        weighted: true,
        ranks: inputs,
    }
}

/// An open round and what must come out of it.
struct Open {
    problem: Problem,
    handle: Handle,
}

fn soak(comm: &Arc<Communicator>, combine: MoeCombine, rounds: u64) -> Result<u64, MoeError> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let mode = [MoeMode::Auto, MoeMode::Throughput, MoeMode::LowLatency][rank % 3];
    let map = problem(0, ranks, 0).expert_rank;
    let mut moe = Moe::new(comm, MoeConfig { combine, mode, ..MoeConfig::new(CAPACITY, HIDDEN, TOPK, map) })?;
    // The same on every rank: all issue the phases in one order.
    let mut order = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut open: [Option<Open>; 2] = [None, None];
    let mut verified = 0;
    for round in 0..rounds {
        let set = (order.next_u32() % 2) as usize;
        if let Some(open) = open[set].take() {
            finish(&mut moe, open, round, &mut verified)?;
        }
        let problem = problem(rank, ranks, round);
        let sent = moe.dispatch_send(Set(set as u32), &Tokens::of(&problem, rank))?;
        if order.next_u32().is_multiple_of(2)
            && let Some(other) = open[1 - set].take()
        {
            finish(&mut moe, other, round, &mut verified)?;
        }
        let handle = moe.dispatch_receive(sent)?;
        if order.next_u32().is_multiple_of(7) {
            moe.release(handle)?;
        } else {
            open[set] = Some(Open { problem, handle });
        }
    }
    for open in open.into_iter().flatten() {
        finish(&mut moe, open, rounds, &mut verified)?;
    }
    Ok(verified)
}

fn finish(moe: &mut Moe, open: Open, round: u64, verified: &mut u64) -> Result<(), MoeError> {
    let Open { problem, handle } = open;
    let (rank, ranks) = (moe.communicator().rank(), moe.communicator().ranks());
    let mut received = moe.received(&handle)?;
    for source in 0..ranks {
        for row in 0..received.count(source) {
            received.output_mut(source, row).fill(0xa5);
        }
    }
    let tokens = problem.ranks[rank].tokens;
    let mut out = vec![0xa5; tokens * DType::BF16.row_bytes(HIDDEN)];
    let mut out_weights = vec![f32::NAN; tokens * TOPK];
    let layout = Layout::ALL[round as usize % 3];
    with_experts(moe, &problem, layout, handle, |moe, handle, outputs| {
        moe.combine(handle, outputs, &mut out, Some(&mut out_weights))
    })?;
    let mut expected = model::solve(&problem);
    expected.ranks.iter_mut().for_each(|rank| rank.received = Default::default());
    let mut got = Solution { ranks: vec![RankOutput::default(); ranks] };
    got.ranks[rank] = RankOutput { out, out_weights, ..RankOutput::default() };
    if let Err(mismatch) = model::compare(&problem, &expected, &got) {
        panic!("rank {rank}, near round {round}: {mismatch}");
    }
    *verified += tokens as u64;
    Ok(())
}

fn run(ranks: usize, path: Path, combine: MoeCombine, rounds: u64) {
    let options = CommOptions { path, ..CommOptions::default() };
    let ended = threads::<_, MoeError>(ranks, &options, |comm| soak(&comm, combine, rounds));
    let verified: u64 = ended.into_iter().map(|rank| rank.expect("no rank fails")).sum();
    assert!(verified > rounds, "most rounds carry tokens: {verified} in {rounds}");
}

#[test]
fn ten_thousand_rounds_on_eight_ranks() {
    run(8, Path::Auto, MoeCombine::Pull, 10_000);
}

#[test]
fn by_push() {
    run(5, Path::Auto, MoeCombine::Push, 2_000);
}

#[test]
fn by_queue() {
    run(3, Path::Queue, MoeCombine::Push, 1_000);
}

#[test]
fn two_communicators_side_by_side() {
    let ended = threads::<_, MoeError>(3, &CommOptions::default(), |first| {
        let all: Vec<_> = first.team().members().to_vec();
        let second = Arc::new(first.split(&campanile::Team::new(all).expect("distinct ranks"))?.expect("a member"));
        let mut barriers = (Barrier::new(&first)?, Barrier::new(&second)?);
        for _ in 0..500 {
            barriers.0.wait()?;
            barriers.1.wait()?;
        }
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(|| soak(&second, MoeCombine::Pull, 300));
            let mine = soak(&first, MoeCombine::Pull, 300)?;
            Ok::<_, MoeError>((mine, other.join().expect("no panic")?))
        })?;
        assert_eq!(both.0, both.1);
        Ok(())
    });
    ended.into_iter().for_each(|rank| rank.expect("no rank fails"));
}
