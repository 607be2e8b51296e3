//! Split phases and launches of more blocks than are resident.

use campanile_gpu::{Emulation, Pins};
use campanile_moe::gpu::exchange::DeviceProblem;
use campanile_moe::gpu::{FailureKind, GpuMoe, GpuMoeOptions, Index};
use campanile_moe::model::{compare, solve};
use campanile_moe::protocol::{Phase, Set};
use campanile_moe::{Problem, Solution};

use crate::case::{Case, PATIENCE};
use crate::emulated::{cache, devices, emulate, failure, pair};

/// A round on each of two sets: all phases of both are sent before one is received. Ranks that split work with one that
/// does not.
#[test]
fn split_phases_of_two_sets() {
    for (wave, schedule) in [(32, 1), (64, 4)] {
        let Some(devices) = devices(3, wave, schedule) else { return };
        let case = Case::new(&[5, 9, 40]);
        let operations = GpuMoe::in_process(&devices, &case.config(2), &GpuMoeOptions::default(), &cache()).unwrap();
        let problems = [case.problem(1), case.problem(2)];
        let parts: Vec<Vec<_>> = operations
            .iter()
            .map(|moe| problems.iter().map(|p| DeviceProblem::new(moe, p, Index::I32, 0).unwrap()).collect())
            .collect();
        for _ in 0..2 {
            // Before any rank sends.
            for (moe, parts) in operations.iter().zip(&parts) {
                for (set, part) in [Set(0), Set(1)].into_iter().zip(parts) {
                    part.poison(0x5a).unwrap();
                    moe.poison(set, &part.stream, 0xa5).unwrap();
                }
            }
            for (rank, (moe, parts)) in operations.iter().zip(&parts).enumerate() {
                let stream = &parts[0].stream;
                let sets = || [Set(0), Set(1)].into_iter().zip(parts);
                // SAFETY: the parts live until their streams are done.
                unsafe {
                    if rank == 1 {
                        for (set, part) in sets() {
                            moe.dispatch(set, stream, &part.tokens).unwrap();
                        }
                        for (set, part) in sets() {
                            moe.scale(set, stream, part.factors()).unwrap();
                            moe.combine(set, stream, &part.out).unwrap();
                        }
                        continue;
                    }
                    for (set, part) in sets() {
                        moe.dispatch_send(set, stream, &part.tokens).unwrap();
                    }
                    for (set, part) in sets() {
                        moe.dispatch_receive(set, stream).unwrap();
                        moe.scale(set, stream, part.factors()).unwrap();
                    }
                    for (set, _) in sets() {
                        moe.combine_send(set, stream).unwrap();
                    }
                    for (set, part) in sets() {
                        moe.combine_receive(set, stream, &part.out).unwrap();
                    }
                }
            }
            for (number, problem) in problems.iter().enumerate() {
                check(&operations, &parts, number, problem);
            }
        }
    }
}

fn check(operations: &[GpuMoe], parts: &[Vec<DeviceProblem>], number: usize, problem: &Problem) {
    let mut got = Solution::default();
    let expected = solve(problem);
    for (rank, (moe, parts)) in operations.iter().zip(parts).enumerate() {
        let stream = &parts[0].stream;
        moe.finish(stream, PATIENCE).unwrap();
        let mut output = parts[number].output(problem).unwrap();
        output.received = moe.received(Set(number as u32), stream).unwrap();
        let counts = moe.read_expert_counts(Set(number as u32), stream).unwrap();
        let slots = &expected.ranks[rank].received.topk_idx;
        let wanted = |expert| slots.iter().filter(|&&slot| slot == expert).count() as u32;
        assert_eq!(counts, (0..counts.len() as i32).map(wanted).collect::<Vec<_>>(), "rank {rank}");
        got.ranks.push(output);
    }
    compare(problem, &expected, &got).unwrap();
}

#[test]
fn phases_out_of_order_are_misuse() {
    let (send, receive, give, sum, combine) = (0, 1, 2, 3, 4);
    let launch = |launch, moe: &GpuMoe, part: &DeviceProblem| {
        // SAFETY: the parts live until their streams are done.
        let launched = unsafe {
            match launch {
                0 => moe.dispatch_send(Set(0), &part.stream, &part.tokens),
                1 => moe.dispatch_receive(Set(0), &part.stream),
                2 => moe.combine_send(Set(0), &part.stream),
                3 => moe.combine_receive(Set(0), &part.stream, &part.out),
                _ => moe.combine(Set(0), &part.stream, &part.out),
            }
        };
        launched.unwrap();
    };
    for (launches, phase) in [
        (vec![receive], Phase::DispatchReceive),
        (vec![send, send], Phase::DispatchSend),
        (vec![send, give], Phase::CombineSend),
        (vec![send, receive, receive], Phase::DispatchReceive),
        (vec![send, receive, sum], Phase::CombineReceive),
        (vec![send, receive, give, give], Phase::CombineSend),
        (vec![send, receive, give, combine], Phase::CombineSend),
        (vec![send, receive, give, sum, sum], Phase::CombineReceive),
    ] {
        let Some((operations, parts)) = pair(&GpuMoeOptions::default()) else { return };
        for &number in &launches {
            for (moe, part) in operations.iter().zip(&parts) {
                launch(number, moe, part);
            }
        }
        for (moe, part) in operations.iter().zip(&parts) {
            moe.finish(&part.stream, PATIENCE).unwrap_err();
            let found = failure(moe);
            assert_eq!((found.kind, found.phase), (FailureKind::Misuse, phase), "{} launches", launches.len());
        }
    }
}

/// A device that holds four blocks at a time does launches of nine, whichever block comes first.
#[test]
fn more_blocks_than_are_resident() {
    for (wave, schedule) in [(32, 0), (32, 5), (64, 3)] {
        let emulation = Emulation { devices: 2, wave, schedule, multiprocessors: 1 };
        let Some(devices) = emulate(emulation) else { return };
        let pins = Pins { blocks: Some(9), threads: Some(64), shared_bytes: None };
        for receivers in [None, Some(1)] {
            let options = GpuMoeOptions { dispatch: pins, combine: pins, receivers, ..GpuMoeOptions::default() };
            Case::new(&[40, 3]).check(&devices, &options, &cache(), 3).unwrap();
        }
    }
}
