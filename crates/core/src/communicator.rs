//! Communicators: a team plus its transport, windows, epoch and error state.
//!
//! A process may have any number of them; each opens its own transport, so that a fault of one leaves the others
//! alone. Calls that say "collective" are made by every rank of the team, in the same order. The first error is
//! sticky: after it every call says [`CommError::Failed`], and nothing is published any more.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::exchange::Exchange;
use crate::fingerprint;
use crate::sticky::Sticky;
use crate::{
    Bootstrap, CommError, ControlError, Endpoint, Fault, FaultKind, HugePages, MemoryKind, Node, OpKind, OpenOptions,
    Queue, QueueOptions, QueueTarget, Rank, RemoteRegion, Shutdown, Team, Transport, TransportPlugin, Wait, Window,
};

/// By which path windows reach peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    /// Load / store where it reaches, queues elsewhere.
    #[default]
    Auto,
    /// Load / store only; a peer that it does not reach is an error.
    LoadStore,
    /// Queues only.
    Queue,
}

impl Path {
    /// The name that is printed and accepted.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::LoadStore => "load-store",
            Self::Queue => "queue",
        }
    }
}

/// How a communicator is made.
#[derive(Clone, Debug)]
pub struct CommOptions {
    /// Name, different for each communicator of a job, the same on all its ranks.
    pub name: String,
    /// Device of the transport; empty for its first usable one.
    pub device: String,
    /// Upper bound of every wait.
    pub timeout: Duration,
    /// Path of its windows.
    pub path: Path,
    /// Slots of each queue.
    pub queue_depth: usize,
    /// Whether windows are put on huge pages.
    pub huge_pages: HugePages,
    /// CPUs that the ranks on this node may use together, counted before they were bound; 0: as many as this process may
    /// use now.
    pub cores: usize,
}

impl Default for CommOptions {
    fn default() -> Self {
        Self {
            name: "world".to_owned(),
            device: String::new(),
            timeout: Duration::from_secs(30),
            path: Path::Auto,
            queue_depth: QueueOptions::default().depth,
            huge_pages: HugePages::default(),
            cores: 0,
        }
    }
}

/// A team and how it communicates.
pub struct Communicator {
    shared: Arc<Shared>,
    team: Team,
    position: usize,
    name: String,
    sequence: AtomicU64,
}

/// What a communicator, its sub-communicators and their windows have in common.
pub(crate) struct Shared {
    bootstrap: Arc<dyn Bootstrap>,
    transport: Arc<dyn Transport>,
    endpoints: Vec<Endpoint>,
    nodes: Vec<Node>,
    queues: Vec<OnceLock<Arc<dyn Queue>>>,
    path: Path,
    queue_depth: usize,
    timeout: Duration,
    rank: Rank,
    error: Sticky,
    /// How often ranks were masked.
    generation: AtomicU64,
}

impl Shared {
    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn map(&self, remote: &RemoteRegion) -> Option<NonNull<u8>> {
        if self.path == Path::Queue { None } else { self.transport.map(remote) }
    }

    /// The queue to a peer, made at its first use.
    pub(crate) fn queue(&self, peer: Rank) -> Result<&dyn Queue, CommError> {
        let cell = &self.queues[peer.index()];
        if let Some(queue) = cell.get() {
            return Ok(&**queue);
        }
        let options = QueueOptions { depth: self.queue_depth, ordered: true, ..QueueOptions::default() };
        let queue = self.transport.queue(QueueTarget::Peer(peer), options)?;
        Ok(&**cell.get_or_init(|| queue))
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), CommError> {
        self.error.check()
    }

    #[inline]
    pub(crate) fn wait(&self, wait: &Wait<'_>) -> Result<u64, CommError> {
        self.check()?;
        self.transport.signal_wait(wait).map_err(|error| self.fail(error.into()))
    }

    /// Makes an error sticky and tells the other ranks; returns it.
    pub(crate) fn fail(&self, error: CommError) -> CommError {
        if self.error.set(error.clone()) && error.fault().is_none() {
            let rank = self.rank;
            self.transport.report(Fault { culprit: rank, kind: FaultKind::Failed, reporter: rank });
        }
        error
    }

