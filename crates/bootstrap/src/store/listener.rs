//! Sockets that a store listens at, and who may connect to them.
//!
//! **Trust.** On a Unix socket a peer must run as the same user. TCP has no such thing: as with torch's store, whoever
//! reaches the port is trusted. So the store listens only at what its host name stands for, which is the loopback
//! interface for a job on one machine, and a network of hosts that are not trusted is no place for it.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, sockopt};

use super::address::Address;

/// The sockets of one address: a host name may stand for several.
#[derive(Debug)]
pub(crate) struct Listener {
    sockets: Vec<OwnedFd>,
    is_tcp: bool,
}

impl Listener {
    /// Listens at `address`: at every one of this machine's that its host name stands for. Where that is the loopback
    /// interface alone, as some machines have it for their own name, and the job is not on `one_node`, the other nodes
    /// could not connect, so it listens at all interfaces.
    pub(crate) fn bind(address: &Address, one_node: bool) -> io::Result<Self> {
        let (host, port) = match address {
            Address::Abstract(name) => {
                let name = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                let listener = UnixListener::bind_addr(&name)?;
                listener.set_nonblocking(true)?;
                return Ok(Self { sockets: vec![listener.into()], is_tcp: false });
            }
            Address::Tcp { host, port } => (host.as_str(), *port),
        };
        let mut addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
        if !one_node && addresses.iter().all(|address| address.ip().is_loopback()) {
            // The second where there is no IPv6; where there is, the first has taken the port for both.
            addresses = ["::", "0.0.0.0"].into_iter().flat_map(|all| (all, port).to_socket_addrs()).flatten().collect();
            return Self::bind_tcp(&addresses).or_else(|_| Self::bind_tcp(&addresses[1..]));
        }
        addresses.sort_unstable();
        addresses.dedup();
        Self::bind_tcp(&addresses)
    }

    /// Listens at those addresses that this machine has.
    fn bind_tcp(addresses: &[SocketAddr]) -> io::Result<Self> {
        let mut sockets: Vec<OwnedFd> = Vec::new();
        let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpListener::bind(address) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    sockets.push(listener.into());
                    if address.ip().is_unspecified() || address.port() == 0 {
                        break;
                    }
                }
                // Somebody else's, then, whatever the other addresses are.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
                Err(error) => refused = error,
            }
        }
        if sockets.is_empty() { Err(refused) } else { Ok(Self { sockets, is_tcp: true }) }
    }

    /// The sockets.
    pub(super) fn sockets(&self) -> &[OwnedFd] {
        &self.sockets
    }

    /// Listens no more: whoever connects is refused, and the address is free. Closing alone would not do: a child of this
    /// process may hold copies of the sockets, for the time between fork and exec at least.
    pub(super) fn close(&mut self) {
        for socket in self.sockets.drain(..) {
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
    }

    /// The address to connect to: the one that was asked for, with the port that there is.
    pub(super) fn address(&self, asked: &Address) -> io::Result<Address> {
        let Address::Tcp { host, port: 0 } = asked else { return Ok(asked.clone()) };
        let bound = rustix::net::getsockname(&self.sockets[0])?;
        let bound = SocketAddr::try_from(bound)?;
        Ok(Address::Tcp { host: host.clone(), port: bound.port() })
    }

    /// The next connection to a socket; the reason, if it is turned away.
    pub(super) fn accept(&self, socket: usize) -> Result<Result<OwnedFd, String>, Errno> {
        let stream = accept_with(&self.sockets[socket], SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        let checked = if self.is_tcp {
            keep_alive(&stream).map_err(|errno| format!("setsockopt: {errno}"))
        } else {
            same_user(&stream)
        };
        Ok(checked.map(|()| stream))
    }
}

/// Makes sure that the peer of a Unix socket runs as our user.
pub(super) fn same_user(stream: impl AsFd) -> Result<(), String> {
    let peer = sockopt::socket_peercred(stream).map_err(|errno| format!("SO_PEERCRED: {errno}"))?;
    let ours = rustix::process::geteuid();
    if peer.uid == ours {
        return Ok(());
    }
    let (theirs, ours) = (peer.uid.as_raw(), ours.as_raw());
    Err(format!("process {} there runs as uid {theirs}, not {ours} as we do", peer.pid))
}

/// Makes a dead host at the other end of a TCP connection an error within half a minute, instead of never; sends small
/// messages at once.
pub(super) fn keep_alive(stream: impl AsFd) -> Result<(), Errno> {
    let stream = stream.as_fd();
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_name_is_widened_only_for_a_job_on_several_machines() {
        let address = Address::Tcp { host: "localhost".to_owned(), port: 0 };
        for one_node in [true, false] {
            let listener = Listener::bind(&address, one_node).expect("some port is free");
            for socket in listener.sockets() {
                let bound = rustix::net::getsockname(socket).expect("it is bound");
                let bound = SocketAddr::try_from(bound).expect("an IP address").ip();
                assert_eq!((bound.is_loopback(), bound.is_unspecified()), (one_node, !one_node));
            }
        }
    }
}
