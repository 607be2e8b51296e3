//! Joining a job: the ranks come to one store, and each of them is a [`Member`].
//!
//! **Who hosts.** A launcher's store is there before the ranks are. Where there is none, rank 0 hosts one at the agreed
//! address, if nobody listens there; if somebody does, as torch on rank 0 may, it joins that. The others try until the
//! deadline. A store that another job's rank 0 hosts is not joined by a rank 0: it waits for the address to become free,
//! and says who holds it if it does not. A rank has joined when all have; otherwise rank 0 could leave before another
//! came, and be met by it in its next program.
//!
//! **Keys.** `/campanile/JOB/N/` goes before the keys of a rank that joins for the N-th time: a store may be shared with
//! torch and with other jobs, and outlive a program whose successor uses it, in the same job, after it. Ranks count
//! their own joins, so N-th joins meet and find nothing of earlier ones.
//!
//! **The end.** A rank that hosts is the last to leave: it waits until the others have, at most for the timeout, since
//! they may have values to read. It is the same with `MPI_Finalize`. A rank that dies leaves by that.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use campanile_core::{Bootstrap, BootstrapError, Node, Rank, Team};

use crate::store::{Address, ConnectError, Listener, StoreClient, StoreServer};
use crate::{Place, Rendezvous};

/// Longest time between two attempts. There is no event to wait for: nobody tells when somebody else starts to listen.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// How long a rank waits for rank 0 in a store that a rank 0 hosts before it connects anew: the store may be that of an
/// earlier program of the same job, which is about to end.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The key under which a rank 0 that hosts says who it is.
const HOST: &str = "/campanile/host";

/// What is being done, for errors.
const JOINING: &str = "joining the job";

/// A rank that has joined.
#[derive(Debug)]
pub(crate) struct Member {
    /// Before `_host`, which waits for the end of all connections.
    client: StoreClient,
    _host: Option<Arc<Host>>,
}

/// The store of a job, on its rank 0.
#[derive(Debug)]
struct Host {
    server: StoreServer,
    timeout: Duration,
}

impl Drop for Host {
    fn drop(&mut self) {
        if !thread::panicking() && !self.server.close(self.timeout) {
            tracing::warn!(address = self.server.address(), "the store ends although ranks still use it");
        }
    }
}

/// The stores that this process hosts: of several joins of one job only the first can listen.
static HOSTS: Mutex<Vec<(Address, Weak<Host>)>> = Mutex::new(Vec::new());

impl Member {
    /// Joins at `place`, within `timeout`.
    pub(crate) fn join(place: &Place, timeout: Duration) -> Result<Self, BootstrapError> {
        let join = Join { place, timeout, start: Instant::now() };
        match &place.rendezvous {
            Rendezvous::Launcher(address) => {
                let client = join.connect(address, matches!(address, Address::Tcp { .. }))?;
                Ok(Self { client: join.enter(client)?, _host: None })
            }
            Rendezvous::Rank0(address) if place.rank == Rank(0) => {
                let (client, host) = join.host(address)?;
                let member = Self { client: join.enter(client)?, _host: host };
                member.client.put("host", b"")?;
                join.await_all(member)
            }
            Rendezvous::Rank0(address) => join.await_all(join.find_host(address)?),
        }
    }
}

/// A join that is under way.
struct Join<'a> {
    place: &'a Place,
    timeout: Duration,
    start: Instant,
}

