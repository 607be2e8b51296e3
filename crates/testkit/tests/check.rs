//! Misuse is found and named; legal programs are left alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_core::{
    Agent, AtomicOp, Completion, ControlError, LocalAddress, Memory, MemoryKind, Op, PostError, QueueError,
    QueueOptions, QueueTarget, Rank, RemoteAddress, Shutdown, SignalAction, SignalUpdate, Strength,
};

mod common;
use common::{Member, TIMEOUT, job, options, stack};

const VISIBLE: Completion = Completion::Remote(Agent::Cpu);

fn invalid(me: &Member, op: Op, fragment: &str) {
    // It is the second that is wrong.
    match me.queue.post(&[Op::Fence, op]) {
        Err(PostError::Invalid { index: 1, reason }) => assert!(reason.contains(fragment), "{reason}"),
        other => panic!("{fragment}: {other:?}"),
    }
}

fn reused(error: &QueueError, what: &str) {
    let QueueError::Completion { reason, .. } = error else { panic!("{error}") };
    assert!(reason.starts_with(&format!("the caller {what} the source of a put")), "{reason}");
    assert!(reason.contains("before local completion"), "{reason}");
}

#[test]
fn a_source_that_changes_before_local_completion() {
    for text in ["check", "throttle(latency=1ms)+check", "stats+check+plain"] {
        job(2, &stack(text), &options(), |comm| {
            let me = Member::new(comm, 4096, 1);
            if me.comm.rank() == 0 {
                for bytes in [1, 7, 8, 9, 1000] {
                    // The first, a middle and the last byte.
                    for changed in [0, bytes / 2, bytes - 1] {
                        let me =
                            Member { queue: fresh(&me), window: me.window.clone(), comm: Arc::clone(&me.comm), ..me };
                        let ticket = me.queue.post(&[me.put(16, 0, bytes as u64)]).expect("it is posted");
                        let mut byte = [0];
                        me.window.read(16 + changed, &mut byte).expect("inside");
                        me.window.write(16 + changed, &[byte[0].wrapping_add(1)]).expect("inside");
                        let error = me.queue.wait(ticket, Completion::Local, TIMEOUT).expect_err("it was changed");
                        reused(&error, "changed");
                        assert_eq!(me.queue.test(ticket, Completion::Local), Err(error.clone()));
                        assert_eq!(me.queue.post(&[]), Err(PostError::Queue(error)));
                    }
                }
            }
            me.meet();
        });
    }
}

fn fresh(me: &Member) -> Arc<dyn campanile_core::Queue> {
    me.comm.transport().queue(QueueTarget::Peer(Rank::new(me.peer)), QueueOptions::default()).expect("a queue")
}

#[test]
fn sources_that_change_when_they_may() {
    job(2, &stack("throttle(latency=20us)+check"), &options(), |comm| {
        let me = Member::new(Arc::clone(&comm), 4096, 1 - comm.rank());
        let mut before = None;
        for round in 0..50_u8 {
            // Two halves, each reused as soon as its own ticket is fulfilled, in turn.
            let half = u64::from(round % 2) * 512;
            me.window.write(half as usize, &[round; 512]).expect("inside");
            let list = [me.put(half, 1024 + half, 512), me.signal(4088, u64::from(round) + 1, Strength::Strong)];
            let ticket = me.queue.post(&list).expect("it is posted");
            me.queue.ring().expect("it rings");
            if let Some(before) = before.replace(ticket) {
                me.queue.wait(before, Completion::Local, TIMEOUT).expect("nothing is misused");
            }
        }
        me.queue.wait(me.queue.flush(), VISIBLE, TIMEOUT).expect("nothing is misused");
        // Bytes beside the source, and the target of a put to oneself that overlaps its source.
        let me = Member::new(Arc::clone(&comm), 4096, comm.rank());
        me.window.write(8, &std::array::from_fn::<_, 64, _>(|byte| byte as u8)).expect("inside");
        let ticket = me.queue.post(&[me.put(8, 12, 64)]).expect("it is posted");
        me.window.write(0, &[1; 8]).expect("inside");
        me.window.write(76, &[1; 8]).expect("inside");
        me.queue.wait(ticket, VISIBLE, TIMEOUT).expect("nothing is misused");
        me.meet();
    });
}

#[test]
fn a_region_that_is_dropped_too_early() {
    job(2, &stack("check"), &options(), |comm| {
        let me = Member::new(Arc::clone(&comm), 4096, 1 - comm.rank());
        let mut memory = vec![7_u8; 64];
        let span = Memory { address: memory.as_mut_ptr(), bytes: memory.len(), kind: MemoryKind::Host };
        // SAFETY: `memory` outlives the region, which is dropped below.
        let region = unsafe { comm.transport().register(span) }.wait(TIMEOUT).expect("it registers");
        let source = LocalAddress { region: region.key(), offset: 0 };
        let put = Op::Put { source, target: me.remote(0), bytes: 64 };
        let ticket = me.queue.post(&[put]).expect("it is posted");
        me.queue.wait(ticket, Completion::Local, TIMEOUT).expect("it completes");
        let ticket = me.queue.post(&[put]).expect("it is posted");
        drop(region);
        invalid(&me, put, "which the caller dropped");
        assert!(me.queue.wait(ticket, Completion::Local, TIMEOUT).is_err(), "shm finds that out too");
        // A window that is gone.
        let other = Member::new(Arc::clone(&comm), 64, me.peer);
        let (target, queue) = (other.remote(0), fresh(&me));
        me.meet();
        drop(other.window);
        let gone = queue.post(&[Op::Put { source: me.local(0), target, bytes: 8 }]);
        let Err(PostError::Invalid { reason, .. }) = &gone else { panic!("{gone:?}") };
        assert!(reason.contains("remote region") && reason.contains("which the caller dropped"), "{reason}");
        me.meet();
    });
}

