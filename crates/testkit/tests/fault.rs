//! Faults: each does what it says, at the post that it names, the same each time; nothing else changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use campanile_core::{
    Agent, Cancelled, Completion, Condition, FaultKind, Op, PostError, QueueError, Rank, Shutdown, Strength,
};
use campanile_testkit::decorate::{Fault, Kill, Stack, Stats};

mod common;
use common::{Member, job, options, stack};

const VISIBLE: Completion = Completion::Remote(Agent::Cpu);
const SHORT: Duration = Duration::from_millis(50);

fn wait(me: &Member, op: &[Op]) -> Result<(), QueueError> {
    let ticket = me.queue.post(op).map_err(|error| match error {
        PostError::Queue(error) => error,
        other => panic!("{other}"),
    })?;
    me.queue.wait(ticket, VISIBLE, SHORT * 100)
}

#[test]
fn the_post_that_is_named_fails_and_its_queue_with_it() {
    let ended = job(2, &stack("fault(rank=0, fail_post=3)"), &options(), |comm| {
        let me = Member::new(Arc::clone(&comm), 64, 1 - comm.rank());
        let posts: Vec<_> = (0..5).map(|_| wait(&me, &[me.put(0, 0, 8)])).collect();
        let other = Member::new(comm, 64, me.peer);
        (posts, wait(&other, &[other.put(0, 0, 8)]))
    });
    let (posts, other) = &ended[0];
    assert_eq!(posts[..2], [Ok(()), Ok(())]);
    let error = posts[2].clone().expect_err("the third");
    assert!(error.to_string().contains("the fault decorator fails post 3 of rank 0"), "{error}");
    assert_eq!(posts[3..], [Err(error.clone()), Err(error)], "a failed queue stays failed");
    assert_eq!(*other, Ok(()), "another queue is another queue");
    assert!(ended[1].0.iter().all(Result::is_ok), "the other rank has no faults");
}

#[test]
fn a_completion_that_fails_is_not_delivered() {
    let below = Stats::new();
    let stack = Stack::new().with(below.clone()).with_all(&stack("fault(rank=0, fail_completion=2)"));
    job(2, &stack, &options(), |comm| {
        let me = Member::new(Arc::clone(&comm), 64, 1 - comm.rank());
        if comm.rank() == 0 {
            wait(&me, &[me.put(0, 8, 8)]).expect("the first completes");
            let ticket = me.queue.post(&[me.put(0, 16, 8), me.signal(0, 1, Strength::Strong)]).expect("it is posted");
            let error = me.queue.wait(ticket, VISIBLE, SHORT).expect_err("its completion is an error");
            assert!(matches!(&error, QueueError::Completion { position: 2, .. }), "{error}");
            assert_eq!(me.queue.test(ticket, VISIBLE), Err(error.clone()));
            assert_eq!(me.queue.progress(), Err(error));
        }
        me.meet();
        assert_eq!(me.window.word(0).load(Ordering::Acquire), 0, "the signal did not leave");
    });
    let to_peer = below.snapshot().ranks[0].peers[1];
    assert_eq!(to_peer.of(campanile_core::OpKind::PutSignal).operations, 0);
    assert_eq!(to_peer.of(campanile_core::OpKind::Put).operations, 2);
}

#[test]
fn a_lost_completion_is_delivered_and_never_seen() {
    job(2, &stack("fault(rank=0, drop_completion=2)"), &options(), |comm| {
        let me = Member::new(Arc::clone(&comm), 64, 1 - comm.rank());
        if comm.rank() == 0 {
            // More than are looked at together, so that nothing hides behind the lost one.
            let tickets: Vec<_> = (1..=200)
                .map(|value| me.queue.post(&[me.signal(0, value, Strength::Strong)]).expect("it fits"))
                .collect();
            me.queue.wait(tickets[0], VISIBLE, SHORT * 100).expect("what is before it completes");
            for ticket in [tickets[1], tickets[2], tickets[199], me.queue.flush()] {
                let error = me.queue.wait(ticket, Completion::Local, SHORT).expect_err("it is never seen");
                assert!(matches!(error, QueueError::Timeout { .. }), "{error}");
            }
            assert_eq!(me.queue.test(tickets[0], VISIBLE), Ok(true), "a ticket stays fulfilled");
            me.meet();
            comm.transport().shutdown(Shutdown::Drain).expect("what is lost is not waited for");
        } else {
            me.window.wait(0, 0, Condition::AtLeast(200), "test").expect("all are delivered");
            me.meet();
        }
    });
}

#[test]
fn a_rank_is_killed_at_the_post_that_is_named() {
    let kills = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&kills);
    let kill = Kill::Call(Arc::new(move |rank| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::panic::panic_any(format!("{rank} is killed"));
    }));
    let fault = Fault { rank: Some(Rank(1)), kill_after: Some(2), kill, ..Fault::default() };
    let ended = job(2, &Stack::new().with(fault), &options(), |comm| {
        let me = Member::new(Arc::clone(&comm), 64, 1 - comm.rank());
        if comm.rank() == 0 {
            let waited = me.window.wait(1, 0, Condition::AtLeast(2), "test");
            return waited.expect_err("it comes no more").fault().map(|fault| (fault.culprit, fault.kind));
        }
        let killed = std::thread::spawn(move || {
            me.queue.post(&[me.signal(0, 1, Strength::Strong)]).expect("the first goes through");
            me.queue.ring().expect("the first goes through");
            let _ = me.queue.post(&[me.signal(0, 2, Strength::Strong)]);
        });
        let why = killed.join().expect_err("it was killed");
        assert_eq!(why.downcast_ref::<String>().map(String::as_str), Some("rank 1 is killed"));
        comm.abort();
        None
    });
    assert_eq!(kills.load(Ordering::Relaxed), 1);
    assert_eq!(ended[0], Some((Rank(1), FaultKind::Aborted)));
}

