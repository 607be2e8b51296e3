//! The hand-shake of two ranks: a channel, and each other's control block.
//!
//! Every rank listens; the higher rank of a pair connects to the lower. Both then send one hello, {magic, rank,
//! token}, with their control block's descriptor. The token was drawn by the listener and is part of its address, so a
//! stranger of the same user that guesses the socket cannot pass for a rank.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use campanile_core::{ControlError, Endpoint, PeerClass, Pending, Rank};
use campanile_host::channel::{Channel, ChannelError};
use campanile_host::memory::SharedMemory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::{CONTROL_BYTES, Control};
use crate::transport::{Inner, Peer};

const MAGIC: [u8; 8] = *b"campshm1";
const HELLO_BYTES: usize = 20;

/// The address of a rank: its token, then its socket.
pub(crate) fn pack_address(token: u64, socket: &[u8]) -> Vec<u8> {
    [&token.to_le_bytes(), socket].concat()
}

fn unpack_address(address: &[u8]) -> Option<(u64, &[u8])> {
    let (token, socket) = address.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*token), socket))
}

fn hello(rank: Rank, token: u64) -> [u8; HELLO_BYTES] {
    let mut message = [0; HELLO_BYTES];
    message[..8].copy_from_slice(&MAGIC);
    message[8..12].copy_from_slice(&rank.0.to_le_bytes());
    message[12..].copy_from_slice(&token.to_le_bytes());
    message
}

fn parse_hello(message: &[u8], token: u64) -> Option<Rank> {
    let message: &[u8; HELLO_BYTES] = message.try_into().ok()?;
    let rank = u32::from_le_bytes(message[8..12].try_into().expect("4 bytes"));
    let theirs = u64::from_le_bytes(message[12..].try_into().expect("8 bytes"));
    (message[..8] == MAGIC && theirs == token).then_some(Rank(rank))
}

/// A connect that goes on: lower ranks are connected to, higher ones come to us.
pub(crate) struct Connecting {
    inner: Arc<Inner>,
    /// Those that we connect to and have not heard from, with the channel once there is one.
    outgoing: Vec<(Rank, Vec<u8>, Option<Channel>)>,
    /// Those that will come to us.
    incoming: Vec<Rank>,
    /// Accepted, but no hello yet.
    strangers: Vec<Channel>,
    connected: Vec<(Rank, Peer)>,
}

impl Connecting {
    pub(crate) fn new(inner: Arc<Inner>, peers: &[(Rank, Vec<u8>)]) -> Self {
        let me = inner.rank();
        let outgoing = peers.iter().filter(|(peer, _)| *peer < me).map(|(peer, a)| (*peer, a.clone(), None)).collect();
        let incoming = peers.iter().map(|(peer, _)| *peer).filter(|peer| *peer > me).collect();
        Self { inner, outgoing, incoming, strangers: Vec::new(), connected: Vec::new() }
    }

    fn say_hello(&self, channel: &Channel, token: u64) -> Result<(), ChannelError> {
        let control = self.inner.own_control();
        // The first message into an empty socket: there is room.
        channel.send(&hello(self.inner.rank(), token), Some(control.memory().fd()), Instant::now())
    }

    /// Connects, greets, and reads the answers that are there.
    fn go_out(&mut self, deadline: Instant) -> Result<(), ControlError> {
        let mut waiting = Vec::new();
        for (peer, address, channel) in std::mem::take(&mut self.outgoing) {
            let bad = |reason: &str| ControlError::BadPeerData { peer, what: "address", reason: reason.to_owned() };
            let (token, socket) = unpack_address(&address).ok_or_else(|| bad("it is shorter than a token"))?;
            let channel = match channel {
                Some(channel) => channel,
                None => match Channel::connect(socket, deadline) {
                    Ok(channel) => {
                        self.say_hello(&channel, token).map_err(|error| system(peer, &error))?;
                        channel
                    }
                    Err(ChannelError::Timeout { .. }) => {
                        waiting.push((peer, address, None));
                        continue;
                    }
                    Err(error) => return Err(system(peer, &error)),
                },
            };
            match channel.recv(deadline) {
                Ok((message, fd)) => {
                    let from = parse_hello(&message, token).filter(|from| *from == peer);
                    let fd = fd.filter(|_| from.is_some()).ok_or_else(|| bad("its hello is not one"))?;
                    self.connected.push((peer, peer_of(peer, channel, fd)?));
                }
                Err(ChannelError::Timeout { .. }) => waiting.push((peer, address, Some(channel))),
                Err(error) => return Err(system(peer, &error)),
            }
        }
        self.outgoing = waiting;
        Ok(())
    }

