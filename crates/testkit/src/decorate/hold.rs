//! Holding back: queues whose operations reach the transport later, in an order that a schedule decides.
//!
//! A [`HeldQueue`](queue) takes posts, checks them at once, and hands each operation to the queue that it is around when its
//! time has come. That is done by whoever posts, rings or makes progress, and by the [`Engine`], a thread of the transport:
//! what was rung leaves in time although its rank computes or waits for something else, as on a network. Tickets are the
//! held queue's own: one is fulfilled when every operation up to it has left and is complete below.
//!
//! A decorator is a [`Policy`]: it changes caps and gives each queue a [`Schedule`].

mod engine;
mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use campanile_core::{
    Caps, ControlError, MemoryKind, Op, OpKind, OpenError, OpenOptions, PeerClass, Queue, QueueOptions, QueueTarget,
    Rank, Shutdown, Strength, Transport, Wait, WaitError,
};

use self::engine::Engine;
use self::queue::HeldQueue;
use super::{Regions, TransportLayer, decorated_transport};

/// What a decorator that holds operations back decides.
pub(super) trait Policy: Send + Sync + 'static {
    /// What is left of the caps.
    fn caps(&self, caps: Caps) -> Caps {
        caps
    }

    /// For a queue that was made `number`th, from 0, by its rank.
    fn schedule(&self, number: u64, options: QueueOptions) -> Box<dyn Schedule>;
}

/// What becomes of the operations of one queue.
pub(super) trait Schedule: Send {
    /// A list is about to be posted: what its completion will be, or why the queue fails instead.
    fn begin(&mut self) -> Result<Fate, String> {
        Ok(Fate::Complete)
    }

    /// Whether the queue takes the operation; why not.
    fn admit(&self, _op: &Op) -> Result<(), String> {
        Ok(())
    }

    /// When an operation for `peer` that was rung at `now` (ns) may leave.
    fn due(&mut self, op: &Op, peer: Option<Rank>, now: u64) -> u64;

    /// Whether `later` may leave before `earlier`, which was posted before it.
    fn overtakes(&self, _later: &Op, _earlier: &Op) -> bool {
        false
    }

    /// What is handed on in place of an operation.
    fn deliver(&self, op: Op) -> Op {
        op
    }
}

/// What the completion of a list will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its own.
    Complete,
    /// An error; its last operation does not leave.
    Fail,
    /// None: it leaves, but is never seen to complete.
    Lose,
}

/// What the contract lets leave out of order: puts and gets, but for fences, and but for strong signals that would then
/// come before an earlier put. Words are left alone: those of signals and atomics keep their order.
pub(super) fn may_overtake(later: &Op, earlier: &Op) -> bool {
    let moves = |op: &Op| matches!(op.kind(), OpKind::Put | OpKind::PutInline | OpKind::Get);
    let fenced = matches!(later, Op::Fence) || matches!(earlier, Op::Fence);
    let is_strong = later.signal().is_some_and(|signal| signal.strength == Strength::Strong);
    !fenced && !is_strong && (moves(later) || moves(earlier))
}

/// A transport whose queues hold back.
pub(super) fn hold(
    name: &'static str,
    inner: Arc<dyn Transport>,
    options: &OpenOptions,
    policy: impl Policy,
) -> Result<Arc<dyn Transport>, OpenError> {
    let engine = Engine::start(options.rank).map_err(|error| OpenError::System {
        transport: inner.info().name,
        reason: format!("starting the thread of decorator {name}: {error}"),
    })?;
    let layer = Holding { engine, inner, policy, regions: Arc::default(), timeout: options.timeout };
    Ok(decorated_transport(name, layer))
}

struct Holding<P> {
    /// Ends before the transport does.
    engine: Engine,
    inner: Arc<dyn Transport>,
    policy: P,
    regions: Arc<Regions>,
    timeout: Duration,
}

impl<P: Policy> TransportLayer for Holding<P> {
    fn inner(&self) -> &dyn Transport {
        &*self.inner
    }

    fn hides_load_store(&self) -> bool {
        true
    }

    fn regions(&self) -> Option<&Arc<Regions>> {
        Some(&self.regions)
    }

    fn caps(&self, class: PeerClass, memory: MemoryKind, op: OpKind) -> Option<Caps> {
        self.inner.caps(class, memory, op).map(|caps| self.policy.caps(caps))
    }

    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
        let inner = self.inner.queue(target, options)?;
        let add = |number| {
            let schedule = self.policy.schedule(number, options);
            HeldQueue::new(inner, target, options.depth, schedule, Arc::clone(&self.regions), self.engine.bell())
        };
        Ok(self.engine.add(add))
    }

    fn signal_wait(&self, wait: &Wait<'_>) -> Result<u64, WaitError> {
        let (offset, bytes) = (wait.offset, wait.region.bytes());
        // What is no word is refused below.
        if offset.is_multiple_of(8) && bytes >= 8 && offset <= bytes - 8 && wait.region.kind() == MemoryKind::Host {
            // SAFETY: inside the region and aligned; alive as long as `wait` borrows the region; words are only
            // accessed as atomics (the ordering contract).
            let word = unsafe { AtomicU64::from_ptr(wait.region.address().add(offset).cast()) };
            self.engine.help_until(|| wait.condition.holds(word.load(Ordering::Acquire)));
        }
        self.inner.signal_wait(wait)
    }

    fn shutdown(&self, mode: Shutdown) -> Result<(), ControlError> {
        let drained = match mode {
            Shutdown::Drain => self.engine.drain(self.timeout),
            Shutdown::Abort => Ok(()),
        };
        self.engine.stop();
        self.inner.shutdown(mode).and(drained)
    }
}
