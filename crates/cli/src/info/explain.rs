//! The selection table, for people and as JSON.
//!
//! For people, rows that say the same are one block: operations with one answer, and peers with one table.

use std::fmt::Write;

use campanile::core::selection::{Policy, Ranked, Rejected, Row, Selection, UNBOUNDED, Way};
use campanile::core::{Cost, OpKind, PeerClass};
use serde::Serialize;

/// Which peers are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Peers {
    /// The rank itself
    Own,
    /// Ranks of this node
    Node,
    /// Ranks of other nodes
    Remote,
}

/// The rows of such peers, of all if there is no restriction.
pub fn rows(selection: &Selection, peers: Option<Peers>) -> Vec<&Row> {
    let shown = |class: PeerClass| match peers {
        None => true,
        Some(Peers::Own) => class == PeerClass::Own,
        Some(Peers::Node) => class == PeerClass::Node,
        Some(Peers::Remote) => class == PeerClass::Remote,
    };
    selection.rows().iter().filter(|row| shown(row.class)).collect()
}

/// The table for people.
pub fn text(policy: &Policy, communicator: &Result<String, String>, rows: &[&Row]) -> String {
    let mut text = format!("Selection with {policy}\n");
    text += &match communicator {
        Ok(transport) => format!("A communicator of the ranks on this node opens {transport} for all its peers.\n"),
        Err(_) => "No communicator of the ranks on this node can be made.\n".to_owned(),
    };
    let same_peer = |one: &&Row, other: &&Row| (one.peer, one.memory) == (other.peer, other.memory);
    let tables: Vec<&[&Row]> = rows.chunk_by(same_peer).collect();
    // A table is said once for all peers that have it; the order is that of the first of them.
    let mut said: Vec<(&[&Row], Vec<&Row>)> = Vec::new();
    for table in tables {
        match said.iter_mut().find(|(other, _)| same_answers(other, table)) {
            Some((_, peers)) => peers.push(table[0]),
            None => said.push((table, vec![table[0]])),
        }
    }
    for (table, peers) in said {
        write_table(&mut text, table, &peers);
    }
    text
}

fn same_answers(one: &[&Row], other: &[&Row]) -> bool {
    let key = |row: &&Row| (row.memory, row.op, row.bytes);
    one.iter().map(key).eq(other.iter().map(key)) && one.iter().zip(other).all(|(one, other)| same_answer(one, other))
}

fn same_answer(one: &Row, other: &Row) -> bool {
    one.ranked == other.ranked && one.rejected == other.rejected
}

/// Rows of one answer: operations by the sizes for which it is theirs, empty for all.
struct Block<'a> {
    what: Vec<(String, Vec<&'static str>)>,
    row: &'a Row,
}

impl Block<'_> {
    fn add(&mut self, sizes: String, op: &'static str) {
        match self.what.iter_mut().find(|(other, _)| *other == sizes) {
            Some((_, ops)) => ops.push(op),
            None => self.what.push((sizes, vec![op])),
        }
    }

    fn title(&self) -> String {
        let part = |(sizes, ops): &(String, Vec<&str>)| match ops.join(", ") {
            _ if ops.len() == OpKind::ALL.len() => "every operation".to_owned(),
            ops if sizes.is_empty() => ops,
            ops => format!("{ops} {sizes}"),
        };
        self.what.iter().map(part).collect::<Vec<_>>().join("; ")
    }
}

fn write_table(text: &mut String, table: &[&Row], peers: &[&Row]) {
    let of_class = |peers: &[&Row]| {
        let numbers: Vec<u32> = peers.iter().map(|row| row.peer.0).collect();
        match peers[0].class {
            PeerClass::Own => "this rank itself".to_owned(),
            PeerClass::Node => format!("{} of this node", ranks(&numbers)),
            _ => format!("{} of another node", ranks(&numbers)),
        }
    };
    let who: Vec<_> = peers.chunk_by(|one, other| one.class == other.class).map(of_class).collect();
    writeln!(text, "\nTo {}, {} memory", who.join(" and "), table[0].memory).expect("a string takes it");
    let mut blocks: Vec<Block> = Vec::new();
    for of_op in table.chunk_by(|one, other| one.op == other.op) {
        for row in of_op {
            let sizes = if of_op.len() == 1 { String::new() } else { sizes(row.bytes) };
            let block = match blocks.iter().position(|block| same_answer(block.row, row)) {
                Some(block) => block,
                None => {
                    blocks.push(Block { what: Vec::new(), row });
                    blocks.len() - 1
                }
            };
            blocks[block].add(sizes, row.op.name());
        }
    }
    for block in blocks {
        write_block(text, &block);
    }
}

