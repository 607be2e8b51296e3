//! Litmus tests: every promise of order, with random delays between the steps.
//!
//! The source fills a block and announces it, the target waits for the announcement and looks at once. Rounds follow each
//! other by an acknowledgement, so that a block is never overwritten while it is looked at.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use campanile_core::{
    Agent, Completion, Condition, Op, OpKind, Queue, QueueError, Rank, SignalAction, SignalUpdate, Strength, Ticket,
};

use super::case::{Case, Group};
use super::finding::{Expected, Proof, failed, joined, require, same, same_bytes};
use super::member::{BYTES, Member, WORDS};
use super::need::Need;
use super::stage::{Stage, until};
use super::window::pattern;

pub(super) const GROUP: Group = Group {
    name: "ordering",
    about: "every promise of order, with random delays between the steps",
    cases: &[
        Case::new(
            "weak_signal_announces_its_put",
            "a visible weak signal: the put that it is bundled with is visible",
            &[Need::Ranks(2), Need::Op(OpKind::PutSignal), Need::SignalSet],
            weak_signal,
        ),
        Case::new(
            "strong_signal_announces_all_earlier_puts",
            "a visible strong signal, alone or bundled: all earlier puts of its queue are visible, of any post",
            &[Need::Ranks(2), Need::Op(OpKind::PutSignal), Need::Op(OpKind::Put), Need::SignalSet, Need::StrongSignals],
            strong_signal,
        ),
        Case::new(
            "fence_orders_what_is_around_it",
            "what was posted before a fence is delivered before the weak signal behind it",
            &[Need::Ranks(2), Need::Op(OpKind::Fence), Need::Op(OpKind::Put), Need::Op(OpKind::PutSignal)],
            fence,
        ),
        Case::new(
            "a_fence_orders_gets_and_puts",
            "around a fence a get and a put of the same bytes keep their order, whichever is first",
            &[Need::Op(OpKind::Fence), Need::Op(OpKind::Put), Need::Op(OpKind::Get)],
            gets_and_puts,
        ),
        Case::new(
            "ordered_puts_arrive_in_order",
            "where the caps claim ordered puts: a visible word of a later put, and the earlier ones are visible",
            &[Need::Ranks(2), Need::Op(OpKind::Put), Need::OrderedPuts],
            ordered_puts,
        ),
        Case::new(
            "local_completion_frees_the_source",
            "once a ticket is locally complete its source may be overwritten at once",
            &[Need::Op(OpKind::Put)],
            local_completion,
        ),
        Case::new(
            "remote_completion_is_visible",
            "once a ticket is remotely complete the target's CPU sees the bytes, told by whatever means",
            &[Need::Op(OpKind::Put)],
            remote_completion,
        ),
        Case::new(
            "a_get_sees_what_was_put_before_it",
            "a get that is posted after a put was remotely complete returns its bytes",
            &[Need::Op(OpKind::Put), Need::Op(OpKind::Get)],
            a_get_after_a_put,
        ),
        Case::new(
            "completion_for_an_unknown_agent_is_refused",
            "completion that the transport cannot tell is an error, never a guess",
            &[Need::Op(OpKind::Put)],
            an_unknown_agent,
        ),
        Case::new(
            "stores_through_a_mapping",
            "plain stores, then a release store of a word and a notify: the waiter wakes and sees the stores",
            &[Need::Ranks(2), Need::LoadStore],
            stores_through_a_mapping,
        ),
        Case::new(
            "waits_compare_by_signed_difference",
            "a wait for at least a value holds past the wrap of the word; a tag is compared under its mask",
            &[Need::Ranks(2), Need::Op(OpKind::PutSignal), Need::SignalSet],
            waits_compare,
        ),
        Case::new(
            "many_threads_wait_at_once",
            "threads of one rank wait for words of all ranks at the same time; each wakes for its own",
            &[Need::Op(OpKind::PutSignal), Need::SignalSet],
            many_threads_wait,
        ),
    ],
};

