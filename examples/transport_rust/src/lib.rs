//! A small transport in Rust: the ranks are threads of one process.
//!
//! Posting executes: by the time a post returns its operations are done, so every ticket is complete, puts are in order and
//! every signal is strong. There are no inline puts, gets and atomics, and the caps say so. The guide's page "Your own
//! transport" walks through it.

mod queue;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use campanile_core::{
    AtomicityDomain, Caps, ControlError, Cost, DeviceView, Endpoint, Event, Fault, FaultKind, Initiator, MemoryKind,
    Node, OpKind, OpenError, OpenOptions, PeerClass, Pending, Probed, Queue, QueueOptions, QueueTarget, Rank, Reach,
    Region, RegionKey, RemoteKey, RemoteRegion, Request, Shutdown, SignalCaps, Transport, TransportInfo,
    TransportPlugin, Wait, WaitError, WaitState,
};

use queue::InprocQueue;
use world::{End, Entry, Key, Memory, World};

campanile_plugin::export!(Inproc, vendor = "me");

const NAME: &str = "inproc";
/// `reach` sees a node, not a process: a cost that nobody chooses keeps selection from taking this for a job of processes.
const COST: Cost = Cost { latency_ns: 1e6, bytes_per_ns: 8.0 };
/// Looks at a word before a wait naps.
const YIELDS: u32 = 500;

struct Inproc;

impl TransportPlugin for Inproc {
    fn info(&self) -> TransportInfo {
        TransportInfo {
            name: NAME,
            version: "1.0.0",
            summary: "an example in Rust: ranks that are threads of a process",
            device_code: None,
        }
    }

    fn probe(&self) -> Vec<Probed> {
        vec![Probed { device: "process".to_owned(), usable: Ok("threads of this process".to_owned()) }]
    }

    fn open(&self, device: &str, options: OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        if device != "process" {
            let (device, available) = (device.to_owned(), "process".to_owned());
            return Err(OpenError::NoDevice { transport: NAME, device, available });
        }
        let mut world = World::get();
        let own = Arc::new(End {
            id: world.number(),
            rank: options.rank,
            connects: AtomicBool::new(false),
            fault: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        });
        world.ends.insert(own.id, Arc::clone(&own));
        let peers = Arc::new(OnceLock::new());
        Ok(Arc::new(InprocTransport { own, peers, options, lost: Mutex::default(), shut: AtomicBool::new(false) }))
    }
}

type Peers = BTreeMap<Rank, Arc<End>>;

struct InprocTransport {
    own: Arc<End>,
    peers: Arc<OnceLock<Peers>>,
    options: OpenOptions,
    lost: Mutex<Lost>,
    shut: AtomicBool,
}

/// Peers that are gone.
#[derive(Default)]
struct Lost {
    told: BTreeSet<Rank>,
    masked: BTreeSet<Rank>,
}

/// A connect that has met all peers once each of them has called it too: nobody is used before it is ready.
struct Connecting {
    own: Arc<End>,
    peers: Arc<OnceLock<Peers>>,
    ends: Peers,
}

impl Pending<Vec<Endpoint>> for Connecting {
    fn test(&mut self) -> Option<Result<Vec<Endpoint>, ControlError>> {
        // One that has called and left since was met.
        let called = |end: &End| end.connects.load(Ordering::Acquire);
        let lost = |(_, end): &(_, &Arc<End>)| end.gone.load(Ordering::Acquire) != 0 && !called(end);
        if let Some((&peer, _)) = self.ends.iter().find(lost) {
            return Some(Err(ControlError::PeerGone { peer, what: "connecting to it".to_owned() }));
        }
        if self.ends.values().any(|end| !end.connects.load(Ordering::Acquire)) {
            return None;
        }
        let class = |peer| if peer == self.own.rank { PeerClass::Own } else { PeerClass::Node };
        let endpoints = self.ends.keys().map(|&peer| Endpoint { peer, class: class(peer) }).collect();
        // A connect whose result was dropped did this before, with the same peers.
        let _ = self.peers.set(std::mem::take(&mut self.ends));
        Some(Ok(endpoints))
    }

