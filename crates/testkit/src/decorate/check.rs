//! Check: misuse of the contract by callers, as errors that say what they did.
//!
//! | misuse | error |
//! |---|---|
//! | a source changed, or its region dropped, before local completion | [`QueueError::Completion`], sticky |
//! | a ticket of another queue, also of another transport | [`QueueError::ForeignTicket`] |
//! | memory outside a region, a region dropped or unknown or of another peer, a word that is not 8-byte aligned | [`PostError::Invalid`] |
//! | a post after shutdown | [`PostError::Invalid`] |
//! | a queue, memory, export or import asked for after shutdown | [`ControlError::Unsupported`] |
//!
//! Sources in host memory are summed up when they are posted and once more when the transport says that they are
//! reusable, before the caller is told so: a legal caller has not touched them yet. A put to the rank itself may overlap
//! its source and is left out; a change that is undone in time is not seen. Reading all sources twice makes large puts
//! about three times as dear.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use campanile_core::{
    Cancelled, Completion, ControlError, LocalAddress, MemoryKind, Op, OpenError, OpenOptions, PostError, Queue,
    QueueError, QueueOptions, QueueTarget, Rank, Region, RemoteRegion, Request, Shutdown, Ticket, Transport,
};

use super::{Decorator, QueueLayer, Regions, TransportLayer, decorated_queue, decorated_transport};

pub(super) const NAME: &str = "check";

/// Queues of this decorator have numbers that no other queue of the process has.
static QUEUES: AtomicU64 = AtomicU64::new(1 << 48);

/// Makes misuse of the contract an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Check;

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

impl Decorator for Check {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decorate(&self, inner: Arc<dyn Transport>, options: &OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        let ended = Arc::new(AtomicBool::new(false));
        let layer = CheckTransport { inner, rank: options.rank, regions: Arc::default(), ended };
        Ok(decorated_transport(NAME, layer))
    }
}

struct CheckTransport {
    inner: Arc<dyn Transport>,
    rank: Rank,
    regions: Arc<Regions>,
    ended: Arc<AtomicBool>,
}

impl CheckTransport {
    fn live(&self, what: &'static str) -> Result<(), ControlError> {
        if !self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        let reason = "the caller shut the transport down before; ask before, or open another one".to_owned();
        Err(ControlError::Unsupported { transport: self.inner.info().name, what, reason })
    }
}

impl TransportLayer for CheckTransport {
    fn inner(&self) -> &dyn Transport {
        &*self.inner
    }

    fn hides_load_store(&self) -> bool {
        true
    }

    fn regions(&self) -> Option<&Arc<Regions>> {
        Some(&self.regions)
    }

    fn allocate(&self, bytes: usize, kind: MemoryKind) -> Request<Region> {
        self.live("allocate").map_or_else(|error| Request::done(Err(error)), |()| self.inner.allocate(bytes, kind))
    }

    fn export(&self, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError> {
        self.live("export")?;
        self.inner.export(region, peers)
    }

    fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion> {
        self.live("import").map_or_else(|error| Request::done(Err(error)), |()| self.inner.import(peer, blob))
    }

    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
        self.live("queue")?;
        let inner = self.inner.queue(target, options)?;
        let peer = match target {
            QueueTarget::Peer(peer) => Some(peer),
            _ => None,
        };
        Ok(decorated_queue(CheckQueue {
            below: inner.flush().queue(),
            number: QUEUES.fetch_add(1, Ordering::Relaxed),
            inner,
            rank: self.rank,
            peer,
            regions: Arc::clone(&self.regions),
            ended: Arc::clone(&self.ended),
            pending: Mutex::default(),
            failure: OnceLock::new(),
        }))
    }

    fn shutdown(&self, mode: Shutdown) -> Result<(), ControlError> {
        self.ended.store(true, Ordering::Release);
        self.inner.shutdown(mode)
    }
}

struct CheckQueue {
    inner: Arc<dyn Queue>,
    /// The number of the queue below, and ours.
    below: u64,
    number: u64,
    rank: Rank,
    peer: Option<Rank>,
    regions: Arc<Regions>,
    ended: Arc<AtomicBool>,
    /// Sources that are not known to be reusable, in the order of posting.
    pending: Mutex<VecDeque<Source>>,
    failure: OnceLock<QueueError>,
}

/// A source, and the ticket below that makes it reusable.
struct Source {
    ticket: Ticket,
    at: LocalAddress,
    bytes: u64,
    sum: u64,
}

