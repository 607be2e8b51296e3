//! The client: a rank's way to the store in another process.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use campanile_core::{Bootstrap, BootstrapError, Node, Rank};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with, sockopt,
};

use super::wire::{MAGIC, MAX_KEY, MAX_VALUE, Request, STOP_WAITING, WAIT_CANCELED};
use crate::poll::poll_until;

/// The bootstrap of a rank that is a process: a connection to the job's [`StoreServer`](super::StoreServer).
///
/// Threads of the rank use it at once, each over a connection of its own for the time of a call, so that one that waits
/// holds up nobody.
#[derive(Debug)]
pub struct StoreClient {
    rank: Rank,
    ranks: usize,
    node: Node,
    address: String,
    /// Upper bound for the store to take a request or to answer one that has nothing to wait for.
    timeout: Duration,
    idle: Mutex<Vec<Connection>>,
}

impl StoreClient {
    /// Connects `rank` of a job of `ranks` to the store at `address`, which must answer within `timeout`, now and
    /// later.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if nobody listens there, or not as our user, or it does not speak the protocol.
    pub fn connect(address: &str, rank: Rank, ranks: usize, timeout: Duration) -> Result<Self, BootstrapError> {
        let failed = |reason: String| BootstrapError::Store { what: format!("connecting to {address:?}"), reason };
        let node = campanile_host::process::node_identity().map_err(|error| failed(error.to_string()))?;
        let connection = Connection::open(address, timeout).map_err(failed)?;
        Ok(Self {
            rank,
            ranks,
            node: Node::new(node),
            address: address.to_owned(),
            timeout,
            idle: Mutex::new(vec![connection]),
        })
    }

    /// Adds `delta` to the number under `key`, 0 if there is none, and returns the sum.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the store is gone, or holds something else than a number there.
    pub fn add(&self, key: &str, delta: i64) -> Result<i64, BootstrapError> {
        self.call("add to", key, |connection| {
            connection.send(&[Request::Add { key: key.as_bytes(), delta }], self.timeout)?;
            connection.receive_array(self.timeout).map(i64::from_le_bytes)
        })
    }

    /// Calls with a connection that no other thread uses. One that has failed is not used again.
    fn call<T>(
        &self,
        what: &str,
        key: &str,
        call: impl FnOnce(&mut Connection) -> Result<T, String>,
    ) -> Result<T, BootstrapError> {
        let failed = |reason| BootstrapError::Store { what: format!("{what} {key:?}"), reason };
        if key.len() > MAX_KEY {
            return Err(failed(format!("the key has {} bytes, at most {MAX_KEY} are allowed", key.len())));
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(&self.address, self.timeout).map_err(failed)?,
        };
        let result = call(&mut connection).map_err(failed)?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(result)
    }
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
        self.call("put", key, |connection| {
            if value.len() > MAX_VALUE {
                return Err(format!("the value has {} bytes, at most {MAX_VALUE} are allowed", value.len()));
            }
            connection.send(&[Request::Set { key: key.as_bytes(), value }], self.timeout)
        })
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>, BootstrapError> {
        self.call("get", key, |connection| {
            let key = key.as_bytes();
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

/// A stream to the store. Errors are texts: whoever calls says what was being done.
#[derive(Debug)]
struct Connection {
    stream: UnixStream,
}

impl Connection {
    fn open(address: &str, timeout: Duration) -> Result<Self, String> {
        let deadline = deadline(timeout);
        let failed = |call: &'static str| move |errno: Errno| reason(call, errno);
        let name = SocketAddrUnix::new_abstract_name(address.as_bytes())
            .map_err(|_| format!("an address has 1 to 107 bytes, this one has {}", address.len()))?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(failed("socket"))?;
        loop {
            // A full backlog cannot be polled for; a blocking connect waits for it as long as a send may take. A
            // timeout of 0 would mean none.
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.map(|left| left.max(Duration::from_millis(1)));
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, left).map_err(failed("setsockopt"))?;
            match connect(&socket, &name) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    return Err(format!("the store did not accept within {timeout:.1?}"));
                }
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(reason("connect", errno)),
            }
        }
        let peer = sockopt::socket_peercred(&socket).map_err(failed("SO_PEERCRED"))?;
        let ours = rustix::process::geteuid();
        if peer.uid != ours {
            let (theirs, ours) = (peer.uid.as_raw(), ours.as_raw());
            return Err(format!("process {} there runs as uid {theirs}, not {ours} as we do", peer.pid));
        }
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(true).map_err(|error| format!("fcntl: {error}"))?;
        let mut connection = Self { stream };
        let nonce = std::process::id();
        connection.send(&[Request::Validate { magic: MAGIC }, Request::Ping { nonce }], timeout)?;
        match u32::from_le_bytes(connection.receive_array(timeout)?) {
            echo if echo == nonce => Ok(connection),
            _ => Err("whoever listens there does not speak the store's protocol".to_owned()),
        }
    }

    fn send(&mut self, requests: &[Request<'_>], timeout: Duration) -> Result<(), String> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.write(&mut bytes));
        let deadline = deadline(timeout);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match send(&self.stream, rest, SendFlags::NOSIGNAL) {
                Ok(length) => rest = &rest[length..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.poll(PollFlags::OUT, deadline)? => {}
                Err(Errno::AGAIN) => return Err(format!("the store took nothing for {timeout:.1?}")),
                Err(errno) => return Err(reason("send", errno)),
            }
        }
        Ok(())
    }

    /// Whether there is an answer, or the end of the stream, within `timeout`.
    fn answered_within(&self, timeout: Duration) -> Result<bool, String> {
        self.poll(PollFlags::IN, deadline(timeout))
    }

    fn receive(&mut self, buffer: &mut [u8], timeout: Duration) -> Result<(), String> {
        let deadline = deadline(timeout);
        let mut filled = 0;
        while filled < buffer.len() {
            match self.stream.read(&mut buffer[filled..]) {
                Ok(0) => return Err(GONE.to_owned()),
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.poll(PollFlags::IN, deadline)? {
                        return Err(format!("the store did not answer within {timeout:.1?}"));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(GONE.to_owned()),
                Err(error) => return Err(format!("read: {error}")),
            }
        }
        Ok(())
    }

    fn receive_array<const N: usize>(&mut self, timeout: Duration) -> Result<[u8; N], String> {
        let mut array = [0; N];
        self.receive(&mut array, timeout)?;
        Ok(array)
    }

    fn receive_value(&mut self, timeout: Duration) -> Result<Vec<u8>, String> {
        let length = u64::from_le_bytes(self.receive_array(timeout)?);
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_VALUE);
        let length = length.ok_or_else(|| format!("the store sent a value of more than {MAX_VALUE} bytes"))?;
        let mut value = vec![0; length];
        self.receive(&mut value, timeout)?;
        Ok(value)
    }

    fn poll(&self, events: PollFlags, deadline: Option<Instant>) -> Result<bool, String> {
        let mut fds = [PollFd::new(&self.stream, events)];
        poll_until(&mut fds, deadline).map_err(|errno| format!("poll: {errno}"))
    }
}

/// When `timeout` will have passed; never, if the clock does not go that far.
fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

const GONE: &str = "the store is gone; the launcher that kept it has ended";

fn reason(call: &str, errno: Errno) -> String {
    match errno {
        Errno::PIPE | Errno::CONNRESET => GONE.to_owned(),
        Errno::CONNREFUSED => {
            "nobody listens there; the launcher has ended, or lives in another network namespace".to_owned()
        }
        errno => format!("{call}: {errno}"),
    }
}
