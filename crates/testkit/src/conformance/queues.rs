//! Queues: many threads, more work than slots, wraps, snapshots.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use campanile_core::{
    Agent, AtomicOp, Completion, Op, OpKind, PostError, Queue, QueueOptions, QueueTarget, Rank, Shutdown, Strength,
};

use super::case::{Case, Group};
use super::finding::{Expected, Proof, Stop, failed, joined, require, same, same_bytes};
use super::member::{Member, WORDS};
use super::need::Need;
use super::stage::Stage;
use super::window::pattern;

pub(super) const GROUP: Group = Group {
    name: "queues",
    about: "many threads, more work than slots, wraps, snapshots",
    cases: &[
        Case::new(
            "producers_and_flushers_share_a_queue",
            "4 producers and 2 flushers on one queue: nothing is lost, and a flush covers every post that had returned",
            &[Need::Op(OpKind::Atomic)],
            producers_and_flushers,
        ),
        Case::new(
            "more_operations_than_slots",
            "a full queue is busy, takes nothing of the list, and takes it after progress",
            &[Need::Op(OpKind::PutSignal), Need::Signals],
            more_operations_than_slots,
        ),
        Case::new(
            "a_list_that_never_fits_is_too_large",
            "on an empty queue a list is accepted or too large at once, never busy; the queue still works",
            &[Need::Op(OpKind::PutSignal), Need::Signals],
            a_list_that_never_fits,
        ),
        Case::new(
            "a_refused_list_leaves_nothing",
            "a list with one illegal operation is refused as a whole, by its index",
            &[Need::Op(OpKind::PutSignal), Need::Signals],
            a_refused_list,
        ),
        Case::new(
            "an_empty_list_is_legal",
            "an empty list completes with what is before it",
            &[Need::Op(OpKind::PutSignal), Need::Signals],
            an_empty_list,
        ),
        Case::new(
            "a_flush_rings_nothing",
            "where posts wait for the doorbell, a flush does not ring it",
            &[Need::Op(OpKind::PutSignal), Need::Signals],
            a_flush_rings_nothing,
        ),
        Case::new(
            "a_flush_waits_for_nothing",
            "a flush returns although what was posted is neither rung nor complete",
            &[Need::Op(OpKind::PutSignal), Need::Signals],
            a_flush_waits_for_nothing,
        ),
        Case::new(
            "large_puts_both_ways",
            "all ranks post and ring more than any buffer holds before anybody waits: nobody blocks, and all arrives",
            &[Need::Ranks(2), Need::Op(OpKind::Put), Need::Memory(2 * LARGE as u64 + (1 << 20))],
            large_puts_both_ways,
        ),
        Case::new(
            "a_drain_completes_what_was_posted",
            "a shutdown that drains completes what was posted before it, rung or not",
            &[Need::Ranks(2), Need::Op(OpKind::PutSignal), Need::SignalSet],
            a_drain,
        ),
        Case::new(
            "queues_wrap",
            "70 000 operations through 8 slots: each ticket tells the truth, past 2^16 too",
            &[Need::Op(OpKind::PutSignal), Need::SignalSet],
            queues_wrap,
        ),
        Case::new(
            "depths_are_checked",
            "a queue of no slots, and of more than the limit, are refused; one of a single slot works",
            &[Need::Op(OpKind::PutSignal), Need::Signals],
            depths_are_checked,
        ),
        Case::new(
            "many_queues_at_once",
            "64 queues to one peer do not disturb each other",
            &[Need::Op(OpKind::Put)],
            many_queues,
        ),
        Case::new(
            "engines_reach_every_peer",
            "an engine's queue takes operations to any peer; an engine that is not there is refused",
            &[Need::Op(OpKind::PutSignal), Need::Signals],
            engines,
        ),
    ],
};

fn word(me: &Member<'_>, at: usize) -> Proof<u64> {
    me.window.load(at)
}