/// In which order the first bytes of ten puts landed, polled by a third party: who overtook whom, as seen below.
fn order_of_puts(text: &str, ordered: bool) -> Vec<u64> {
    let trace = campanile_testkit::decorate::Trace::default();
    let below = Stack::new().with(trace.clone()).with_all(&stack(text));
    job(1, &below, &options(), |comm| {
        let mut me = Member::new(comm, 4096, 0);
        let options = campanile_core::QueueOptions { ordered, ..Default::default() };
        let target = campanile_core::QueueTarget::Peer(Rank(0));
        me.queue = me.comm.transport().queue(target, options).expect("a queue");
        let mut list: Vec<_> = (1..=5).map(|n| me.put(0, 1024, n)).collect();
        list.push(Op::Fence);
        list.extend((6..=9).map(|n| me.put(0, 1024, n)));
        list.push(me.signal(2048, 1, Strength::Strong));
        list.extend((10..=12).map(|n| me.put(0, 1024, n)));
        wait(&me, &list).expect("it completes");
    });
    let posted = |call: &campanile_testkit::decorate::Call| {
        let what = call.arguments.split_once(' ')?.1.to_owned();
        match what.strip_prefix("Put ") {
            Some(bytes) => bytes.parse().ok(),
            None if what.starts_with("Fence") => Some(100),
            None => Some(200),
        }
    };
    trace.calls().iter().filter(|call| call.name == "post").filter_map(posted).collect()
}

#[test]
fn puts_are_reordered_between_fences_and_strong_signals_only() {
    let in_order = [1, 2, 3, 4, 5, 100, 6, 7, 8, 9, 200, 10, 11, 12];
    assert_eq!(order_of_puts("fault(seed=1, delay=300us)", false), in_order, "delays alone keep the order");
    assert_eq!(order_of_puts("fault(seed=1, delay=300us, reorder=yes)", true), in_order, "an ordered queue");
    let mut orders = Vec::new();
    for seed in 1..=4 {
        let order = order_of_puts(&format!("fault(seed={seed}, delay=5ms, reorder=yes)"), false);
        let at = |what| order.iter().position(|&other| other == what).expect("everything leaves");
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 100, 200], "each once");
        assert!((1..=5).all(|put| at(put) < at(100)), "{order:?}: before the fence");
        assert!((6..=12).all(|put| at(put) > at(100)), "{order:?}: after the fence");
        assert!((6..=9).all(|put| at(put) < at(200)), "{order:?}: covered by the signal");
        orders.push(order);
    }
    assert!(orders.iter().any(|order| *order != in_order), "{orders:?}");
}

#[test]
fn the_same_seed_is_the_same_order() {
    // The order is that of the times, which are drawn; how late a thread is does not matter.
    let orders = || (1..=3).map(|seed| order_of_puts(&format!("fault(seed={seed}, delay=500us, reorder=yes)"), false));
    assert_eq!(orders().collect::<Vec<_>>(), orders().collect::<Vec<_>>());
}

#[test]
fn what_is_held_back_can_be_cancelled() {
    job(1, &stack("fault"), &options(), |comm| {
        let me = Member::new(comm, 64, 0);
        let first = me.queue.post(&[me.signal(0, 1, Strength::Weak)]).expect("it is posted");
        let second = me.queue.post(&[me.signal(0, 2, Strength::Weak)]).expect("it is posted");
        assert_eq!(me.queue.test(first, VISIBLE), Ok(false), "nothing was rung");
        assert_eq!(me.queue.cancel(second), Ok(Cancelled::Stopped));
        me.queue.wait(second, VISIBLE, SHORT * 100).expect("a cancelled ticket completes");
        assert_eq!(me.queue.cancel(first), Ok(Cancelled::TooLate));
        assert_eq!(me.window.word(0).load(Ordering::Acquire), 1);
    });
}

#[test]
fn a_process_is_killed_by_a_signal_that_nothing_can_catch() {
    use std::os::unix::process::ExitStatusExt;

    const CHILD: &str = "FAULT_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        job(1, &stack("fault(kill_after=2)"), &options(), |comm| {
            let me = Member::new(comm, 64, 0);
            wait(&me, &[me.put(0, 8, 8)]).expect("the first goes through");
            println!("alive");
            let _ = wait(&me, &[me.put(0, 8, 8)]);
            println!("alive still");
        });
    } else {
        let program = std::env::current_exe().expect("this program");
        let ended = std::process::Command::new(program)
            .args(["--exact", "--nocapture", "a_process_is_killed_by_a_signal_that_nothing_can_catch"])
            .env(CHILD, "1")
            .output()
            .expect("it starts");
        let printed = String::from_utf8_lossy(&ended.stdout);
        assert_eq!(ended.status.signal(), Some(9), "{printed}");
        assert!(printed.contains("alive") && !printed.contains("still"), "{printed}");
    }
}
