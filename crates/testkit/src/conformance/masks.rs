//! Masks: the survivors go on without a rank that is known dead.

use std::time::Instant;

use campanile_core::{
    CommOptions, Communicator, Condition, Event, Fault, FaultKind, Op, OpKind, Rank, Strength, WaitError,
};

use super::case::{Case, Group};
use super::faults::{blamed, survivors};
use super::finding::{Expected, Proof, failed, require, same};
use super::member::{Member, WORDS, die};
use super::need::Need;
use super::stage::{Stage, until};

pub(super) const GROUP: Group = Group {
    name: "masks",
    about: "the survivors go on without a rank that is known dead",
    cases: &[
        Case::new(
            "survivors_go_on_after_a_mask",
            "once a dead rank is masked its fault counts no more: signals and operations between survivors work",
            &[Need::Ranks(3), Need::Op(OpKind::PutSignal), Need::SignalSet],
            |stage| survivors_go_on(stage, last(stage)),
        ),
        Case::new(
            "survivors_go_on_without_the_first",
            "the same of rank 0, where a transport may keep what all share",
            &[Need::Ranks(3), Need::Op(OpKind::PutSignal), Need::SignalSet],
            |stage| survivors_go_on(stage, 0),
        ),
        Case::new(
            "a_wait_for_a_masked_rank_is_an_error",
            "a wait for a masked rank ends at once, not at the deadline, and is no fault of the job",
            &[Need::Ranks(3)],
            a_wait_for_a_masked_rank,
        ),
        Case::new(
            "a_masked_rank_is_told_no_more",
            "a rank that is masked while it lives may die: no event, no fault, no wait ends for it",
            &[Need::Ranks(3), Need::Op(OpKind::PutSignal), Need::SignalSet],
            a_masked_rank_dies,
        ),
        Case::new(
            "a_second_fault_after_a_mask_is_told",
            "a rank that dies after another was masked is named",
            &[Need::Ranks(3)],
            a_second_fault,
        ),
        Case::new(
            "a_mask_forgives_only_the_masked",
            "masking one rank leaves a fault of another standing",
            &[Need::Ranks(3)],
            a_mask_forgives_only,
        ),
        Case::new(
            "a_communicator_goes_on_after_a_mask",
            "a communicator over the survivors makes windows and signals in them",
            &[Need::Ranks(3), Need::Op(OpKind::PutSignal), Need::Op(OpKind::Put)],
            a_communicator_goes_on,
        ),
    ],
};

fn last(stage: &Stage) -> usize {
    stage.ranks() - 1
}

/// All survivors learn of the death of `victim` in a wait, and mask it.
fn mourn(me: &Member<'_>, victim: usize, among: &[usize]) -> Proof {
    blamed(me.wait(victim, WORDS, 1), victim, &[FaultKind::Died])?;
    // One that goes on must not meet the fault of one that has not masked yet.
    me.stage.meet_among(among)?;
    me.transport.mask(Rank::new(victim));
    same("the fault of the job after the mask", me.transport.fault(), None)?;
    me.stage.meet_among(among)
}

/// A ring of signals among these ranks.
fn ring(me: &Member<'_>, among: &[usize], rounds: u64) -> Proof {
    let position = among.iter().position(|rank| *rank == me.rank());
    let position = position.ok_or_else(|| failed("a survivor", format!("rank {}", me.rank())))?;
    let to = among[(position + 1) % among.len()];
    let from = among[(position + among.len() - 1) % among.len()];
    let queue = me.queue(to, 8)?;
    for round in 1..=rounds {
        me.execute(&*queue, &[Op::Signal(me.set(to, WORDS + 128, round, Strength::Strong))])?;
        me.arrived(from, WORDS + 128, round)?;
    }
    me.stage.meet_among(among)
}

fn survivors_go_on(stage: &Stage, victim: usize) -> Proof {
    let me = Member::join(stage)?;
    if stage.rank() == victim {
        return me.die();
    }
    let among = survivors(stage, victim);
    mourn(&me, victim, &among)?;
    ring(&me, &among, 50)?;
    // And a fault of a survivor is one.
    let (culprit, rank) = (Rank::new(among[0]), Rank::new(stage.rank()));
    if rank == culprit {
        me.transport.report(Fault { culprit, kind: FaultKind::Aborted, reporter: rank });
    }
    blamed(me.wait(among[usize::from(rank == culprit)], WORDS + 256, 1), among[0], &[FaultKind::Aborted])?;
    stage.meet_among(&among)
}

