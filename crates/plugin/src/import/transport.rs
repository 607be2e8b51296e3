//! A C transport as the core's.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use campanile_abi as abi;
use campanile_core::{
    Caps, ControlError, DeviceView, Endpoint, Event, Fault, FaultKind, Memory, MemoryKind, Node, OpKind, OpenOptions,
    PeerClass, Queue, QueueOptions, QueueTarget, Rank, Reach, Region, RegionKey, RemoteKey, RemoteRegion, Request,
    Shutdown, Transport, TransportInfo, Wait, WaitError,
};

use super::TableError;
use super::queue::ImportedQueue;
use super::record::{call, failure, record};
use super::request::{Place, start};
use super::signal;
use super::table::{Prefix, required_functions};
use crate::codes;
use crate::text;

/// An open transport, which its regions, requests and queues keep open.
pub(super) struct Opened {
    table: abi::Transport,
    info: TransportInfo,
    rank: Rank,
    timeout: Duration,
    ranks_on_node: usize,
    cores: usize,
    /// Whom it is connected to.
    peers: OnceLock<Vec<Rank>>,
    /// What the host does for a plugin that does not.
    without: Without,
}

/// The state of what the host does itself.
#[derive(Default)]
struct Without {
    /// Peers that this rank goes on without.
    masked: RwLock<BTreeSet<Rank>>,
    /// Peers whose end was told.
    told: Mutex<BTreeSet<Rank>>,
    /// A fault that this rank reported while one of a masked peer stood.
    fault: Mutex<Option<Fault>>,
    /// The queues that a wait drives.
    queues: Mutex<Vec<Weak<ImportedQueue>>>,
}

// SAFETY: the functions of a transport may be called from any thread, by many at once (the contract of transports).
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(close) = self.table.close {
            // SAFETY: the transport's function and context, used for the last time: regions, requests and queues hold this
            // struct.
            unsafe { close(self.table.ctx) };
        }
    }
}

/// The functions that every transport has, out of their options: `import` made sure of them.
macro_rules! function {
    ($opened:expr, $name:ident) => {
        $opened.table.$name.expect("`import` made sure")
    };
}

/// # Safety
/// `table` is null or that of a transport which the plugin has just opened; it is this one's alone.
pub(super) unsafe fn import(
    table: *const abi::Transport,
    info: TransportInfo,
    options: &OpenOptions,
) -> Result<Arc<dyn Transport>, TableError> {
    if table.is_null() {
        return Err(TableError::Null);
    }
    // SAFETY: the caller's promise.
    let table = unsafe { abi::Transport::prefix(table) };
    required_functions!(
        table, "transport": close, caps, reach, address, connect, allocate, release, export_key, import_key,
        release_remote, queue, fault, report, gone,
    )?;
    Ok(Arc::new(ImportedTransport(Arc::new(Opened {
        table,
        info,
        rank: options.rank,
        timeout: options.timeout,
        ranks_on_node: options.ranks_on_node,
        cores: options.cores,
        peers: OnceLock::new(),
        without: Without::default(),
    }))))
}

impl Opened {
    pub(super) fn info(&self) -> &TransportInfo {
        &self.info
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Ranks on this node, and the cores that they may use together.
    pub(super) fn share(&self) -> (usize, usize) {
        (self.ranks_on_node, self.cores)
    }

    pub(super) fn peers(&self) -> &[Rank] {
        self.peers.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn masked(&self, rank: Rank) -> bool {
        self.without.masked.read().unwrap_or_else(PoisonError::into_inner).contains(&rank)
    }

    /// Drives the queues of this transport: how many operations they completed. Their failures are their users' to see.
    pub(super) fn progress(&self) -> usize {
        let queues = self.without.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let live: Vec<_> = queues.iter().filter_map(Weak::upgrade).collect();
        drop(queues);
        live.iter().filter_map(|queue| queue.progress().ok()).sum()
    }

    pub(super) fn gone(&self, peer: Rank) -> Option<FaultKind> {
        // SAFETY: the transport's function and context.
        codes::fault_kind(unsafe { function!(self, gone)(self.table.ctx, peer.0) })
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        // SAFETY: the transport's function and context.
        let fault = Fault::from_word(unsafe { function!(self, fault)(self.table.ctx) })?;
        if self.table.mask.is_some() || !self.masked(fault.culprit) {
            return Some(fault);
        }
        let own = *self.without.fault.lock().unwrap_or_else(PoisonError::into_inner);
        own.filter(|own| !self.masked(own.culprit))
    }

    pub(super) fn report(&self, fault: Fault) -> Fault {
        // SAFETY: the transport's function and context.
        let word = unsafe { function!(self, report)(self.table.ctx, fault.to_word()) };
        let stands = Fault::from_word(word).unwrap_or(fault);
        if self.table.mask.is_some() || !self.masked(stands.culprit) {
            return stands;
        }
        let mut own = self.without.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let first = own.filter(|own| !self.masked(own.culprit)).unwrap_or(fault);
        *own = Some(first);
        first
    }

    fn unsupported(&self, what: &'static str, reason: &str) -> ControlError {
        ControlError::Unsupported { transport: self.info.name, what, reason: reason.to_owned() }
    }
}

/// What keeps a region of a plugin: its handle, released with the last clone of the region.
struct Held {
    opened: Arc<Opened>,
    handle: *mut c_void,
    release: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
}

// SAFETY: a handle is the plugin's, and its functions may be called from any thread.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the transport's function and context, and a handle of it that is used for the last time.
            unsafe { release(self.opened.table.ctx, self.handle) };
        }
    }
}

