//! Queues: posting executes, so every ticket that was given is complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use campanile_core::{
    Agent, Cancelled, Completion, LocalAddress, Op, PostError, Queue, QueueError, RemoteAddress, SignalAction, Ticket,
};

use crate::world::{End, World};

pub struct InprocQueue {
    pub number: u64,
    pub own: Arc<End>,
    pub peer: Arc<End>,
    pub depth: usize,
    pub posted: AtomicU64,
}

/// An operation whose addresses were checked, under the lock that they need.
#[derive(Default)]
struct Checked {
    copy: Option<(*const u8, *mut u8, usize)>,
    signal: Option<(*mut u8, u64, SignalAction)>,
}

impl InprocQueue {
    fn local(&self, world: &World, at: LocalAddress, bytes: u64) -> Option<*mut u8> {
        world.range(self.own.id, at.region.0, self.own.id, at.offset, bytes)
    }

    fn remote(&self, world: &World, at: RemoteAddress, bytes: u64) -> Option<*mut u8> {
        world.range(self.own.id, at.region.0, self.peer.id, at.offset, bytes)
    }

    /// `None` if it is not legal.
    fn check(&self, world: &World, op: &Op) -> Option<Checked> {
        let put = |source, target, bytes| {
            Some((self.local(world, source, bytes)?.cast_const(), self.remote(world, target, bytes)?, bytes as usize))
        };
        let (copy, signal) = match op {
            &Op::Put { source, target, bytes } => (Some(put(source, target, bytes)?), None),
            &Op::PutSignal { source, target, bytes, signal } => (Some(put(source, target, bytes)?), Some(signal)),
            Op::Signal(signal) => (None, Some(*signal)),
            Op::Fence => (None, None), // In order anyway.
            _ => return None,
        };
        let signal = match signal {
            Some(signal) => {
                let word = self.remote(world, signal.target, 8)?;
                let aligned = signal.target.offset.is_multiple_of(8) && word.cast::<AtomicU64>().is_aligned();
                Some(aligned.then_some((word, signal.value, signal.action))?)
            }
            None => None,
        };
        Some(Checked { copy, signal })
    }
}

impl Checked {
    fn execute(&self) {
        if let Some((from, to, bytes)) = self.copy {
            // SAFETY: both ranges were checked under the lock that is still held, and a region needs it to go away. Races
            // are the callers' (the ordering contract); a put to oneself may overlap.
            unsafe { std::ptr::copy(from, to, bytes) }
        }
        if let Some((word, value, action)) = self.signal {
            // SAFETY: as above; aligned, and words are only accessed as atomics (the ordering contract).
            let word = unsafe { AtomicU64::from_ptr(word.cast()) };
            // Release: whoever acquires the word sees the bytes.
            match action {
                SignalAction::Set => word.store(value, Ordering::Release),
                SignalAction::Add => _ = word.fetch_add(value, Ordering::Release),
            }
        }
    }
}

impl Queue for InprocQueue {
    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError> {
        let world = World::get();
        // All of a list or nothing: every operation is checked before the first is executed.
        for (index, op) in ops.iter().enumerate() {
            self.check(&world, op).ok_or_else(|| PostError::Invalid {
                index,
                reason:
                    "it is not known here, or names a region that does not exist (any more), a range outside it, or a \
                         word that is not 8-byte aligned"
                        .to_owned(),
            })?;
        }
        if ops.len() > self.depth {
            return Err(PostError::TooLarge { needed: ops.len(), depth: self.depth });
        }
        for op in ops {
            self.check(&world, op).unwrap_or_default().execute();
        }
        let count = ops.len() as u64;
        Ok(Ticket::new(self.number, self.posted.fetch_add(count, Ordering::AcqRel) + count))
    }

    fn ring(&self) -> Result<(), QueueError> {
        Ok(())
    }

    fn flush(&self) -> Ticket {
        Ticket::new(self.number, self.posted.load(Ordering::Acquire))
    }

    fn test(&self, ticket: Ticket, completion: Completion) -> Result<bool, QueueError> {
        let queue = self.number;
        if let Completion::Remote(agent @ (Agent::Gpu | Agent::Nic)) = completion {
            let reason = "memory becomes visible to CPUs".to_owned();
            return Err(QueueError::Unsupported { queue, level: format!("{agent:?}"), reason });
        }
        if ticket.queue() != queue || ticket.mark() > self.posted.load(Ordering::Acquire) {
            return Err(QueueError::ForeignTicket { queue, given: ticket.queue() });
        }
        Ok(true)
    }

    fn progress(&self) -> Result<usize, QueueError> {
        Ok(0) // Nothing is ever left to do.
    }

    fn cancel(&self, ticket: Ticket) -> Result<Cancelled, QueueError> {
        self.test(ticket, Completion::Local).map(|_| Cancelled::TooLate)
    }

    fn describe(&self) -> String {
        format!("queue {} to {}: {} operations posted and done", self.number, self.peer.rank, self.flush().mark())
    }
}