    /// As [`fail`](Self::fail), for an error of an operation to `peer`: if the peer is gone, that is the error.
    pub(crate) fn fail_to(&self, peer: Rank, error: CommError) -> CommError {
        let Some(kind) = self.transport.gone(peer) else { return self.fail(error) };
        let fault = self.transport.report(Fault { culprit: peer, kind, reporter: self.rank });
        self.fail(CommError::Fault { what: error.to_string(), fault })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mode =
            if std::thread::panicking() || self.error.get().is_some() { Shutdown::Abort } else { Shutdown::Drain };
        if let Err(error) = self.transport.shutdown(mode) {
            tracing::warn!(rank = self.rank.0, %error, "the transport did not shut down cleanly");
        }
    }
}

impl Communicator {
    /// Opens `plugin` on every rank of the job and connects all of them. Collective over the job.
    ///
    /// # Errors
    /// [`CommError`] if a rank is missing, cannot open the transport, cannot be reached, or was given other options.
    pub fn new(
        bootstrap: Arc<dyn Bootstrap>,
        plugin: &dyn TransportPlugin,
        options: CommOptions,
    ) -> Result<Self, CommError> {
        let (rank, ranks, timeout) = (bootstrap.rank(), bootstrap.ranks(), options.timeout);
        let team = Team::world(ranks);
        let key = |what: &str| format!("{}/{what}", options.name);

        let node = bootstrap.node();
        let exchange = Exchange { bootstrap: &*bootstrap, transport: None, team: &team, timeout };
        exchange.agree(&key("fingerprint"), "communicator", &fingerprint::fields(&plugin.info(), ranks, &options))?;
        let gathered = exchange.all_gather(&key("node"), node.identity().as_bytes())?;
        let nodes: Vec<Node> =
            gathered.into_iter().map(|node| Node::new(String::from_utf8_lossy(&node).into_owned())).collect();
        let ranks_on_node = nodes.iter().filter(|other| **other == node).count();

        let device = match options.device.as_str() {
            "" => {
                plugin.probe().into_iter().find(|probed| probed.usable.is_ok()).map_or_else(String::new, |p| p.device)
            }
            device => device.to_owned(),
        };
        let open = OpenOptions {
            rank,
            ranks,
            node,
            ranks_on_node,
            cores: options.cores,
            huge_pages: options.huge_pages,
            timeout,
        };
        let opened = plugin.open(&device, open);
        let reached = opened.map_err(|error| error.to_string()).and_then(|transport| {
            let unreachable =
                nodes.iter().enumerate().find_map(|(peer, node)| match transport.reach(Rank::new(peer), node) {
                    crate::Reach::Yes(_) => None,
                    crate::Reach::No(reason) => Some(format!("{} cannot be reached: {reason}", Rank::new(peer))),
                });
            unreachable.map_or(Ok(transport), Err)
        });
        let address = reached.as_ref().map(|transport| transport.address()).map_err(Clone::clone);
        let addresses = exchange.results(&key("address"), address)?;
        let transport = reached.expect("the exchange returned every rank's error, this rank's too");

        let peers: Vec<_> = addresses.into_iter().enumerate().map(|(peer, blob)| (Rank::new(peer), blob)).collect();
        let connected = transport.connect(&peers).wait(timeout);
        let done = connected.as_ref().map(|_| Vec::new()).map_err(ToString::to_string);
        exchange.results(&key("connected"), done)?;

        let shared = Shared {
            bootstrap,
            endpoints: connected?,
            nodes,
            queues: (0..ranks).map(|_| OnceLock::new()).collect(),
            transport,
            path: options.path,
            queue_depth: options.queue_depth,
            timeout,
            rank,
            error: Sticky::default(),
            generation: AtomicU64::new(0),
        };
        Ok(Self {
            shared: Arc::new(shared),
            team,
            position: rank.index(),
            name: options.name,
            sequence: AtomicU64::new(0),
        })
    }

    /// This rank's position in the team: what collectives call the rank.
    pub fn rank(&self) -> usize {
        self.position
    }

    /// Ranks of the team.
    pub fn ranks(&self) -> usize {
        self.team.len()
    }

    /// The team.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// The transport.
    pub fn transport(&self) -> &dyn Transport {
        self.shared.transport()
    }

