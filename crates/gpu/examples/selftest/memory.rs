//! Checks of the kinds of memory, in one process.

use std::os::fd::AsFd;

use campanile_gpu::{Coherence, Memory, Residency, Stream};

use crate::Outcome::{NotRun, Passed};
use crate::arguments::{Copy16, DONE, Patience, PutSignal, Wait};
use crate::kernels::{words, zeroed};
use crate::{Bench, Outcome, PATIENCE, Result, ensure, pattern};

fn round_trip(stream: &Stream, memory: &impl Memory, seed: u8) -> Result<()> {
    let sent = pattern(memory.bytes(), seed);
    stream.upload(memory, 0, &sent)?;
    let mut found = vec![0; sent.len()];
    stream.download(memory, 0, &mut found)?;
    ensure(found == sent, || "other bytes came back".to_owned())
}

pub fn plain(bench: &Bench) -> Result<Outcome> {
    let stream = bench.device.stream()?;
    let memory = bench.device.allocate(12_345, Coherence::Coarse)?;
    round_trip(&stream, &memory, 3)?;
    // SAFETY: the download waits.
    unsafe { stream.fill(&memory, 0xa5)? };
    let mut found = vec![0; 12_345];
    stream.download(&memory, 0, &mut found)?;
    ensure(found.iter().all(|byte| *byte == 0xa5), || "the fill left bytes out".to_owned())?;
    ensure(stream.upload(&memory, 12_340, &[0; 6]).is_err(), || "a copy over the end was taken".to_owned())?;
    let empty = bench.device.allocate(0, Coherence::Coarse)?;
    round_trip(&stream, &empty, 3)?;
    // SAFETY: nothing is filled.
    unsafe { stream.fill(&empty, 0xa5)? };
    let error = bench.device.allocate(1 << 60, Coherence::Coarse).err().ok_or("2^60 bytes were given")?;
    Ok(Passed(format!("2^60 bytes: {error}")))
}

pub fn coherence(bench: &Bench) -> Result<Outcome> {
    let stream = bench.device.stream()?;
    for coherence in [Coherence::Coarse, Coherence::Fine, Coherence::Uncached] {
        round_trip(&stream, &bench.device.allocate(4096, coherence)?, 4)?;
    }
    Ok(Passed("coarse, fine and uncached".to_owned()))
}

/// The same memory at two addresses.
pub fn virtual_memory(bench: &Bench) -> Result<Outcome> {
    let stream = bench.device.stream()?;
    let memory = bench.device.allocate_virtual(1_000_000, Coherence::Coarse)?;
    ensure(memory.bytes() >= 1_000_000, || format!("it has {} bytes", memory.bytes()))?;
    round_trip(&stream, &memory, 5)?;
    let fd = memory.export()?;
    let other = bench.device.import(fd.as_fd(), memory.bytes())?;
    drop(fd);
    ensure(other.address() != memory.address(), || "both lie at one address".to_owned())?;
    let sent = pattern(memory.bytes(), 6);
    stream.upload(&memory, 0, &sent)?;
    let bytes = memory.bytes();
    drop(memory);
    let mut found = vec![0; bytes];
    stream.download(&other, 0, &mut found)?;
    ensure(found == sent, || "the other mapping has other bytes".to_owned())?;
    Ok(Passed(format!("{bytes} bytes, alive in a second mapping when the first is gone")))
}

/// A kernel reads and writes memory of the host.
pub fn pinned(bench: &Bench) -> Result<Outcome> {
    let bytes = 16 * 1000;
    let (source, target) = (bench.device.allocate_host(bytes)?, bench.device.allocate_host(bytes)?);
    let sent = pattern(bytes, 7);
    // SAFETY: it has this length, and nobody else uses it yet.
    unsafe { source.as_ptr().copy_from_nonoverlapping(sent.as_ptr(), bytes) };
    let stream = bench.device.stream()?;
    let plan = bench.plan::<Copy16>("smoke_copy", 2, 128, Residency::Any)?;
    let argument = Copy16 { source: source.address(), target: target.address(), count: bytes as u64 / 16 };
    // SAFETY: both have this length; the stream is waited for before they are used again.
    unsafe { plan.launch(&stream, &argument)? };
    stream.synchronize(PATIENCE)?;
    // SAFETY: the kernel has ended.
    let found = unsafe { std::slice::from_raw_parts(target.as_ptr(), bytes) };
    ensure(found == sent, || "other bytes arrived".to_owned())?;
    Ok(Passed(format!("{bytes} bytes")))
}

/// A kernel on this device stores into virtual memory of the peer and raises a signal there, for which a kernel of the
/// peer waits.
pub fn peer(bench: &Bench) -> Result<Outcome> {
    let Some(peer) = &bench.peer else { return Ok(NotRun("there is one device".to_owned())) };
    if !bench.device.can_access(peer)? {
        return Ok(NotRun("no peer access between devices 0 and 1".to_owned()));
    }
    bench.device.enable_peer_access(peer)?;
    bench.device.enable_peer_access(peer)?;
    let there = bench.on(peer)?;
    let rows = 16 * 5000;
    let window = peer.allocate_virtual(rows + 16, Coherence::Coarse)?;
    window.allow_access(&bench.device)?;
    let (putter, waiter) = (bench.device.stream()?, there.device.stream()?);
    waiter.upload(&window, 0, &vec![0; rows + 16])?;
    let (source, finished) = (zeroed(bench, &putter, rows)?, zeroed(bench, &putter, 8)?);
    let (target, outcome) = (zeroed(&there, &waiter, rows)?, zeroed(&there, &waiter, 4)?);
    let sent = pattern(rows, 8);
    putter.upload(&source, 0, &sent)?;
    let wait = there.plan::<Wait>("smoke_wait", 1, 128, Residency::Any)?;
    let put = bench.plan::<PutSignal>("smoke_put_signal", 4, 128, Residency::Any)?;
    // SAFETY: all memory is larger than what is reached; both streams are waited for.
    unsafe {
        wait.launch(
            &waiter,
            &Wait {
                signal: window.address() + rows as u64,
                value: 1,
                patience: Patience { abort: 0, nanoseconds: PATIENCE.as_nanos() as u64 },
                window: window.address(),
                target: target.address(),
                count: rows as u64 / 16,
                outcome: outcome.address(),
            },
        )?;
        put.launch(
            &putter,
            &PutSignal {
                source: source.address(),
                target: window.address(),
                count: rows as u64 / 16,
                finished: finished.address(),
                base: 0,
                signal: window.address() + rows as u64,
                value: 1,
            },
        )?;
    }
    putter.synchronize(PATIENCE)?;
    waiter.synchronize(2 * PATIENCE)?;
    ensure(words(&waiter, &outcome, 1)? == [DONE], || "the wait ended early".to_owned())?;
    let mut found = vec![0; rows];
    waiter.download(&target, 0, &mut found)?;
    ensure(found == sent, || "other bytes arrived".to_owned())?;
    Ok(Passed(format!("{rows} bytes and a signal from device 0 to device {}", peer.ordinal())))
}
