//! The communicator of kernels: [`DeviceCommunicator`], one rank's windows, words and failure.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use campanile_core::{
    Arena, ArenaError, ArenaRegion, CommError, Communicator, DeviceCode, DeviceForm, MemoryKind, REGION_ALIGNMENT,
    Window,
};

use crate::view::{CommunicatorView, NEAR_RANKS};
use crate::{
    Address, Cache, CallError, Coherence, Compile, CompileError, Device, DeviceMemory, HostMemory, Memory, Module,
    Source,
};

/// `FailureRecord`, and the abort word behind it.
const RECORD_BYTES: usize = 32;
/// Bounds the set-up of a window.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a rank's kernels need to communicate: windows of all ranks as mapped for its device, signal words, an error word,
/// an abort word and the deadline of every wait. [`new`](Self::new) makes it of a communicator, out of what the device code
/// of the chosen transport gives; [`in_process`](Self::in_process) for ranks that share a process and need none. Kernels are
/// [compiled](Self::compile) by it and given its [`view`](Self::view); `kernels/campanile.h` is what they do with it.
///
/// The first failure is sticky: kernels that ask `has_failed` end at once, for ever after.
///
/// ```
/// use std::time::Duration;
/// use campanile_core::Arena;
/// use campanile_gpu::view::{CommunicatorView, RegionView};
/// use campanile_gpu::{
///     Cache, Compile, DeviceCommunicator, Emulation, Gpu, Grid, Memory, Plan, Residency, Settings, Source,
/// };
///
/// /// A kernel's argument, as it stands in its source.
/// #[repr(C)]
/// #[derive(Clone, Copy)]
/// struct Pass { comm: CommunicatorView, region: RegionView, source: u64 }
///
/// // Every rank puts 16 bytes into its neighbour's window, and waits for those of the other neighbour.
/// let source = Source::new("pass.cpp", r#"
///     #include "campanile.h"
///     using namespace campanile;
///     struct Pass { CommunicatorView comm; RegionView region; const u32* source; };
///     CAMPANILE_KERNEL(pass, 64, Pass, a) {
///       const CommunicatorView& c = a.comm;
///       const u32 next = (c.rank + 1) % c.ranks, last = (c.rank + c.ranks - 1) % c.ranks;
///       put_signal(c, Block(), next, offset_of(a.region, 0), a.source, 16, 0, 1);
///       wait(c, Block(), last, 0, 1, 0);
///     }
/// "#);
///
/// let gpu = Gpu::emulator(Emulation::default(), &Settings::default())?;
/// # if !campanile_gpu::has_compiler(&gpu) { return Ok(()); }
/// let devices = [gpu.device(0)?, gpu.device(1)?];
/// let mut arena = Arena::new();
/// let region = arena.carve("mailbox", "u32[4]", 16, 1)?;
/// let ranks = DeviceCommunicator::in_process(&devices, &arena, 1, Duration::from_secs(10))?;
/// let mut parts = Vec::new();
/// for comm in &ranks {
///     let device = comm.device();
///     let module = comm.compile(&source, &Compile::default(), &Cache::none())?;
///     let grid = Grid { blocks: 1, threads: 64, shared_bytes: 0 };
///     let plan = Plan::<Pass>::new(&module, "pass", grid, Residency::Any)?;
///     let (stream, memory) = (device.stream()?, device.allocate_host(16)?);
///     // SAFETY: pinned memory that nobody uses yet.
///     unsafe { memory.as_ptr().write(7 + comm.rank() as u8) };
///     let argument = Pass { comm: comm.view(), region: RegionView::from(&region), source: memory.address() };
///     // SAFETY: windows and memory live until the stream is done, below.
///     unsafe { plan.launch(&stream, &argument)? };
///     parts.push((stream, memory));
/// }
/// for (comm, (stream, _)) in ranks.iter().zip(&parts) {
///     stream.synchronize(Duration::from_secs(20))?;
///     assert_eq!(comm.failure(), None);
///     let mut byte = [0];
///     stream.download(&comm.part(&region)?, 0, &mut byte)?;
///     assert_eq!(byte[0], 7 + 1 - comm.rank() as u8);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DeviceCommunicator {
    device: Device,
    rank: usize,
    signals: ArenaRegion,
    deadline: Duration,
    /// Of what the transport's header knows, in `state`; 0 if that is nothing.
    queues: Address,
    /// The table of windows, the word that says that this rank has failed, and what the transport's header knows.
    state: DeviceMemory,
    host: HostMemory,
    /// Last, so that they are mapped until the device has done with the rest.
    windows: Windows,
}

