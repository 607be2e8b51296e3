//! Addresses: what is outside, misaligned, stale or another peer's is refused, by a reason.

use campanile_core::{
    Agent, AtomicOp, Completion, Condition, Inline, LocalAddress, Op, OpKind, PostError, Queue, QueueError, Rank,
    RegionKey, RemoteAddress, RemoteKey, Strength, WaitError,
};

use super::case::{Case, Group};
use super::finding::{Expected, Proof, failed, require, same, same_bytes};
use super::member::{BYTES, Member, WORDS};
use super::need::Need;
use super::stage::Stage;
use super::window::{Window, pattern};

pub(super) const GROUP: Group = Group {
    name: "addresses",
    about: "what is outside, misaligned, stale or another peer's is refused",
    cases: &[
        Case::new(
            "ranges_beyond_a_region_are_refused",
            "a byte beyond a region, local or remote, of any operation, also where offset plus bytes overflows",
            &[Need::Op(OpKind::Put), Need::Op(OpKind::Get), Need::Op(OpKind::PutSignal)],
            ranges_beyond,
        ),
        Case::new(
            "misaligned_words_are_refused",
            "a signal or an atomic on a word that is not 8-byte aligned is refused when it is posted",
            &[Need::Op(OpKind::PutSignal)],
            misaligned_words,
        ),
        Case::new(
            "keys_that_never_were_are_refused",
            "made-up keys, local and remote, are refused when they are posted",
            &[Need::Op(OpKind::Put)],
            keys_that_never_were,
        ),
        Case::new(
            "stale_keys_are_refused",
            "the key of a region that was dropped is refused, however many were made since",
            &[Need::Op(OpKind::Put)],
            stale_keys,
        ),
        Case::new(
            "a_recreated_region_is_another",
            "a peer drops its region and makes another: a put to the old one does not touch the new one",
            &[Need::Ranks(2), Need::Op(OpKind::Put)],
            a_recreated_region,
        ),
        Case::new(
            "a_queue_refuses_other_peers",
            "memory of another rank than the one that a queue leads to is refused",
            &[Need::Ranks(2), Need::Op(OpKind::Put)],
            a_queue_refuses_other_peers,
        ),
        Case::new(
            "impossible_waits_are_refused",
            "a wait for a word beyond the region, misaligned, or of an unknown rank is an error at once",
            &[],
            impossible_waits,
        ),
    ],
};

fn invalid(queue: &dyn Queue, op: Op, what: &str) -> Proof {
    match queue.post(&[op]) {
        Err(PostError::Invalid { index: 0, reason }) if !reason.is_empty() => Ok(()),
        other => Err(failed(format!("PostError::Invalid with a reason for {what}"), format!("{other:?}"))),
    }
}

fn ranges_beyond(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let peer = stage.next();
    let queue = me.queue(peer, 4)?;
    let (local, remote) = (me.window.region.key(), me.window.remotes[peer].key());
    let local = |offset: u64| LocalAddress { region: local, offset };
    let remote = |offset: u64| RemoteAddress { region: remote, offset };
    let end = BYTES as u64;
    for (offset, bytes) in [(end, 1), (end - 1, 2), (0, end + 1), (end + 1, 0), (u64::MAX, 1), (u64::MAX - 7, 16)] {
        let what = format!("{bytes} bytes at {offset} of a region of {end}");
        invalid(&*queue, Op::Put { source: local(0), target: remote(offset), bytes }, &what)?;
        invalid(&*queue, Op::Put { source: local(offset), target: remote(0), bytes }, &what)?;
        invalid(&*queue, Op::Get { source: remote(offset), target: local(0), bytes }, &what)?;
        invalid(&*queue, Op::Get { source: remote(0), target: local(offset), bytes }, &what)?;
        let signal = me.set(peer, WORDS, 1, Strength::Weak);
        let put = Op::PutSignal { source: local(0), target: remote(offset), bytes, signal };
        invalid(&*queue, put, &what)?;
        if me.caps(peer, OpKind::PutInline).is_ok() && bytes == 1 {
            let data = Inline::new(&[1]).expect("a byte fits");
            invalid(&*queue, Op::PutInline { data, target: remote(offset) }, &what)?;
        }
    }
    let mut signal = me.set(peer, WORDS, 1, Strength::Weak);
    signal.target = remote(end);
    invalid(&*queue, Op::Signal(signal), "a word at the end of a region")?;
    let put = Op::PutSignal { source: local(0), target: remote(0), bytes: 8, signal };
    invalid(&*queue, put, "a word at the end of a region")?;
    if me.caps(peer, OpKind::Atomic).is_ok() {
        let add = Op::Atomic { op: AtomicOp::Add { operand: 1 }, target: remote(end) };
        invalid(&*queue, add, "an atomic at the end of a region")?;
        let op = AtomicOp::FetchAdd { operand: 1, result: local(end - 7) };
        invalid(&*queue, Op::Atomic { op, target: remote(0) }, "a result that crosses the end of a region")?;
    }
    // What just fits is legal, and nothing else has happened.
    me.execute(&*queue, &[me.put(0, peer, BYTES - 1, 1), me.put(BYTES, peer, BYTES, 0)])?;
    stage.meet()?;
    same("the word that refused signals named", me.window.load(WORDS)?, 0)?;
    me.end()
}

