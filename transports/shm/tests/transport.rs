//! The transport through its traits alone: connecting, regions, every operation of a queue, waits, and ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use campanile_core::{
    Agent, AtomicOp, Cancelled, Completion, Condition, ControlError, Event, FaultKind, HugePages, Inline, LocalAddress,
    Memory, MemoryKind, Node, Op, OpenOptions, PeerClass, PostError, Queue, QueueError, QueueOptions, QueueTarget,
    Rank, Reach, Region, RemoteAddress, RemoteRegion, Shutdown, SignalAction, SignalUpdate, Strength, Transport,
    TransportPlugin, Wait, WaitError,
};
use campanile_shm::ShmPlugin;

const TIMEOUT: Duration = Duration::from_secs(20);

fn open(rank: usize, ranks: usize, timeout: Duration) -> Arc<dyn Transport> {
    let options = OpenOptions {
        rank: Rank::new(rank),
        ranks,
        node: Node::new("here"),
        ranks_on_node: ranks,
        cores: 0,
        huge_pages: HugePages::Auto,
        timeout,
    };
    ShmPlugin.open("node", options).expect("it opens")
}

/// One rank of a test: its transport, a region of 4096 bytes, and every rank's region.
struct Member {
    transport: Arc<dyn Transport>,
    rank: usize,
    region: Region,
    remotes: Vec<RemoteRegion>,
    meet: Arc<Barrier>,
}

impl Member {
    fn queue(&self, peer: usize, depth: usize) -> Arc<dyn Queue> {
        let options = QueueOptions { depth, ..QueueOptions::default() };
        self.transport.queue(QueueTarget::Peer(Rank::new(peer)), options).expect("a queue")
    }

    fn local(&self, offset: u64) -> LocalAddress {
        LocalAddress { region: self.region.key(), offset }
    }

    fn remote(&self, peer: usize, offset: u64) -> RemoteAddress {
        RemoteAddress { region: self.remotes[peer].key(), offset }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: tests use aligned offsets inside the 4096 bytes, as atomics only.
        unsafe { AtomicU64::from_ptr(self.region.address().add(offset).cast()) }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.region.bytes());
        // SAFETY: inside the region; tests write only where nobody else does.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.region.address().add(offset), bytes.len()) };
    }

    fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        assert!(offset + bytes <= self.region.bytes());
        // SAFETY: inside the region; tests read only what a signal or a barrier has announced.
        unsafe { std::slice::from_raw_parts(self.region.address().add(offset), bytes).to_vec() }
    }

    fn wait(&self, peer: usize, offset: usize, value: u64) -> Result<u64, WaitError> {
        self.transport.signal_wait(&Wait {
            region: &self.region,
            offset,
            condition: Condition::AtLeast(value),
            peer: Rank::new(peer),
            operation: "test",
            slot: "word",
            epoch: value,
        })
    }
}

fn done(queue: &dyn Queue, ops: &[Op]) {
    let ticket = queue.post(ops).expect("it is posted");
    queue.wait(ticket, Completion::Remote(Agent::Cpu), TIMEOUT).expect("it completes");
    assert!(queue.test(ticket, Completion::Local).expect("a ticket stays fulfilled"));
}