/// The windows of all ranks, as the device of one reaches them.
struct Windows {
    /// First byte of each; 0: only a queue reaches it.
    addresses: Vec<Address>,
    /// Length of each.
    bytes: usize,
    /// What the transport's header knows, a `Peer` for each rank.
    peers: Vec<u8>,
    /// Name and device code of the transport; none where all ranks are in one process.
    transport: Option<(&'static str, &'static DeviceCode)>,
    /// What keeps them mapped.
    _keep: Arc<dyn Any + Send + Sync>,
}

impl DeviceCommunicator {
    /// As many ranks as there are devices, which are threads of this process; a device may be several ranks'. Windows hold
    /// the arena and, behind it, `signals` words; both are zeroed. Index of the result is the rank.
    ///
    /// # Errors
    /// [`DeviceCommunicatorError`]: a device without peer access, too little memory, an arena with a region "signals".
    pub fn in_process(
        devices: &[Device],
        arena: &Arena,
        signals: usize,
        deadline: Duration,
    ) -> Result<Vec<Self>, DeviceCommunicatorError> {
        let mut arena = arena.clone();
        let signals = arena.carve("signals", "word", 8, signals)?;
        let mut windows = Vec::with_capacity(devices.len());
        for device in devices {
            // Words must not be cached in an L2 that a peer's store does not reach.
            let window = device.allocate_virtual(arena.bytes(), Coherence::Uncached)?;
            for peer in devices.iter().filter(|peer| peer.ordinal() != device.ordinal()) {
                window.allow_access(peer)?;
            }
            let stream = device.stream()?;
            // SAFETY: the window outlives the wait.
            unsafe { stream.fill(&window, 0)? };
            stream.synchronize(PATIENCE)?;
            windows.push(window);
        }
        let addresses: Vec<Address> = windows.iter().map(Memory::address).collect();
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(windows);
        let rank = |(rank, device): (usize, &Device)| {
            // SAFETY: allocated above for all devices, zeroed, and kept by `keep`.
            unsafe {
                let (addresses, bytes, keep) = (addresses.clone(), arena.bytes(), Arc::clone(&keep));
                let windows = Windows { addresses, bytes, peers: Vec::new(), transport: None, _keep: keep };
                Self::over(device, rank, windows, signals.clone(), deadline)
            }
        };
        devices.iter().enumerate().map(rank).collect()
    }

    /// This rank of a communicator whose transport has windows in device memory and brings device code: a window that holds
    /// the arena and, behind it, `signals` words, all zeroed. `device` is the one that the communicator
    /// [names](Communicator::device); ranks may be processes, and are numbered as in the communicator's team. Waits on the
    /// device last as long as the communicator's. Collective.
    ///
    /// # Errors
    /// [`DeviceCommunicatorError`]: the transport has no window there or no device code that this host compiles, the path
    /// forbids load and store and it has nothing else, too little memory, an arena with a region "signals". What one rank
    /// cannot do is an error on all of them.
    pub fn new(
        comm: &Communicator,
        device: &Device,
        arena: &Arena,
        signals: usize,
    ) -> Result<Self, DeviceCommunicatorError> {
        let mut arena = arena.clone();
        let signals = arena.carve("signals", "word", 8, signals)?;
        let window = comm.window(arena.bytes(), MemoryKind::Device(device.ordinal()))?;
        let made = Self::over_window(comm, device, arena.bytes(), signals, window);
        // A rank that cannot is an error on all of them: kernels of the others would wait for it.
        let reason = made.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let reasons = comm.gather("device communicator", reason.as_bytes())?;
        let failed = reasons.iter().position(|reason| !reason.is_empty());
        match (made, failed) {
            (Ok(_), Some(position)) => Err(DeviceCommunicatorError::Comm(CommError::Peer {
                what: "device communicator".to_owned(),
                peer: comm.team().member(position),
                reason: String::from_utf8_lossy(&reasons[position]).into_owned(),
            })),
            (made, _) => made,
        }
    }