impl Join<'_> {
    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.start.elapsed())
    }

    /// Waits until the next attempt; whether there is time for one. That somebody begins to listen is no event here.
    fn pause(&self) -> bool {
        thread::sleep(TRY_EVERY.min(self.left()));
        !self.left().is_zero()
    }

    /// One attempt, bounded by what is left of the time. The connection has the whole time for what comes later.
    fn attempt(&self, address: &Address) -> Result<StoreClient, ConnectError> {
        let left = self.left().max(Duration::from_millis(1));
        let client = StoreClient::open(address, self.place.rank, self.place.ranks, left)?;
        Ok(client.with_timeout(self.timeout))
    }

    /// Connects to a launcher's store; if there is nobody `patiently`, until the deadline.
    fn connect(&self, address: &Address, patiently: bool) -> Result<StoreClient, BootstrapError> {
        loop {
            match self.attempt(address) {
                Ok(client) => return Ok(client),
                Err(ConnectError::Failed(error)) => return Err(error),
                Err(ConnectError::Absent(_)) if patiently && self.pause() => {}
                Err(ConnectError::Absent(reason)) => {
                    let what = format!("joining the store of {} at {:?}", self.place.launcher, address.to_string());
                    let waited = self.start.elapsed();
                    return Err(BootstrapError::Store { what, reason: format!("{reason} (tried for {waited:.1?})") });
                }
            }
        }
    }

    /// Counts this join, and puts its prefix before the client's keys.
    fn enter(&self, client: StoreClient) -> Result<StoreClient, BootstrapError> {
        let count = self.count(&client)?;
        Ok(self.prefixed(client, count))
    }

    fn count(&self, client: &StoreClient) -> Result<i64, BootstrapError> {
        client.add(&format!("/campanile/{}/joins/{}", self.place.job, self.place.rank.0), 1)
    }

    fn prefixed(&self, client: StoreClient, count: i64) -> StoreClient {
        client.with_prefix(format!("/campanile/{}/{count}/", self.place.job))
    }

    /// For rank 0: hosts a store, or joins one that listens already and is of no other rank 0.
    fn host(&self, address: &Address) -> Result<(StoreClient, Option<Arc<Host>>), BootstrapError> {
        let failed = |reason: String| BootstrapError::Store {
            what: format!("hosting the store at {:?}", address.to_string()),
            reason,
        };
        // Two stores never say the same.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let us = format!("process {} (store {:x})", std::process::id(), since_epoch.as_nanos());
        loop {
            let mut hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
            hosts.retain(|(_, host)| host.strong_count() > 0);
            let ours = hosts.iter().find(|(at, _)| at == address).and_then(|(_, host)| host.upgrade());
            if let Some(host) = ours {
                drop(hosts);
                return Ok((self.connect(address, false)?, Some(host)));
            }
            let refused = match Listener::bind(address, self.place.one_node()) {
                Ok(listener) => {
                    let server = StoreServer::serve(listener, address, Some((HOST, us.as_str())));
                    let server = server.map_err(|error| failed(error.to_string()))?;
                    let host = Arc::new(Host { server, timeout: self.timeout });
                    hosts.push((address.clone(), Arc::downgrade(&host)));
                    drop(hosts);
                    return Ok((self.connect(address, false)?, Some(host)));
                }
                Err(error) => error.to_string(),
            };
            drop(hosts);
            let holder = match self.attempt(address) {
                Ok(client) => match client.get(HOST, Duration::ZERO)? {
                    None => return Ok((client, None)),
                    Some(holder) => {
                        format!("rank 0 of another job, {}, has its store there", String::from_utf8_lossy(&holder))
                    }
                },
                Err(ConnectError::Absent(_)) => refused,
                Err(ConnectError::Failed(error)) => return Err(error),
            };
            if !self.pause() {
                let waited = self.start.elapsed();
                let reason = format!("{holder} (tried for {waited:.1?}); give this job another MASTER_PORT");
                return Err(failed(reason));
            }
        }
    }

    /// For the other ranks: the store that rank 0 has joined, too.
    fn find_host(&self, address: &Address) -> Result<Member, BootstrapError> {
        let mut counted = None;
        loop {
            let reason = match self.attempt(address) {
                Ok(client) => match self.await_host(client, &mut counted) {
                    Ok(Some(client)) => return Ok(Member { client, _host: None }),
                    Ok(None) => "a store listens there, but rank 0 has not come to it".to_owned(),
                    // It was an earlier one's.
                    Err(error) => error.to_string(),
                },
                Err(ConnectError::Absent(reason)) => reason,
                Err(ConnectError::Failed(error)) => return Err(error),
            };
            if !self.pause() {
                let missing = format!("rank 0, with whom to meet at {:?} ({reason}),", address.to_string());
                let waited = self.start.elapsed();
                return Err(BootstrapError::Missing { what: JOINING.to_owned(), missing, waited });
            }
        }
    }

    /// Waits for rank 0 in a store. `counted` is the last store in which this join was counted, by who hosts it.
    fn await_host(
        &self,
        client: StoreClient,
        counted: &mut Option<(Option<Vec<u8>>, i64)>,
    ) -> Result<Option<StoreClient>, BootstrapError> {
        let host = client.get(HOST, Duration::ZERO)?;
        let count = match counted {
            Some((before, count)) if *before == host => *count,
            _ => counted.insert((host.clone(), self.count(&client)?)).1,
        };
        let client = self.prefixed(client, count);
        let patience = if host.is_some() { LOOK_AGAIN.min(self.left()) } else { self.left() };
        Ok(client.get("host", patience)?.map(|_| client))
    }

    /// Waits until all ranks are there.
    fn await_all(&self, member: Member) -> Result<Member, BootstrapError> {
        let bootstrap: &dyn Bootstrap = &member;
        match bootstrap.all_gather(&Team::world(self.place.ranks), "joined", b"", self.left()) {
            Ok(_) => Ok(member),
            Err(BootstrapError::Missing { missing, .. }) => {
                Err(BootstrapError::Missing { what: JOINING.to_owned(), missing, waited: self.start.elapsed() })
            }
            Err(error) => Err(error),
        }
    }
}

impl Bootstrap for Member {
    fn rank(&self) -> Rank {
        self.client.rank()
    }

    fn ranks(&self) -> usize {
        self.client.ranks()
    }

    fn node(&self) -> Node {
        self.client.node()
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), BootstrapError> {
        self.client.put(key, value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>, BootstrapError> {
        self.client.get(key, timeout)
    }
}