/// Connects `ranks` threads, gives each a region that all have imported, and runs `body` on each.
fn ranks<T: Send>(ranks: usize, timeout: Duration, body: impl Fn(Member) -> T + Sync) -> Vec<T> {
    let board = Mutex::new(vec![(Vec::new(), Vec::new()); ranks]);
    let meet = Arc::new(Barrier::new(ranks));
    let member = |rank: usize| {
        let transport = open(rank, ranks, timeout);
        board.lock().unwrap()[rank].0 = transport.address();
        meet.wait();
        let peers: Vec<_> =
            board.lock().unwrap().iter().enumerate().map(|(peer, (a, _))| (Rank::new(peer), a.clone())).collect();
        let endpoints = transport.connect(&peers).wait(TIMEOUT).expect("all connect");
        assert_eq!(endpoints.len(), ranks);
        assert_eq!(endpoints[rank].class, PeerClass::Own);
        let region = transport.allocate(4096, MemoryKind::Host).wait(TIMEOUT).expect("memory");
        let everyone: Vec<_> = (0..ranks).map(Rank::new).collect();
        board.lock().unwrap()[rank].1 = transport.export(&region, &everyone).expect("an export");
        meet.wait();
        let blobs: Vec<_> = board.lock().unwrap().iter().map(|(_, blob)| blob.clone()).collect();
        let import = |(peer, blob): (usize, Vec<u8>)| transport.import(Rank::new(peer), &blob).wait(TIMEOUT);
        let remotes = blobs.into_iter().enumerate().map(import).collect::<Result<_, _>>().expect("imports");
        meet.wait();
        body(Member { transport, rank, region, remotes, meet: Arc::clone(&meet) })
    };
    std::thread::scope(|scope| {
        let member = &member;
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || member(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

#[test]
fn puts_of_every_size_land_and_touch_nothing_else() {
    ranks(2, TIMEOUT, |me| {
        if me.rank == 0 {
            let queue = me.queue(1, 64);
            for bytes in [0, 1, 7, 8, 63, 64, 65, 1000] {
                me.write(0, &vec![bytes as u8; 1024]);
                me.meet.wait();
                let target = me.remote(1, 1025);
                done(&*queue, &[Op::Put { source: me.local(3), target, bytes }]);
                me.meet.wait();
                me.meet.wait();
            }
        } else {
            for bytes in [0, 1, 7, 8, 63, 64, 65, 1000] {
                me.write(1024, &[0xee; 1100]);
                me.meet.wait();
                me.meet.wait();
                let mut expected = vec![0xee; 1100];
                expected[1..=bytes].fill(bytes as u8);
                assert_eq!(me.read(1024, 1100), expected);
                me.meet.wait();
            }
        }
    });
}

#[test]
fn every_operation_does_what_it_says() {
    ranks(2, TIMEOUT, |me| {
        let peer = 1 - me.rank;
        me.word(0).store(40, Ordering::Relaxed);
        me.write(64, &[me.rank as u8 + 1; 32]);
        me.meet.wait();
        if me.rank == 0 {
            let queue = me.queue(peer, 8);
            let word = me.remote(peer, 0);
            let result = me.local(512);
            done(&*queue, &[Op::Atomic { op: AtomicOp::FetchAdd { operand: 2, result }, target: word }]);
            assert_eq!(me.word(512).load(Ordering::Relaxed), 40);
            done(&*queue, &[Op::Atomic { op: AtomicOp::CompareSwap { compare: 1, swap: 9, result }, target: word }]);
            assert_eq!(me.word(512).load(Ordering::Relaxed), 42);
            done(&*queue, &[Op::Atomic { op: AtomicOp::CompareSwap { compare: 42, swap: 9, result }, target: word }]);
            done(&*queue, &[Op::Atomic { op: AtomicOp::Swap { value: 100, result }, target: word }]);
            assert_eq!(me.word(512).load(Ordering::Relaxed), 9);
            done(&*queue, &[Op::Atomic { op: AtomicOp::Add { operand: u64::MAX }, target: word }, Op::Fence]);
            let data = Inline::new(b"inline").expect("it is short");
            done(&*queue, &[Op::PutInline { data, target: me.remote(peer, 128) }]);
            done(&*queue, &[Op::Get { source: me.remote(peer, 64), target: me.local(256), bytes: 32 }]);
            assert_eq!(me.read(256, 32), [2; 32]);
            let signal =
                |action, value| SignalUpdate { target: me.remote(peer, 8), action, value, strength: Strength::Strong };
            let put = Op::PutSignal {
                source: me.local(64),
                target: me.remote(peer, 192),
                bytes: 32,
                signal: signal(SignalAction::Set, 5),
            };
            done(&*queue, &[put, Op::Signal(signal(SignalAction::Add, 2))]);
        } else {
            assert_eq!(me.wait(0, 8, 7).expect("the signal"), 7);
            assert_eq!(me.read(192, 32), [1; 32]);
            assert_eq!(me.word(0).load(Ordering::Relaxed), 99);
            assert_eq!(me.read(128, 6), b"inline");
        }
    });
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    ranks(2, TIMEOUT, |me| {
        let (peer, queue) = (1 - me.rank, me.queue(1 - me.rank, 4));
        let put = |offset, bytes| Op::Put { source: me.local(0), target: me.remote(peer, offset), bytes };
        let invalid = |op: Op, fragment: &str| match queue.post(&[put(0, 1), op]) {
            Err(PostError::Invalid { index: 1, reason }) => assert!(reason.contains(fragment), "{reason}"),
            other => panic!("{other:?}"),
        };
        invalid(put(4096, 1), "outside");
        invalid(put(4095, 2), "outside");
        invalid(put(u64::MAX, 2), "outside");
        invalid(Op::Put { source: me.local(4090), target: me.remote(peer, 0), bytes: 7 }, "local");
        invalid(Op::Put { source: me.local(0), target: me.remote(me.rank, 0), bytes: 7 }, "belongs to");
        let unaligned = Op::Atomic { op: AtomicOp::Add { operand: 1 }, target: me.remote(peer, 4) };
        invalid(unaligned, "aligned");
        assert_eq!(queue.post(&[put(0, 1); 5]), Err(PostError::TooLarge { needed: 5, depth: 4 }));
        // A full queue is busy, and free again after progress.
        let ticket = queue.post(&[put(0, 1); 4]).expect("four fit");
        assert_eq!(queue.post(&[put(0, 1)]), Err(PostError::Busy { needed: 1, free: 0 }));
        assert!(!queue.test(ticket, Completion::Local).expect("it is known"));
        assert_eq!(queue.progress(), Ok(0), "what was not rung is not executed");
        queue.ring().expect("it rings");
        assert_eq!(queue.progress(), Ok(4));
        assert!(queue.test(ticket, Completion::Local).expect("it is known"));
        // Tickets belong to their queue; completion is for CPUs.
        let other = me.queue(peer, 4);
        assert!(matches!(other.test(ticket, Completion::Local), Err(QueueError::ForeignTicket { .. })));
        let gpu = queue.test(ticket, Completion::Remote(Agent::Gpu));
        assert!(matches!(gpu, Err(QueueError::Unsupported { .. })));
        assert_eq!(queue.cancel(ticket), Ok(Cancelled::TooLate));
        // An empty list completes with what is before it.
        let empty = queue.post(&[]).expect("it is legal");
        assert!(queue.test(empty, Completion::Local).expect("it is known"));
        // What does not exist.
        for target in [QueueTarget::Peer(Rank(7)), QueueTarget::Engine(3)] {
            assert!(matches!(
                me.transport.queue(target, QueueOptions::default()),
                Err(ControlError::Unsupported { .. })
            ));
        }
        let odd = QueueOptions { depth: 3, ..QueueOptions::default() };
        assert!(me.transport.queue(QueueTarget::Engine(0), odd).is_err());
        let host = me.transport.allocate(64, MemoryKind::Host).wait(TIMEOUT).expect("memory");
        assert!(matches!(me.transport.device_view(&host, &[]), Err(ControlError::Unsupported { .. })));
        me.meet.wait();
    });
}

#[test]
fn a_cancelled_post_does_not_run() {
    ranks(1, TIMEOUT, |me| {
        let queue = me.queue(0, 8);
        let set = |value| {
            let target = me.remote(0, 0);
            Op::Signal(SignalUpdate { target, action: SignalAction::Set, value, strength: Strength::Weak })
        };
        queue.post(&[set(1)]).expect("it is posted");
        let second = queue.post(&[set(2)]).expect("it is posted");
        assert_eq!(queue.cancel(second), Ok(Cancelled::Stopped));
        queue.wait(second, Completion::Local, TIMEOUT).expect("a cancelled ticket completes");
        assert_eq!(me.word(0).load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_dropped_region_fails_what_still_names_it() {
    ranks(2, TIMEOUT, |me| {
        let peer = 1 - me.rank;
        let mut memory = vec![7_u8; 100];
        let span = Memory { address: memory.as_mut_ptr(), bytes: memory.len(), kind: MemoryKind::Host };
        // SAFETY: `memory` outlives the region, which is dropped below.
        let region = unsafe { me.transport.register(span) }.wait(TIMEOUT).expect("it registers");
        assert!(me.transport.export(&region, &[Rank::new(5)]).is_err(), "to nobody");
        let source = LocalAddress { region: region.key(), offset: 0 };
        let put = Op::Put { source, target: me.remote(peer, 0), bytes: 100 };
        let queue = me.queue(peer, 8);
        done(&*queue, &[put]);
        let ticket = queue.post(&[put]).expect("it is posted");
        drop(region);
        assert!(matches!(queue.post(&[put]), Err(PostError::Invalid { .. })), "the key is stale");
        let failed = queue.wait(ticket, Completion::Local, TIMEOUT).expect_err("its source is gone");
        assert!(matches!(&failed, QueueError::Completion { reason, .. } if reason.contains("dropped")), "{failed}");
        assert_eq!(queue.progress(), Err(failed), "a failed queue stays failed");
        me.meet.wait();
        assert_eq!(me.read(0, 100), [7; 100]);
    });
}

#[test]
fn many_producers_share_a_queue() {
    ranks(2, TIMEOUT, |me| {
        if me.rank == 0 {
            let queue = me.queue(1, 16);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let add = Op::Atomic { op: AtomicOp::Add { operand: 1 }, target: me.remote(1, 0) };
                        for _ in 0..500 {
                            let ticket = loop {
                                match queue.post(&[add, add]) {
                                    Ok(ticket) => break ticket,
                                    Err(PostError::Busy { .. }) => {
                                        queue.ring().expect("it rings");
                                        queue.progress().expect("it progresses");
                                    }
                                    Err(error) => panic!("{error}"),
                                }
                            };
                            queue.wait(ticket, Completion::Local, TIMEOUT).expect("it completes");
                        }
                    });
                }
            });
        }
        me.meet.wait();
        if me.rank == 1 {
            assert_eq!(me.word(0).load(Ordering::Relaxed), 4000);
        }
    });
}

#[test]
fn stores_through_a_mapping_wake_a_sleeper() {
    ranks(2, TIMEOUT, |me| {
        let peer = 1 - me.rank;
        let base = me.transport.map(&me.remotes[peer]).expect("load / store reaches");
        // SAFETY: offset 8 · 100 of the peer's region, used as an atomic only.
        let word = unsafe { AtomicU64::from_ptr(base.as_ptr().add(800).cast()) };
        for round in 1..50 {
            if me.rank == 0 {
                // Long enough for the peer to fall asleep, now and then.
                std::thread::park_timeout(Duration::from_micros(round * 100));
                word.store(round, Ordering::Release);
                me.transport.notify(Rank::new(peer));
                me.wait(peer, 800, round).expect("the answer");
            } else {
                assert_eq!(me.wait(peer, 800, round), Ok(round));
                word.store(round, Ordering::Release);
                me.transport.notify(Rank::new(peer));
            }
        }
    });
}

#[test]
fn a_wait_that_times_out_names_the_peer_and_the_word() {
    let ended = ranks(2, Duration::from_millis(300), |me| {
        let error = (me.rank == 0).then(|| me.wait(1, 16, 3).expect_err("nobody signals"));
        me.meet.wait();
        // The other rank learns of it at its next wait.
        error.unwrap_or_else(|| me.wait(0, 16, 3).expect_err("the job has a fault"))
    });
    match &ended[0] {
        WaitError::Timeout { fault, state, .. } => {
            assert_eq!((fault.culprit, fault.kind), (Rank(1), FaultKind::Stalled));
            assert_eq!((state.offset, state.expected, state.seen), (16, Condition::AtLeast(3), 0));
        }
        other => panic!("{other}"),
    }
    assert_eq!(ended[1].fault().map(|fault| fault.culprit), Some(Rank(1)));
}

#[test]
fn a_chain_of_waits_blames_its_end() {
    // 0 waits for 1, which waits for 2, which does not wait at all.
    let ended = ranks(3, Duration::from_millis(600), |me| {
        let error = (me.rank < 2).then(|| me.wait(me.rank + 1, 0, 1).expect_err("nobody signals"));
        me.meet.wait();
        error
    });
    for error in ended.into_iter().flatten() {
        assert_eq!(error.fault().map(|fault| fault.culprit), Some(Rank(2)), "{error}");
    }
}

#[test]
fn leaving_and_dying_are_told_apart() {
    ranks(3, TIMEOUT, |me| {
        let transport = Arc::clone(&me.transport);
        me.meet.wait();
        match me.rank {
            0 => {
                let mut events = Vec::new();
                while events.len() < 2 {
                    events.extend(transport.poll_event());
                    std::thread::yield_now();
                }
                events.sort_by_key(|event| match event {
                    Event::PeerLeft(rank) | Event::PeerDied(rank) => *rank,
                    _ => Rank(99),
                });
                assert_eq!(events, [Event::PeerLeft(Rank(1)), Event::PeerDied(Rank(2))]);
                assert_eq!(transport.poll_event(), None);
                // What a peer had signalled before it went is still good; more will not come.
                assert_eq!(me.wait(1, 24, 9), Ok(9));
                let fault = me.wait(1, 24, 10).expect_err("it is gone").fault().expect("a fault");
                assert_eq!((fault.culprit, fault.kind), (Rank(1), FaultKind::Left));
            }
            1 => {
                let base = transport.map(&me.remotes[0]).expect("load / store reaches");
                // SAFETY: offset 24 of the peer's region, used as an atomic only.
                unsafe { AtomicU64::from_ptr(base.as_ptr().add(24).cast()) }.store(9, Ordering::Release);
                transport.shutdown(Shutdown::Drain).expect("it drains");
                transport.shutdown(Shutdown::Drain).expect("twice is once");
            }
            // Dropped without a shutdown.
            _ => {}
        }
    });
}

#[test]
fn reach_and_probe_explain_themselves() {
    let transport = open(0, 2, TIMEOUT);
    assert!(matches!(transport.reach(Rank(1), &Node::new("here")), Reach::Yes(_)));
    match transport.reach(Rank(1), &Node::new("there")) {
        Reach::No(reason) => assert!(reason.contains("there") && reason.contains("rank 1"), "{reason}"),
        Reach::Yes(_) => panic!("another node shares no memory"),
    }
    assert!(transport.caps(PeerClass::Remote, MemoryKind::Host, campanile_core::OpKind::Put).is_none());
    let probed = ShmPlugin.probe();
    assert!(probed.iter().any(|probed| probed.device == "node" && probed.usable.is_ok()));
    let options = OpenOptions {
        rank: Rank(0),
        ranks: 1,
        node: Node::new("here"),
        ranks_on_node: 1,
        cores: 0,
        huge_pages: HugePages::Never,
        timeout: TIMEOUT,
    };
    let refused = ShmPlugin.open("gpu0", options).err().expect("there is no such device");
    assert!(refused.to_string().contains("gpu0") && refused.to_string().contains("node"), "{refused}");
}

#[test]
fn a_missing_peer_is_named_by_connect() {
    let (here, there) = (open(0, 2, TIMEOUT), open(1, 2, TIMEOUT));
    let peers = [(Rank(0), here.address()), (Rank(1), there.address())];
    // Rank 1 never connects.
    let error = here.connect(&peers).wait(Duration::from_millis(200)).expect_err("it does not come");
    assert!(matches!(&error, ControlError::Timeout { what, .. } if what.contains("rank 1")), "{error}");
    let gone = there.address();
    drop(there);
    let third = open(2, 3, TIMEOUT);
    let error = third.connect(&[(Rank(1), gone), (Rank(2), third.address())]).wait(TIMEOUT).expect_err("it is gone");
    assert!(matches!(error, ControlError::PeerGone { peer: Rank(1), .. }), "{error}");
}
