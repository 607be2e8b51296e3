//! Selection: which transport carries an operation to a peer, and by which way.
//!
//! **Model.** A [`Candidate`] is a transport and what it says of itself: its devices, whom it reaches, its caps. Three
//! steps, for each (peer, memory kind, operation, size): the *caps filter* drops what cannot do it, the *cost model*
//! ranks what is left, the *policy* ([`Policy`]) decides what may be used and in which order of preference. What comes
//! out is a table, a [`Row`] for each range of sizes that has one answer: what was chosen, what would be next, and why
//! each other candidate was rejected.
//!
//! A transport offers up to two ways ([`Way`]): load / store through a mapped pointer, and a queue. Their modelled time is
//! `latency + bytes / bandwidth`; a queue of a transport that also maps costs a post, a ring and a progress call more
//! ([`QUEUE_NS`]). An operation is no faster than what the transport says of the way to that peer.
//!
//! **Who uses it.** [`Communicator::select`](crate::Communicator::select) opens one transport for all its peers: the one
//! that reaches all of them on every rank, at the least cost, as all ranks compute it from the same offers. Inside it
//! each window asks for the way to each peer. The table is per peer from the start, so that a communicator that mixes
//! transports needs no other one; mixing comes with the network transports.
//!
//! **Invariants.** Pure: the same candidates and the same policy give the same table. Nothing is dropped without a
//! reason. What a [`Preference`] prints, it accepts.
//!
//! ```
//! use campanile_core::selection::{Candidate, Peer, Policy, Selection, Way};
//! use campanile_core::{AtomicityDomain, Caps, Cost, MemoryKind, Node, OpKind, Rank, Reach, SignalCaps};
//!
//! let domain = AtomicityDomain::Cpu;
//! let signal = SignalCaps { bits: 64, set: true, add: true, native_strong: true, domain, target_progress: false };
//! let cost = Cost { latency_ns: 200.0, bytes_per_ns: 8.0 };
//! let (inline_bytes, max_bytes) = (32, 1 << 30);
//! let caps = Caps { load_store: true, ordered_puts: true, inline_bytes, max_bytes, alignment: 1, signal, cost };
//!
//! let peers = Peer::seen_from(Rank(0), [Node::new("here"), Node::new("here")]);
//! let shm = Candidate::opened("shm", &peers, &[MemoryKind::Host], |_| Reach::Yes(cost), |_, _, _| Some(caps));
//! let table = Selection::new(&[shm], &peers, &[MemoryKind::Host], &Policy::default());
//!
//! let row = table.find(Rank(1), MemoryKind::Host, OpKind::Put, 4096).unwrap();
//! assert_eq!((&*row.ranked[0].transport, row.ranked[0].way), ("shm", Way::LoadStore));
//! assert_eq!(row.ranked[1].way, Way::Queue);
//! ```

mod agreement;
mod candidate;
mod cost;
mod opened;
mod policy;
mod preference;
mod way;

pub use agreement::choose;
pub(crate) use agreement::{Disagreement, Offer, agree};
pub use candidate::{Candidate, Peer};
pub use cost::QUEUE_NS;
pub use opened::Opened;
pub use policy::Policy;
pub use preference::Preference;
pub use way::Way;

use std::collections::BTreeSet;

use crate::{Caps, Cost, Inline, MemoryKind, OpKind, PeerClass, Rank, Reach};

/// The largest size at which costs are compared, in bytes; the answer is taken to hold for all larger ones.
pub const LARGEST: u64 = 1 << 40;

/// No memory has more bytes: where the range of a [`Row`] ends here, it has no end.
pub const UNBOUNDED: u64 = i64::MAX as u64;

/// Bits of a signal word that windows and collectives count on.
const SIGNAL_BITS: u32 = 64;

/// A way that can be used, with its modelled cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    /// Name of the transport.
    pub transport: String,
    /// The way.
    pub way: Way,
    /// What it costs.
    pub cost: Cost,
}

/// A candidate that cannot be used, or may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Name of the transport.
    pub transport: String,
    /// Which of its ways; `None` for both.
    pub way: Option<Way>,
    /// Why not.
    pub reason: String,
}

/// The answer for one range of sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// To whom.
    pub peer: Rank,
    /// How far away it is.
    pub class: PeerClass,
    /// Memory of both sides.
    pub memory: MemoryKind,
    /// The operation.
    pub op: OpKind,
    /// First and last size in bytes. Costs are compared at powers of two, so that where they cross the change is shown at the
    /// next one; limits of size are exact.
    pub bytes: [u64; 2],
    /// What can be used, best first; the first one is chosen. Empty: nothing can.
    pub ranked: Vec<Ranked>,
    /// What cannot.
    pub rejected: Vec<Rejected>,
}

/// The table.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    rows: Vec<Row>,
}

impl Selection {
    /// The table of all `peers`, `memories`, operations and sizes: by peer, memory, operation and size, in this order.
    /// The candidates were asked about the same peers and memories.
    pub fn new(candidates: &[Candidate], peers: &[Peer], memories: &[MemoryKind], policy: &Policy) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        for peer in peers {
            for &memory in memories {
                for op in OpKind::ALL {
                    for bytes in ranges(candidates, peer, memory, op) {
                        let answer = rank(candidates, peer, memory, op, bytes[0], policy);
                        let row = Row { bytes, ..answer };
                        match rows.last_mut().filter(|last| last.same_answer(&row)) {
                            Some(last) => last.bytes[1] = row.bytes[1],
                            None => rows.push(row),
                        }
                    }
                }
            }
        }
        Self { rows }
    }

    /// All rows.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The row that a size falls into; `None` for a peer or memory that the table is not of, and for more bytes than the
    /// operation can have.
    pub fn find(&self, peer: Rank, memory: MemoryKind, op: OpKind, bytes: u64) -> Option<&Row> {
        let of = |row: &&Row| (row.peer, row.memory, row.op) == (peer, memory, op);
        self.rows.iter().filter(of).find(|row| row.bytes[0] <= bytes && bytes <= row.bytes[1])
    }
}