/// A local region on its way, with what the call that makes it was given.
struct LocalPlace {
    region: abi::Region,
    bytes: usize,
    kind: MemoryKind,
}

// SAFETY: plain data that names memory of the plugin.
unsafe impl Send for LocalPlace {}

impl LocalPlace {
    fn new(bytes: usize, kind: MemoryKind) -> Self {
        let null = std::ptr::null_mut();
        let struct_size = size_of::<abi::Region>() as u64;
        Self { region: abi::Region { struct_size, key: 0, address: null, handle: null }, bytes, kind }
    }

    /// Memory that the plugin chose: words are in it.
    fn allocated(opened: &Arc<Opened>, place: &mut Self) -> Result<Region, ControlError> {
        let region = Self::finish(opened, place)?;
        if region.address().is_null() || !region.address().cast::<u64>().is_aligned() {
            let reason = format!("transport {} gave memory at {:p}", opened.info.name, region.address());
            return Err(ControlError::Memory { bytes: place.bytes, kind: place.kind, reason });
        }
        Ok(region)
    }

    fn finish(opened: &Arc<Opened>, place: &mut Self) -> Result<Region, ControlError> {
        let abi::Region { key, address, handle, .. } = place.region;
        let held = Held { opened: Arc::clone(opened), handle, release: opened.table.release };
        Ok(Region::new(RegionKey(key), address.cast(), place.bytes, place.kind, Arc::new(held)))
    }
}

impl Place for LocalPlace {
    fn pointer(&mut self) -> *mut c_void {
        (&raw mut self.region).cast()
    }
}

/// A remote region on its way.
struct RemotePlace {
    region: abi::RemoteRegion,
    peer: Rank,
}

// SAFETY: plain data that names memory of the plugin.
unsafe impl Send for RemotePlace {}

impl RemotePlace {
    fn new(peer: Rank) -> Self {
        let struct_size = size_of::<abi::RemoteRegion>() as u64;
        let handle = std::ptr::null_mut();
        Self { region: abi::RemoteRegion { struct_size, key: 0, bytes: 0, handle, memory: 0, reserved: 0 }, peer }
    }

    fn finish(opened: &Arc<Opened>, place: &mut Self) -> Result<RemoteRegion, ControlError> {
        let abi::RemoteRegion { key, bytes, handle, memory, .. } = place.region;
        let held = Held { opened: Arc::clone(opened), handle, release: opened.table.release_remote };
        let kind = codes::memory_kind(memory);
        Ok(RemoteRegion::new(RemoteKey(key), place.peer, bytes as usize, kind, Arc::new(held)))
    }
}

impl Place for RemotePlace {
    fn pointer(&mut self) -> *mut c_void {
        (&raw mut self.region).cast()
    }
}

/// Endpoints on their way, and the peers that they are of.
struct EndpointsPlace {
    endpoints: Vec<abi::Endpoint>,
    peers: Vec<Rank>,
}

impl EndpointsPlace {
    fn finish(opened: &Arc<Opened>, place: &mut Self) -> Result<Vec<Endpoint>, ControlError> {
        let mut endpoints = Vec::with_capacity(place.endpoints.len());
        for record in &place.endpoints {
            let peer = Rank(record.peer);
            let (true, Some(class)) = (place.peers.contains(&peer), codes::peer_class(record.peer_class)) else {
                let reason = format!("transport {} gave an endpoint of {peer} that is none", opened.info.name);
                return Err(ControlError::System { what: "connect".to_owned(), reason });
            };
            endpoints.push(Endpoint { peer, class });
        }
        endpoints.sort_by_key(|endpoint| endpoint.peer);
        // A transport that can connect twice keeps the peers of the first time.
        let _ = opened.peers.set(std::mem::take(&mut place.peers));
        Ok(endpoints)
    }
}

