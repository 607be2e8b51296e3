//! The client: a rank's way to the store in another process.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use campanile_core::{Bootstrap, BootstrapError, Node, Rank};

use super::address::Address;
use super::connection::{Connection, Refusal};
use super::wire::{MAX_KEY, MAX_VALUE, Request, STOP_WAITING, WAIT_CANCELED};

/// The bootstrap of a rank that is a process: connections to the job's [`StoreServer`](super::StoreServer), or to a
/// `TCPStore` of torch.
///
/// Threads of the rank use it at once, each over a connection of its own for the time of a call, so that one that waits
/// holds up nobody.
///
/// ```
/// use campanile_bootstrap::{StoreClient, StoreServer};
/// use campanile_core::{Bootstrap, Rank};
/// use std::time::Duration;
///
/// let server = StoreServer::listen("tcp://127.0.0.1:0")?;
/// let client = StoreClient::connect(server.address(), Rank(0), 1, Duration::from_secs(10))?;
/// client.put("key", b"value")?;
/// assert_eq!(client.get("key", Duration::ZERO)?.as_deref(), Some(&b"value"[..]));
/// assert_eq!(client.compare_set("key", b"value", b"other")?, b"other");
/// # Ok::<(), campanile_core::BootstrapError>(())
/// ```
#[derive(Debug)]
pub struct StoreClient {
    rank: Rank,
    ranks: usize,
    node: Node,
    address: Address,
    prefix: String,
    /// Upper bound for the store to take a request or to answer one that has nothing to wait for.
    timeout: Duration,
    idle: Mutex<Vec<Connection>>,
}

/// A connection was not made.
pub(crate) enum ConnectError {
    /// Nobody listens. That may change.
    Absent(String),
    /// It makes no sense to try again.
    Failed(BootstrapError),
}

impl StoreClient {
    /// Connects `rank` of a job of `ranks` to the store at `address` (see [`Address`]), which must answer within
    /// `timeout`, now and later.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if nobody listens there, or not as our user, or it does not speak the protocol.
    pub fn connect(address: &str, rank: Rank, ranks: usize, timeout: Duration) -> Result<Self, BootstrapError> {
        let failed = |reason: String| BootstrapError::Store { what: format!("connecting to {address:?}"), reason };
        let parsed: Address = address.parse().map_err(failed)?;
        Self::open(&parsed, rank, ranks, timeout).map_err(|error| match error {
            ConnectError::Absent(reason) => failed(reason),
            ConnectError::Failed(error) => error,
        })
    }

    pub(crate) fn open(address: &Address, rank: Rank, ranks: usize, timeout: Duration) -> Result<Self, ConnectError> {
        let failed = |reason: String| {
            let what = format!("connecting to {:?}", address.to_string());
            ConnectError::Failed(BootstrapError::Store { what, reason })
        };
        let node = campanile_host::process::node_identity().map_err(|error| failed(error.to_string()))?;
        let connection = Connection::open(address, timeout).map_err(|refusal| match refusal {
            Refusal::Absent(reason) => ConnectError::Absent(reason),
            Refusal::Wrong(reason) => failed(reason),
        })?;
        Ok(Self {
            rank,
            ranks,
            node: Node::new(node),
            address: address.clone(),
            prefix: String::new(),
            timeout,
            idle: Mutex::new(vec![connection]),
        })
    }

    /// The same with `prefix` before every key from now on, as torch's `PrefixStore` has it. Torch itself puts a `/`
    /// before all of its keys.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The same with another bound for answers.
    pub(crate) fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Adds `delta` to the number under `key`, 0 if there is none, and returns the sum.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the store is gone, or holds something else than a number there.
    pub fn add(&self, key: &str, delta: i64) -> Result<i64, BootstrapError> {
        self.call("add to", key, |connection, key| {
            connection.send(&[Request::Add { key, delta }], self.timeout)?;
            connection.receive_number(self.timeout)
        })
    }

    /// Whether there is a value under `key`, or something in the queue of that name.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the store is gone.
    pub fn check(&self, key: &str) -> Result<bool, BootstrapError> {
        self.call("check", key, |connection, key| {
            connection.send(&[Request::Check { keys: vec![key] }], self.timeout)?;
            connection.receive_array(self.timeout).map(|[answer]| answer == super::wire::READY)
        })
    }

