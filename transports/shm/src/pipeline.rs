//! The pipeline of a queue whose rank has a device: operations that an engine was given and has not finished.
//!
//! An engine does what it is given in order, by itself; the CPU executes an operation on host memory at once. To keep
//! the queue's order, the CPU waits for its turn until the engine has finished all before, and the engine is given
//! more whatever it has still to do. So an operation is complete when all before it are, every signal is strong and a
//! fence is free, whichever memories a list names.
//!
//! The engine says how far it is by a mark: `2 × position` for all slots before `position`, and one more where of a put
//! to device memory with a signal on the host the put is done.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use campanile_core::Op;
use campanile_core::doorbell::{CommandRing, Poisoned, RingExecutor, Slot};

use crate::device::Engine;
use crate::operations::{Operations, Side, Status};

/// See the [module](self). Everything but `failure` belongs to the executor of the ring, by which it is ordered.
pub(crate) struct Pipeline {
    engine: Box<dyn Engine>,
    /// Position of the next slot to start.
    started: AtomicU64,
    /// Whether of the slot at `started` the put was started, and the signal waits for it.
    half: AtomicBool,
    /// What the device failed with, in words.
    failure: OnceLock<String>,
}

/// How a step ended.
enum Step {
    /// The CPU has done it.
    Done,
    /// The engine was given it.
    Started,
    /// It has to wait for the engine.
    Blocked,
}

impl Pipeline {
    pub(crate) fn new(engine: Box<dyn Engine>) -> Self {
        let (started, half) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { engine, started, half, failure: OnceLock::new() }
    }

    /// What the device failed with, if it has.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Completes what is finished and starts what is rung; the number of operations that were completed.
    pub(crate) fn drive(&self, ring: &CommandRing<Op>, operations: &Operations) -> Result<usize, Poisoned> {
        let Some(mut executor) = ring.executor() else { return Ok(0) };
        let mut done = 0;
        match self.run(&mut executor, operations, &mut done) {
            Ok(()) => Ok(done),
            Err(Failed::Ring(poisoned)) => Err(poisoned),
            Err(Failed::Operation(status)) => Err(executor.fail(status as u32)),
        }
    }

    fn run(
        &self,
        executor: &mut RingExecutor<'_, Op>,
        operations: &Operations,
        done: &mut usize,
    ) -> Result<(), Failed> {
        let mut pending = executor.pending()?;
        let Some(Slot { position: first, .. }) = pending.clone().next() else { return Ok(()) };
        let started = self.started.load(Ordering::Relaxed);
        let is_half = self.half.load(Ordering::Relaxed);
        let ahead = started.wrapping_sub(first) as usize;

        // What the engine has finished.
        let mut finished = 0;
        let mut half_is_done = false;
        if ahead > 0 || is_half {
            let reached = self.engine.reached().map_err(|text| self.failed(text))?;
            let beyond = reached.wrapping_sub(first.wrapping_mul(2)) as i64;
            finished = (beyond / 2).clamp(0, ahead as i64) as usize;
            half_is_done = is_half && finished == ahead && beyond == 2 * ahead as i64 + 1;
        }
        for Slot { position, .. } in pending.by_ref().take(finished) {
            if let Some(signal) = executor.command(position)?.as_ref().and_then(Op::signal)
                && let Ok(pin) = operations.remote(signal.target.region.0)
            {
                operations.notify(pin.owner);
            }
        }
        executor.complete(finished as u32)?;
        *done += finished;

        // What can be started.
        let mut waiting = ahead - finished;
        let mut next = started;
        let mut is_marked = true;
        for Slot { position, index } in pending.skip(waiting) {
            let step = match executor.command(position)? {
                _ if is_half && position == started => {
                    if half_is_done {
                        self.second_half(executor, position, operations)?
                    } else {
                        Step::Blocked
                    }
                }
                None if waiting == 0 => Step::Done,
                None => Step::Started,
                Some(op) => match self.step(&op, index, position, waiting > 0, operations) {
                    // What is before it goes on; then its own position is named.
                    Err(Failed::Operation(Status::LocalGone | Status::RemoteGone)) if waiting > 0 => Step::Blocked,
                    step => step?,
                },
            };
            match step {
                Step::Done => {
                    executor.complete(1)?;
                    *done += 1;
                }
                Step::Started => {
                    waiting += 1;
                    is_marked = false;
                }
                Step::Blocked => break,
            }
            next = position.wrapping_add(1);
        }
        self.started.store(next, Ordering::Relaxed);
        if !is_marked && !self.half.load(Ordering::Relaxed) {
            self.mark(next.wrapping_mul(2))?;
        }
        Ok(())
    }

