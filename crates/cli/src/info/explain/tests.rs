//! The table as people read it.

use campanile::core::selection::{Candidate, Peer, Preference};
use campanile::core::{AtomicityDomain, Caps, MemoryKind, Node, OpKind, Path, Rank, Reach, SignalCaps, Source};

use super::*;

fn caps(load_store: bool, latency_ns: f64, bytes_per_ns: f64) -> Caps {
    let domain = AtomicityDomain::Cpu;
    Caps {
        load_store,
        ordered_puts: true,
        inline_bytes: 16,
        max_bytes: 1 << 31,
        alignment: 1,
        signal: SignalCaps { bits: 64, set: true, add: true, native_strong: true, domain, target_progress: false },
        cost: Cost { latency_ns, bytes_per_ns },
    }
}

/// A transport of this node, one of the network, and one that is broken.
fn selection(policy: &Policy) -> Selection {
    let peers = Peer::seen_from(Rank(0), ["a", "a", "a", "b"].map(Node::new));
    let memories = [MemoryKind::Host, MemoryKind::Device(0)];
    let free = Cost { latency_ns: 0.0, bytes_per_ns: f64::INFINITY };
    let near = |peer: &Peer| match peer.class {
        PeerClass::Remote => Reach::No(format!("{} shares no memory with this rank", peer.rank)),
        _ => Reach::Yes(free),
    };
    let host = |caps: Caps| move |_, memory, _| (memory == MemoryKind::Host).then_some(caps);
    let candidates = [
        Candidate::opened("shm", &peers, &memories, near, host(Caps { max_bytes: u64::MAX, ..caps(true, 200.0, 8.0) })),
        Candidate::opened("rdma", &peers, &memories, |_| Reach::Yes(free), host(caps(false, 1500.0, 25.0))),
        Candidate::unusable("p2p", "it has no usable device: gpu0: no driver"),
    ];
    Selection::new(&candidates, &peers, &memories, policy)
}

#[test]
fn the_table_says_each_thing_once() {
    let policy = Policy::default().sources(Source::Default, Source::Environment);
    let selection = selection(&policy);
    let text = text(&policy, &Ok("shm".to_owned()), &rows(&selection, None));
    let expected = "\
Selection with CAMPANILE_TRANSPORT=auto (default), CAMPANILE_PATH=auto (environment)
A communicator of the ranks on this node opens shm for all its peers.

To this rank itself and ranks 1 to 2 of this node, host memory
  put, put-signal, get below 16 KiB; put-inline up to 16 B; atomic, fence
    chosen    shm load-store   200 ns + bytes at 8.0 GB/s
    then      shm queue        400 ns + bytes at 8.0 GB/s
    then      rdma queue       1500 ns + bytes at 25.0 GB/s
    rejected  rdma load-store  it gives no pointers to that memory
    rejected  p2p              it has no usable device: gpu0: no driver
  put, put-signal, get from 16 KiB
    chosen    rdma queue       1500 ns + bytes at 25.0 GB/s
    then      shm load-store   200 ns + bytes at 8.0 GB/s
    then      shm queue        400 ns + bytes at 8.0 GB/s
    rejected  rdma load-store  it gives no pointers to that memory
    rejected  p2p              it has no usable device: gpu0: no driver
  put-inline above 16 B up to 64 B
    nothing can
    rejected  shm   at most 16 bytes in one operation
    rejected  rdma  at most 16 bytes in one operation
    rejected  p2p   it has no usable device: gpu0: no driver

To this rank itself and ranks 1 to 2 of this node, device 0 memory
  every operation
    nothing can
    rejected  shm   it does not do that in device 0 memory
    rejected  rdma  it does not do that in device 0 memory
    rejected  p2p   it has no usable device: gpu0: no driver

To rank 3 of another node, host memory
  put, put-signal, get, atomic, fence; put-inline up to 16 B
    chosen    rdma queue       1500 ns + bytes at 25.0 GB/s
    rejected  shm              rank 3 shares no memory with this rank
    rejected  rdma load-store  it gives no pointers to that memory
    rejected  p2p              it has no usable device: gpu0: no driver
  put-inline above 16 B up to 64 B
    nothing can
    rejected  shm   rank 3 shares no memory with this rank
    rejected  rdma  at most 16 bytes in one operation
    rejected  p2p   it has no usable device: gpu0: no driver

To rank 3 of another node, device 0 memory
  every operation
    nothing can
    rejected  shm   rank 3 shares no memory with this rank
    rejected  rdma  it does not do that in device 0 memory
    rejected  p2p   it has no usable device: gpu0: no driver
";
    assert_eq!(text, expected);
}

