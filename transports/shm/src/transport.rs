//! One rank's end of the shared-memory transport.
//!
//! State is fixed after `connect`: peers by world rank, each with its control block and channel. Regions come and go
//! through the registries, and to peers by `export`.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use campanile_core::{
    AtomicityDomain, Caps, Completion, ControlError, Cost, DeviceView, Endpoint, Event, Fault, FaultKind, HugePages,
    Memory, MemoryKind, Node, OpKind, OpenError, OpenOptions, PeerClass, Queue, QueueError, QueueOptions, QueueTarget,
    Rank, Reach, Region, RegionKey, RemoteKey, RemoteRegion, Request, Shutdown, SignalCaps, Transport, TransportInfo,
    Wait, WaitError,
};
use campanile_host::channel::{Channel, ChannelError, Listener};
use campanile_host::memory::{MemoryError, Pages, SharedMemory};
use campanile_host::wait::SpinPolicy;
use libc::pid_t;

use crate::connect::{Connecting, pack_address};
use crate::control::{CONTROL_BYTES, Control};
use crate::cross_memory::{Probe, own_process, probe};
use crate::export::{Export, Importing, Keeper, Registration};
use crate::plugin::{NAME, info};
use crate::queue::ShmQueue;
use crate::registry::{Reach as Way, Registry};

/// A connected rank, this one included.
pub(crate) struct Peer {
    control: Control,
    /// `None` for this rank itself.
    channel: Option<Channel>,
    /// The process whose private memory is the peer's, if the kernel copies it; the reason if not.
    process: Result<pid_t, String>,
    /// Descriptors that came before they were asked for: (export number, bytes, descriptor).
    inbox: Mutex<VecDeque<(u64, u64, OwnedFd)>>,
    /// Whether its end was told as an event.
    told: AtomicBool,
    /// Whether this rank goes on without it.
    masked: AtomicBool,
}

impl Peer {
    pub(crate) fn new(control: Control, channel: Option<Channel>) -> Self {
        let pid = channel.as_ref().map_or(Some(own_process()), |channel| channel.peer_pid()?.try_into().ok());
        let process = pid
            .ok_or_else(|| "its process is in a pid namespace that this one cannot see".to_owned())
            .and_then(|process| probe(process, control.probe()).map(|()| process));
        let (told, masked) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { control, channel, process, inbox: Mutex::default(), told, masked }
    }

    pub(crate) fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, VecDeque<(u64, u64, OwnedFd)>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// Whether this rank goes on without it.
    pub(crate) fn masked(&self) -> bool {
        self.masked.load(Ordering::Acquire)
    }

    /// Why the peer is gone, if it is. One system call.
    pub(crate) fn gone(&self) -> Option<FaultKind> {
        if self.control.left() {
            return Some(FaultKind::Left);
        }
        let gone = self.channel.as_ref().is_some_and(Channel::peer_gone);
        // It may have left between the two looks.
        gone.then(|| if self.control.left() { FaultKind::Left } else { FaultKind::Died })
    }
}

/// What the transport, its requests and its queues share.
pub(crate) struct Inner {
    options: OpenOptions,
    spin: SpinPolicy,
    token: u64,
    listener: Listener,
    control: Control,
    /// Lives as long as peers may look at it.
    _probe: Probe,
    peers: OnceLock<Peers>,
    pub(crate) locals: Registry,
    pub(crate) remotes: Registry,
    /// Number of the next export. The first is the token, so that a key blob of another transport names nothing here.
    exports: AtomicU64,
    /// This rank's regions, so that it can import its own exports.
    own: Mutex<Vec<(u64, Weak<Allocation>)>>,
    queues: AtomicU64,
    ended: AtomicBool,
}

struct Peers {
    by_rank: Vec<Option<Peer>>,
    /// The rank whose control block holds the job's fault.
    lowest: usize,
}

/// Memory behind a local region.
pub(crate) struct Allocation {
    inner: Arc<Inner>,
    key: u64,
    address: *mut u8,
    /// `None` for the caller's own memory.
    memory: Option<SharedMemory>,
    /// What peers know of the caller's own memory, once it is exported.
    registration: OnceLock<Arc<Registration>>,
}

