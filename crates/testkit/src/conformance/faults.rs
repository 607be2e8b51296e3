//! Faults: a rank that dies, leaves, aborts or stalls, in every state; every other one names it, in time.

use std::time::{Duration, Instant};

use campanile_core::{
    Agent, Completion, Condition, ControlError, Event, Fault, FaultKind, Op, OpKind, PostError, QueueError, Rank,
    Shutdown, Strength, WaitError,
};

use super::case::{Case, Group};
use super::finding::{Expected, Proof, failed, names, refused, require, same};
use super::member::{Member, WORDS, die};
use super::need::Need;
use super::stage::{Stage, until};

pub(super) const GROUP: Group = Group {
    name: "faults",
    about: "a rank that dies, leaves, aborts or stalls, in every state, is named by all others in time",
    cases: &[
        Case::new(
            "death_of_the_first_before_connect",
            "a connect to rank 0, which died after it gave its address, ends in time and names it or who gave up for it",
            &[Need::Ranks(2)],
            |stage| death_before_connect(stage, 0),
        ),
        Case::new(
            "death_of_the_last_before_connect",
            "a connect to the last rank, which died after it gave its address, ends in time and names it or who gave up for it",
            &[Need::Ranks(2)],
            |stage| death_before_connect(stage, stage.ranks() - 1),
        ),
        Case::new(
            "death_after_connect",
            "a rank that dies is gone, is told as one event, and ends a later wait for it at once",
            &[Need::Ranks(2)],
            death_after_connect,
        ),
        Case::new(
            "death_during_connect",
            "a rank dies in the middle of connecting: the others connect, or name it or who gave up for it, in time",
            &[Need::Ranks(2)],
            death_during_connect,
        ),
        Case::new("death_in_a_wait", "a wait for a rank that dies ends with its name", &[Need::Ranks(2)], |stage| {
            death_in_a_wait(stage, last(stage))
        }),
        Case::new(
            "death_of_the_first_in_a_wait",
            "the same of rank 0, where a transport may keep what all share",
            &[Need::Ranks(2)],
            |stage| death_in_a_wait(stage, 0),
        ),
        Case::new(
            "death_behind_a_wait",
            "a rank that waits for one that waits for one that dies names the last",
            &[Need::Ranks(3)],
            death_behind_a_wait,
        ),
        Case::new(
            "death_with_operations_queued",
            "operations to a rank that died complete or fail; its own unrung ones disturb nobody",
            &[Need::Ranks(2), Need::Op(OpKind::Put)],
            death_with_operations_queued,
        ),
        Case::new(
            "death_during_export_and_import",
            "exports to and imports from a rank that died end in time; an error names it",
            &[Need::Ranks(2)],
            death_during_export_and_import,
        ),
        Case::new(
            "signals_before_the_end_are_good",
            "what a rank had signalled before it left is seen; a wait for more ends with its name",
            &[Need::Ranks(2), Need::Op(OpKind::PutSignal), Need::SignalSet],
            signals_before_the_end,
        ),
        Case::new(
            "signals_at_the_end_are_good",
            "a wait that goes on when a rank signals and leaves at once ends with the signal, not with the fault",
            &[Need::Ranks(2), Need::Op(OpKind::PutSignal), Need::SignalSet],
            signals_at_the_end,
        ),
        Case::new(
            "leaving_is_told_from_dying",
            "a rank that shuts down has left, and did not die",
            &[Need::Ranks(2)],
            leaving,
        ),
        Case::new(
            "abort_ends_every_wait",
            "a reported abort ends the waits of all ranks for whomever, with the culprit's name",
            &[Need::Ranks(2)],
            abort_ends_every_wait,
        ),
        Case::new(
            "shutdown_by_abort_is_told",
            "a rank that shuts down by abort ends the waits for it with its name",
            &[Need::Ranks(2)],
            shutdown_by_abort,
        ),
        Case::new(
            "the_first_fault_stands",
            "of faults that all ranks report at once one stands, the same everywhere",
            &[],
            the_first_fault_stands,
        ),
        Case::new(
            "a_stall_is_named_in_time",
            "a rank that does not signal is named after the deadline, with the word, what it must be and what it was",
            &[Need::Ranks(2)],
            a_stall,
        ),
        Case::new(
            "a_chain_of_stalls_blames_its_end",
            "ranks that wait for each other blame the one that waits for nobody",
            &[Need::Ranks(3), Need::FollowsWaits],
            a_chain_of_stalls,
        ),
        Case::new(
            "a_ring_of_waits_ends",
            "ranks that wait for each other in a ring end in time, all with the same fault",
            &[Need::Ranks(2)],
            a_ring_of_waits,
        ),
    ],
};

