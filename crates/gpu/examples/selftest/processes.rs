//! Memory between two processes: a window that the child writes, memory of the child that outlives it.

use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::Instant;

use campanile_gpu::{Coherence, Device, IpcHandle, Memory, Residency, VirtualMemory};
use campanile_host::channel::{Channel, Listener};

use crate::Outcome::Passed;
use crate::arguments::{Copy16, DONE, Patience, PutSignal, Wait};
use crate::kernels::{words, zeroed};
use crate::{Bench, Outcome, PATIENCE, Result, ensure, pattern};

/// Rows of the window; its signal follows.
const ROWS: usize = 16 * 4321;
const SEED: u8 = 9;

/// A child that dies with the check.
struct Killed(Child);

impl Killed {
    fn kill(&mut self) -> std::io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.kill();
    }
}

fn send(channel: &Channel, memory: &VirtualMemory) -> Result<()> {
    let bytes = (memory.bytes() as u64).to_le_bytes();
    Ok(channel.send(&bytes, Some(memory.export()?.as_fd()), Instant::now() + PATIENCE)?)
}

fn receive(channel: &Channel, device: &Device) -> Result<VirtualMemory> {
    let (bytes, fd) = channel.recv(Instant::now() + PATIENCE)?;
    let bytes = u64::from_le_bytes(bytes[..].try_into()?) as usize;
    Ok(device.import(fd.ok_or("a message without a descriptor")?.as_fd(), bytes)?)
}

pub fn processes(bench: &Bench) -> Result<Outcome> {
    let stream = bench.device.stream()?;
    let window = bench.device.allocate_virtual(ROWS + 16, Coherence::Coarse)?;
    stream.upload(&window, 0, &vec![0; ROWS + 16])?;
    let listener = Listener::bind()?;
    let theirs = bench.peer.as_ref().unwrap_or(&bench.device);
    let child = Command::new(std::env::current_exe()?)
        .args(["child", &bench.backend, &theirs.ordinal().to_string()])
        .arg(std::str::from_utf8(listener.address())?)
        .spawn()?;
    let mut child = Killed(child);
    let channel = listener.accept(Instant::now() + PATIENCE)?;

    // The child's kernel puts into the window, for which a kernel here waits.
    let target = zeroed(bench, &stream, ROWS)?;
    let outcome = zeroed(bench, &stream, 4)?;
    let wait = bench.plan::<Wait>("smoke_wait", 1, 128, Residency::Any)?;
    // SAFETY: all memory is larger than what is reached; the stream is waited for.
    unsafe {
        wait.launch(
            &stream,
            &Wait {
                signal: window.address() + ROWS as u64,
                value: 1,
                patience: Patience { abort: 0, nanoseconds: PATIENCE.as_nanos() as u64 },
                window: window.address(),
                target: target.address(),
                count: ROWS as u64 / 16,
                outcome: outcome.address(),
            },
        )?;
    }
    send(&channel, &window)?;
    stream.synchronize(2 * PATIENCE)?;
    ensure(words(&stream, &outcome, 1)? == [DONE], || "the wait ended early".to_owned())?;
    let mut found = vec![0; ROWS];
    stream.download(&target, 0, &mut found)?;
    ensure(found == pattern(ROWS, SEED), || "other bytes arrived".to_owned())?;

    // Plain memory of the child by a legacy handle, while it lives.
    let (handle, _) = channel.recv(Instant::now() + PATIENCE)?;
    let legacy = if handle.is_empty() {
        "legacy handles are refused here".to_owned()
    } else {
        let handle = IpcHandle::from_bytes(handle[..].try_into()?, ROWS);
        // SAFETY: the child keeps the memory until it is killed, below.
        let memory = unsafe { bench.device.open(&handle)? };
        stream.download(&memory, 0, &mut found)?;
        ensure(found == pattern(ROWS, SEED), || "the legacy handle names other bytes".to_owned())?;
        "legacy handle read".to_owned()
    };

    // Memory of the child, which then dies.
    let orphan = receive(&channel, &bench.device)?;
    child.kill()?;
    let copy = bench.plan::<Copy16>("smoke_copy", 2, 128, Residency::Any)?;
    let argument = Copy16 { source: orphan.address(), target: target.address(), count: ROWS as u64 / 16 };
    stream.upload(&target, 0, &vec![0; ROWS])?;
    // SAFETY: both have these bytes; the stream is waited for.
    unsafe { copy.launch(&stream, &argument)? };
    stream.synchronize(PATIENCE)?;
    stream.download(&target, 0, &mut found)?;
    ensure(found == pattern(ROWS, SEED + 1), || "memory of a dead process has other bytes".to_owned())?;
    Ok(Passed(format!(
        "put by a child on device {}, {legacy}, memory of a killed child read by a kernel",
        theirs.ordinal()
    )))
}

/// The other side of [`processes`]; ends when it is killed, or when the parent is gone.
pub fn child(backend: &str, ordinal: &str, address: &str) -> Result<()> {
    let channel = Channel::connect(address.as_bytes(), Instant::now() + PATIENCE)?;
    let bench = Bench::open(backend, ordinal.parse()?)?;
    let stream = bench.device.stream()?;
    let window = receive(&channel, &bench.device)?;
    let (source, finished) = (zeroed(&bench, &stream, ROWS)?, zeroed(&bench, &stream, 8)?);
    stream.upload(&source, 0, &pattern(ROWS, SEED))?;
    let put = bench.plan::<PutSignal>("smoke_put_signal", 4, 128, Residency::Any)?;
    // SAFETY: all memory is larger than what is reached; the stream is waited for.
    unsafe {
        put.launch(
            &stream,
            &PutSignal {
                source: source.address(),
                target: window.address(),
                count: ROWS as u64 / 16,
                finished: finished.address(),
                base: 0,
                signal: window.address() + ROWS as u64,
                value: 1,
            },
        )?;
    }
    stream.synchronize(PATIENCE)?;

    let handle = IpcHandle::new(&source).map(|handle| handle.to_bytes().to_vec()).unwrap_or_default();
    channel.send(&handle, None, Instant::now() + PATIENCE)?;

    let own = bench.device.allocate_virtual(ROWS, Coherence::Coarse)?;
    stream.upload(&own, 0, &pattern(ROWS, SEED + 1))?;
    send(&channel, &own)?;
    // Nothing comes: this waits for the end.
    let _ = channel.recv(Instant::now() + 2 * PATIENCE);
    Ok(())
}