fn misaligned_words(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let peer = stage.next();
    let queue = me.queue(peer, 4)?;
    for off in [1, 2, 4, 7] {
        let what = format!("a word at {off} past an aligned offset");
        let signal = me.set(peer, WORDS + off, 1, Strength::Weak);
        invalid(&*queue, Op::Signal(signal), &what)?;
        let put = Op::PutSignal { source: me.window.local(0), target: me.window.remote(peer, 0), bytes: 1, signal };
        invalid(&*queue, put, &what)?;
        if me.caps(peer, OpKind::Atomic).is_ok() {
            let target = me.window.remote(peer, WORDS + off);
            invalid(&*queue, Op::Atomic { op: AtomicOp::Add { operand: 1 }, target }, &what)?;
        }
    }
    stage.meet()?;
    let untouched = me.window.read(WORDS, 16)?;
    same_bytes("the words around them", &untouched, &[0; 16])?;
    me.end()
}

fn keys_that_never_were(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let peer = stage.next();
    let queue = me.queue(peer, 4)?;
    for key in [0, 1 << 20, u64::MAX, u64::MAX << 32, 0xdead_beef_0000_0000] {
        if key == me.window.region.key().0 || key == me.window.remotes[peer].key().0 {
            continue;
        }
        let (source, target) = (me.window.local(0), me.window.remote(peer, 0));
        let local = LocalAddress { region: RegionKey(key), offset: 0 };
        let remote = RemoteAddress { region: RemoteKey(key), offset: 0 };
        let known = me.window.remotes.iter().any(|remote| remote.key().0 == key);
        invalid(&*queue, Op::Put { source: local, target, bytes: 1 }, &format!("the local key {key:#x}"))?;
        if !known {
            invalid(&*queue, Op::Put { source, target: remote, bytes: 1 }, &format!("the remote key {key:#x}"))?;
        }
    }
    me.end()
}

fn stale_keys(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let own = stage.rank();
    let queue = me.queue(own, 4)?;
    let mut stale = Vec::new();
    for _ in 0..100 {
        let region = me.transport.allocate(4096, stage.memory()).wait(stage.timeout()).expected("memory")?;
        let blob = me.transport.export(&region, &[Rank::new(own)]).expected("an export")?;
        let imported = me.transport.import(Rank::new(own), &blob).wait(stage.timeout());
        let remote = imported.expected("an import")?;
        let keys = (region.key(), remote.key());
        let fresh = !stale.iter().any(|(local, remote)| *local == keys.0 || *remote == keys.1);
        require(fresh, "keys that never were before", || format!("{keys:?} again"))?;
        stale.push(keys);
    }
    // One that lives, where the last one was.
    let alive = me.transport.allocate(4096, stage.memory()).wait(stage.timeout()).expected("memory")?;
    for (local, remote) in stale {
        let source = LocalAddress { region: local, offset: 0 };
        let put = Op::Put { source, target: me.window.remote(own, 0), bytes: 8 };
        invalid(&*queue, put, "the local key of a dropped region")?;
        let target = RemoteAddress { region: remote, offset: 0 };
        let put = Op::Put { source: me.window.local(0), target, bytes: 8 };
        invalid(&*queue, put, "the remote key of a dropped region")?;
    }
    drop(alive);
    me.end()
}

fn a_recreated_region(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let peer = stage.next();
    for round in 0..10 {
        let old = Window::new(stage, &*me.transport, 8192)?;
        let Window { region, remotes, .. } = old;
        stage.meet()?;
        // Only the exporter's handle: the peers' imports live.
        drop(region);
        let new = Window::new(stage, &*me.transport, 8192)?;
        new.write(0, &pattern(round, 8192))?;
        stage.meet()?;
        me.window.write(0, &[0x77; 8192])?;
        let queue = me.queue(peer, 4)?;
        let target = RemoteAddress { region: remotes[peer].key(), offset: 0 };
        match queue.post(&[Op::Put { source: me.window.local(0), target, bytes: 8192 }]) {
            Ok(ticket) => {
                // Into memory that the import keeps alive, or an error of the target: both are legal.
                let level = Completion::Remote(Agent::Cpu);
                let ended = queue.wait(ticket, level, stage.timeout());
                let timed_out = matches!(ended, Err(QueueError::Timeout { .. }));
                require(!timed_out, "completion or an error", || queue.describe())?;
            }
            Err(PostError::Invalid { .. }) => {}
            Err(error) => return Err(failed("the put to be accepted, or PostError::Invalid", error)),
        }
        stage.meet()?;
        same_bytes("the new region", &new.read(0, 8192)?, &pattern(round, 8192))?;
        stage.meet()?;
    }
    me.end()
}

fn a_queue_refuses_other_peers(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let queue = me.queue(stage.next(), 4)?;
    for other in (0..stage.ranks()).filter(|other| *other != stage.next()) {
        invalid(&*queue, me.put(0, other, 0, 8), &format!("memory of rank {other}"))?;
    }
    me.end()
}

fn impossible_waits(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let peer = stage.next();
    for at in [BYTES, BYTES + 8, BYTES - 4, 1, WORDS + 4, usize::MAX - 7, usize::MAX] {
        match me.wait_for(peer, at, Condition::AtLeast(1)) {
            Err(WaitError::Invalid { .. }) => {}
            other => {
                let expected = format!("WaitError::Invalid for a word at {at} of {BYTES} bytes");
                return Err(failed(expected, format!("{other:?}")));
            }
        }
    }
    match me.wait_for(stage.ranks() + 5, WORDS, Condition::AtLeast(1)) {
        Err(WaitError::Invalid { .. }) => {}
        other => return Err(failed("WaitError::Invalid for a rank that is not connected", format!("{other:?}"))),
    }
    same("the fault of the job", me.transport.fault(), None)?;
    me.end()
}