fn producers_and_flushers(stage: &Stage) -> Proof {
    const PRODUCERS: usize = 4;
    const FLUSHERS: usize = 2;
    const EACH: usize = 200;
    let me = Member::join(stage)?;
    // To this rank itself, so that the flushers see what has been delivered.
    let own = me.queue(stage.rank(), 16)?;
    let next = me.queue(stage.next(), 16)?;
    let (posted, working) = (AtomicU64::new(0), AtomicUsize::new(PRODUCERS));
    let producer = || -> Proof {
        let work = || -> Proof {
            for round in 0..EACH {
                let add = |peer, at| {
                    let target = me.window.remote(peer, at);
                    Op::Atomic { op: AtomicOp::Add { operand: 1 }, target }
                };
                let ticket = me.post(&*own, &vec![add(stage.rank(), WORDS); 1 + round % 2])?;
                posted.fetch_add(1 + round as u64 % 2, Ordering::SeqCst);
                me.post(&*next, &[add(stage.next(), WORDS + 64)])?;
                if round % 8 == 0 {
                    me.finish(&*own, ticket)?;
                    stage.pause();
                }
            }
            let ticket = next.flush();
            me.finish(&*next, ticket)
        };
        let worked = work();
        working.fetch_sub(1, Ordering::SeqCst);
        worked
    };
    let flusher = || -> Proof {
        while working.load(Ordering::SeqCst) > 0 {
            let before = posted.load(Ordering::SeqCst);
            stage.pause();
            let ticket = own.flush();
            me.finish(&*own, ticket)?;
            let seen = word(&me, WORDS)?;
            require(seen >= before, &format!("the {before} operations that had been posted before a flush"), || {
                format!("{seen} delivered when its ticket was complete")
            })?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let (producer, flusher) = (&producer, &flusher);
        let mut threads: Vec<_> = (0..PRODUCERS).map(|_| scope.spawn(producer)).collect();
        threads.extend((0..FLUSHERS).map(|_| scope.spawn(flusher)));
        threads.into_iter().try_for_each(joined)
    })?;
    let ticket = own.flush();
    me.finish(&*own, ticket)?;
    same("operations of all producers to this rank", word(&me, WORDS)?, (PRODUCERS * EACH * 3 / 2) as u64)?;
    stage.meet()?;
    same("operations of the other rank's producers", word(&me, WORDS + 64)?, (PRODUCERS * EACH) as u64)?;
    me.end()
}

fn more_operations_than_slots(stage: &Stage) -> Proof {
    const DEPTH: usize = 8;
    let me = Member::join(stage)?;
    let peer = stage.next();
    let queue = me.queue(peer, DEPTH)?;
    let list = |accepted: u64| (accepted..accepted + 3).map(|n| Ok(Op::Signal(me.raise(peer, WORDS, n, 1)?)));
    let (mut accepted, mut busy) = (0, 0);
    // Where a post executes there is always room.
    let mut executes = false;
    while accepted < 10 * DEPTH as u64 {
        let list = list(accepted).collect::<Proof<Vec<_>>>()?;
        match queue.post(&list) {
            Ok(ticket) => {
                accepted += 3;
                executes |= queue.test(ticket, Completion::Remote(Agent::Cpu)).expected("a test")?;
            }
            Err(PostError::Busy { needed, free }) => {
                require(free < needed, "fewer free slots than are needed", || format!("{free} of {needed}"))?;
                busy += 1;
                me.post(&*queue, &list)?;
                accepted += 3;
            }
            Err(error) => return Err(failed("a legal list to be accepted, or busy", error)),
        }
        require(executes || accepted <= 3 * DEPTH as u64 || busy > 0, "a busy queue", || {
            format!("{accepted} operations in {DEPTH} slots without a ring")
        })?;
    }
    let ticket = queue.flush();
    me.finish(&*queue, ticket)?;
    stage.meet()?;
    same("operations that were delivered", word(&me, WORDS)?, accepted)?;
    me.end()
}

fn a_list_that_never_fits(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let peer = stage.next();
    let raise = |from| Ok(Op::Signal(me.raise(peer, WORDS, from, 1)?));
    let mut expected = 0;
    for depth in [1, 4, 64] {
        let queue = me.queue(peer, depth)?;
        for length in [1, depth.div_ceil(2), depth, depth + 1, 2 * depth, 1000 + depth] {
            let list = (expected..expected + length as u64).map(raise).collect::<Proof<Vec<_>>>()?;
            match queue.post(&list) {
                Ok(ticket) if length <= depth => {
                    me.finish(&*queue, ticket)?;
                    expected += length as u64;
                }
                Err(PostError::TooLarge { needed, depth: slots }) => {
                    same("the depth that the error tells", slots, depth)?;
                    let slots_needed = format!("{needed} slots needed for {length} operations of {depth}");
                    require(needed >= length && length > 1, "a list that does not fit", || slots_needed)?;
                }
                other => {
                    let expected = format!("{length} operations on an empty queue of {depth} accepted, or too large");
                    return Err(failed(expected, format!("{other:?}")));
                }
            }
        }
    }
    stage.meet()?;
    same("operations that were delivered", word(&me, WORDS)?, expected)?;
    me.end()
}

fn a_refused_list(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let peer = stage.next();
    let queue = me.queue(peer, 16)?;
    let good = Op::Signal(me.raise(peer, WORDS, 0, 1)?);
    let bytes = me.window.region.bytes();
    for index in 0..4 {
        let mut ops = vec![good; 4];
        ops[index] = Op::Signal(me.raise(peer, bytes, 0, 1)?);
        match queue.post(&ops) {
            Err(PostError::Invalid { index: named, reason }) => {
                same("the index of the illegal operation", named, index)?;
                require(!reason.is_empty(), "a reason", || "an empty one".to_owned())?;
            }
            other => return Err(failed("PostError::Invalid", format!("{other:?}"))),
        }
    }
    me.execute(&*queue, &[good])?;
    stage.meet()?;
    same("the word after four refused lists and one good one", word(&me, WORDS)?, 1)?;
    me.end()
}