#[test]
fn addresses_that_are_none() {
    job(2, &stack("check"), &options(), |comm| {
        let me = Member::new(Arc::clone(&comm), 4096, 1 - comm.rank());
        let signal = |offset| {
            let target = me.remote(offset);
            Op::Signal(SignalUpdate { target, action: SignalAction::Set, value: 1, strength: Strength::Weak })
        };
        invalid(&me, signal(4), "its signal is at offset 4; words are 8-byte aligned");
        invalid(&me, signal(4096), "its signal, 8 bytes at offset 4096, is outside its remote region of 4096 bytes");
        invalid(&me, signal(u64::MAX - 7), "outside");
        invalid(&me, me.put(4090, 0, 7), "its source, 7 bytes at offset 4090, is outside its local region");
        invalid(&me, me.put(0, 4090, 7), "its target");
        invalid(&me, me.put(0, u64::MAX, 7), "outside");
        let source = LocalAddress { region: campanile_core::RegionKey(12345), offset: 0 };
        invalid(&me, Op::Put { source, target: me.remote(0), bytes: 0 }, "which does not exist");
        let own = RemoteAddress { region: me.window.remote(comm.rank()).key(), offset: 0 };
        let whose = format!("belongs to rank {}, the queue leads to rank {}", comm.rank(), me.peer);
        invalid(&me, Op::Put { source: me.local(0), target: own, bytes: 1 }, &whose);
        let swap = AtomicOp::Swap { value: 1, result: me.local(4090) };
        invalid(&me, Op::Atomic { op: swap, target: me.remote(0) }, "its result");
        invalid(&me, Op::Atomic { op: AtomicOp::Add { operand: 1 }, target: me.remote(9) }, "its atomic");
        invalid(&me, Op::Get { source: me.remote(0), target: me.local(4095), bytes: 2 }, "its target");
        me.queue.wait(me.queue.flush(), VISIBLE, TIMEOUT).expect("a refused list is not posted");
        assert_eq!(me.window.word(0).load(Ordering::Acquire), 0);
        me.meet();
    });
}

#[test]
fn tickets_of_other_queues_and_transports() {
    // Each transport numbers its queues anew: tickets of two transports look the same below.
    let tickets = job(1, &stack("check"), &options(), |comm| {
        let (me, other) = (Member::new(Arc::clone(&comm), 64, 0), Member::new(comm, 64, 0));
        let ticket = other.queue.post(&[other.put(0, 8, 8)]).expect("it is posted");
        for asked in [
            me.queue.test(ticket, VISIBLE).map(|_| ()),
            me.queue.wait(ticket, VISIBLE, TIMEOUT),
            me.queue.cancel(ticket).map(|_| ()),
        ] {
            assert!(matches!(asked, Err(QueueError::ForeignTicket { given, .. }) if given == ticket.queue()));
        }
        other.queue.wait(ticket, VISIBLE, TIMEOUT).expect("it is this queue's");
        ticket
    });
    job(1, &stack("check"), &options(), |comm| {
        let queues: Vec<_> = (0..4).map(|_| Member::new(Arc::clone(&comm), 64, 0)).collect();
        for me in &queues {
            me.queue.post(&[me.put(0, 8, 8)]).expect("it is posted");
            assert!(matches!(me.queue.test(tickets[0], VISIBLE), Err(QueueError::ForeignTicket { .. })));
        }
    });
}

#[test]
fn what_comes_after_shutdown() {
    job(1, &stack("check"), &options(), |comm| {
        let me = Member::new(Arc::clone(&comm), 64, 0);
        let transport = comm.transport();
        transport.shutdown(Shutdown::Drain).expect("it ends");
        let posted = me.queue.post(&[me.put(0, 8, 8)]);
        let Err(PostError::Invalid { index: 0, reason }) = &posted else { panic!("{posted:?}") };
        assert!(reason.contains("posts after it shut the transport down"), "{reason}");
        let refused: [Option<ControlError>; 4] = [
            transport.queue(QueueTarget::Peer(Rank(0)), QueueOptions::default()).err(),
            transport.allocate(64, MemoryKind::Host).wait(TIMEOUT).err(),
            transport.export(me.window.region(), &[Rank(0)]).err(),
            transport.import(Rank(0), &[0; 24]).wait(TIMEOUT).err(),
        ];
        for error in refused.map(|refused| refused.expect("it is refused")) {
            assert!(error.to_string().contains("the caller shut the transport down before"), "{error}");
        }
        transport.shutdown(Shutdown::Drain).expect("twice is legal");
    });
}
