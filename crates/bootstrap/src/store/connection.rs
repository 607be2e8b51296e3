//! A client's stream to the store: requests out, answers in, each with a deadline.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
    sockopt,
};

use super::address::Address;
use super::listener::{keep_alive, same_user};
use super::wire::{MAGIC, MAX_VALUE, Request};
use crate::poll::poll_until;

/// A stream to the store. Errors are texts: whoever calls says what was being done.
#[derive(Debug)]
pub(super) struct Connection {
    stream: OwnedFd,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Nobody listens. That may change.
    Absent(String),
    /// Whoever listens is not what was looked for.
    Wrong(String),
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Absent(reason) | Refusal::Wrong(reason) => reason,
        }
    }
}

impl Connection {
    /// Connects, and makes sure that a store answers.
    pub(super) fn open(address: &Address, timeout: Duration) -> Result<Self, Refusal> {
        let stream = match address {
            Address::Abstract(name) => open_abstract(name, timeout)?,
            Address::Tcp { host, port } => open_tcp(host, *port, timeout)?,
        };
        let mut connection = Self { stream };
        connection.greet(timeout).map_err(|reason| match reason {
            // It was about to end.
            reason if reason == GONE => Refusal::Absent(reason),
            reason => Refusal::Wrong(reason),
        })?;
        Ok(connection)
    }

    fn greet(&mut self, timeout: Duration) -> Result<(), String> {
        rustix::io::ioctl_fionbio(&self.stream, true).map_err(|errno| format!("ioctl: {errno}"))?;
        let nonce = std::process::id();
        self.send(&[Request::Validate { magic: MAGIC }, Request::Ping { nonce }], timeout)?;
        match u32::from_le_bytes(self.receive_array(timeout)?) {
            echo if echo == nonce => Ok(()),
            _ => Err("whoever listens there does not speak the store's protocol".to_owned()),
        }
    }

    pub(super) fn send(&mut self, requests: &[Request<'_>], timeout: Duration) -> Result<(), String> {
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
    pub(super) fn answered_within(&self, timeout: Duration) -> Result<bool, String> {
        self.poll(PollFlags::IN, deadline(timeout))
    }

    fn receive(&mut self, buffer: &mut [u8], timeout: Duration) -> Result<(), String> {
        let deadline = deadline(timeout);
        let mut filled = 0;
        while filled < buffer.len() {
            match recv(&self.stream, &mut buffer[filled..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(GONE.to_owned()),
                Ok((length, _)) => filled += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.poll(PollFlags::IN, deadline)? => {}
                Err(Errno::AGAIN) => return Err(format!("the store did not answer within {timeout:.1?}")),
                Err(errno) => return Err(reason("recv", errno)),
            }
        }
        Ok(())
    }

    pub(super) fn receive_array<const N: usize>(&mut self, timeout: Duration) -> Result<[u8; N], String> {
        let mut array = [0; N];
        self.receive(&mut array, timeout)?;
        Ok(array)
    }

    pub(super) fn receive_number(&mut self, timeout: Duration) -> Result<i64, String> {
        self.receive_array(timeout).map(i64::from_le_bytes)
    }

    pub(super) fn receive_value(&mut self, timeout: Duration) -> Result<Vec<u8>, String> {
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

const GONE: &str = "the store is gone; the process that kept it has ended";

fn reason(call: &str, errno: Errno) -> String {
    match errno {
        Errno::PIPE | Errno::CONNRESET => GONE.to_owned(),
        Errno::TIMEDOUT => "the host of the store does not answer any more".to_owned(),
        errno => format!("{call}: {errno}"),
    }
}

fn open_abstract(name: &str, timeout: Duration) -> Result<OwnedFd, Refusal> {
    let deadline = deadline(timeout);
    let failed = |call: &'static str| move |errno: Errno| Refusal::Wrong(reason(call, errno));
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed("address"))?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(failed("socket"))?;
    loop {
        // A full backlog cannot be polled for; a blocking connect waits for it as long as a send may take. A
        // timeout of 0 would mean none.
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(|left| left.max(Duration::from_millis(1)));
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, left).map_err(failed("setsockopt"))?;
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                return Err(Refusal::Wrong(format!("the store did not accept within {timeout:.1?}")));
            }
            Err(Errno::AGAIN) => {}
            Err(Errno::CONNREFUSED) => {
                let who = "nobody listens there; who kept the store has ended, or lives in another network namespace";
                return Err(Refusal::Absent(who.to_owned()));
            }
            Err(errno) => return Err(failed("connect")(errno)),
        }
    }
    same_user(&socket).map_err(Refusal::Wrong)?;
    Ok(socket)
}

/// Tries each address that the host name stands for.
fn open_tcp(host: &str, port: u16, timeout: Duration) -> Result<OwnedFd, Refusal> {
    let start = Instant::now();
    let mut refused = format!("{host:?} stands for no address");
    for address in resolve(host, port, timeout).map_err(Refusal::Absent)? {
        // Not 0, which is refused; and no more than `Instant` can hold.
        let left =
            timeout.saturating_sub(start.elapsed()).clamp(Duration::from_millis(1), Duration::from_secs(1 << 20));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                keep_alive(&stream).map_err(|errno| Refusal::Wrong(reason("setsockopt", errno)))?;
                return Ok(stream.into());
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                refused = format!("nobody listens at {address}");
            }
            Err(error) => refused = format!("connecting to {address}: {error}"),
        }
    }
    Err(Refusal::Absent(refused))
}

/// The addresses of a host. The system's call has no deadline, so it runs on a thread that is left alone if it is late.
fn resolve(host: &str, port: u16, timeout: Duration) -> Result<Vec<SocketAddr>, String> {
    let (sender, receiver) = mpsc::channel();
    let name = host.to_owned();
    let lookup = move || {
        let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect);
        // Nobody receives it after the deadline.
        let _ = sender.send(found);
    };
    let thread = std::thread::Builder::new().name("campanile-resolve".to_owned()).spawn(lookup);
    thread.map_err(|error| format!("spawning a thread: {error}"))?;
    match receiver.recv_timeout(timeout) {
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(error)) => Err(format!("looking up {host:?}: {error}")),
        Err(_) => Err(format!("looking up {host:?}: no answer within {timeout:.1?}")),
    }
}
