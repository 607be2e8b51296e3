//! Every wait ends by its deadline or by an abort, and names whom it was for; what is no round is refused.

use std::time::Duration;

use campanile_core::MoeMode;
use campanile_moe::gpu::exchange::DeviceProblem;
use campanile_moe::gpu::{Failure, FailureKind, GpuMoe, GpuMoeOptions};
use campanile_moe::protocol::{Epoch, Phase, Set, TaggedWord, Word};

use crate::case::PATIENCE;
use crate::emulated::{MODES, failure, pair};

/// Every word that this rank has in the window of rank 1, as bytes.
fn words_at(moe: &GpuMoe, part: &DeviceProblem) -> Vec<u8> {
    let mut bytes = vec![0; 2 * 64];
    moe.read_words(&part.stream, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_rank_that_never_comes_is_named() {
    MODES.into_iter().for_each(a_rank_that_never_comes_is_named_in);
}

fn a_rank_that_never_comes_is_named_in(mode: MoeMode) {
    let options = GpuMoeOptions { deadline: Some(Duration::from_millis(50)), ..GpuMoeOptions::default() };
    let Some((operations, parts)) = pair(mode, &options) else { return };
    let (moe, part) = (&operations[0], &parts[0]);
    // SAFETY: the part is alive until its stream is done.
    unsafe { moe.launch_round(Set(0), part).unwrap() };
    let error = moe.finish(&part.stream, PATIENCE).unwrap_err().to_string();
    let expected = TaggedWord { epoch: Epoch::FIRST, count: 0 }.pack();
    let seen = Failure {
        kind: FailureKind::Timeout,
        phase: Phase::DispatchReceive,
        set: Set(0),
        peer: 1,
        word: Word::Meta,
        expected,
        seen: 0,
    };
    assert_eq!(failure(moe), seen);
    assert!(error.contains("rank 0: dispatch receive on set 0: rank 1 did not bring META"), "{error}");
    // What comes after it publishes nothing: READY_C and DONE_C of rank 0 at rank 1 are what they were.
    let words = words_at(&operations[1], &parts[1]);
    assert_eq!(words[3 * 8..5 * 8], [0; 16]);
    // SAFETY: as above.
    unsafe { moe.launch_round(Set(0), part).unwrap() };
    moe.finish(&part.stream, PATIENCE).unwrap_err();
    assert_eq!((failure(moe), words_at(&operations[1], &parts[1])), (seen, words));
}

/// Each wait of a kernel: on a rank that does not dispatch, does not combine, does not give the credit for the next round.
/// It ends by its deadline or by an abort, and names phase, set, peer and word.
#[test]
fn every_wait_ends_by_a_deadline_and_by_an_abort() {
    std::thread::scope(|scope| {
        for (phase, word) in [
            (Phase::DispatchReceive, Word::Meta),
            (Phase::CombineReceive, Word::ReadyC),
            (Phase::DispatchSend, Word::ReadyC),
        ] {
            for (mode, aborts) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
                scope.spawn(move || a_wait_ends(mode, phase, word, aborts));
            }
        }
    });
}

fn a_wait_ends(mode: MoeMode, phase: Phase, word: Word, aborts: bool) {
    let set = Set(1);
    let deadline = Duration::from_secs(if aborts { 100 } else { 2 });
    let Some((operations, parts)) = pair(mode, &GpuMoeOptions { deadline: Some(deadline), ..GpuMoeOptions::default() })
    else {
        return;
    };
    let (moe, part) = (&operations[0], &parts[0]);
    // SAFETY: the parts are alive until their streams are done.
    let dispatch = |rank: usize| unsafe {
        operations[rank].dispatch(set, &parts[rank].stream, &parts[rank].tokens).unwrap();
    };
    if phase != Phase::DispatchReceive {
        // Done before anything is aborted or late.
        (0..2).for_each(dispatch);
        (0..2).for_each(|rank| operations[rank].finish(&parts[rank].stream, PATIENCE).unwrap());
    }
    // SAFETY: as above.
    unsafe {
        match phase {
            Phase::CombineReceive => moe.combine(set, &part.stream, &part.out).unwrap(),
            Phase::DispatchSend => {
                moe.release(set, &part.stream).unwrap();
                dispatch(0);
            }
            _ => dispatch(0),
        }
    }
    if aborts {
        assert!(part.stream.synchronize(Duration::from_millis(50)).is_err(), "rank 1 never comes");
        moe.abort();
    }
    moe.finish(&part.stream, PATIENCE).unwrap_err();
    let Failure { kind, phase: in_phase, set: on_set, peer, word: on_word, .. } = failure(moe);
    let wanted = if aborts { FailureKind::Aborted } else { FailureKind::Timeout };
    assert_eq!((kind, in_phase, on_set, peer, on_word), (wanted, phase, set, 1, word));
}

#[test]
fn an_open_round_takes_no_other() {
    MODES.into_iter().for_each(an_open_round_takes_no_other_in);
}

fn an_open_round_takes_no_other_in(mode: MoeMode) {
    let Some((operations, parts)) = pair(mode, &GpuMoeOptions::default()) else { return };
    for (moe, part) in operations.iter().zip(&parts) {
        // SAFETY: the parts are alive until their streams are done.
        unsafe { moe.dispatch(Set(0), &part.stream, &part.tokens).unwrap() };
    }
    for (moe, part) in operations.iter().zip(&parts) {
        moe.finish(&part.stream, PATIENCE).unwrap();
        // SAFETY: as above.
        unsafe { moe.dispatch(Set(0), &part.stream, &part.tokens).unwrap() };
        moe.finish(&part.stream, PATIENCE).unwrap_err();
        assert_eq!((failure(moe).kind, failure(moe).phase), (FailureKind::Misuse, Phase::DispatchSend));
    }
}

/// Released rounds give the credits back, and a rank that combines what the others release is found out.
#[test]
fn releases_and_disagreement() {
    MODES.into_iter().for_each(releases_and_disagreement_in);
}

fn releases_and_disagreement_in(mode: MoeMode) {
    let Some((operations, parts)) = pair(mode, &GpuMoeOptions::default()) else { return };
    let both = || operations.iter().zip(&parts);
    for _ in 0..3 {
        for (moe, part) in both() {
            // SAFETY: the parts are alive until their streams are done.
            unsafe {
                moe.dispatch(Set(0), &part.stream, &part.tokens).unwrap();
                moe.release(Set(0), &part.stream).unwrap();
            }
        }
        both().for_each(|(moe, part)| moe.finish(&part.stream, PATIENCE).unwrap());
    }
    for (moe, part) in both() {
        // SAFETY: as above.
        unsafe {
            moe.dispatch(Set(0), &part.stream, &part.tokens).unwrap();
            if std::ptr::eq(moe, &operations[1]) {
                moe.release(Set(0), &part.stream).unwrap();
            } else {
                moe.combine(Set(0), &part.stream, &part.out).unwrap();
            }
        }
    }
    operations[0].finish(&parts[0].stream, PATIENCE).unwrap_err();
    let found = failure(&operations[0]);
    assert_eq!((found.kind, found.peer, found.word), (FailureKind::Protocol, 1, Word::ReadyC));
    operations[1].finish(&parts[1].stream, PATIENCE).unwrap();
}
