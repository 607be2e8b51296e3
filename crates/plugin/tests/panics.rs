//! A panic of a plugin stays on its side: each function gives an error that names it, or the answer that promises least.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{
    Cancelled, Caps, Completion, Condition, ControlError, DeviceView, Endpoint, Event, Fault, FaultKind, HugePages,
    Memory, MemoryKind, Node, Op, OpKind, OpenError, OpenOptions, PeerClass, PostError, Probed, Queue, QueueError,
    QueueOptions, QueueTarget, Rank, Reach, Region, RegionKey, RemoteKey, RemoteRegion, Request, Shutdown, Ticket,
    Transport, TransportInfo, TransportPlugin, Wait, WaitError,
};
use campanile_plugin::{Exported, Imported};

/// Panics wherever it can: all but what gives the objects on which the other functions are called.
struct Panicking;

const INFO: TransportInfo = TransportInfo { name: "panicking", version: "1", summary: "panics", device_code: None };

impl TransportPlugin for Panicking {
    fn info(&self) -> TransportInfo {
        INFO
    }

    fn probe(&self) -> Vec<Probed> {
        panic!("boom {}", 1)
    }

    fn open(&self, device: &str, _: OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        if device == "bad" { panic!("boom") } else { Ok(Arc::new(Self)) }
    }
}

impl Transport for Panicking {
    fn info(&self) -> TransportInfo {
        INFO
    }

    fn caps(&self, _: PeerClass, _: MemoryKind, _: OpKind) -> Option<Caps> {
        panic!("boom")
    }

    fn reach(&self, _: Rank, _: &Node) -> Reach {
        panic!("boom")
    }

    fn address(&self) -> Vec<u8> {
        panic!("boom")
    }

    fn connect(&self, _: &[(Rank, Vec<u8>)]) -> Request<Vec<Endpoint>> {
        panic!("boom")
    }

    fn allocate(&self, bytes: usize, kind: MemoryKind) -> Request<Region> {
        if bytes == 0 {
            panic!("boom");
        }
        let memory: Arc<Vec<u64>> = Arc::new(vec![0; bytes.div_ceil(8)]);
        Request::done(Ok(Region::new(RegionKey(1), memory.as_ptr().cast_mut().cast(), bytes, kind, memory)))
    }

    unsafe fn register(&self, _: Memory) -> Request<Region> {
        panic!("boom")
    }

    fn export(&self, _: &Region, _: &[Rank]) -> Result<Vec<u8>, ControlError> {
        panic!("boom")
    }

    fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion> {
        if blob.is_empty() {
            panic!("boom");
        }
        Request::done(Ok(RemoteRegion::new(RemoteKey(1), peer, 8, MemoryKind::Host, Arc::new(()))))
    }

    fn queue(&self, target: QueueTarget, _: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
        if target == QueueTarget::Engine(0) { panic!("boom") } else { Ok(Arc::new(Self)) }
    }

    fn map(&self, _: &RemoteRegion) -> Option<NonNull<u8>> {
        panic!("boom")
    }

    fn notify(&self, _: Rank) {
        panic!("boom")
    }

    fn device_view(&self, _: &Region, _: &[RemoteRegion]) -> Result<DeviceView, ControlError> {
        panic!("boom")
    }

    fn poll_event(&self) -> Option<Event> {
        panic!("boom")
    }

    fn gone(&self, _: Rank) -> Option<FaultKind> {
        panic!("boom")
    }

    fn mask(&self, _: Rank) {
        panic!("boom")
    }

    fn signal_wait(&self, _: &Wait<'_>) -> Result<u64, WaitError> {
        panic!("boom")
    }

    fn fault(&self) -> Option<Fault> {
        panic!("boom")
    }

    fn report(&self, _: Fault) -> Fault {
        panic!("boom")
    }

    fn shutdown(&self, _: Shutdown) -> Result<(), ControlError> {
        panic!("boom")
    }
}

impl Queue for Panicking {
    fn post(&self, _: &[Op]) -> Result<Ticket, PostError> {
        panic!("boom")
    }

