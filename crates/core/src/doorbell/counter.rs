//! The four counters: four types, one memory.
//!
//! A counter says how many slots have passed a stage since the queue began. It is 64 bits wide, only
//! grows, and is compared by signed distance, so that the wrap at 2^64 is an event like any other. The
//! stages are types: what was [`Reserved`] cannot be rung by mistake for what was [`Written`]. Each
//! conversion happens at one place, by the code that owns that step:
//!
//! | step | from | to | place |
//! |---|---|---|---|
//! | publish | `Reserved` | `Written` | [`Reservation::publish`](super::Reservation::publish) |
//! | ring | `Written` | `Rung` | [`DoorbellQueue::ring`](super::DoorbellQueue::ring) |
//! | complete | `Rung` | `Completed` | [`Executor::complete`](super::Executor::complete) |

use core::fmt;
use core::marker::PhantomData;

use crossbeam_utils::CachePadded;

use super::fault::FaultWord;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far position `later` is past position `earlier`, in slots; negative if it is before it.
///
/// Exact as long as the two are less than 2^63 apart. There is deliberately no `Ord` on positions: an
/// order that wraps is not transitive.
#[inline]
pub(super) const fn distance(later: u64, earlier: u64) -> i64 {
    later.wrapping_sub(earlier) as i64
}

mod sealed {
    pub trait Stage: Copy {
        fn from_raw(raw: u64) -> Self;
        fn raw(self) -> u64;
    }
}
use sealed::Stage;

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The counter whose value is `raw`, as it crosses a C table or lies in device memory.
            #[inline]
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            /// The value: slots since the queue began, modulo 2^64.
            #[inline]
            pub const fn raw(self) -> u64 {
                self.0
            }
        }

        impl Stage for $name {
            fn from_raw(raw: u64) -> Self {
                Self(raw)
            }
            fn raw(self) -> u64 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter! {
    /// Slots that producers have taken. Says nothing about their content: never rung, never waited for.
    Reserved
}
counter! {
    /// Slots that their owners have published, in order: all slots before it hold complete operations.
    /// A value of it is what a ticket holds.
    Written
}
counter! {
    /// Slots that the engine has been told of, through the doorbell.
    Rung
}
counter! {
    /// Slots that the engine has finished; they may be reserved again.
    Completed
}

impl Completed {
    /// Whether everything that `ticket` stands for is complete.
    #[inline]
    pub const fn reaches(self, ticket: Written) -> bool {
        distance(self.0, ticket.0) >= 0
    }
}

/// A counter in shared memory, which only takes and gives its own stage.
#[repr(transparent)]
pub struct AtomicCounter<S> {
    raw: AtomicU64,
    stage: PhantomData<fn() -> S>,
}

impl<S: Stage> AtomicCounter<S> {
    fn new(raw: u64) -> Self {
        Self { raw: AtomicU64::new(raw), stage: PhantomData }
    }

    /// Reads the counter.
    #[inline]
    pub fn load(&self, order: Ordering) -> S {
        S::from_raw(self.raw.load(order))
    }

    /// Writes the counter. Only the owner of the step may: see [`Counters`].
    #[inline]
    pub fn store(&self, value: S, order: Ordering) {
        self.raw.store(value.raw(), order);
    }

    /// Advances the counter from `current` to `new` unless another thread was faster.
    #[inline]
    pub(super) fn advance(&self, current: S, new: S, order: Ordering) -> bool {
        self.raw.compare_exchange_weak(current.raw(), new.raw(), order, Ordering::Relaxed).is_ok()
    }
}

/// The memory of a queue, beside its slots. One cache line for each party that writes.
///
/// | word | written by | meaning |
/// |---|---|---|
/// | `reserved` | producers, compare-and-swap | end of the last reservation |
/// | `written` | the producer whose turn it is | end of the last published reservation |
/// | `rung` | the thread that holds the bell | last doorbell value |
/// | `completed` | the executor, or the engine itself | end of the last finished slot |
///
/// The counters are public for engines and code outside this module that keep the same memory (a copy
/// engine that writes its read pointer to `completed`, a kernel, a test). Whoever writes one without
/// owning its step breaks the queue for all, which the queue then reports as [`QueueFault::Overrun`] or as
/// wrong data; memory safety does not hang on it, as [`CommandRing`] lends its counters to nobody.
///
/// [`QueueFault::Overrun`]: super::QueueFault::Overrun
/// [`CommandRing`]: super::CommandRing
#[repr(C)]
pub struct Counters {
    /// See [`Reserved`].
    pub reserved: CachePadded<AtomicCounter<Reserved>>,
    /// See [`Written`].
    pub written: CachePadded<AtomicCounter<Written>>,
    /// See [`Rung`].
    pub rung: CachePadded<AtomicCounter<Rung>>,
    /// See [`Completed`].
    pub completed: CachePadded<AtomicCounter<Completed>>,
    /// Calls of `ring` since the bell was last free; 0 = free. Whoever raises it from 0 holds the bell.
    pub(super) ring_requests: CachePadded<AtomicU64>,
    /// Whether an executor is at work.
    pub(super) executing: CachePadded<AtomicBool>,
    /// The first fault; read at each step, written once.
    pub(super) fault: CachePadded<FaultWord>,
}

impl Counters {
    /// Counters of an empty queue whose first slot has position `start`.
    pub(super) fn new(start: u64) -> Self {
        Self {
            reserved: CachePadded::new(AtomicCounter::new(start)),
            written: CachePadded::new(AtomicCounter::new(start)),
            rung: CachePadded::new(AtomicCounter::new(start)),
            completed: CachePadded::new(AtomicCounter::new(start)),
            ring_requests: CachePadded::new(AtomicU64::new(0)),
            executing: CachePadded::new(AtomicBool::new(false)),
            fault: CachePadded::new(FaultWord::new()),
        }
    }
}
