//! One rank's end: shared memory's, with a device beside it.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use campanile_core::{
    AtomicityDomain, Caps, ControlError, Cost, DeviceView, Endpoint, Event, Fault, FaultKind, Inline, Memory,
    MemoryKind, Node, OpKind, OpenError, OpenOptions, PeerClass, Queue, QueueOptions, QueueTarget, Rank, Reach, Region,
    RemoteRegion, Request, Shutdown, SignalCaps, Transport, TransportInfo, Wait, WaitError,
};
use campanile_gpu::{Backend, CallError, Coherence, Device};
use campanile_shm::ShmTransport;
use campanile_shm::device::{Backing, Devices, Engine};

use crate::engine::{QueueEngine, StreamEngine, text};
use crate::memory::DeviceMemory;
use crate::plugin::{DEVICE_CODE, NAME, info};
use crate::reader::Readers;

/// The memory of windows: their words must not be cached where a peer's store does not reach. On NVIDIA all memory is coherent.
pub(crate) const WINDOWS: Coherence = Coherence::Uncached;

/// An opened transport.
pub(crate) struct P2pTransport {
    node: ShmTransport,
    device: Arc<RankDevice>,
    rank: Rank,
}

impl P2pTransport {
    pub(crate) fn open(device: Device, options: OpenOptions) -> Result<Self, OpenError> {
        let (timeout, rank) = (options.timeout, options.rank);
        let identity = identity(&device).map_err(|error| OpenError::System { transport: NAME, reason: text(error) })?;
        let device = Arc::new(RankDevice {
            readers: Readers::new(&device, timeout),
            device,
            identity,
            timeout,
            peers: OnceLock::new(),
            engines: Mutex::default(),
        });
        let node = ShmTransport::with_devices(info(), options, Arc::clone(&device) as Arc<dyn Devices>)?;
        Ok(Self { node, device, rank })
    }
}

/// The same for all ranks that have the device, whatever number it has where they are.
fn identity(device: &Device) -> Result<String, CallError> {
    let backend = device.gpu().backend();
    Ok(match backend {
        Backend::Emulator => device.label(),
        _ => format!("{}@{}", backend.name(), device.pci_address()?),
    })
}

/// Between a rank's device identity and what shared memory gives, in an address.
const SEPARATOR: u8 = b'\n';

/// The device of this rank, for what stands below.
struct RankDevice {
    device: Device,
    identity: String,
    timeout: Duration,
    /// Identity of the device of each connected rank.
    peers: OnceLock<Vec<(Rank, String)>>,
    readers: Readers,
    engines: Mutex<Vec<Weak<StreamEngine>>>,
}

impl RankDevice {
    /// Why memory of a peer's device cannot be mapped, as far as the devices tell.
    fn unreachable(&self, peer: Rank) -> Option<String> {
        let (_, theirs) = self.peers.get()?.iter().find(|(rank, _)| *rank == peer)?;
        let ours = &self.identity;
        if ours == theirs {
            return None;
        }
        let backend = |identity: &str| identity.split([':', '@']).next().map(str::to_owned);
        if backend(ours) != backend(theirs) {
            return Some(format!("its device is {theirs}, that of this rank {ours}"));
        }
        let devices = self.device.gpu().devices().ok()?;
        // A device that this process does not see may still be reached: then the import itself tells.
        let seen = devices.iter().find(|device| identity(device).is_ok_and(|identity| identity == *theirs))?;
        match self.device.can_access(seen) {
            Ok(true) => None,
            Ok(false) => Some(format!("there is no peer access from {ours} to its device {theirs}")),
            Err(error) => Some(text(error)),
        }
    }
}

impl Devices for RankDevice {
    fn allocate(&self, bytes: usize, ordinal: u32) -> Result<Box<dyn Backing>, String> {
        if ordinal != self.device.ordinal() {
            let label = self.device.label();
            return Err(format!("this rank has {label}; it takes memory of device {}", self.device.ordinal()));
        }
        self.readers.prepare().map_err(text)?;
        let memory = self.device.allocate_virtual(bytes, WINDOWS).map_err(text)?;
        let stream = self.device.stream().map_err(text)?;
        // SAFETY: the memory outlives the wait, unless the device is broken; then it is never unmapped.
        let zeroed = unsafe { stream.fill(&memory, 0) }.and_then(|()| stream.synchronize(self.timeout));
        if let Err(error) = zeroed {
            std::mem::forget(memory);
            return Err(text(error));
        }
        Ok(Box::new(DeviceMemory(memory)))
    }

    fn open(&self, peer: Rank, descriptor: OwnedFd, extent: usize) -> Result<Box<dyn Backing>, String> {
        if let Some(reason) = self.unreachable(peer) {
            return Err(reason);
        }
        let imported = self.device.import(descriptor.as_fd(), extent);
        let memory = imported.map_err(|error| format!("{} does not map it: {error}", self.identity))?;
        Ok(Box::new(DeviceMemory(memory)))
    }

    fn engine(&self, depth: usize) -> Result<Box<dyn Engine>, String> {
        let engine = Arc::new(StreamEngine::new(&self.device, depth, self.timeout).map_err(text)?);
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(Arc::downgrade(&engine));
        Ok(Box::new(QueueEngine(engine)))
    }

    unsafe fn load(&self, word: *const u8) -> Result<u64, String> {
        // SAFETY: the caller's promise.
        unsafe { self.readers.load(word as u64) }.map_err(text)
    }

    fn settle(&self) -> bool {
        let engines: Vec<_> = {
            let engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
            engines.iter().filter_map(Weak::upgrade).collect()
        };
        // One that has failed does nothing any more.
        engines.iter().all(|engine| !matches!(engine.settle(), Err(CallError::Timeout { .. })))
    }
}