// SAFETY: the address is that of the region, which its users answer for (`Region`); all else is shared by locks.
unsafe impl Send for Allocation {}
// SAFETY: as for Send.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// What a peer is sent to reach it.
    fn shared(&self) -> Result<&SharedMemory, MemoryError> {
        if let Some(memory) = &self.memory {
            return Ok(memory);
        }
        if let Some(registration) = self.registration.get() {
            return Ok(registration.memory());
        }
        let registration = Arc::new(Registration::of(self.address)?);
        Ok(self.registration.get_or_init(|| registration).memory())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.get() {
            registration.end();
        }
        self.inner.locals.remove(self.key);
    }
}

/// What is behind a remote region.
struct Mapping {
    inner: Arc<Inner>,
    key: u64,
    /// `None` where load / store does not reach.
    address: Option<NonNull<u8>>,
    _keeper: Keeper,
}

// SAFETY: the address belongs to the mapping that `_keeper` keeps; access is by the ordering contract.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; immutable.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.inner.remotes.remove(self.key);
    }
}

impl Inner {
    pub(crate) fn rank(&self) -> Rank {
        self.options.rank
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.options.timeout
    }

    pub(crate) fn spin(&self) -> SpinPolicy {
        self.spin
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn listener(&self) -> &Listener {
        &self.listener
    }

    pub(crate) fn own_control(&self) -> &Control {
        &self.control
    }

    /// Fixes the peers, sorted by rank; once.
    pub(crate) fn set_peers(&self, peers: Vec<(Rank, Peer)>) -> Result<(), ControlError> {
        let lowest = peers.first().map_or(0, |(rank, _)| rank.index());
        let ranks = peers.last().map_or(0, |(rank, _)| rank.index() + 1);
        let mut by_rank: Vec<_> = (0..ranks).map(|_| None).collect();
        for (rank, peer) in peers {
            by_rank[rank.index()] = Some(peer);
        }
        self.peers.set(Peers { by_rank, lowest }).map_err(|_| ControlError::Unsupported {
            transport: NAME,
            what: "connect",
            reason: "it is connected already; open another transport".to_owned(),
        })
    }

    #[inline]
    pub(crate) fn peer(&self, rank: Rank) -> Option<&Peer> {
        self.peers.get()?.by_rank.get(rank.index())?.as_ref()
    }

    fn connected(&self) -> impl Iterator<Item = (Rank, &Peer)> {
        let peers = self.peers.get().map_or(&[][..], |peers| &peers.by_rank);
        peers.iter().enumerate().filter_map(|(rank, peer)| Some((Rank::new(rank), peer.as_ref()?)))
    }

    #[inline]
    pub(crate) fn fault(&self) -> Option<Fault> {
        let peers = self.peers.get()?;
        let fault = peers.by_rank[peers.lowest].as_ref()?.control.fault()?;
        (!self.masked(fault.culprit)).then_some(fault)
    }

    fn masked(&self, rank: Rank) -> bool {
        self.peer(rank).is_some_and(Peer::masked)
    }

    pub(crate) fn mask(&self, rank: Rank) {
        if let Some(peer) = self.peer(rank) {
            peer.masked.store(true, Ordering::Release);
            peer.told.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn report(&self, fault: Fault) -> Fault {
        let board = self.peers.get().and_then(|peers| peers.by_rank[peers.lowest].as_ref());
        let first = board.map_or(fault, |lowest| lowest.control.report(fault, |culprit| self.masked(culprit)));
        for (_, peer) in self.connected() {
            peer.control.wake();
        }
        first
    }

    fn region(self: &Arc<Self>, memory: Memory, shared: Option<SharedMemory>) -> Result<Region, ControlError> {
        let full = || ControlError::Memory {
            bytes: memory.bytes,
            kind: memory.kind,
            reason: "65536 regions are registered already; drop some".to_owned(),
        };
        let way = if memory.is_address_space() {
            Way::Kernel { process: own_process(), registered: null_mut() }
        } else {
            Way::LoadStore
        };
        let key = self.locals.insert(self.rank(), memory.address, memory.bytes, way).ok_or_else(full)?;
        let (inner, registration) = (Arc::clone(self), OnceLock::new());
        let allocation = Arc::new(Allocation { inner, key, address: memory.address, memory: shared, registration });
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|(_, allocation)| allocation.strong_count() > 0);
        own.push((key, Arc::downgrade(&allocation)));
        Ok(Region::new(RegionKey(key), memory.address, memory.bytes, memory.kind, allocation))
    }

    /// The process of a peer's private memory, if the kernel copies it.
    fn process(&self, peer: Rank) -> Result<pid_t, ControlError> {
        let process = self.peer(peer).map(|peer| peer.process.clone());
        process.unwrap_or_else(|| Err(format!("{peer} is not connected"))).map_err(|reason| ControlError::Unsupported {
            transport: NAME,
            what: "import of registered memory",
            reason,
        })
    }

    /// A peer's registered memory.
    pub(crate) fn registered(
        self: &Arc<Self>,
        peer: Rank,
        bytes: usize,
        registration: Arc<Registration>,
    ) -> Result<RemoteRegion, ControlError> {
        let way = Way::Kernel { process: self.process(peer)?, registered: registration.word() };
        self.remote(peer, registration.address(), bytes, way, Keeper::Registration(registration))
    }

    pub(crate) fn remote(
        self: &Arc<Self>,
        peer: Rank,
        address: *mut u8,
        bytes: usize,
        way: Way,
        keeper: Keeper,
    ) -> Result<RemoteRegion, ControlError> {
        let key = self.remotes.insert(peer, address, bytes, way).ok_or_else(|| ControlError::Memory {
            bytes,
            kind: MemoryKind::Host,
            reason: "65536 regions are imported already; drop some".to_owned(),
        })?;
        let address = NonNull::new(address).filter(|_| matches!(way, Way::LoadStore));
        let mapping = Mapping { inner: Arc::clone(self), key, address, _keeper: keeper };
        Ok(RemoteRegion::new(RemoteKey(key), peer, bytes, MemoryKind::Host, Arc::new(mapping)))
    }
}

/// A window of 0 bytes is legal; memory of 0 bytes is not.
pub(crate) fn mapped_bytes(bytes: usize) -> usize {
    bytes.max(1)
}

fn pages(huge: HugePages) -> Pages {
    match huge {
        HugePages::Auto => Pages::Huge,
        HugePages::Never => Pages::Small,
    }
}

/// An opened transport.
pub(crate) struct ShmTransport {
    inner: Arc<Inner>,
    /// What a drain has to complete.
    live: Mutex<Vec<Weak<ShmQueue>>>,
}

impl ShmTransport {
    pub(crate) fn open(options: OpenOptions) -> Result<Self, OpenError> {
        let system = |reason: String| OpenError::System { transport: NAME, reason };
        let listener = Listener::bind().map_err(|error| system(error.to_string()))?;
        let memory = SharedMemory::create("campanile-control", CONTROL_BYTES, Pages::Small)
            .map_err(|e| system(e.to_string()))?;
        let mut token = [0; 8];
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| system(format!("getrandom: {error}")))?;
        let token = u64::from_le_bytes(token);
        let cores = match options.cores {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            cores => cores,
        };
        let (control, probe) = (Control::new(memory), Probe::new(token.rotate_left(32)));
        control.set_probe(probe.place());
        let inner = Inner {
            spin: SpinPolicy::for_ranks(options.ranks_on_node, cores),
            options,
            token,
            listener,
            control,
            _probe: probe,
            peers: OnceLock::new(),
            locals: Registry::new(),
            remotes: Registry::new(),
            exports: AtomicU64::new(token),
            own: Mutex::default(),
            queues: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner), live: Mutex::default() })
    }
}

