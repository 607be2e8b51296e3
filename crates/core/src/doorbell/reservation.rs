//! A reservation: the right to write some slots, and the duty to publish them.

use core::mem;

use super::DoorbellQueue;
use super::counter::{Reserved, Written, distance};
use super::error::Poisoned;
use super::fault::QueueFault;
use super::patience::{Patience, Stop};
use crate::sync::atomic::Ordering;

/// Whether the slots of a reservation may run over the end of the ring to its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrap {
    /// They may: each operation fits into one slot, or the engine follows the wrap.
    Allowed,
    /// They may not: if they would, slots up to the end of the ring are reserved in front of them as padding.
    ///
    /// Such a reservation is limited to half the depth (rounded up), so that padding and slots together always fit,
    /// wherever the ring stands.
    Padded,
}

/// One slot: where it is counted, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Slots before it since the queue began, modulo 2^64.
    pub position: u64,
    /// Its place in the ring: the position modulo the depth.
    pub index: usize,
}

/// A run of consecutive slots, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    start: u64,
    count: u32,
    mask: u32,
}

impl Slots {
    pub(super) fn new(start: u64, count: u32, depth: u32) -> Self {
        Self { start, count, mask: depth - 1 }
    }
}

impl Iterator for Slots {
    type Item = Slot;

    #[inline]
    fn next(&mut self) -> Option<Slot> {
        self.count = self.count.checked_sub(1)?;
        let slot = Slot { position: self.start, index: (self.start as u32 & self.mask) as usize };
        self.start = self.start.wrapping_add(1);
        Some(slot)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count as usize, Some(self.count as usize))
    }
}

impl DoubleEndedIterator for Slots {
    #[inline]
    fn next_back(&mut self) -> Option<Slot> {
        self.count = self.count.checked_sub(1)?;
        let position = self.start.wrapping_add(u64::from(self.count));
        Some(Slot { position, index: (position as u32 & self.mask) as usize })
    }
}

impl ExactSizeIterator for Slots {}

/// Slots that belong to one producer until it publishes them, all at once.
///
/// The owner writes every slot of [`padding`](Self::padding) with a no-operation and every slot of
/// [`slots`](Self::slots) with its operations, then calls [`publish`](Self::publish). Nobody else can: the engine is
/// never told of slots that were not published, and later reservations wait behind this one. Between the two calls the
/// owner waits for nothing that needs the queue, least of all for more slots of it.
///
/// Dropping it unpublished poisons the queue at once ([`QueueFault::Abandoned`]): a drop cannot wait for its turn, must
/// not step over the slots, and cannot hand them back, since counters never go back. An owner that has changed its mind
/// writes no-operations and publishes them. One that vanishes without a drop (`mem::forget`, a killed process) is found
/// by the deadline of the next producer ([`QueueFault::ProducerStalled`]).
#[derive(Debug)]
#[must_use = "an unpublished reservation poisons its queue when dropped"]
pub struct Reservation<'q> {
    queue: &'q DoorbellQueue,
    start: Reserved,
    padding: u32,
    slots: u32,
}

impl<'q> Reservation<'q> {
    pub(super) fn new(queue: &'q DoorbellQueue, start: Reserved, padding: u32, slots: u32) -> Self {
        Self { queue, start, padding, slots }
    }

    /// Slots to be filled with no-operations, before [`slots`](Self::slots); none with [`Wrap::Allowed`].
    pub fn padding(&self) -> Slots {
        Slots::new(self.start.raw(), self.padding, self.queue.depth)
    }

    /// The slots that were asked for.
    #[inline]
    pub fn slots(&self) -> Slots {
        let start = self.start.raw().wrapping_add(u64::from(self.padding));
        Slots::new(start, self.slots, self.queue.depth)
    }

    /// Waits until all earlier reservations are published, and publishes this one: `Written` moves to its end.
    ///
    /// Returns the ticket of its last slot (without slots: that of a [`flush`](DoorbellQueue::flush)). The engine does
    /// not know of it before somebody [rings](DoorbellQueue::ring).
    ///
    /// # Errors
    /// [`Poisoned`], and the slots are never executed: if the queue was poisoned before; if the turn did not come before
    /// the deadline or the abort, since then these slots can be neither published nor skipped; if `Written` is found
    /// beyond the turn.
    #[inline]
    pub fn publish(self, patience: &Patience<'_>) -> Result<Written, Poisoned> {
        let written = &self.queue.counters.written;
        let count = self.padding + self.slots;
        if count == 0 {
            self.queue.check()?;
            return Ok(self.queue.flush());
        }
        let start = self.start.raw();
        // Where the turn was when last seen: whose owner to name if it does not come here.
        let mut turn = start;
        let waited = patience.until(|| {
            self.queue.check()?;
            // Acquire: the slots of earlier owners are made visible by the store below, too.
            turn = written.load(Ordering::Acquire).raw();
            match distance(turn, start) {
                0 => Ok(true),
                1.. => Err(self.queue.poison(QueueFault::Overrun { position: start })),
                _ => Ok(false),
            }
        })?;
        if let Err(stop) = waited {
            return Err(self.queue.poison(match stop {
                Stop::Deadline => QueueFault::ProducerStalled { position: turn },
                Stop::Aborted => QueueFault::Aborted { position: turn },
            }));
        }
        let end = Written::from_raw(start.wrapping_add(u64::from(count)));
        // Release: whoever sees the slots counted sees them written. A plain store, as the turn is exclusive.
        written.store(end, Ordering::Release);
        mem::forget(self);
        Ok(end)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.padding + self.slots > 0 {
            self.queue.poison(QueueFault::Abandoned { position: self.start.raw() });
        }
    }
}
