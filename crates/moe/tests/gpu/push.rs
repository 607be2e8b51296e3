//! Combine by push: words as the host has them; send and receive apart, of results that are not in the window; deadlines and
//! aborts.

use std::time::Duration;

use campanile_core::MoeCombine;
use campanile_moe::exchange::Layout;
use campanile_moe::gpu::exchange::{Arranged, DeviceProblem};
use campanile_moe::gpu::{FailureKind, GpuMoe, GpuMoeOptions, Index};
use campanile_moe::protocol::{Epoch, Phase, Ready, Set, TaggedWord, Word, WordMap};

use crate::case::{Case, PATIENCE};
use crate::emulated::{cache, devices, failure};

fn pushed(case: Case) -> Case {
    Case { combine: MoeCombine::Push, ..case }
}

/// Operations of two ranks that push, and their parts of a case.
fn pair(deadline: Duration) -> Option<(Vec<GpuMoe>, Vec<DeviceProblem>)> {
    let devices = devices(2, 32, 0)?;
    let case = pushed(Case::new(&[5, 9]));
    let options = GpuMoeOptions { deadline: Some(deadline), ..GpuMoeOptions::default() };
    let operations = GpuMoe::in_process(&devices, &case.config(1), &options, &cache()).unwrap();
    let problem = case.problem(1);
    let part = |moe| DeviceProblem::new(moe, &problem, Index::I32, 0).unwrap();
    let parts = operations.iter().map(part).collect();
    Some((operations, parts))
}

/// Dispatch and experts of both, done.
fn dispatched(operations: &[GpuMoe], parts: &[DeviceProblem]) {
    for (moe, part) in operations.iter().zip(parts) {
        // SAFETY: the parts are alive until their streams are done.
        unsafe {
            moe.dispatch(Set(0), &part.stream, &part.tokens).unwrap();
            moe.scale(Set(0), &part.stream, part.factors()).unwrap();
        }
    }
    for (moe, part) in operations.iter().zip(parts) {
        moe.finish(&part.stream, PATIENCE).unwrap();
    }
}

/// What rank `reader` finds in a word that `source` wrote.
fn word(operations: &[GpuMoe], parts: &[DeviceProblem], reader: usize, source: usize, word: Word) -> u64 {
    let map = WordMap { sets: 1, ranks: 2 };
    let mut bytes = vec![0; map.bytes()];
    operations[reader].read_words(&parts[reader].stream, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes[map.offset(Set(0), source, word)..][..8].try_into().unwrap())
}

/// The words are those of the host's protocol: results counted over all rounds, and what READY_C says.
#[test]
fn words_are_those_of_the_host() {
    let Some((operations, parts)) = pair(Duration::from_secs(20)) else { return };
    let mut expected = [[WordMap::initial(Epoch::FIRST); 2]; 2];
    let mut epoch = Epoch::FIRST;
    for _ in 0..3 {
        for (moe, part) in operations.iter().zip(&parts) {
            // SAFETY: the parts are alive until their streams are done.
            unsafe { moe.launch_round(Set(0), part).unwrap() };
        }
        for (owner, (moe, part)) in operations.iter().zip(&parts).enumerate() {
            moe.finish(&part.stream, PATIENCE).unwrap();
            for (source, returned) in expected[owner].iter_mut().enumerate() {
                let received = moe.received(Set(0), &part.stream).unwrap();
                *returned +=
                    received.src.as_chunks::<2>().0.iter().filter(|src| src[0] == source as i32).count() as u64;
            }
        }
        for (owner, expected) in expected.iter().enumerate() {
            for (source, expected) in expected.iter().enumerate() {
                let seen = |of| word(&operations, &parts, source, owner, of);
                assert_eq!(seen(Word::Returned), *expected, "of rank {owner} at {source}");
                assert_eq!(seen(Word::ReadyC), TaggedWord { epoch, count: Ready::Push as u32 }.pack());
                assert_eq!(seen(Word::DoneC), TaggedWord { epoch, count: 0 }.pack());
            }
        }
        epoch = epoch.next();
    }
}

