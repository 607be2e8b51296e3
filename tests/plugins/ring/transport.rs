//! One rank's end: P2P's, with rings for kernels in place of mapped windows.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use campanile_core::{
    Caps, ControlError, DeviceView, Endpoint, Event, Fault, FaultKind, Memory, MemoryKind, Node, OpKind, PeerClass,
    Queue, QueueOptions, QueueTarget, Rank, Reach, Region, RemoteRegion, Request, Shutdown, Transport, TransportInfo,
    Wait, WaitError,
};

use super::proxy::{Proxy, Target};
use super::{NAME, Wrong, info};

pub(crate) struct RingTransport {
    inner: Arc<dyn Transport>,
    rank: Rank,
    wrong: Wrong,
}

impl RingTransport {
    pub(crate) fn new(inner: Arc<dyn Transport>, rank: Rank, wrong: Wrong) -> Self {
        Self { inner, rank, wrong }
    }
}

/// A region with the proxies of its views, which end before it.
struct Served {
    proxies: Mutex<Vec<Proxy>>,
    region: Region,
}

/// The region as P2P knows it.
fn inner(region: &Region) -> &Region {
    served(region).map_or(region, |served| &served.region)
}

fn served(region: &Region) -> Option<&Served> {
    region.keeper().downcast_ref()
}

impl Transport for RingTransport {
    fn info(&self) -> TransportInfo {
        info(self.wrong)
    }

    fn caps(&self, class: PeerClass, memory: MemoryKind, op: OpKind) -> Option<Caps> {
        let caps = self.inner.caps(class, memory, op)?;
        Some(Caps { load_store: caps.load_store && !memory.is_device(), ..caps })
    }

    fn allocate(&self, bytes: usize, kind: MemoryKind) -> Request<Region> {
        self.inner.allocate(bytes, kind).map(|region| {
            let (key, address, bytes, kind) = (region.key(), region.address(), region.bytes(), region.kind());
            let served: Arc<dyn Any + Send + Sync> = Arc::new(Served { proxies: Mutex::default(), region });
            Region::new(key, address, bytes, kind, served)
        })
    }

    fn export(&self, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError> {
        self.inner.export(inner(region), peers)
    }

    fn map(&self, region: &RemoteRegion) -> Option<NonNull<u8>> {
        if region.kind().is_device() { None } else { self.inner.map(region) }
    }

    fn device_view(&self, region: &Region, remotes: &[RemoteRegion]) -> Result<DeviceView, ControlError> {
        let unsupported = |reason: String| ControlError::Unsupported { transport: NAME, what: "device view", reason };
        let served = served(region).filter(|_| region.kind().is_device());
        let served = served.ok_or_else(|| unsupported(format!("kernels post for no {} memory", region.kind())))?;
        let target = |remote: &RemoteRegion| {
            let first = self.inner.map(remote).ok_or_else(|| unsupported(format!("{remote:?} is not mapped")))?;
            Ok(Target { first, remote: remote.clone() })
        };
        let targets = remotes.iter().map(target).collect::<Result<_, ControlError>>()?;
        let proxy = Proxy::new(targets, self.wrong == Wrong::Silent).map_err(|error| unsupported(error.to_string()))?;
        let is_mapped = |remote: &&RemoteRegion| remote.peer() == self.rank && self.wrong != Wrong::Own;
        let own = region.address().addr() as u64;
        let windows: Vec<_> = remotes.iter().map(|remote| if is_mapped(&remote) { own } else { 0 }).collect();
        let code = info(self.wrong).device_code.expect("it always has some");
        let mut peers = proxy.peers();
        peers.resize(code.peer_bytes as usize * remotes.len(), 0);
        let mut view = DeviceView::new(code, &windows, &peers);
        match self.wrong {
            Wrong::View => view.bytes.extend([0; 8]),
            Wrong::Kind => view.kind = "wheel",
            _ => {}
        }
        served.proxies.lock().unwrap_or_else(PoisonError::into_inner).push(proxy);
        Ok(view)
    }

    fn signal_wait(&self, wait: &Wait<'_>) -> Result<u64, WaitError> {
        self.inner.signal_wait(&Wait { region: inner(wait.region), ..*wait })
    }

    fn reach(&self, peer: Rank, node: &Node) -> Reach {
        self.inner.reach(peer, node)
    }

    fn address(&self) -> Vec<u8> {
        self.inner.address()
    }

    fn connect(&self, peers: &[(Rank, Vec<u8>)]) -> Request<Vec<Endpoint>> {
        self.inner.connect(peers)
    }

    unsafe fn register(&self, memory: Memory) -> Request<Region> {
        // SAFETY: the caller keeps the memory valid, as it promises here.
        unsafe { self.inner.register(memory) }
    }

    fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion> {
        self.inner.import(peer, blob)
    }

    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
        self.inner.queue(target, options)
    }

    fn notify(&self, peer: Rank) {
        self.inner.notify(peer);
    }

    fn poll_event(&self) -> Option<Event> {
        self.inner.poll_event()
    }

    fn gone(&self, peer: Rank) -> Option<FaultKind> {
        self.inner.gone(peer)
    }

    fn mask(&self, peer: Rank) {
        self.inner.mask(peer);
    }

    fn fault(&self) -> Option<Fault> {
        self.inner.fault()
    }

    fn report(&self, fault: Fault) -> Fault {
        self.inner.report(fault)
    }

    fn shutdown(&self, mode: Shutdown) -> Result<(), ControlError> {
        self.inner.shutdown(mode)
    }
}
