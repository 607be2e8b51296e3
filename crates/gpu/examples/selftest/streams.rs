//! Checks of streams, events, words and graphs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use campanile_gpu::{Coherence, Residency};

use crate::Outcome::{NotRun, Passed};
use crate::arguments::Copy16;
use crate::kernels::zeroed;
use crate::{Bench, Outcome, PATIENCE, Result, ensure, pattern};

/// One stream waits for another through an event, held open by a word of pinned memory until the host lets go.
pub fn events(bench: &Bench) -> Result<Outcome> {
    let (first, second) = (bench.device.stream()?, bench.device.stream()?);
    let gate = bench.device.allocate_host(8)?;
    let memory = zeroed(bench, &first, 4096)?;
    let (start, middle, end) = (bench.device.event()?, bench.device.event()?, bench.device.event()?);
    start.record(&first)?;
    // SAFETY: gate and memory live until both streams have been waited for.
    unsafe {
        first.wait_value(gate.address(), 1)?;
        first.fill(&memory, 1)?;
        middle.record(&first)?;
        second.wait_event(&middle)?;
        second.fill(&memory, 2)?;
        end.record(&second)?;
    }
    let early = end.synchronize(Duration::from_millis(20));
    // SAFETY: pinned memory, aligned and alive.
    unsafe { AtomicU64::from_ptr(gate.as_ptr().cast()) }.store(1, Ordering::Release);
    end.synchronize(PATIENCE)?;
    ensure(early.is_err(), || "the second stream did not wait".to_owned())?;
    let mut found = vec![0; 4096];
    second.download(&memory, 0, &mut found)?;
    ensure(found.iter().all(|byte| *byte == 2), || "the fills were done in another order".to_owned())?;
    Ok(Passed(format!("{:.1?} between the first and the last", end.since(&start)?)))
}

/// Streams write words, and wait for them, in memory of the device.
pub fn words(bench: &Bench) -> Result<Outcome> {
    let (writer, waiter) = (bench.device.stream()?, bench.device.stream()?);
    let word = bench.device.allocate(8, Coherence::Uncached)?;
    // All 64 bits are compared, and the upper 32 count for more.
    let old: u64 = (1 << 32) - 2;
    writer.upload(&word, 0, &old.to_ne_bytes())?;
    let seen = zeroed(bench, &writer, 8)?;
    // SAFETY: both words live until both streams have been waited for.
    unsafe {
        waiter.wait_value(word.address(), old + 3)?;
        waiter.copy(seen.address(), word.address(), 8)?;
    }
    let early = waiter.synchronize(Duration::from_millis(20));
    // SAFETY: as above.
    unsafe { writer.write_value(word.address(), old + 5)? };
    writer.synchronize(PATIENCE)?;
    waiter.synchronize(PATIENCE)?;
    ensure(early.is_err(), || "the stream did not wait".to_owned())?;
    let mut found = [0; 8];
    writer.download(&seen, 0, &mut found)?;
    ensure(u64::from_ne_bytes(found) == old + 5, || format!("the word was {found:?}"))?;
    Ok(Passed("a wait across 2^32".to_owned()))
}

/// Captured work runs at each launch, on the input of that launch.
pub fn graph(bench: &Bench) -> Result<Outcome> {
    let (stream, side) = (bench.device.stream()?, bench.device.stream()?);
    let bytes = 16 * 777;
    let [source, middle, target] = [(); 3].map(|()| zeroed(bench, &stream, bytes));
    let (source, middle, target) = (source?, middle?, target?);
    let word = zeroed(bench, &stream, 8)?;
    let plan = bench.plan::<Copy16>("smoke_copy", 2, 128, Residency::Any)?;
    let (fork, join) = (bench.device.event()?, bench.device.event()?);
    let count = bytes as u64 / 16;
    // A fork and a join: the kernel on a second stream is a part of the graph.
    let graph = stream.capture(|stream| {
        // SAFETY: all memory lives until the launches below have been waited for.
        unsafe {
            plan.launch(stream, &Copy16 { source: source.address(), target: middle.address(), count })?;
            fork.record(stream)?;
            side.wait_event(&fork)?;
            plan.launch(&side, &Copy16 { source: middle.address(), target: target.address(), count })?;
            join.record(&side)?;
            stream.wait_event(&join)?;
            stream.write_value(word.address(), 7)
        }
    })?;
    let mut found = vec![0; bytes];
    stream.download(&target, 0, &mut found)?;
    ensure(found.iter().all(|byte| *byte == 0), || "the capture ran".to_owned())?;
    let replays = 20;
    for replay in 1..=replays {
        let sent = pattern(bytes, replay);
        stream.upload(&source, 0, &sent)?;
        // SAFETY: as above.
        unsafe { graph.launch(&stream)? };
        stream.synchronize(PATIENCE)?;
        stream.download(&target, 0, &mut found)?;
        ensure(found == sent, || format!("replay {replay}: other bytes arrived"))?;
    }
    let mut seen = [0; 8];
    stream.download(&word, 0, &mut seen)?;
    ensure(u64::from_ne_bytes(seen) == 7, || format!("the captured word is {seen:?}"))?;
    // What failed in a capture ends it, and the stream goes on.
    let failed = stream.capture(|stream| stream.done().map(drop));
    if failed.is_ok() {
        return Ok(NotRun("this library lets a capturing stream be asked".to_owned()));
    }
    stream.upload(&source, 0, &found)?;
    Ok(Passed(format!("{replays} replays of two kernels on two streams and a word")))
}
