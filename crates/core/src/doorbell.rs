//! The doorbell queue: many producers, one engine, and a doorbell that never tells of what is not there.
//!
//! # Model
//!
//! A ring of slots and four 64-bit counters, which only grow:
//!
//! ```text
//!   Completed    ≤    Rung    ≤    Written    ≤    Reserved    ≤    Completed + depth
//!        └ the engine's ┘ └ to be rung ┘ └ being written ┘
//! ```
//!
//! A producer takes slots ([`reserve`](DoorbellQueue::reserve)), fills them, waits until all earlier reservations are
//! published, and publishes its own ([`Reservation::publish`]). Somebody, the producer or another, tells the engine
//! ([`ring`](DoorbellQueue::ring)). The engine works in order and counts what it has finished
//! ([`Executor::complete`]). A ticket is a value of `Written`; it is complete when `Completed` has reached it, so any
//! number of tickets can be tested by anyone in any order.
//!
//! The queue is a pure state machine. The slots are the caller's ([`CommandRing`] adds them for commands in process
//! memory), the doorbell is a closure, clock, deadline, abort flag and pace of a wait are [`Patience`]; nothing here
//! calls the operating system. The same steps run in kernels and on hardware rings.
//!
//! # Why four counters
//!
//! Rings with one counter for "reserved" and "written" have this bug: a flush reads it, rings the doorbell up to it, and
//! stores it as the turn of the next producer. The engine then executes slots whose owners are still writing them
//! (**stale slots**), and an owner whose turn was stepped over waits for equality with a counter that has passed
//! (**for ever**). Here the two are different types, a flush is a load, and a turn that was passed is an error.
//!
//! # Rules
//!
//! 1. One reservation is one contiguous publish: a put, its signal and wrap padding together.
//! 2. Only the owner of a reservation publishes it. Nobody rings up to `Reserved`.
//! 3. A turn is awaited with `≥` logic: a counter beyond one's own turn is [`QueueFault::Overrun`], not a spin.
//! 4. [`flush`](DoorbellQueue::flush) only reads. [`wait`](DoorbellQueue::wait) rings up to `Written` first.
//! 5. Reserving never waits while it holds slots, and what can never fit is refused. A producer that vanishes
//!    before it publishes poisons the queue at the deadline of whoever waits behind it.
//! 6. Each wait has a deadline and an abort flag, and ends with the sticky fault if there is one.
//! 7. The doorbell has one holder at a time, so its values never go back. (On GPUs: lane by lane.)
//!
//! # Progress
//!
//! No step takes a lock. Reserving, ringing, testing and executing never wait for a thread; a thread that finds the bell
//! held leaves its request to the holder, who rings once more before it leaves. Publishing waits for earlier owners, by
//! nature of a contiguous ring: for the time of their copy into the slots, or until the deadline.
//!
//! # Poison
//!
//! The first [`QueueFault`] stays. After it nothing is reserved, published, rung or executed; tickets that were complete
//! stay complete, all others are errors. There is no way back: the engine may have seen anything.
//!
//! # Memory ordering
//!
//! Each pair below carries what its reader needs; every other access is relaxed. Weakening any of them makes the named
//! model of `tests/doorbell_loom.rs` fail.
//!
//! | release | acquire | carries | model |
//! |---|---|---|---|
//! | `written` store in `publish` | `written` load in `ring` | slot contents, to the ringer | `posts_are_executed_in_order` |
//! | the same | `written` load in `publish` | slot contents of earlier owners, into the next release | `turns_chain_visibility` |
//! | `rung` store in `ring` | `rung` load in `pending` | slot contents, to the executor | `posts_are_executed_in_order` |
//! | `completed` store in `complete` | `completed` load in `reserve` | the slot was read: it may be overwritten | `slots_are_reused_after_completion` |
//! | the same | `completed` load in `test` | sources were read, effects are there | `sources_are_reusable_after_wait` |
//! | `ring_requests` increment | `ring_requests` exchange that finds it | `Written` of a request left to the holder | `no_ring_is_lost` |
//! | `ring_requests` exchange to 0 | `ring_requests` increment from 0 | `Rung` of the last holder | `doorbell_values_only_grow` |
//! | `executing` store in drop | `executing` exchange in claim | `Completed` of the last executor | `two_executors_share` |
//! | `fault` exchange | `fault` load | where `Completed` stopped | `completion_error_is_sticky` |
//! | `cancelled` update | `cancelled` load in `execute` | the later slots of the post are cancelled too | `cancel_keeps_prefixes` |
//! | `first` store in `post` | `first` load in `cancel` | the slot is in use again, its last use was completed | `late_cancel_touches_nothing_newer` |
//!
//! `reserved` needs no order: what a producer may overwrite it learns from its own load of `completed`, made *before* its
//! load of `reserved`, so that it never sees `Completed` ahead of `Reserved` (the owner's exchange happens before the
//! completion of its slots). `flush` needs none: a caller's own posts are before its load in program order, and a
//! counter's values are read in order by each thread.
//!
//! An engine that is not a thread (a NIC, a copy engine) acquires nothing: there the bell closure orders the slot stores
//! before its store to the doorbell register, with the fence that the device asks for.