fn a_wait_for_a_masked_rank(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let victim = last(stage);
    if stage.rank() == victim {
        return me.die();
    }
    let among = survivors(stage, victim);
    mourn(&me, victim, &among)?;
    let start = Instant::now();
    match me.wait(victim, WORDS, 1) {
        Err(WaitError::Invalid { .. }) => {}
        other => return Err(failed("WaitError::Invalid for a masked rank", format!("{other:?}"))),
    }
    let (took, most) = (start.elapsed(), stage.timeout() / 2);
    require(took < most, "an error at once", || format!("one after {took:.1?}"))?;
    same("the fault of the job", me.transport.fault(), None)?;
    stage.meet_among(&among)
}

fn a_masked_rank_dies(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let victim = last(stage);
    if stage.rank() != victim {
        me.transport.mask(Rank::new(victim));
    }
    stage.meet()?;
    if stage.rank() == victim {
        return me.die();
    }
    let gone = until(stage.timeout(), || Ok(me.transport.gone(Rank::new(victim))))?;
    same("why it is gone", gone, Some(FaultKind::Died))?;
    same("the next event", me.transport.poll_event(), None)?;
    ring(&me, &survivors(stage, victim), 50)?;
    same("the fault of the job", me.transport.fault(), None)
}

fn a_second_fault(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let (first, second) = (last(stage), last(stage) - 1);
    if stage.rank() == first {
        return me.die();
    }
    let among = survivors(stage, first);
    mourn(&me, first, &among)?;
    if stage.rank() == second {
        return me.die();
    }
    let event = until(stage.timeout(), || Ok(me.transport.poll_event()))?;
    same("the event", event, Some(Event::PeerDied(Rank::new(second))))?;
    blamed(me.wait(second, WORDS + 64, 1), second, &[FaultKind::Died])?;
    // Nobody else is gone before all have seen who is.
    stage.meet_among(&(0..second).collect::<Vec<_>>())
}

fn a_mask_forgives_only(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let fault = Fault { culprit: Rank(1), kind: FaultKind::Aborted, reporter: Rank(1) };
    if stage.rank() == 1 {
        me.transport.report(fault);
    }
    stage.meet()?;
    if stage.rank() < last(stage) {
        me.transport.mask(Rank::new(last(stage)));
        same("the fault of the job after another rank was masked", me.transport.fault(), Some(fault))?;
        blamed(me.wait(1 - stage.rank().min(1), WORDS, 1), 1, &[FaultKind::Aborted])?;
    }
    stage.meet()
}

fn a_communicator_goes_on(stage: &Stage) -> Proof {
    let options = CommOptions {
        name: stage.scope().to_owned(),
        device: stage.device().to_owned(),
        timeout: stage.timeout(),
        ..CommOptions::default()
    };
    let comm = Communicator::new(stage.bootstrap(), stage.suite().plugin, options).expected("a communicator")?;
    let window = comm.window(4096, stage.memory()).expected("a window")?;
    let victim = last(stage);
    // A fault ends every exchange that is not over: nobody dies while another still makes its window.
    stage.meet()?;
    if stage.rank() == victim {
        return die(stage, (window, comm));
    }
    let ended = window.wait(victim, 0, Condition::AtLeast(1), "conformance");
    let culprit = ended.err().and_then(|error| error.fault()).map(|fault| fault.culprit);
    same("the culprit", culprit, Some(Rank::new(victim)))?;
    stage.meet_among(&survivors(stage, victim))?;
    let survivors = comm.mask(&[victim]).expected("a communicator over the survivors")?;
    same("its ranks", survivors.ranks(), stage.ranks() - 1)?;
    let window = survivors.window(4096, stage.memory()).expected("a window of the survivors")?;
    let (to, ranks) = ((survivors.rank() + 1) % survivors.ranks(), survivors.ranks());
    let from = (survivors.rank() + ranks - 1) % ranks;
    for round in 1..=20 {
        window.signal(to, 0, round).expected("a signal")?;
        window.wait(from, 0, Condition::AtLeast(round), "conformance").expected("the signal of a survivor")?;
    }
    stage.meet_among(&self::survivors(stage, victim))
}
