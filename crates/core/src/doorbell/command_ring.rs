//! A command ring: a doorbell queue together with its slots, in process memory.

use core::fmt;
use core::mem::MaybeUninit;

use super::counter::{Rung, Written, distance};
use super::error::{DepthError, Poisoned, ReserveError, TicketError};
use super::executor::Executor;
use super::fault::QueueFault;
use super::patience::Patience;
use super::reservation::{Reservation, Slot, Slots, Wrap};
use super::state::QueueState;
use super::{DoorbellQueue, PoisonOnUnwind};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::cell::UnsafeCell;

/// A ring of commands of type `T`, one a slot: posted by any thread, executed in order by one thread at a time.
///
/// The queue part is [`DoorbellQueue`]; this type adds the slots, and the safety that comes with lending the queue to
/// nobody. All methods take `&self`, allocate nothing and take no lock.
///
/// ```
/// use campanile_core::doorbell::{Clock, CommandRing, Patience};
/// # use std::time::{Duration, Instant};
/// # struct Monotonic(Instant);
/// # impl Clock for Monotonic { fn now(&self) -> Duration { self.0.elapsed() } }
/// # let clock = Monotonic(Instant::now());
/// let patience = Patience {
///     clock: &clock,
///     deadline: clock.now() + Duration::from_secs(30),
///     abort: &|| false,
///     relax: &|_| std::thread::yield_now(),
/// };
/// let ring = CommandRing::new(8)?;
/// let ticket = ring.post(&["put", "signal"], &patience)?;
/// let engine = ring.ring(|_rung| { /* wake the engine */ })?;
/// let mut done = Vec::new();
/// ring.execute(|&command| { done.push(command); Ok(()) })?;
/// assert!(ring.test(ticket)?);
/// assert_eq!(done, ["put", "signal"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CommandRing<T> {
    queue: DoorbellQueue,
    commands: Box<[Command<T>]>,
}

struct Command<T> {
    /// Valid from `Written` to `Completed`.
    operation: UnsafeCell<MaybeUninit<T>>,
    /// Position of the first slot of the post that this slot belongs to.
    first: AtomicU64,
    /// The last position at which this slot was cancelled; only grows.
    cancelled: AtomicU64,
}

// SAFETY: `operation` is written by the thread that owns the slot's reservation, between the completion of the slot's
// last use and its publication, and read by the executor, between the ring and the completion. `DoorbellQueue` upholds
// that the four follow one another, each seeing the one before (memory-ordering table there), and that there is one
// executor at a time; `CommandRing` upholds that nothing else moves its counters. So values pass between threads
// (`T: Send`) but are never shared at one time, which is why `T: Sync` is not needed.
unsafe impl<T: Send> Sync for Command<T> {}

impl<T: Copy + Send> CommandRing<T> {
    /// An empty ring of `depth` slots.
    ///
    /// # Errors
    /// [`DepthError`] unless `depth` is a power of two up to [`MAX_DEPTH`](super::MAX_DEPTH).
    pub fn new(depth: u32) -> Result<Self, DepthError> {
        Self::starting_at(depth, 0)
    }