    /// This rank's part of [`new`](Self::new).
    fn over_window(
        comm: &Communicator,
        device: &Device,
        bytes: usize,
        signals: ArenaRegion,
        window: Window,
    ) -> Result<Self, DeviceCommunicatorError> {
        let reached = window.device_window()?;
        let windows = Windows {
            addresses: reached.windows,
            bytes,
            peers: reached.peers,
            transport: Some((comm.transport().info().name, reached.code)),
            _keep: Arc::new(window),
        };
        // SAFETY: what the transport says of the window is mapped for this rank's device as long as the window lives, which
        // is zeroed on all ranks before it is there.
        let comm = unsafe { Self::over(device, comm.rank(), windows, signals, comm.timeout())? };
        if reached.code.form == DeviceForm::Map {
            comm.check_mapped()?;
        }
        Ok(comm)
    }

    /// One rank, over windows that are there. `signals` is the region of the windows' arena that holds the signal words;
    /// they are all equal on all ranks before any kernel runs.
    ///
    /// # Safety
    /// Each window is mapped for `device`, unless its address is 0, as long as they are kept, and so is what the peers name.
    unsafe fn over(
        device: &Device,
        rank: usize,
        windows: Windows,
        signals: ArenaRegion,
        deadline: Duration,
    ) -> Result<Self, DeviceCommunicatorError> {
        let mut bytes: Vec<u8> = windows.addresses.iter().flat_map(|window| window.to_ne_bytes()).collect();
        bytes.extend([0; 8]);
        // As regions of windows are.
        bytes.resize(bytes.len().next_multiple_of(REGION_ALIGNMENT), 0);
        let queues = bytes.len();
        bytes.extend(&windows.peers);
        let state = device.allocate(bytes.len(), Coherence::Coarse)?;
        device.stream()?.upload(&state, 0, &bytes)?;
        let queues = if windows.peers.is_empty() { 0 } else { state.address() + queues as Address };
        let host = device.allocate_host(RECORD_BYTES + 8)?;
        Ok(Self { device: device.clone(), rank, signals, deadline, queues, state, host, windows })
    }

    /// Compiles a kernel for this rank's device with the device code of the transport that was chosen, or takes it from the
    /// cache, and loads it. Kernels that put or signal are compiled by this: they run on every transport and name none.
    ///
    /// # Errors
    /// As [`Device::compile`]; [`CompileError::DeviceCode`] names the transport whose header is compiled in.
    pub fn compile(&self, source: &Source, compile: &Compile, cache: &Cache) -> Result<Module, CompileError> {
        let Some((transport, code)) = self.windows.transport.filter(|(_, code)| code.form != DeviceForm::Map) else {
            return self.device.compile(source, compile, cache);
        };
        let compiled = self.device.compile(&source.clone().with_device_code(code), compile, cache);
        compiled.map_err(|error| match error {
            CompileError::Source { .. } => CompileError::DeviceCode { transport, source: Box::new(error) },
            other => other,
        })
    }

    /// Makes sure that load and store reach every window: for kernels that do more than put and signal.
    ///
    /// # Errors
    /// [`DeviceCommunicatorError::Unreachable`].
    pub fn check_mapped(&self) -> Result<(), DeviceCommunicatorError> {
        let unmapped = self.windows.addresses.iter().position(|window| *window == 0);
        unmapped.map_or(Ok(()), |rank| Err(DeviceCommunicatorError::Unreachable { rank }))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.windows.addresses.len()
    }

    /// Number of signal words in each window.
    #[must_use]
    pub fn signals(&self) -> usize {
        self.signals.count
    }