    /// Accepts who comes, and answers the hellos that are there.
    fn let_in(&mut self, deadline: Instant) -> Result<(), ControlError> {
        if !self.incoming.is_empty() && self.strangers.is_empty() {
            match self.inner.listener().accept(deadline) {
                Ok(channel) => self.strangers.push(channel),
                // A refused user or a stranger that left is nobody we wait for.
                Err(ChannelError::Timeout { .. } | ChannelError::User { .. } | ChannelError::Gone { .. }) => {}
                Err(error) => return Err(system(self.inner.rank(), &error)),
            }
        }
        for channel in std::mem::take(&mut self.strangers) {
            match channel.recv(deadline) {
                Ok((message, Some(fd))) => {
                    let Some(peer) = parse_hello(&message, self.inner.token()) else { continue };
                    let Some(position) = self.incoming.iter().position(|other| *other == peer) else { continue };
                    self.say_hello(&channel, self.inner.token()).map_err(|error| system(peer, &error))?;
                    self.incoming.swap_remove(position);
                    self.connected.push((peer, peer_of(peer, channel, fd)?));
                }
                Err(ChannelError::Timeout { .. }) => self.strangers.push(channel),
                Err(error @ (ChannelError::Descriptors { .. } | ChannelError::System { .. })) => {
                    return Err(system(self.inner.rank(), &error));
                }
                // Not a rank of ours: the channel is dropped.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }
}

fn system(peer: Rank, error: &ChannelError) -> ControlError {
    match error {
        ChannelError::Gone { .. } | ChannelError::Refused { .. } => {
            ControlError::PeerGone { peer, what: format!("connecting to it ({error})") }
        }
        error => ControlError::System { what: format!("connecting to {peer}"), reason: error.to_string() },
    }
}

fn peer_of(peer: Rank, channel: Channel, fd: OwnedFd) -> Result<Peer, ControlError> {
    let memory = SharedMemory::open(fd, CONTROL_BYTES).map_err(|error| ControlError::BadPeerData {
        peer,
        what: "control block",
        reason: error.to_string(),
    })?;
    Ok(Peer::new(Control::new(memory), Some(channel)))
}

impl Pending<Vec<Endpoint>> for Connecting {
    fn test(&mut self) -> Option<Result<Vec<Endpoint>, ControlError>> {
        let now = Instant::now();
        if let Err(error) = self.go_out(now).and_then(|()| self.let_in(now)) {
            return Some(Err(error));
        }
        if !self.outgoing.is_empty() || !self.incoming.is_empty() {
            return None;
        }
        let own = self.inner.rank();
        self.connected.push((own, Peer::new(self.inner.own_control().clone(), None)));
        self.connected.sort_by_key(|(peer, _)| *peer);
        let endpoint = |(peer, _): &(Rank, Peer)| Endpoint {
            peer: *peer,
            class: if *peer == own { PeerClass::Own } else { PeerClass::Node },
        };
        let endpoints = self.connected.iter().map(endpoint).collect();
        Some(self.inner.set_peers(std::mem::take(&mut self.connected)).map(|()| endpoints))
    }

    fn park(&mut self, timeout: Duration) {
        let channels = self.outgoing.iter().filter_map(|(_, _, channel)| channel.as_ref()).chain(&self.strangers);
        let mut fds: Vec<_> = channels.map(|channel| PollFd::new(channel, PollFlags::IN)).collect();
        if !self.incoming.is_empty() {
            fds.push(PollFd::new(self.inner.listener(), PollFlags::IN));
        }
        // A full backlog of a peer that we connect to has no event here: it is tried again after a slice.
        let unconnected = self.outgoing.iter().any(|(_, _, channel)| channel.is_none());
        let timeout = if unconnected { timeout.min(Duration::from_millis(2)) } else { timeout };
        // An interrupted or refused poll only means that the next test comes early.
        let _ = poll(&mut fds, Timespec::try_from(timeout).ok().as_ref());
    }

    fn describe(&self) -> String {
        let missing = self.outgoing.iter().map(|(peer, _, _)| peer).chain(&self.incoming);
        let missing: Vec<_> = missing.map(ToString::to_string).collect();
        format!("{}: connecting {} to {}", self.inner.name(), self.inner.rank(), missing.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_with_another_token_is_refused() {
        let message = hello(Rank(3), 42);
        assert_eq!(parse_hello(&message, 42), Some(Rank(3)));
        assert_eq!(parse_hello(&message, 43), None);
        assert_eq!(parse_hello(&message[..19], 42), None);
        let mut other = message;
        other[0] ^= 1;
        assert_eq!(parse_hello(&other, 42), None);
    }
}
