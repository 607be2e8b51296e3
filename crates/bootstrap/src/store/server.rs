//! The server: one thread, a poll loop over connections, a map.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use campanile_core::BootstrapError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send};

use super::address::Address;
use super::listener::Listener;
use super::map::Map;
use super::wire::{self, MAGIC, MAX_ANSWER, Request};
use crate::poll::poll_until;

/// The store of a job. Dropping it ends its thread and closes every connection.
#[derive(Debug)]
pub struct StoreServer {
    address: String,
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread of a server is told, and what it tells.
#[derive(Debug)]
struct Control {
    /// Readable when `state` was changed.
    event: OwnedFd,
    state: AtomicU8,
    told: Mutex<Told>,
    told_more: Condvar,
}

/// What the thread tells, each time that it has done what there was to do.
#[derive(Debug, Default)]
struct Told {
    /// Connections that have said what a client says first. Whoever has not is nobody's rank and is not waited for.
    clients: usize,
    /// It takes no new ones.
    closed: bool,
}

/// States of a server.
mod state {
    pub(super) const OPEN: u8 = 0;
    /// It goes on with the connections that there are.
    pub(super) const CLOSING: u8 = 1;
    pub(super) const STOPPED: u8 = 2;
}

impl Control {
    fn set(&self, state: u8) {
        self.state.store(state, Ordering::Release);
        // Adding 1 to a counter of 64 bits that is hardly more than 0 neither blocks nor fails.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        // No code that can panic runs under the lock.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoreServer {
    /// Starts a store at a new random name in the abstract namespace of Unix sockets.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the system refuses a socket or a thread.
    pub fn start() -> Result<Self, BootstrapError> {
        let failed = |reason: String| BootstrapError::Store { what: "starting the store".to_owned(), reason };
        let name = random_name().map_err(|error| failed(format!("getrandom: {error}")))?;
        let address = Address::Abstract(name);
        let listener = Listener::bind(&address, true).map_err(|error| failed(format!("bind: {error}")))?;
        Self::serve(listener, &address, None).map_err(|error| failed(error.to_string()))
    }

    /// Starts a store that listens at `address`, port 0 for any free one. Over TCP whoever reaches the port may use the
    /// store, so it listens at what the host name stands for and nowhere else.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the address is none or is in use, or the system refuses a socket or a thread.
    pub fn listen(address: &str) -> Result<Self, BootstrapError> {
        let failed = |reason: String| BootstrapError::Store { what: format!("listening at {address:?}"), reason };
        let address: Address = address.parse().map_err(failed)?;
        let listener = Listener::bind(&address, true).map_err(|error| failed(error.to_string()))?;
        Self::serve(listener, &address, None).map_err(|error| failed(error.to_string()))
    }

    /// Serves what connects to `listener`; `first` is in the map before anybody does.
    pub(crate) fn serve(listener: Listener, address: &Address, first: Option<(&str, &str)>) -> io::Result<Self> {
        let address = listener.address(address)?.to_string();
        let control = Arc::new(Control {
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            state: AtomicU8::new(state::OPEN),
            told: Mutex::default(),
            told_more: Condvar::new(),
        });
        let mut map = Map::default();
        if let Some((key, value)) = first {
            map.set(key.as_bytes(), value.as_bytes());
        }
        let server = Server { listener, control: Arc::clone(&control), clients: Vec::new(), map, exhausted: false };
        let thread = std::thread::Builder::new().name("campanile-store".to_owned()).spawn(move || server.run())?;
        Ok(Self { address, control, thread: Some(thread) })
    }

    /// Its address, for [`StoreClient::connect`](super::StoreClient::connect): printable ASCII.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Refuses new connections, and waits until those that there are have ended, at most for `timeout`; whether they
    /// have.
    pub(crate) fn close(&self, timeout: Duration) -> bool {
        self.control.set(state::CLOSING);
        let is_open = |told: &mut Told| !told.closed || told.clients > 0;
        let waited = self.control.told_more.wait_timeout_while(self.control.told(), timeout, is_open);
        !is_open(&mut waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.control.set(state::STOPPED);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// A name that nobody can guess: 128 random bits.
fn random_name() -> io::Result<String> {
    let mut random = [0_u8; 16];
    // Up to 256 bytes never come short once the kernel's generator is seeded.
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("campanile-store-{:032x}", u128::from_ne_bytes(random)))
}

struct Server {
    listener: Listener,
    control: Arc<Control>,
    clients: Vec<Client>,
    map: Map,
    /// There was no descriptor for another connection. Until one is closed, whoever connects is left in the backlog.
    exhausted: bool,
}

struct Client {
    stream: OwnedFd,
    /// Received, not yet a whole request.
    input: Vec<u8>,
    /// Answered, not yet sent.
    output: VecDeque<u8>,
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
            let mut fds = vec![PollFd::new(&self.control.event, PollFlags::IN)];
            let listening = self.listener.sockets().iter().map(|socket| PollFd::new(socket, accepting));
            fds.extend(listening);
            let (listeners, clients) = (1..fds.len(), fds.len());
            fds.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, client.interest())));
            if let Err(errno) = poll_until(&mut fds, None) {
                tracing::error!(%errno, "the store ends: poll failed");
                return;
            }
            let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            drop(fds);
            if !events[0].is_empty() {
                let _ = rustix::io::read(&self.control.event, &mut [0_u8; 8]);
                if self.control.state.load(Ordering::Acquire) == state::STOPPED {
                    return;
                }
            }
            for (client, events) in self.clients.iter_mut().zip(&events[clients..]) {
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
            for (socket, events) in events[listeners].iter().enumerate() {
                if !events.is_empty() {
                    self.accept(socket);
                }
            }
            let closed = self.control.state.load(Ordering::Acquire) == state::CLOSING;
            if closed {
                self.listener.close();
            }
            let clients = self.clients.iter().filter(|client| client.validated).count();
            *self.control.told() = Told { clients, closed };
            self.control.told_more.notify_all();
        }
    }

