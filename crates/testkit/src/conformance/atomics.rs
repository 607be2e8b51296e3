//! Atomics and words: what every update of a word promises.

use campanile_core::{AtomicOp, Op, OpKind, Strength};

use super::case::{Case, Group};
use super::finding::{Proof, failed, joined, require, same};
use super::member::{Member, WORDS};
use super::need::Need;
use super::stage::{Stage, until};

pub(super) const GROUP: Group = Group {
    name: "atomics",
    about: "atomics and signal words",
    cases: &[
        Case::new(
            "atomics_return_the_old_value",
            "add, fetch-add, compare-swap and swap change the word as they say, wrap, and return what was there",
            &[Need::Op(OpKind::Atomic)],
            atomics_return_the_old_value,
        ),
        Case::new(
            "concurrent_counters_lose_nothing",
            "fetch-adds of all ranks, two queues each, to one word: every old value is returned once",
            &[Need::Op(OpKind::Atomic)],
            concurrent_counters,
        ),
        Case::new(
            "compare_swap_has_one_winner",
            "of compare-swaps of all ranks to one word exactly one wins each round",
            &[Need::Op(OpKind::Atomic)],
            compare_swap_has_one_winner,
        ),
        Case::new(
            "signals_set_and_add_once",
            "set stores the value, add adds it, once, and wraps",
            &[Need::Op(OpKind::PutSignal), Need::SignalSet, Need::SignalAdd],
            signals_set_and_add,
        ),
        Case::new(
            "words_are_never_torn",
            "a signal word of 64 bits is never seen half-written",
            &[Need::Op(OpKind::PutSignal), Need::SignalSet, Need::WholeWords],
            words_are_never_torn,
        ),
    ],
};

const RESULT: usize = 4096;

fn atomics_return_the_old_value(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    for peer in if stage.ranks() == 1 { vec![0] } else { vec![stage.rank(), stage.next()] } {
        let at = WORDS + 64 * usize::from(peer != stage.rank());
        me.window.store(at, 40)?;
        stage.meet()?;
        let queue = me.queue(peer, 8)?;
        let result = me.window.local(RESULT);
        let target = me.window.remote(peer, at);
        let old = |op: AtomicOp| -> Proof<u64> {
            me.window.store(RESULT, 0xdead)?;
            me.execute(&*queue, &[Op::Atomic { op, target }])?;
            me.window.load(RESULT)
        };
        let compare_swap = |compare, swap| AtomicOp::CompareSwap { compare, swap, result };
        same("fetch-add returns", old(AtomicOp::FetchAdd { operand: 2, result })?, 40)?;
        same("a compare-swap that misses returns", old(compare_swap(1, 9))?, 42)?;
        same("a compare-swap that hits returns", old(compare_swap(42, 9))?, 42)?;
        same("a swap returns", old(AtomicOp::Swap { value: u64::MAX, result })?, 9)?;
        same("an add writes no result", old(AtomicOp::Add { operand: 3 })?, 0xdead)?;
        same("a fetch-add past the largest value returns", old(AtomicOp::FetchAdd { operand: 5, result })?, 2)?;
        stage.meet()?;
        same("the word at the end", me.window.load(at)?, 7)?;
        stage.meet()?;
    }
    me.end()
}

fn concurrent_counters(stage: &Stage) -> Proof {
    const EACH: usize = 400;
    let me = Member::join(stage)?;
    let target = me.window.remote(0, WORDS);
    let producer = |number: usize| -> Proof<Vec<u64>> {
        let queue = me.queue(0, 16)?;
        let at = RESULT + 64 * number;
        let result = me.window.local(at);
        let mut seen = Vec::with_capacity(EACH);
        for _ in 0..EACH {
            me.execute(&*queue, &[Op::Atomic { op: AtomicOp::FetchAdd { operand: 1, result }, target }])?;
            seen.push(me.window.load(at)?);
            stage.pause();
        }
        Ok(seen)
    };
    let seen: Vec<u64> = std::thread::scope(|scope| {
        let producer = &producer;
        let threads: Vec<_> = (0..2).map(|number| scope.spawn(move || producer(number))).collect();
        threads.into_iter().map(joined).collect::<Proof<Vec<_>>>().map(|seen| seen.concat())
    })?;
    require(seen.chunks(EACH).all(|one| one.is_sorted()), "old values that grow", || "some go back".to_owned())?;
    let bytes: Vec<u8> = seen.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut all: Vec<u64> = stage
        .exchange(&bytes)?
        .concat()
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
        .collect();
    all.sort_unstable();
    let wrong = all.iter().enumerate().find(|(at, value)| *at as u64 != **value);
    require(wrong.is_none(), "every old value once", || format!("value number {wrong:?}"))?;
    if stage.rank() == 0 {
        same("the counter", me.window.load(WORDS)?, (2 * EACH * stage.ranks()) as u64)?;
    }
    me.end()
}