mod command_ring;
mod counter;
mod error;
mod executor;
mod fault;
mod patience;
mod reservation;
mod state;

use core::fmt;
use core::mem;

pub use command_ring::{CommandRing, RingExecutor};
pub use counter::{AtomicCounter, Completed, Counters, Reserved, Rung, Written};
pub use error::{DepthError, Poisoned, ReserveError, TicketError};
pub use executor::Executor;
pub use fault::QueueFault;
pub use patience::{Clock, Patience, Stop};
pub use reservation::{Reservation, Slot, Slots, Wrap};
pub use state::QueueState;

use crate::sync::atomic::Ordering;
use counter::distance;

/// The largest depth: 2^31 slots. All positions in flight then lie close enough together to be compared and restored.
pub const MAX_DEPTH: u32 = 1 << 31;

/// The counters of a ring of slots, and the steps that move them. See the [module](self).
#[repr(C)]
pub struct DoorbellQueue {
    counters: Counters,
    depth: u32,
}

impl DoorbellQueue {
    /// An empty queue of `depth` slots.
    ///
    /// # Errors
    /// [`DepthError`] unless `depth` is a power of two up to [`MAX_DEPTH`].
    pub fn new(depth: u32) -> Result<Self, DepthError> {
        Self::starting_at(depth, 0)
    }

