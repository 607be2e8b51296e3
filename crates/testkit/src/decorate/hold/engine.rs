//! The thread that makes what is held back leave in time.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use campanile_core::{ControlError, Queue, Rank};
use campanile_host::clock::now_ns;

use super::queue::HeldQueue;

/// Between two looks at a queue below that is full or works by itself.
const SOON: Duration = Duration::from_micros(20);

/// Longest time that a waiter spends on what is held back before it sleeps.
const PUNCTUAL: Duration = Duration::from_millis(1);

/// Until the time (ns) to look again, which a queue told.
fn pause(next: u64) -> Duration {
    next.checked_sub(now_ns()).map_or(SOON, Duration::from_nanos)
}

/// The engine of one transport.
pub(super) struct Engine {
    bell: Arc<Bell>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// By which queues wake the engine.
pub(super) struct Bell {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Default)]
struct State {
    queues: Vec<Arc<HeldQueue>>,
    made: u64,
    rung: bool,
    stopped: bool,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the engine look at the queues.
    pub(super) fn ring(&self) {
        self.lock().rung = true;
        self.rung.notify_one();
    }
}

impl Engine {
    pub(super) fn start(rank: Rank) -> io::Result<Self> {
        let bell = Arc::new(Bell { state: Mutex::default(), rung: Condvar::new() });
        let of_thread = Arc::clone(&bell);
        let thread = std::thread::Builder::new().name(format!("hold {}", rank.0)).spawn(move || run(&of_thread))?;
        Ok(Self { bell, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Takes care of a queue, which `make` makes of its number, until its last handle is gone and it is empty.
    pub(super) fn add(&self, make: impl FnOnce(u64) -> HeldQueue) -> Arc<dyn Queue> {
        let mut state = self.bell.lock();
        let queue = Arc::new(make(state.made));
        state.made += 1;
        if !state.stopped {
            state.queues.push(Arc::clone(&queue));
        }
        queue
    }

    fn queues(&self) -> Vec<Arc<HeldQueue>> {
        self.bell.lock().queues.clone()
    }

    /// Lets leave in the caller's thread, which is more punctual than this engine's, until `ready`, or nothing is due within
    /// [`PUNCTUAL`].
    pub(super) fn help_until(&self, ready: impl Fn() -> bool) {
        let queues = self.queues();
        let end = now_ns() + PUNCTUAL.as_nanos() as u64;
        while !ready() && drive(&queues).is_some_and(|next| next < end) && now_ns() < end {
            std::thread::yield_now();
        }
    }

    /// Rings, and waits until everything that was posted has left and is complete. A queue that has failed holds nothing.
    pub(super) fn drain(&self, timeout: Duration) -> Result<(), ControlError> {
        let start = Instant::now();
        for queue in self.queues() {
            let _ = queue.ring();
        }
        loop {
            let queues = self.queues();
            let Some(next) = drive(&queues) else { return Ok(()) };
            if start.elapsed() >= timeout {
                let states: Vec<_> = queues.iter().map(|queue| queue.describe()).collect();
                let what = format!("draining what decorators hold back: {}", states.join("; "));
                return Err(ControlError::Timeout { what, waited: start.elapsed() });
            }
            std::thread::park_timeout(pause(next).min(timeout));
        }
    }

    /// Ends the thread, and drops what is held back. Idempotent.
    pub(super) fn stop(&self) {
        self.bell.lock().stopped = true;
        self.bell.rung.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It does not panic unless the transport below does, which is then told by the test that runs it.
            let _ = thread.join();
        }
        let queues = std::mem::take(&mut self.bell.lock().queues);
        queues.iter().for_each(|queue| queue.abandon());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Lets leave what is due; when to look again, as [`HeldQueue::drive`] says.
fn drive(queues: &[Arc<HeldQueue>]) -> Option<u64> {
    queues.iter().filter_map(|queue| queue.drive()).min()
}

fn run(bell: &Bell) {
    let mut state = bell.lock();
    while !state.stopped {
        state.rung = false;
        let queues = state.queues.clone();
        drop(state);
        let next = drive(&queues);
        drop(queues);
        state = bell.lock();
        // A queue without a handle cannot be posted to any more.
        state.queues.retain(|queue| Arc::strong_count(queue) > 1 || queue.is_busy());
        while !state.rung && !state.stopped {
            let Some(next) = next else {
                state = bell.rung.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waited = bell.rung.wait_timeout(state, pause(next));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            break;
        }
    }
}
