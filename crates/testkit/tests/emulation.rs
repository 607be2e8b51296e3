//! What the core makes up for where caps lack it, on a transport that keeps no more than it promises.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use campanile_core::{CommError, Completion, Condition, MemoryKind, OpKind, PostError, Strength, Window};
use campanile_testkit::decorate::{Lean, Stack, Stats};

mod common;
use common::{Member, job, options, stack};

/// Puts a pattern, signals, and looks at the target when the signal is seen: how often the pattern was not all there.
/// `post` posts puts and a strong signal of `round`.
fn early(stack: &Stack, post: impl Fn(&Member, u64) + Sync) -> usize {
    const ROUNDS: u64 = 20;
    const BYTES: usize = 1000;
    let early = job(2, stack, &options(), |comm| {
        let me = Member::new(Arc::clone(&comm), 4096, 1 - comm.rank());
        let mut early = 0;
        for round in 1..=ROUNDS {
            if comm.rank() == 0 {
                me.window.write(2048, &[round as u8; BYTES]).expect("inside");
                post(&me, round);
            } else {
                let seen = me.window.wait(0, 0, Condition::AtLeast(round), "test").expect("the signal comes");
                assert_eq!(seen, round);
                let mut landed = [0; BYTES];
                me.window.read(1024, &mut landed).expect("inside");
                early += usize::from(landed != [round as u8; BYTES]);
            }
            me.window.flush(me.peer).expect("it completes");
            me.meet();
        }
        early
    });
    early[1]
}

fn by_window(me: &Member, round: u64) {
    let window: &Window = &me.window;
    for at in (0..1000).step_by(250) {
        window.put(me.peer, window.region(), 2048 + at, 1024 + at, 250).expect("it is posted");
    }
    window.signal(me.peer, 0, round).expect("it is posted");
}

#[test]
fn a_strong_signal_waits_for_its_puts() {
    let lean = Lean { delay: Duration::from_millis(2), ..Lean::default() };
    // Through the communicator the core drains. The same puts in four lists, or one put that is split.
    assert_eq!(early(&Stack::new().with(lean), by_window), 0);
    let tiny = Lean { max_bytes: 16, ..lean };
    assert_eq!(early(&Stack::new().with(tiny), by_window), 0);
    let strong = Lean { max_bytes: 16, strong: true, ..lean };
    assert_eq!(early(&Stack::new().with(strong), by_window), 0);
    // A queue of the transport's own is not emulated, and shows what the drain is for.
    let bare = early(&Stack::new().with(lean), |me, round| {
        let puts = [0, 250, 500, 750].map(|at| me.put(2048 + at, 1024 + at, 250));
        me.queue.post(&puts).expect("it is posted");
        let ticket = me.queue.post(&[me.signal(0, round, Strength::Strong)]).expect("it is posted");
        me.queue.wait(ticket, Completion::Local, common::TIMEOUT).expect("it completes");
    });
    assert!(bare > 0, "lean keeps what it does not promise");
}

#[test]
fn large_puts_are_split_into_the_fewest_pieces() {
    for (text, bytes, pieces) in [
        ("lean(max_bytes=64)", 0, 1),
        ("lean(max_bytes=64)", 64, 1),
        ("lean(max_bytes=64)", 65, 2),
        ("lean(max_bytes=64)", 1000, 16),
        ("lean(max_bytes=100, alignment=8)", 960, 10),
        ("plain", 1000, 1),
    ] {
        let below = Stats::new();
        let stack = Stack::new().with(below.clone()).with_all(&stack(text)).with(Stats::new());
        job(2, &stack, &common::queues(), |comm| {
            let window = comm.window(4096, MemoryKind::Host).expect("a window");
            let pattern: Vec<u8> = (0..bytes).map(|byte| (byte % 251) as u8).collect();
            if comm.rank() == 0 {
                window.write(0, &pattern).expect("inside");
                window.put(1, window.region(), 0, 2048, bytes).expect("it is posted");
                window.signal(1, 4088, 1).expect("it is posted");
            } else {
                window.wait(0, 4088, Condition::AtLeast(1), "test").expect("the signal comes");
                let mut landed = vec![0; bytes];
                window.read(2048, &mut landed).expect("inside");
                assert_eq!(landed, pattern);
            }
        });
        let put = below.snapshot().ranks[0].peers[1].of(OpKind::Put);
        assert_eq!((put.operations, put.bytes), (pieces, bytes as u64), "{text}, {bytes} bytes");
    }
}

#[test]
fn what_cannot_be_emulated_is_refused_with_the_reason() {
    // A rank that is gone is another reason.
    let both_have_tried = Barrier::new(2);
    let ended = job(2, &stack("lean(alignment=8)"), &options(), |comm| {
        let window = comm.window(4096, MemoryKind::Host).expect("a window");
        let put = window.put(1 - comm.rank(), window.region(), 1, 8, 16);
        both_have_tried.wait();
        put.expect_err("it is not aligned")
    });
    for error in ended {
        let CommError::Post(PostError::Invalid { index: 0, reason }) = &error else { panic!("{error}") };
        assert_eq!(reason, "a local offset of 1; the transport takes multiples of 8");
    }
}