impl Transport for P2pTransport {
    fn info(&self) -> TransportInfo {
        self.node.info()
    }

    fn caps(&self, class: PeerClass, memory: MemoryKind, op: OpKind) -> Option<Caps> {
        let MemoryKind::Device(ordinal) = memory else { return self.node.caps(class, memory, op) };
        let is_there = match class {
            PeerClass::Own => ordinal == self.device.device.ordinal(),
            PeerClass::Node => true,
            _ => false,
        };
        if !is_there || op == OpKind::Atomic {
            return None;
        }
        Some(Caps {
            load_store: true,
            ordered_puts: true,
            inline_bytes: if op == OpKind::PutInline { Inline::MAX as u32 } else { 0 },
            max_bytes: isize::MAX as u64,
            alignment: 1,
            signal: SignalCaps {
                bits: 64,
                set: true,
                add: false,
                native_strong: true,
                domain: AtomicityDomain::Gpu,
                target_progress: false,
            },
            cost: cost(self.device.device.gpu().backend()),
        })
    }

    fn reach(&self, peer: Rank, node: &Node) -> Reach {
        match self.node.reach(peer, node) {
            // Whatever the memory: what the caps say of it is then the narrower figure, or the wider.
            Reach::Yes(_) => Reach::Yes(FREE),
            no => no,
        }
    }

    fn address(&self) -> Vec<u8> {
        [self.device.identity.as_bytes(), &[SEPARATOR], &self.node.address()].concat()
    }

    fn connect(&self, peers: &[(Rank, Vec<u8>)]) -> Request<Vec<Endpoint>> {
        let (mut identities, mut addresses) = (Vec::new(), Vec::new());
        for (peer, address) in peers {
            let parts = address.iter().position(|byte| *byte == SEPARATOR).map(|at| address.split_at(at));
            let Some((identity, rest)) = parts else {
                let reason = "it names no device".to_owned();
                return Request::done(Err(ControlError::BadPeerData { peer: *peer, what: "address", reason }));
            };
            identities.push((*peer, String::from_utf8_lossy(identity).into_owned()));
            addresses.push((*peer, rest[1..].to_vec()));
        }
        // A second connect is refused below.
        self.device.peers.get_or_init(|| identities);
        self.node.connect(&addresses)
    }

    fn allocate(&self, bytes: usize, kind: MemoryKind) -> Request<Region> {
        self.node.allocate(bytes, kind)
    }

    unsafe fn register(&self, memory: Memory) -> Request<Region> {
        // SAFETY: the caller's promise.
        unsafe { self.node.register(memory) }
    }

    fn export(&self, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError> {
        self.node.export(region, peers)
    }

    fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion> {
        self.node.import(peer, blob)
    }

    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
        self.node.queue(target, options)
    }

    fn map(&self, region: &RemoteRegion) -> Option<NonNull<u8>> {
        self.node.map(region)
    }

    #[inline]
    fn notify(&self, peer: Rank) {
        self.node.notify(peer);
    }

    fn device_view(&self, region: &Region, remotes: &[RemoteRegion]) -> Result<DeviceView, ControlError> {
        let unsupported = |reason| ControlError::Unsupported { transport: NAME, what: "device view", reason };
        let label = self.device.device.label();
        if region.kind() != MemoryKind::Device(self.device.device.ordinal()) {
            let reason =
                format!("kernels on {label} do not reach {} memory; give a window of their device", region.kind());
            return Err(unsupported(reason));
        }
        let address = |remote: &RemoteRegion| {
            // This rank's kernels and streams name its own part by one address.
            let own = NonNull::new(region.address()).filter(|_| remote.peer() == self.rank);
            let mapped = own.or_else(|| self.node.map(remote));
            mapped
                .map(|first| first.as_ptr().addr() as u64)
                .ok_or_else(|| unsupported(format!("the part of {} is not mapped for {label}", remote.peer())))
        };
        let windows = remotes.iter().map(address).collect::<Result<Vec<_>, _>>()?;
        Ok(DeviceView::new(&DEVICE_CODE, &windows, &[]))
    }

    fn poll_event(&self) -> Option<Event> {
        self.node.poll_event()
    }

    fn gone(&self, peer: Rank) -> Option<FaultKind> {
        self.node.gone(peer)
    }

    fn mask(&self, peer: Rank) {
        self.node.mask(peer);
    }

    fn reaches_registered(&self, peer: Rank) -> Result<(), String> {
        self.node.reaches_registered(peer)
    }

    #[inline]
    fn signal_wait(&self, wait: &Wait<'_>) -> Result<u64, WaitError> {
        self.node.signal_wait(wait)
    }

    fn fault(&self) -> Option<Fault> {
        self.node.fault()
    }

    fn report(&self, fault: Fault) -> Fault {
        self.node.report(fault)
    }

    fn shutdown(&self, mode: Shutdown) -> Result<(), ControlError> {
        self.node.shutdown(mode)
    }
}

/// Costs nothing: the way is as good as the memory's caps say.
const FREE: Cost = Cost { latency_ns: 0.0, bytes_per_ns: 1e6 };

/// First guess of load / store into a peer's memory. NVLink: measured on H200s (a flag one way, stores of all GPUs at once).
/// XGMI: what an exchange over all links of an MI300X reaches (MORI, EP8: 307 GB/s); its latency is NVLink's, for want of a
/// measurement. The emulator copies as the CPU does, and is never better than shared memory.
fn cost(backend: Backend) -> Cost {
    match backend {
        Backend::Hip => Cost { latency_ns: 1240.0, bytes_per_ns: 300.0 },
        Backend::Emulator => Cost { latency_ns: 2000.0, bytes_per_ns: 8.0 },
        _ => Cost { latency_ns: 1240.0, bytes_per_ns: 350.0 },
    }
}
