//! Tickets: asked in any order, by anyone; cancelled; of regions that went away.

use campanile_core::{
    Agent, Cancelled, Completion, ControlError, LocalAddress, Memory, MemoryKind, Op, OpKind, PostError, Queue,
    QueueError, Rank, RemoteAddress, Ticket,
};

use super::case::{Case, Group};
use super::finding::{Expected, Proof, Stop, failed, joined, refused, require, same, same_bytes};
use super::member::{Member, WORDS};
use super::need::Need;
use super::stage::{Stage, until};
use super::window::{Window, pattern};

pub(super) const GROUP: Group = Group {
    name: "tickets",
    about: "tickets asked in any order, cancelled, and of regions that went away",
    cases: &[
        Case::new(
            "tickets_in_any_order",
            "tickets can be waited for in any order, by any thread, and stay complete",
            &[Need::Op(OpKind::Put)],
            tickets_in_any_order,
        ),
        Case::new(
            "one_source_in_two_tickets",
            "the same source in two posts, to two places, arrives at both",
            &[Need::Op(OpKind::Put)],
            one_source_in_two_tickets,
        ),
        Case::new(
            "a_foreign_ticket_is_refused",
            "a ticket of another queue is an error in test, wait and cancel, and fails nothing",
            &[Need::Op(OpKind::Put)],
            a_foreign_ticket,
        ),
        Case::new(
            "a_cancelled_post_does_not_run",
            "what cancel says was stopped does not run, what it says was too late has; earlier posts run",
            &[Need::Op(OpKind::PutSignal), Need::Signals],
            a_cancelled_post,
        ),
        Case::new(
            "a_source_dropped_in_flight",
            "a source that is deregistered before its put has run: the put, or an error that stays",
            &[Need::Op(OpKind::Put)],
            a_source_dropped_in_flight,
        ),
        Case::new(
            "a_target_dropped_in_flight",
            "an imported region that is dropped before a put to it has run: the put, or an error that stays",
            &[Need::Ranks(2), Need::Op(OpKind::Put)],
            a_target_dropped_in_flight,
        ),
        Case::new(
            "regions_come_and_go_under_load",
            "regions are registered and dropped while another thread puts: nothing is touched that is gone",
            &[Need::Op(OpKind::Put)],
            regions_under_load,
        ),
        Case::new(
            "a_queue_outlives_its_transport",
            "queues and regions can be used after the last handle of their transport was dropped, or say an error",
            &[Need::Op(OpKind::Put)],
            a_queue_outlives,
        ),
    ],
};

fn tickets_in_any_order(stage: &Stage) -> Proof {
    const POSTS: usize = 24;
    const BYTES: usize = 700;
    let me = Member::join(stage)?;
    let (own, half) = (stage.rank(), POSTS * BYTES);
    let queue = me.queue(own, 64)?;
    for round in 0..6_u64 {
        me.window.write(0, &pattern(round, half))?;
        let post = |at: usize| me.post(&*queue, &[me.put(at * BYTES, own, half + at * BYTES, BYTES)]);
        let tickets = (0..POSTS).map(post).collect::<Proof<Vec<_>>>()?;
        let mut order: Vec<usize> = (0..POSTS).collect();
        for at in (1..POSTS).rev() {
            order.swap(at, stage.below(at + 1));
        }
        let ask = |order: &[usize]| -> Proof {
            for &at in order {
                me.finish(&*queue, tickets[at])?;
                let seen = me.window.read(half + at * BYTES, BYTES)?;
                let expected = &pattern(round, half)[at * BYTES..][..BYTES];
                same_bytes(&format!("post {at}, whose ticket is complete"), &seen, expected)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| ask(&order[POSTS / 2..]));
            ask(&order[..POSTS / 2])?;
            joined(other)
        })?;
        for ticket in tickets {
            for level in [Completion::Local, Completion::Remote(Agent::Cpu)] {
                let still = queue.test(ticket, level).expected("a test")?;
                require(still, "a ticket that stays complete", || format!("{level:?} is taken back"))?;
            }
        }
    }
    me.end()
}