    /// An empty queue whose first slot has position `start`: tests begin just before a wrap, and a ring that is taken
    /// over from hardware begins where that stands.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn starting_at(depth: u32, start: u64) -> Result<Self, DepthError> {
        if !depth.is_power_of_two() {
            return Err(DepthError { depth, nearest: depth.checked_next_power_of_two().unwrap_or(MAX_DEPTH) });
        }
        Ok(Self { counters: Counters::new(start), depth })
    }

    /// Slots in the ring.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The memory of the queue, for an engine that keeps some of it itself. See there for who may write what.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The largest reservation that can succeed.
    pub fn largest(&self, wrap: Wrap) -> u32 {
        match wrap {
            Wrap::Allowed => self.depth,
            // Padding is less than the slots behind it, or they would have fitted: 2 × slots − 1 ≤ depth.
            Wrap::Padded => self.depth.div_ceil(2),
        }
    }

    /// Takes `slots` consecutive slots, and padding in front of them if `wrap` asks for it. Never waits.
    ///
    /// No slots are legal: such a reservation owns nothing and publishes at once.
    ///
    /// # Errors
    /// [`ReserveError::Busy`], [`TooLarge`](ReserveError::TooLarge) or [`Poisoned`](ReserveError::Poisoned).
    #[inline]
    pub fn reserve(&self, slots: usize, wrap: Wrap) -> Result<Reservation<'_>, ReserveError> {
        self.check()?;
        let limit = self.largest(wrap);
        if slots > limit as usize {
            return Err(ReserveError::TooLarge { needed: slots, limit, depth: self.depth });
        }
        let slots = slots as u32;
        loop {
            // Acquire: the freed slots have been read. Before `reserved`: see the module.
            let completed = self.counters.completed.load(Ordering::Acquire).raw();
            let reserved = self.counters.reserved.load(Ordering::Relaxed);
            let to_end = self.depth - (reserved.raw() as u32 & (self.depth - 1));
            let padding = match wrap {
                Wrap::Padded if slots > to_end => to_end,
                _ => 0,
            };
            let needed = padding + slots;
            // More than the depth if `completed` is out of date by now.
            let used = distance(reserved.raw(), completed);
            let free = (i64::from(self.depth) - used).max(0) as u32;
            if needed > free {
                return Err(ReserveError::Busy { needed, free });
            }
            let end = Reserved::from_raw(reserved.raw().wrapping_add(u64::from(needed)));
            if needed == 0 || self.counters.reserved.advance(reserved, end, Ordering::Relaxed) {
                return Ok(Reservation::new(self, reserved, padding, slots));
            }
        }
    }

    /// As [`reserve`](Self::reserve), but waits while the queue is busy, ringing what is written meanwhile.
    ///
    /// # Errors
    /// [`ReserveError`], never `Busy`. If the same unpublished reservation blocked the queue from the first look to the
    /// last, with all before it completed, its producer is taken for dead: [`QueueFault::ProducerStalled`].
    pub fn reserve_within(
        &self,
        slots: usize,
        wrap: Wrap,
        mut bell: impl FnMut(Rung),
        patience: &Patience<'_>,
    ) -> Result<Reservation<'_>, ReserveError> {
        let mut reservation = None;
        let mut needed = 0;
        // Where the queue stood still at the first look, if it did.
        let mut stood_at = None;
        let stands_at = |state: QueueState| (state.completed.raw() == state.written.raw()).then_some(state.written);
        let waited = patience.until(|| match self.reserve(slots, wrap) {
            Ok(taken) => {
                reservation = Some(taken);
                Ok(true)
            }
            Err(ReserveError::Busy { needed: more, .. }) => {
                needed = more;
                stood_at.get_or_insert_with(|| stands_at(self.state()));
                self.ring(&mut bell)?;
                Ok(false)
            }
            Err(error) => Err(error),
        })?;
        if let Some(reservation) = reservation {
            return Ok(reservation);
        }
        let state = self.state();
        Err(match waited {
            Err(Stop::Aborted) => ReserveError::Aborted { needed, state },
            _ => match stood_at.flatten() {
                Some(written) if stands_at(state) == Some(written) => {
                    self.poison(QueueFault::ProducerStalled { position: written.raw() }).into()
                }
                _ => ReserveError::Timeout { needed, state },
            },
        })
    }

    /// Tells the engine of all that is written, and of nothing else: `Rung` moves to `Written`. Never waits.
    ///
    /// `bell` gets the new doorbell value; it is called by one thread at a time, with values that only grow, after `Rung`
    /// shows them, and not at all if there is nothing new. If another thread holds the bell, that one rings for this call
    /// too before it lets go, with its own `bell`, and this call returns at once. Before its store to a device register
    /// the closure must order earlier stores to the slots, with the fence of that device.
    ///
    /// Returns `Rung`; it covers all posts that this thread has completed, unless another thread is about to ring them.
    ///
    /// # Errors
    /// [`Poisoned`]; `bell` was not called.
    ///
    /// # Panics
    /// Passes on a panic of `bell`; the queue is then poisoned with [`QueueFault::Unwound`].
    pub fn ring(&self, mut bell: impl FnMut(Rung)) -> Result<Rung, Poisoned> {
        self.check()?;
        let Counters { rung, written, ring_requests, .. } = &self.counters;
        let already = rung.load(Ordering::Relaxed);
        if already.raw() == written.load(Ordering::Relaxed).raw() {
            return Ok(already);
        }
        // Release: the holder that finds this request sees what this thread knows to be written.
        // Acquire: a new holder sees the `Rung` of the last.
        if ring_requests.fetch_add(1, Ordering::AcqRel) != 0 {
            return Ok(rung.load(Ordering::Relaxed));
        }
        let mut requests = 1;
        loop {
            // Acquire: the contents of the slots, to be passed on by the store of `rung`.
            let target = written.load(Ordering::Acquire).raw();
            let last = rung.load(Ordering::Relaxed);
            let value = Rung::from_raw(target);
            match distance(target, last.raw()) {
                0 => {}
                1.. => {
                    rung.store(value, Ordering::Release);
                    let unwound = PoisonOnUnwind::new(self, QueueFault::Unwound { position: target });
                    bell(value);
                    unwound.disarm();
                }
                _ => return Err(self.poison(QueueFault::Overrun { position: target })),
            }
            // Lets go of the bell, unless requests came that may know of newer slots.
            match ring_requests.compare_exchange(requests, 0, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return Ok(value),
                Err(more) => requests = more,
            }
        }
    }

    /// A ticket for all posts that the caller has completed, and for what others had published by then.
    ///
    /// A load, nothing else: it rings nothing, writes nothing, waits for nothing. `Written` is the right counter, as it
    /// moves in order of reservation: when a publish has returned, `Written` is at its end or further, so a later load by
    /// that thread (or by one that learned of it) covers it. Reservations that are not published are not covered and
    /// cannot delay the ticket.
    #[inline]
    pub fn flush(&self) -> Written {
        self.counters.written.load(Ordering::Relaxed)
    }

    /// Whether everything up to the ticket is complete. Never waits, never rings.
    ///
    /// # Errors
    /// [`TicketError::Unknown`] for a ticket of another queue, [`Poisoned`](TicketError::Poisoned) if the queue stopped
    /// before the ticket was complete. A ticket that is complete stays so on a poisoned queue.
    #[inline]
    pub fn test(&self, ticket: Written) -> Result<bool, TicketError> {
        // The fault first: what completed before it is then seen.
        let poisoned = self.check();
        // Acquire: the effects of the operations, and that their sources are read.
        if self.counters.completed.load(Ordering::Acquire).reaches(ticket) {
            return Ok(true);
        }
        poisoned?;
        if distance(self.flush().raw(), ticket.raw()) < 0 {
            return Err(TicketError::Unknown { ticket, state: self.state() });
        }
        Ok(false)
    }

    /// Rings up to `Written` if the engine may not know of the ticket, and waits until it is complete.
    ///
    /// # Errors
    /// As [`test`](Self::test), and [`Timeout`](TicketError::Timeout) or [`Aborted`](TicketError::Aborted) by
    /// `patience`; these leave the queue and the ticket as they are.
    pub fn wait(
        &self,
        ticket: Written,
        mut bell: impl FnMut(Rung),
        patience: &Patience<'_>,
    ) -> Result<(), TicketError> {
        let waited = patience.until(|| {
            if self.test(ticket)? {
                return Ok(true);
            }
            if distance(self.counters.rung.load(Ordering::Relaxed).raw(), ticket.raw()) < 0 {
                self.ring(&mut bell)?;
            }
            Ok::<_, TicketError>(false)
        })?;
        waited.map_err(|stop| match stop {
            Stop::Deadline => TicketError::Timeout { ticket, state: self.state() },
            Stop::Aborted => TicketError::Aborted { ticket, state: self.state() },
        })
    }

    /// Takes the role of the executor, or `None` while another thread has it. Never waits.
    pub fn executor(&self) -> Option<Executor<'_>> {
        Executor::claim(self)
    }

    /// Poisons the queue from outside: the communicator was aborted. Returns the error that everybody will see.
    pub fn abort(&self) -> Poisoned {
        self.poison(QueueFault::Aborted { position: self.flush().raw() })
    }

    /// Whether the queue still works.
    ///
    /// # Errors
    /// [`Poisoned`] if it does not.
    #[inline]
    pub fn check(&self) -> Result<(), Poisoned> {
        match self.counters.fault.get(&self.counters) {
            None => Ok(()),
            Some(fault) => Err(self.poisoned(fault)),
        }
    }

    /// The counters, consistent with one another although the queue moves.
    pub fn state(&self) -> QueueState {
        QueueState::read(&self.counters, self.depth)
    }

    /// Stops the queue with `fault`, unless it has one already; the error with the fault that counts.
    #[cold]
    fn poison(&self, fault: QueueFault) -> Poisoned {
        self.counters.fault.set(fault);
        self.poisoned(self.counters.fault.get(&self.counters).unwrap_or(fault))
    }

    #[cold]
    fn poisoned(&self, fault: QueueFault) -> Poisoned {
        Poisoned { fault, state: self.state() }
    }
}

impl fmt::Debug for DoorbellQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DoorbellQueue").field(&self.state()).finish()
    }
}

/// Poisons the queue unless disarmed: for the time that a caller's closure works on it.
struct PoisonOnUnwind<'q> {
    queue: &'q DoorbellQueue,
    fault: QueueFault,
}

impl<'q> PoisonOnUnwind<'q> {
    fn new(queue: &'q DoorbellQueue, fault: QueueFault) -> Self {
        Self { queue, fault }
    }

    fn disarm(self) {
        mem::forget(self);
    }
}

impl Drop for PoisonOnUnwind<'_> {
    fn drop(&mut self) {
        self.queue.poison(self.fault);
    }
}
