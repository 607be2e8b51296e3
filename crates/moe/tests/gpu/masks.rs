//! Masks and generations: survivors have the bits of the model in which the slots of masked ranks are −1.

use std::sync::{Barrier, Mutex};
use std::time::Duration;

use campanile_core::{MoeCombine, MoeMode};
use campanile_moe::gpu::exchange::DeviceProblem;
use campanile_moe::gpu::{FailureKind, GpuMoe, GpuMoeError, GpuMoeOptions, Index};
use campanile_moe::model::{compare, solve};
use campanile_moe::protocol::{Epoch, Set};
use campanile_moe::{Problem, RankInput, Solution};

use crate::case::{Case, PATIENCE};
use crate::emulated::{MODES, cache, devices, failure};

/// The problem without the masked ranks: they bring nothing, and their experts get nothing.
fn without(problem: &Problem, active: &[bool]) -> Problem {
    let mut problem = problem.clone();
    for (rank, input) in problem.ranks.iter_mut().enumerate() {
        if !active[rank] {
            *input = RankInput::default();
        }
        for slot in &mut input.topk_idx {
            if *slot >= 0 && !active[problem.expert_rank[*slot as usize] as usize] {
                *slot = -1;
            }
        }
    }
    problem
}

/// The operations of the active ranks.
fn survivors<'a>(operations: &'a [GpuMoe], active: &'a [bool]) -> impl Iterator<Item = (usize, &'a GpuMoe)> {
    operations.iter().enumerate().filter(|&(rank, _)| active[rank])
}

/// A round of the survivors with the tokens of `problem` as they are, against the model without the masked ranks.
fn check_round(operations: &[GpuMoe], problem: &Problem, active: &[bool], set: Set) {
    let part = |moe| DeviceProblem::new(moe, problem, Index::I32, 0).unwrap();
    let parts: Vec<_> = operations.iter().map(part).collect();
    for (rank, moe) in survivors(operations, active) {
        moe.poison(set, &parts[rank].stream, 0xa5).unwrap();
        parts[rank].poison(0x5a).unwrap();
    }
    for (rank, moe) in survivors(operations, active) {
        // SAFETY: the parts live until their streams are done.
        unsafe { moe.launch_round(set, &parts[rank]).unwrap() };
    }
    let reduced = without(problem, active);
    let mut got = Solution { ranks: vec![Default::default(); operations.len()] };
    for (rank, moe) in survivors(operations, active) {
        moe.finish(&parts[rank].stream, PATIENCE).unwrap();
        got.ranks[rank] = parts[rank].output(problem).unwrap();
        got.ranks[rank].received = moe.received(set, &parts[rank].stream).unwrap();
    }
    compare(&reduced, &solve(&reduced), &got).unwrap();
}

/// Goes on with the survivors, as threads that meet.
fn go_on(operations: &mut [GpuMoe], active: &[bool]) {
    let survivors: Vec<&mut GpuMoe> =
        operations.iter_mut().enumerate().filter(|&(rank, _)| active[rank]).map(|(_, moe)| moe).collect();
    let (barrier, answers) = (Barrier::new(survivors.len()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for moe in survivors {
            scope.spawn(|| {
                let stream = moe.device().stream().unwrap();
                let gather = |_: &'static str, mine: &[u8]| -> Result<Vec<Vec<u8>>, GpuMoeError> {
                    answers.lock().unwrap().push(mine.to_vec());
                    barrier.wait();
                    let all = answers.lock().unwrap().clone();
                    if barrier.wait().is_leader() {
                        answers.lock().unwrap().clear();
                    }
                    barrier.wait();
                    Ok(all)
                };
                moe.go_on(&stream, active, gather).unwrap();
            });
        }
    });
}

fn operations(
    mode: MoeMode,
    wave: u32,
    schedule: u64,
    combine: MoeCombine,
    options: &GpuMoeOptions,
) -> Option<(Case, Vec<GpuMoe>)> {
    let devices = devices(4, wave, schedule)?;
    let case = Case { mode, topk: 5, combine, ..Case::new(&[5, 9, 3, 6]) };
    let operations = GpuMoe::in_process(&devices, &case.config(2), options, &cache()).unwrap();
    Some((case, operations))
}

#[test]
fn rounds_go_on_without_one_and_two_ranks() {
    let [throughput, low_latency] = MODES;
    for (mode, wave, schedule, by) in [
        (throughput, 32, 0, MoeCombine::Pull),
        (throughput, 64, 7, MoeCombine::Pull),
        (low_latency, 64, 0, MoeCombine::Pull),
        (low_latency, 32, 3, MoeCombine::Push),
    ] {
        let Some((case, mut operations)) = operations(mode, wave, schedule, by, &GpuMoeOptions::default()) else {
            return;
        };
        let mut active = [true; 4];
        check_round(&operations, &case.problem(1), &active, Set(0));
        for (masked, seed) in [(2, 2), (0, 4)] {
            active[masked] = false;
            for (rank, moe) in operations.iter_mut().enumerate().filter(|&(rank, _)| active[rank]) {
                moe.set_active(&moe.device().stream().unwrap(), &active).unwrap();
                assert_eq!(moe.active(), active, "rank {rank}");
            }
            check_round(&operations, &case.problem(seed), &active, Set(0));
            check_round(&operations, &case.problem(seed + 1), &active, Set(1));
        }
    }
}

