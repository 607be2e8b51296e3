//! Streams and events of the emulator: a stream is a thread that does its tasks in order.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use campanile_host::wait::{SpinPolicy, Step, Waiter};

use super::module::Kernel;
use super::{CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, NOT_READY, OUT_OF_MEMORY, failed};
use crate::CallError;
use crate::calls::{Address, Grid, Result};

/// One thing that a stream does. Addresses are valid when it does it: the contract of the table.
#[derive(Clone, Debug)]
pub(super) enum Task {
    Copy { target: Address, source: Address, bytes: usize },
    Set { target: Address, value: u8, bytes: usize },
    Write { address: Address, value: u64 },
    Wait { address: Address, value: u64 },
    Kernel { kernel: Arc<Kernel>, grid: Grid, argument: Arc<[u128]> },
    Record { event: Arc<Event>, record: u64 },
    WaitEvent { event: Arc<Event>, record: u64 },
    Graph(Arc<Vec<Task>>),
}

/// What is being captured; the streams that take part share it.
#[derive(Debug, Default)]
struct Capture {
    tasks: Mutex<Vec<Task>>,
    ended: AtomicBool,
}

/// What a stream and its thread share.
#[derive(Debug)]
struct Shared {
    /// Tasks done.
    done: Mutex<u64>,
    moved: Condvar,
    /// The stream was destroyed. Its work is still done, but for what stands behind a word that has not come.
    destroyed: AtomicBool,
    /// Such a word did not come.
    cancelled: AtomicBool,
    fault: Arc<OnceLock<CallError>>,
}

/// A stream. Its thread ends when it is dropped, after the tasks that it was given.
#[derive(Debug)]
pub(super) struct Stream {
    device: u32,
    tasks: Sender<Task>,
    given: AtomicU64,
    shared: Arc<Shared>,
    capture: Mutex<Option<Arc<Capture>>>,
}

impl Stream {
    pub(super) fn new(device: u32, fault: Arc<OnceLock<CallError>>) -> Result<Self> {
        let (tasks, receiver) = mpsc::channel();
        let shared = Arc::new(Shared {
            done: Mutex::new(0),
            moved: Condvar::new(),
            destroyed: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            fault,
        });
        let theirs = shared.clone();
        std::thread::Builder::new()
            .name(format!("gpu{device}-stream"))
            .spawn(move || theirs.run(&receiver))
            .map_err(|error| failed("stream_create", format!("device {device}"), OUT_OF_MEMORY, error.to_string()))?;
        Ok(Self { device, tasks, given: AtomicU64::new(0), shared, capture: Mutex::new(None) })
    }

    pub(super) fn device(&self) -> u32 {
        self.device
    }

    /// The capture that it takes part in.
    fn capture(&self) -> Option<Arc<Capture>> {
        let mut capture = lock(&self.capture);
        if capture.as_ref().is_some_and(|capture| capture.ended.load(Ordering::Relaxed)) {
            *capture = None;
        }
        capture.clone()
    }

    /// Does the task after the earlier ones, or captures it.
    pub(super) fn give(&self, task: Task) -> Result<()> {
        if let Some(capture) = self.capture() {
            lock(&capture.tasks).push(task);
            return Ok(());
        }
        self.shared.check()?;
        self.given.fetch_add(1, Ordering::Relaxed);
        // The thread ends only after the sender is gone.
        let _ = self.tasks.send(task);
        Ok(())
    }

    pub(super) fn record(&self, event: &Arc<Event>) -> Result<()> {
        let record = event.next_record(self.capture());
        self.give(Task::Record { event: event.clone(), record })
    }

    pub(super) fn wait_for(&self, event: &Arc<Event>) -> Result<()> {
        let (record, captured) = event.last_record();
        if let Some(captured) = captured
            && self.capture().is_none()
        {
            // A stream that waits for a captured event joins its capture.
            *lock(&self.capture) = Some(captured);
        }
        self.give(Task::WaitEvent { event: event.clone(), record })
    }

    fn refuse_capturing(&self, call: &'static str) -> Result<()> {
        match self.capture() {
            None => Ok(()),
            Some(_) => Err(failed(call, String::new(), CAPTURE_UNSUPPORTED, "the stream is being captured")),
        }
    }

    pub(super) fn synchronize(&self) -> Result<()> {
        self.refuse_capturing("stream_synchronize")?;
        self.drain();
        self.shared.check()
    }