impl CheckQueue {
    fn check(&self) -> Result<(), QueueError> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Source>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn below(&self, ticket: Ticket) -> Result<Ticket, QueueError> {
        if ticket.queue() != self.number {
            return Err(QueueError::ForeignTicket { queue: self.number, given: ticket.queue() });
        }
        Ok(Ticket::new(self.below, ticket.mark()))
    }

    /// Looks at the sources that have become reusable.
    fn settle(&self) -> Result<(), QueueError> {
        let mut pending = self.lock();
        // An error below is told by the call that it belongs to.
        while pending.front().is_some_and(|source| self.inner.test(source.ticket, Completion::Local) == Ok(true)) {
            let source = pending.pop_front().expect("it is at the front");
            let (key, offset, bytes) = (source.at.region.0, source.at.offset, source.bytes);
            let did = match self.regions.with(source.at, bytes, sum) {
                Some(sum) if sum == source.sum => continue,
                Some(_) => "changed",
                None => "dropped",
            };
            let reason = format!(
                "the caller {did} the source of a put, {bytes} bytes at offset {offset} of local region {key:#x}, before \
                 local completion; wait for the ticket of the post, or of a flush after it, first"
            );
            let position = source.ticket.mark();
            let _ = self.failure.set(QueueError::Completion { queue: self.number, position, reason });
        }
        self.check()
    }

    fn source_of(&self, op: &Op) -> Option<(LocalAddress, u64, u64)> {
        let (Op::Put { source, target, bytes } | Op::PutSignal { source, target, bytes, .. }) = *op else {
            return None;
        };
        let overlaps = self.regions.owner(target.region) == Some(self.rank);
        let sum = if overlaps || bytes == 0 { None } else { self.regions.with(source, bytes, sum) };
        sum.map(|sum| (source, bytes, sum))
    }
}

impl QueueLayer for CheckQueue {
    fn inner(&self) -> &dyn Queue {
        &*self.inner
    }

    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError> {
        self.settle()?;
        if self.ended.load(Ordering::Acquire) {
            let reason = "the caller posts after it shut the transport down; shut down last".to_owned();
            return Err(PostError::Invalid { index: 0, reason });
        }
        for (index, op) in ops.iter().enumerate() {
            self.regions.check(op, self.peer).map_err(|reason| PostError::Invalid { index, reason })?;
        }
        let sources: Vec<_> = ops.iter().filter_map(|op| self.source_of(op)).collect();
        let ticket = self.inner.post(ops)?;
        let source = |(at, bytes, sum)| Source { ticket, at, bytes, sum };
        self.lock().extend(sources.into_iter().map(source));
        Ok(Ticket::new(self.number, ticket.mark()))
    }

    fn ring(&self) -> Result<(), QueueError> {
        self.check()?;
        self.inner.ring()
    }

    fn flush(&self) -> Ticket {
        Ticket::new(self.number, self.inner.flush().mark())
    }

    fn test(&self, ticket: Ticket, completion: Completion) -> Result<bool, QueueError> {
        let done = self.inner.test(self.below(ticket)?, completion);
        self.settle()?;
        done
    }

    fn progress(&self) -> Result<usize, QueueError> {
        let done = self.inner.progress();
        self.settle()?;
        done
    }

    fn cancel(&self, ticket: Ticket) -> Result<Cancelled, QueueError> {
        let cancelled = self.inner.cancel(self.below(ticket)?);
        self.settle()?;
        cancelled
    }

    fn wait(&self, ticket: Ticket, completion: Completion, timeout: Duration) -> Result<(), QueueError> {
        let waited = self.inner.wait(self.below(ticket)?, completion, timeout);
        self.settle()?;
        waited
    }
}

/// A sum of bytes: FNV-1a (Fowler, Noll, Vo 1991) over words of eight, with the high half folded in.
fn sum(address: *const u8, bytes: usize) -> u64 {
    const PRIME: u64 = 0x100_0000_01b3;
    let fold = |sum: u64, word: u64| {
        let mixed = (sum ^ word).wrapping_mul(PRIME);
        mixed ^ (mixed >> 32)
    };
    let mut state = 0xcbf2_9ce4_8422_2325;
    for at in (0..bytes).step_by(8) {
        let mut word = [0; 8];
        let left = (bytes - at).min(8);
        // SAFETY: inside `bytes` at `address`, which the caller lends; that nobody writes there meanwhile is what is
        // checked, and a torn read is a change like any other.
        unsafe { std::ptr::copy_nonoverlapping(address.add(at), word.as_mut_ptr(), left) };
        state = fold(state, u64::from_le_bytes(word));
    }
    state
}
