//! What the host does for a plugin that does not: the shared-memory transport with only the functions that every plugin
//! has, as an old plugin or a small one in C gives them.

use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

use campanile_bootstrap::ThreadBootstrap;
use campanile_core::{
    Agent, Cancelled, CommError, CommOptions, Communicator, Completion, Condition, ControlError, Event, Fault,
    FaultKind, LocalAddress, Memory, MemoryKind, Op, OpKind, PeerClass, QueueOptions, QueueTarget, Rank, RemoteAddress,
    Shutdown, SignalAction, SignalUpdate, Strength, Wait, WaitError,
};
use campanile_plugin::abi;

use crate::changed::{Change, opened_by, plugin};

/// Tables that end behind what every transport has, and behind `ring`, which this one needs.
struct Cut;

impl Change for Cut {
    fn transport(table: &mut abi::Transport) {
        table.struct_size = offset_of!(abi::Transport, register_memory) as u64;
    }

    fn queue(table: &mut abi::Queue) {
        table.struct_size = offset_of!(abi::Queue, flush) as u64;
    }
}

/// Runs `body` on ranks that are threads.
fn ranks(ranks: usize, timeout: Duration, body: impl Fn(&Communicator) -> Result<(), CommError> + Sync) {
    let (plugin, body) = (plugin::<Cut>(), &body);
    let plugin = &plugin;
    let options = CommOptions { timeout, ..CommOptions::default() };
    std::thread::scope(|scope| {
        let rank = |bootstrap: ThreadBootstrap| {
            let options = options.clone();
            scope.spawn(move || body(&Communicator::new(Arc::new(bootstrap), plugin, options)?))
        };
        let ranks: Vec<_> = ThreadBootstrap::world(ranks).into_iter().map(rank).collect();
        ranks.into_iter().for_each(|rank| rank.join().expect("a rank does not panic").expect("it is right"));
    });
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn load_and_store_reach_nobody_and_queues_everybody() {
    ranks(2, LONG, |comm| {
        let caps = comm.transport().caps(PeerClass::Node, MemoryKind::Host, OpKind::Put).unwrap();
        assert!(!caps.load_store && !comm.maps_all());
        let window = comm.window(4096, MemoryKind::Host)?;
        let other = 1 - comm.rank();
        assert_eq!(window.map(other), None);
        for round in 1..=100_u64 {
            window.write(0, &[round as u8; 100])?;
            window.put(other, window.region(), 0, 1000, 100)?;
            window.signal(other, 8 * 64, round)?;
            window.wait(other, 8 * 64, Condition::AtLeast(round), "round")?;
            let mut got = [0; 100];
            window.read(1000, &mut got)?;
            assert_eq!(got, [round as u8; 100]);
            window.flush(other)?;
            window.signal(other, 8 * 65, round)?;
            window.wait(other, 8 * 65, Condition::AtLeast(round), "credit")?;
        }
        Ok(())
    });
}

#[test]
fn a_flush_is_the_last_post_and_everything_is_too_late_to_cancel() {
    ranks(1, LONG, |comm| {
        let window = comm.window(4096, MemoryKind::Host)?;
        let queue = comm.transport().queue(QueueTarget::Peer(Rank(0)), QueueOptions::default())?;
        let nothing = queue.flush();
        assert_eq!(queue.test(nothing, Completion::Local), Ok(true));
        let put = Op::Put {
            source: LocalAddress { region: window.region().key(), offset: 0 },
            target: RemoteAddress { region: window.remote(0).key(), offset: 64 },
            bytes: 8,
        };
        let (first, second) = (queue.post(&[put])?, queue.post(&[put, put])?);
        assert_eq!(queue.flush(), second);
        assert_eq!(queue.test(first, Completion::Local), Ok(false));
        assert_eq!(queue.progress(), Ok(0), "a flush rings nothing");
        assert_eq!(queue.cancel(second), Ok(Cancelled::TooLate));
        queue.wait(second, Completion::Remote(Agent::Cpu), LONG)?;
        assert!(queue.describe().contains("last mark 3"), "{}", queue.describe());
        Ok(())
    });
}

#[test]
fn a_wait_drives_the_queues_of_its_transport() {
    ranks(1, LONG, |comm| {
        let window = comm.window(4096, MemoryKind::Host)?;
        let queue = comm.transport().queue(QueueTarget::Peer(Rank(0)), QueueOptions::default())?;
        let target = RemoteAddress { region: window.remote(0).key(), offset: 64 };
        let signal = SignalUpdate { target, value: 9, action: SignalAction::Set, strength: Strength::Weak };
        queue.post(&[Op::Signal(signal)])?;
        queue.ring()?;
        assert_eq!(window.wait(0, 64, Condition::AtLeast(9), "its own signal")?, 9);
        Ok(())
    });
}

#[test]
fn what_cannot_be_had_says_so() {
    ranks(1, LONG, |comm| {
        let transport = comm.transport();
        let memory = Memory { address: std::ptr::null_mut(), bytes: 0, kind: MemoryKind::Host };
        // SAFETY: no byte is registered.
        let registered = unsafe { transport.register(memory) }.wait(LONG);
        assert!(matches!(registered, Err(ControlError::Unsupported { transport: "shm", what: "register", .. })));
        let view = transport.device_view(MemoryKind::Device(0));
        assert!(matches!(view, Err(ControlError::Unsupported { what: "device view", .. })));
        transport.notify(Rank(0));

        let window = comm.window(64, MemoryKind::Host)?;
        let wait = |offset, peer| {
            transport.signal_wait(&Wait {
                region: window.region(),
                offset,
                condition: Condition::AtLeast(1),
                peer: Rank(peer),
                operation: "a test",
                slot: "word",
                epoch: 0,
            })
        };
        for (offset, peer, word) in [(4, 0, "multiples of 8"), (64, 0, "multiples of 8"), (0, 5, "not connected")] {
            let Err(WaitError::Invalid { operation: "a test", reason }) = wait(offset, peer) else { panic!() };
            assert!(reason.contains(word), "{reason}");
        }
        Ok(())
    });
}

#[test]
fn a_time_out_names_the_peer() {
    ranks(2, Duration::from_millis(300), |comm| {
        let window = comm.window(64, MemoryKind::Host)?;
        if comm.rank() == 1 {
            // Until the other's time is up.
            while comm.transport().fault().is_none() {
                std::thread::yield_now();
            }
            return Ok(());
        }
        let error = window.wait(1, 8, Condition::AtLeast(3), "a test").unwrap_err();
        let CommError::Wait(WaitError::Timeout { fault, state, waited, .. }) = error else { panic!("{error}") };
        assert_eq!(fault, Fault { culprit: Rank(1), kind: FaultKind::Stalled, reporter: Rank(0) });
        assert_eq!((state.peer, state.offset, state.seen), (Rank(1), 8, 0));
        assert!(waited >= Duration::from_millis(300));
        Ok(())
    });
}

#[test]
fn a_death_is_an_event_and_can_be_masked() {
    ranks(3, LONG, |comm| {
        let window = comm.window(64, MemoryKind::Host)?;
        let transport = comm.transport();
        assert_eq!(transport.poll_event(), None);
        comm.gather("ready", &[])?;
        if comm.rank() == 2 {
            // A drain is nothing to this plugin, and the end of the transport comes with that of the communicator.
            return transport.shutdown(Shutdown::Drain).map_err(Into::into);
        }
        let fault = window.wait(2, 0, Condition::AtLeast(1), "a test").unwrap_err().fault();
        assert_eq!(fault.map(|fault| (fault.culprit, fault.kind)), Some((Rank(2), FaultKind::Died)));
        assert_eq!(transport.poll_event(), Some(Event::PeerDied(Rank(2))));
        assert_eq!(transport.poll_event(), None);

        let survivors = comm.mask(&[2])?;
        assert_eq!((survivors.ranks(), transport.fault()), (2, None));
        let window = survivors.window(64, MemoryKind::Host)?;
        let other = 1 - survivors.rank();
        window.signal(other, 0, 1)?;
        window.wait(other, 0, Condition::AtLeast(1), "without the third")?;
        window.flush(other)?;
        let masked = transport.signal_wait(&Wait {
            region: window.region(),
            offset: 8,
            condition: Condition::AtLeast(1),
            peer: Rank(2),
            operation: "a test",
            slot: "word",
            epoch: 0,
        });
        assert!(matches!(masked, Err(WaitError::Invalid { reason, .. }) if reason.contains("masked")));
        // A fault after that stands on this rank.
        let own = Rank::new(survivors.rank());
        let later = Fault { culprit: own, kind: FaultKind::Aborted, reporter: own };
        survivors.gather("all have waited", &[])?;
        assert_eq!(transport.report(later), later);
        assert_eq!(transport.fault(), Some(later));
        Ok(())
    });
}

#[test]
fn an_abort_is_a_death() {
    ranks(2, LONG, |comm| {
        let window = comm.window(64, MemoryKind::Host)?;
        if comm.rank() == 1 {
            return comm.transport().shutdown(Shutdown::Abort).map_err(Into::into);
        }
        let fault = window.wait(1, 0, Condition::AtLeast(1), "a test").unwrap_err().fault();
        assert_eq!(fault, Some(Fault { culprit: Rank(1), kind: FaultKind::Died, reporter: Rank(1) }));
        Ok(())
    });
}

#[test]
fn a_function_that_every_transport_has_is_asked_for_by_name() {
    unsafe extern "C" fn nothing(
        _: *mut c_void,
        _: abi::Text,
        _: *const abi::OpenOptions,
        transport: *mut *const abi::Transport,
        _: *mut abi::Error,
    ) -> i32 {
        // SAFETY: all bits zero are a table.
        let table = Box::leak(Box::new(unsafe { std::mem::zeroed::<abi::Transport>() }));
        table.struct_size = size_of::<abi::Transport>() as u64;
        // SAFETY: the place is this call's.
        unsafe { *transport = table };
        abi::STATUS_OK
    }
    let plugin = opened_by(nothing);
    let bootstrap = Arc::new(ThreadBootstrap::world(1).remove(0));
    let error = Communicator::new(bootstrap, &plugin, CommOptions::default()).err().unwrap();
    assert!(error.to_string().contains("the transport table has no function close"), "{error}");
}
