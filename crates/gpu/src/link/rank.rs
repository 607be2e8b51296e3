//! One rank's part of a measurement: [`LinkRank`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use campanile_core::{Arena, ArenaError, ArenaRegion};

use super::{Arm, LinkError, LinkOptions, Pattern};
use crate::view::{CommunicatorView, RegionView};
use crate::{
    Address, Backend, Cache, Coherence, Compile, DeviceCommunicator, DeviceMemory, Event, Grid, HostMemory, Plan,
    Residency, Source, Stream,
};

/// What sizes are multiples of: a chunk of every kernel at every wave.
const QUANTUM: usize = 64 << 10;
/// `STAGES * BULK_BYTES` of `kernels/link/bandwidth.cpp`.
const BULK_SHARED_BYTES: u32 = 16 * 8192;
/// Bounds every wait.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The signal words that a measurement needs.
pub(super) const SIGNALS: usize = 1;

/// The window of a measurement: the same on every rank.
#[derive(Clone, Debug)]
pub struct LinkLayout {
    /// Its arena.
    pub arena: Arena,
    /// What is read: a slice for each peer, in the order of the ranks after this one.
    pub send: ArenaRegion,
    /// What is written: a slice for each source; with a single source all of it.
    pub receive: ArenaRegion,
}

impl LinkLayout {
    /// For as many ranks and options.
    ///
    /// # Errors
    /// [`ArenaError`] for sizes beyond the address space.
    pub fn new(ranks: usize, options: &LinkOptions) -> Result<Self, ArenaError> {
        let peers = ranks.max(2) - 1;
        let slice = options.bytes.div_ceil(peers).max(1).next_multiple_of(QUANTUM);
        let mut arena = Arena::new();
        let send = arena.carve("send", "slice", slice, peers)?;
        let receive = arena.carve("receive", "slice", slice, ranks)?;
        Ok(Self { arena, send, receive })
    }

    /// Bytes that a rank moves in an iteration; of a copy in own memory, read and written.
    #[must_use]
    pub fn bytes(&self, arm: Arm, pattern: Pattern) -> u64 {
        let all = self.send.bytes() as u64;
        match (arm, pattern) {
            (arm, _) if arm.is_latency() => 0,
            (_, Pattern::Own) => 2 * all,
            (_, Pattern::AllToAll | Pattern::Pair) => all,
        }
    }
}

/// `TransferArguments` of `kernels/link/bandwidth.cpp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Transfer {
    comm: CommunicatorView,
    send: RegionView,
    receive: RegionView,
    bytes: u64,
    peers: u32,
    sink: Address,
}

/// `PingArguments` of `kernels/link/latency.cpp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Ping {
    theirs: Address,
    mine: Address,
    abort: Address,
    nanoseconds: u64,
    outcome: Address,
    base: u64,
    rounds: u32,
    first: u32,
}

/// The slices of a region; with one peer, or none, all of it is the slice of everybody.
fn whole_if_alone(region: &ArenaRegion, peers: u32) -> RegionView {
    let view = RegionView::from(region);
    RegionView { stride: if peers <= 1 { 0 } else { view.stride }, ..view }
}

/// One rank.
#[derive(Debug)]
pub struct LinkRank {
    comm: DeviceCommunicator,
    layout: LinkLayout,
    options: LinkOptions,
    store: Plan<Transfer>,
    load: Plan<Transfer>,
    copy: Plan<Transfer>,
    bulk: Option<Plan<Transfer>>,
    ping: Plan<Ping>,
    stream: Stream,
    /// Copies to each peer.
    streams: Vec<(Stream, Event)>,
    events: [Event; 2],
    sink: DeviceMemory,
    /// Outcome of a ping, and the words of the device and of the host, a line each.
    host: HostMemory,
    /// Round trips with the peer and with the host so far.
    turns: [AtomicU64; 2],
}