    /// An empty ring whose first slot has position `start`: tests begin just before a wrap.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn starting_at(depth: u32, start: u64) -> Result<Self, DepthError> {
        let queue = DoorbellQueue::starting_at(depth, start)?;
        let command = || Command {
            operation: UnsafeCell::new(MaybeUninit::uninit()),
            first: AtomicU64::new(start),
            cancelled: AtomicU64::new(start.wrapping_sub(1)),
        };
        Ok(Self { queue, commands: (0..depth).map(|_| command()).collect() })
    }

    /// Posts a list as one contiguous publish, or nothing of it. The commands are copied. An empty list is legal and gives
    /// the ticket of a [`flush`](Self::flush).
    ///
    /// Waits, within `patience`, only for earlier posts that other threads are in the middle of; a full ring is `Busy`
    /// at once. The engine learns of it at the next [`ring`](Self::ring).
    ///
    /// # Errors
    /// [`ReserveError`]; [`Poisoned`] also if an earlier post did not end before the deadline.
    pub fn post(&self, commands: &[T], patience: &Patience<'_>) -> Result<Written, ReserveError> {
        let reservation = self.queue.reserve(commands.len(), Wrap::Allowed)?;
        self.publish(reservation, commands, patience)
    }

    /// As [`post`](Self::post), but waits for free slots too, ringing what is written meanwhile. Without a thread that
    /// executes, [`Patience::relax`] must.
    ///
    /// # Errors
    /// [`ReserveError`], never `Busy`.
    pub fn post_within(
        &self,
        commands: &[T],
        bell: impl FnMut(Rung),
        patience: &Patience<'_>,
    ) -> Result<Written, ReserveError> {
        let reservation = self.queue.reserve_within(commands.len(), Wrap::Allowed, bell, patience)?;
        self.publish(reservation, commands, patience)
    }

    fn publish(
        &self,
        reservation: Reservation<'_>,
        commands: &[T],
        patience: &Patience<'_>,
    ) -> Result<Written, ReserveError> {
        let slots = reservation.slots();
        let mut first = None;
        for (Slot { position, index }, &command) in slots.zip(commands) {
            let slot = &self.commands[index];
            // Release: `cancel` reads it of a slot that may have been reused, and must then see that it was.
            slot.first.store(*first.get_or_insert(position), Ordering::Release);
            slot.operation.with_mut(|operation| {
                // SAFETY: the reservation owns the slot and is not published: its last use is completed, which `reserve`
                // has acquired, and the executor does not look at it before it is rung.
                unsafe { (*operation).write(command) };
            });
        }
        Ok(reservation.publish(patience)?)
    }

    /// Executes what is rung and not completed, in order, and returns how many commands it ran. Never waits.
    ///
    /// Each command is completed before the next starts. A command that was [cancelled](Self::cancel) in time is
    /// completed without being run. Returns 0 also while another thread executes. What is rung meanwhile is left to the
    /// next call, so that the call is bounded by the depth.
    ///
    /// # Errors
    /// [`Poisoned`]: `run` answered an error, a completion status of the caller's own, which becomes
    /// [`QueueFault::Completion`]; or the queue was poisoned before or meanwhile.
    ///
    /// # Panics
    /// Passes on a panic of `run`; the queue is then poisoned with [`QueueFault::Unwound`].
    pub fn execute(&self, mut run: impl FnMut(&T) -> Result<(), u32>) -> Result<u32, Poisoned> {
        let Some(mut executor) = self.queue.executor() else {
            return Ok(0);
        };
        let mut executed = 0;
        for Slot { position, index } in executor.pending()? {
            self.queue.check()?;
            let command = &self.commands[index];
            // Acquire: a slot seen as cancelled ⇒ the later slots of its post are too.
            if command.cancelled.load(Ordering::Acquire) != position {
                let outcome = command.operation.with(|operation| {
                    // SAFETY: rung and not completed: its owner initialised it before it was published, which `pending`
                    // has acquired, and nobody writes it before it is completed.
                    let operation = unsafe { (*operation).assume_init_ref() };
                    let unwound = PoisonOnUnwind::new(&self.queue, QueueFault::Unwound { position });
                    let outcome = run(operation);
                    unwound.disarm();
                    outcome
                });
                if let Err(status) = outcome {
                    return Err(executor.fail(status));
                }
                executed += 1;
            }
            executor.complete(1)?;
        }
        Ok(executed)
    }

    /// Takes the role of the executor, if it is free: for an engine that starts commands and learns later what it has
    /// finished. [`execute`](Self::execute) is for one that finishes each command before the next.
    ///
    /// ```
    /// # use campanile_core::doorbell::{Clock, CommandRing, Patience};
    /// # use std::time::Duration;
    /// # struct Still;
    /// # impl Clock for Still { fn now(&self) -> Duration { Duration::ZERO } }
    /// # let patience = Patience { clock: &Still, deadline: Duration::MAX, abort: &|| false, relax: &|_| {} };
    /// let ring = CommandRing::new(8)?;
    /// let ticket = ring.post(&["copy", "mark"], &patience)?;
    /// ring.ring(|_| ())?;
    /// let mut executor = ring.executor().expect("nobody else executes");
    /// let mut started = Vec::new();
    /// for slot in executor.pending()? {
    ///     started.extend(executor.command(slot.position)?);
    /// }
    /// assert_eq!(started, ["copy", "mark"]);
    /// assert!(!ring.test(ticket)?);
    /// // The engine says that both are done.
    /// executor.complete(2)?;
    /// assert!(ring.test(ticket)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn executor(&self) -> Option<RingExecutor<'_, T>> {
        Some(RingExecutor { ring: self, executor: self.queue.executor()? })
    }

    /// Asks that the post whose ticket this is be not executed: best effort. `false` if it is complete already.
    ///
    /// After `true` the ticket still completes in its turn, and a leading part of the list may have run, up to all of it:
    /// if a command is left out, so are all later ones of the same post (a signal never goes without its put). Other
    /// posts are not touched. The ticket of a flush is the end of the last post that it saw, whoever made it: give a
    /// ticket of your own post.
    ///
    /// # Errors
    /// As [`test`](Self::test).
    pub fn cancel(&self, ticket: Written) -> Result<bool, TicketError> {
        if self.test(ticket)? {
            return Ok(false);
        }
        let depth = self.queue.depth();
        let last = Slots::new(ticket.raw().wrapping_sub(1), 1, depth).next().expect("one slot");
        let first = self.commands[last.index].first.load(Ordering::Acquire);
        if self.test(ticket)? {
            return Ok(false); // The slot may have been reused: `first` may be another post's.
        }
        let count = distance(ticket.raw(), first) as u32;
        // From the last slot to the first, each by release: see `execute`. Never back to an older position: that of a
        // slow canceller must not undo one of the slot's later use.
        for Slot { position, index } in Slots::new(first, count, depth).rev() {
            let newer = |old| (distance(position, old) > 0).then_some(position);
            let _ = self.commands[index].cancelled.fetch_update(Ordering::AcqRel, Ordering::Relaxed, newer);
        }
        Ok(true)
    }

    /// See [`DoorbellQueue::ring`].
    ///
    /// # Errors
    /// [`Poisoned`].
    pub fn ring(&self, bell: impl FnMut(Rung)) -> Result<Rung, Poisoned> {
        self.queue.ring(bell)
    }

    /// See [`DoorbellQueue::flush`].
    pub fn flush(&self) -> Written {
        self.queue.flush()
    }

    /// See [`DoorbellQueue::test`].
    ///
    /// # Errors
    /// [`TicketError`].
    pub fn test(&self, ticket: Written) -> Result<bool, TicketError> {
        self.queue.test(ticket)
    }

    /// See [`DoorbellQueue::wait`]. Without a thread that executes, [`Patience::relax`] must.
    ///
    /// # Errors
    /// [`TicketError`].
    pub fn wait(&self, ticket: Written, bell: impl FnMut(Rung), patience: &Patience<'_>) -> Result<(), TicketError> {
        self.queue.wait(ticket, bell, patience)
    }

    /// See [`DoorbellQueue::abort`].
    pub fn abort(&self) -> Poisoned {
        self.queue.abort()
    }

    /// See [`DoorbellQueue::check`].
    ///
    /// # Errors
    /// [`Poisoned`].
    pub fn check(&self) -> Result<(), Poisoned> {
        self.queue.check()
    }

    /// Slots in the ring.
    pub fn depth(&self) -> u32 {
        self.queue.depth()
    }

    /// See [`DoorbellQueue::state`].
    pub fn state(&self) -> QueueState {
        self.queue.state()
    }
}