    /// The connected peers, by world rank.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.shared.endpoints
    }

    /// Whether windows of host memory can be mapped from every rank of the team: load / store reaches all of them, and
    /// the path does not forbid it.
    pub fn maps_all(&self) -> bool {
        let caps = |class| self.shared.transport.caps(class, MemoryKind::Host, OpKind::Put);
        let mapped = |endpoint: &Endpoint| caps(endpoint.class).is_some_and(|caps| caps.load_store);
        let ours = |endpoint: &&Endpoint| self.team.position(endpoint.peer).is_some();
        self.shared.path != Path::Queue && self.shared.endpoints.iter().filter(ours).all(mapped)
    }

    /// Upper bound of every wait.
    pub fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// The members of this team on this rank's node, in team order.
    pub fn local_team(&self) -> Team {
        let nodes = &self.shared.nodes;
        let here = &nodes[self.shared.rank.index()];
        let members = self.team.members().iter().copied().filter(|member| nodes[member.index()] == *here);
        Team::new(members).expect("this rank is on its own node")
    }

    /// A communicator over a part of this team, or `None` on the ranks that are not in it. It shares the transport and
    /// the error state. Collective over this communicator's team, with the same `team` on every rank that is in it.
    ///
    /// # Errors
    /// [`CommError::Misuse`] if the team has a member that this one has not.
    pub fn split(&self, team: &Team) -> Result<Option<Self>, CommError> {
        let number = self.sequence.fetch_add(1, Ordering::Relaxed);
        if let Some(stranger) = team.members().iter().find(|member| self.team.position(**member).is_none()) {
            let reason = format!("{stranger} is not in the team that is split");
            return Err(CommError::Misuse { what: "split", reason });
        }
        Ok(team.position(self.shared.rank).map(|position| Self {
            shared: Arc::clone(&self.shared),
            team: team.clone(),
            position,
            name: format!("{}/{number}.{}", self.name, team.member(0).0),
            sequence: AtomicU64::new(0),
        }))
    }

    /// New symmetric memory of `bytes` on each rank, zeroed. Collective.
    ///
    /// # Errors
    /// [`CommError::Peer`] on every rank if one of them cannot give the memory; [`CommError::Mismatch`] if the ranks
    /// ask for different sizes.
    pub fn window(&self, bytes: usize, kind: MemoryKind) -> Result<Window, CommError> {
        self.shared.check()?;
        let timeout = self.shared.timeout;
        let key = self.next_key("window");
        self.agree("window", &[("bytes", bytes.to_string()), ("memory", kind.to_string())])?;
        let allocated = self.shared.transport.allocate(bytes, kind).wait(timeout);
        let exported = allocated.as_ref().map_err(ToString::to_string).and_then(|region| {
            self.shared.transport.export(region, self.team.members()).map_err(|error| error.to_string())
        });
        let blobs = self.exchange().results(&key, exported).map_err(|error| self.fail_if_fault(error))?;
        let region = allocated?;
        let import = |(position, blob): (usize, Vec<u8>)| {
            self.shared.transport.import(self.team.member(position), &blob).wait(timeout)
        };
        let remotes = blobs.into_iter().enumerate().map(import).collect::<Result<Vec<_>, ControlError>>();
        let done = remotes.as_ref().map(|_| Vec::new()).map_err(ToString::to_string);
        let imported = self.exchange().results(&format!("{key}/imported"), done);
        imported.map_err(|error| self.fail_if_fault(error))?;
        let window = Window::new(Arc::clone(&self.shared), self.team.clone(), self.position, region, remotes?);
        let unmapped = (0..self.ranks()).find(|&position| window.map(position).is_none());
        if let Some(position) = unmapped.filter(|_| self.shared.path == Path::LoadStore) {
            let reason = format!(
                "path load-store was forced, but transport {} does not map {}; use auto or queue",
                self.transport().info().name,
                self.team.member(position)
            );
            return Err(CommError::Misuse { what: "window", reason });
        }
        Ok(window)
    }

    /// Makes sure that every rank was given the same. Collective.
    ///
    /// # Errors
    /// [`CommError::Mismatch`] names the first field that differs, and the rank.
    pub fn agree(&self, what: &str, fields: &[(&str, String)]) -> Result<(), CommError> {
        self.shared.check()?;
        let key = self.next_key(what);
        self.exchange().agree(&key, what, fields).map_err(|error| self.fail_if_fault(error))
    }

    /// What each rank gives, by position. Collective.
    ///
    /// # Errors
    /// [`CommError::Fault`] names a rank that does not come.
    pub fn gather(&self, what: &str, value: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        self.shared.check()?;
        let key = self.next_key(what);
        self.exchange().all_gather(&key, value).map_err(|error| self.fail_if_fault(error))
    }

    /// Goes on without the members at the positions in `dead`, which are known dead or have been fenced off: a fault of
    /// theirs counts no more, and an error that they caused is forgotten. Returns a communicator over the survivors, in
    /// the order of this team. Collective over the survivors, each of which names the same `dead`.
    ///
    /// What knows masks goes on over this communicator's generation (see `Moe::go_on` of `campanile-moe`); everything else
    /// is made anew on the communicator that is returned: windows, barriers, splits.
    ///
    /// # Errors
    /// [`CommError::Misuse`] if `dead` names this rank, nobody, or a position that does not exist; [`CommError::Failed`]
    /// if this communicator failed for another reason; [`CommError::Mismatch`] if a survivor names others;
    /// [`CommError::Fault`] if another rank is gone too: mask that one as well.
    pub fn mask(&self, dead: &[usize]) -> Result<Self, CommError> {
        let misuse = |reason: String| Err(CommError::Misuse { what: "mask", reason });
        if dead.is_empty() {
            return misuse("it names nobody".to_owned());
        }
        if let Some(beyond) = dead.iter().find(|&&position| position >= self.ranks()) {
            return misuse(format!("position {beyond} of a team of {}", self.ranks()));
        }
        if dead.contains(&self.position) {
            return misuse("it names this rank; a rank cannot go on without itself".to_owned());
        }
        let masked: Vec<Rank> = dead.iter().map(|&position| self.team.member(position)).collect();
        let survivors = self.team.members().iter().copied().filter(|member| !masked.contains(member));
        let team = Team::new(survivors).expect("a part of a team with this rank in it");
        self.shared.error.forgive(&masked)?;
        for &rank in &masked {
            self.shared.transport.mask(rank);
        }
        let generation = self.shared.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("{}/generation {generation}", self.name);
        let fields = [("masked ranks", masked.iter().map(|rank| rank.0.to_string()).collect::<Vec<_>>().join(", "))];
        let survivors = Self {
            shared: Arc::clone(&self.shared),
            position: team.position(self.shared.rank).expect("this rank is not masked"),
            team,
            name,
            sequence: AtomicU64::new(0),
        };
        survivors.agree("mask", &fields)?;
        Ok(survivors)
    }

    /// Waits for a signal; returns the word. The first failure is sticky.
    ///
    /// # Errors
    /// [`CommError::Wait`], or [`CommError::Failed`] after an earlier error.
    #[inline]
    pub fn wait(&self, wait: &Wait<'_>) -> Result<u64, CommError> {
        self.shared.wait(wait)
    }

    /// Ends all waits of all ranks with an error that names this rank.
    pub fn abort(&self) {
        let rank = self.shared.rank;
        self.shared.transport.report(Fault { culprit: rank, kind: FaultKind::Aborted, reporter: rank });
        self.shared.error.set(CommError::Misuse { what: "abort", reason: "this rank called abort".to_owned() });
    }

    /// Makes an error of a collective sticky and tells the other ranks; returns it.
    pub fn fail(&self, error: CommError) -> CommError {
        self.shared.fail(error)
    }

    /// The first error, once there is one.
    pub fn error(&self) -> Option<CommError> {
        self.shared.error.get()
    }

    fn exchange(&self) -> Exchange<'_> {
        Exchange {
            bootstrap: &*self.shared.bootstrap,
            transport: Some(&*self.shared.transport),
            team: &self.team,
            timeout: self.shared.timeout,
        }
    }

    /// A fault is sticky; what another rank could not do, or was given, is not.
    fn fail_if_fault(&self, error: CommError) -> CommError {
        if error.fault().is_some() { self.shared.fail(error) } else { error }
    }

    fn next_key(&self, what: &str) -> String {
        format!("{}/{what}/{}", self.name, self.sequence.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator({:?}, position {} of {})", self.name, self.position, self.team.len())
    }
}