/// Makes sure that a wait ended with that fault.
pub(super) fn blamed(waited: Result<u64, WaitError>, culprit: usize, kinds: &[FaultKind]) -> Proof {
    let error = refused(waited, "the wait to end with an error")?;
    let fault = error.fault().ok_or_else(|| failed("a fault in the error", &error))?;
    same("the culprit", fault.culprit, Rank::new(culprit))?;
    require(kinds.contains(&fault.kind), &format!("one of {kinds:?}"), || format!("{:?}", fault.kind))?;
    names(&error, &Rank::new(culprit).to_string())
}

/// All ranks but one.
pub(super) fn survivors(stage: &Stage, victim: usize) -> Vec<usize> {
    (0..stage.ranks()).filter(|rank| *rank != victim).collect()
}

fn last(stage: &Stage) -> usize {
    stage.ranks() - 1
}

/// While ranks connect there is no fault that they share. One that met the death first has given up, and is gone for those
/// that still connect to it.
fn names_another(stage: &Stage, error: &ControlError) -> Proof {
    let others = (0..stage.ranks()).filter(|rank| *rank != stage.rank());
    let named = others.map(|rank| names(error, &Rank::new(rank).to_string())).any(|named| named.is_ok());
    require(named, "an error that names another rank", || error.to_string())
}

fn death_before_connect(stage: &Stage, victim: usize) -> Proof {
    let transport = stage.open()?;
    let addresses = stage.exchange(&transport.address())?;
    if stage.rank() == victim {
        return die(stage, transport);
    }
    let peers: Vec<_> = addresses.into_iter().enumerate().map(|(peer, a)| (Rank::new(peer), a)).collect();
    let error = refused(
        transport.connect(&peers).wait(stage.timeout().min(Duration::from_millis(500))),
        "a connect to a dead rank to end with an error",
    )?;
    names_another(stage, &error)?;
    // Nobody else is gone before all have seen who is.
    stage.meet_among(&survivors(stage, victim))
}

fn death_during_connect(stage: &Stage) -> Proof {
    let victim = stage.ranks() / 2;
    let transport = stage.open()?;
    let addresses = stage.exchange(&transport.address())?;
    let peers: Vec<_> = addresses.into_iter().enumerate().map(|(peer, a)| (Rank::new(peer), a)).collect();
    let mut request = transport.connect(&peers);
    if stage.rank() == victim {
        for _ in 0..stage.below(6) {
            stage.pause();
            if request.test().is_some() {
                break;
            }
        }
        return die(stage, (request, transport));
    }
    match request.wait(stage.timeout().min(Duration::from_millis(500))) {
        Ok(_) => {
            let gone = until(stage.timeout(), || Ok(transport.gone(Rank::new(victim))))?;
            same("why it is gone", gone, Some(FaultKind::Died))?;
        }
        Err(error) => names_another(stage, &error)?,
    }
    stage.meet_among(&survivors(stage, victim))
}