    fn ring(&self) -> Result<(), QueueError> {
        panic!("boom")
    }

    fn flush(&self) -> Ticket {
        Ticket::new(7, 0)
    }

    fn test(&self, _: Ticket, _: Completion) -> Result<bool, QueueError> {
        panic!("boom")
    }

    fn progress(&self) -> Result<usize, QueueError> {
        panic!("boom")
    }

    fn cancel(&self, _: Ticket) -> Result<Cancelled, QueueError> {
        panic!("boom")
    }

    fn describe(&self) -> String {
        panic!("boom")
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        panic!("boom")
    }
}

/// Checks that a call failed by a panic in `function`.
fn names<T>(function: &str, result: Result<T, impl std::fmt::Display>) {
    let text = result.err().expect("it panics").to_string();
    assert!(text.contains(&format!("panic in {function}: boom")), "{text}");
}

#[test]
fn every_panic_is_caught() {
    let exported = Box::leak(Box::new(Exported::new(Box::leak(Box::new(Panicking)), "a test")));
    // SAFETY: a table of this crate that stays for ever.
    let plugin = unsafe { Imported::new(exported.table(), &[]) }.unwrap();
    let options = || OpenOptions {
        rank: Rank(0),
        ranks: 1,
        node: Node::new("here"),
        ranks_on_node: 1,
        cores: 1,
        huge_pages: HugePages::Auto,
        timeout: Duration::from_secs(1),
    };
    let wait = Duration::from_secs(1);
    let probed = plugin.probe();
    assert!(matches!(&probed[..], [Probed { usable: Err(reason), .. }] if reason == "panic in probe: boom 1"));
    names("open", plugin.open("bad", options()).map(|_| ()));
    let transport = plugin.open("good", options()).unwrap();

    names("connect", transport.connect(&[(Rank(0), Vec::new())]).wait(wait));
    names("allocate", transport.allocate(0, MemoryKind::Host).wait(wait));
    let memory = Memory { address: std::ptr::null_mut(), bytes: 0, kind: MemoryKind::Host };
    // SAFETY: no byte is registered.
    names("register_memory", unsafe { transport.register(memory) }.wait(wait));
    names("import_key", transport.import(Rank(0), &[]).wait(wait));
    names("queue", transport.queue(QueueTarget::Engine(0), QueueOptions::default()).map(|_| ()));
    names("shutdown", transport.shutdown(Shutdown::Drain));
    let region = transport.allocate(64, MemoryKind::Host).wait(wait).unwrap();
    names("device_view", transport.device_view(&region, &[]));
    names("export_key", transport.export(&region, &[]));
    let word = Wait {
        region: &region,
        offset: 0,
        condition: Condition::AtLeast(1),
        peer: Rank(0),
        operation: "a test",
        slot: "word",
        epoch: 0,
    };
    names("signal_wait", transport.signal_wait(&word));

    let own = Fault { culprit: Rank(0), kind: FaultKind::Aborted, reporter: Rank(0) };
    assert_eq!(transport.caps(PeerClass::Own, MemoryKind::Host, OpKind::Put), None);
    assert!(matches!(transport.reach(Rank(0), &Node::new("here")), Reach::No(_)));
    assert!(transport.address().is_empty());
    assert_eq!((transport.poll_event(), transport.gone(Rank(0)), transport.fault()), (None, None, None));
    assert_eq!(transport.report(own), own);
    transport.notify(Rank(0));
    transport.mask(Rank(0));
    let remote = transport.import(Rank(0), b"blob").wait(wait).unwrap();
    assert_eq!(transport.map(&remote), None);

    let queue = transport.queue(QueueTarget::Peer(Rank(0)), QueueOptions::default()).unwrap();
    let ticket = queue.flush();
    assert_eq!(ticket, Ticket::new(7, 0));
    names("post", queue.post(&[Op::Fence]));
    names("ring", queue.ring());
    names("test", queue.test(ticket, Completion::Local));
    names("progress", queue.progress());
    names("cancel", queue.cancel(ticket));
    assert_eq!(queue.describe(), "");
    // The ends panic as well.
    drop((queue, remote, region, transport));
}
