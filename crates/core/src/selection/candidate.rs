//! Candidates: transports and what they say of themselves, as plain data.

use crate::{Caps, MemoryKind, Node, OpKind, PeerClass, Probed, Rank, Reach};

/// A peer, as this rank sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who.
    pub rank: Rank,
    /// The machine that it runs on.
    pub node: Node,
    /// How far away.
    pub class: PeerClass,
}

impl Peer {
    /// All ranks, of which `nodes` are the machines, as `rank` sees them; it sees them all as remote if it is not one
    /// of them.
    pub fn seen_from(rank: Rank, nodes: impl IntoIterator<Item = Node>) -> Vec<Self> {
        let nodes: Vec<Node> = nodes.into_iter().collect();
        let here = nodes.get(rank.index()).cloned();
        let peer = |(index, node): (usize, Node)| {
            let class = match &here {
                _ if index == rank.index() => PeerClass::Own,
                Some(here) if *here == node => PeerClass::Node,
                _ => PeerClass::Remote,
            };
            Self { rank: Rank::new(index), node, class }
        };
        nodes.into_iter().enumerate().map(peer).collect()
    }
}

/// A transport and what it says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    transport: String,
    devices: Vec<Probed>,
    said: Result<Vec<Said>, String>,
}

/// What an opened transport says of one peer.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    peer: Rank,
    reach: Reach,
    /// What it can do, and nothing else.
    caps: Vec<(MemoryKind, OpKind, Caps)>,
}

impl Candidate {
    /// An opened one, asked about every peer, and about every operation on every memory of that peer.
    pub fn opened(
        transport: impl Into<String>,
        peers: &[Peer],
        memories: &[MemoryKind],
        reach: impl Fn(&Peer) -> Reach,
        caps: impl Fn(PeerClass, MemoryKind, OpKind) -> Option<Caps>,
    ) -> Self {
        let asked = || memories.iter().flat_map(|&memory| OpKind::ALL.map(|op| (memory, op)));
        let said = |peer: &Peer| Said {
            peer: peer.rank,
            reach: reach(peer),
            caps: asked().filter_map(|(memory, op)| Some((memory, op, caps(peer.class, memory, op)?))).collect(),
        };
        let said = Ok(peers.iter().map(said).collect());
        Self { transport: transport.into(), devices: Vec::new(), said }
    }

    /// One that cannot be used, and why.
    pub fn unusable(transport: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { transport: transport.into(), devices: Vec::new(), said: Err(reason.into()) }
    }

    /// With the devices that it could use or could not.
    #[must_use]
    pub fn with_devices(self, devices: Vec<Probed>) -> Self {
        Self { devices, ..self }
    }

    /// Name of the transport.
    pub fn transport(&self) -> &str {
        &self.transport
    }

    /// Its devices, and a reason for each that was left out.
    pub fn devices(&self) -> &[Probed] {
        &self.devices
    }

    /// Whether it reaches a peer; `Err` if it cannot be used at all.
    pub(super) fn reach(&self, peer: Rank) -> Result<&Reach, String> {
        Ok(&self.said(peer)?.reach)
    }

    /// What it gives, `None` if it cannot do it; `Err` if it cannot be used at all.
    pub(super) fn caps(&self, peer: Rank, memory: MemoryKind, op: OpKind) -> Result<Option<Caps>, String> {
        let of = |(its_memory, its_op, _): &&(MemoryKind, OpKind, Caps)| (*its_memory, *its_op) == (memory, op);
        Ok(self.said(peer)?.caps.iter().find(of).map(|(_, _, caps)| *caps))
    }

    fn said(&self, peer: Rank) -> Result<&Said, String> {
        let said = self.said.as_ref().map_err(Clone::clone)?;
        said.iter().find(|said| said.peer == peer).ok_or_else(|| format!("it was not asked about {peer}"))
    }
}