impl ShmTransport {
    /// Executes what was posted: nobody else does. A queue that has failed has nothing to complete.
    fn drain(&self) -> Result<(), ControlError> {
        let start = Instant::now();
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for queue in live.iter().filter_map(Weak::upgrade) {
            let left = self.inner.timeout().saturating_sub(start.elapsed());
            let ended = queue.wait(queue.flush(), Completion::Local, left);
            if let Err(QueueError::Timeout { state, waited, .. }) = ended {
                return Err(ControlError::Timeout { what: format!("draining a queue of {NAME}: {state}"), waited });
            }
        }
        Ok(())
    }
}

impl Transport for ShmTransport {
    fn info(&self) -> TransportInfo {
        info()
    }

    fn caps(&self, class: PeerClass, memory: MemoryKind, op: OpKind) -> Option<Caps> {
        if class == PeerClass::Remote || memory != MemoryKind::Host {
            return None;
        }
        Some(Caps {
            load_store: true,
            ordered_puts: true,
            inline_bytes: if op == OpKind::PutInline { campanile_core::Inline::MAX as u32 } else { 0 },
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

    fn reach(&self, peer: Rank, node: &Node) -> Reach {
        if *node == self.inner.options.node {
            return Reach::Yes(COST);
        }
        Reach::No(format!("{peer} is on node {node}, this rank on {}: they share no memory", self.inner.options.node))
    }

    fn address(&self) -> Vec<u8> {
        pack_address(self.inner.token, self.inner.listener.address())
    }

    fn connect(&self, peers: &[(Rank, Vec<u8>)]) -> Request<Vec<Endpoint>> {
        Request::pending(Connecting::new(Arc::clone(&self.inner), peers))
    }

    fn allocate(&self, bytes: usize, kind: MemoryKind) -> Request<Region> {
        if kind != MemoryKind::Host {
            return Request::done(Err(ControlError::Memory {
                bytes,
                kind,
                reason: format!("transport {NAME} has host memory only"),
            }));
        }
        let memory =
            SharedMemory::create("campanile-window", mapped_bytes(bytes), pages(self.inner.options.huge_pages));
        Request::done(match memory {
            Ok(memory) => self.inner.region(Memory { address: memory.as_ptr(), bytes, kind }, Some(memory)),
            Err(error) => Err(ControlError::Memory { bytes, kind, reason: error.to_string() }),
        })
    }

    unsafe fn register(&self, memory: Memory) -> Request<Region> {
        if memory.kind != MemoryKind::Host {
            let reason = format!("transport {NAME} takes host memory only");
            return Request::done(Err(ControlError::Memory { bytes: memory.bytes, kind: memory.kind, reason }));
        }
        Request::done(self.inner.region(memory, None))
    }

    fn export(&self, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError> {
        let unsupported = |reason: String| ControlError::Unsupported { transport: NAME, what: "export", reason };
        let allocation = region.keeper().downcast_ref::<Allocation>();
        let allocation = allocation.ok_or_else(|| unsupported("the region is of another transport".to_owned()))?;
        let memory = allocation.shared().map_err(|error| ControlError::Memory {
            bytes: region.bytes(),
            kind: region.kind(),
            reason: error.to_string(),
        })?;
        let number = self.inner.exports.fetch_add(1, Ordering::Relaxed);
        let (bytes, registered) = (region.bytes() as u64, allocation.memory.is_none());
        let blob = Export { number, key: region.key().0, bytes, registered }.to_blob();
        for &rank in peers {
            let peer = self.inner.peer(rank).ok_or_else(|| unsupported(format!("{rank} is not connected")))?;
            let Some(channel) = &peer.channel else { continue };
            channel.send(&blob, Some(memory.fd()), Instant::now() + self.inner.timeout()).map_err(
                |error| match error {
                    ChannelError::Gone { .. } => {
                        ControlError::PeerGone { peer: rank, what: "exporting memory to it".to_owned() }
                    }
                    error => {
                        ControlError::System { what: format!("exporting memory to {rank}"), reason: error.to_string() }
                    }
                },
            )?;
        }
        Ok(blob)
    }

    fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion> {
        let Some(export) = Export::from_blob(blob) else {
            let reason = format!("a key blob of this transport has {} bytes, this one {}", Export::BYTES, blob.len());
            return Request::done(Err(ControlError::BadPeerData { peer, what: "key blob", reason }));
        };
        let inner = Arc::clone(&self.inner);
        if peer != inner.rank() {
            return Request::pending(Importing { inner, peer, export });
        }
        let exported = inner.exports.load(Ordering::Relaxed).wrapping_sub(inner.token);
        let ours = export.number.wrapping_sub(inner.token) < exported;
        let own = inner.own.lock().unwrap_or_else(PoisonError::into_inner);
        let found =
            own.iter().find(|(key, _)| ours && *key == export.key).and_then(|(_, allocation)| allocation.upgrade());
        drop(own);
        let bytes = export.bytes as usize;
        let registration = found.as_ref().and_then(|allocation| allocation.registration.get());
        Request::done(match (&found, registration) {
            // What was registered is taken back by its owner, whoever has imported it.
            (_, Some(registration)) => inner.registered(peer, bytes, Arc::clone(registration)),
            (Some(allocation), None) if allocation.memory.is_some() => {
                inner.remote(peer, allocation.address, bytes, Way::LoadStore, Keeper::Own(Arc::clone(allocation)))
            }
            _ => {
                let reason = "it names no region of this rank, or one that is gone".to_owned();
                Err(ControlError::BadPeerData { peer, what: "key blob", reason })
            }
        })
    }

    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
        let number = self.inner.queues.fetch_add(1, Ordering::Relaxed);
        let queue = Arc::new(ShmQueue::new(Arc::clone(&self.inner), number, target, options)?);
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|queue| queue.strong_count() > 0);
        live.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    fn map(&self, region: &RemoteRegion) -> Option<NonNull<u8>> {
        region.keeper().downcast_ref::<Mapping>().and_then(|mapping| mapping.address)
    }

    #[inline]
    fn notify(&self, peer: Rank) {
        if let Some(peer) = self.inner.peer(peer) {
            peer.control.notify();
        }
    }

    fn device_view(&self, device: MemoryKind) -> Result<DeviceView, ControlError> {
        Err(ControlError::Unsupported {
            transport: NAME,
            what: "device view",
            reason: format!("its queues are executed by a CPU; {device} kernels cannot post to them"),
        })
    }

    fn poll_event(&self) -> Option<Event> {
        self.inner.connected().find_map(|(rank, peer)| {
            if peer.told.load(Ordering::Relaxed) {
                return None;
            }
            let event = match peer.gone()? {
                FaultKind::Left => Event::PeerLeft(rank),
                _ => Event::PeerDied(rank),
            };
            (!peer.told.swap(true, Ordering::Relaxed)).then_some(event)
        })
    }

    fn gone(&self, peer: Rank) -> Option<FaultKind> {
        self.inner.peer(peer).and_then(Peer::gone)
    }

    fn mask(&self, peer: Rank) {
        self.inner.mask(peer);
    }

    fn reaches_registered(&self, peer: Rank) -> Result<(), String> {
        let connected = self.inner.peer(peer).ok_or_else(|| format!("{peer} is not connected"))?;
        connected.process.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    #[inline]
    fn signal_wait(&self, wait: &Wait<'_>) -> Result<u64, WaitError> {
        crate::wait::signal_wait(&self.inner, wait)
    }

    fn fault(&self) -> Option<Fault> {
        self.inner.fault()
    }

    fn report(&self, fault: Fault) -> Fault {
        self.inner.report(fault)
    }

    fn shutdown(&self, mode: Shutdown) -> Result<(), ControlError> {
        if self.inner.ended.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let mut drained = Ok(());
        match mode {
            Shutdown::Drain => {
                drained = self.drain();
                self.inner.control.set_left();
            }
            Shutdown::Abort => {
                let rank = self.inner.rank();
                self.inner.report(Fault { culprit: rank, kind: FaultKind::Died, reporter: rank });
            }
        }
        for (_, peer) in self.inner.connected() {
            peer.control.wake();
        }
        drained
    }
}

/// First guess: a line between two cores, and a copy that misses the caches (measured figures are in the docs).
const COST: Cost = Cost { latency_ns: 200.0, bytes_per_ns: 8.0 };
