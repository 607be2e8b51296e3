//! Stats and trace: what was posted is what was counted, and what was called is what is remembered.

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{
    AtomicOp, Completion, Condition, Inline, Op, OpKind, PostError, QueueOptions, QueueTarget, Rank, Strength,
};
use campanile_testkit::decorate::{Count, Stack, Stats, Trace};

mod common;
use common::{Member, TIMEOUT, job, options, queues};

#[test]
fn every_operation_is_counted_for_its_peer_and_kind() {
    let stats = Stats::new();
    job(2, &Stack::new().with(stats.clone()), &options(), |comm| {
        let mut me = Member::new(Arc::clone(&comm), 4096, 1 - comm.rank());
        if comm.rank() == 0 {
            let depth = QueueOptions { depth: 8, ..QueueOptions::default() };
            // By an engine's queue, whose peers only the operations tell, as by one to a peer.
            for target in [QueueTarget::Engine(0), QueueTarget::Peer(Rank(1))] {
                me.queue = comm.transport().queue(target, depth).expect("a queue");
                let inline = Op::PutInline { data: Inline::new(&[1; 5]).expect("short"), target: me.remote(0) };
                let atomic = Op::Atomic { op: AtomicOp::Add { operand: 1 }, target: me.remote(64) };
                let get = Op::Get { source: me.remote(0), target: me.local(128), bytes: 11 };
                let list = [me.put(0, 8, 7), me.put(0, 8, 3), inline, get, atomic, Op::Fence];
                let ticket = me.queue.post(&list).expect("it is posted");
                assert!(matches!(me.queue.post(&list), Err(PostError::Busy { .. })));
                assert!(matches!(me.queue.post(&[me.put(9999, 0, 1)]), Err(PostError::Invalid { .. })));
                me.queue.wait(ticket, Completion::Local, TIMEOUT).expect("it completes");
            }
            me.queue.post(&[me.signal(512, 1, Strength::Strong)]).expect("it is posted");
            me.queue.wait(me.queue.flush(), Completion::Local, TIMEOUT).expect("it completes");
        } else {
            me.window.wait(0, 512, Condition::AtLeast(1), "test").expect("the signal comes");
        }
        me.meet();
    });
    let snapshot = stats.snapshot();
    let [zero, one] = &snapshot.ranks[..] else { panic!("{snapshot}") };
    let count = |operations, bytes| Count { operations, bytes };
    let kinds = [OpKind::Put, OpKind::PutSignal, OpKind::PutInline, OpKind::Get, OpKind::Atomic, OpKind::Fence];
    let to_one = kinds.map(|kind| zero.peers[1].of(kind));
    assert_eq!(to_one, [count(4, 20), count(1, 0), count(2, 10), count(2, 22), count(2, 0), count(1, 0)]);
    assert_eq!(zero.engine_fences, 1, "a fence of an engine's queue is for no peer");
    assert_eq!((zero.posts, zero.busy, zero.refused, zero.queue_waits, zero.signal_waits), (3, 2, 2, 3, 0));
    assert_eq!((one.posts, one.queue_waits, one.signal_waits), (0, 0, 1));
    assert!(one.waited > Duration::ZERO);
    assert!(kinds.iter().all(|&kind| zero.peers[0].of(kind) == count(0, 0) && one.peers[0].of(kind) == count(0, 0)));
    let text = snapshot.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0].starts_with("rank 0: 3 posts (2 busy, 2 refused), 3 queue waits, 0 signal waits, waited"),
        "{text}"
    );
    assert_eq!(
        lines[1],
        "  to rank 1: 4 put of 20 bytes, 1 signal, 2 inline of 10 bytes, 2 get of 22 bytes, 2 atomic, 1 fence"
    );
    assert!(lines[2].starts_with("rank 1: 0 posts") && lines.len() == 3, "{text}");
}

#[test]
fn calls_are_remembered_in_order_up_to_the_capacity() {
    let (all, few) = (Trace::default(), Trace::with_capacity(5));
    job(2, &Stack::new().with(all.clone()).with(few.clone()), &queues(), |comm| {
        let me = Member::new(Arc::clone(&comm), 4096, 1 - comm.rank());
        if comm.rank() == 0 {
            me.queue.post(&[me.put(0, 8, 70), me.signal(512, 3, Strength::Strong)]).expect("it is posted");
            me.queue.wait(me.queue.flush(), Completion::Local, TIMEOUT).expect("it completes");
            me.queue.post(&[me.put(9999, 0, 1)]).expect_err("it is refused");
        } else {
            me.window.wait(0, 512, Condition::AtLeast(3), "test").expect("the signal comes");
        }
        me.meet();
    });
    let calls = all.calls();
    let of = |rank, name| calls.iter().filter(|call| call.rank == Rank(rank) && call.name == name).collect::<Vec<_>>();
    for (rank, name, count) in [
        (0, "connect", 1),
        (0, "allocate", 1),
        (0, "queue", 1),
        (0, "post", 2),
        (0, "wait", 1),
        (0, "flush", 1),
        (0, "shutdown", 1),
        (1, "post", 0),
        (1, "signal_wait", 1),
        (1, "import", 2),
    ] {
        assert_eq!(of(rank, name).len(), count, "{name} of rank {rank}");
    }
    let posts = of(0, "post");
    assert_eq!(posts[0].arguments, "Peer(Rank(1)) Put 70 PutSignal 0");
    assert!(posts[1].arguments.contains("outside"), "{}", posts[1].arguments);
    let wait = of(1, "signal_wait")[0];
    assert_eq!(wait.arguments, "test: signal of rank 0 at 512, at least 3");
    assert!(of(0, "connect")[0].start_ns <= posts[0].start_ns && posts[0].start_ns <= posts[1].start_ns);
    assert_ne!(posts[0].thread, wait.thread);
    assert_eq!((few.calls().len(), all.dropped()), (5, 0));
    assert!(few.dropped() > 0 && few.calls()[4].name == "shutdown");
    let json: serde_json::Value = serde_json::from_str(&all.chrome_json()).expect("it is JSON");
    let events = json["traceEvents"].as_array().expect("a list");
    assert_eq!(events.len(), calls.len());
    let event = events.iter().find(|event| event["name"] == "signal_wait").expect("it is there");
    assert_eq!(
        (event["ph"].as_str(), event["pid"].as_u64(), event["tid"].as_u64()),
        (Some("X"), Some(1), Some(wait.thread))
    );
    assert_eq!(event["dur"].as_f64(), Some(wait.duration_ns as f64 / 1e3));
}

#[test]
fn a_trace_is_written_where_it_is_asked_for() {
    let file = std::env::temp_dir().join(format!("campanile-trace-{}", std::process::id()));
    let stack = common::stack(&format!("trace(events=100, file={})", file.display()));
    job(2, &stack, &options(), |comm| comm.window(64, campanile_core::MemoryKind::Host).map(|_| ()).expect("a window"));
    for rank in 0..2 {
        let path = format!("{}.{rank}.json", file.display());
        let text = std::fs::read_to_string(&path).expect("it was written");
        std::fs::remove_file(&path).expect("it is ours");
        let json: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        let events = json["traceEvents"].as_array().expect("a list");
        assert!(events.iter().any(|event| event["name"] == "allocate"));
        assert!(events.iter().all(|event| event["pid"] == rank), "only its own calls");
    }
}