impl Place for EndpointsPlace {
    fn pointer(&mut self) -> *mut c_void {
        self.endpoints.as_mut_ptr().cast()
    }
}

/// A transport of a plugin.
struct ImportedTransport(Arc<Opened>);

impl ImportedTransport {
    fn held<'a>(&self, keeper: &'a (dyn std::any::Any + Send + Sync)) -> Option<&'a Held> {
        keeper.downcast_ref::<Held>().filter(|held| Arc::ptr_eq(&held.opened, &self.0))
    }
}

impl Transport for ImportedTransport {
    fn info(&self) -> TransportInfo {
        self.0.info.clone()
    }

    fn caps(&self, class: PeerClass, memory: MemoryKind, op: OpKind) -> Option<Caps> {
        // SAFETY: all bits zero are caps.
        let mut record: abi::Caps = unsafe { std::mem::zeroed() };
        record.struct_size = size_of::<abi::Caps>() as u64;
        let (class, memory, op) = (codes::class_code(class), codes::memory_code(memory), codes::op_code(op)?);
        // SAFETY: the transport's function and context; the record is this call's.
        let given = unsafe { function!(self.0, caps)(self.0.table.ctx, class, memory, op, &raw mut record) };
        if given <= 0 {
            return None;
        }
        let mut caps = codes::caps(&record)?;
        caps.load_store &= self.0.table.map.is_some();
        Some(caps)
    }

    fn reach(&self, peer: Rank, node: &Node) -> Reach {
        let mut cost = abi::Cost { latency_ps: 0, bytes_per_s: 0 };
        // SAFETY: the transport's function and context; everything else is this call's.
        let (reason, reached) = text::collect_text(|reason| unsafe {
            let node = text::lend(node.identity());
            function!(self.0, reach)(self.0.table.ctx, peer.0, node, &raw mut cost, reason)
        });
        if reached > 0 { Reach::Yes(codes::cost(cost)) } else { Reach::No(reason) }
    }

    fn address(&self) -> Vec<u8> {
        // SAFETY: the transport's function and context; sink and record are this call's.
        let (address, status) =
            text::collect(|sink| unsafe { call(|error| function!(self.0, address)(self.0.table.ctx, sink, error)) });
        if let Err(failure) = status {
            // Peers will say what they cannot connect to.
            tracing::error!(transport = self.0.info.name, error = failure.describe(), "it gave no address");
        }
        address
    }

    fn connect(&self, peers: &[(Rank, Vec<u8>)]) -> Request<Vec<Endpoint>> {
        let records: Vec<_> = peers
            .iter()
            .map(|(rank, address)| abi::Peer { address: text::lend_bytes(address), rank: rank.0, reserved: 0 })
            .collect();
        let none = abi::Endpoint { peer: u32::MAX, peer_class: u32::MAX };
        let place =
            EndpointsPlace { endpoints: vec![none; peers.len()], peers: peers.iter().map(|(rank, _)| *rank).collect() };
        let (connect, ctx) = (function!(self.0, connect), self.0.table.ctx);
        // SAFETY: the transport's function and context; the place lives as long as the request, the rest is this call's.
        let begin = |endpoints: *mut c_void, request, error| unsafe {
            connect(ctx, records.as_ptr(), records.len(), endpoints.cast(), request, error)
        };
        start(&self.0, "connect", place, begin, EndpointsPlace::finish)
    }

    fn allocate(&self, bytes: usize, kind: MemoryKind) -> Request<Region> {
        let (allocate, ctx) = (function!(self.0, allocate), self.0.table.ctx);
        // SAFETY: the transport's function and context; the place lives as long as the request, the rest is this call's.
        let begin = |region: *mut c_void, request, error| unsafe {
            allocate(ctx, bytes as u64, codes::memory_code(kind), region.cast(), request, error)
        };
        start(&self.0, "allocate", LocalPlace::new(bytes, kind), begin, LocalPlace::allocated)
    }

