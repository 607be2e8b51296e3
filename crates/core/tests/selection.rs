//! Selection: caps filter, cost model, policy, and a reason for everything that is not chosen.

use std::collections::BTreeSet;

use campanile_core::selection::{
    Candidate, LARGEST, Peer, Policy, Preference, QUEUE_NS, Row, Selection, UNBOUNDED, Way,
};
use campanile_core::{
    AtomicityDomain, Caps, Cost, Inline, MemoryKind, Node, OpKind, Path, PeerClass, Rank, Reach, SignalCaps, Source,
};
use proptest::prelude::*;

const HOST: &[MemoryKind] = &[MemoryKind::Host];

fn caps(load_store: bool, latency_ns: f64, bytes_per_ns: f64) -> Caps {
    let domain = AtomicityDomain::Cpu;
    Caps {
        load_store,
        ordered_puts: true,
        inline_bytes: 32,
        max_bytes: u64::MAX,
        alignment: 1,
        signal: SignalCaps { bits: 64, set: true, add: true, native_strong: true, domain, target_progress: false },
        cost: Cost { latency_ns, bytes_per_ns },
    }
}

/// Rank 0, a neighbour, and a rank elsewhere.
fn peers() -> Vec<Peer> {
    Peer::seen_from(Rank(0), ["here", "here", "there"].map(Node::new))
}

/// A transport that reaches everybody at no cost of its own and gives the same for everything.
fn candidate(name: &str, caps: Caps) -> Candidate {
    let free = Cost { latency_ns: 0.0, bytes_per_ns: f64::INFINITY };
    Candidate::opened(name, &peers(), HOST, |_| Reach::Yes(free), |_, _, _| Some(caps))
}

fn policy(transports: &str, path: Path) -> Policy {
    Policy::new(Preference::parse(transports).unwrap(), path)
}

fn table(candidates: &[Candidate], policy: &Policy) -> Selection {
    Selection::new(candidates, &peers(), HOST, policy)
}

fn find(candidates: &[Candidate], policy: &Policy, op: OpKind, bytes: u64) -> Row {
    table(candidates, policy).find(Rank(1), MemoryKind::Host, op, bytes).unwrap().clone()
}

fn ranked(row: &Row) -> Vec<(&str, Way)> {
    row.ranked.iter().map(|ranked| (ranked.transport.as_str(), ranked.way)).collect()
}

fn reasons(row: &Row) -> Vec<(&str, Option<Way>, &str)> {
    row.rejected.iter().map(|it| (it.transport.as_str(), it.way, it.reason.as_str())).collect()
}

#[test]
fn peers_are_classed_as_seen_from_a_rank() {
    let classes = |rank| -> Vec<_> {
        let peers = Peer::seen_from(Rank(rank), ["a", "b", "a"].map(Node::new));
        peers.into_iter().map(|peer| peer.class).collect()
    };
    assert_eq!(classes(0), [PeerClass::Own, PeerClass::Remote, PeerClass::Node]);
    assert_eq!(classes(1), [PeerClass::Remote, PeerClass::Own, PeerClass::Remote]);
    assert_eq!(classes(9), [PeerClass::Remote; 3]);
}

#[test]
fn the_cheapest_wins_and_the_table_shows_where_that_changes() {
    // 100 ns + bytes against 1100 ns + bytes / 4: equal at 1333 bytes, so the power of two above is the first to change.
    let near = candidate("near", caps(true, 100.0, 1.0));
    let wide = candidate("wide", caps(false, 1100.0, 4.0));
    let table = table(&[near, wide], &Policy::default());
    let puts = table.rows().iter().filter(|row| row.peer == Rank(1) && row.op == OpKind::Put);
    let ranges: Vec<_> = puts.map(|row| (row.bytes, ranked(row))).collect();
    let (store, queue, wide) = (("near", Way::LoadStore), ("near", Way::Queue), ("wide", Way::Queue));
    assert_eq!(ranges, [([0, 2047], vec![store, queue, wide]), ([2048, UNBOUNDED], vec![wide, store, queue]),]);
}

