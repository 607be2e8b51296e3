//! Communicators: a team plus its transport, windows, epoch and error state.
//!
//! A process may have any number of them; each opens its own transport, so that a fault of one leaves the others
//! alone. Calls that say "collective" are made by every rank of the team, in the same order. The first error is
//! sticky: after it every call says [`CommError::Failed`], and nothing is published any more.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::emulate::Lacks;
use crate::exchange::Exchange;
use crate::fingerprint;
use crate::selection::{Candidate, Disagreement, Offer, Opened, Peer, Policy, Preference, Way, agree, window_way};
use crate::sticky::Sticky;
use crate::window::Dropped;
use crate::{
    Agent, Bootstrap, CommError, CommOptions, Completion, ControlError, Endpoint, Fault, FaultKind, MemoryKind, Node,
    OpKind, OpenOptions, Path, PeerClass, Queue, QueueOptions, QueueTarget, Rank, RemoteRegion, Shutdown, Team,
    Transport, TransportPlugin, Wait, WaitError, Window,
};

/// No machine has more devices.
const MAX_DEVICES: u32 = 64;

/// A team and how it communicates.
pub struct Communicator {
    shared: Arc<Shared>,
    team: Team,
    position: usize,
    /// What its keys in the bootstrap begin with.
    name: String,
    /// The name that it had before ranks were masked, and these.
    unmasked_name: String,
    masked: Vec<Rank>,
    sequence: AtomicU64,
}

/// What a communicator, its sub-communicators and their windows have in common.
pub(crate) struct Shared {
    bootstrap: Arc<dyn Bootstrap>,
    transport: Arc<dyn Transport>,
    endpoints: Vec<Endpoint>,
    peers: Vec<Peer>,
    queues: Vec<OnceLock<Arc<dyn Queue>>>,
    path: Path,
    queue_depth: usize,
    timeout: Duration,
    rank: Rank,
    error: Sticky,
    /// Names of the communicators that masks gave: their keys in the bootstrap are used.
    without: Mutex<Vec<String>>,
    /// Windows that this rank has dropped, and others may not have.
    dropped: Mutex<Vec<Dropped>>,
}

impl Shared {
    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// First byte of a peer's region, if windows reach it by load / store.
    pub(crate) fn map(&self, remote: &RemoteRegion) -> Option<NonNull<u8>> {
        let way = self.way(remote.peer(), remote.kind());
        if way == Ok(Way::LoadStore) { self.transport.map(remote) } else { None }
    }

    /// By which way windows of such memory reach a peer; why they do not, if they do not.
    fn way(&self, peer: Rank, memory: MemoryKind) -> Result<Way, String> {
        let peer = &self.peers[peer.index()];
        let reach = |peer: &Peer| self.transport.reach(peer.rank, &peer.node);
        let caps = |class, memory, op| self.transport.caps(class, memory, op);
        let name = self.transport.info().name;
        let candidate = Candidate::opened(name, std::slice::from_ref(peer), &[memory], reach, caps);
        window_way(&candidate, peer, memory, &Policy::new(Preference::AUTO, self.path))
    }

    /// The queue to a peer, made at its first use.
    pub(crate) fn queue(&self, peer: Rank) -> Result<&dyn Queue, CommError> {
        let cell = &self.queues[peer.index()];
        if let Some(queue) = cell.get() {
            return Ok(&**queue);
        }
        let options = QueueOptions { depth: self.queue_depth, ..QueueOptions::default() };
        let queue = self.transport.queue(QueueTarget::Peer(peer), options)?;
        let class = self.endpoints[peer.index()].class;
        let lacks = Lacks::of(|op| self.transport.caps(class, MemoryKind::Host, op));
        let queue = lacks.emulate(queue, options.depth, self.timeout);
        Ok(&**cell.get_or_init(|| queue))
    }

    /// Waits until what was posted for a peer is complete, before memory that it names goes away. A failure is sticky;
    /// nothing is waited for after one, or for a peer that is gone.
    pub(crate) fn drain(&self, peer: Rank) {
        let Some(queue) = self.queues[peer.index()].get() else { return };
        let (ticket, visible) = (queue.flush(), Completion::Remote(Agent::Cpu));
        let is_hopeless =
            || self.error.get().is_some() || self.transport.fault().is_some() || self.transport.gone(peer).is_some();
        if queue.test(ticket, visible) == Ok(true) || is_hopeless() {
            return;
        }
        if let Err(error) = queue.wait(ticket, visible, self.timeout)
            && let Err(error) = self.fail_to(peer, error.into())
        {
            let rank = self.rank.0;
            tracing::warn!(rank, %error, "a window was dropped before what was posted for it was complete");
        }
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), CommError> {
        self.error.check()
    }

