//! Checks of compilation, launches and what kernels can do.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use campanile_gpu::{
    Cache, Coherence, Compile, CompileError, DeviceMemory, Grid, Memory, Plan, PlanError, Residency, Source, Stream,
};

use crate::Outcome::Passed;
use crate::arguments::{ABORTED, Barrier, Copy16, DONE, Lanes, Patience, Pull, PutSignal, TIMEOUT, Wait, Words};
use crate::{Bench, Outcome, PATIENCE, Result, ensure, pattern};

/// Zeroed memory.
pub fn zeroed(bench: &Bench, stream: &Stream, bytes: usize) -> Result<DeviceMemory> {
    let memory = bench.device.allocate(bytes, Coherence::Coarse)?;
    stream.upload(&memory, 0, &vec![0; bytes])?;
    Ok(memory)
}

pub fn words(stream: &Stream, memory: &impl Memory, count: usize) -> Result<Vec<u32>> {
    let mut bytes = vec![0; count * 4];
    stream.download(memory, 0, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect())
}

pub fn devices(bench: &Bench) -> Result<Outcome> {
    let mut lines = Vec::new();
    for device in bench.device.gpu().devices()? {
        let (free, total) = device.memory_info()?;
        lines.push(format!(
            "{} {} ({}) at {}, {} multiprocessors, wave {}, {} of {} MiB free",
            device.ordinal(),
            device.name()?,
            device.target()?,
            device.pci_address()?,
            device.multiprocessors(),
            device.wave(),
            free >> 20,
            total >> 20,
        ));
    }
    Ok(Passed(lines.join("; ")))
}

/// A source that does not compile gives the compiler's log; the second compilation comes from the cache.
pub fn compile(bench: &Bench) -> Result<Outcome> {
    let wrong = Source::new("wrong.cpp", "#include \"portable.h\"\nthis is no C++;\n");
    match bench.device.compile(&wrong, &Compile::default(), &Cache::none()) {
        Err(CompileError::Source { log, .. }) => {
            ensure(log.contains("error"), || format!("the log does not say what is wrong: {log}"))?;
        }
        other => return Err(format!("a wrong source gave {other:?}").into()),
    }
    let start = Instant::now();
    let code = Compile::default().image(&bench.device, &Source::smoke(), &Cache::none())?;
    let compiled = start.elapsed();
    let start = Instant::now();
    Compile::default().image(&bench.device, &Source::smoke(), &bench.cache)?;
    let cached = start.elapsed();
    let compiler = bench.device.gpu().calls().compiler()?;
    Ok(Passed(format!("{compiler}, {} bytes of code in {compiled:.1?}, from the cache in {cached:.1?}", code.len())))
}

/// Ids, votes, shuffles and dynamic shared memory, against what they must be.
pub fn lanes(bench: &Bench) -> Result<Outcome> {
    let wave = bench.device.wave();
    let (blocks, threads) = (3, 2 * wave);
    let stream = bench.device.stream()?;
    let memory = zeroed(bench, &stream, (blocks * threads) as usize * 16)?;
    let grid = Grid { blocks, threads, shared_bytes: threads * 4 };
    let plan = Plan::<Lanes>::new(&bench.module, "smoke_lanes", grid, Residency::Any)?;
    // SAFETY: four words a thread; the download waits.
    unsafe { plan.launch(&stream, &Lanes { words: memory.address() })? };
    stream.synchronize(PATIENCE)?;
    let found = words(&stream, &memory, (blocks * threads) as usize * 4)?;
    for (index, found) in found.chunks_exact(4).enumerate() {
        let thread = index as u32 % threads;
        let wanted = [threads - 1 - thread, ((wave / 2) << 8) | 1, thread ^ 1, wave];
        ensure(found == wanted, || format!("thread {index}: {found:?}, not {wanted:?}"))?;
    }
    Ok(Passed(format!("{blocks} blocks of {threads} threads")))
}