impl Row {
    /// What is used, if anything can be.
    pub fn chosen(&self) -> Option<&Ranked> {
        self.ranked.first()
    }

    /// Why each candidate was rejected, for a table of one transport.
    fn reasons(&self) -> String {
        let reason = |rejected: &Rejected| match rejected.way {
            Some(way) => format!("{way}: {}", rejected.reason),
            None => rejected.reason.clone(),
        };
        self.rejected.iter().map(reason).collect::<Vec<_>>().join("; ")
    }

    fn same_answer(&self, other: &Self) -> bool {
        (self.peer, self.memory, self.op) == (other.peer, other.memory, other.op)
            && self.ranked == other.ranked
            && self.rejected == other.rejected
    }
}

/// First and last of the sizes that get one look, at the first: each starts at 0, at a power of two, or beyond a limit of
/// a candidate.
fn ranges(candidates: &[Candidate], peer: &Peer, memory: MemoryKind, op: OpKind) -> Vec<[u64; 2]> {
    let most = match op {
        OpKind::Put | OpKind::PutSignal | OpKind::Get => UNBOUNDED,
        OpKind::PutInline => Inline::MAX as u64,
        OpKind::Atomic => return vec![[8, 8]],
        OpKind::Fence => return vec![[0, 0]],
    };
    let limits = candidates.iter().filter_map(|it| it.caps(peer.rank, memory, op).ok().flatten());
    let beyond = limits.filter_map(|caps| largest(op, &caps).checked_add(1));
    let powers = (0..=LARGEST.ilog2()).map(|power| 1 << power);
    let starts: BTreeSet<u64> = powers.chain(beyond).chain([0]).filter(|start| *start <= most).collect();
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([most]);
    starts.iter().zip(ends).map(|(start, end)| [*start, end]).collect()
}

/// Most bytes of one operation. Puts and gets have no limit: the core splits what is too large for a transport.
fn largest(op: OpKind, caps: &Caps) -> u64 {
    if op == OpKind::PutInline { u64::from(caps.inline_bytes) } else { UNBOUNDED }
}

/// Caps filter, cost model and policy for one size.
fn rank(candidates: &[Candidate], peer: &Peer, memory: MemoryKind, op: OpKind, bytes: u64, policy: &Policy) -> Row {
    let mut ranked: Vec<(usize, Ranked)> = Vec::new();
    let mut rejected = Vec::new();
    for candidate in candidates {
        let transport = candidate.transport().to_owned();
        let able = policy.order_of(&transport).and_then(|order| Ok((order, able(candidate, peer, memory, op, bytes)?)));
        let (order, (caps, reach)) = match able {
            Ok(able) => able,
            Err(reason) => {
                rejected.push(Rejected { transport, way: None, reason });
                continue;
            }
        };
        for way in Way::ALL {
            match policy.allows(way).and_then(|()| cost::of(way, &caps, reach)) {
                Ok(cost) => ranked.push((order, Ranked { transport: transport.clone(), way, cost })),
                Err(reason) => rejected.push(Rejected { transport: transport.clone(), way: Some(way), reason }),
            }
        }
    }
    // Stable: of equal ones the first candidate stays first, load / store before the queue.
    ranked.sort_by(|(one, a), (other, b)| {
        one.cmp(other).then_with(|| a.cost.time_ns(bytes).total_cmp(&b.cost.time_ns(bytes)))
    });
    let ranked = ranked.into_iter().map(|(_, ranked)| ranked).collect();
    Row { peer: peer.rank, class: peer.class, memory, op, bytes: [bytes; 2], ranked, rejected }
}

/// The caps of a candidate that can do it and the cost of the way to the peer, or why it cannot.
fn able(
    candidate: &Candidate,
    peer: &Peer,
    memory: MemoryKind,
    op: OpKind,
    bytes: u64,
) -> Result<(Caps, Cost), String> {
    let reach = match candidate.reach(peer.rank)? {
        Reach::Yes(cost) => *cost,
        Reach::No(reason) => return Err(reason.clone()),
    };
    let caps = candidate.caps(peer.rank, memory, op)?;
    let caps = caps.ok_or_else(|| format!("it does not do that in {memory} memory"))?;
    if op == OpKind::PutSignal && caps.signal.bits < SIGNAL_BITS {
        return Err(format!("its signals have {} bits; windows need {SIGNAL_BITS}", caps.signal.bits));
    }
    let most = largest(op, &caps);
    if bytes > most {
        return Err(format!("at most {most} bytes in one operation"));
    }
    Ok((caps, reach))
}

/// The way of a window to a peer. A signal covers only puts that went the same way, so a window keeps to one for all
/// operations: the best one for a signal, whose latency somebody waits for. `Err` says why there is none.
pub(crate) fn window_way(
    candidate: &Candidate,
    peer: &Peer,
    memory: MemoryKind,
    policy: &Policy,
) -> Result<Way, String> {
    let row = rank(std::slice::from_ref(candidate), peer, memory, OpKind::PutSignal, 0, policy);
    row.chosen().map(|chosen| chosen.way).ok_or_else(|| row.reasons())
}
