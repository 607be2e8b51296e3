//! Messages between processes of one user on one machine, each with at most one file descriptor: [`Listener`],
//! [`Channel`].
//!
//! **Model.** A connected `SOCK_SEQPACKET` Unix socket: reliable, in order, message boundaries kept. A [`Listener`]
//! has an unguessable name in the abstract namespace, which is no file, so nothing stays behind; its owner gives the
//! name to its peers by any means. Control plane only: payload goes through
//! [`SharedMemory`](crate::memory::SharedMemory).
//!
//! **Invariants.**
//! - Both ends run as the same user: [`Listener::accept`] and [`Channel::connect`] read the peer's uid from the kernel
//!   (`SO_PEERCRED`) before a byte is exchanged, and refuse another one. The abstract namespace has no permissions.
//! - Every wait has a deadline. A wait for a peer that has died ends at once.
//! - Descriptors are close-on-exec, and so are those received.
//!
//! **A dead peer** shows in two ways. Its end of the socket is closed (hang-up), also when it was a thread that
//! dropped its channel; but a process that it forked before may hold a copy of that end. So a peer that is another
//! process is also watched through a pidfd, which tells its death whoever keeps its sockets. The pidfd is that of the
//! process that connected or listened; a channel made by [`Channel::pair`] has none.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use rustix::process::{Pid, Uid};

use crate::poll::{left, poll_until};
use crate::process::{Pidfd, ProcessError};

/// The largest message, in bytes. Far below the kernel's send buffer (`net.core.wmem_default`, 208 KiB).
pub const MAX_MESSAGE: usize = 64 << 10;

/// What [`Channel::recv`] returns: the bytes, and the descriptor that came with them.
pub type Message = (Vec<u8>, Option<OwnedFd>);