impl LinkRank {
    /// The rank of a communicator whose windows were made for `layout`, with a signal word.
    ///
    /// # Errors
    /// [`LinkError`]: a window that load and store do not reach, no compiler, no memory.
    pub fn new(
        comm: DeviceCommunicator,
        layout: &LinkLayout,
        options: &LinkOptions,
        cache: &Cache,
    ) -> Result<Self, LinkError> {
        comm.check_mapped()?;
        let device = comm.device().clone();
        let all = device.multiprocessors();
        let blocks = options.sms.map_or(2 * all, |sms| sms.clamp(1, all));
        let source = |name: &str, text| {
            Source::new(format!("link/{name}.cpp"), text)
                .with_header("link/bulk.h", include_str!("../../../../kernels/link/bulk.h"))
        };
        let bandwidth = source("bandwidth", include_str!("../../../../kernels/link/bandwidth.cpp"));
        let latency = source("latency", include_str!("../../../../kernels/link/latency.cpp"));
        let bandwidth = device.compile(&bandwidth, &Compile::default(), cache)?;
        let latency = device.compile(&latency, &Compile::default(), cache)?;
        let grid = Grid { blocks, threads: 512, shared_bytes: 0 };
        let plan = |kernel: &str| Plan::new(&bandwidth, kernel, grid, Residency::Any);
        let one = Grid { blocks: 1, threads: device.wave(), shared_bytes: 0 };
        let bulk = Grid { blocks: blocks.min(all), threads: device.wave(), shared_bytes: BULK_SHARED_BYTES };
        let has_bulk = device.gpu().backend() != Backend::Hip;
        let bulk = has_bulk.then(|| Plan::new(&bandwidth, "link_bulk_load", bulk, Residency::Any)).transpose()?;
        let streams = (1..comm.ranks()).map(|_| Ok((device.stream()?, device.event()?)));
        Ok(Self {
            store: plan("link_store")?,
            load: plan("link_load")?,
            copy: plan("link_copy")?,
            bulk,
            ping: Plan::new(&latency, "link_ping", one, Residency::Together)?,
            stream: device.stream()?,
            streams: streams.collect::<Result<_, LinkError>>()?,
            events: [device.event()?, device.event()?],
            sink: device.allocate(256, Coherence::Coarse)?,
            host: device.allocate_host(3 * 64)?,
            turns: [AtomicU64::new(0), AtomicU64::new(0)],
            layout: layout.clone(),
            options: *options,
            comm,
        })
    }

    /// The communicator.
    #[must_use]
    pub fn comm(&self) -> &DeviceCommunicator {
        &self.comm
    }