fn write_block(text: &mut String, block: &Block<'_>) {
    let Row { ranked, rejected, .. } = block.row;
    writeln!(text, "  {}", block.title()).expect("a string takes it");
    let name = |transport: &str, way: Option<Way>| match way {
        Some(way) => format!("{transport} {way}"),
        None => transport.to_owned(),
    };
    let names = ranked.iter().map(|it| name(&it.transport, Some(it.way)));
    let names: Vec<_> = names.chain(rejected.iter().map(|it| name(&it.transport, it.way))).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    if ranked.is_empty() {
        text.push_str("    nothing can\n");
    }
    for (place, (ranked, name)) in ranked.iter().zip(&names).enumerate() {
        let label = if place == 0 { "chosen" } else { "then" };
        writeln!(text, "    {label:<8}  {name:<width$}  {}", cost(&ranked.cost)).expect("a string takes it");
    }
    for (rejected, name) in rejected.iter().zip(&names[ranked.len()..]) {
        writeln!(text, "    rejected  {name:<width$}  {}", rejected.reason).expect("a string takes it");
    }
}

/// `rank 1`, `ranks 1 to 3`, `ranks 1, 4`.
fn ranks(peers: &[u32]) -> String {
    match peers {
        [one] => format!("rank {one}"),
        [first, .., last] if (*first..=*last).eq(peers.iter().copied()) => format!("ranks {first} to {last}"),
        peers => format!("ranks {}", peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn cost(cost: &Cost) -> String {
    format!("{:.0} ns + bytes at {:.1} GB/s", cost.latency_ns, cost.bytes_per_ns)
}

/// A range of sizes in words. Ranges begin and end beside powers of two, but for odd limits.
fn sizes([first, last]: [u64; 2]) -> String {
    let lower = match first {
        0 => None,
        first if first > 2 && (first - 1).is_power_of_two() => Some(format!("above {}", size(first - 1))),
        first => Some(format!("from {}", size(first))),
    };
    let upper = match last {
        UNBOUNDED.. => None,
        last if (last + 1).is_power_of_two() => Some(format!("below {}", size(last + 1))),
        last => Some(format!("up to {}", size(last))),
    };
    lower.into_iter().chain(upper).collect::<Vec<_>>().join(" ")
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = if bytes == 0 { 0 } else { bytes.trailing_zeros() as usize / 10 };
    format!("{} {}", bytes >> (10 * unit), UNITS[unit])
}

/// A row as JSON.
#[derive(Debug, Serialize)]
pub struct JsonRow<'a> {
    peer: u32,
    class: String,
    memory: String,
    op: &'static str,
    first_bytes: u64,
    /// `null`: there is no end.
    last_bytes: Option<u64>,
    chosen: Option<JsonWay<'a>>,
    then: Vec<JsonWay<'a>>,
    rejected: Vec<JsonRejected<'a>>,
}

#[derive(Debug, Serialize)]
struct JsonWay<'a> {
    transport: &'a str,
    path: &'static str,
    latency_ns: f64,
    gbps: f64,
}

#[derive(Debug, Serialize)]
struct JsonRejected<'a> {
    transport: &'a str,
    /// `null`: both.
    path: Option<&'static str>,
    reason: &'a str,
}

impl<'a> From<&'a Row> for JsonRow<'a> {
    fn from(row: &'a Row) -> Self {
        let way = |Ranked { transport, way, cost }: &'a Ranked| JsonWay {
            transport,
            path: way.name(),
            latency_ns: cost.latency_ns,
            gbps: cost.bytes_per_ns,
        };
        let rejected = |Rejected { transport, way, reason }: &'a Rejected| JsonRejected {
            transport,
            path: way.map(Way::name),
            reason,
        };
        Self {
            peer: row.peer.0,
            class: row.class.to_string(),
            memory: row.memory.to_string(),
            op: row.op.name(),
            first_bytes: row.bytes[0],
            last_bytes: Some(row.bytes[1]).filter(|last| *last < UNBOUNDED),
            chosen: row.chosen().map(way),
            then: row.ranked.iter().skip(1).map(way).collect(),
            rejected: row.rejected.iter().map(rejected).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
