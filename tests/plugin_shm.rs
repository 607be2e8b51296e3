//! The shared-memory transport as a file does what the linked one does: windows by load / store and by queues, signals,
//! waits, faults, and the MoE engine.

use std::sync::Arc;
use std::time::Duration;

use campanile::bootstrap::ThreadBootstrap;
use campanile::core::{
    Cancelled, ControlError, Event, Inline, Memory, PeerClass, PostError, Probed, QueueError, Reach, Shutdown,
    TransportPlugin, WaitError,
};
use campanile::moe::exchange::{ExchangeOptions, run};
use campanile::moe::model::{compare, solve};
use campanile::moe::{DType, Problem, RankInput, Solution};
use campanile::{
    Agent, AtomicOp, CommError, CommOptions, Communicator, Completion, Condition, Fault, FaultKind, LocalAddress,
    MemoryKind, MoeError, Op, Path, QueueOptions, QueueTarget, Rank, RemoteAddress, SignalAction, SignalUpdate,
    Strength, Wait,
};
use campanile_plugin::Loader;

#[path = "plugins/library.rs"]
mod library;

fn plugin() -> &'static dyn TransportPlugin {
    let file = library::Library::Shm.file();
    Loader::default().load_file(&file).expect("it is a plugin")
}

/// Runs `body` on ranks that are threads, connected by the plugin.
fn ranks<T: Send, E: From<CommError> + Send>(
    ranks: usize,
    options: &CommOptions,
    body: impl Fn(&Arc<Communicator>) -> Result<T, E> + Sync,
) -> Vec<Result<T, E>> {
    let (plugin, body) = (plugin(), &body);
    std::thread::scope(|scope| {
        let rank = |bootstrap: ThreadBootstrap| {
            scope.spawn(move || body(&Arc::new(Communicator::new(Arc::new(bootstrap), plugin, options.clone())?)))
        };
        let ranks: Vec<_> = ThreadBootstrap::world(ranks).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank does not panic")).collect()
    })
}

fn all<T>(ranks: Vec<Result<T, CommError>>) -> Vec<T> {
    ranks.into_iter().map(Result::unwrap).collect()
}

fn options(path: Path) -> CommOptions {
    CommOptions { path, timeout: Duration::from_secs(20), ..CommOptions::default() }
}

#[test]
fn it_says_what_the_linked_one_says() {
    let (linked, loaded) = (&campanile::shm::ShmPlugin as &dyn TransportPlugin, plugin());
    assert_eq!(loaded.info(), linked.info());
    assert_eq!(loaded.probe(), linked.probe());
    assert!(matches!(&loaded.probe()[..], [Probed { usable: Ok(_), .. }]));
    assert!(std::ptr::addr_eq(plugin(), loaded), "a file is loaded once");

    all(ranks(2, &options(Path::Auto), |comm| {
        let (transport, bootstrap) = (comm.transport(), ThreadBootstrap::world(1).remove(0));
        let other = Communicator::new(Arc::new(bootstrap), &campanile::shm::ShmPlugin, CommOptions::default())?;
        for class in [PeerClass::Own, PeerClass::Node, PeerClass::Remote] {
            for memory in [MemoryKind::Host, MemoryKind::Device(0)] {
                for op in [campanile::core::OpKind::Put, campanile::core::OpKind::PutInline] {
                    assert_eq!(transport.caps(class, memory, op), other.transport().caps(class, memory, op));
                }
            }
        }
        let elsewhere = campanile::core::Node::new("elsewhere");
        assert!(matches!(transport.reach(Rank(1), &elsewhere), Reach::No(reason) if reason.contains("elsewhere")));
        Ok::<_, CommError>(())
    }));
}

#[test]
fn windows_signals_and_waits() {
    for path in [Path::Auto, Path::LoadStore, Path::Queue] {
        all(ranks(3, &options(path), |comm| {
            let window = comm.window(8192, MemoryKind::Host)?;
            assert_eq!(window.map(1 - comm.rank() % 2).is_some(), path != Path::Queue);
            let (next, previous) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
            for round in 1..=100_u64 {
                window.write(0, &[round as u8 + comm.rank() as u8; 1000])?;
                window.put(next, window.region(), 0, 4096 + 1000 * (round as usize % 2), 1000)?;
                window.signal(next, 2048 + 8 * comm.rank(), round)?;
                window.wait(previous, 2048 + 8 * previous, Condition::AtLeast(round), "round")?;
                let mut got = [0; 1000];
                window.read(4096 + 1000 * (round as usize % 2), &mut got)?;
                assert_eq!(got, [round as u8 + previous as u8; 1000], "round {round}");
                window.flush(next)?;
                // The sender overwrites this half two rounds from now.
                window.signal(previous, 3072 + 8 * comm.rank(), round)?;
                window.wait(next, 3072 + 8 * next, Condition::AtLeast(round), "credit")?;
            }
            Ok::<_, CommError>(())
        }));
    }
}

