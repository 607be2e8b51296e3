//! One rank's end of a transport that lies.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use campanile_core::{
    Caps, ControlError, DeviceView, Endpoint, Event, Fault, FaultKind, Memory, MemoryKind, Node, OpKind, PeerClass,
    Queue, QueueOptions, QueueTarget, Rank, Reach, Region, RemoteRegion, Request, Shutdown, Transport, TransportInfo,
    Wait, WaitError, WaitState,
};

use super::Lie;
use super::queue::LyingQueue;

pub(super) struct LyingTransport {
    inner: Arc<dyn Transport>,
    lie: Option<Lie>,
    timeout: Duration,
    queues: AtomicU64,
    /// What a drain has to complete.
    live: Mutex<Vec<Weak<LyingQueue>>>,
    /// The event that is repeated.
    event: Mutex<Option<Event>>,
    masked: Mutex<Vec<Rank>>,
}

impl LyingTransport {
    pub(super) fn new(inner: Arc<dyn Transport>, lie: Option<Lie>, timeout: Duration) -> Self {
        Self {
            inner,
            lie,
            timeout,
            queues: AtomicU64::new(0),
            live: Mutex::default(),
            event: Mutex::default(),
            masked: Mutex::default(),
        }
    }

    fn lies(&self, lie: Lie) -> bool {
        self.lie == Some(lie)
    }

    /// Waits for the deadline, then blames whoever is waited for.
    fn stall(&self, wait: &Wait<'_>, start: Instant, state: Option<Box<WaitState>>) -> WaitError {
        while let Some(left) = self.timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
        let reporter = state.as_ref().map_or(wait.peer, |state| state.rank);
        let fault = Fault { culprit: wait.peer, kind: FaultKind::Stalled, reporter };
        match state {
            Some(state) => WaitError::Timeout { operation: wait.operation, fault, state, waited: start.elapsed() },
            None => WaitError::Invalid { operation: wait.operation, reason: fault.to_string() },
        }
    }
}

impl Transport for LyingTransport {
    fn info(&self) -> TransportInfo {
        self.inner.info()
    }

    fn caps(&self, class: PeerClass, memory: MemoryKind, op: OpKind) -> Option<Caps> {
        let caps = self.inner.caps(class, memory, op)?;
        // Whoever reorders puts where that is legal does not claim order.
        let reorders = matches!(self.lie, Some(Lie::StrongSignalEarly | Lie::FenceIgnored));
        Some(Caps { load_store: false, ordered_puts: caps.ordered_puts && !reorders, ..caps })
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

    fn allocate(&self, bytes: usize, kind: MemoryKind) -> Request<Region> {
        if !self.lies(Lie::MemoryNotZeroed) {
            return self.inner.allocate(bytes, kind);
        }
        let allocated = self.inner.allocate(bytes, kind).wait(self.timeout);
        if let Ok(region) = &allocated {
            // SAFETY: the whole of a region that nobody else knows yet.
            unsafe { region.address().write_bytes(0xab, region.bytes()) };
        }
        Request::done(allocated)
    }

    unsafe fn register(&self, memory: Memory) -> Request<Region> {
        // SAFETY: the caller keeps the memory valid, as it promises here.
        unsafe { self.inner.register(memory) }
    }

    fn export(&self, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError> {
        self.inner.export(region, peers)
    }

    fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion> {
        self.inner.import(peer, blob)
    }

    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        let queue = Arc::new(LyingQueue::new(&self.inner, self.lie, number, target, options, self.timeout)?);
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|queue| queue.strong_count() > 0);
        live.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    fn map(&self, _region: &RemoteRegion) -> Option<NonNull<u8>> {
        None
    }

    fn notify(&self, peer: Rank) {
        self.inner.notify(peer);
    }

    fn device_view(&self, region: &Region, remotes: &[RemoteRegion]) -> Result<DeviceView, ControlError> {
        self.inner.device_view(region, remotes)
    }

    fn poll_event(&self) -> Option<Event> {
        if self.lies(Lie::DeathUntold) {
            return None;
        }
        let event = self.inner.poll_event();
        if !self.lies(Lie::EventsRepeated) {
            return event;
        }
        let mut last = self.event.lock().unwrap_or_else(PoisonError::into_inner);
        *last = event.or(*last);
        *last
    }

    fn gone(&self, peer: Rank) -> Option<FaultKind> {
        if self.lies(Lie::DeathUntold) { None } else { self.inner.gone(peer) }
    }

    fn mask(&self, peer: Rank) {
        self.masked.lock().unwrap_or_else(PoisonError::into_inner).push(peer);
        if !self.lies(Lie::MaskIgnored) {
            self.inner.mask(peer);
        }
    }

    fn signal_wait(&self, wait: &Wait<'_>) -> Result<u64, WaitError> {
        let start = Instant::now();
        let waited = self.inner.signal_wait(wait);
        match (self.lie, waited) {
            (Some(Lie::DeathUntold), Err(WaitError::Fault { state, .. })) => Err(self.stall(wait, start, Some(state))),
            (Some(Lie::NeighbourBlamed), Err(WaitError::Fault { operation, fault, state })) => {
                Err(WaitError::Fault { operation, fault: Fault { culprit: wait.peer, ..fault }, state })
            }
            (Some(Lie::MaskedWaitHangs), Err(WaitError::Invalid { operation, reason })) => {
                let masked = self.masked.lock().unwrap_or_else(PoisonError::into_inner).contains(&wait.peer);
                if masked {
                    return Err(self.stall(wait, start, None));
                }
                Err(WaitError::Invalid { operation, reason })
            }
            (Some(Lie::LastSignalIgnored), Ok(_)) if self.inner.gone(wait.peer).is_some() => {
                Err(WaitError::Invalid { operation: wait.operation, reason: format!("{} is gone", wait.peer) })
            }
            (_, waited) => waited,
        }
    }

    fn follows_waits(&self) -> bool {
        self.inner.follows_waits()
    }

    fn fault(&self) -> Option<Fault> {
        self.inner.fault()
    }

    fn report(&self, fault: Fault) -> Fault {
        if self.lies(Lie::AbortUntold) { fault } else { self.inner.report(fault) }
    }

    fn shutdown(&self, mode: Shutdown) -> Result<(), ControlError> {
        if mode == Shutdown::Drain {
            let live = self.live.lock().unwrap_or_else(PoisonError::into_inner).clone();
            live.iter().filter_map(Weak::upgrade).for_each(|queue| queue.drain());
        }
        self.inner.shutdown(mode)
    }
}