/// Atomics at both scopes and widths, by many threads at once.
pub fn atomics(bench: &Bench) -> Result<Outcome> {
    let (blocks, threads) = (4u32, 128u32);
    let all = u64::from(blocks * threads);
    let stream = bench.device.stream()?;
    let array = |width: usize| zeroed(bench, &stream, (8 + all as usize) * width);
    let arrays = [(4, array(4)?), (8, array(8)?), (4, array(4)?), (8, array(8)?)];
    let [(_, device32), (_, device64), (_, system32), (_, system64)] = &arrays;
    let argument = Words {
        device32: device32.address(),
        device64: device64.address(),
        system32: system32.address(),
        system64: system64.address(),
    };
    let plan = bench.plan::<Words>("smoke_words", blocks, threads, Residency::Any)?;
    // SAFETY: eight words and one a thread each; the stream is waited for.
    unsafe { plan.launch(&stream, &argument)? };
    stream.synchronize(PATIENCE)?;
    for (width, array) in arrays {
        let mut bytes = vec![0; array.bytes()];
        stream.download(&array, 0, &mut bytes)?;
        let word = |index: usize| {
            let mut word = [0; 8];
            word[..width].copy_from_slice(&bytes[index * width..][..width]);
            u64::from_le_bytes(word)
        };
        let found = [word(0), word(1), word(2), word(3) + word(4), word(5)];
        let wanted = [all, 2 * all, all, all * (all + 1) / 2, 0];
        ensure(found == wanted, || format!("words of {width} bytes: {found:?}, not {wanted:?}"))?;
        ensure((0..all).all(|i| word(8 + i as usize) == i + 2), || "a thread's own word is another".to_owned())?;
    }
    Ok(Passed(format!("{all} threads on words of 4 and 8 bytes, at device and system scope")))
}

pub fn copy(bench: &Bench) -> Result<Outcome> {
    let stream = bench.device.stream()?;
    // No multiple of anything but the 16 bytes.
    let bytes = 16 * 65_537;
    let (source, target) = (zeroed(bench, &stream, bytes)?, zeroed(bench, &stream, bytes)?);
    let sent = pattern(bytes, 1);
    stream.upload(&source, 0, &sent)?;
    let plan = bench.plan::<Copy16>("smoke_copy", 8, 256, Residency::Any)?;
    let argument = Copy16 { source: source.address(), target: target.address(), count: bytes as u64 / 16 };
    // SAFETY: both have `count` times 16 bytes; the download waits.
    unsafe { plan.launch(&stream, &argument)? };
    stream.synchronize(PATIENCE)?;
    let mut found = vec![0; bytes];
    stream.download(&target, 0, &mut found)?;
    ensure(found == sent, || "other bytes arrived".to_owned())?;
    Ok(Passed(format!("{bytes} bytes")))
}

/// A host struct of another size than the kernel's is refused.
pub fn argument_size(bench: &Bench) -> Result<Outcome> {
    match bench.plan::<PutSignal>("smoke_copy", 1, 64, Residency::Any).map_err(|error| error.downcast::<PlanError>()) {
        Err(Ok(error)) if matches!(*error, PlanError::Argument { .. }) => Ok(Passed(error.to_string())),
        Ok(_) => Ok(Outcome::NotRun("this driver does not tell the size of arguments".to_owned())),
        Err(other) => Err(format!("another error: {other:?}").into()),
    }
}

/// More blocks than fit are refused where they wait for each other, and cut where they may be.
pub fn residency(bench: &Bench) -> Result<Outcome> {
    let blocks = 100_000;
    bench.plan::<Barrier>("smoke_barrier", blocks, 256, Residency::Any)?;
    let clamped = bench.plan::<Barrier>("smoke_barrier", blocks, 256, Residency::Clamped)?.grid().blocks;
    ensure((1..blocks).contains(&clamped), || format!("clamped to {clamped}"))?;
    let together = bench.plan::<Barrier>("smoke_barrier", clamped + 1, 256, Residency::Together);
    let error = together.err().ok_or("one block too many was taken")?;
    bench.plan::<Barrier>("smoke_barrier", clamped, 256, Residency::Together)?;
    let odd = bench.plan::<Barrier>("smoke_barrier", 1, bench.device.wave() + 1, Residency::Any);
    ensure(odd.is_err(), || "a block of a wave and a thread was taken".to_owned())?;
    Ok(Passed(error.to_string()))
}