    /// Does, or starts, an operation behind others that the engine has not finished if `behind`.
    fn step(
        &self,
        op: &Op,
        index: usize,
        position: u64,
        behind: bool,
        operations: &Operations,
    ) -> Result<Step, Failed> {
        match operations.sides(op)? {
            (Side::Nobody, Side::Nobody) => Ok(if behind { Step::Started } else { Step::Done }),
            (Side::Host, _) | (Side::Nobody, Side::Host) if behind => Ok(Step::Blocked),
            (Side::Host, Side::Device) => {
                operations.move_bytes(op)?;
                self.store(op, operations)?;
                Ok(Step::Started)
            }
            (Side::Host | Side::Nobody, Side::Nobody | Side::Host) => {
                operations.execute(op)?;
                Ok(Step::Done)
            }
            (Side::Device, Side::Host) => {
                self.copy(op, index, operations)?;
                self.half.store(true, Ordering::Relaxed);
                self.mark(position.wrapping_mul(2).wrapping_add(1))?;
                Ok(Step::Blocked)
            }
            (Side::Device, Side::Nobody) => {
                self.copy(op, index, operations)?;
                Ok(Step::Started)
            }
            (Side::Device, Side::Device) => {
                self.copy(op, index, operations)?;
                self.store(op, operations)?;
                Ok(Step::Started)
            }
            (Side::Nobody, Side::Device) => {
                self.store(op, operations)?;
                Ok(Step::Started)
            }
        }
    }

    /// The signal on the host of a put to device memory that is done, unless it was cancelled since.
    fn second_half(
        &self,
        executor: &RingExecutor<'_, Op>,
        position: u64,
        operations: &Operations,
    ) -> Result<Step, Failed> {
        self.half.store(false, Ordering::Relaxed);
        if let Some(signal) = executor.command(position)?.as_ref().and_then(Op::signal) {
            operations.signal(signal)?;
        }
        Ok(Step::Done)
    }

    /// Starts the copy of an operation.
    fn copy(&self, op: &Op, index: usize, operations: &Operations) -> Result<(), Failed> {
        let (local, remote, bytes) = match *op {
            Op::Put { source, target, bytes } | Op::PutSignal { source, target, bytes, .. } => (source, target, bytes),
            Op::Get { source, target, bytes } => (target, source, bytes),
            Op::PutInline { data, target } => {
                let to = operations.remote(target.region.0)?;
                // SAFETY: the range was checked when it was posted. Dropping the region takes its key back, which waits for
                // the pin, then settles the engines: the memory is mapped until then.
                let copied = unsafe { self.engine.copy_inline(to.at(target.offset), data.as_slice(), index) };
                return copied.map_err(|text| self.failed(text));
            }
            _ => return Ok(()),
        };
        let (here, there) = (operations.local(local.region.0)?, operations.remote(remote.region.0)?);
        let (here, there) = (here.at(local.offset), there.at(remote.offset));
        let (target, source) = if matches!(op, Op::Get { .. }) { (here, there) } else { (there, here) };
        // SAFETY: as above, of both regions, whose pins live to the end of the block.
        unsafe { self.engine.copy(target, source, bytes as usize) }.map_err(|text| self.failed(text))
    }

    /// Starts the store of an operation's signal.
    fn store(&self, op: &Op, operations: &Operations) -> Result<(), Failed> {
        let Some(signal) = op.signal() else { return Ok(()) };
        let pin = operations.remote(signal.target.region.0)?;
        // SAFETY: as in `copy`; a word is aligned.
        let stored = unsafe { self.engine.store(pin.at(signal.target.offset), signal.value) };
        stored.map_err(|text| self.failed(text))
    }

    fn mark(&self, mark: u64) -> Result<(), Failed> {
        self.engine.mark(mark).map_err(|text| self.failed(text))
    }

    fn failed(&self, text: String) -> Failed {
        self.failure.get_or_init(|| text);
        Failed::Operation(Status::Device)
    }
}

/// Why a drive ended early.
enum Failed {
    /// The ring is poisoned.
    Ring(Poisoned),
    /// The next operation failed.
    Operation(Status),
}

impl From<Poisoned> for Failed {
    fn from(poisoned: Poisoned) -> Self {
        Self::Ring(poisoned)
    }
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        Self::Operation(status)
    }
}