    /// First byte of a rank's window, as mapped for this device; 0 if only a queue reaches it.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn window(&self, rank: usize) -> Address {
        self.windows.addresses[rank]
    }

    /// A region of this rank's own window, for copies of a stream.
    ///
    /// # Errors
    /// [`DeviceCommunicatorError::Outside`] for one that is not inside the window.
    pub fn part(&self, region: &ArenaRegion) -> Result<WindowPart<'_>, DeviceCommunicatorError> {
        let end = region.offset.checked_add(region.bytes());
        if end.is_none_or(|end| end > self.windows.bytes) {
            let (name, window_bytes) = (region.name.clone(), self.windows.bytes);
            return Err(DeviceCommunicatorError::Outside { name, window_bytes });
        }
        let address = self.windows.addresses[self.rank] + region.offset as Address;
        Ok(WindowPart { address, bytes: region.bytes(), _comm: self })
    }

    /// This rank's signal words, for copies of a stream: to set them before the first kernel runs, and to look at them.
    #[must_use]
    pub fn signal_words(&self) -> WindowPart<'_> {
        let address = self.windows.addresses[self.rank] + self.signals.offset as Address;
        WindowPart { address, bytes: self.signals.bytes(), _comm: self }
    }

    /// What its kernels are given.
    #[must_use]
    pub fn view(&self) -> CommunicatorView {
        let mut near = [0; NEAR_RANKS];
        for (near, window) in near.iter_mut().zip(&self.windows.addresses) {
            *near = *window;
        }
        CommunicatorView {
            near,
            windows: self.state.address(),
            queues: self.queues,
            signals: self.signals.offset as u64,
            abort: self.host.address() + RECORD_BYTES as Address,
            failed: self.state.address() + 8 * self.windows.addresses.len() as Address,
            record: self.host.address(),
            deadline: u64::try_from(self.deadline.as_nanos()).unwrap_or(u64::MAX),
            rank: self.rank as u32,
            ranks: self.windows.addresses.len() as u32,
        }
    }

    /// Frees running kernels of this rank: what waits gives up.
    pub fn abort(&self) {
        // SAFETY: inside the memory, aligned, alive as long as `self`; all accesses to it are atomic.
        let word = unsafe { &*self.host.as_ptr().add(RECORD_BYTES).cast::<AtomicU32>() };
        word.store(1, Ordering::Release);
    }

    /// The first failure of this rank's kernels, if there was one.
    #[must_use]
    pub fn failure(&self) -> Option<DeviceFailure> {
        let word = |index: usize| {
            // SAFETY: a field of the record, aligned, alive as long as `self`; kernels write it by atomic stores.
            unsafe { &*self.host.as_ptr().add(index * 4).cast::<AtomicU32>() }
        };
        let long = |index: usize| {
            // SAFETY: as above.
            unsafe { &*self.host.as_ptr().add(index * 8).cast::<AtomicU64>() }.load(Ordering::Relaxed)
        };
        let kind = match word(0).load(Ordering::Acquire) {
            0 => return None,
            1 => FailureKind::Timeout,
            _ => FailureKind::Aborted,
        };
        let [operation, peer, slot] = [1, 2, 3].map(|index| word(index).load(Ordering::Relaxed));
        Some(DeviceFailure { rank: self.rank, kind, operation, peer, slot, expected: long(2), seen: long(3) })
    }
}

impl fmt::Debug for DeviceCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceCommunicator(rank {} of {}, {:?})", self.rank, self.windows.addresses.len(), self.device)
    }
}

/// A part of this rank's window.
#[derive(Debug)]
pub struct WindowPart<'a> {
    address: Address,
    bytes: usize,
    _comm: &'a DeviceCommunicator,
}

// SAFETY: inside the window, which is mapped as long as the communicator lives.
unsafe impl Memory for WindowPart<'_> {
    fn address(&self) -> Address {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// How a wait on the device ended that did not see what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The deadline came first.
    Timeout,
    /// The host aborted.
    Aborted,
}

/// The first failure of a rank's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFailure {
    /// The rank that waited.
    pub rank: usize,
    /// How the wait ended.
    pub kind: FailureKind,
    /// The kernel's number for what it did.
    pub operation: u32,
    /// The rank that it waited for.
    pub peer: u32,
    /// The signal word.
    pub slot: u32,
    /// What the word had to reach.
    pub expected: u64,
    /// What it was.
    pub seen: u64,
}

impl fmt::Display for DeviceFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, operation, peer, slot, expected, seen, .. } = self;
        let ended = match self.kind {
            FailureKind::Timeout => "the deadline came first",
            FailureKind::Aborted => "it was aborted",
        };
        write!(
            f,
            "rank {rank}, operation {operation}: waited for word {slot} of rank {peer} to reach {expected}, saw {seen}: \
             {ended}"
        )
    }
}

/// Why a device communicator cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceCommunicatorError {
    /// The window cannot be laid out.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A region of another arena.
    #[error(
        "region {name} is not inside the window of {window_bytes} bytes; give one of the arena that it was made with"
    )]
    Outside {
        /// The region.
        name: String,
        /// Bytes of the window.
        window_bytes: usize,
    },
    /// The communicator gave no window.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Kernels do not reach a peer.
    #[error(
        "load and store of this rank's device do not reach the window of rank {rank}, and the operation needs that"
    )]
    Unreachable {
        /// The peer.
        rank: usize,
    },
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}
