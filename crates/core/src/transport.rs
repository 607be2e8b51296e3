//! Transports: backends that reach peers.
//!
//! A transport moves bytes and knows nothing of collectives. Its control plane (open, connect, register, export,
//! import) returns [`Request`]s; its data plane (queues, mapped memory, signals) is synchronous, poll-style, and
//! neither allocates nor locks. The rules are in [`contract`](crate::contract).

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Caps, ControlError, DeviceCode, DeviceView, Endpoint, Fault, FaultKind, HugePages, Memory, MemoryKind, Node,
    OpKind, OpenError, PeerClass, Queue, QueueOptions, QueueTarget, Rank, Reach, Region, RemoteRegion, Request, Wait,
    WaitError,
};

/// What a transport says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportInfo {
    /// The name that selection prints and accepts.
    pub name: &'static str,
    /// Version of the backend.
    pub version: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// What it brings for kernels, for ever the same; `None` if kernels cannot use it.
    pub device_code: Option<&'static DeviceCode>,
}

/// A device that a transport could use, or could not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The name that `open` accepts.
    pub device: String,
    /// `Ok` with a line for people, or the reason why it was left out.
    pub usable: Result<String, String>,
}

impl Probed {
    /// The device of a rank that names none: of the usable ones, in turn, that of its number among the ranks on its node.
    ///
    /// ```
    /// use campanile_core::Probed;
    /// let usable = |device: &str| Probed { device: device.to_owned(), usable: Ok("as new".to_owned()) };
    /// let broken = Probed { device: "gpu:1".to_owned(), usable: Err("it does not answer".to_owned()) };
    /// let devices = [usable("gpu:0"), broken, usable("gpu:2")];
    /// let of_ranks: Vec<_> = (0..3).filter_map(|number| Probed::of_rank(&devices, number)).collect();
    /// assert_eq!(of_ranks, ["gpu:0", "gpu:2", "gpu:0"]);
    /// ```
    pub fn of_rank(probed: &[Self], number_on_node: usize) -> Option<&str> {
        let usable: Vec<_> = probed.iter().filter(|probed| probed.usable.is_ok()).collect();
        let number = number_on_node.checked_rem(usable.len())?;
        Some(&usable[number].device)
    }
}

/// What a transport is told when it is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// This rank, in the world.
    pub rank: Rank,
    /// Ranks of the world.
    pub ranks: usize,
    /// The machine that this rank runs on.
    pub node: Node,
    /// Ranks on this node, for wait policies and core binding.
    pub ranks_on_node: usize,
    /// CPUs that the ranks on this node may use together, counted before any of them was bound to its own; 0: as many as
    /// this process may use now.
    pub cores: usize,
    /// Whether memory is put on huge pages.
    pub huge_pages: HugePages,
    /// Upper bound of every wait.
    pub timeout: Duration,
}

/// A backend, before it is opened.
pub trait TransportPlugin: Send + Sync {
    /// What it says about itself.
    fn info(&self) -> TransportInfo;

    /// The devices that it could use, and a reason for each one left out.
    fn probe(&self) -> Vec<Probed>;

    /// Opens a device for one rank. Any number of times in a process.
    ///
    /// # Errors
    /// [`OpenError`] if there is no such device or the system refuses.
    fn open(&self, device: &str, options: OpenOptions) -> Result<Arc<dyn Transport>, OpenError>;
}

impl<P: TransportPlugin + ?Sized> TransportPlugin for &P {
    fn info(&self) -> TransportInfo {
        (**self).info()
    }

    fn probe(&self) -> Vec<Probed> {
        (**self).probe()
    }

    fn open(&self, device: &str, options: OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        (**self).open(device, options)
    }
}

/// How a transport ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Tell the peers that this rank is done; what was posted, rung or not, completes first.
    Drain,
    /// Drop what is queued; peers that still need this rank learn of a fault.
    Abort,
}

/// Something that happened to a connected peer, told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It ended by an orderly shutdown.
    PeerLeft(Rank),
    /// Its process ended, or its transport was dropped without a shutdown.
    PeerDied(Rank),
}

/// An opened backend of one rank.
pub trait Transport: Send + Sync {
    /// What it says about itself.
    fn info(&self) -> TransportInfo;

    /// What it gives for an operation on such memory of such a peer; `None` if it does not do it at all. Of this rank's own
    /// memory it is asked by the number that the device has here, and has the devices that it can
    /// [`allocate`](Self::allocate) on; how a peer numbers its devices is the peer's business.
    fn caps(&self, class: PeerClass, memory: MemoryKind, op: OpKind) -> Option<Caps>;

