//! The model of a network: nothing is seen early, everything leaves by itself, and shutdown waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use campanile_core::{Agent, Completion, Condition, MemoryKind, OpKind, PeerClass, PostError, Shutdown, Strength};
use campanile_testkit::decorate::{Stack, Throttle};

mod common;
use common::{Member, job, options, stack};

const VISIBLE: Completion = Completion::Remote(Agent::Cpu);

#[test]
fn nothing_is_seen_before_its_time() {
    // 1000 bytes at 100 KB/s are 10 ms, the word 80 us more.
    let throttle = Throttle { latency: Duration::from_millis(5), bytes_per_ns: Some(1e-4) };
    let sent = job(2, &Stack::new().with(throttle), &options(), |comm| {
        let me = Member::new(Arc::clone(&comm), 2048, 1 - comm.rank());
        let start = Instant::now();
        if comm.rank() == 0 {
            let ticket = me.queue.post(&[me.put(0, 0, 500), me.put(0, 0, 500)]).expect("it is posted");
            me.queue.post(&[me.signal(1024, 1, Strength::Strong)]).expect("it is posted");
            me.queue.ring().expect("it rings");
            // Nobody helps: the rank waits for something else.
            me.meet();
            assert_eq!(me.queue.test(ticket, VISIBLE), Ok(true));
            start
        } else {
            me.window.wait(0, 1024, Condition::AtLeast(1), "test").expect("the signal comes");
            let seen = Instant::now();
            me.meet();
            seen
        }
    });
    let took = sent[1] - sent[0];
    assert!(took >= Duration::from_micros(15_080), "{took:?}");
}

#[test]
fn what_is_rung_leaves_before_the_transport_ends() {
    let words = job(2, &stack("throttle(latency=30ms)"), &options(), |comm| {
        let me = Member::new(Arc::clone(&comm), 64, 1 - comm.rank());
        let window = me.window.clone();
        me.meet();
        me.queue.post(&[me.signal(0, 7, Strength::Strong)]).expect("it is posted");
        me.queue.ring().expect("it rings");
        if comm.rank() == 0 {
            comm.transport().shutdown(Shutdown::Drain).expect("it drains");
            assert_eq!(me.queue.test(me.queue.flush(), VISIBLE), Ok(true), "it was waited for");
        }
        let seen = if comm.rank() == 1 { window.wait(0, 0, Condition::AtLeast(7), "test").ok() } else { None };
        (seen, comm.rank() == 1 && window.word(0).load(Ordering::Acquire) == 7)
    });
    assert_eq!(words[1], (Some(7), true));
}

#[test]
fn depth_caps_and_legality_are_as_ever() {
    job(1, &stack("throttle(latency=1min, bandwidth=2GB/s)"), &options(), |comm| {
        let cost = comm.transport().caps(PeerClass::Own, MemoryKind::Host, OpKind::Put).expect("puts").cost;
        assert_eq!(cost.bytes_per_ns, 2.0);
        assert!(cost.latency_ns > 60e9);
        let mut me = Member::new(comm, 64, 0);
        let options = campanile_core::QueueOptions { depth: 4, ..Default::default() };
        let target = campanile_core::QueueTarget::Engine(0);
        me.queue = me.comm.transport().queue(target, options).expect("a queue");
        let ticket = me.queue.post(&[me.put(0, 8, 8); 3]).expect("three fit");
        me.queue.ring().expect("it rings");
        assert_eq!(me.queue.progress(), Ok(0), "it is held back");
        assert_eq!(me.queue.test(ticket, VISIBLE), Ok(false));
        assert_eq!(me.queue.post(&[me.put(0, 8, 8); 2]), Err(PostError::Busy { needed: 2, free: 1 }));
        assert_eq!(me.queue.post(&[me.put(0, 8, 8); 5]), Err(PostError::TooLarge { needed: 5, depth: 4 }));
        let outside = me.queue.post(&[me.put(0, 60, 8)]);
        assert!(matches!(&outside, Err(PostError::Invalid { index: 0, reason }) if reason.contains("outside")));
        let gpu = me.queue.test(ticket, Completion::Remote(Agent::Gpu));
        assert!(gpu.is_err(), "what the transport cannot tell is not told");
        // Ends without waiting a minute.
        me.comm.abort();
    });
}

#[test]
fn an_abort_drops_what_is_held_back() {
    job(2, &stack("throttle(latency=2ms)"), &options(), |comm| {
        let me = Member::new(Arc::clone(&comm), 64, 1 - comm.rank());
        me.meet();
        if comm.rank() == 0 {
            let ticket = me.queue.post(&[me.signal(0, 7, Strength::Strong)]).expect("it is posted");
            me.queue.ring().expect("it rings");
            comm.transport().shutdown(Shutdown::Abort).expect("it ends");
            let error = me.queue.wait(ticket, VISIBLE, common::TIMEOUT).expect_err("it was dropped");
            assert!(error.to_string().contains("shut down with operations held back"), "{error}");
        } else {
            me.window.wait(0, 0, Condition::AtLeast(7), "test").expect_err("the other rank is gone");
            assert_eq!(me.window.word(0).load(Ordering::Acquire), 0);
        }
    });
}