#[test]
fn a_rank_that_returns_nothing_is_named() {
    let Some((operations, parts)) = pair(Duration::from_secs(2)) else { return };
    dispatched(&operations, &parts);
    let (moe, part) = (&operations[0], &parts[0]);
    // SAFETY: the part is alive until its stream is done.
    unsafe { moe.combine(Set(0), &part.stream, &part.out).unwrap() };
    moe.finish(&part.stream, PATIENCE).unwrap_err();
    let found = failure(moe);
    let wanted = (FailureKind::Timeout, Phase::CombineReceive, 1, Word::Returned);
    assert_eq!((found.kind, found.phase, found.peer, found.word), wanted);
    // Its own results were sent; that it has read those of the others was not said.
    assert_eq!(word(&operations, &parts, 1, 0, Word::ReadyC) >> 32, u64::from(Epoch::FIRST.0));
    assert_eq!(word(&operations, &parts, 1, 0, Word::DoneC), WordMap::initial(Epoch::FIRST));
}

#[test]
fn an_abort_frees_a_running_kernel() {
    let Some((operations, parts)) = pair(Duration::from_secs(100)) else { return };
    dispatched(&operations, &parts);
    let (moe, part) = (&operations[0], &parts[0]);
    // SAFETY: the part is alive until its stream is done.
    unsafe { moe.combine(Set(0), &part.stream, &part.out).unwrap() };
    assert!(part.stream.synchronize(Duration::from_millis(50)).is_err(), "rank 1 never comes");
    moe.abort();
    moe.finish(&part.stream, PATIENCE).unwrap_err();
    assert_eq!((failure(moe).kind, failure(moe).peer), (FailureKind::Aborted, 1));
}

/// Send and receive in launches of their own, on two sets at once; one rank leaves its results in the window, the other in
/// a layout.
#[test]
fn split_phases_of_two_sets() {
    let Some(devices) = devices(2, 64, 5) else { return };
    let case = pushed(Case::new(&[5, 9]));
    let operations = GpuMoe::in_process(&devices, &case.config(2), &GpuMoeOptions::default(), &cache()).unwrap();
    let problems = [case.problem(1), case.problem(2)];
    let part = |moe, problem| DeviceProblem::new(moe, problem, Index::I32, 0).unwrap();
    let parts: Vec<Vec<_>> =
        operations.iter().map(|moe| problems.iter().map(|problem| part(moe, problem)).collect()).collect();
    let arranged: Vec<_> =
        (0..2).map(|_| Arranged::new(&operations[1], Layout::ExpertMajor, 3, true, 0, &cache()).unwrap()).collect();
    let sets = || (0..2).map(|set| (set, Set(set as u32)));
    for _ in 0..2 {
        for (rank, moe) in operations.iter().enumerate() {
            // One stream, so that the launches of a rank are in order.
            let stream = &parts[rank][0].stream;
            // SAFETY: parts and layouts are alive until the streams are done.
            unsafe {
                for (at, set) in sets() {
                    parts[rank][at].poison(0x5a).unwrap();
                    parts[rank][at].stream.synchronize(PATIENCE).unwrap();
                    moe.dispatch(set, stream, &parts[rank][at].tokens).unwrap();
                }
                for (at, set) in sets() {
                    if rank == 0 {
                        moe.scale(set, stream, parts[rank][at].factors()).unwrap();
                        moe.combine_send(set, stream).unwrap();
                    } else {
                        arranged[at].arrange_and_scale(moe, set, stream, parts[rank][at].factors()).unwrap();
                        moe.combine_send_from(set, stream, arranged[at].outputs()).unwrap();
                    }
                }
                for (at, set) in sets() {
                    moe.combine_receive(set, stream, &parts[rank][at].out).unwrap();
                }
            }
        }
        for (rank, moe) in operations.iter().enumerate() {
            moe.finish(&parts[rank][0].stream, PATIENCE).unwrap();
            for (at, problem) in problems.iter().enumerate() {
                let output = parts[rank][at].output(problem).unwrap();
                assert_eq!(output.out, campanile_moe::model::solve(problem).ranks[rank].out, "rank {rank}, set {at}");
            }
        }
    }
}

/// A rank that releases what the others combine returns nothing.
#[test]
fn a_release_is_no_combine() {
    let Some((operations, parts)) = pair(Duration::from_secs(2)) else { return };
    dispatched(&operations, &parts);
    // SAFETY: the parts are alive until their streams are done.
    unsafe {
        operations[0].combine(Set(0), &parts[0].stream, &parts[0].out).unwrap();
        operations[1].release(Set(0), &parts[1].stream).unwrap();
    }
    operations[1].finish(&parts[1].stream, PATIENCE).unwrap();
    operations[0].finish(&parts[0].stream, PATIENCE).unwrap_err();
    assert_eq!((failure(&operations[0]).peer, failure(&operations[0]).word), (1, Word::Returned));
}
