//! Stats: what was posted, to whom, and what was waited for.
//!
//! Counting is a few relaxed additions an operation. Stores through mapped pointers are not seen; force path `queue` to
//! have everything go by queues.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use campanile_core::{
    Completion, ControlError, Op, OpKind, OpenError, OpenOptions, PostError, Queue, QueueError, QueueOptions,
    QueueTarget, Rank, Ticket, Transport, Wait, WaitError,
};

use super::{Decorator, QueueLayer, Regions, TransportLayer, decorated_queue, decorated_transport};

pub(super) const NAME: &str = "stats";

const KINDS: [(OpKind, &str); 6] = [
    (OpKind::Put, "put"),
    (OpKind::PutSignal, "signal"),
    (OpKind::PutInline, "inline"),
    (OpKind::Get, "get"),
    (OpKind::Atomic, "atomic"),
    (OpKind::Fence, "fence"),
];

fn index(kind: OpKind) -> usize {
    KINDS.iter().position(|(known, _)| *known == kind).expect("the table has every kind")
}

/// Counts calls. A clone counts into the same tables; a transport that is opened gets one of its own, which is logged when
/// it ends.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    tables: Arc<Mutex<Vec<Arc<Table>>>>,
}

impl Stats {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was counted until now, by rank.
    pub fn snapshot(&self) -> Snapshot {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ranks: Vec<_> = tables.iter().map(|table| table.snapshot()).collect();
        ranks.sort_by_key(|stats| stats.rank);
        Snapshot { ranks }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

impl Decorator for Stats {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decorate(&self, inner: Arc<dyn Transport>, options: &OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        let table = Arc::new(Table::new(options.rank, options.ranks));
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&table));
        Ok(decorated_transport(NAME, StatsTransport { inner, table, regions: Arc::default() }))
    }
}

/// Operations and the bytes that they moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub operations: u64,
    /// Bytes of their payloads; the words of signals and atomics are not counted.
    pub bytes: u64,
}

/// What one rank posted for one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStats {
    /// The peer.
    pub peer: Rank,
    counts: [Count; KINDS.len()],
}

impl PeerStats {
    /// Of one kind of operations; [`OpKind::PutSignal`] counts puts with a signal and signals alone.
    pub fn of(&self, kind: OpKind) -> Count {
        self.counts[index(kind)]
    }
}

/// What one rank did through one transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankStats {
    /// The rank.
    pub rank: Rank,
    /// Lists that were posted.
    pub posts: u64,
    /// Posts that were refused for now.
    pub busy: u64,
    /// Posts that were refused for good.
    pub refused: u64,
    /// Waits for tickets.
    pub queue_waits: u64,
    /// Waits for signals.
    pub signal_waits: u64,
    /// Time in waits of both kinds, summed over threads.
    pub waited: Duration,
    /// By peer, every rank of the job.
    pub peers: Vec<PeerStats>,
    /// Fences of queues that lead to all peers.
    pub engine_fences: u64,
}

/// What was counted; printed as a few lines a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// By rank; a rank that opened several transports has one entry for each.
    pub ranks: Vec<RankStats>,
}

impl fmt::Display for RankStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, posts, busy, refused, queue_waits, signal_waits, waited, .. } = self;
        write!(
            f,
            "{rank}: {posts} posts ({busy} busy, {refused} refused), {queue_waits} queue waits, {signal_waits} signal \
             waits, waited {waited:.1?}"
        )?;
        for peer in &self.peers {
            let counted = KINDS.iter().zip(&peer.counts).filter(|(_, count)| count.operations > 0);
            let kinds: Vec<_> = counted
                .map(|((_, name), count)| match count.bytes {
                    0 => format!("{} {name}", count.operations),
                    bytes => format!("{} {name} of {bytes} bytes", count.operations),
                })
                .collect();
            if !kinds.is_empty() {
                write!(f, "\n  to {}: {}", peer.peer, kinds.join(", "))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<_> = self.ranks.iter().map(ToString::to_string).collect();
        f.write_str(&ranks.join("\n"))
    }
}