fn an_empty_list(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let queue = me.queue(stage.next(), 4)?;
    me.execute(&*queue, &[])?;
    me.post(&*queue, &[Op::Signal(me.raise(stage.next(), WORDS, 0, 1)?)])?;
    let ticket = queue.post(&[]).expected("an empty list to be accepted")?;
    me.finish(&*queue, ticket)?;
    stage.meet()?;
    same("the word after the operation before it", word(&me, WORDS)?, 1)?;
    me.end()
}

/// Posts a signal to this rank itself without ringing; skips if it arrives nevertheless.
fn unrung(me: &Member<'_>) -> Proof<std::sync::Arc<dyn Queue>> {
    let queue = me.queue(me.rank(), 8)?;
    queue.post(&[Op::Signal(me.raise(me.rank(), WORDS, 0, 1)?)]).expected("a post")?;
    settle(me, &*queue)?;
    if word(me, WORDS)? == 0 {
        return Ok(queue);
    }
    Err(Stop::Skipped { reason: "the transport rings at every post".to_owned() })
}

/// Gives what was rung every chance to be delivered.
fn settle(me: &Member<'_>, queue: &dyn Queue) -> Proof {
    for _ in 0..200 {
        queue.progress().expected("progress")?;
        me.stage.pause();
    }
    Ok(())
}

fn a_flush_rings_nothing(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let queue = unrung(&me)?;
    let tickets: Vec<_> = (0..10).map(|_| queue.flush()).collect();
    settle(&me, &*queue)?;
    same("the word after a flush without a ring", word(&me, WORDS)?, 0)?;
    for ticket in &tickets {
        let done = queue.test(*ticket, Completion::Local).expected("a test")?;
        require(!done, "a ticket of what was not rung to be incomplete", || "it is complete".to_owned())?;
    }
    me.finish(&*queue, tickets[9])?;
    same("the word once the ticket was waited for", word(&me, WORDS)?, 1)?;
    me.end()
}

fn a_flush_waits_for_nothing(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let queue = unrung(&me)?;
    let start = Instant::now();
    let ticket = queue.flush();
    let (took, most) = (start.elapsed(), stage.timeout() / 2);
    require(took < most, "a flush that returns at once", || format!("one that took {took:.1?}"))?;
    me.finish(&*queue, ticket)?;
    me.end()
}

/// More than the buffers of a pair of sockets hold.
const LARGE: usize = 12 << 20;

fn large_puts_both_ways(stage: &Stage) -> Proof {
    let me = Member::join_with(stage, 2 * LARGE, stage.timeout())?;
    let peer = stage.next();
    let piece = me.at_most(LARGE / 4, peer, OpKind::Put)?;
    let queue = me.queue(peer, LARGE.div_ceil(piece).next_power_of_two())?;
    me.window.write(0, &pattern(stage.rank() as u64, LARGE))?;
    let put = |at: usize| me.put(at, peer, LARGE + at, piece.min(LARGE - at));
    for at in (0..LARGE).step_by(piece) {
        queue.post(&[put(at)]).expected("an operation that fits to be taken")?;
    }
    queue.ring().expected("a ring")?;
    // Nobody has waited for anything, nor made progress.
    stage.meet()?;
    let ticket = queue.flush();
    me.finish(&*queue, ticket)?;
    stage.meet()?;
    let expected = pattern(stage.previous() as u64, LARGE);
    same_bytes("what came while this rank sent", &me.window.read(LARGE, LARGE)?, &expected)?;
    me.end()
}

fn a_drain(stage: &Stage) -> Proof {
    const POSTS: u64 = 6;
    let me = Member::join(stage)?;
    let leaver = stage.ranks() - 1;
    if stage.rank() == leaver {
        let bytes = me.at_most(5000, 0, OpKind::PutSignal)?;
        me.window.write(0, &pattern(1, bytes))?;
        let queues = (0..leaver).map(|peer| me.queue(peer, 16)).collect::<Proof<Vec<_>>>()?;
        for (peer, queue) in queues.iter().enumerate() {
            for value in 1..=POSTS {
                let (source, target) = (me.window.local(0), me.window.remote(peer, 8192 * value as usize));
                let signal = me.set(peer, WORDS, value, Strength::Strong);
                me.post(&**queue, &[Op::PutSignal { source, target, bytes: bytes as u64, signal }])?;
                if value == POSTS / 2 {
                    queue.ring().expected("a ring")?;
                }
            }
        }
        me.transport.shutdown(Shutdown::Drain).expected("a shutdown")?;
        stage.meet()?;
    } else {
        let bytes = me.at_most(5000, leaver, OpKind::PutSignal)?;
        stage.meet()?;
        for value in 1..=POSTS {
            me.arrived(leaver, WORDS, value)?;
            let seen = me.window.read(8192 * value as usize, bytes)?;
            same_bytes(&format!("post {value} of the rank that has shut down"), &seen, &pattern(1, bytes))?;
        }
    }
    // Whoever has left keeps its memory until all have looked.
    stage.meet()
}