    /// Whether it can reach a peer on that node, before connecting.
    fn reach(&self, peer: Rank, node: &Node) -> Reach;

    /// What peers need to connect to this rank, any length.
    fn address(&self) -> Vec<u8>;

    /// Connects to peers, given their addresses. Every rank connects to the same set, itself included.
    fn connect(&self, peers: &[(Rank, Vec<u8>)]) -> Request<Vec<Endpoint>>;

    /// Registered memory of the transport's own choosing, zeroed.
    fn allocate(&self, bytes: usize, kind: MemoryKind) -> Request<Region>;

    /// Registers the caller's memory as a source and target of queue operations.
    ///
    /// # Safety
    /// The caller keeps the memory valid until the last clone of the region is dropped.
    unsafe fn register(&self, memory: Memory) -> Request<Region>;

    /// The key blob by which these connected peers import a region, any length. Each of them imports it once.
    ///
    /// The audience is named because some memory is shared by handing a descriptor to each peer.
    ///
    /// # Errors
    /// [`ControlError`] if this region cannot be exported.
    fn export(&self, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError>;

    /// A connected peer's exported region.
    fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion>;

    /// A new queue.
    ///
    /// # Errors
    /// [`ControlError`] if there is no such target or the options cannot be had.
    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError>;

    /// First byte of a peer's region, where load / store reaches it; valid while the region lives.
    fn map(&self, region: &RemoteRegion) -> Option<NonNull<u8>>;

    /// Tells a peer that a word in its memory was stored through a mapped pointer, so that a sleeping waiter looks.
    /// Without it the waiter still looks, but later.
    fn notify(&self, peer: Rank);

    /// What kernels need to use a window by this transport, for its [device code](TransportInfo::device_code): `region` is
    /// this rank's part, on whose device they run, `remotes` are the parts of all members in the order of the team, this
    /// rank's among them. What the view names is valid while these regions live. A queue in it is not posted to from the
    /// host.
    ///
    /// # Errors
    /// [`ControlError::Unsupported`] if the transport has no device code, or the region is not in memory of its device.
    fn device_view(&self, region: &Region, remotes: &[RemoteRegion]) -> Result<DeviceView, ControlError>;

    /// The next thing that happened to a peer and was not told yet; never blocks. May cost a system call a peer: for the
    /// control plane.
    fn poll_event(&self) -> Option<Event>;

    /// Why a connected peer is gone, `None` while it is there. Never blocks; may cost a system call.
    fn gone(&self, peer: Rank) -> Option<FaultKind>;

    /// Goes on without a peer that is known dead or fenced off: from now on no wait ends for its sake, and a fault whose
    /// culprit it is does not count, so that a later one of another rank is told. Every survivor calls it; a masked
    /// peer does not come back. A wait for a signal of the masked peer itself is an error at once.
    fn mask(&self, peer: Rank);

    /// Waits for a signal, making progress meanwhile; returns the word that fulfilled the condition. On return
    /// everything that the signal covers is visible to the caller.
    ///
    /// # Errors
    /// [`WaitError`] after the transport's deadline, or as soon as the job has a fault that concerns this wait.
    fn signal_wait(&self, wait: &Wait<'_>) -> Result<u64, WaitError>;

    /// Whether a wait that times out blames the rank at the end of a chain of waits, and not the peer that it waited for.
    /// `false` where ranks do not learn whom others wait for.
    fn follows_waits(&self) -> bool {
        true
    }

    /// Whether puts and gets reach host memory that a connected peer has registered ([`register`](Self::register)) and
    /// exported, [`Memory::ADDRESS_SPACE`] included, without that peer's help; the reason if they do not. Such memory is
    /// not mapped, and holds no words. It stays registered until every peer is done with it: an operation on what was
    /// taken back, or is not mapped, fails its queue.
    fn reaches_registered(&self, peer: Rank) -> Result<(), String> {
        Err(format!("transport {} does not reach what {peer} has registered", self.info().name))
    }

    /// The job's first fault, if there is one.
    fn fault(&self) -> Option<Fault>;

    /// Records a fault for all connected ranks unless there is one already; returns the one that stands.
    fn report(&self, fault: Fault) -> Fault;

    /// Ends this rank's part. Idempotent; dropping the transport without it is a death to the peers.
    ///
    /// # Errors
    /// [`ControlError`] if what is queued did not drain in time.
    fn shutdown(&self, mode: Shutdown) -> Result<(), ControlError>;
}
