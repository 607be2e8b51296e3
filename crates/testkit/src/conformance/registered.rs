//! Registered memory: what a rank has of its own, reached by its peers' puts and gets.
//!
//! Cases apply to windows in host memory, where the transport says, once connected, that it reaches such memory of every
//! peer from every rank.

use campanile_core::{
    AtomicOp, Completion, Inline, LocalAddress, Memory, MemoryKind, Op, PostError, Queue, QueueError, Rank, Region,
    RemoteAddress, RemoteRegion, Strength,
};

use super::case::{Case, Group};
use super::finding::{Expected, Proof, Stop, failed, require, same, same_bytes};
use super::member::{Member, WORDS};
use super::need::Need;
use super::stage::{Stage, until};
use super::window::pattern;

pub(super) const GROUP: Group = Group {
    name: "registered",
    about: "memory that a rank has registered and exported, reached by its peers",
    cases: &[
        Case::new(
            "registered_memory_is_reached",
            "puts and gets of any size reach memory that a peer has registered, and touch no other byte",
            &[Need::Ranks(2), Need::HostMemory],
            registered_memory_is_reached,
        ),
        Case::new(
            "registered_memory_is_not_mapped",
            "registered memory of a peer has no pointer; inline puts, signals and atomics to it are refused",
            &[Need::Ranks(2), Need::HostMemory],
            registered_memory_is_not_mapped,
        ),
        Case::new(
            "the_address_space_is_reached",
            "a get by address from a registered address space works where memory is, and is an error where none is",
            &[Need::Ranks(2), Need::HostMemory],
            the_address_space_is_reached,
        ),
        Case::new(
            "what_is_taken_back_is_not_read",
            "a get from memory that its owner has deregistered is an error, and a queue made after it works",
            &[Need::Ranks(2), Need::HostMemory],
            what_is_taken_back_is_not_read,
        ),
        Case::new(
            "death_ends_gets_of_registered_memory",
            "a get from registered memory of a rank that died ends with an error in time",
            &[Need::Ranks(2), Need::HostMemory],
            death_ends_gets,
        ),
    ],
};

/// A member, if every rank reaches what every other one registers.
fn join(stage: &Stage) -> Proof<Member<'_>> {
    let me = Member::join(stage)?;
    let reached = (0..stage.ranks()).try_for_each(|peer| me.transport.reaches_registered(Rank::new(peer)));
    let reasons = stage.exchange(reached.err().unwrap_or_default().as_bytes())?;
    match reasons.iter().find(|reason| !reason.is_empty()) {
        Some(reason) => Err(Stop::Skipped { reason: String::from_utf8_lossy(reason).into_owned() }),
        None => Ok(me),
    }
}

/// Registers this memory on every rank, which lives longer than the region, and imports that of the others.
fn share(me: &Member<'_>, memory: Memory) -> Proof<(Region, Vec<RemoteRegion>)> {
    let (stage, transport) = (me.stage, &*me.transport);
    // SAFETY: the caller's promise.
    let region = unsafe { transport.register(memory) }.wait(stage.timeout()).expected("memory to be registered")?;
    let everyone: Vec<_> = (0..stage.ranks()).map(Rank::new).collect();
    let blobs = stage.exchange(&transport.export(&region, &everyone).expected("an export")?)?;
    let import = |(peer, blob): (usize, Vec<u8>)| {
        transport.import(Rank::new(peer), &blob).wait(stage.timeout()).expected("an import")
    };
    let remotes = blobs.into_iter().enumerate().map(import).collect::<Proof<_>>()?;
    stage.meet()?;
    Ok((region, remotes))
}

fn host(memory: &mut [u8]) -> Memory {
    Memory { address: memory.as_mut_ptr(), bytes: memory.len(), kind: MemoryKind::Host }
}

fn remote(region: &RemoteRegion, offset: u64) -> RemoteAddress {
    RemoteAddress { region: region.key(), offset }
}

/// Bytes of a rank's memory; no multiple of a page.
const BYTES: usize = 70_001;