/// The counters of one transport.
#[derive(Debug)]
struct Table {
    rank: Rank,
    posts: AtomicU64,
    busy: AtomicU64,
    refused: AtomicU64,
    queue_waits: AtomicU64,
    signal_waits: AtomicU64,
    waited_ns: AtomicU64,
    engine_fences: AtomicU64,
    /// Operations and bytes, by peer and kind.
    peers: Vec<[(AtomicU64, AtomicU64); KINDS.len()]>,
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Table {
    fn new(rank: Rank, ranks: usize) -> Self {
        Self {
            rank,
            posts: AtomicU64::default(),
            busy: AtomicU64::default(),
            refused: AtomicU64::default(),
            queue_waits: AtomicU64::default(),
            signal_waits: AtomicU64::default(),
            waited_ns: AtomicU64::default(),
            engine_fences: AtomicU64::default(),
            peers: (0..ranks).map(|_| Default::default()).collect(),
        }
    }

    fn snapshot(&self) -> RankStats {
        let peer = |(peer, counts): (usize, &[(AtomicU64, AtomicU64); KINDS.len()])| PeerStats {
            peer: Rank::new(peer),
            counts: counts
                .each_ref()
                .map(|(operations, bytes)| Count { operations: read(operations), bytes: read(bytes) }),
        };
        RankStats {
            rank: self.rank,
            posts: read(&self.posts),
            busy: read(&self.busy),
            refused: read(&self.refused),
            queue_waits: read(&self.queue_waits),
            signal_waits: read(&self.signal_waits),
            waited: Duration::from_nanos(read(&self.waited_ns)),
            engine_fences: read(&self.engine_fences),
            peers: self.peers.iter().enumerate().map(peer).collect(),
        }
    }

    fn timed<T>(&self, waits: &AtomicU64, wait: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = wait();
        add(waits, 1);
        add(&self.waited_ns, start.elapsed().as_nanos() as u64);
        result
    }
}

struct StatsTransport {
    inner: Arc<dyn Transport>,
    table: Arc<Table>,
    /// To know whose memory an operation of an engine's queue reaches.
    regions: Arc<Regions>,
}

impl TransportLayer for StatsTransport {
    fn inner(&self) -> &dyn Transport {
        &*self.inner
    }

    fn regions(&self) -> Option<&Arc<Regions>> {
        Some(&self.regions)
    }

    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
        let inner = self.inner.queue(target, options)?;
        let peer = match target {
            QueueTarget::Peer(peer) => Some(peer),
            _ => None,
        };
        let (table, regions) = (Arc::clone(&self.table), Arc::clone(&self.regions));
        Ok(decorated_queue(StatsQueue { inner, peer, table, regions }))
    }

    fn signal_wait(&self, wait: &Wait<'_>) -> Result<u64, WaitError> {
        self.table.timed(&self.table.signal_waits, || self.inner.signal_wait(wait))
    }
}

impl Drop for StatsTransport {
    fn drop(&mut self) {
        // Who stacks it wants to see it, without asking for everything else.
        tracing::warn!("stats of {}", self.table.snapshot());
    }
}

struct StatsQueue {
    inner: Arc<dyn Queue>,
    peer: Option<Rank>,
    table: Arc<Table>,
    regions: Arc<Regions>,
}

impl StatsQueue {
    fn count(&self, op: &Op) {
        let peer = self.peer.or_else(|| self.regions.owner(op.remote()?.region));
        match peer.and_then(|peer| self.table.peers.get(peer.index())) {
            Some(counts) => {
                let (operations, bytes) = &counts[index(op.kind())];
                add(operations, 1);
                add(bytes, op.bytes());
            }
            None => add(&self.table.engine_fences, 1),
        }
    }
}

impl QueueLayer for StatsQueue {
    fn inner(&self) -> &dyn Queue {
        &*self.inner
    }

    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError> {
        let posted = self.inner.post(ops);
        match &posted {
            Ok(_) => {
                add(&self.table.posts, 1);
                ops.iter().for_each(|op| self.count(op));
            }
            Err(PostError::Busy { .. }) => add(&self.table.busy, 1),
            Err(_) => add(&self.table.refused, 1),
        }
        posted
    }

    fn wait(&self, ticket: Ticket, completion: Completion, timeout: Duration) -> Result<(), QueueError> {
        self.table.timed(&self.table.queue_waits, || self.inner.wait(ticket, completion, timeout))
    }
}