    unsafe fn register(&self, memory: Memory) -> Request<Region> {
        let Some(register) = self.0.table.register_memory else {
            let reason = "it takes no memory of others; allocate it";
            return Request::done(Err(self.0.unsupported("register", reason)));
        };
        let Memory { address, bytes, kind } = memory;
        let ctx = self.0.table.ctx;
        // SAFETY: the transport's function and context; the caller keeps the memory (the contract of `register`), the place
        // lives as long as the request, the rest is this call's.
        let begin = |region: *mut c_void, request, error| unsafe {
            register(ctx, address.cast(), bytes as u64, codes::memory_code(kind), region.cast(), request, error)
        };
        start(&self.0, "register", LocalPlace::new(bytes, kind), begin, LocalPlace::finish)
    }

    fn export(&self, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError> {
        let held = self
            .held(region.keeper())
            .ok_or_else(|| self.0.unsupported("export", "the region is of another transport"))?;
        let peers: Vec<u32> = peers.iter().map(|peer| peer.0).collect();
        // SAFETY: the transport's function, context and handle; everything else is this call's.
        let (blob, status) = text::collect(|sink| unsafe {
            call(|error| {
                let export = function!(self.0, export_key);
                export(self.0.table.ctx, held.handle, peers.as_ptr(), peers.len(), sink, error)
            })
        });
        status.map(|_| blob).map_err(|failure| failure.into_control(self.0.info.name, "export"))
    }

    fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion> {
        let (import, ctx) = (function!(self.0, import_key), self.0.table.ctx);
        // SAFETY: the transport's function and context; the place lives as long as the request, the rest is this call's.
        let begin = |region: *mut c_void, request, error| unsafe {
            import(ctx, peer.0, text::lend_bytes(blob), region.cast(), request, error)
        };
        start(&self.0, "import", RemotePlace::new(peer), begin, RemotePlace::finish)
    }

    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
        let Some((target, number)) = codes::target_code(target) else {
            return Err(self.0.unsupported("queue", "the plugin boundary has no such target"));
        };
        let options = abi::QueueOptions {
            struct_size: size_of::<abi::QueueOptions>() as u64,
            depth: options.depth as u64,
            initiator: codes::initiator_code(options.initiator),
            ordered: options.ordered.into(),
        };
        let mut table = std::ptr::null();
        // SAFETY: the transport's function and context; everything else is this call's.
        call(|error| unsafe {
            let make = function!(self.0, queue);
            make(self.0.table.ctx, target, number, &raw const options, &raw mut table, error)
        })
        .map_err(|failure| failure.into_control(self.0.info.name, "queue"))?;
        // SAFETY: the table of a queue that the plugin has just made.
        let queue = unsafe { ImportedQueue::new(table, Arc::clone(&self.0)) };
        let bad = |error: TableError| ControlError::System { what: "queue".to_owned(), reason: error.to_string() };
        let queue = Arc::new(queue.map_err(bad)?);
        if self.0.table.signal_wait.is_none() {
            let mut queues = self.0.without.queues.lock().unwrap_or_else(PoisonError::into_inner);
            queues.retain(|queue| queue.strong_count() > 0);
            queues.push(Arc::downgrade(&queue));
        }
        Ok(queue)
    }

    fn map(&self, region: &RemoteRegion) -> Option<NonNull<u8>> {
        let (map, held) = (self.0.table.map?, self.held(region.keeper())?);
        // SAFETY: the transport's function, context and handle.
        NonNull::new(unsafe { map(self.0.table.ctx, held.handle) }.cast())
    }

    #[inline]
    fn notify(&self, peer: Rank) {
        if let Some(notify) = self.0.table.notify {
            // SAFETY: the transport's function and context.
            unsafe { notify(self.0.table.ctx, peer.0) };
        }
    }

    fn device_view(&self, region: &Region, remotes: &[RemoteRegion]) -> Result<DeviceView, ControlError> {
        let Some(view) = self.0.table.device_view else {
            return Err(self.0.unsupported("device view", "it has no code for devices"));
        };
        let foreign = || self.0.unsupported("device view", "a region is of another transport");
        let handle = |keeper| self.held(keeper).map(|held| held.handle).ok_or_else(foreign);
        let handles = remotes.iter().map(|remote| handle(remote.keeper())).collect::<Result<Vec<_>, _>>()?;
        let mut record = abi::DeviceView {
            struct_size: size_of::<abi::DeviceView>() as u64,
            kind: text::lend(""),
            abi: 0,
            reserved: 0,
            region: handle(region.keeper())?,
            remotes: handles.as_ptr(),
            members: handles.len() as u64,
        };
        let memory = codes::memory_code(region.kind());
        // SAFETY: the transport's function and context; everything else is this call's.
        let (bytes, status) =
            text::collect(|sink| unsafe { call(|error| view(self.0.table.ctx, memory, &raw mut record, sink, error)) });
        status.map_err(|failure| failure.into_control(self.0.info.name, "device view"))?;
        // SAFETY: the text lives for ever (the contract of `device_view`).
        let kind = std::str::from_utf8(unsafe { text::borrow(record.kind) });
        let kind = kind.map_err(|_| self.0.unsupported("device view", "its kind is no UTF-8"))?;
        Ok(DeviceView { kind, abi: record.abi, bytes })
    }