    fn park(&mut self, timeout: Duration) {
        std::thread::park_timeout(timeout.min(Duration::from_micros(100)));
    }

    fn describe(&self) -> String {
        let missing = self.ends.iter().filter(|(_, end)| !end.connects.load(Ordering::Acquire));
        format!("connecting to {}", missing.map(|(peer, _)| peer.to_string()).collect::<Vec<_>>().join(", "))
    }
}

fn unsupported(what: &'static str, reason: String) -> ControlError {
    ControlError::Unsupported { transport: NAME, what, reason }
}

impl InprocTransport {
    fn peer(&self, rank: Rank) -> Option<&Arc<End>> {
        self.peers.get()?.get(&rank)
    }

    fn lost(&self) -> std::sync::MutexGuard<'_, Lost> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The word that a wait is for.
    fn word<'a>(&self, wait: &Wait<'a>) -> Option<&'a AtomicU64> {
        let address = wait.region.address().wrapping_add(wait.offset).cast::<AtomicU64>();
        let inside = wait.offset.checked_add(8)? <= wait.region.bytes() && address.is_aligned();
        // SAFETY: inside the region and aligned; the region lives as long as `wait` borrows it; words are only accessed as
        // atomics (the ordering contract).
        inside.then(|| unsafe { AtomicU64::from_ptr(address.cast()) })
    }
}

impl Transport for InprocTransport {
    fn info(&self) -> TransportInfo {
        Inproc.info()
    }

    fn caps(&self, class: PeerClass, memory: MemoryKind, op: OpKind) -> Option<Caps> {
        let does = matches!(op, OpKind::Put | OpKind::PutSignal | OpKind::Fence);
        // Only what is kept: each of these has cases in `campanile check`.
        (does && class != PeerClass::Remote && memory == MemoryKind::Host).then_some(Caps {
            load_store: false,
            ordered_puts: true,
            inline_bytes: 0,
            max_bytes: isize::MAX as u64,
            alignment: 1,
            signal: SignalCaps {
                bits: 64,
                set: true,
                add: true,
                native_strong: true,
                domain: AtomicityDomain::Cpu,
                target_progress: false,
            },
            cost: COST,
        })
    }

    fn reach(&self, _: Rank, _: &Node) -> Reach {
        Reach::Yes(COST) // Whether it is this process shows in its address.
    }

