//! The stage of a case: who this rank is, transports that are opened for it, and where ranks meet.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use campanile_core::{
    Bootstrap, BootstrapError, Endpoint, HugePages, MemoryKind, Node, OpenError, OpenOptions, Rank, Transport,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::finding::{End, Expected, Proof, Stop};
use super::runner::{RanksAre, Suite};

/// Longest wait for a rank at a meeting between two looks whether it has ended its part.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One rank's view of a case.
#[derive(Clone)]
pub(super) struct Stage(Arc<Inner>);

struct Inner {
    suite: Suite,
    device: String,
    /// What the windows are in.
    memory: MemoryKind,
    bootstrap: Arc<dyn Bootstrap>,
    /// Name of the case, in front of every key.
    scope: String,
    /// The node of each rank.
    nodes: Vec<Node>,
    meetings: AtomicU64,
    random: Mutex<Xoshiro256PlusPlus>,
}

impl Stage {
    pub(super) fn new(
        suite: &Suite,
        (device, memory): (&str, MemoryKind),
        bootstrap: &Arc<dyn Bootstrap>,
        scope: &str,
        nodes: &[Vec<u8>],
    ) -> Self {
        let mut hasher = DefaultHasher::new();
        (scope, bootstrap.rank()).hash(&mut hasher);
        Self(Arc::new(Inner {
            suite: suite.clone(),
            device: device.to_owned(),
            memory,
            bootstrap: Arc::clone(bootstrap),
            scope: scope.to_owned(),
            nodes: nodes.iter().map(|node| Node::new(String::from_utf8_lossy(node))).collect(),
            meetings: AtomicU64::new(0),
            random: Mutex::new(Xoshiro256PlusPlus::seed_from_u64(suite.seed ^ hasher.finish())),
        }))
    }

    /// This rank.
    pub(super) fn rank(&self) -> usize {
        self.0.bootstrap.rank().index()
    }

    /// Ranks of the job.
    pub(super) fn ranks(&self) -> usize {
        self.0.bootstrap.ranks()
    }

    /// The next rank of the ring, this one itself if it is alone.
    pub(super) fn next(&self) -> usize {
        (self.rank() + 1) % self.ranks()
    }

    /// The last rank of the ring.
    pub(super) fn previous(&self) -> usize {
        (self.rank() + self.ranks() - 1) % self.ranks()
    }

    /// Upper bound of every wait.
    pub(super) fn timeout(&self) -> Duration {
        self.0.suite.timeout
    }

    pub(super) fn suite(&self) -> &Suite {
        &self.0.suite
    }

    pub(super) fn bootstrap(&self) -> Arc<dyn Bootstrap> {
        Arc::clone(&self.0.bootstrap)
    }

    /// Name of the case, in front of every key.
    pub(super) fn scope(&self) -> &str {
        &self.0.scope
    }

    pub(super) fn device(&self) -> &str {
        &self.0.device
    }

    /// What the windows are in.
    pub(super) fn memory(&self) -> MemoryKind {
        self.0.memory
    }

    pub(super) fn are_processes(&self) -> bool {
        self.0.suite.ranks_are == RanksAre::Processes
    }

    /// How often this rank has met others.
    pub(super) fn meetings(&self) -> u64 {
        self.0.meetings.load(Ordering::Relaxed)
    }

    /// A transport for this rank.
    pub(super) fn open(&self) -> Proof<Arc<dyn Transport>> {
        self.open_within(self.timeout())
    }

    /// A transport whose waits end after `timeout`.
    pub(super) fn open_within(&self, timeout: Duration) -> Proof<Arc<dyn Transport>> {
        self.try_open(timeout).expected("the transport to open")
    }

    pub(super) fn try_open(&self, timeout: Duration) -> Result<Arc<dyn Transport>, OpenError> {
        self.0.suite.plugin.open(&self.0.device, self.open_options(timeout))
    }

    pub(super) fn open_options(&self, timeout: Duration) -> OpenOptions {
        let node = self.0.nodes[self.rank()].clone();
        OpenOptions {
            rank: Rank::new(self.rank()),
            ranks: self.ranks(),
            ranks_on_node: self.0.nodes.iter().filter(|other| **other == node).count(),
            node,
            cores: 0,
            huge_pages: HugePages::Never,
            timeout,
        }
    }