#[test]
fn a_queue_beside_load_store_costs_its_post() {
    let row = find(&[candidate("shm", caps(true, 200.0, 8.0))], &Policy::default(), OpKind::Put, 8);
    assert_eq!(ranked(&row), [("shm", Way::LoadStore), ("shm", Way::Queue)]);
    assert_eq!(row.ranked[1].cost.latency_ns, row.ranked[0].cost.latency_ns + QUEUE_NS);
    let row = find(&[candidate("nic", caps(false, 1500.0, 25.0))], &Policy::default(), OpKind::Put, 8);
    assert_eq!(row.ranked[0].cost.latency_ns, 1500.0);
    assert_eq!(reasons(&row), [("nic", Some(Way::LoadStore), "it gives no pointers to that memory")]);
}

#[test]
fn an_operation_is_no_faster_than_the_way_to_the_peer() {
    let slow = Cost { latency_ns: 900.0, bytes_per_ns: 2.0 };
    let far = Candidate::opened("far", &peers(), HOST, |_| Reach::Yes(slow), |_, _, _| Some(caps(true, 100.0, 8.0)));
    let row = find(&[far], &Policy::default(), OpKind::Put, 0);
    assert_eq!(row.ranked[0].cost, slow);
}

#[test]
fn the_policy_filters_transports_and_ways_and_says_who_said_so() {
    let both = [candidate("shm", caps(true, 200.0, 8.0)), candidate("rdma", caps(false, 1500.0, 25.0))];
    let forced = policy("rdma", Path::Auto).sources(Source::Environment, Source::Default);
    let row = find(&both, &forced, OpKind::Put, 8);
    assert_eq!(ranked(&row), [("rdma", Way::Queue)]);
    assert_eq!(reasons(&row)[0], ("shm", None, "CAMPANILE_TRANSPORT=rdma (environment) does not name it"));

    // An order of preference is stronger than cost.
    let row = find(&both, &policy("rdma,shm", Path::Auto), OpKind::Put, 8);
    assert_eq!(ranked(&row), [("rdma", Way::Queue), ("shm", Way::LoadStore), ("shm", Way::Queue)]);

    let forced = policy("auto", Path::LoadStore).sources(Source::Default, Source::File);
    let row = find(&both, &forced, OpKind::Put, 8);
    assert_eq!(ranked(&row), [("shm", Way::LoadStore)]);
    assert_eq!(
        reasons(&row),
        [
            ("shm", Some(Way::Queue), "CAMPANILE_PATH=load-store (file) forbids it"),
            ("rdma", Some(Way::LoadStore), "it gives no pointers to that memory"),
            ("rdma", Some(Way::Queue), "CAMPANILE_PATH=load-store (file) forbids it"),
        ]
    );
    // A forced choice that cannot run leaves nothing, instead of something else.
    let row = find(&both[1..], &policy("auto", Path::LoadStore), OpKind::Put, 8);
    assert!(row.chosen().is_none());
    assert_eq!(reasons(&row)[1].2, "CAMPANILE_PATH=load-store forbids it");
}

#[test]
fn what_cannot_be_opened_or_reached_or_done_is_rejected_with_its_reason() {
    let unusable = Candidate::unusable("p2p", "it has no usable device: gpu0: no driver");
    let shm = Candidate::opened(
        "shm",
        &peers(),
        HOST,
        |peer| match peer.class {
            PeerClass::Remote => Reach::No("it shares no memory".to_owned()),
            _ => Reach::Yes(Cost { latency_ns: 1.0, bytes_per_ns: 1.0 }),
        },
        |_, _, op| (op != OpKind::Atomic).then(|| caps(true, 1.0, 1.0)),
    );
    let table = table(&[unusable, shm], &Policy::default());
    let row = table.find(Rank(2), MemoryKind::Host, OpKind::Put, 1).unwrap();
    assert_eq!(
        reasons(row),
        [("p2p", None, "it has no usable device: gpu0: no driver"), ("shm", None, "it shares no memory")]
    );
    let row = table.find(Rank(1), MemoryKind::Host, OpKind::Atomic, 8).unwrap();
    assert_eq!(reasons(row)[1], ("shm", None, "it does not do that in host memory"));
    assert_eq!(table.find(Rank(7), MemoryKind::Host, OpKind::Put, 1), None);
    assert_eq!(table.find(Rank(1), MemoryKind::Device(0), OpKind::Put, 1), None);
}