#[test]
fn sizes_in_words() {
    for (range, words) in [
        ([0, 2047], "below 2 KiB"),
        ([2048, (1 << 20) - 1], "from 2 KiB below 1 MiB"),
        ([1 << 20, UNBOUNDED], "from 1 MiB"),
        ([0, 24], "up to 24 B"),
        ([25, 32], "from 25 B up to 32 B"),
        ([33, 1 << 31], "above 32 B up to 2 GiB"),
        ([(1 << 31) + 1, UNBOUNDED], "above 2 GiB"),
        ([0, 1 << 41], "up to 2 TiB"),
        ([0, 0], "below 1 B"),
    ] {
        assert_eq!(sizes(range), words);
    }
}

#[test]
fn a_forced_choice_that_cannot_run_leaves_nothing_and_says_who_forced_it() {
    let policy = Policy::new(Preference::of(["rdma"]).unwrap(), Path::LoadStore);
    let policy = policy.sources(Source::File, Source::Code);
    let selection = selection(&policy);
    let text = text(&policy, &Err("rdma: no way".to_owned()), &rows(&selection, Some(Peers::Own)));
    assert_eq!(
        text,
        "\
Selection with CAMPANILE_TRANSPORT=rdma (file), CAMPANILE_PATH=load-store (code)
No communicator of the ranks on this node can be made.

To this rank itself, host memory
  put, put-signal, get, atomic, fence; put-inline up to 16 B
    nothing can
    rejected  shm              CAMPANILE_TRANSPORT=rdma (file) does not name it
    rejected  rdma load-store  it gives no pointers to that memory
    rejected  rdma queue       CAMPANILE_PATH=load-store (code) forbids it
    rejected  p2p              CAMPANILE_TRANSPORT=rdma (file) does not name it
  put-inline above 16 B up to 64 B
    nothing can
    rejected  shm   CAMPANILE_TRANSPORT=rdma (file) does not name it
    rejected  rdma  at most 16 bytes in one operation
    rejected  p2p   CAMPANILE_TRANSPORT=rdma (file) does not name it

To this rank itself, device 0 memory
  every operation
    nothing can
    rejected  shm   CAMPANILE_TRANSPORT=rdma (file) does not name it
    rejected  rdma  it does not do that in device 0 memory
    rejected  p2p   CAMPANILE_TRANSPORT=rdma (file) does not name it
"
    );
}

#[test]
fn json_has_one_row_for_each_range() {
    let policy = Policy::default();
    let selection = selection(&policy);
    let rows = rows(&selection, Some(Peers::Node));
    assert!(rows.iter().all(|row| row.class == PeerClass::Node));
    let put = rows.iter().find(|row| row.op == OpKind::Put && row.bytes[0] == 16 << 10).unwrap();
    let rejected_by = |transport: &str, path: serde_json::Value, reason: &str| serde_json::json!({"transport": transport, "path": path, "reason": reason});
    assert_eq!(
        serde_json::to_value(JsonRow::from(*put)).unwrap(),
        serde_json::json!({
            "peer": 1, "class": "node", "memory": "host", "op": "put",
            "first_bytes": 16384, "last_bytes": null,
            "chosen": {"transport": "rdma", "path": "queue", "latency_ns": 1500.0, "gbps": 25.0},
            "then": [
                {"transport": "shm", "path": "load-store", "latency_ns": 200.0, "gbps": 8.0},
                {"transport": "shm", "path": "queue", "latency_ns": 400.0, "gbps": 8.0},
            ],
            "rejected": [
                rejected_by("rdma", "load-store".into(), "it gives no pointers to that memory"),
                rejected_by("p2p", serde_json::Value::Null, "it has no usable device: gpu0: no driver"),
            ],
        })
    );
    let last = rows.iter().rfind(|row| row.op == OpKind::Put).unwrap();
    assert_eq!(serde_json::to_value(JsonRow::from(*last)).unwrap()["last_bytes"], serde_json::Value::Null);
}