/// Why a channel could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The deadline passed first.
    #[error("{operation}: nothing from the peer{} before the deadline", named(.peer))]
    Timeout {
        /// What was waited for.
        operation: &'static str,
        /// The peer's process, where known.
        peer: Option<u32>,
    },
    /// The peer has died or closed its end.
    #[error("{operation}: the peer{} has died or closed its end of the channel", named(.peer))]
    Gone {
        /// What was tried.
        operation: &'static str,
        /// The peer's process, where known.
        peer: Option<u32>,
    },
    /// Nobody listens at the address.
    #[error(
        "nobody listens at the abstract address \"{}\"; its owner has gone, or lives in another network namespace",
        .address.escape_ascii()
    )]
    Refused {
        /// The address that was given.
        address: Vec<u8>,
    },
    /// The address cannot be one.
    #[error(
        "\"{}\" ({} bytes) is no abstract address; one has 1 to 107 bytes, as Listener::address gives",
        .address.escape_ascii(), .address.len()
    )]
    Address {
        /// The address that was given.
        address: Vec<u8>,
    },
    /// The peer runs as another user.
    #[error("the peer{} runs as uid {found}; only uid {expected}, ours, may connect", named(.peer))]
    User {
        /// The peer's uid.
        found: u32,
        /// Ours.
        expected: u32,
        /// The peer's process, where known.
        peer: Option<u32>,
    },
    /// A descriptor that came with a message could not be taken.
    #[error(
        "a descriptor from the peer{} was lost: this process has no descriptor free; raise the limit on open files \
         (ulimit -n) or use fewer ranks and windows",
        named(.peer)
    )]
    Descriptors {
        /// The peer's process, where known.
        peer: Option<u32>,
    },
    /// The message is empty or too long.
    #[error("a message of {bytes} bytes cannot be sent; 1 to {MAX_MESSAGE} bytes can")]
    Length {
        /// Bytes given.
        bytes: usize,
    },
    /// More came than a message may carry, or a descriptor that this process has no number left for. It is lost.
    #[error(
        "a message of the peer{} was lost in part: one may carry {MAX_MESSAGE} bytes and one descriptor, and this \
         process must be able to open one more (ulimit -n)", named(.peer)
    )]
    Truncated {
        /// The peer's process, where known.
        peer: Option<u32>,
    },
    /// The operating system refused.
    #[error("{operation} failed: {source}")]
    System {
        /// What was done.
        operation: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

fn named(peer: &Option<u32>) -> String {
    peer.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

fn system(operation: &'static str) -> impl Fn(Errno) -> ChannelError {
    move |errno| ChannelError::System { operation, source: errno.into() }
}

/// Waits for peers at an address of its own. Dropping it frees the address.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    address: Vec<u8>,
}

impl Listener {
    /// Listens at a new random address (128 random bits in hexadecimal).
    ///
    /// # Errors
    /// [`ChannelError::System`].
    pub fn bind() -> Result<Self, ChannelError> {
        let mut random = [0_u8; 16];
        // Up to 256 bytes never come short once the kernel's generator is seeded.
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(system("getrandom"))?;
        let address = format!("campanile-{:032x}", u128::from_ne_bytes(random)).into_bytes();

        let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::net::bind(&socket, &unix_address(&address)?).map_err(system("bind"))?;
        // The kernel cuts this down to net.core.somaxconn.
        rustix::net::listen(&socket, i32::MAX).map_err(system("listen"))?;
        Ok(Self { socket, address })
    }

    /// The name in the abstract namespace, without the NUL in front: printable ASCII. For [`Channel::connect`] in any
    /// process of the same user and network namespace.
    #[must_use]
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// The next peer. Peers of other users are turned away, with a warning in the log, and the wait goes on; so are
    /// peers that died while they were queued.
    ///
    /// # Errors
    /// [`ChannelError::Timeout`], [`ChannelError::System`].
    pub fn accept(&self, deadline: Instant) -> Result<Channel, ChannelError> {
        const ACCEPT: &str = "accepting a peer";
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => match Channel::checked(socket, rustix::process::geteuid()) {
                    Ok(channel) => return Ok(channel),
                    Err(error @ (ChannelError::User { .. } | ChannelError::Gone { .. })) => {
                        tracing::warn!(%error, "turned a peer away");
                    }
                    Err(error) => return Err(error),
                },
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => {
                    let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
                    if !poll_until(&mut fds, deadline).map_err(system("poll"))? {
                        return Err(ChannelError::Timeout { operation: ACCEPT, peer: None });
                    }
                }
                Err(errno) => return Err(system(ACCEPT)(errno)),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One end of a connection: see the [module](self). Any thread may send and receive; a message is one piece for all.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    peer: Option<Pid>,
    /// Readable once the peer's process has died. `None` for a peer in this process, and where the kernel gives none.
    pidfd: Option<Pidfd>,
}

impl Channel {
    /// Connects to a [`Listener`], which need not have accepted yet.
    ///
    /// # Errors
    /// [`ChannelError::Refused`] if nobody listens there (it is not waited for), [`ChannelError::User`],
    /// [`ChannelError::Address`], [`ChannelError::Timeout`] if the queue of the listener stays full,
    /// [`ChannelError::System`].
    pub fn connect(address: &[u8], deadline: Instant) -> Result<Self, ChannelError> {
        const CONNECT: &str = "connecting";
        let name = unix_address(address)?;
        let socket = socket(SocketFlags::CLOEXEC)?;
        loop {
            // A full queue cannot be polled for; a blocking connect waits for it as long as a send may take.
            // A timeout of 0 would mean none.
            let timeout = left(deadline).max(Duration::from_millis(1));
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))
                .map_err(system("setting the connection's timeout"))?;
            match rustix::net::connect(&socket, &name) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if left(deadline).is_zero() => {
                    return Err(ChannelError::Timeout { operation: CONNECT, peer: None });
                }
                Err(Errno::AGAIN) => {}
                Err(Errno::CONNREFUSED) => {
                    return Err(ChannelError::Refused { address: address.to_owned() });
                }
                Err(errno) => return Err(system(CONNECT)(errno)),
            }
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(system("ioctl(FIONBIO)"))?;
        Self::checked(socket, rustix::process::geteuid())
    }

    /// Two connected ends, for threads of one process, or for a child that inherits one. Neither watches a process.
    ///
    /// # Errors
    /// [`ChannelError::System`].
    pub fn pair() -> Result<(Self, Self), ChannelError> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(system("socketpair"))?;
        let user = rustix::process::geteuid();
        Ok((Self::checked(one, user)?, Self::checked(other, user)?))
    }

    /// A channel of a connected socket whose peer is `user`.
    fn checked(socket: OwnedFd, user: Uid) -> Result<Self, ChannelError> {
        // Not by rustix, whose pid cannot be 0: that is the pid of a peer in a pid namespace that we cannot see.
        let credentials: libc::ucred =
            socket_option(socket.as_fd(), libc::SO_PEERCRED).map_err(system("reading the peer's credentials"))?;
        let peer = Pid::from_raw(credentials.pid);
        if credentials.uid != user.as_raw() {
            return Err(ChannelError::User {
                found: credentials.uid,
                expected: user.as_raw(),
                peer: peer.map(pid_u32),
            });
        }
        let pidfd = match peer {
            Some(pid) if pid == rustix::process::getpid() => None,
            _ => peer_pidfd(socket.as_fd(), peer)?,
        };
        Ok(Self { socket, peer, pidfd })
    }

    /// Sends one message of 1 to [`MAX_MESSAGE`] bytes, with a copy of `fd` if given. Waits until `deadline` for room
    /// in the send buffer.
    ///
    /// # Errors
    /// [`ChannelError::Length`], [`ChannelError::Gone`], [`ChannelError::Timeout`], [`ChannelError::System`].
    pub fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>, deadline: Instant) -> Result<(), ChannelError> {
        const SEND: &str = "sending a message";
        if bytes.is_empty() || bytes.len() > MAX_MESSAGE {
            return Err(ChannelError::Length { bytes: bytes.len() });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd]);
        if let Some(fds) = &fds {
            let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
            debug_assert!(pushed, "the space is that of one descriptor");
        }
        let slices = [IoSlice::new(bytes)];
        loop {
            // NOSIGNAL: a closed peer is an error, not a SIGPIPE.
            match rustix::net::sendmsg(&self.socket, &slices, &mut control, SendFlags::NOSIGNAL) {
                // SEQPACKET sends all or nothing.
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, SEND, deadline)?,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(self.gone(SEND)),
                Err(errno) => return Err(system(SEND)(errno)),
            }
        }
    }

    /// The next message, and the descriptor that came with it. What a peer sent before it died is still received.
    ///
    /// # Errors
    /// [`ChannelError::Gone`], [`ChannelError::Timeout`], [`ChannelError::Truncated`], [`ChannelError::Descriptors`],
    /// [`ChannelError::System`].
    pub fn recv(&self, deadline: Instant) -> Result<Message, ChannelError> {
        const RECV: &str = "receiving a message";
        let mut dead = false;
        loop {
            match self.try_recv(RECV) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) if dead => return Err(self.gone(RECV)),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
            // A peer that died between our look and the wait may have sent before: look once more.
            match self.wait(PollFlags::IN, RECV, deadline) {
                Err(ChannelError::Gone { .. }) => dead = true,
                result => result?,
            }
        }
    }

    /// A message that is there, or `None`.
    fn try_recv(&self, operation: &'static str) -> Result<Option<Message>, ChannelError> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.socket, &mut slices, &mut control, flags) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(self.gone(operation)),
                Err(errno) => return Err(system(operation)(errno)),
            }
        };
        let mut fds = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect::<Vec<OwnedFd>>();
        let fd = fds.pop();
        // The control buffer has room for one: without any, the kernel had no number to give it.
        if received.flags.contains(ReturnFlags::CTRUNC) && fd.is_none() {
            return Err(ChannelError::Descriptors { peer: self.peer_pid() });
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || !fds.is_empty() {
            return Err(ChannelError::Truncated { peer: self.peer_pid() });
        }
        if received.bytes == 0 {
            // No message is empty: this is the end.
            return Err(self.gone(operation));
        }
        bytes.truncate(received.bytes);
        bytes.shrink_to_fit();
        Ok(Some((bytes, fd)))
    }

    /// Whether the peer has died or closed its end. Never blocks; one system call.
    #[must_use]
    pub fn peer_gone(&self) -> bool {
        let mut fds = [
            PollFd::new(&self.socket, PollFlags::empty()),
            PollFd::from_borrowed_fd(self.pidfd_or_socket(), PollFlags::IN),
        ];
        let fds = &mut fds[..1 + usize::from(self.pidfd.is_some())];
        // A deadline that has passed: one look. An error is the kernel's lack of memory, not a sign of the peer.
        if poll_until(fds, Instant::now()).is_err() {
            return false;
        }
        fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
            || fds.get(1).is_some_and(|fd| !fd.revents().is_empty())
    }

    /// The process that made the other end: who connected, listened, or called [`pair`](Self::pair). `None` if it
    /// lives in a pid namespace that we cannot see.
    #[must_use]
    pub fn peer_pid(&self) -> Option<u32> {
        self.peer.map(pid_u32)
    }

    /// Waits for `events` of the socket. A dead peer is [`ChannelError::Gone`]; but the socket's events come first.
    fn wait(&self, events: PollFlags, operation: &'static str, deadline: Instant) -> Result<(), ChannelError> {
        let mut fds =
            [PollFd::new(&self.socket, events), PollFd::from_borrowed_fd(self.pidfd_or_socket(), PollFlags::IN)];
        let fds = &mut fds[..1 + usize::from(self.pidfd.is_some())];
        if !poll_until(fds, deadline).map_err(system("poll"))? {
            return Err(ChannelError::Timeout { operation, peer: self.peer_pid() });
        }
        if fds[0].revents().is_empty() {
            return Err(self.gone(operation));
        }
        Ok(())
    }

    /// The pidfd, or a stand-in that is not polled.
    fn pidfd_or_socket(&self) -> BorrowedFd<'_> {
        match &self.pidfd {
            Some(pidfd) => pidfd.as_fd(),
            None => self.socket.as_fd(),
        }
    }

    fn gone(&self, operation: &'static str) -> ChannelError {
        ChannelError::Gone { operation, peer: self.peer_pid() }
    }
}