    fn accept(&mut self, socket: usize) {
        loop {
            match self.listener.accept(socket) {
                Ok(Ok(stream)) => self.clients.push(Client::new(stream)),
                Ok(Err(reason)) => tracing::warn!(reason, "the store turned a connection away"),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    tracing::warn!(%errno, "the store cannot accept a connection until another is closed");
                    self.exhausted = true;
                    return;
                }
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
        let output = &mut client.output;
        match request {
            Request::Validate { .. } => return Err("VALIDATE twice".to_owned()),
            Request::Set { key, value } => {
                self.map.set(key, value);
                self.wake(key);
            }
            Request::CompareSet { key, expected, desired } => {
                write_value(output, self.map.compare_set(key, expected, desired));
                if self.map.has(key) {
                    self.wake(key);
                }
            }
            Request::Get { key } => write_value(output, self.map.get(key)),
            Request::Add { key, delta } => {
                let sum = self.map.add(key, delta).ok_or_else(|| no_sum(key))?;
                output.extend(sum.to_le_bytes());
                self.wake(key);
            }
            Request::Check { keys } => {
                let ready = keys.iter().all(|key| self.map.has(key));
                output.push_back(if ready { wire::READY } else { wire::NOT_READY });
            }
            Request::Wait { keys } => {
                let missing = keys.into_iter().filter(|key| !self.map.has(key));
                client.awaited = missing.map(<[u8]>::to_vec).collect();
                if client.awaited.is_empty() {
                    output.push_back(wire::STOP_WAITING);
                }
            }
            Request::NumKeys => output.extend((self.map.keys().len() as i64).to_le_bytes()),
            Request::DeleteKey { key } => output.extend(i64::from(self.map.delete(key)).to_le_bytes()),
            Request::Append { key, value } => {
                self.map.append(key, value);
                self.wake(key);
            }
            Request::MultiGet { keys } => {
                let bytes: usize = keys.iter().map(|key| size_of::<u64>() + self.map.get(key).len()).sum();
                if bytes > MAX_ANSWER {
                    return Err(format!("a MULTI_GET of {bytes} bytes, at most {MAX_ANSWER} are allowed"));
                }
                keys.iter().for_each(|key| write_value(output, self.map.get(key)));
            }
            Request::MultiSet { pairs } => {
                for (key, value) in pairs {
                    self.map.set(key, value);
                    self.wake(key);
                }
            }
            Request::CancelWait => {
                client.awaited.clear();
                output.push_back(wire::WAIT_CANCELED);
            }
            Request::Ping { nonce } => output.extend(nonce.to_le_bytes()),
            Request::QueuePush { key, value } => {
                self.map.push(key, value);
                // One value is for one of those who wait.
                if let Some(client) = self.clients.iter_mut().find(|client| client.awaited.contains(key)) {
                    client.wake(key);
                }
            }
            Request::QueuePop { key } => {
                output.extend((self.map.queue_len(key) as i64).to_le_bytes());
                if let Some(value) = self.map.pop(key) {
                    write_value(output, &value);
                }
            }
            Request::QueueLen { key } => output.extend((self.map.queue_len(key) as i64).to_le_bytes()),
            Request::ListKeys => {
                output.extend((self.map.keys().len() as i64).to_le_bytes());
                self.map.keys().for_each(|key| write_value(output, key));
            }
            Request::Barrier { key, ranks } => {
                let arrived = self.map.add(key, 1).ok_or_else(|| no_sum(key))?;
                if arrived < ranks {
                    client.awaited = HashSet::from([key.to_vec()]);
                } else {
                    output.push_back(wire::STOP_WAITING);
                    self.wake(key);
                }
            }
        }
        Ok(())
    }

    /// Answers the waits for a key.
    fn wake(&mut self, key: &[u8]) {
        self.clients.iter_mut().for_each(|client| client.wake(key));
    }
}

fn write_value(output: &mut VecDeque<u8>, value: &[u8]) {
    output.extend((value.len() as u64).to_le_bytes());
    output.extend(value);
}

fn no_sum(key: &[u8]) -> String {
    format!("{:?} has no number to add to, or the sum does not fit", key.escape_ascii().to_string())
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listener.close();
    }
}

