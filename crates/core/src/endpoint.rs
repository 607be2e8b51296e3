//! Endpoints: connected peers.

use std::fmt;

use crate::Rank;

/// How far away a peer is, as caps see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerClass {
    /// This rank itself.
    Own,
    /// Another rank of the same node.
    Node,
    /// A rank of another node.
    Remote,
}

impl fmt::Display for PeerClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own",
            Self::Node => "node",
            Self::Remote => "remote",
        })
    }
}

/// One connected peer of one transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Who.
    pub peer: Rank,
    /// How far away.
    pub class: PeerClass,
}