    /// Connects a transport to those of all ranks.
    pub(super) fn connect(&self, transport: &dyn Transport) -> Proof<Vec<Endpoint>> {
        let addresses = self.exchange(&transport.address())?;
        let peers: Vec<_> = addresses.into_iter().enumerate().map(|(peer, a)| (Rank::new(peer), a)).collect();
        let endpoints = transport.connect(&peers).wait(self.timeout()).expected("all ranks to be connected")?;
        self.meet()?;
        Ok(endpoints)
    }

    /// Waits for all ranks.
    pub(super) fn meet(&self) -> Proof {
        self.exchange(&[]).map(|_| ())
    }

    /// Gives every rank a value of each.
    pub(super) fn exchange(&self, value: &[u8]) -> Proof<Vec<Vec<u8>>> {
        let all: Vec<_> = (0..self.ranks()).collect();
        self.exchange_among(&all, value)
    }

    /// Waits for these ranks, each of which calls it, as often as it has met others before.
    pub(super) fn meet_among(&self, members: &[usize]) -> Proof {
        self.exchange_among(members, &[]).map(|_| ())
    }

    /// As [`exchange`](Self::exchange), among these ranks.
    pub(super) fn exchange_among(&self, members: &[usize], value: &[u8]) -> Proof<Vec<Vec<u8>>> {
        let meeting = self.0.meetings.fetch_add(1, Ordering::Relaxed);
        let key = |member: usize| format!("{}/{meeting}/{member}", self.0.scope);
        let bootstrap = &*self.0.bootstrap;
        bootstrap.put(&key(self.rank()), value).map_err(lost)?;
        let start = Instant::now();
        members.iter().map(|&member| self.value_of(member, &key(member), start)).collect()
    }

    fn value_of(&self, member: usize, key: &str, start: Instant) -> Proof<Vec<u8>> {
        let bootstrap = &*self.0.bootstrap;
        let who = Rank::new(member);
        loop {
            if let Some(value) = bootstrap.get(key, LOOK_EVERY).map_err(lost)? {
                return Ok(value);
            }
            let ended = self.end_of(member, Duration::ZERO).map_err(lost)?;
            // It may have come and ended between the two looks.
            if let Some(value) = bootstrap.get(key, Duration::ZERO).map_err(lost)? {
                return Ok(value);
            }
            let expected = format!("{who} to come");
            if ended.is_some() {
                return Err(Stop::LeftAlone { expected, seen: "it has ended its part".to_owned() });
            }
            if start.elapsed() > self.0.suite.deadline() {
                let seen = format!("nothing for {:.1?}", start.elapsed());
                return Err(Stop::LeftAlone { expected, seen });
            }
        }
    }

    /// Tells the other ranks how this one has ended.
    pub(super) fn put_end(&self, end: &End) -> Result<(), BootstrapError> {
        self.0.bootstrap.put(&format!("{}/end/{}", self.0.scope, self.rank()), &end.to_bytes())
    }

    /// How a rank has ended, if it has within `timeout`.
    pub(super) fn end_of(&self, member: usize, timeout: Duration) -> Result<Option<End>, BootstrapError> {
        let end = self.0.bootstrap.get(&format!("{}/end/{member}", self.0.scope), timeout)?;
        Ok(end.map(|bytes| End::from_bytes(&bytes)))
    }

    fn random(&self) -> MutexGuard<'_, Xoshiro256PlusPlus> {
        self.0.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A random number below `limit`, which is not 0.
    pub(super) fn below(&self, limit: usize) -> usize {
        (self.random().next_u64() % limit as u64) as usize
    }

    /// A random delay: mostly none or a few instructions, now and then long enough for a waiter to fall asleep.
    pub(super) fn pause(&self) {
        match self.below(64) {
            0 => std::thread::park_timeout(Duration::from_micros(self.below(300) as u64)),
            1..8 => std::thread::yield_now(),
            8..32 => (0..self.below(200)).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
    }
}

/// Calls `step` until it gives a value, at most for `timeout`; `None` then.
pub(super) fn until<T>(timeout: Duration, mut step: impl FnMut() -> Proof<Option<T>>) -> Proof<Option<T>> {
    let start = Instant::now();
    loop {
        if let Some(value) = step()? {
            return Ok(Some(value));
        }
        if start.elapsed() >= timeout {
            return Ok(None);
        }
        std::thread::yield_now();
    }
}

fn lost(error: BootstrapError) -> Stop {
    Stop::LeftAlone { expected: "the other ranks to be reached".to_owned(), seen: error.to_string() }
}