/// The exclusive right to execute the commands of a [`CommandRing`]; given back when dropped.
#[derive(Debug)]
pub struct RingExecutor<'r, T> {
    ring: &'r CommandRing<T>,
    executor: Executor<'r>,
}

impl<T: Copy + Send> RingExecutor<'_, T> {
    /// See [`Executor::pending`].
    ///
    /// # Errors
    /// [`Poisoned`].
    pub fn pending(&self) -> Result<Slots, Poisoned> {
        self.executor.pending()
    }

    /// The command of the slot at `position`; `None` if it was cancelled, or is not pending.
    ///
    /// # Errors
    /// [`Poisoned`].
    pub fn command(&self, position: u64) -> Result<Option<T>, Poisoned> {
        let pending = self.pending()?;
        let count = pending.len() as i64;
        let is_pending = |first: Slot| (0..count).contains(&distance(position, first.position));
        if !pending.clone().next().is_some_and(is_pending) {
            return Ok(None);
        }
        let command = &self.ring.commands[position as usize & (self.ring.commands.len() - 1)];
        // Acquire: as in `CommandRing::execute`.
        if command.cancelled.load(Ordering::Acquire) == position {
            return Ok(None);
        }
        // SAFETY: rung and not completed: as in `CommandRing::execute`.
        Ok(Some(command.operation.with(|operation| unsafe { (*operation).assume_init() })))
    }

    /// See [`Executor::complete`].
    ///
    /// # Errors
    /// [`Poisoned`].
    pub fn complete(&mut self, slots: u32) -> Result<(), Poisoned> {
        self.executor.complete(slots).map(|_| ())
    }

    /// See [`Executor::fail`].
    #[cold]
    pub fn fail(self, status: u32) -> Poisoned {
        self.executor.fail(status)
    }
}

impl<T> fmt::Debug for CommandRing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandRing").field("queue", &self.queue).finish_non_exhaustive()
    }
}