fn registered_memory_is_reached(stage: &Stage) -> Proof {
    let me = join(stage)?;
    let (peer, previous) = (stage.next(), stage.previous());
    let mut own = vec![0; BYTES];
    let (region, remotes) = share(&me, host(&mut own))?;
    let address = region.address();
    let queue = me.queue(peer, 4)?;
    for (number, bytes) in [0, 1, 7, 64, 4095, 4096, 65_537].into_iter().enumerate() {
        for from in [0, 1, 4093] {
            let mine = pattern((number * 16 + stage.rank()) as u64, BYTES);
            // SAFETY: `BYTES` of this rank's own, which no peer touches between the meetings here.
            unsafe { address.copy_from_nonoverlapping(mine.as_ptr(), BYTES) };
            me.window.write(0, &[0xee; BYTES + 16])?;
            stage.meet()?;
            let target = me.window.local(8);
            let get = Op::Get { source: remote(&remotes[peer], from as u64), target, bytes: bytes as u64 };
            me.execute(&*queue, &[get])?;
            let theirs = pattern((number * 16 + peer) as u64, BYTES);
            let seen = me.window.read(0, BYTES + 16)?;
            same_bytes("what was got", &seen[8..8 + bytes], &theirs[from..from + bytes])?;
            let untouched = seen[..8].iter().chain(&seen[8 + bytes..]).all(|&byte| byte == 0xee);
            require(untouched, "no other byte to be touched", || format!("a get of {bytes} did"))?;
            stage.meet()?;
            me.window.write(0, &pattern(stage.rank() as u64 + 1000, BYTES))?;
            let put = Op::Put {
                source: me.window.local(0),
                target: remote(&remotes[peer], from as u64),
                bytes: bytes as u64,
            };
            me.execute(&*queue, &[put])?;
            stage.meet()?;
            let mut expected = mine;
            expected[from..from + bytes].copy_from_slice(&pattern(previous as u64 + 1000, BYTES)[..bytes]);
            // SAFETY: as above.
            let seen = unsafe { std::slice::from_raw_parts(address, BYTES) };
            same_bytes("what was put", seen, &expected)?;
        }
    }
    let beyond = Op::Get { source: remote(&remotes[peer], 1), target: me.window.local(0), bytes: BYTES as u64 };
    refused(&*queue, beyond, "a range beyond registered memory")?;
    stage.meet()?;
    drop((region, remotes));
    me.end()
}

fn refused(queue: &dyn Queue, op: Op, what: &str) -> Proof {
    match queue.post(&[op]) {
        Err(PostError::Invalid { .. }) => Ok(()),
        other => Err(failed(format!("{what} to be PostError::Invalid"), format!("{other:?}"))),
    }
}

fn registered_memory_is_not_mapped(stage: &Stage) -> Proof {
    let me = join(stage)?;
    let peer = stage.next();
    let mut own = vec![0; 4096];
    let (region, remotes) = share(&me, host(&mut own))?;
    same("a pointer to registered memory of a peer", me.transport.map(&remotes[peer]), None)?;
    let queue = me.queue(peer, 4)?;
    let target = remote(&remotes[peer], 0);
    let data = Inline::new(&[1; 8]).expect("8 bytes fit");
    refused(&*queue, Op::PutInline { data, target }, "an inline put into registered memory")?;
    let signal = campanile_core::SignalUpdate { target, ..me.set(peer, WORDS, 1, Strength::Strong) };
    refused(&*queue, Op::Signal(signal), "a signal in registered memory")?;
    let add = Op::Atomic { op: AtomicOp::Add { operand: 1 }, target };
    refused(&*queue, add, "an atomic in registered memory")?;
    stage.meet()?;
    drop((region, remotes));
    me.end()
}