    #[inline]
    pub(crate) fn wait(&self, wait: &Wait<'_>) -> Result<u64, CommError> {
        self.check()?;
        self.transport.signal_wait(wait).map_err(|error| match error {
            // A word that cannot be waited for is the caller's mistake, and changes nothing.
            WaitError::Invalid { .. } => error.into(),
            error => self.fail(error.into()),
        })
    }

    /// Makes an error sticky and tells the other ranks; returns it.
    pub(crate) fn fail(&self, error: CommError) -> CommError {
        if self.error.set(error.clone()) && error.fault().is_none() {
            let rank = self.rank;
            self.transport.report(Fault { culprit: rank, kind: FaultKind::Failed, reporter: rank });
        }
        error
    }

    /// As [`fail`](Self::fail), for an error of an operation to `peer`. If the peer is gone, that is the error; if it left
    /// in good order there is none: nobody needs what was on its way there.
    pub(crate) fn fail_to(&self, peer: Rank, error: CommError) -> Result<(), CommError> {
        match self.transport.gone(peer) {
            None => Err(self.fail(error)),
            Some(FaultKind::Left) => Ok(()),
            Some(kind) => {
                let fault = self.transport.report(Fault { culprit: peer, kind, reporter: self.rank });
                Err(self.fail(CommError::Fault { what: error.to_string(), fault }))
            }
        }
    }

    /// Keeps what is left of a window until every member has dropped it: what a peer has posted to this rank may still be
    /// on its way.
    pub(crate) fn outlive(&self, window: Dropped) {
        // A store that is gone takes no marks; then the memory stays until the communicator ends.
        let _ = self.bootstrap.put(&window.mark(self.rank), &[]);
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(window);
    }

    /// Lets go of the windows that every member has dropped.
    fn let_go(&self) {
        let everywhere = |window: &Dropped| {
            let marked = |member: &Rank| {
                matches!(self.bootstrap.get(&window.mark(*member), Duration::ZERO), Ok(Some(_)))
                    || self.transport.gone(*member).is_some()
            };
            window.team.members().iter().all(marked)
        };
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).retain(|window| !everywhere(window));
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
    /// As [`select`](Self::select).
    pub fn new(
        bootstrap: Arc<dyn Bootstrap>,
        plugin: &dyn TransportPlugin,
        options: CommOptions,
    ) -> Result<Self, CommError> {
        let transports = Preference::of([plugin.info().name]).unwrap_or_default();
        Self::select(bootstrap, &[plugin], CommOptions { transports, ..options })
    }