#[test]
fn limits_of_size_end_a_range() {
    let small = Caps { max_bytes: 1 << 20, inline_bytes: 8, ..caps(false, 1.0, 1.0) };
    let candidates = [candidate("small", small)];
    let of = |op, bytes| find(&candidates, &Policy::default(), op, bytes);
    // Larger puts are split.
    assert_eq!(of(OpKind::Put, 1 << 20).bytes, [0, UNBOUNDED]);
    assert!(of(OpKind::Put, (1 << 20) + 1).chosen().is_some());
    assert_eq!(of(OpKind::PutInline, 8).bytes, [0, 8]);
    assert_eq!(reasons(&of(OpKind::PutInline, 32)), [("small", None, "at most 8 bytes in one operation")]);
    assert_eq!(of(OpKind::PutInline, 32).bytes, [9, Inline::MAX as u64]);
    assert_eq!(of(OpKind::Fence, 0).bytes, [0, 0]);
}

#[test]
fn narrow_signals_and_costs_that_are_no_costs_are_rejected() {
    let mut narrow = caps(true, 1.0, 1.0);
    narrow.signal.bits = 32;
    let candidates = [candidate("narrow", narrow)];
    let row = find(&candidates, &Policy::default(), OpKind::PutSignal, 8);
    assert_eq!(reasons(&row), [("narrow", None, "its signals have 32 bits; windows need 64")]);
    assert!(find(&candidates, &Policy::default(), OpKind::Put, 8).chosen().is_some());
    for (latency, bandwidth) in [(f64::NAN, 1.0), (-1.0, 1.0), (f64::INFINITY, 1.0), (1.0, 0.0), (1.0, f64::NAN)] {
        let row = find(&[candidate("liar", caps(true, latency, bandwidth))], &Policy::default(), OpKind::Put, 8);
        assert!(row.chosen().is_none(), "{latency} {bandwidth}");
        assert!(row.rejected[0].reason.contains("cannot be compared"), "{:?}", row.rejected);
    }
}

#[test]
fn preferences_print_what_they_accept() {
    for text in ["auto", "shm", "rdma,shm", "/lib/libmine.so,shm"] {
        let preference = Preference::parse(text).unwrap();
        assert_eq!(preference.to_string(), text);
        assert_eq!(Preference::parse(&preference.to_string()), Some(preference));
    }
    for text in ["", ",", "shm,", "shm,,rdma", "auto,shm", "shm,auto", "shm,rdma,shm", " "] {
        assert_eq!(Preference::parse(text), None, "{text:?}");
    }
    assert_eq!(Preference::of(["a,b"]), None);
    assert_eq!(Preference::of::<&str>([]), None);
}

proptest! {
    #[test]
    fn each_size_has_one_row_and_each_candidate_an_answer(
        costs in proptest::collection::vec((any::<bool>(), 0.0..5000.0, 0.1..100.0, 0_u64..(LARGEST * 2)), 1..4),
        sizes in proptest::collection::vec(0..=UNBOUNDED, 16),
        path in prop_oneof![Just(Path::Auto), Just(Path::LoadStore), Just(Path::Queue)],
    ) {
        let candidates: Vec<_> = costs.iter().enumerate().map(|(index, &(load_store, latency, bandwidth, max_bytes))| {
            candidate(&format!("t{index}"), Caps { max_bytes, ..caps(load_store, latency, bandwidth) })
        }).collect();
        let table = table(&candidates, &policy("auto", path));
        for bytes in sizes {
            let bytes = bytes >> (bytes % 63);
            let of = |row: &&Row| row.peer == Rank(1) && row.op == OpKind::Get && row.bytes[0] <= bytes && bytes <= row.bytes[1];
            let rows: Vec<_> = table.rows().iter().filter(of).collect();
            prop_assert_eq!(rows.len(), 1);
            let row = rows[0];
            let times: Vec<_> = row.ranked.iter().map(|ranked| ranked.cost.time_ns(row.bytes[0])).collect();
            prop_assert!(times.is_sorted());
            let transports: BTreeSet<_> = row.ranked.iter().map(|ranked| &ranked.transport).collect();
            prop_assert!(path != Path::Auto || transports.len() == costs.len());
            for (index, candidate) in candidates.iter().enumerate() {
                let answers = row.ranked.iter().filter(|it| it.transport == candidate.transport()).count();
                let rejected = row.rejected.iter().filter(|it| it.transport == candidate.transport());
                let ways: usize = rejected.map(|it| if it.way.is_some() { 1 } else { 2 }).sum();
                prop_assert_eq!(answers + ways, 2, "candidate {}", index);
            }
        }
    }
}