#[test]
fn every_operation() {
    all(ranks(1, &options(Path::Auto), |comm| {
        let window = comm.window(4096, MemoryKind::Host)?;
        let queue = comm.transport().queue(QueueTarget::Peer(Rank(0)), QueueOptions::default())?;
        let local = |offset| LocalAddress { region: window.region().key(), offset };
        let remote = |offset| RemoteAddress { region: window.remote(0).key(), offset };
        let word = |offset| {
            let mut bytes = [0; 8];
            window.read(offset, &mut bytes).map(|()| u64::from_ne_bytes(bytes))
        };
        let signal = |action, value| SignalUpdate { target: remote(64), value, action, strength: Strength::Strong };
        let done = |ops: &[Op]| {
            let ticket = queue.post(ops).unwrap();
            assert_eq!(queue.test(ticket, Completion::Local), Ok(ops.is_empty()));
            queue.wait(ticket, Completion::Remote(Agent::Cpu), Duration::from_secs(10)).unwrap();
            assert_eq!(queue.flush(), ticket);
        };
        window.write(0, b"campanile")?;
        let put = Op::Put { source: local(0), target: remote(100), bytes: 9 };
        done(&[
            put,
            Op::Fence,
            Op::PutSignal { source: local(0), target: remote(110), bytes: 9, signal: signal(SignalAction::Set, 5) },
        ]);
        done(&[Op::Signal(signal(SignalAction::Add, 2))]);
        let sixty_four = Inline::new(&[7; 64]).unwrap();
        done(&[Op::PutInline { data: sixty_four, target: remote(200) }]);
        done(&[Op::Get { source: remote(200), target: local(300), bytes: 64 }]);
        let mut got = [0; 64];
        window.read(300, &mut got)?;
        assert_eq!(got, [7; 64]);
        window.read(110, &mut got)?;
        assert_eq!(&got[..9], b"campanile");
        assert_eq!(word(64)?, 7);
        let atomic = |op| Op::Atomic { op, target: remote(64) };
        done(&[atomic(AtomicOp::Add { operand: 1 }), atomic(AtomicOp::FetchAdd { operand: 2, result: local(72) })]);
        assert_eq!((word(64)?, word(72)?), (10, 8));
        done(&[atomic(AtomicOp::CompareSwap { swap: 20, result: local(72), compare: 10 })]);
        done(&[atomic(AtomicOp::Swap { value: 30, result: local(80) })]);
        assert_eq!((word(64)?, word(72)?, word(80)?), (30, 10, 20));
        done(&[]);
        Ok::<_, CommError>(())
    }));
}

#[test]
fn errors_are_those_of_the_linked_one() {
    all(ranks(2, &options(Path::Auto), |comm| {
        let window = comm.window(4096, MemoryKind::Host)?;
        let transport = comm.transport();
        let options = QueueOptions { depth: 2, ..QueueOptions::default() };
        let queue = transport.queue(QueueTarget::Peer(Rank(0)), options)?;
        let local = LocalAddress { region: window.region().key(), offset: 4000 };
        let target = RemoteAddress { region: window.remote(0).key(), offset: 0 };
        let put = |bytes| Op::Put { source: local, target, bytes };
        assert_eq!(queue.post(&[put(1); 3]), Err(PostError::TooLarge { needed: 3, depth: 2 }));
        let invalid = queue.post(&[put(1), put(97)]);
        assert!(matches!(invalid, Err(PostError::Invalid { index: 1, reason }) if reason.contains("97 bytes")));
        let ticket = queue.post(&[put(0), put(0)]).unwrap();
        assert_eq!(queue.post(&[put(1)]), Err(PostError::Busy { needed: 1, free: 0 }));
        assert!(queue.describe().contains("depth 2"), "{}", queue.describe());
        assert_eq!(queue.cancel(ticket), Ok(Cancelled::Stopped));
        let gpu = queue.test(ticket, Completion::Remote(Agent::Gpu));
        assert!(matches!(gpu, Err(QueueError::Unsupported { level, .. }) if level == "Gpu"));
        let other = transport.queue(QueueTarget::Engine(0), options)?;
        assert!(matches!(other.test(ticket, Completion::Local), Err(QueueError::ForeignTicket { .. })));
        let no_peer = transport.queue(QueueTarget::Peer(Rank(9)), options).err();
        assert!(matches!(no_peer, Some(ControlError::Unsupported { transport: "shm", what: "queue", .. })));

        let mut own = vec![1_u64; 64];
        let memory = Memory { address: own.as_mut_ptr().cast(), bytes: 512, kind: MemoryKind::Host };
        // SAFETY: `own` outlives the region.
        let region = unsafe { transport.register(memory) }.wait(comm.timeout())?;
        // What is registered is exported; by a file the host does not learn that peers reach it.
        let blob = transport.export(&region, &[Rank::new(comm.rank())])?;
        let own = transport.import(Rank::new(comm.rank()), &blob).wait(comm.timeout())?;
        assert_eq!((own.bytes(), transport.map(&own)), (512, None));
        assert!(transport.reaches_registered(Rank(1)).unwrap_err().contains("shm"));
        drop(own);
        drop(region);
        // Memory of others is where it is.
        let odd = Memory { address: memory.address.wrapping_add(1), bytes: 7, kind: MemoryKind::Host };
        // SAFETY: as above.
        let region = unsafe { transport.register(odd) }.wait(comm.timeout())?;
        assert_eq!((region.address(), region.bytes()), (odd.address, 7));
        drop(region);
        let view = transport.device_view(window.region(), &[]);
        assert!(matches!(view, Err(ControlError::Unsupported { what: "device view", .. })));
        let blob = transport.import(Rank(1), b"nonsense").wait(comm.timeout());
        assert!(matches!(blob, Err(ControlError::BadPeerData { peer: Rank(1), what: "key blob", .. })), "{blob:?}");
        let wait = Wait {
            region: window.region(),
            offset: 4,
            condition: Condition::AtLeast(1),
            peer: Rank(0),
            operation: "a test",
            slot: "word",
            epoch: 0,
        };
        assert!(matches!(transport.signal_wait(&wait), Err(WaitError::Invalid { operation: "a test", .. })));
        Ok::<_, CommError>(())
    }));
}

