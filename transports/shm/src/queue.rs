//! The command ring: queue-style operations on memory of this node.
//!
//! A queue is a doorbell queue ([`campanile_core::doorbell`]) in this process's memory; its engine is whoever calls
//! `progress`, on this rank. Operations execute in order, so every signal is strong and every fence is free; what is
//! complete has been copied, so local and remote completion are one. Where the rank has a device, operations on its
//! memory go through a pipeline, in the same order.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use campanile_core::doorbell::{
    Clock, CommandRing, Patience, Poisoned, QueueFault, ReserveError, TicketError, Written,
};
use campanile_core::{
    Agent, Cancelled, Completion, ControlError, Initiator, Op, PostError, Queue, QueueError, QueueOptions, QueueTarget,
    Ticket,
};
use campanile_host::clock::now_ns;

use crate::operations::{Operations, Status};
use crate::pipeline::Pipeline;
use crate::transport::Inner;

/// A clock that starts when it is first looked at: a post that need not wait reads no time.
#[derive(Default)]
struct SinceFirstLook(Cell<Option<u64>>);

impl Clock for SinceFirstLook {
    fn now(&self) -> Duration {
        let now = now_ns();
        let start = self.0.get().unwrap_or(now);
        self.0.set(Some(start));
        Duration::from_nanos(now - start)
    }
}

pub(crate) struct ShmQueue {
    number: u64,
    operations: Operations,
    ring: CommandRing<Op>,
    /// Where the rank has a device.
    pipeline: Option<Pipeline>,
    /// The first failure, with its words.
    failure: OnceLock<QueueError>,
}

impl ShmQueue {
    pub(crate) fn new(
        inner: Arc<Inner>,
        number: u64,
        target: QueueTarget,
        options: QueueOptions,
    ) -> Result<Self, ControlError> {
        let transport = inner.name();
        let unsupported = |reason: String| ControlError::Unsupported { transport, what: "queue", reason };
        let peer = match target {
            QueueTarget::Peer(peer) if inner.peer(peer).is_none() => {
                return Err(unsupported(format!("{peer} is not connected")));
            }
            QueueTarget::Peer(peer) => Some(peer),
            QueueTarget::Engine(0) => None,
            other => return Err(unsupported(format!("{other:?} does not exist; the only engine is 0, the CPU"))),
        };
        if options.initiator == Initiator::Device {
            return Err(unsupported("a device cannot post to a CPU's command ring".to_owned()));
        }
        if options.depth > QueueOptions::MAX_DEPTH {
            let most = QueueOptions::MAX_DEPTH;
            return Err(unsupported(format!("a depth of {}; it is a power of two from 1 to {most}", options.depth)));
        }
        let depth = options.depth as u32;
        let ring = CommandRing::new(depth).map_err(|error| unsupported(error.to_string()))?;
        let engine = inner.devices().map(|devices| devices.engine(options.depth)).transpose();
        let pipeline = engine.map_err(unsupported)?.map(Pipeline::new);
        Ok(Self { number, operations: Operations { inner, peer }, ring, pipeline, failure: OnceLock::new() })
    }

    fn failed(&self, poisoned: Poisoned) -> QueueError {
        let error = self.failure.get_or_init(|| match poisoned.fault {
            QueueFault::Completion { position, status } => {
                let failure = self.pipeline.as_ref().and_then(Pipeline::failure);
                let reason = match failure.filter(|_| status == Status::Device as u32) {
                    Some(failure) => format!("{}: {failure}", Status::describe(status)),
                    None => Status::describe(status),
                };
                QueueError::Completion { queue: self.number, position, reason }
            }
            _ => QueueError::Poisoned { queue: self.number, reason: poisoned.to_string() },
        });
        error.clone()
    }

    fn mark(&self, ticket: Ticket) -> Result<Written, QueueError> {
        if ticket.queue() != self.number {
            return Err(QueueError::ForeignTicket { queue: self.number, given: ticket.queue() });
        }
        Ok(Written::from_raw(ticket.mark()))
    }

    fn ticket_error(&self, ticket: Ticket, error: TicketError) -> QueueError {
        match error {
            TicketError::Poisoned(poisoned) => self.failed(poisoned),
            // A mark beyond all that was written was made up, or is of a queue of another transport.
            _ => QueueError::ForeignTicket { queue: self.number, given: ticket.queue() },
        }
    }
}

impl Queue for ShmQueue {
    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError> {
        for (index, op) in ops.iter().enumerate() {
            self.operations.check(op).map_err(|reason| PostError::Invalid { index, reason })?;
        }
        // What may be waited for here is an earlier producer in the middle of its publish.
        let patience = Patience {
            clock: &SinceFirstLook::default(),
            deadline: self.operations.inner.timeout(),
            abort: &|| self.operations.inner.fault().is_some(),
            relax: &|_| std::thread::yield_now(),
        };
        let posted = self.ring.post(ops, &patience);
        posted.map(|mark| Ticket::new(self.number, mark.raw())).map_err(|error| match error {
            ReserveError::Busy { needed, free } => PostError::Busy { needed: needed as usize, free: free as usize },
            ReserveError::TooLarge { needed, depth, .. } => PostError::TooLarge { needed, depth: depth as usize },
            ReserveError::Poisoned(poisoned) => PostError::Queue(self.failed(poisoned)),
            other => PostError::Queue(QueueError::Poisoned { queue: self.number, reason: other.to_string() }),
        })
    }

    fn ring(&self) -> Result<(), QueueError> {
        // The engine is whoever calls `progress`: there is nobody to wake.
        self.ring.ring(|_| ()).map(|_| ()).map_err(|poisoned| self.failed(poisoned))
    }

    fn flush(&self) -> Ticket {
        Ticket::new(self.number, self.ring.flush().raw())
    }

    fn test(&self, ticket: Ticket, completion: Completion) -> Result<bool, QueueError> {
        match completion {
            Completion::Local | Completion::Remote(Agent::Cpu) => {}
            Completion::Remote(Agent::Gpu) if self.pipeline.is_some() => {}
            Completion::Remote(agent) => {
                return Err(QueueError::Unsupported {
                    queue: self.number,
                    level: format!("{agent:?}"),
                    reason: match self.pipeline {
                        None => format!("transport {} makes memory visible to CPUs", self.operations.inner.name()),
                        Some(_) => format!("transport {} does so to CPUs and GPUs", self.operations.inner.name()),
                    },
                });
            }
        }
        let mark = self.mark(ticket)?;
        self.ring.test(mark).map_err(|error| self.ticket_error(ticket, error))
    }

    fn progress(&self) -> Result<usize, QueueError> {
        let done = match &self.pipeline {
            None => {
                let run = |op: &Op| self.operations.execute(op).map_err(|status| status as u32);
                self.ring.execute(run).map(|done| done as usize)
            }
            Some(pipeline) => pipeline.drive(&self.ring, &self.operations),
        };
        done.map_err(|poisoned| self.failed(poisoned))
    }

    fn cancel(&self, ticket: Ticket) -> Result<Cancelled, QueueError> {
        let mark = self.mark(ticket)?;
        match self.ring.cancel(mark) {
            Ok(true) => Ok(Cancelled::Stopped),
            Ok(false) => Ok(Cancelled::TooLate),
            Err(error) => Err(self.ticket_error(ticket, error)),
        }
    }

    fn describe(&self) -> String {
        self.ring.state().to_string()
    }
}