impl Drop for Client {
    /// Clients see the end of their streams, whoever else holds copies of the sockets.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Both);
    }
}

impl Client {
    fn new(stream: OwnedFd) -> Self {
        Self {
            stream,
            input: Vec::new(),
            output: VecDeque::new(),
            validated: false,
            awaited: HashSet::new(),
            ended: false,
            lost: false,
        }
    }

    /// Answers its wait, if that was for this key alone by now.
    fn wake(&mut self, key: &[u8]) {
        if self.awaited.remove(key) && self.awaited.is_empty() {
            self.output.push_back(wire::STOP_WAITING);
            self.send();
        }
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
        match recv(&self.stream, &mut buffer, RecvFlags::empty()) {
            Ok((0, _)) => self.ended = true,
            Ok((length, _)) => self.input.extend(&buffer[..length]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.lost = true,
        }
    }

    fn send(&mut self) {
        while !self.output.is_empty() && !self.lost {
            match send(&self.stream, self.output.as_slices().0, SendFlags::NOSIGNAL) {
                Ok(length) => drop(self.output.drain(..length)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.lost = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};

    use campanile_core::{Bootstrap, Rank};

    use super::*;
    use crate::StoreClient;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn who_is_no_client_is_not_waited_for() {
        let server = StoreServer::start().unwrap();
        let _mute = UnixStream::connect_addr(&SocketAddr::from_abstract_name(server.address()).unwrap()).unwrap();
        let client = StoreClient::connect(server.address(), Rank(0), 1, LONG).unwrap();
        // The mute one came first, so it is accepted by now.
        client.put("key", b"").unwrap();
        assert!(!server.close(Duration::from_millis(20)), "a client is waited for");
        drop(client);
        assert!(server.close(LONG));
    }
}