fn the_address_space_is_reached(stage: &Stage) -> Proof {
    let me = join(stage)?;
    let peer = stage.next();
    let (space, remotes) = share(&me, Memory::ADDRESS_SPACE)?;
    let here = |address: *const u8| LocalAddress { region: space.key(), offset: address.expose_provenance() as u64 };
    let mine = pattern(stage.rank() as u64, BYTES);
    let addresses = stage.exchange(&(mine.as_ptr().expose_provenance() as u64).to_le_bytes())?;
    let address = |peer: usize| u64::from_le_bytes(addresses[peer].as_slice().try_into().expect("8 bytes"));
    let mut got = vec![0; BYTES];
    let queue = me.queue(peer, 4)?;
    let get =
        Op::Get { source: remote(&remotes[peer], address(peer)), target: here(got.as_ptr()), bytes: BYTES as u64 };
    me.execute(&*queue, &[get])?;
    same_bytes("what was got", &got, &pattern(peer as u64, BYTES))?;
    // From this rank's private memory into the peer's window, and back.
    let put = Op::Put { source: here(mine.as_ptr()), target: me.window.remote(peer, 16), bytes: BYTES as u64 };
    me.execute(&*queue, &[put])?;
    got.fill(0);
    let back = Op::Get { source: me.window.remote(peer, 16), target: here(got.as_mut_ptr()), bytes: BYTES as u64 };
    me.execute(&*queue, &[back])?;
    same_bytes("what was put and got", &got, &mine)?;
    // Nothing is ever mapped on the first page.
    let nowhere = LocalAddress { region: space.key(), offset: 64 };
    for (source, target) in [
        (remote(&remotes[peer], 64), here(got.as_mut_ptr())),
        (remote(&remotes[peer], address(peer)), nowhere),
        (me.window.remote(peer, 16), nowhere),
    ] {
        fails(&me, Op::Get { source, target, bytes: 4096 }, "a get where nothing is mapped")?;
    }
    stage.meet()?;
    drop((space, remotes));
    me.end()
}

/// An operation that is accepted, or refused at once, and never completes.
fn fails(me: &Member<'_>, op: Op, what: &str) -> Proof {
    let queue = me.queue(me.stage.next(), 4)?;
    let ended = match queue.post(&[op]) {
        Ok(ticket) => queue.wait(ticket, Completion::Local, me.stage.timeout()),
        Err(PostError::Invalid { .. }) => return Ok(()),
        Err(error) => return Err(failed(format!("{what} to be accepted, or PostError::Invalid"), error)),
    };
    match ended {
        Ok(()) => Err(failed(format!("{what} to be an error"), "completion")),
        Err(QueueError::Timeout { state, .. }) => Err(failed(format!("{what} to end in time"), state)),
        Err(_) => Ok(()),
    }
}

fn what_is_taken_back_is_not_read(stage: &Stage) -> Proof {
    let me = join(stage)?;
    let peer = stage.next();
    let mut own = vec![7; BYTES];
    let (region, remotes) = share(&me, host(&mut own))?;
    drop(region);
    stage.meet()?;
    let get = Op::Get { source: remote(&remotes[peer], 0), target: me.window.local(0), bytes: BYTES as u64 };
    fails(&me, get, "a get from what was deregistered")?;
    let queue = me.queue(peer, 4)?;
    me.execute(&*queue, &[me.put(0, peer, 4096, 64)])?;
    stage.meet()?;
    drop(remotes);
    me.end()
}

fn death_ends_gets(stage: &Stage) -> Proof {
    let me = join(stage)?;
    let mut own = vec![7; BYTES];
    let (region, remotes) = share(&me, host(&mut own))?;
    let victim = stage.ranks() - 1;
    if stage.rank() == victim {
        return super::member::die(stage, (region, remotes, me));
    }
    let gone = until(stage.timeout(), || Ok(me.transport.gone(Rank::new(victim))))?;
    require(gone.is_some(), "the death to be told", || "nothing".to_owned())?;
    let queue = me.queue(victim, 4)?;
    let get = Op::Get { source: remote(&remotes[victim], 0), target: me.window.local(0), bytes: BYTES as u64 };
    let ended = match queue.post(&[get]) {
        Ok(ticket) => queue.wait(ticket, Completion::Local, stage.timeout()),
        Err(_) => return stage.meet_among(&(0..victim).collect::<Vec<_>>()),
    };
    match ended {
        Ok(()) => return Err(failed("a get from a dead rank to be an error", "completion")),
        Err(QueueError::Timeout { state, .. }) => return Err(failed("a get from a dead rank to end", state)),
        Err(_) => {}
    }
    stage.meet_among(&(0..victim).collect::<Vec<_>>())
}