#[test]
fn faults_and_departures() {
    let gone = ranks(3, &options(Path::Auto), |comm| {
        let window = comm.window(4096, MemoryKind::Host)?;
        if comm.rank() == 2 {
            // Gone without a shutdown of its own accord: an orderly one, as a communicator does.
            comm.transport().shutdown(Shutdown::Drain)?;
            return Ok(());
        }
        let error = window.wait(2, 0, Condition::AtLeast(1), "a test").unwrap_err();
        let fault = error.fault().expect("somebody left");
        assert_eq!((fault.culprit, fault.kind), (Rank(2), FaultKind::Left));
        assert!(error.to_string().contains("rank 2"), "{error}");
        assert_eq!(comm.transport().gone(Rank(2)), Some(FaultKind::Left));
        assert_eq!(comm.transport().poll_event(), Some(Event::PeerLeft(Rank(2))));
        assert_eq!(comm.transport().poll_event(), None);
        let survivors = comm.mask(&[2])?;
        assert_eq!((survivors.ranks(), comm.transport().fault()), (2, None));
        survivors.gather("no fault is seen", &[])?;
        if comm.rank() == 0 {
            let fault = Fault { culprit: Rank(0), kind: FaultKind::Aborted, reporter: Rank(0) };
            assert_eq!(comm.transport().report(fault), fault);
        }
        let error = window.wait(1 - survivors.rank(), 0, Condition::AtLeast(1), "a test").unwrap_err();
        assert_eq!(error.fault().map(|fault| (fault.culprit, fault.kind)), Some((Rank(0), FaultKind::Aborted)));
        Ok(())
    });
    all(gone);
}

/// Three ranks, five experts, top-2.
fn problem() -> Problem {
    let (tokens, hidden, topk) = ([5, 0, 9], 24, 2);
    let rank = |(rank, tokens): (usize, usize)| RankInput {
        tokens,
        // bf16 values around 1.
        x: (0..tokens * hidden).flat_map(|n| (0x3f80 + (n * 7 + rank) as u16 % 128).to_le_bytes()).collect(),
        scales: Vec::new(),
        topk_idx: (0..tokens * topk).map(|n| ((n * 3 + rank) % 6) as i32 - 1).collect(),
        topk_weights: (0..tokens * topk).map(|n| 0.25 + n as f32 / 16.0).collect(),
    };
    Problem {
        dtype: DType::BF16,
        combine_dtype: DType::BF16,
        hidden,
        topk,
        scales: 0,
        quantize: false,
        expert_rank: Problem::block_map(5, 3),
        expert_scale: None,
        weighted: true,
        ranks: tokens.into_iter().enumerate().map(rank).collect(),
    }
}

#[test]
fn the_moe_engine() {
    let problem = problem();
    for path in [Path::Auto, Path::Queue] {
        let ended = ranks::<_, MoeError>(3, &options(path), |comm| {
            run(comm, &problem, &ExchangeOptions { keep_received: true, ..ExchangeOptions::default() })
        });
        let ranks: Vec<_> = ended.into_iter().map(|rank| rank.unwrap().output).collect();
        compare(&problem, &solve(&problem), &Solution { ranks }).unwrap();
    }
}