fn one_source_in_two_tickets(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let own = stage.rank();
    let queues = [me.queue(own, 8)?, me.queue(own, 8)?];
    let bytes = pattern(3, me.at_most(5000, own, OpKind::Put)?);
    let at = |place: usize| (1 + place) * bytes.len();
    me.window.write(0, &bytes)?;
    let post = |queue: usize, place: usize| me.post(&*queues[queue], &[me.put(0, own, at(place), bytes.len())]);
    let tickets = [(0, post(0, 0)?), (0, post(0, 1)?), (1, post(1, 2)?)];
    for (place, (queue, ticket)) in tickets.into_iter().enumerate().rev() {
        me.finish(&*queues[queue], ticket)?;
        let seen = me.window.read(at(place), bytes.len())?;
        same_bytes(&format!("place {place}"), &seen, &bytes)?;
    }
    me.end()
}

fn a_foreign_ticket(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let peer = stage.next();
    let (one, two) = (me.queue(peer, 8)?, me.queue(peer, 8)?);
    let put = me.put(0, peer, 4096, 8);
    // Both have come equally far: only whose it is tells the tickets apart.
    for queue in [&one, &two] {
        me.execute(&**queue, &[put, put])?;
    }
    let ticket = me.post(&*one, &[put])?;
    me.execute(&*two, &[put])?;
    let foreign = |error: QueueError| {
        let holds = matches!(error, QueueError::ForeignTicket { .. });
        require(holds, "QueueError::ForeignTicket", || format!("{error:?}"))
    };
    foreign(refused(two.test(ticket, Completion::Local), "the test of a foreign ticket to be an error")?)?;
    let level = Completion::Remote(Agent::Cpu);
    foreign(refused(two.wait(ticket, level, stage.timeout()), "the wait for a foreign ticket to be an error")?)?;
    foreign(refused(two.cancel(ticket), "a cancel of a foreign ticket to be an error")?)?;
    me.finish(&*one, ticket)?;
    me.execute(&*two, &[put])?;
    me.end()
}

fn a_cancelled_post(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let own = stage.rank();
    for round in 0..20 {
        let queue = me.queue(own, 16)?;
        let at = WORDS + 64 * round;
        let seen = || me.window.load(at);
        me.post(&*queue, &[Op::Signal(me.raise(own, at, 0, 1)?)])?;
        let raise = |step: u64| Ok(Op::Signal(me.raise(own, at, 1 + 100 * step, 100)?));
        let second = me.post(&*queue, &(0..=round as u64 % 3).map(raise).collect::<Proof<Vec<_>>>()?)?;
        if round % 4 == 3 {
            me.finish(&*queue, second)?;
        } else if round % 4 == 2 {
            queue.ring().expected("a ring")?;
        }
        for _ in 0..20 {
            if round % 4 < 2 {
                queue.progress().expected("progress")?;
            }
        }
        // Where posts wait for the doorbell nothing has started yet.
        let waits = round % 4 < 2 && seen()? == 0;
        let cancelled = queue.cancel(second).expected("a cancel of a ticket of this queue")?;
        let all = 1 + 100 * (1 + round as u64 % 3);
        match cancelled {
            Cancelled::TooLate => same("the word when cancel says too late", seen()?, all)?,
            // The queue may have failed: then nothing more runs.
            Cancelled::Stopped => {
                let waited = queue.wait(second, Completion::Remote(Agent::Cpu), stage.timeout());
                let timed_out = matches!(waited, Err(QueueError::Timeout { .. }));
                require(!timed_out, "a cancelled ticket to complete or fail", || queue.describe())?;
                for _ in 0..20 {
                    let failed = queue.progress().is_err();
                    require(failed == waited.is_err(), "progress that ends as the wait did", || format!("{waited:?}"))?;
                }
                let seen = seen()?;
                require(!waits || seen <= 1, "nothing of what was stopped before it was rung", || {
                    format!("a word of {seen}: it has run")
                })?;
                if waited.is_ok() {
                    require(seen >= 1, "the post before it", || "it did not run".to_owned())?;
                }
            }
        }
    }
    me.end()
}

/// Both are legal: the operation ran, or the queue failed and stays failed. Silence is not.
fn ran_or_failed(me: &Member<'_>, queue: &dyn Queue, ticket: Ticket) -> Proof<bool> {
    queue.ring().map_or_else(|_| Ok(()), |()| Ok(()))?;
    let ended = until(me.stage.timeout(), || {
        let level = Completion::Remote(Agent::Cpu);
        let tested = queue.progress().and_then(|_| queue.test(ticket, level));
        Ok(match tested {
            Ok(false) => None,
            ended => Some(ended),
        })
    })?;
    match ended.ok_or_else(|| failed("completion or an error", queue.describe()))? {
        Ok(_) => Ok(true),
        Err(error) => {
            same("the error of the next call", queue.progress().err(), Some(error.clone()))?;
            same("the error of the next post", queue.post(&[]).err(), Some(PostError::Queue(error)))?;
            Ok(false)
        }
    }
}