    fn poll_event(&self) -> Option<Event> {
        if let Some(poll) = self.0.table.poll_event {
            let mut peer = 0;
            // SAFETY: the transport's function and context; the place is this call's.
            return match unsafe { poll(self.0.table.ctx, &raw mut peer) } {
                abi::EVENT_LEFT => Some(Event::PeerLeft(Rank(peer))),
                abi::EVENT_DIED => Some(Event::PeerDied(Rank(peer))),
                _ => None,
            };
        }
        let mut told = self.0.without.told.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = |peer: &Rank, told: &BTreeSet<Rank>| told.contains(peer) || self.0.masked(*peer);
        let untold = self.0.peers().iter().filter(|peer| !quiet(peer, &told));
        let (peer, kind) = untold.copied().find_map(|peer| Some((peer, self.0.gone(peer)?)))?;
        told.insert(peer);
        Some(if kind == FaultKind::Left { Event::PeerLeft(peer) } else { Event::PeerDied(peer) })
    }

    fn gone(&self, peer: Rank) -> Option<FaultKind> {
        self.0.gone(peer)
    }

    fn mask(&self, peer: Rank) {
        self.0.without.masked.write().unwrap_or_else(PoisonError::into_inner).insert(peer);
        if let Some(mask) = self.0.table.mask {
            // SAFETY: the transport's function and context.
            unsafe { mask(self.0.table.ctx, peer.0) };
        }
    }

    #[inline]
    fn follows_waits(&self) -> bool {
        // Without a wait of its own it is the host that waits, which knows nothing of the waits of other hosts.
        self.0.table.signal_wait.is_some()
    }

    fn signal_wait(&self, wait: &Wait<'_>) -> Result<u64, WaitError> {
        let Some(signal_wait) = self.0.table.signal_wait else { return signal::wait(&self.0, wait) };
        let Some(held) = self.held(wait.region.keeper()) else {
            let reason = "the region is of another transport".to_owned();
            return Err(WaitError::Invalid { operation: wait.operation, reason });
        };
        let (condition, mask, value) = codes::condition_code(wait.condition);
        let record_of_wait = abi::Wait {
            struct_size: size_of::<abi::Wait>() as u64,
            region: held.handle,
            offset: wait.offset as u64,
            mask,
            value,
            epoch: wait.epoch,
            operation: text::lend(wait.operation),
            slot: text::lend(wait.slot),
            condition,
            peer: wait.peer.0,
        };
        let mut seen = 0;
        // SAFETY: the transport's function and context, and a handle of it; the texts live for ever, everything else is this
        // call's.
        let status = unsafe { signal_wait(self.0.table.ctx, &raw const record_of_wait, &raw mut seen, record()) };
        if status == abi::STATUS_OK { Ok(seen) } else { Err(failure(status).into_wait(self.0.rank, wait)) }
    }

    fn fault(&self) -> Option<Fault> {
        self.0.fault()
    }

    fn report(&self, fault: Fault) -> Fault {
        self.0.report(fault)
    }

    fn shutdown(&self, mode: Shutdown) -> Result<(), ControlError> {
        let Some(shutdown) = self.0.table.shutdown else {
            if mode == Shutdown::Abort {
                let rank = self.0.rank;
                self.0.report(Fault { culprit: rank, kind: FaultKind::Died, reporter: rank });
            }
            return Ok(());
        };
        let mode = match mode {
            Shutdown::Drain => abi::SHUTDOWN_DRAIN,
            Shutdown::Abort => abi::SHUTDOWN_ABORT,
        };
        // SAFETY: the transport's function and context; the record is this call's.
        call(|error| unsafe { shutdown(self.0.table.ctx, mode, error) })
            .map(|_| ())
            .map_err(|failure| failure.into_control(self.0.info.name, "shutdown"))
    }
}