    /// Opens one of `plugins` on every rank of the job and connects all of them: of those that the options allow and that
    /// reach every rank from every rank, the first by preference, else the one that costs least. All ranks come to the
    /// same choice. Collective over the job.
    ///
    /// # Errors
    /// [`CommError::NoTransport`] on every rank if none can be opened everywhere and reaches everybody, with the reason
    /// for each; otherwise [`CommError`] if a rank is missing or was given other options.
    pub fn select(
        bootstrap: Arc<dyn Bootstrap>,
        plugins: &[&dyn TransportPlugin],
        options: CommOptions,
    ) -> Result<Self, CommError> {
        let (rank, ranks, timeout) = (bootstrap.rank(), bootstrap.ranks(), options.timeout);
        let team = Team::world(ranks);
        let key = |what: &str| format!("{}/{what}", options.name);

        let node = bootstrap.node();
        let exchange = Exchange { bootstrap: &*bootstrap, transport: None, team: &team, timeout };
        exchange.agree(&key("fingerprint"), "communicator", &fingerprint::fields(ranks, &options))?;
        let gathered = exchange.all_gather(&key("node"), node.identity().as_bytes())?;
        let nodes = gathered.into_iter().map(|node| Node::new(String::from_utf8_lossy(&node).into_owned()));
        let peers = Peer::seen_from(rank, nodes);
        let ranks_on_node = peers.iter().filter(|peer| peer.node == node).count();

        let open_options = OpenOptions {
            rank,
            ranks,
            node,
            ranks_on_node,
            cores: options.cores,
            huge_pages: options.huge_pages,
            timeout,
        };
        let open = |plugin: &dyn TransportPlugin| Opened::open(plugin, &options.device, open_options.clone(), &peers);
        let opened = opened(plugins, &options.transports, open);
        let offer = Offer::of(&opened, &peers, &Policy::new(options.transports.clone(), options.path));
        let offers = exchange.all_gather(&key("transports"), &offer.pack())?;
        let agreed = agree(!options.transports.is_auto(), rank, &offers).map_err(|error| match error {
            Disagreement::Error(error) => error,
            Disagreement::NoTransport(reasons) => CommError::NoTransport {
                preference: options.transports.to_string(),
                reasons,
                instead: instead(plugins, &options, |plugin| open(plugin).offer(&peers, options.path).is_ok()),
            },
        })?;
        let chosen = opened.into_iter().find(|opened| opened.name() == agreed.transport);
        let transport = chosen.map(Opened::into_transport).and_then(Result::ok);
        let transport = transport.expect("the ranks agree only on what each of them has opened and offered");
        let addresses = agreed.addresses;

        let addresses: Vec<_> = addresses.into_iter().enumerate().map(|(peer, at)| (Rank::new(peer), at)).collect();
        let connected = transport.connect(&addresses).wait(timeout);
        let done = connected.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
        exchange.results(&key("connected"), done)?;

        let shared = Shared {
            bootstrap,
            endpoints: connected?,
            peers,
            queues: (0..ranks).map(|_| OnceLock::new()).collect(),
            transport,
            path: options.path,
            queue_depth: options.queue_depth,
            timeout,
            rank,
            error: Sticky::default(),
            without: Mutex::default(),
            dropped: Mutex::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            team,
            position: rank.index(),
            unmasked_name: options.name.clone(),
            name: options.name,
            masked: Vec::new(),
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
        let mapped = |&member: &Rank| self.shared.way(member, MemoryKind::Host) == Ok(Way::LoadStore);
        self.team.members().iter().all(mapped)
    }

    /// The device whose memory this rank can have windows in, by its number here; `None` where there is host memory only.
    pub fn device(&self) -> Option<u32> {
        let has = |&ordinal: &u32| {
            let kind = MemoryKind::Device(ordinal);
            self.transport().caps(PeerClass::Own, kind, OpKind::Put).is_some()
        };
        (0..MAX_DEVICES).find(has)
    }

    /// Upper bound of every wait.
    pub fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// The members of this team on this rank's node, in team order.
    pub fn local_team(&self) -> Team {
        let node = |member: Rank| &self.shared.peers[member.index()].node;
        let here = node(self.shared.rank);
        let members = self.team.members().iter().copied().filter(|&member| node(member) == here);
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
        let name = format!("{}/{number}.{}", self.name, team.member(0).0);
        Ok(team.position(self.shared.rank).is_some().then(|| self.part(team.clone(), name)))
    }

    /// The communicator over a part of this team that has this rank in it.
    fn part(&self, team: Team, name: String) -> Self {
        let position = team.position(self.shared.rank).expect("the caller has looked");
        Self {
            shared: Arc::clone(&self.shared),
            team,
            position,
            unmasked_name: name.clone(),
            name,
            masked: Vec::new(),
            sequence: AtomicU64::new(0),
        }
    }

    /// New symmetric memory of `bytes` on each rank, zeroed: on the host of all ranks, or on a device of each, whose
    /// [number](Self::device) may differ. Collective.
    ///
    /// # Errors
    /// [`CommError::Peer`] on every rank if one of them cannot give the memory or reach that of another;
    /// [`CommError::Mismatch`] if the ranks ask for different sizes, or some for host and some for device memory.
    pub fn window(&self, bytes: usize, kind: MemoryKind) -> Result<Window, CommError> {
        self.shared.check()?;
        let timeout = self.shared.timeout;
        let key = self.next_key("window");
        self.shared.let_go();
        let memory = if kind.is_device() { "device" } else { "host" };
        self.agree("window", &[("bytes", bytes.to_string()), ("memory", memory.to_owned())])?;
        let allocated = self.shared.transport.allocate(bytes, kind).wait(timeout);
        let exported = allocated.as_ref().map_err(Clone::clone).and_then(|region| {
            self.check_ways(kind)?;
            self.shared.transport.export(region, self.team.members())
        });
        let blobs = self.exchange().results(&key, exported).map_err(|error| self.fail_if_fault(error))?;
        let region = allocated?;
        let import = |(position, blob): (usize, Vec<u8>)| {
            self.shared.transport.import(self.team.member(position), &blob).wait(timeout)
        };
        let remotes = blobs.into_iter().enumerate().map(import).collect::<Result<Vec<_>, ControlError>>();
        let done = remotes.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
        let imported = self.exchange().results(&format!("{key}/imported"), done);
        imported.map_err(|error| self.fail_if_fault(error))?;
        let shared = Arc::clone(&self.shared);
        let window = Window::new(shared, key, self.team.clone(), self.position, region, remotes?);
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
    /// the order of this team. Collective over the survivors, each of which names the same ranks in the end: to one that
    /// does not know of another death yet, the call ends in that fault, and it calls again with both.
    ///
    /// What knows masks goes on over this communicator's generation (see `Moe::go_on` of `campanile-moe`); everything else
    /// is made anew on the communicator that is returned: windows, barriers, splits.
    ///
    /// # Errors
    /// [`CommError::Misuse`] if `dead` names this rank, nobody, or a position that does not exist; [`CommError::Failed`]
    /// if this communicator failed for another reason; [`CommError::Fault`] if another rank is gone too: mask both.
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
        let dead = dead.iter().map(|&position| self.team.member(position));
        let mut masked: Vec<Rank> = self.masked.iter().copied().chain(dead).collect();
        masked.sort_unstable();
        masked.dedup();
        // Ranks that learn of deaths in different order ask for different teams at first, and meet in the last one.
        let numbers = masked.iter().map(|rank| rank.0.to_string()).collect::<Vec<_>>().join(", ");
        let name = format!("{} without {numbers}", self.unmasked_name);
        {
            let mut names = self.shared.without.lock().unwrap_or_else(PoisonError::into_inner);
            if names.contains(&name) {
                return misuse(format!("ranks {numbers} were masked before; use the communicator which that returned"));
            }
            self.shared.error.forgive(&masked)?;
            names.push(name.clone());
        }
        masked.iter().for_each(|&rank| self.shared.transport.mask(rank));
        let team = Team::new(self.team.members().iter().copied().filter(|member| !masked.contains(member)));
        let survivors = self.part(team.expect("this rank is in it"), name);
        let survivors = Self { unmasked_name: self.unmasked_name.clone(), masked, ..survivors };
        survivors.agree("mask", &[])?;
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

    /// Why a window of such memory cannot be, if there is a member that no allowed way leads to.
    fn check_ways(&self, memory: MemoryKind) -> Result<(), ControlError> {
        let transport = self.transport().info().name;
        self.team.members().iter().try_for_each(|&member| {
            let what = || format!("transport {transport} has no way to {member}");
            let way = self.shared.way(member, memory);
            way.map(drop).map_err(|reason| ControlError::System { what: what(), reason })
        })
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

/// The transports that may be used, opened: by preference, or all of them.
fn opened(
    plugins: &[&dyn TransportPlugin],
    transports: &Preference,
    open: impl Fn(&dyn TransportPlugin) -> Opened,
) -> Vec<Opened> {
    if transports.is_auto() {
        return plugins.iter().map(|plugin| open(*plugin)).collect();
    }
    let named = |name: &String| {
        let plugin = plugins.iter().find(|plugin| plugin.info().name == *name);
        plugin.map_or_else(|| Opened::missing(name, "there is no transport of that name".to_owned()), |it| open(*it))
    };
    transports.names().iter().map(named).collect()
}

/// What could be used instead of what may be, in words.
fn instead(
    plugins: &[&dyn TransportPlugin],
    options: &CommOptions,
    runs: impl Fn(&dyn TransportPlugin) -> bool,
) -> String {
    let others = plugins.iter().filter(|plugin| !options.transports.names().iter().any(|it| it == plugin.info().name));
    let others: Vec<_> = match options.transports.is_auto() {
        true => Vec::new(),
        false => others.filter(|plugin| runs(**plugin)).map(|plugin| plugin.info().name).collect(),
    };
    match others.as_slice() {
        [] => "nothing else could run here; `campanile info --explain` says why".to_owned(),
        others => format!("{} could run here, and so could auto", others.join(", ")),
    }
}