    /// Waits for all that it was given.
    pub(super) fn drain(&self) {
        let given = self.given.load(Ordering::Relaxed);
        let mut done = lock(&self.shared.done);
        while *done < given {
            done = self.shared.moved.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether it has done all that it was given.
    pub(super) fn is_idle(&self) -> bool {
        *lock(&self.shared.done) == self.given.load(Ordering::Relaxed)
    }

    /// No more will be given: what stands behind a word that has not come is not done.
    pub(super) fn destroy(&self) {
        self.shared.destroyed.store(true, Ordering::Relaxed);
    }

    pub(super) fn done(&self) -> Result<bool> {
        self.refuse_capturing("stream_done")?;
        let done = self.is_idle();
        if done {
            self.shared.check()?;
        }
        Ok(done)
    }

    pub(super) fn capture_begin(&self) -> Result<()> {
        self.refuse_capturing("capture_begin")?;
        *lock(&self.capture) = Some(Arc::default());
        Ok(())
    }

    pub(super) fn capture_end(&self) -> Result<Vec<Task>> {
        let Some(capture) = self.capture() else {
            return Err(failed("capture_end", String::new(), CAPTURE_INVALIDATED, "the stream is not being captured"));
        };
        capture.ended.store(true, Ordering::Relaxed);
        let tasks = std::mem::take(&mut *lock(&capture.tasks));
        Ok(tasks)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl Shared {
    fn run(&self, tasks: &Receiver<Task>) {
        while let Ok(task) = tasks.recv() {
            self.perform(&task);
            *lock(&self.done) += 1;
            self.moved.notify_all();
        }
    }

    fn check(&self) -> Result<()> {
        self.fault.get().map_or(Ok(()), |fault| Err(fault.clone()))
    }

    fn perform(&self, task: &Task) {
        // After a fault nothing runs any more; only events are recorded, so that nobody waits for ever.
        let broken = self.fault.get().is_some() || self.cancelled.load(Ordering::Relaxed);
        match task {
            Task::Record { event, record } => event.complete(*record),
            _ if broken => {}
            Task::Graph(tasks) => tasks.iter().for_each(|task| self.perform(task)),
            Task::WaitEvent { event, record } => event.wait(*record),
            Task::Wait { address, value } => {
                // SAFETY: an aligned word that lives until this is done, by the contract of the table.
                let word = unsafe { AtomicU64::from_ptr(*address as *mut u64) };
                // Plain stores of kernels and hosts raise it, so there is no event; as on GPUs, destroying the stream ends it.
                let mut waiter = Waiter::new(SpinPolicy::SHARED);
                while !has_reached(word.load(Ordering::Acquire), *value) {
                    if self.destroyed.load(Ordering::Relaxed) {
                        self.cancelled.store(true, Ordering::Relaxed);
                        break;
                    }
                    match waiter.step() {
                        Step::Spin => std::hint::spin_loop(),
                        Step::Yield => std::thread::yield_now(),
                        Step::Sleep(slice) => std::thread::sleep(slice),
                    }
                }
            }
            Task::Write { address, value } => {
                // SAFETY: as above.
                unsafe { AtomicU64::from_ptr(*address as *mut u64) }.store(*value, Ordering::Release);
            }
            Task::Copy { target, source, bytes } => {
                // SAFETY: both are mapped for this length, by the contract of the table; they may overlap.
                unsafe { ptr::copy(*source as *const u8, *target as *mut u8, *bytes) }
            }
            Task::Set { target, value, bytes } => {
                // SAFETY: mapped for this length, by the contract of the table.
                unsafe { ptr::write_bytes(*target as *mut u8, *value, *bytes) }
            }
            Task::Kernel { kernel, grid, argument } => {
                // SAFETY: the contract of the kernel holds, by the contract of the table.
                if let Err(error) = unsafe { kernel.run(*grid, argument) } {
                    let _ = self.fault.set(error);
                }
            }
        }
    }
}

/// An event: how often it was recorded, and the last record that its stream has reached.
#[derive(Debug, Default)]
pub(super) struct Event {
    state: Mutex<EventState>,
    reached: Condvar,
}

#[derive(Debug, Default)]
struct EventState {
    recorded: u64,
    done: u64,
    time: Option<Instant>,
    capture: Option<Arc<Capture>>,
}

impl Event {
    fn next_record(&self, capture: Option<Arc<Capture>>) -> u64 {
        let mut state = lock(&self.state);
        state.recorded += 1;
        state.capture = capture;
        state.recorded
    }

    fn last_record(&self) -> (u64, Option<Arc<Capture>>) {
        let state = lock(&self.state);
        (state.recorded, state.capture.clone().filter(|capture| !capture.ended.load(Ordering::Relaxed)))
    }

    fn complete(&self, record: u64) {
        let mut state = lock(&self.state);
        state.done = state.done.max(record);
        state.time = Some(Instant::now());
        self.reached.notify_all();
    }

    fn wait(&self, record: u64) {
        let mut state = lock(&self.state);
        while state.done < record {
            state = self.reached.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn synchronize(&self) {
        let (record, _) = self.last_record();
        self.wait(record);
    }

    pub(super) fn done(&self) -> bool {
        let state = lock(&self.state);
        state.done >= state.recorded
    }

    pub(super) fn since(&self, start: &Self) -> Result<f32> {
        let time = |event: &Self| {
            let state = lock(&event.state);
            state.time.filter(|_| state.done >= state.recorded)
        };
        match (time(start), time(self)) {
            (Some(start), Some(end)) if end >= start => Ok(end.duration_since(start).as_secs_f32() * 1e3),
            (Some(start), Some(end)) => Ok(-start.duration_since(end).as_secs_f32() * 1e3),
            _ => Err(failed("event_elapsed", String::new(), NOT_READY, "an event is not done")),
        }
    }
}

/// Whether a word has come to `value` as CUDA compares, on a circle, and as HIP does, not on one: what only one of them takes
/// for an end is none.
fn has_reached(word: u64, value: u64) -> bool {
    word >= value && word.wrapping_sub(value) as i64 >= 0
}

/// Nothing panics while a lock of this file is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