fn death_after_connect(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let victim = last(stage);
    if stage.rank() == victim {
        return me.die();
    }
    let gone = until(stage.timeout(), || Ok(me.transport.gone(Rank::new(victim))))?;
    same("why it is gone", gone, Some(FaultKind::Died))?;
    let event = until(stage.timeout(), || Ok(me.transport.poll_event()))?;
    same("the event", event, Some(Event::PeerDied(Rank::new(victim))))?;
    for other in survivors(stage, victim) {
        same("why a survivor is gone", me.transport.gone(Rank::new(other)), None)?;
    }
    same("the next event", me.transport.poll_event(), None)?;
    let start = Instant::now();
    blamed(me.wait(victim, WORDS, 1), victim, &[FaultKind::Died])?;
    let (took, most) = (start.elapsed(), stage.timeout() / 2);
    require(took < most, "a wait for a dead rank that ends at once", || format!("one that took {took:.1?}"))?;
    stage.meet_among(&survivors(stage, victim))
}

fn death_in_a_wait(stage: &Stage, victim: usize) -> Proof {
    let me = Member::join(stage)?;
    if stage.rank() == victim {
        // Into the spin, the yields or the sleep of the waiters.
        std::thread::park_timeout(Duration::from_micros(stage.below(30_000) as u64));
        return me.die();
    }
    let start = Instant::now();
    blamed(me.wait(victim, WORDS, 1), victim, &[FaultKind::Died])?;
    let (took, most) = (start.elapsed(), stage.timeout() / 2);
    require(took < most, "a death to be told at once", || format!("after {took:.1?}"))?;
    let fault = me.transport.fault();
    same("the culprit of the job's fault", fault.map(|fault| fault.culprit), Some(Rank::new(victim)))?;
    stage.meet_among(&survivors(stage, victim))
}

fn death_behind_a_wait(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let victim = last(stage);
    if stage.rank() == victim {
        std::thread::park_timeout(Duration::from_micros(stage.below(10_000) as u64));
        return me.die();
    }
    blamed(me.wait(stage.rank() + 1, WORDS, 1), victim, &[FaultKind::Died])?;
    stage.meet_among(&survivors(stage, victim))
}

fn death_with_operations_queued(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let victim = last(stage);
    let peer = if stage.rank() == victim { 0 } else { victim };
    let queue = me.queue(peer, 8)?;
    let put = me.put(0, peer, 4096, 4096);
    let ticket = me.post(&*queue, &[put, put])?;
    stage.meet()?;
    if stage.rank() == victim {
        return die(stage, (queue, me));
    }
    let gone = until(stage.timeout(), || Ok(me.transport.gone(Rank::new(victim))))?;
    same("why it is gone", gone, Some(FaultKind::Died))?;
    let level = Completion::Remote(Agent::Cpu);
    if let Err(QueueError::Timeout { state, .. }) = queue.wait(ticket, level, stage.timeout()) {
        return Err(failed("completion or an error", state));
    }
    match queue.post(&[put]) {
        Ok(_) | Err(PostError::Invalid { .. } | PostError::Queue(_)) => {}
        Err(error) => return Err(failed("a post to a dead rank to be taken, or refused for good", error)),
    }
    // A queue to somebody else is not concerned.
    let own = me.queue(stage.rank(), 8)?;
    me.execute(&*own, &[me.put(0, stage.rank(), 4096, 4096)])?;
    stage.meet_among(&survivors(stage, victim))
}

fn death_during_export_and_import(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let victim = last(stage);
    let region = me.transport.allocate(4096, stage.memory()).wait(stage.timeout()).expected("memory")?;
    let everyone: Vec<_> = (0..stage.ranks()).map(Rank::new).collect();
    let (mut told, mut kept) = (Vec::new(), Vec::new());
    if stage.rank() == victim {
        told = me.transport.export(&region, &everyone).expected("an export")?;
        // To nobody else: whoever imports this waits for what was never sent, where something must be sent.
        kept = me.transport.export(&region, &[Rank::new(victim)]).expected("an export to itself")?;
    }
    let told = stage.exchange(&told)?.swap_remove(victim);
    let kept = stage.exchange(&kept)?.swap_remove(victim);
    if stage.rank() == victim {
        std::thread::park_timeout(Duration::from_micros(stage.below(3000) as u64));
        return die(stage, (region, me));
    }
    let who = Rank::new(victim);
    for blob in [told, kept] {
        if let Err(error) = me.transport.import(who, &blob).wait(stage.timeout()) {
            let timed_out = matches!(error, ControlError::Timeout { .. });
            require(!timed_out, "an import from a dead rank to end", || error.to_string())?;
            names(&error, &who.to_string())?;
        }
    }
    let gone = until(stage.timeout(), || Ok(me.transport.gone(who)))?;
    same("why it is gone", gone, Some(FaultKind::Died))?;
    if let Err(error) = me.transport.export(&region, &everyone) {
        names(&error, &who.to_string())?;
    }
    stage.meet_among(&survivors(stage, victim))
}