/// A rank masked between dispatch and combine is neither waited for nor read from: its part is left out.
#[test]
fn a_mask_in_the_middle_of_a_round() {
    mask_in_the_middle(MODES[0], MoeCombine::Pull);
    mask_in_the_middle(MODES[1], MoeCombine::Pull);
    mask_in_the_middle(MODES[0], MoeCombine::Push);
}

fn mask_in_the_middle(mode: MoeMode, by: MoeCombine) {
    let Some((case, mut operations)) = operations(mode, 32, 3, by, &GpuMoeOptions::default()) else { return };
    let (problem, active) = (case.problem(1), [true, true, false, true]);
    let part = |moe| DeviceProblem::new(moe, &problem, Index::I32, 0).unwrap();
    let parts: Vec<_> = operations.iter().map(part).collect();
    for (moe, part) in operations.iter().zip(&parts) {
        // SAFETY: the parts live until their streams are done.
        unsafe {
            moe.dispatch(Set(0), &part.stream, &part.tokens).unwrap();
            moe.scale(Set(0), &part.stream, part.factors()).unwrap();
        }
    }
    let reduced = without(&problem, &active);
    let expected = solve(&reduced);
    for (moe, part) in operations.iter().zip(&parts) {
        moe.finish(&part.stream, PATIENCE).unwrap();
    }
    for (rank, moe) in operations.iter_mut().enumerate().filter(|&(rank, _)| active[rank]) {
        moe.set_active(&parts[rank].stream, &active).unwrap();
        // SAFETY: as above.
        unsafe { moe.combine(Set(0), &parts[rank].stream, &parts[rank].out).unwrap() };
    }
    for (rank, moe) in survivors(&operations, &active) {
        moe.finish(&parts[rank].stream, PATIENCE).unwrap();
        let output = parts[rank].output(&problem).unwrap();
        assert_eq!((&output.out, rank), (&expected.ranks[rank].out, rank));
        let bits = |weights: &[f32]| weights.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&output.out_weights), bits(&expected.ranks[rank].out_weights), "rank {rank}");
    }
}

/// After a timeout on a rank that is gone, with sets at different epochs, across the wrap: a new generation; then a second
/// death.
#[test]
fn a_generation_goes_on_after_a_failure_by_pull() {
    MODES.into_iter().for_each(|mode| generations(mode, MoeCombine::Pull));
}

#[test]
fn a_generation_goes_on_after_a_failure_by_push() {
    generations(MODES[0], MoeCombine::Push);
}

fn generations(mode: MoeMode, by: MoeCombine) {
    let options = GpuMoeOptions {
        deadline: Some(Duration::from_millis(2500)),
        first: Epoch(u32::MAX - 1),
        ..GpuMoeOptions::default()
    };
    let Some((case, mut operations)) = operations(mode, 64, 5, by, &options) else { return };
    let mut active = [true; 4];
    check_round(&operations, &case.problem(1), &active, Set(1));
    for (gone, seed) in [(1, 2), (3, 5)] {
        // The rank that is gone does not come; the others fail on set 0, one of them not yet in its dispatch.
        let problem = case.problem(seed);
        let late = if gone == 1 { 2 } else { 0 };
        let failing = |&(rank, _): &(usize, &GpuMoe)| rank != gone && rank != late;
        let part = |(rank, moe)| (rank, moe, DeviceProblem::new(moe, &problem, Index::I32, 0).unwrap());
        let failing: Vec<_> = survivors(&operations, &active).filter(failing).map(part).collect();
        for (_, moe, part) in &failing {
            // SAFETY: the part lives until its stream is done.
            unsafe { moe.launch_round(Set(0), part).unwrap() };
        }
        for (rank, moe, part) in failing {
            moe.finish(&part.stream, PATIENCE).unwrap_err();
            assert_eq!(failure(moe).kind, FailureKind::Timeout, "rank {rank}");
        }
        active[gone] = false;
        go_on(&mut operations, &active);
        for round in 0..3 {
            check_round(&operations, &case.problem(seed + round), &active, Set(round as u32 % 2));
        }
    }
}

#[test]
fn masks_that_are_none_are_refused() {
    let Some((_, mut operations)) = operations(MODES[0], 32, 0, MoeCombine::Pull, &GpuMoeOptions::default()) else {
        return;
    };
    let moe = &mut operations[1];
    let stream = moe.device().stream().unwrap();
    let mut refused = |active: &[bool]| moe.set_active(&stream, active).unwrap_err().to_string();
    assert_eq!(refused(&[true; 3]), "moe: active has 3 entries; one entry a rank, 4, is needed");
    assert!(refused(&[true, false, true, true]).contains("masks rank 1, this one"));
    moe.set_active(&stream, &[true, true, true, false]).unwrap();
    let back = moe.set_active(&stream, &[true; 4]).unwrap_err().to_string();
    assert_eq!(back, "moe: active brings rank 3 back; a masked rank stays masked");
    // A generation may bring it back, at an epoch that nobody has used.
    let used = moe.begin_generation(&stream, &[Epoch(1); 2], &[true; 4]).unwrap_err().to_string();
    assert!(used.contains("first is epoch 1 for set 0; epoch 2"), "{used}");
    let next = moe.next_generation(&stream).unwrap();
    moe.begin_generation(&stream, &next, &[true; 4]).unwrap();
    assert_eq!(moe.active(), [true; 4]);
}