impl AsFd for Channel {
    /// For an event loop: readable when a message has come or the peer has closed. It does not tell of a peer that died
    /// while a child of it keeps the socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn pid_u32(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, ChannelError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(system("socket"))
}

fn unix_address(address: &[u8]) -> Result<SocketAddrUnix, ChannelError> {
    let refused = || ChannelError::Address { address: address.to_owned() };
    // An empty name would let the kernel choose one.
    if address.is_empty() {
        return Err(refused());
    }
    SocketAddrUnix::new_abstract_name(address).map_err(|_| refused())
}

/// A pidfd of the peer, from the socket itself (Linux 6.5), else from its pid.
///
/// The pid may have died by then and been given to another process. Its end of the socket has then hung up, which
/// tells; only if a child of it holds a copy as well is the wrong process watched, and the peer's death not noticed.
///
/// `None` where the kernel gives neither (before 5.3, or by seccomp): then only a hang-up tells.
fn peer_pidfd(socket: BorrowedFd<'_>, peer: Option<Pid>) -> Result<Option<Pidfd>, ChannelError> {
    if let Some(pidfd) = socket_pidfd(socket) {
        return Ok(Some(pidfd));
    }
    let Some(pid) = peer else { return Ok(None) };
    match Pidfd::open(pid_u32(pid)) {
        Ok(pidfd) => Ok(Some(pidfd)),
        Err(ProcessError::NotFound { pid }) => {
            Err(ChannelError::Gone { operation: "opening a channel", peer: Some(pid) })
        }
        Err(error) => {
            tracing::debug!(%error, "the peer's death will show only as a hang-up");
            Ok(None)
        }
    }
}