fn signals_before_the_end(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let leaver = last(stage);
    if stage.rank() == leaver {
        for peer in survivors(stage, leaver) {
            let queue = me.queue(peer, 4)?;
            me.execute(&*queue, &[Op::Signal(me.set(peer, WORDS, 9, Strength::Strong))])?;
        }
        me.transport.shutdown(Shutdown::Drain).expected("a shutdown")?;
        drop(me);
        stage.meet()?;
        return stage.meet();
    }
    stage.meet()?;
    same("the word", me.arrived(leaver, WORDS, 9)?, 9)?;
    blamed(me.wait(leaver, WORDS, 10), leaver, &[FaultKind::Left])?;
    stage.meet()
}

/// The same, where the others wait already: the signal and the end come in the middle of a turn of theirs.
fn signals_at_the_end(stage: &Stage) -> Proof {
    let leaver = last(stage);
    for _ in 0..20 {
        let me = Member::join(stage)?;
        if stage.rank() == leaver {
            let queues = survivors(stage, leaver).into_iter().map(|peer| Ok((peer, me.queue(peer, 4)?)));
            let queues = queues.collect::<Proof<Vec<_>>>()?;
            std::thread::park_timeout(Duration::from_micros(stage.below(1000) as u64));
            for (peer, queue) in &queues {
                me.execute(&**queue, &[Op::Signal(me.set(*peer, WORDS, 9, Strength::Strong))])?;
            }
            me.transport.shutdown(Shutdown::Drain).expected("a shutdown")?;
        } else {
            same("the word", me.arrived(leaver, WORDS, 9)?, 9)?;
        }
        stage.meet()?;
    }
    Ok(())
}

fn leaving(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let leaver = last(stage);
    if stage.rank() == leaver {
        me.transport.shutdown(Shutdown::Drain).expected("a shutdown")?;
        return stage.meet();
    }
    let event = until(stage.timeout(), || Ok(me.transport.poll_event()))?;
    same("the event", event, Some(Event::PeerLeft(Rank::new(leaver))))?;
    same("why it is gone", me.transport.gone(Rank::new(leaver)), Some(FaultKind::Left))?;
    same("the fault of the job", me.transport.fault(), None)?;
    // It may drop its transport now, which is no second event.
    stage.meet()?;
    same("the next event", me.transport.poll_event(), None)?;
    stage.meet_among(&survivors(stage, leaver))
}

fn abort_ends_every_wait(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let fault = Fault { culprit: Rank(0), kind: FaultKind::Aborted, reporter: Rank(0) };
    if stage.rank() == 0 {
        std::thread::park_timeout(Duration::from_micros(stage.below(20_000) as u64));
        same("the fault that stands", me.transport.report(fault), fault)?;
    } else {
        let start = Instant::now();
        // The last one waits for this rank, the others for each other.
        blamed(me.wait(stage.next(), WORDS, 1), 0, &[FaultKind::Aborted])?;
        let (took, most) = (start.elapsed(), stage.timeout() / 2);
        require(took < most, "an abort to be told at once", || format!("after {took:.1?}"))?;
    }
    same("the fault of the job", me.transport.fault(), Some(fault))?;
    let rank = Rank::new(stage.rank());
    let later = me.transport.report(Fault { culprit: rank, kind: FaultKind::Failed, reporter: rank });
    same("the fault that stands after another report", later, fault)?;
    blamed(me.wait(stage.next(), WORDS + 64, 1), 0, &[FaultKind::Aborted])?;
    stage.meet()
}

