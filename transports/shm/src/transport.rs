//! One rank's end of the shared-memory transport.
//!
//! State is fixed after `connect`: peers by world rank, each with its control block and channel. Regions come and go
//! through the registries.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use campanile_core::{
    AtomicityDomain, Caps, Completion, ControlError, Cost, DeviceView, Endpoint, Event, Fault, FaultKind, HugePages,
    Memory, MemoryKind, Node, OpKind, OpenError, OpenOptions, PeerClass, Queue, QueueError, QueueOptions, QueueTarget,
    Rank, Reach, Region, RemoteRegion, Request, Shutdown, SignalCaps, Transport, TransportInfo, Wait, WaitError,
};
use campanile_host::channel::{Channel, Listener};
use campanile_host::memory::{Pages, SharedMemory};
use campanile_host::wait::SpinPolicy;
use libc::pid_t;

use crate::connect::{Connecting, pack_address};
use crate::control::{CONTROL_BYTES, Control};
use crate::cross_memory::{Probe, own_process, probe};
use crate::device::{Backing, Devices};
use crate::plugin::info;
use crate::queue::ShmQueue;
use crate::region::{Allocation, Mapping};
use crate::registry::Registry;
use crate::{export, region};

/// A connected rank, this one included.
pub(crate) struct Peer {
    control: Control,
    /// `None` for this rank itself.
    pub(crate) channel: Option<Channel>,
    /// The process whose private memory is the peer's, if the kernel copies it; the reason if not.
    process: Result<pid_t, String>,
    /// Descriptors that came before they were asked for: (export number, bytes, descriptor).
    pub(crate) inbox: Mutex<VecDeque<(u64, u64, OwnedFd)>>,
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
    /// What the transport says of itself.
    info: TransportInfo,
    options: OpenOptions,
    /// The device of this rank, if the transport that stands on this one has one.
    devices: Option<Arc<dyn Devices>>,
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
    pub(crate) exports: AtomicU64,
    /// This rank's regions, so that it can import its own exports.
    pub(crate) own: Mutex<Vec<(u64, Weak<Allocation>)>>,
    queues: AtomicU64,
    ended: AtomicBool,
}

struct Peers {
    by_rank: Vec<Option<Peer>>,
    /// The rank whose control block holds the job's fault.
    lowest: usize,
}

impl Inner {
    pub(crate) fn name(&self) -> &'static str {
        self.info.name
    }

    pub(crate) fn devices(&self) -> Option<&dyn Devices> {
        self.devices.as_deref()
    }

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
            transport: self.name(),
            what: "connect",
            reason: "it is connected already; open another transport".to_owned(),
        })
    }

    /// The process of a peer's private memory, if the kernel copies it.
    pub(crate) fn process(&self, peer: Rank) -> Result<pid_t, ControlError> {
        let process = self.peer(peer).map(|peer| peer.process.clone());
        process.unwrap_or_else(|| Err(format!("{peer} is not connected"))).map_err(|reason| ControlError::Unsupported {
            transport: self.name(),
            what: "import of registered memory",
            reason,
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
}

fn pages(huge: HugePages) -> Pages {
    match huge {
        HugePages::Auto => Pages::Huge,
        HugePages::Never => Pages::Small,
    }
}

/// An opened transport: this rank's end, and what a transport that adds [device memory](crate::device) stands on.
pub struct ShmTransport {
    inner: Arc<Inner>,
    /// What a drain has to complete.
    live: Mutex<Vec<Weak<ShmQueue>>>,
}

impl ShmTransport {
    /// Opens one that has host memory only.
    ///
    /// # Errors
    /// [`OpenError::System`] if the system refuses a socket or memory.
    pub fn open(options: OpenOptions) -> Result<Self, OpenError> {
        Self::with(info(), options, None)
    }

    /// Opens one for the transport that says `info` of itself, whose rank has `devices`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_devices(
        info: TransportInfo,
        options: OpenOptions,
        devices: Arc<dyn Devices>,
    ) -> Result<Self, OpenError> {
        Self::with(info, options, Some(devices))
    }

    fn with(info: TransportInfo, options: OpenOptions, devices: Option<Arc<dyn Devices>>) -> Result<Self, OpenError> {
        let system = |reason: String| OpenError::System { transport: info.name, reason };
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
            info,
            options,
            devices,
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
                return Err(ControlError::Timeout {
                    what: format!("draining a queue of {}: {state}", self.inner.name()),
                    waited,
                });
            }
        }
        Ok(())
    }
}

impl Transport for ShmTransport {
    fn info(&self) -> TransportInfo {
        self.inner.info.clone()
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
        let backing: Result<Box<dyn Backing>, String> = match (kind, self.inner.devices()) {
            (MemoryKind::Host, _) => {
                let pages = pages(self.inner.options.huge_pages);
                // A window of 0 bytes is legal; memory of 0 bytes is not.
                let memory = SharedMemory::create("campanile-window", bytes.max(1), pages);
                memory.map(|memory| Box::new(memory) as _).map_err(|error| error.to_string())
            }
            (MemoryKind::Device(ordinal), Some(devices)) => devices.allocate(bytes, ordinal),
            _ => Err(format!("transport {} has host memory only", self.inner.name())),
        };
        let region = backing.map_err(|reason| ControlError::Memory { bytes, kind, reason }).and_then(|backing| {
            let memory = Memory { address: backing.address(), bytes, kind };
            region::local(&self.inner, memory, Some(backing))
        });
        Request::done(region)
    }

    unsafe fn register(&self, memory: Memory) -> Request<Region> {
        if memory.kind.is_device() && self.inner.devices().is_none() {
            let reason = format!("transport {} takes host memory only", self.inner.name());
            return Request::done(Err(ControlError::Memory { bytes: memory.bytes, kind: memory.kind, reason }));
        }
        Request::done(region::local(&self.inner, memory, None))
    }

    fn export(&self, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError> {
        export::export(&self.inner, region, peers)
    }

    fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion> {
        export::import(&self.inner, peer, blob)
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

    fn device_view(&self, region: &Region, _: &[RemoteRegion]) -> Result<DeviceView, ControlError> {
        Err(ControlError::Unsupported {
            transport: self.inner.name(),
            what: "device view",
            reason: format!(
                "its queues are executed by a CPU; kernels cannot post to them for {} memory",
                region.kind()
            ),
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
