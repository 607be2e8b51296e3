//! A member: one connected rank of a case, with a window that all reach.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{
    Agent, Caps, Completion, Condition, Endpoint, Op, OpKind, PostError, Queue, QueueOptions, QueueTarget, Rank,
    Shutdown, SignalAction, SignalUpdate, Strength, Ticket, Transport, Wait, WaitError,
};
use campanile_host::process::Pidfd;

use super::finding::{End, Expected, Proof, failed};
use super::stage::{Stage, until};
use super::window::Window;

/// Bytes of a member's window.
pub(super) const BYTES: usize = 256 << 10;
/// From here on there are words.
pub(super) const WORDS: usize = 192 << 10;

/// One rank.
pub(super) struct Member<'a> {
    pub(super) stage: &'a Stage,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) window: Window,
}

impl<'a> Member<'a> {
    /// Opens, connects, and makes a window of [`BYTES`]. Collective.
    pub(super) fn join(stage: &'a Stage) -> Proof<Self> {
        Self::join_with(stage, BYTES, stage.timeout())
    }

    /// As [`join`](Self::join), with a window of `bytes` and waits of at most `timeout`.
    pub(super) fn join_with(stage: &'a Stage, bytes: usize, timeout: Duration) -> Proof<Self> {
        let transport = stage.open_within(timeout)?;
        let endpoints = stage.connect(&*transport)?;
        let window = Window::new(stage, &*transport, bytes)?;
        Ok(Self { stage, transport, endpoints, window })
    }

    pub(super) fn rank(&self) -> usize {
        self.stage.rank()
    }

    /// What the transport claims of an operation on a peer's memory. Cases ask for what they need first.
    pub(super) fn caps(&self, peer: usize, op: OpKind) -> Proof<Caps> {
        let class = self.endpoints[peer].class;
        let caps = self.transport.caps(class, self.stage.memory(), op);
        caps.ok_or_else(|| failed(format!("caps of {op:?} for a peer that is {class}"), "none"))
    }

    /// `bytes`, or the most that one operation on a peer's memory may move if that is less.
    pub(super) fn at_most(&self, bytes: usize, peer: usize, op: OpKind) -> Proof<usize> {
        Ok(bytes.min(usize::try_from(self.caps(peer, op)?.max_bytes).unwrap_or(usize::MAX)))
    }

    pub(super) fn queue(&self, peer: usize, depth: usize) -> Proof<Arc<dyn Queue>> {
        let options = QueueOptions { depth, ..QueueOptions::default() };
        self.transport.queue(QueueTarget::Peer(Rank::new(peer)), options).expected("a queue")
    }

    /// A put from `from` of this rank's window to `to` of a peer's.
    pub(super) fn put(&self, from: usize, peer: usize, to: usize, bytes: usize) -> Op {
        Op::Put { source: self.window.local(from), target: self.window.remote(peer, to), bytes: bytes as u64 }
    }

    pub(super) fn set(&self, peer: usize, at: usize, value: u64, strength: Strength) -> SignalUpdate {
        SignalUpdate { target: self.window.remote(peer, at), action: SignalAction::Set, value, strength }
    }

    pub(super) fn add(&self, peer: usize, at: usize, value: u64) -> SignalUpdate {
        SignalUpdate { action: SignalAction::Add, ..self.set(peer, at, value, Strength::Strong) }
    }

    /// A signal that brings a word, which this queue alone changes, from `from` to `by` more: an addition where the
    /// transport has one, so that what is done twice shows.
    pub(super) fn raise(&self, peer: usize, at: usize, from: u64, by: u64) -> Proof<SignalUpdate> {
        Ok(match self.caps(peer, OpKind::PutSignal)?.signal.add {
            true => self.add(peer, at, by),
            false => self.set(peer, at, from.wrapping_add(by), Strength::Strong),
        })
    }