fn shutdown_by_abort(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let culprit = last(stage);
    if stage.rank() == culprit {
        std::thread::park_timeout(Duration::from_micros(stage.below(5000) as u64));
        me.transport.shutdown(Shutdown::Abort).expected("a shutdown")?;
    } else {
        blamed(me.wait(culprit, WORDS, 1), culprit, &[FaultKind::Died, FaultKind::Aborted, FaultKind::Failed])?;
    }
    stage.meet()
}

fn the_first_fault_stands(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let rank = Rank::new(stage.rank());
    stage.pause();
    let stands = me.transport.report(Fault { culprit: rank, kind: FaultKind::Failed, reporter: rank });
    let all = stage.exchange(&stands.to_word().to_le_bytes())?;
    for (other, word) in all.iter().enumerate() {
        same(&format!("the fault that stands on rank {other}"), &word[..], &stands.to_word().to_le_bytes()[..])?;
    }
    same("the fault of the job", me.transport.fault(), Some(stands))?;
    stage.meet()
}

/// A deadline that is to be reached: long enough for a busy machine to tell a waiter from a sleeper.
pub(super) fn short(stage: &Stage) -> Duration {
    stage.timeout().min(Duration::from_millis(800))
}

fn a_stall(stage: &Stage) -> Proof {
    let me = Member::join_with(stage, WORDS + 4096, short(stage))?;
    let culprit = last(stage);
    if stage.rank() != culprit {
        let waited = me.wait(culprit, WORDS + 16, 3);
        if let Err(WaitError::Timeout { state, waited, .. }) = &waited {
            same("the offset that the error tells", state.offset, WORDS + 16)?;
            same("what it expected", state.expected, Condition::AtLeast(3))?;
            same("what it saw", state.seen, 0)?;
            require(*waited >= short(stage), "a whole deadline", || format!("a time-out after {waited:.1?}"))?;
        }
        blamed(waited, culprit, &[FaultKind::Stalled])?;
    }
    stage.meet()?;
    let fault = me.transport.fault();
    same("the culprit of the job's fault", fault.map(|fault| fault.culprit), Some(Rank::new(culprit)))?;
    stage.meet()
}

fn a_chain_of_stalls(stage: &Stage) -> Proof {
    let culprit = last(stage);
    let mut ended = Ok(());
    // Whoever gets no core for a while is rightly blamed for that: then once more, with more time.
    for attempt in 1..=3 {
        let deadline = stage.timeout().min(short(stage) * attempt);
        let me = Member::join_with(stage, WORDS + 4096, deadline)?;
        if stage.rank() != culprit {
            // The first to wait is the first to give up, while those that it waits for still wait.
            std::thread::park_timeout(deadline / 4 * stage.rank() as u32 / stage.ranks() as u32);
            ended = blamed(me.wait(stage.rank() + 1, WORDS, 1), culprit, &[FaultKind::Stalled]);
        }
        let all = stage.exchange(&[u8::from(ended.is_ok())])?;
        if all.iter().all(|good| good == &[1]) {
            break;
        }
    }
    ended
}

fn a_ring_of_waits(stage: &Stage) -> Proof {
    let me = Member::join_with(stage, WORDS + 4096, short(stage))?;
    let error = refused(me.wait(stage.next(), WORDS, 1), "the wait to end with an error")?;
    let fault = error.fault().ok_or_else(|| failed("a fault in the error", &error))?;
    let faults = stage.exchange(&fault.to_word().to_le_bytes())?;
    for (rank, word) in faults.iter().enumerate() {
        same(&format!("the fault that rank {rank} was told"), &word[..], &fault.to_word().to_le_bytes()[..])?;
    }
    Ok(())
}