    /// Puts `desired` under `key` if `expected` is there, or nothing is and `expected` is empty; returns what is there
    /// then. If nothing is, and something was expected, that is `expected`: torch's server has it so.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the store is gone.
    pub fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>, BootstrapError> {
        self.call("compare and set", key, |connection, key| {
            within_limit(expected)?;
            within_limit(desired)?;
            connection.send(&[Request::CompareSet { key, expected, desired }], self.timeout)?;
            connection.receive_value(self.timeout)
        })
    }

    /// Appends to the value under `key`, an empty one if there is none.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the store is gone.
    pub fn append(&self, key: &str, value: &[u8]) -> Result<(), BootstrapError> {
        self.call("append to", key, |connection, key| {
            within_limit(value)?;
            connection.send(&[Request::Append { key, value }], self.timeout)
        })
    }

    /// Removes the value under `key`; whether there was one.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the store is gone.
    pub fn delete(&self, key: &str) -> Result<bool, BootstrapError> {
        self.call("delete", key, |connection, key| {
            connection.send(&[Request::DeleteKey { key }], self.timeout)?;
            connection.receive_number(self.timeout).map(|deleted| deleted > 0)
        })
    }

    /// How many values the store holds, whatever their prefix.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the store is gone.
    pub fn num_keys(&self) -> Result<i64, BootstrapError> {
        self.call("count keys", "", |connection, _| {
            connection.send(&[Request::NumKeys], self.timeout)?;
            connection.receive_number(self.timeout)
        })
    }

    /// Puts a value at the end of the queue `key`. Torch's server has queues since 2.8, on its libuv backend.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the store is gone.
    pub fn push(&self, key: &str, value: &[u8]) -> Result<(), BootstrapError> {
        self.call("push to", key, |connection, key| {
            within_limit(value)?;
            connection.send(&[Request::QueuePush { key, value }], self.timeout)
        })
    }

    /// Takes the value at the front of the queue `key`; `None` if it is empty.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the store is gone.
    pub fn pop(&self, key: &str) -> Result<Option<Vec<u8>>, BootstrapError> {
        self.call("pop from", key, |connection, key| {
            connection.send(&[Request::QueuePop { key }], self.timeout)?;
            match connection.receive_number(self.timeout)? {
                0 => Ok(None),
                _ => connection.receive_value(self.timeout).map(Some),
            }
        })
    }

    /// Calls with a connection that no other thread uses. One that has failed is not used again.
    fn call<T>(
        &self,
        what: &str,
        key: &str,
        call: impl FnOnce(&mut Connection, &[u8]) -> Result<T, String>,
    ) -> Result<T, BootstrapError> {
        let failed = |reason| BootstrapError::Store { what: format!("{what} {key:?}"), reason };
        let prefixed = [self.prefix.as_bytes(), key.as_bytes()].concat();
        if prefixed.len() > MAX_KEY {
            return Err(failed(format!("the key has {} bytes, at most {MAX_KEY} are allowed", prefixed.len())));
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(&self.address, self.timeout).map_err(|refusal| failed(refusal.into()))?,
        };
        let result = call(&mut connection, &prefixed).map_err(failed)?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(result)
    }
}

fn within_limit(value: &[u8]) -> Result<(), String> {
    if value.len() > MAX_VALUE {
        return Err(format!("the value has {} bytes, at most {MAX_VALUE} are allowed", value.len()));
    }
    Ok(())
}

impl Bootstrap for StoreClient {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn node(&self) -> Node {
        self.node.clone()
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), BootstrapError> {
        self.call("put", key, |connection, key| {
            within_limit(value)?;
            connection.send(&[Request::Set { key, value }], self.timeout)
        })
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>, BootstrapError> {
        self.call("get", key, |connection, key| {
            connection.send(&[Request::Wait { keys: vec![key] }], self.timeout)?;
            let in_time = connection.answered_within(timeout)?;
            if !in_time {
                connection.send(&[Request::CancelWait], self.timeout)?;
            }
            match connection.receive_array(self.timeout)? {
                [STOP_WAITING] if in_time => {}
                // The value came before the cancel did, which is answered too.
                [STOP_WAITING] => match connection.receive_array(self.timeout)? {
                    [WAIT_CANCELED] => {}
                    [other] => return Err(format!("the store answered a cancel with {other}")),
                },
                [WAIT_CANCELED] if !in_time => return Ok(None),
                [other] => return Err(format!("the store answered a wait with {other}")),
            }
            connection.send(&[Request::Get { key }], self.timeout)?;
            connection.receive_value(self.timeout).map(Some)
        })
    }
}