    /// Why an arm is not there on this device; `None`: it is.
    #[must_use]
    pub fn lacks(&self, arm: Arm) -> Option<&'static str> {
        (arm == Arm::BulkLoads && self.bulk.is_none()).then_some("the target has no bulk copies into shared memory")
    }

    /// Runs an arm once, with all the others that take part, after all have met: what it took here. `None` where this rank
    /// does not take part.
    ///
    /// # Errors
    /// [`LinkError`], here and on whoever waited for this rank.
    pub fn run(&self, arm: Arm, pattern: Pattern) -> Result<Option<Duration>, LinkError> {
        if self.lacks(arm).is_some() || !pattern.includes(arm, self.comm.rank()) {
            return Ok(None);
        }
        let peers = match pattern {
            Pattern::AllToAll => self.comm.ranks() as u32 - 1,
            Pattern::Pair => 1,
            Pattern::Own => 0,
        };
        let kernel = match arm {
            Arm::PeerStores => Some(&self.store),
            Arm::PeerLoads => Some(&self.load),
            Arm::BulkLoads => self.bulk.as_ref(),
            Arm::HbmCopy => Some(&self.copy),
            Arm::CopyEngines | Arm::HbmCopyCall | Arm::Flag | Arm::HostFlag => None,
        };
        self.events[0].record(&self.stream)?;
        match (kernel, arm) {
            (Some(plan), _) => self.transfer(plan, peers)?,
            (None, Arm::HbmCopyCall) => self.copy_own()?,
            (None, Arm::Flag) => self.exchange_flags()?,
            (None, Arm::HostFlag) => self.exchange_flags_with_host()?,
            (None, _) => self.copy_to_peers(peers as usize)?,
        }
        self.events[1].record(&self.stream)?;
        self.events[1].synchronize(PATIENCE)?;
        let took = self.events[1].since(&self.events[0])?;
        if !arm.is_latency() {
            return Ok(Some(took));
        }
        // SAFETY: an aligned word of memory that lives as long as `self`; the kernel is done.
        let outcome = unsafe { &*self.host.as_ptr().cast::<AtomicU32>() };
        if outcome.load(Ordering::Acquire) != 0 {
            return Err(LinkError::Flag { seconds: PATIENCE.as_secs() });
        }
        Ok(Some(took / self.options.round_trips))
    }

    /// Bytes with each of `peers`, all together as many as with all of them.
    fn share(&self, peers: usize) -> usize {
        self.layout.send.bytes() / peers.max(1)
    }

    fn transfer(&self, plan: &Plan<Transfer>, peers: u32) -> Result<(), LinkError> {
        let argument = Transfer {
            comm: self.comm.view(),
            send: whole_if_alone(&self.layout.send, peers),
            receive: whole_if_alone(&self.layout.receive, peers),
            bytes: self.share(peers as usize) as u64,
            peers,
            sink: self.sink.address(),
        };
        // SAFETY: inside the windows, by the layout; `run` waits.
        unsafe { plan.launch(&self.stream, &argument)? };
        Ok(())
    }

    fn copy_own(&self) -> Result<(), LinkError> {
        let window = self.comm.window(self.comm.rank());
        let [to, from] = [&self.layout.receive, &self.layout.send].map(|region| window + region.offset as Address);
        // SAFETY: inside the window, by the layout; `run` waits.
        unsafe { self.stream.copy(to, from, self.share(1))? };
        Ok(())
    }

    fn copy_to_peers(&self, peers: usize) -> Result<(), LinkError> {
        let (rank, ranks) = (self.comm.rank(), self.comm.ranks());
        let (from, bytes) = (self.comm.window(rank) + self.layout.send.offset as Address, self.share(peers));
        let receive = whole_if_alone(&self.layout.receive, peers as u32);
        for (number, (stream, event)) in self.streams.iter().take(peers).enumerate() {
            let to = self.comm.window((rank + 1 + number) % ranks) + receive.offset + receive.stride * rank as Address;
            stream.wait_event(&self.events[0])?;
            // SAFETY: inside the windows, by the layout; the stream of `run` waits for this one.
            unsafe { stream.copy(to, from + (number * bytes) as Address, bytes)? };
            event.record(stream)?;
            self.stream.wait_event(event)?;
        }
        Ok(())
    }

    /// Words of this rank's last `turn` counters.
    fn base(&self, which: usize) -> u64 {
        self.turns[which].fetch_add(u64::from(self.options.round_trips), Ordering::Relaxed)
    }

    fn ping(&self, theirs: Address, mine: Address, base: u64, first: bool) -> Result<(), LinkError> {
        let argument = Ping {
            theirs,
            mine,
            abort: 0,
            nanoseconds: PATIENCE.as_nanos() as u64,
            outcome: self.host.address(),
            base,
            rounds: self.options.round_trips,
            first: u32::from(first),
        };
        // SAFETY: words of windows and of own memory; `run` waits.
        unsafe { self.ping.launch(&self.stream, &argument)? };
        Ok(())
    }

    fn exchange_flags(&self) -> Result<(), LinkError> {
        let (rank, word) = (self.comm.rank(), self.comm.view().signals);
        let (mine, theirs) = (self.comm.window(rank) + word, self.comm.window(1 - rank) + word);
        self.ping(theirs, mine, self.base(0), rank == 0)
    }

    fn exchange_flags_with_host(&self) -> Result<(), LinkError> {
        let base = self.base(1);
        let line = |line: usize| {
            // SAFETY: an aligned word of memory that lives as long as `self`; all accesses to it are atomic.
            unsafe { &*self.host.as_ptr().add(64 * line).cast::<AtomicU64>() }
        };
        let (devices, hosts) = (line(1), line(2));
        self.ping(self.host.address() + 128, self.host.address() + 64, base, true)?;
        let deadline = Instant::now() + PATIENCE;
        for turn in 1..=u64::from(self.options.round_trips) {
            let mut polls = 0u32;
            while hosts.load(Ordering::Acquire) < base + turn {
                polls = polls.wrapping_add(1);
                if polls.is_multiple_of(1 << 12) {
                    // An emulated device needs this core.
                    std::thread::yield_now();
                    if Instant::now() > deadline {
                        return Err(LinkError::Flag { seconds: PATIENCE.as_secs() });
                    }
                }
                std::hint::spin_loop();
            }
            devices.store(base + turn, Ordering::Release);
        }
        Ok(())
    }
}