/// The peer's pidfd from the socket, by an option of Linux 6.5 that rustix has no name for, nor libc for every target.
fn socket_pidfd(socket: BorrowedFd<'_>) -> Option<Pidfd> {
    /// As in the kernel's `asm-generic/socket.h`, which x86_64 and aarch64 use.
    const SO_PEERPIDFD: libc::c_int = 77;
    let fd: RawFd = socket_option(socket, SO_PEERPIDFD).ok()?;
    // SAFETY: the kernel has just made this descriptor, and nobody else owns it.
    (fd >= 0).then(|| Pidfd::from_fd(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// What an option of a socket can be read into: plain C data.
trait OptionValue: Copy {}
impl OptionValue for RawFd {}
impl OptionValue for libc::ucred {}

/// `getsockopt(SOL_SOCKET, option)`.
fn socket_option<T: OptionValue>(socket: BorrowedFd<'_>, option: libc::c_int) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointers are valid for the value's `len` bytes and for the length.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value.as_mut_ptr().cast(), &raw mut len)
    };
    if result != 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    // SAFETY: integers and structs of integers: any bytes are a value, and those that the kernel left are zero.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_of_another_user_is_refused_by_name() {
        let (one, _other) = Channel::pair().expect("a socket pair");
        let us = rustix::process::geteuid();
        let another = Uid::from_raw(us.as_raw() ^ 1);
        let error = Channel::checked(one.socket, another).expect_err("the peer is ourselves");
        let ChannelError::User { found, expected, peer } = error else {
            panic!("{error:?}");
        };
        assert_eq!((found, expected, peer), (us.as_raw(), another.as_raw(), Some(std::process::id())));
    }
}