fn queues_wrap(stage: &Stage) -> Proof {
    const DEPTH: u64 = 8;
    const LAST: u64 = 70_000;
    let me = Member::join(stage)?;
    let queue = me.queue(stage.rank(), DEPTH as usize)?;
    let mut value = 0;
    // Lists of changing length, so that every slot is a first and a last one.
    for length in (1..=DEPTH).cycle() {
        let mut set = || {
            value += 1;
            Op::Signal(me.set(stage.rank(), WORDS, value, Strength::Weak))
        };
        let ops: Vec<_> = (0..length).map(|_| set()).collect();
        let ticket = queue.post(&ops).expected("a list that fits into an empty queue")?;
        let early = queue.test(ticket, Completion::Local).expected("a test")?;
        if early {
            same("the word when the ticket is complete", word(&me, WORDS)?, value)?;
        }
        me.finish(&*queue, ticket)?;
        same("the word after the wait for the ticket", word(&me, WORDS)?, value)?;
        if value >= LAST {
            break;
        }
    }
    me.end()
}

fn depths_are_checked(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let target = QueueTarget::Peer(Rank::new(stage.next()));
    for depth in [0, QueueOptions::MAX_DEPTH + 1, 2 * QueueOptions::MAX_DEPTH, usize::MAX] {
        let options = QueueOptions { depth, ..QueueOptions::default() };
        if me.transport.queue(target, options).is_ok() {
            return Err(failed(format!("a queue of {depth} slots to be refused"), "it was made"));
        }
    }
    for (made, depth) in [1, 2, QueueOptions::MAX_DEPTH].into_iter().enumerate() {
        let queue = me.queue(stage.next(), depth)?;
        for done in 3 * made..3 * made + 3 {
            me.execute(&*queue, &[Op::Signal(me.raise(stage.next(), WORDS, done as u64, 1)?)])?;
        }
    }
    stage.meet()?;
    same("operations that were delivered", word(&me, WORDS)?, 9)?;
    me.end()
}

fn many_queues(stage: &Stage) -> Proof {
    const QUEUES: usize = 64;
    const BYTES: usize = 500;
    let me = Member::join(stage)?;
    let peer = stage.next();
    let queues = (0..QUEUES).map(|_| me.queue(peer, 4)).collect::<Proof<Vec<_>>>()?;
    let number = |rank: usize, queue: usize| (rank << 16 | queue) as u64;
    for queue in 0..QUEUES {
        me.window.write(queue * BYTES, &pattern(number(stage.rank(), queue), BYTES))?;
    }
    let post = |(at, queue): (usize, &std::sync::Arc<dyn Queue>)| {
        me.post(&**queue, &[me.put(at * BYTES, peer, (QUEUES + at) * BYTES, BYTES)])
    };
    let tickets = queues.iter().enumerate().map(post).collect::<Proof<Vec<_>>>()?;
    for (queue, ticket) in queues.iter().zip(tickets).rev() {
        me.finish(&**queue, ticket)?;
    }
    stage.meet()?;
    for queue in 0..QUEUES {
        let expected = pattern(number(stage.previous(), queue), BYTES);
        same_bytes(
            &format!("the bytes of queue {queue}"),
            &me.window.read((QUEUES + queue) * BYTES, BYTES)?,
            &expected,
        )?;
    }
    me.end()
}

fn engines(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let engine = |number| me.transport.queue(QueueTarget::Engine(number), QueueOptions::default());
    if engine(u32::MAX).is_ok() {
        return Err(failed("an engine that is not there to be refused", "a queue was made"));
    }
    let queue = match engine(0) {
        Ok(queue) => queue,
        Err(error) => return Err(Stop::Skipped { reason: error.to_string() }),
    };
    for peer in 0..stage.ranks() {
        me.execute(&*queue, &[Op::Signal(me.raise(peer, WORDS + 64 * stage.rank(), 0, 1)?)])?;
    }
    stage.meet()?;
    for peer in 0..stage.ranks() {
        same(&format!("signals of the engine of rank {peer}"), word(&me, WORDS + 64 * peer)?, 1)?;
    }
    me.end()
}
