//! The server: one thread, a poll loop over connections, a map.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use campanile_core::BootstrapError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, sockopt};

use super::wire::{self, MAGIC, Request};
use crate::poll::poll_until;

/// The store of a job. Dropping it ends its thread and closes every connection.
#[derive(Debug)]
pub struct StoreServer {
    address: String,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Starts a store at a new random address.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the system refuses a socket or a thread.
    pub fn start() -> Result<Self, BootstrapError> {
        let failed = |call: &'static str| {
            move |error: io::Error| BootstrapError::Store {
                what: "starting the store".to_owned(),
                reason: format!("{call}: {error}"),
            }
        };
        let address = random_address().map_err(failed("getrandom"))?;
        let name = SocketAddr::from_abstract_name(&address).map_err(failed("address"))?;
        let listener = UnixListener::bind_addr(&name).map_err(failed("bind"))?;
        listener.set_nonblocking(true).map_err(failed("fcntl"))?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| failed("eventfd")(errno.into()))?;
        let stop = Arc::new(stop);
        let server =
            Server { listener, stop: Arc::clone(&stop), clients: Vec::new(), values: HashMap::new(), exhausted: false };
        let thread = std::thread::Builder::new().name("campanile-store".to_owned());
        let thread = thread.spawn(move || server.run()).map_err(failed("spawning a thread"))?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Its name in the abstract namespace of Unix sockets: printable ASCII, for
    /// [`StoreClient::connect`](super::StoreClient::connect).
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // Adding 1 to a counter of 64 bits that is 0 neither blocks nor fails.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// An address that nobody can guess: 128 random bits.
fn random_address() -> io::Result<String> {
    let mut random = [0_u8; 16];
    // Up to 256 bytes never come short once the kernel's generator is seeded.
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("campanile-store-{:032x}", u128::from_ne_bytes(random)))
}

struct Server {
    listener: UnixListener,
    stop: Arc<OwnedFd>,
    clients: Vec<Client>,
    values: HashMap<Vec<u8>, Vec<u8>>,
    /// There was no descriptor for another connection. Until one is closed, whoever connects is left in the backlog.
    exhausted: bool,
}

struct Client {
    stream: UnixStream,
    /// Received, not yet a whole request.
    input: Vec<u8>,
    /// Answered, not yet sent.
    output: Vec<u8>,
    validated: bool,
    /// The keys that its `WAIT` still waits for.
    awaited: HashSet<Vec<u8>>,
    /// It will not send anything more.
    ended: bool,
    /// Its connection is to be closed.
    lost: bool,
}

