//! The executor: the one that takes rung slots off the queue.

use super::DoorbellQueue;
use super::counter::{Completed, distance};
use super::error::Poisoned;
use super::fault::QueueFault;
use super::reservation::Slots;
use crate::sync::atomic::Ordering;

/// The exclusive right to execute or to account for slots; given back when dropped.
///
/// For a ring in process memory it is the engine. For a hardware ring it is the role of the thread that reads the
/// completion queue and passes on what it learns.
#[derive(Debug)]
pub struct Executor<'q> {
    queue: &'q DoorbellQueue,
    /// `Completed`, which nobody else writes meanwhile.
    completed: Completed,
}

impl<'q> Executor<'q> {
    /// Takes the role if it is free.
    pub(super) fn claim(queue: &'q DoorbellQueue) -> Option<Self> {
        let executing = &queue.counters.executing;
        // Acquire: what the last executor completed is seen, so that no slot is executed twice.
        executing
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| Self { queue, completed: queue.counters.completed.load(Ordering::Relaxed) })
    }

    /// The slots that are rung and not completed, in order: a snapshot, at most one depth of them.
    ///
    /// # Errors
    /// [`Poisoned`]: nothing more may be executed.
    #[inline]
    pub fn pending(&self) -> Result<Slots, Poisoned> {
        self.queue.check()?;
        // Acquire: the content of these slots is seen.
        let rung = self.queue.counters.rung.load(Ordering::Acquire).raw();
        let start = self.completed.raw();
        match distance(rung, start) {
            count if (0..=i64::from(self.queue.depth)).contains(&count) => {
                Ok(Slots::new(start, count as u32, self.queue.depth))
            }
            _ => Err(self.queue.poison(QueueFault::Overrun { position: rung })),
        }
    }

    /// Counts the next `slots` slots as finished: they may be reserved again, and their tickets are complete.
    ///
    /// # Errors
    /// [`Poisoned`] with [`QueueFault::Overrun`] if that would pass what was rung; nothing is counted then.
    #[inline]
    pub fn complete(&mut self, slots: u32) -> Result<Completed, Poisoned> {
        let end = self.completed.raw().wrapping_add(u64::from(slots));
        let rung = self.queue.counters.rung.load(Ordering::Relaxed).raw();
        if distance(rung, end) < 0 {
            return Err(self.queue.poison(QueueFault::Overrun { position: rung }));
        }
        self.completed = Completed::from_raw(end);
        // Release: the slots have been read and the operations' effects are there before anybody learns of it.
        self.queue.counters.completed.store(self.completed, Ordering::Release);
        Ok(self.completed)
    }

    /// Records that the next slot failed with the engine's own `status`: sticky, the queue stops there.
    ///
    /// Slots before it must have been [completed](Self::complete). Returns the error that everybody will see: this one,
    /// or one that came first.
    #[cold]
    pub fn fail(self, status: u32) -> Poisoned {
        self.queue.poison(QueueFault::Completion { position: self.completed.raw(), status })
    }
}

impl Drop for Executor<'_> {
    fn drop(&mut self) {
        self.queue.counters.executing.store(false, Ordering::Release);
    }
}