const ROUNDS: u64 = 120;
/// Where a put of a case without blocks goes.
const TARGET: usize = 96 << 10;
/// The largest block. Its copy takes some 100 µs: time for the target to look in the middle of it, on a busy machine too.
const MOST: usize = 2 << 20;
/// Where blocks are at the source.
const FROM: usize = BYTES;
/// Where they are at the target.
const TO: usize = FROM + MOST;
const SIGNAL: usize = WORDS;
const ACKNOWLEDGED: usize = WORDS + 64;

/// What the source does in a round, given its queue, the round, and the size of the block.
type Announce = fn(&Member<'_>, &Arc<dyn Queue>, u64, usize) -> Proof;

/// Rank 0 announces blocks of random sizes to rank 1, which waits for the signal and looks.
fn litmus(stage: &Stage, announce: Announce) -> Proof {
    let me = Member::join_with(stage, TO + MOST, stage.timeout())?;
    // The same on both, from the round and the caps alone.
    let most = me.at_most(MOST, 1 - stage.rank().min(1), OpKind::PutSignal)?;
    let size = |round: u64| match (round.wrapping_mul(0x9e37_79b9) >> 8) % 16 {
        at @ 0..12 => most.min([1, 64, 4096, 90 << 10][at as usize % 4]),
        _ => most,
    };
    match stage.rank() {
        0 => {
            let queue = me.queue(1, 16)?;
            for round in 1..=ROUNDS {
                me.window.write(FROM, &pattern(round, size(round)))?;
                stage.pause();
                announce(&me, &queue, round, size(round))?;
                me.arrived(1, ACKNOWLEDGED, round)?;
            }
        }
        1 => {
            let queue = me.queue(0, 16)?;
            for round in 1..=ROUNDS {
                let expected = pattern(round, size(round));
                stage.pause();
                me.arrived_soon(0, SIGNAL, round)?;
                look(&me, &format!("the block that signal {round} announces"), &expected)?;
                me.execute(&*queue, &[Op::Signal(me.set(0, ACKNOWLEDGED, round, Strength::Strong))])?;
            }
        }
        _ => {}
    }
    me.end()
}

/// Looks at the target block, at its end first: that comes last if it comes too late.
fn look(me: &Member<'_>, what: &str, expected: &[u8]) -> Proof {
    let last = expected.len().min(64);
    let end = me.window.read(TO + expected.len() - last, last)?;
    same_bytes(&format!("the end of {what}"), &end, &expected[expected.len() - last..])?;
    same_bytes(what, &me.window.read(TO, expected.len())?, expected)
}

/// Rings and makes progress with delays between, until the ticket is complete.
fn drive(me: &Member<'_>, queue: &dyn Queue, ticket: Ticket) -> Proof {
    me.stage.pause();
    queue.ring().expected("a ring")?;
    me.stage.pause();
    let done = until(me.stage.timeout(), || {
        let done = queue.test(ticket, Completion::Local).expected("a test of a ticket")?;
        queue.progress().expected("progress")?;
        me.stage.pause();
        Ok(done.then_some(()))
    })?;
    done.ok_or_else(|| failed("completion after a ring and progress", queue.describe()))
}

fn weak_signal(stage: &Stage) -> Proof {
    litmus(stage, |me, queue, round, bytes| {
        let put = Op::PutSignal {
            source: me.window.local(FROM),
            target: me.window.remote(1, TO),
            bytes: bytes as u64,
            signal: me.set(1, SIGNAL, round, Strength::Weak),
        };
        let ticket = me.post(&**queue, &[put])?;
        drive(me, &**queue, ticket)
    })
}

/// Puts a block in pieces, in posts of their own, some of them rung.
fn put_in_pieces(me: &Member<'_>, queue: &dyn Queue, bytes: usize) -> Proof {
    let piece = bytes.div_ceil(5);
    for at in (0..bytes).step_by(piece) {
        me.post(queue, &[me.put(FROM + at, 1, TO + at, piece.min(bytes - at))])?;
        if me.stage.below(3) == 0 {
            queue.ring().expected("a ring")?;
            me.stage.pause();
        }
    }
    Ok(())
}

fn strong_signal(stage: &Stage) -> Proof {
    litmus(stage, |me, queue, round, bytes| {
        put_in_pieces(me, &**queue, bytes)?;
        let signal = me.set(1, SIGNAL, round, Strength::Strong);
        let announcement = if round % 2 == 0 {
            Op::Signal(signal)
        } else {
            let (source, target) = (me.window.local(FROM), me.window.remote(1, TO));
            Op::PutSignal { source, target, bytes: 1, signal }
        };
        let ticket = me.post(&**queue, &[announcement])?;
        drive(me, &**queue, ticket)
    })
}

fn fence(stage: &Stage) -> Proof {
    litmus(stage, |me, queue, round, bytes| {
        put_in_pieces(me, &**queue, bytes)?;
        let signal = Op::Signal(me.set(1, SIGNAL, round, Strength::Weak));
        let ticket = if round % 2 == 0 {
            me.post(&**queue, &[Op::Fence, signal])?
        } else {
            me.post(&**queue, &[Op::Fence])?;
            me.post(&**queue, &[signal])?
        };
        drive(me, &**queue, ticket)
    })
}

fn gets_and_puts(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let peer = stage.next();
    let most = me.at_most(32 << 10, peer, OpKind::Put)?;
    let most = me.at_most(most, peer, OpKind::Get)?;
    let queue = me.queue(peer, 16)?;
    // What is there is overwritten by `number`; the get returns what was there, or what has come, and says which.
    let (old, got) = (TARGET, 32 << 10);
    me.window.write(0, &pattern(0, most))?;
    me.execute(&*queue, &[me.put(0, peer, old, most)])?;
    for round in 1..=60 {
        let put = me.put(0, peer, old, most);
        let get = Op::Get { source: me.window.remote(peer, old), target: me.window.local(got), bytes: most as u64 };
        let get_first = round % 2 == 0;
        let [first, last] = if get_first { [get, put] } else { [put, get] };
        me.window.write(0, &pattern(round, most))?;
        if stage.below(2) == 0 {
            me.post(&*queue, &[first, Op::Fence, last])?;
        } else {
            me.post(&*queue, &[first])?;
            queue.ring().expected("a ring")?;
            stage.pause();
            me.post(&*queue, &[Op::Fence])?;
            me.post(&*queue, &[last])?;
        }
        let ticket = queue.flush();
        drive(&me, &*queue, ticket)?;
        me.finish(&*queue, ticket)?;
        let (what, number) = if get_first { ("before", round - 1) } else { ("behind", round) };
        let seen = me.window.read(got, most)?;
        same_bytes(&format!("a get {what} a fence and a put, round {round}"), &seen, &pattern(number, most))?;
    }
    me.end()
}

fn ordered_puts(stage: &Stage) -> Proof {
    let me = Member::join_with(stage, TO + MOST, stage.timeout())?;
    // The last put carries a word that the target reads as one.
    let word = 80 << 10;
    match stage.rank() {
        0 => {
            let queue = me.queue(1, 16)?;
            for round in 1..=ROUNDS {
                me.window.write(FROM, &pattern(round, 4096))?;
                me.window.store(word, round)?;
                put_in_pieces(&me, &*queue, 4096)?;
                let ticket = me.post(&*queue, &[me.put(word, 1, WORDS + 128, 8)])?;
                drive(&me, &*queue, ticket)?;
                me.arrived(1, ACKNOWLEDGED, round)?;
            }
        }
        1 => {
            let queue = me.queue(0, 16)?;
            for round in 1..=ROUNDS {
                let seen = until(stage.timeout(), || Ok((me.window.load(WORDS + 128)? == round).then_some(())))?;
                seen.ok_or_else(|| failed(format!("the word of put {round}"), "it did not come"))?;
                look(&me, &format!("the puts before word {round}"), &pattern(round, 4096))?;
                let done = Op::Signal(me.set(0, ACKNOWLEDGED, round, Strength::Strong));
                me.execute(&*queue, &[done])?;
            }
        }
        _ => {}
    }
    me.end()
}

fn local_completion(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    for (class, peer) in [stage.rank(), stage.next()].into_iter().enumerate() {
        let from = if class == 0 { stage.rank() } else { stage.previous() };
        let queue = me.queue(peer, 16)?;
        for round in 0..30 {
            let number = |rank: usize| (rank << 16 | round) as u64;
            let bytes = me.at_most([1, 4096, 65_536][round % 3], peer, OpKind::Put)?;
            me.window.write(0, &pattern(number(stage.rank()), bytes))?;
            stage.meet()?;
            let ticket = me.post(&*queue, &[me.put(0, peer, TARGET, bytes)])?;
            queue.ring().expected("a ring")?;
            let done = until(stage.timeout(), || {
                if queue.test(ticket, Completion::Local).expected("a test")? {
                    return Ok(Some(()));
                }
                queue.progress().expected("progress")?;
                Ok(None)
            })?;
            done.ok_or_else(|| failed("local completion", queue.describe()))?;
            me.window.write(0, &vec![0x55; bytes])?;
            me.finish(&*queue, ticket)?;
            stage.meet()?;
            let what = format!("a put whose source was overwritten after local completion, round {round}");
            same_bytes(&what, &me.window.read(TARGET, bytes)?, &pattern(number(from), bytes))?;
            stage.meet()?;
        }
    }
    me.end()
}

fn remote_completion(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    for (class, peer) in [stage.rank(), stage.next()].into_iter().enumerate() {
        let from = if class == 0 { stage.rank() } else { stage.previous() };
        let queue = me.queue(peer, 16)?;
        for round in 0..30 {
            let number = |rank: usize| (rank << 16 | round) as u64;
            let bytes = me.at_most([8, 5000, 65_536][round % 3], peer, OpKind::Put)?;
            me.window.write(0, &pattern(number(stage.rank()), bytes))?;
            let ticket = me.post(&*queue, &[me.put(0, peer, TARGET, bytes)])?;
            queue.ring().expected("a ring")?;
            let done = until(stage.timeout(), || {
                if queue.test(ticket, Completion::Remote(Agent::Cpu)).expected("a test")? {
                    return Ok(Some(()));
                }
                queue.progress().expected("progress")?;
                Ok(None)
            })?;
            done.ok_or_else(|| failed("remote completion", queue.describe()))?;
            stage.meet()?;
            let seen = me.window.read(TARGET, bytes)?;
            same_bytes(&format!("a remotely complete put, round {round}"), &seen, &pattern(number(from), bytes))?;
            stage.meet()?;
        }
    }
    me.end()
}

fn a_get_after_a_put(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let (peer, bytes) = (stage.next(), 3000);
    let queue = me.queue(peer, 16)?;
    for round in 0..30 {
        me.window.write(0, &pattern(round, bytes))?;
        me.execute(&*queue, &[me.put(0, peer, TARGET, bytes)])?;
        let get = Op::Get {
            source: me.window.remote(peer, TARGET),
            target: me.window.local(TARGET + (16 << 10)),
            bytes: bytes as u64,
        };
        me.execute(&*queue, &[get])?;
        let seen = me.window.read(TARGET + (16 << 10), bytes)?;
        same_bytes(&format!("what was put in round {round}"), &seen, &pattern(round, bytes))?;
    }
    me.end()
}

fn an_unknown_agent(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let queue = me.queue(stage.next(), 4)?;
    let ticket = me.post(&*queue, &[me.put(0, stage.next(), TARGET, 8)])?;
    me.finish(&*queue, ticket)?;
    for agent in [Agent::Gpu, Agent::Nic] {
        match queue.test(ticket, Completion::Remote(agent)) {
            Ok(true) | Err(QueueError::Unsupported { .. }) => {}
            other => {
                let expected = format!("true after completion, or QueueError::Unsupported, for {agent:?}");
                return Err(failed(expected, format!("{other:?}")));
            }
        }
    }
    // The queue has not failed for that.
    me.execute(&*queue, &[me.put(0, stage.next(), TARGET, 8)])?;
    me.end()
}

fn stores_through_a_mapping(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let map = |peer: usize| -> Proof<*mut u8> {
        let base = me.transport.map(&me.window.remotes[peer]);
        base.map(std::ptr::NonNull::as_ptr).ok_or_else(|| failed("a pointer, as the caps claim", "none"))
    };
    map(stage.rank())?;
    let bytes = 2000;
    if stage.rank() < 2 {
        let peer = 1 - stage.rank();
        let base = map(peer)?;
        // SAFETY: an aligned word inside the peer's window, which `me` keeps mapped; used as an atomic only.
        let theirs = unsafe { AtomicU64::from_ptr(base.add(SIGNAL).cast()) };
        for round in 1..=ROUNDS {
            if stage.rank() == 1 {
                me.arrived(0, SIGNAL, round)?;
                let seen = me.window.read(TARGET, bytes)?;
                same_bytes(&format!("stores before word {round}"), &seen, &pattern(round, bytes))?;
            } else {
                stage.pause();
                let block = pattern(round, bytes);
                // SAFETY: inside the peer's window; the peer reads it only after the word, and has acknowledged the last.
                unsafe { std::ptr::copy_nonoverlapping(block.as_ptr(), base.add(TARGET), bytes) };
                stage.pause();
            }
            theirs.store(round, Ordering::Release);
            me.transport.notify(Rank::new(peer));
            if stage.rank() == 0 {
                me.arrived(1, SIGNAL, round)?;
            }
        }
    }
    me.end()
}

fn waits_compare(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let start = u64::MAX - 3;
    me.window.store(SIGNAL, start - 1)?;
    stage.meet()?;
    if stage.rank() == 0 {
        let queue = me.queue(1, 4)?;
        for step in 0..8 {
            let signal = |at, value| {
                let target = me.window.remote(1, at);
                Op::Signal(SignalUpdate { target, action: SignalAction::Set, value, strength: Strength::Strong })
            };
            let tagged = (step + 1) << 32 | (7 - step);
            me.execute(&*queue, &[signal(SIGNAL, start.wrapping_add(step)), signal(SIGNAL + 64, tagged)])?;
            me.arrived(1, ACKNOWLEDGED, step + 1)?;
        }
    } else if stage.rank() == 1 {
        let queue = me.queue(0, 4)?;
        for step in 0..8 {
            let value = start.wrapping_add(step);
            let at_least = me.wait_for(0, SIGNAL, Condition::AtLeast(value)).expected("a word past the wrap")?;
            same("the word", at_least, value)?;
            let tag = Condition::Tag { mask: !0 << 32, value: (step + 1) << 32 };
            let seen = me.wait_for(0, SIGNAL + 64, tag).expected("a tag")?;
            require(seen == (step + 1) << 32 | (7 - step), "the word with that tag", || format!("{seen:#x}"))?;
            me.execute(&*queue, &[Op::Signal(me.set(0, ACKNOWLEDGED, step + 1, Strength::Strong))])?;
        }
    }
    me.end()
}

fn many_threads_wait(stage: &Stage) -> Proof {
    const EACH: u64 = 100;
    let me = Member::join(stage)?;
    let waiter = |peer: usize| -> Proof {
        for round in 1..=EACH {
            me.arrived(peer, WORDS + 64 * peer, round)?;
            stage.pause();
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let waiter = &waiter;
        let waiters: Vec<_> = (0..stage.ranks()).map(|peer| scope.spawn(move || waiter(peer))).collect();
        let queues = (0..stage.ranks()).map(|peer| me.queue(peer, 8)).collect::<Proof<Vec<_>>>()?;
        for round in 1..=EACH {
            for (peer, queue) in queues.iter().enumerate() {
                let signal = me.set(peer, WORDS + 64 * stage.rank(), round, Strength::Weak);
                me.execute(&**queue, &[Op::Signal(signal)])?;
                stage.pause();
            }
        }
        waiters.into_iter().try_for_each(joined)
    })?;
    me.end()
}