    fn address(&self) -> Vec<u8> {
        [u64::from(std::process::id()), self.own.id].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn connect(&self, peers: &[(Rank, Vec<u8>)]) -> Request<Vec<Endpoint>> {
        let world = World::get();
        let mut ends = Peers::new();
        for (peer, address) in peers {
            let (peer, words) = (*peer, words::<2>(address));
            let Some([_, id]) = words.filter(|words| words[0] == u64::from(std::process::id())) else {
                let reason = "it is no rank of this process".to_owned();
                return Request::done(Err(ControlError::BadPeerData { peer, what: "address", reason }));
            };
            let Some(end) = world.ends.get(&id) else {
                return Request::done(Err(ControlError::PeerGone { peer, what: "connecting to it".to_owned() }));
            };
            ends.insert(peer, Arc::clone(end));
        }
        self.own.connects.store(true, Ordering::Release);
        Request::pending(Connecting { own: Arc::clone(&self.own), peers: Arc::clone(&self.peers), ends })
    }

    fn allocate(&self, bytes: usize, kind: MemoryKind) -> Request<Region> {
        let Some(memory) = Memory::zeroed(bytes).filter(|_| kind == MemoryKind::Host) else {
            let reason = "there is host memory only, and not that much".to_owned();
            return Request::done(Err(ControlError::Memory { bytes, kind, reason }));
        };
        let address = memory.address();
        let entry =
            Entry { user: self.own.id, address: address.expose_provenance(), bytes: bytes as u64, target: None };
        let key = Key::new(entry, Some(memory));
        Request::done(Ok(Region::new(RegionKey(key.number), address, bytes, kind, Arc::new(key))))
    }

    unsafe fn register(&self, memory: campanile_core::Memory) -> Request<Region> {
        let campanile_core::Memory { address, bytes, kind } = memory;
        if kind != MemoryKind::Host {
            let reason = "there is host memory only".to_owned();
            return Request::done(Err(ControlError::Memory { bytes, kind, reason }));
        }
        let entry =
            Entry { user: self.own.id, address: address.expose_provenance(), bytes: bytes as u64, target: None };
        let key = Key::new(entry, None);
        Request::done(Ok(Region::new(RegionKey(key.number), address, bytes, kind, Arc::new(key))))
    }

    fn export(&self, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError> {
        if let Some(stranger) = peers.iter().find(|peer| self.peer(**peer).is_none()) {
            return Err(unsupported("export", format!("{stranger} is not connected")));
        }
        let words = [self.own.id, region.key().0, region.bytes() as u64];
        Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion> {
        // A blob is somebody's word: it must be of this very end of the peer, and nothing in it is taken for an address.
        let words = words::<3>(blob).filter(|words| self.peer(peer).is_some_and(|end| end.id == words[0]));
        let Some([_, target, bytes]) = words else {
            let reason = "it is not one of that rank".to_owned();
            return Request::done(Err(ControlError::BadPeerData { peer, what: "key blob", reason }));
        };
        let key = Key::new(Entry { user: self.own.id, address: 0, bytes, target: Some(target) }, None);
        let number = RemoteKey(key.number);
        Request::done(Ok(RemoteRegion::new(number, peer, bytes as usize, MemoryKind::Host, Arc::new(key))))
    }

    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
        let (own, depth, number) = (Arc::clone(&self.own), options.depth, World::get().number());
        match target {
            QueueTarget::Peer(peer)
                if options.initiator == Initiator::Host && (1..=QueueOptions::MAX_DEPTH).contains(&depth) =>
            {
                let peer = self.peer(peer).ok_or_else(|| unsupported("queue", format!("{peer} is not connected")))?;
                let peer = Arc::clone(peer);
                Ok(Arc::new(InprocQueue { number, own, peer, depth, posted: AtomicU64::new(0) }))
            }
            _ => Err(unsupported("queue", "from the host to a peer, with 1 to 65536 slots".to_owned())),
        }
    }

    fn map(&self, _: &RemoteRegion) -> Option<NonNull<u8>> {
        None
    }

    fn notify(&self, _: Rank) {}

    fn device_view(&self, region: &Region, _: &[RemoteRegion]) -> Result<DeviceView, ControlError> {
        Err(unsupported("device view", format!("kernels cannot post here, for {} memory or other", region.kind())))
    }

    fn poll_event(&self) -> Option<Event> {
        let mut lost = self.lost();
        let (&peer, kind) = self
            .peers
            .get()?
            .keys()
            .filter(|peer| !lost.told.contains(peer))
            .find_map(|peer| Some((peer, self.gone(*peer)?)))?;
        lost.told.insert(peer);
        Some(if kind == FaultKind::Left { Event::PeerLeft(peer) } else { Event::PeerDied(peer) })
    }

    fn gone(&self, peer: Rank) -> Option<FaultKind> {
        let word = self.peer(peer)?.gone.load(Ordering::Acquire);
        Fault::from_word(word).map(|fault| fault.kind)
    }

    fn mask(&self, peer: Rank) {
        let mut lost = self.lost();
        lost.told.insert(peer);
        lost.masked.insert(peer);
    }

    fn signal_wait(&self, wait: &Wait<'_>) -> Result<u64, WaitError> {
        let invalid = |reason: String| WaitError::Invalid { operation: wait.operation, reason };
        let word =
            self.word(wait).ok_or_else(|| invalid(format!("a word at {}: a multiple of 8 inside", wait.offset)))?;
        let start = Instant::now();
        let mut looks = 0;
        let _waiting = Waiting::new(&self.own, wait.peer);
        loop {
            // What ends the wait is looked at before the word: what the peer signalled before it went counts.
            let gone = self.gone(wait.peer).map(|kind| Fault { culprit: wait.peer, kind, reporter: self.own.rank });
            let fault = self.fault();
            let waited = start.elapsed();
            let seen = word.load(Ordering::Acquire);
            if wait.condition.holds(seen) {
                return Ok(seen);
            }
            if self.peer(wait.peer).is_none() || self.lost().masked.contains(&wait.peer) {
                return Err(invalid(format!("{} is not connected, or masked", wait.peer)));
            }
            let (rank, offset, epoch, expected) = (self.own.rank, wait.offset, wait.epoch, wait.condition);
            let state =
                || Box::new(WaitState { rank, peer: wait.peer, slot: wait.slot, offset, epoch, expected, seen });
            if let Some(fault) = fault.or_else(|| gone.map(|fault| self.report(fault))) {
                return Err(WaitError::Fault { operation: wait.operation, fault, state: state() });
            }
            if waited >= self.options.timeout {
                let fault = self.report(self.blame(wait.peer));
                return Err(WaitError::Timeout { operation: wait.operation, fault, state: state(), waited });
            }
            looks += 1;
            if looks < YIELDS {
                std::thread::yield_now()
            } else {
                std::thread::park_timeout(Duration::from_micros(100))
            }
        }
    }

    fn fault(&self) -> Option<Fault> {
        let fault = Fault::from_word(self.own.fault.load(Ordering::Acquire))?;
        (!self.lost().masked.contains(&fault.culprit)).then_some(fault)
    }

    fn report(&self, fault: Fault) -> Fault {
        // One report at a time, so that all ranks name the same.
        let _alone = World::get();
        let first = self.fault().unwrap_or(fault);
        let masked = self.lost().masked.clone();
        let ends = self.peers.get().into_iter().flat_map(BTreeMap::values).chain([&self.own]);
        for end in ends {
            // The first one stands; one of a masked rank gives way.
            if Fault::from_word(end.fault.load(Ordering::Acquire)).is_none_or(|old| masked.contains(&old.culprit)) {
                end.fault.store(first.to_word(), Ordering::Release);
            }
        }
        first
    }

    fn shutdown(&self, mode: Shutdown) -> Result<(), ControlError> {
        if !self.shut.swap(true, Ordering::AcqRel) {
            match mode {
                // Nothing is queued, so there is nothing to wait for.
                Shutdown::Drain => self.end(FaultKind::Left),
                Shutdown::Abort => _ = self.report(self.own_fault(FaultKind::Died)),
            }
        }
        Ok(())
    }
}

impl InprocTransport {
    fn own_fault(&self, kind: FaultKind) -> Fault {
        Fault { culprit: self.own.rank, kind, reporter: self.own.rank }
    }

    /// Whose fault it is that a wait for `first` was in vain: the end of the chain of those who wait for each other.
    fn blame(&self, first: Rank) -> Fault {
        let reporter = self.own.rank;
        let stalled = |culprit| Fault { culprit, kind: FaultKind::Stalled, reporter };
        let mut culprit = first;
        // A chain that is longer than there are ranks is a ring, which has no end.
        for _ in 0..self.options.ranks {
            if let Some(kind) = self.gone(culprit) {
                return Fault { culprit, kind, reporter };
            }
            match self.peer(culprit).map_or(0, |end| end.waits.load(Ordering::Acquire)) {
                0 => return stalled(culprit),
                next => culprit = Rank(next as u32 - 1),
            }
        }
        stalled(first)
    }

    /// Says why this rank is gone, unless that was said before.
    fn end(&self, kind: FaultKind) {
        let word = self.own_fault(kind).to_word();
        // It fails if something was said before, which stands.
        let _ = self.own.gone.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Says whom a rank waits for, as long as it does.
struct Waiting<'a>(&'a End);

impl<'a> Waiting<'a> {
    fn new(own: &'a End, peer: Rank) -> Self {
        own.waits.store(u64::from(peer.0) + 1, Ordering::Release);
        Self(own)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waits.store(0, Ordering::Release);
    }
}

impl Drop for InprocTransport {
    fn drop(&mut self) {
        self.end(FaultKind::Died);
        World::get().ends.remove(&self.own.id);
    }
}

/// A blob of that many words.
fn words<const N: usize>(blob: &[u8]) -> Option<[u64; N]> {
    let (words, rest) = blob.as_chunks::<8>();
    let words: &[[u8; 8]; N] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(u64::from_le_bytes))
}