/// As many blocks as fit meet many times.
pub fn barrier(bench: &Bench) -> Result<Outcome> {
    let rounds = if bench.device.name()?.contains("emulated") { 10 } else { 1000 };
    let plan = bench.plan::<Barrier>("smoke_barrier", 100_000, 128, Residency::Clamped)?;
    let blocks = plan.grid().blocks;
    let stream = bench.device.stream()?;
    let counter = zeroed(bench, &stream, 8)?;
    let [cells, errors, outcome] = [(); 3].map(|()| zeroed(bench, &stream, blocks as usize * 4));
    let (cells, errors, outcome) = (cells?, errors?, outcome?);
    for launch in 0..2 {
        let argument = Barrier {
            counter: counter.address(),
            base: launch * 2 * u64::from(rounds) * u64::from(blocks),
            patience: Patience { abort: 0, nanoseconds: PATIENCE.as_nanos() as u64 },
            cells: cells.address(),
            errors: errors.address(),
            rounds,
            outcome: outcome.address(),
        };
        // SAFETY: a word a block each; the stream is waited for below.
        unsafe { plan.launch(&stream, &argument)? };
    }
    stream.synchronize(2 * PATIENCE)?;
    ensure(words(&stream, &outcome, blocks as usize)?.iter().all(|word| *word == DONE), || {
        "a wait ended early".into()
    })?;
    let wrong: u32 = words(&stream, &errors, blocks as usize)?.iter().sum();
    ensure(wrong == 0, || format!("{wrong} waves saw a block that had not arrived"))?;
    Ok(Passed(format!("{blocks} blocks, 2 launches of {rounds} rounds")))
}

/// Rows and a signal from one stream to a kernel on another that is already waiting.
pub fn put_signal(bench: &Bench) -> Result<Outcome> {
    let (putter, waiter) = (bench.device.stream()?, bench.device.stream()?);
    let bytes = 16 * 3001;
    let [source, window, target] = [(); 3].map(|()| zeroed(bench, &putter, bytes));
    let (source, window, target) = (source?, window?, target?);
    let (signal, finished) = (zeroed(bench, &putter, 8)?, zeroed(bench, &putter, 8)?);
    let outcome = zeroed(bench, &putter, 4 * 2)?;
    let put = bench.plan::<PutSignal>("smoke_put_signal", 3, 128, Residency::Any)?;
    let wait = bench.plan::<Wait>("smoke_wait", 2, 128, Residency::Any)?;
    let rounds = 5;
    for round in 1..=rounds {
        let sent = pattern(bytes, round as u8);
        putter.upload(&source, 0, &sent)?;
        let count = bytes as u64 / 16;
        // SAFETY: all memory is larger than what is reached; both streams are waited for before it is used again.
        unsafe {
            wait.launch(
                &waiter,
                &Wait {
                    signal: signal.address(),
                    value: round,
                    patience: Patience { abort: 0, nanoseconds: PATIENCE.as_nanos() as u64 },
                    window: window.address(),
                    target: target.address(),
                    count,
                    outcome: outcome.address(),
                },
            )?;
            put.launch(
                &putter,
                &PutSignal {
                    source: source.address(),
                    target: window.address(),
                    count,
                    finished: finished.address(),
                    base: (round - 1) * 3,
                    signal: signal.address(),
                    value: round,
                },
            )?;
        }
        putter.synchronize(PATIENCE)?;
        waiter.synchronize(2 * PATIENCE)?;
        ensure(words(&putter, &outcome, 2)? == [DONE; 2], || format!("round {round}: the wait ended early"))?;
        let mut found = vec![0; bytes];
        putter.download(&target, 0, &mut found)?;
        ensure(found == sent, || format!("round {round}: other bytes arrived"))?;
    }
    Ok(Passed(format!("{rounds} rounds of {bytes} bytes")))
}