fn a_source_dropped_in_flight(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let own = stage.rank();
    for round in 0..10 {
        let queue = me.queue(own, 8)?;
        let mut memory = pattern(round, 3000);
        let span = Memory { address: memory.as_mut_ptr(), bytes: memory.len(), kind: MemoryKind::Host };
        // SAFETY: `memory` is dropped after the region: it was declared before, and the region is dropped below.
        let region = match unsafe { me.transport.register(span) }.wait(stage.timeout()) {
            Err(ControlError::Unsupported { reason, .. }) => return Err(Stop::Skipped { reason }),
            region => region.expected("a registration")?,
        };
        let source = LocalAddress { region: region.key(), offset: 0 };
        let put = Op::Put { source, target: me.window.remote(own, 0), bytes: 3000 };
        me.execute(&*queue, &[put])?;
        me.window.write(0, &[0; 3000])?;
        let ticket = me.post(&*queue, &[put])?;
        if round % 2 == 1 {
            queue.ring().expected("a ring")?;
            stage.pause();
        }
        drop(region);
        match queue.post(&[put]) {
            Err(PostError::Invalid { .. } | PostError::Queue(_)) => {}
            other => return Err(failed("a post with a stale key to be refused", format!("{other:?}"))),
        }
        if ran_or_failed(&me, &*queue, ticket)? {
            same_bytes("what the put moved", &me.window.read(0, 3000)?, &pattern(round, 3000))?;
        }
    }
    me.end()
}

fn a_target_dropped_in_flight(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let peer = stage.next();
    for _ in 0..5 {
        let mut other = Window::new(stage, &*me.transport, 4096)?;
        let queue = me.queue(peer, 8)?;
        let put = Op::Put { source: me.window.local(0), target: other.remote(peer, 0), bytes: 3000 };
        let ticket = me.post(&*queue, &[put])?;
        other.remotes.clear();
        match queue.post(&[put]) {
            Err(PostError::Invalid { .. } | PostError::Queue(_)) => {}
            other => return Err(failed("a post with a stale key to be refused", format!("{other:?}"))),
        }
        ran_or_failed(&me, &*queue, ticket)?;
        stage.meet()?;
    }
    me.end()
}

fn regions_under_load(stage: &Stage) -> Proof {
    const ROUNDS: u64 = 100;
    let me = Member::join(stage)?;
    let own = stage.rank();
    let bytes = me.at_most(8000, own, OpKind::Put)?;
    let load = || -> Proof {
        let queue = me.queue(own, 16)?;
        me.window.write(0, &pattern(1, bytes))?;
        for _ in 0..ROUNDS {
            me.execute(&*queue, &[me.put(0, own, 8000, bytes)])?;
            same_bytes("a put beside regions that come and go", &me.window.read(8000, bytes)?, &pattern(1, bytes))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let load = scope.spawn(load);
        for _ in 0..ROUNDS {
            let region = me.transport.allocate(8192, stage.memory()).wait(stage.timeout()).expected("memory")?;
            let blob = me.transport.export(&region, &[Rank::new(own)]).expected("an export")?;
            let remote = me.transport.import(Rank::new(own), &blob).wait(stage.timeout()).expected("an import")?;
            let target = RemoteAddress { region: remote.key(), offset: 0 };
            let queue = me.queue(own, 4)?;
            me.execute(&*queue, &[Op::Put { source: me.window.local(0), target, bytes: bytes as u64 }])?;
            stage.pause();
        }
        joined(load)
    })?;
    me.end()
}

fn a_queue_outlives(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let own = stage.rank();
    let queue = me.queue(own, 8)?;
    me.window.write(0, &pattern(1, 3000))?;
    let put = me.put(0, own, 8192, 3000);
    stage.meet()?;
    let Member { transport, window, .. } = me;
    drop(transport);
    if let Ok(ticket) = queue.post(&[put]) {
        match queue.wait(ticket, Completion::Remote(Agent::Cpu), stage.timeout()) {
            Ok(()) => same_bytes("what the put moved", &window.read(8192, 3000)?, &pattern(1, 3000))?,
            Err(QueueError::Timeout { state, .. }) => return Err(failed("completion or an error", state)),
            Err(_) => {}
        }
    }
    drop(queue);
    same_bytes("the region", &window.read(0, 3000)?, &pattern(1, 3000))?;
    stage.meet()
}