    /// Posts, making room while the queue is busy.
    pub(super) fn post(&self, queue: &dyn Queue, ops: &[Op]) -> Proof<Ticket> {
        let posted = until(self.stage.timeout(), || match queue.post(ops) {
            Ok(ticket) => Ok(Some(ticket)),
            Err(PostError::Busy { .. }) => {
                queue.ring().expected("a ring")?;
                queue.progress().expected("progress")?;
                Ok(None)
            }
            Err(error) => Err(failed("a legal list to be accepted", error)),
        })?;
        posted.ok_or_else(|| failed("room after progress", format!("a busy queue: {}", queue.describe())))
    }

    /// Waits until a ticket is complete at the target.
    pub(super) fn finish(&self, queue: &dyn Queue, ticket: Ticket) -> Proof {
        let waited = queue.wait(ticket, Completion::Remote(Agent::Cpu), self.stage.timeout());
        waited.expected("remote completion")
    }

    /// Posts and waits until all is complete at the target.
    pub(super) fn execute(&self, queue: &dyn Queue, ops: &[Op]) -> Proof {
        let ticket = self.post(queue, ops)?;
        self.finish(queue, ticket)
    }

    /// Waits for a word of this rank's window to be at least `value`.
    pub(super) fn wait(&self, peer: usize, at: usize, value: u64) -> Result<u64, WaitError> {
        self.wait_for(peer, at, Condition::AtLeast(value))
    }

    pub(super) fn wait_for(&self, peer: usize, at: usize, condition: Condition) -> Result<u64, WaitError> {
        self.wait_in(&self.window, peer, at, condition)
    }

    /// As [`wait_for`](Self::wait_for), of another window.
    pub(super) fn wait_in(
        &self,
        window: &Window,
        peer: usize,
        at: usize,
        condition: Condition,
    ) -> Result<u64, WaitError> {
        self.transport.signal_wait(&Wait {
            region: &window.region,
            offset: at,
            condition,
            peer: Rank::new(peer),
            operation: "conformance",
            slot: "word",
            epoch: 0,
        })
    }

    /// As [`wait`](Self::wait), where the signal must come.
    pub(super) fn arrived(&self, peer: usize, at: usize, value: u64) -> Proof<u64> {
        self.wait(peer, at, value).expected("the signal")
    }

    /// As [`arrived`](Self::arrived), but looks at the word by itself first, for a while: a waiter that the transport wakes may
    /// come too late to see what is not there yet.
    pub(super) fn arrived_soon(&self, peer: usize, at: usize, value: u64) -> Proof<u64> {
        for _ in 0..if self.window.is_near() { 20_000 } else { 20 } {
            let seen = self.window.load(at)?;
            if Condition::AtLeast(value).holds(seen) {
                return Ok(seen);
            }
            std::hint::spin_loop();
        }
        self.arrived(peer, at, value)
    }

    /// Waits for all ranks, then leaves.
    pub(super) fn end(self) -> Proof {
        self.stage.meet()?;
        self.transport.shutdown(Shutdown::Drain).expected("a shutdown")
    }

    /// Dies, as [`die`] says.
    pub(super) fn die(self) -> Proof {
        die(self.stage, self)
    }
}

/// Dies with what it has of a transport. A process is killed by SIGKILL in the middle of life: nothing of it ends in any
/// order, and this does not return. Where ranks are threads it is dropped.
pub(super) fn die<T>(stage: &Stage, held: T) -> Proof {
    if !stage.are_processes() {
        drop(held);
        return Ok(());
    }
    // The dead cannot tell how they ended.
    stage.put_end(&End::Done).expected("the bootstrap")?;
    kill(campanile_host::process::Signal::KILL)
}

/// Sends this process a signal.
pub(super) fn kill(signal: campanile_host::process::Signal) -> Proof {
    let this = Pidfd::open(std::process::id()).expected("this process")?;
    this.send_signal(signal).expected("a signal to this process")
}