/// Eight windows, every other one on the peer where it can be reached, summed with several loads in flight.
pub fn pull(bench: &Bench) -> Result<Outcome> {
    let stream = bench.device.stream()?;
    let bytes = 16 * 1234;
    let peer = match &bench.peer {
        Some(peer) if bench.device.can_access(peer)? => peer,
        _ => &bench.device,
    };
    let mut windows = Vec::new();
    let mut wanted = vec![0u32; bytes / 4];
    for index in 0..8u8 {
        let owner = if index % 2 == 0 { &bench.device } else { peer };
        let window = owner.allocate_virtual(bytes, Coherence::Coarse)?;
        window.allow_access(&bench.device)?;
        let sent = pattern(bytes, index);
        stream.upload(&window, 0, &sent)?;
        for (sum, word) in wanted.iter_mut().zip(sent.chunks_exact(4)) {
            *sum = sum.wrapping_add(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
        windows.push(window);
    }
    let target = zeroed(bench, &stream, bytes)?;
    let argument = Pull {
        windows: std::array::from_fn(|index| windows[index].address()),
        target: target.address(),
        count: bytes as u64 / 16,
    };
    let plan = bench.plan::<Pull>("smoke_pull", 3, 128, Residency::Any)?;
    // SAFETY: all memory has these bytes; the stream is waited for.
    unsafe { plan.launch(&stream, &argument)? };
    stream.synchronize(PATIENCE)?;
    ensure(words(&stream, &target, bytes / 4)? == wanted, || "another sum".to_owned())?;
    Ok(Passed(format!("8 windows of {bytes} bytes, 4 of them on device {}", peer.ordinal())))
}

/// Launches a wait that nobody fulfils, on 2 blocks; does `meanwhile`, and gives the outcome.
fn wait_in_vain(
    bench: &Bench,
    patience: Duration,
    abort: u64,
    meanwhile: impl FnOnce(&Stream) -> Result<()>,
) -> Result<Vec<u32>> {
    let stream = bench.device.stream()?;
    let (signal, outcome) = (zeroed(bench, &stream, 8)?, zeroed(bench, &stream, 8)?);
    let wait = bench.plan::<Wait>("smoke_wait", 2, 64, Residency::Any)?;
    let argument = Wait {
        signal: signal.address(),
        value: 1,
        patience: Patience { abort, nanoseconds: patience.as_nanos() as u64 },
        window: 0,
        target: 0,
        count: 0,
        outcome: outcome.address(),
    };
    // SAFETY: nothing is copied; the signal lives until the stream has been waited for.
    unsafe { wait.launch(&stream, &argument)? };
    meanwhile(&stream)?;
    stream.synchronize(2 * PATIENCE)?;
    words(&stream, &outcome, 2)
}

pub fn deadline(bench: &Bench) -> Result<Outcome> {
    let start = Instant::now();
    let outcome = wait_in_vain(bench, Duration::from_millis(20), 0, |_| Ok(()))?;
    ensure(outcome == [TIMEOUT; 2], || format!("outcomes {outcome:?}"))?;
    Ok(Passed(format!("a wait of 20 ms ended after {:.1?}", start.elapsed())))
}

/// The host frees a running kernel through a word in pinned memory.
pub fn abort(bench: &Bench) -> Result<Outcome> {
    let word = bench.device.allocate_host(4)?;
    // SAFETY: pinned memory, aligned, alive to the end of this function.
    let abort = unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) };
    let outcome = wait_in_vain(bench, 2 * PATIENCE, word.address(), |stream| {
        let early = stream.synchronize(Duration::from_millis(50));
        abort.store(1, Ordering::Release);
        ensure(early.is_err(), || "the kernel did not wait".to_owned())
    })?;
    ensure(outcome == [ABORTED; 2], || format!("outcomes {outcome:?}"))?;
    Ok(Passed("a running kernel ended".to_owned()))
}
