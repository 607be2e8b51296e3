//! The proxy: a thread that executes what the kernels of one rank post for one window.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use campanile_core::RemoteRegion;

/// Slots of a ring.
const DEPTH: usize = 8;
/// Most bytes of an operation: small, so that puts of tests take several.
pub(crate) const LARGEST: u64 = 1024;
/// The word of an operation without a signal.
const NO_WORD: u64 = u64::MAX;
/// Looks that find nothing before the thread naps. Devices cannot wake it.
const YIELDS: u32 = 200;
const NAP: Duration = Duration::from_micros(50);

/// `Slot` of `ring.h`.
#[derive(Default)]
#[repr(C)]
struct Slot {
    turn: AtomicU64,
    source: AtomicU64,
    offset: AtomicU64,
    bytes: AtomicU64,
    word: AtomicU64,
    value: AtomicU64,
}

/// `Ring` of `ring.h`.
#[derive(Default)]
#[repr(C)]
struct Ring {
    reserved: AtomicU64,
    completed: AtomicU64,
    slots: [Slot; DEPTH],
}

/// `Peer` of `ring.h`.
#[repr(C)]
pub(crate) struct Peer {
    ring: *const Ring,
}

/// A peer's part of the window, which stays mapped as long as the proxy runs.
pub(crate) struct Target {
    pub(crate) first: NonNull<u8>,
    pub(crate) remote: RemoteRegion,
}

// SAFETY: a pointer into a mapping that `remote` keeps; the ordering contract answers for races.
unsafe impl Send for Target {}

/// The rings of a window and the thread behind them. Dropping it ends that.
pub(crate) struct Proxy {
    rings: Arc<[Ring]>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Begins to execute; nothing if `silent`.
    pub(crate) fn new(targets: Vec<Target>, silent: bool) -> std::io::Result<Self> {
        let rings: Arc<[Ring]> = targets.iter().map(|_| Ring::default()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let (of_thread, stopped) = (Arc::clone(&rings), Arc::clone(&stop));
        let run = move || {
            let mut idle = 0;
            while !stopped.load(Ordering::Acquire) {
                let done = !silent && of_thread.iter().zip(&targets).fold(false, |done, it| execute(it) | done);
                idle = if done { 0 } else { idle + 1 };
                if idle < YIELDS { std::thread::yield_now() } else { std::thread::park_timeout(NAP) }
            }
        };
        let thread = Some(std::thread::Builder::new().name("ring-proxy".to_owned()).spawn(run)?);
        Ok(Self { rings, stop, thread })
    }

    /// What the header knows.
    pub(crate) fn peers(&self) -> Vec<u8> {
        let peers = self.rings.iter().map(|ring| Peer { ring });
        peers.flat_map(|peer| (peer.ring.expose_provenance() as u64).to_ne_bytes()).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does not panic: there is nothing in it that could.
            let _ = thread.join();
        }
    }
}

/// Executes the next operation of a ring; whether there was one.
fn execute((ring, target): (&Ring, &Target)) -> bool {
    let turn = ring.completed.load(Ordering::Relaxed);
    let slot = &ring.slots[turn as usize % DEPTH];
    if slot.turn.load(Ordering::Acquire) != turn + 1 {
        return false;
    }
    let [source, offset, bytes, word, value] =
        [&slot.source, &slot.offset, &slot.bytes, &slot.word, &slot.value].map(|field| field.load(Ordering::Relaxed));
    let window = target.remote.bytes() as u64;
    let inside = |offset: u64, bytes: u64| offset.checked_add(bytes).is_some_and(|end| end <= window);
    // What is none is not executed, and nothing behind it: the kernel's deadline tells.
    if !inside(offset, bytes) || bytes > LARGEST || (word != NO_WORD && !(inside(word, 8) && word.is_multiple_of(8))) {
        return false;
    }
    if bytes != 0 {
        let from = std::ptr::with_exposed_provenance::<u8>(source as usize);
        // SAFETY: the kernel's source stays until this is completed; the target was checked to be inside the window.
        unsafe { std::ptr::copy_nonoverlapping(from, target.first.as_ptr().add(offset as usize), bytes as usize) };
    }
    if word != NO_WORD {
        // SAFETY: checked to be inside the window and aligned; words of windows are only accessed as atomics.
        let word = unsafe { AtomicU64::from_ptr(target.first.as_ptr().add(word as usize).cast()) };
        word.store(value, Ordering::Release);
    }
    ring.completed.store(turn + 1, Ordering::Release);
    true
}
