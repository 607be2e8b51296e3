//! The control block: one page of shared memory a rank, mapped by all connected ranks.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `sleepers` | the rank's waiters | peers, after they stored a word |
//! | `bell` | peers that saw a sleeper | the futex that waiters sleep on |
//! | `waiting` | the rank's waiter: peer + 1, 0 when it does not wait | peers that look for the culprit of a time-out |
//! | `beat` | the rank's waiter, while it waits: monotonic nanoseconds | the same |
//! | `probe` | the rank, before it connects: address and value of a word in its private memory | peers, as they connect |
//! | `left` | the rank, at an orderly shutdown | peers that lost its socket |
//! | `fault` | anyone, in the block of the lowest rank only, over a fault of a masked rank or none | everyone |
//!
//! Sleeping is a Dekker hand-shake: a waiter counts itself in `sleepers`, then looks at its word once more, then
//! sleeps; a writer stores the word, then looks at `sleepers`. With a full fence between the two steps on both sides
//! one of them sees the other. A writer that skips the look (a raw store) costs latency only: sleeps are sliced.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use campanile_core::{Fault, Rank};
use campanile_host::memory::SharedMemory;
use campanile_host::wait::{futex_wait, futex_wake};
use crossbeam_utils::CachePadded;

/// Bytes of a control block's memory.
pub(crate) const CONTROL_BYTES: usize = 4096;

#[repr(C)]
struct Words {
    sleep: CachePadded<Sleep>,
    state: CachePadded<State>,
    fault: CachePadded<AtomicU64>,
}

#[repr(C)]
struct Sleep {
    sleepers: AtomicU32,
    bell: AtomicU32,
}

#[repr(C)]
struct State {
    waiting: AtomicU64,
    beat: AtomicU64,
    left: AtomicU32,
    probe: [AtomicU64; 2],
}

const _: () = assert!(size_of::<Words>() <= CONTROL_BYTES);

/// A mapped control block of this rank or of a peer.
#[derive(Clone)]
pub(crate) struct Control {
    memory: Arc<SharedMemory>,
}

impl Control {
    /// The block in that memory, which is zeroed when it is made.
    pub(crate) fn new(memory: SharedMemory) -> Self {
        assert!(memory.len() >= CONTROL_BYTES, "the memory of a control block is a page");
        Self { memory: Arc::new(memory) }
    }

    /// The memory, to be sent to peers.
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    fn words(&self) -> &Words {
        // SAFETY: the mapping is page-aligned, at least CONTROL_BYTES long (`new`), sealed against shrinking
        // (SharedMemory), lives as long as `self`, and every field is an atomic for which any bits are valid.
        unsafe { &*self.memory.as_ptr().cast::<Words>() }
    }

    /// Wakes this rank's sleepers, if there are any, after a word of it was stored.
    #[inline]
    pub(crate) fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.words().sleep.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    /// Wakes this rank's sleepers.
    #[cold]
    pub(crate) fn wake(&self) {
        let bell = &self.words().sleep.bell;
        bell.fetch_add(1, Ordering::Release);
        futex_wake(bell, u32::MAX);
    }

    /// Sleeps until woken or for `slice`, unless `ready` holds after this rank has been counted as a sleeper.
    pub(crate) fn sleep(&self, slice: Duration, ready: impl Fn() -> bool) {
        let sleep = &self.words().sleep;
        let bell = sleep.bell.load(Ordering::Acquire);
        sleep.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !ready() {
            futex_wait(&sleep.bell, bell, slice);
        }
        sleep.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Says that this rank waits for `peer`, alive at `now` ns.
    pub(crate) fn set_waiting(&self, peer: Rank, now: u64) {
        let state = &self.words().state;
        state.beat.store(now, Ordering::Relaxed);
        state.waiting.store(u64::from(peer.0) + 1, Ordering::Release);
    }

    /// Says that this rank waits no more.
    pub(crate) fn clear_waiting(&self) {
        self.words().state.waiting.store(0, Ordering::Release);
    }

    /// Whom this rank waits for, and when (ns) it last said so.
    pub(crate) fn waiting(&self) -> Option<(Rank, u64)> {
        let state = &self.words().state;
        let waiting = state.waiting.load(Ordering::Acquire);
        (waiting != 0).then(|| (Rank((waiting - 1) as u32), state.beat.load(Ordering::Relaxed)))
    }

    /// Says where a word in this rank's private memory is, and what it is.
    pub(crate) fn set_probe(&self, (address, value): (u64, u64)) {
        let [at, word] = &self.words().state.probe;
        at.store(address, Ordering::Relaxed);
        word.store(value, Ordering::Relaxed);
    }

    /// Where such a word is, and what it is: set before the block is sent to anybody.
    pub(crate) fn probe(&self) -> (u64, u64) {
        let [at, word] = &self.words().state.probe;
        (at.load(Ordering::Relaxed), word.load(Ordering::Relaxed))
    }

    /// Says that this rank is done.
    pub(crate) fn set_left(&self) {
        self.words().state.left.store(1, Ordering::Release);
    }

    /// Whether this rank is done.
    pub(crate) fn left(&self) -> bool {
        self.words().state.left.load(Ordering::Acquire) != 0
    }

    /// The fault that stands in this block.
    #[inline]
    pub(crate) fn fault(&self) -> Option<Fault> {
        Fault::from_word(self.words().fault.load(Ordering::Acquire))
    }

    /// Records a fault unless one stands, whose culprit is not `masked`; returns the one that stands.
    pub(crate) fn report(&self, fault: Fault, masked: impl Fn(Rank) -> bool) -> Fault {
        let word = &self.words().fault;
        let mut seen = 0;
        loop {
            match word.compare_exchange(seen, fault.to_word(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return fault,
                Err(now) => match Fault::from_word(now) {
                    Some(first) if !masked(first.culprit) => return first,
                    _ => seen = now,
                },
            }
        }
    }
}