impl Server {
    fn run(mut self) {
        loop {
            let accepting = if self.exhausted { PollFlags::empty() } else { PollFlags::IN };
            let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN), PollFd::new(&self.listener, accepting)];
            fds.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, client.interest())));
            if let Err(errno) = poll_until(&mut fds, None) {
                tracing::error!(%errno, "the store ends: poll failed");
                return;
            }
            let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            drop(fds);
            if !events[0].is_empty() {
                return;
            }
            for (client, events) in self.clients.iter_mut().zip(&events[2..]) {
                if events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    client.receive();
                }
            }
            // An answer to one may complete the wait of another, whose later requests can go on then.
            let mut answered = true;
            while answered {
                answered = false;
                for index in 0..self.clients.len() {
                    answered |= self.advance(index);
                }
            }
            let before = self.clients.len();
            self.clients.retain(|client| !client.done());
            self.exhausted &= self.clients.len() == before;
            if !events[1].is_empty() {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => match Client::new(stream) {
                    Ok(client) => self.clients.push(client),
                    Err(reason) => tracing::warn!(reason, "the store turned a connection away"),
                },
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        tracing::warn!(%error, "the store cannot accept a connection until another is closed");
                        self.exhausted = true;
                        return;
                    }
                },
            }
        }
    }

    /// Sends what is to be sent to a client and answers its requests, until it has none or does not read; whether it
    /// answered any.
    fn advance(&mut self, index: usize) -> bool {
        let mut answered = false;
        loop {
            let client = &mut self.clients[index];
            client.send();
            if client.lost || !client.output.is_empty() {
                return answered;
            }
            let input = std::mem::take(&mut client.input);
            let result = match wire::parse(&input) {
                Ok(None) => Ok(0),
                Ok(Some((request, length))) => self.answer(index, request).map(|()| length),
                Err(malformed) => Err(malformed.to_string()),
            };
            let client = &mut self.clients[index];
            client.input = input;
            match result {
                Ok(0) => return answered,
                Ok(length) => {
                    client.input.drain(..length);
                    answered = true;
                }
                Err(reason) => {
                    tracing::warn!(reason, "the store closes a connection that sent nonsense");
                    client.lost = true;
                }
            }
        }
    }

    fn answer(&mut self, index: usize, request: Request<'_>) -> Result<(), String> {
        let client = &mut self.clients[index];
        if !client.validated {
            client.validated = request == Request::Validate { magic: MAGIC };
            return if client.validated {
                Ok(())
            } else {
                Err("no VALIDATE with the right number at first".to_owned())
            };
        }
        match request {
            Request::Validate { .. } => return Err("VALIDATE twice".to_owned()),
            Request::Set { key, value } => self.set(key, value.to_owned()),
            Request::Get { key } => match self.values.get(key) {
                Some(value) => {
                    client.output.extend((value.len() as u64).to_le_bytes());
                    client.output.extend(value);
                }
                None => return Err(format!("GET of {:?}, which is not there", key.escape_ascii().to_string())),
            },
            Request::Add { key, delta } => {
                let old = match self.values.get(key) {
                    None => Some(0),
                    Some(value) => std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok()),
                };
                let sum = old.and_then(|old| old.checked_add(delta));
                let sum = sum.ok_or_else(|| format!("ADD to {:?}: no sum", key.escape_ascii().to_string()))?;
                client.output.extend(sum.to_le_bytes());
                self.set(key, sum.to_string().into_bytes());
            }
            Request::Check { keys } => {
                let ready = keys.iter().all(|key| self.values.contains_key(*key));
                client.output.push(if ready { wire::READY } else { wire::NOT_READY });
            }
            Request::Wait { keys } => {
                let missing = keys.into_iter().filter(|key| !self.values.contains_key(*key));
                client.awaited = missing.map(<[u8]>::to_vec).collect();
                if client.awaited.is_empty() {
                    client.output.push(wire::STOP_WAITING);
                }
            }
            Request::CancelWait => {
                client.awaited.clear();
                client.output.push(wire::WAIT_CANCELED);
            }
            Request::Ping { nonce } => client.output.extend(nonce.to_le_bytes()),
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: Vec<u8>) {
        for client in &mut self.clients {
            if client.awaited.remove(key) && client.awaited.is_empty() {
                client.output.push(wire::STOP_WAITING);
                client.send();
            }
        }
        self.values.insert(key.to_owned(), value);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Closing alone would not do: a child of this process may hold copies of the sockets, for the time between
        // fork and exec at least. This way whoever connects is refused, and clients see the end of their streams.
        let _ = rustix::net::shutdown(&self.listener, Shutdown::Both);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Both);
    }
}

impl Client {
    fn new(stream: UnixStream) -> Result<Self, String> {
        let peer = sockopt::socket_peercred(&stream).map_err(|errno| format!("SO_PEERCRED: {errno}"))?;
        let ours = rustix::process::geteuid();
        if peer.uid != ours {
            let (theirs, ours) = (peer.uid.as_raw(), ours.as_raw());
            return Err(format!("process {} runs as uid {theirs}; only uid {ours} may connect", peer.pid));
        }
        stream.set_nonblocking(true).map_err(|error| format!("fcntl: {error}"))?;
        Ok(Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            validated: false,
            awaited: HashSet::new(),
            ended: false,
            lost: false,
        })
    }

    /// What to poll for. A client that does not read its answers is not read from.
    fn interest(&self) -> PollFlags {
        if self.output.is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    /// Whether its connection is to be closed: it is lost, or has sent all and been answered all.
    fn done(&self) -> bool {
        self.lost || (self.ended && self.output.is_empty())
    }

    fn receive(&mut self) {
        let mut buffer = [0_u8; 64 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(length) => self.input.extend(&buffer[..length]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.lost = true,
        }
    }

    fn send(&mut self) {
        while !self.output.is_empty() && !self.lost {
            match send(self.stream.as_fd(), &self.output, SendFlags::NOSIGNAL) {
                Ok(length) => drop(self.output.drain(..length)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.lost = true,
            }
        }
    }
}