fn compare_swap_has_one_winner(stage: &Stage) -> Proof {
    const ROUNDS: u64 = 30;
    let me = Member::join(stage)?;
    let queue = me.queue(0, 4)?;
    let target = me.window.remote(0, WORDS);
    for round in 0..ROUNDS {
        let op = AtomicOp::CompareSwap { compare: round, swap: round + 1, result: me.window.local(RESULT) };
        stage.pause();
        me.execute(&*queue, &[Op::Atomic { op, target }])?;
        let won = me.window.load(RESULT)? == round;
        let winners = stage.exchange(&[u8::from(won)])?.concat().iter().filter(|won| **won == 1).count();
        same(&format!("winners of round {round}"), winners, 1)?;
    }
    me.end()
}

fn signals_set_and_add(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    for peer in if stage.ranks() == 1 { vec![0] } else { vec![stage.rank(), stage.next()] } {
        let at = WORDS + 64 * usize::from(peer != stage.rank());
        let queue = me.queue(peer, 4)?;
        let mut expected = 0_u64;
        for (step, value) in [5, 1 << 40, u64::MAX, 12].into_iter().enumerate() {
            for (signal, becomes) in [
                (me.set(peer, at, value, Strength::Weak), value),
                (me.add(peer, at, 3), value.wrapping_add(3)),
                (me.add(peer, at, u64::MAX - 7), value.wrapping_add(3).wrapping_sub(8)),
            ] {
                me.execute(&*queue, &[Op::Signal(signal)])?;
                stage.meet()?;
                expected = becomes;
                let seen = me.window.load(at)?;
                same(&format!("the word after {:?} {} in step {step}", signal.action, signal.value), seen, expected)?;
                stage.meet()?;
            }
        }
        same("the word at the end", me.window.load(at)?, expected)?;
    }
    me.end()
}

fn words_are_never_torn(stage: &Stage) -> Proof {
    const ROUNDS: u64 = 4000;
    /// Looks between two yields: long enough to run beside the writer, and not in turn with it.
    const LOOKS: usize = 10_000;
    let me = Member::join(stage)?;
    // One pair, so that both have a core.
    let target = 1 % stage.ranks();
    // Both halves say the same.
    let both = |round: u64| round << 32 | round;
    let writer = || -> Proof {
        let queue = me.queue(target, 8)?;
        for round in 1..=ROUNDS {
            me.execute(&*queue, &[Op::Signal(me.set(target, WORDS, both(round), Strength::Weak))])?;
        }
        Ok(())
    };
    let looks = if me.window.is_near() { LOOKS } else { LOOKS / 100 };
    let reader = || -> Proof {
        let mut seen = 0;
        let last = until(stage.timeout(), || {
            for _ in 0..looks {
                seen = me.window.load(WORDS)?;
                require(seen >> 32 == seen & 0xffff_ffff, "halves of one value", || format!("{seen:#x}"))?;
            }
            Ok((seen == both(ROUNDS)).then_some(()))
        })?;
        last.ok_or_else(|| failed(format!("{ROUNDS} signals of rank 0"), format!("the word {seen:#x}")))
    };
    std::thread::scope(|scope| {
        let writer = (stage.rank() == 0).then(|| scope.spawn(writer));
        let read = if stage.rank() == target { reader() } else { Ok(()) };
        read.and(writer.map_or(Ok(()), joined))
    })?;
    me.end()
}
