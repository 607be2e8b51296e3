//! Operations on device memory, by an engine that does nothing before the test says so: order, completion, failures.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_core::{
    Agent, AtomicOp, Cancelled, Completion, Condition, FaultKind, HugePages, Inline, LocalAddress, Memory, MemoryKind,
    Node, Op, OpenOptions, PostError, Queue, QueueError, QueueOptions, QueueTarget, Rank, Region, RemoteAddress,
    RemoteRegion, SignalAction, SignalUpdate, Strength, Transport, TransportInfo, Wait, WaitError,
};
use campanile_shm::ShmTransport;
use campanile_shm::device::{Backing, Devices, Engine};

const BYTES: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);
const DEVICE: MemoryKind = MemoryKind::Device(0);

/// What the engine was given. Addresses are numbers, so that any thread may do it.
enum Work {
    Copy { target: usize, source: usize, bytes: usize },
    Inline { target: usize, bytes: Vec<u8> },
    Store { word: usize, value: u64 },
    Mark(u64),
}

/// The device: work that waits, and how far it is.
#[derive(Default)]
struct Device {
    work: Mutex<VecDeque<Work>>,
    reached: AtomicU64,
    broken: AtomicBool,
}

impl Device {
    fn give(&self, work: Work) -> Result<(), String> {
        if self.broken.load(Ordering::Relaxed) {
            return Err("it is on fire".to_owned());
        }
        self.work.lock().unwrap().push_back(work);
        Ok(())
    }

    /// Does the next `count` pieces of work.
    fn work(&self, count: usize) {
        for _ in 0..count {
            let Some(work) = self.work.lock().unwrap().pop_front() else { return };
            // SAFETY: memory of regions that the tests keep until the work is done; nothing else touches it meanwhile.
            unsafe {
                match work {
                    Work::Copy { target, source, bytes } => {
                        std::ptr::copy_nonoverlapping(source as *const u8, target as *mut u8, bytes);
                    }
                    Work::Inline { target, bytes } => {
                        std::ptr::copy_nonoverlapping(bytes.as_ptr(), target as *mut u8, bytes.len());
                    }
                    Work::Store { word, value } => {
                        AtomicU64::from_ptr(word as *mut u64).store(value, Ordering::Release);
                    }
                    Work::Mark(mark) => self.reached.store(mark, Ordering::Release),
                }
            }
        }
    }

    fn waiting(&self) -> usize {
        self.work.lock().unwrap().len()
    }
}

struct FakeDevices(Arc<Device>);
struct FakeEngine(Arc<Device>);
/// Device memory is the host's here, which only the engine and the tests know.
struct FakeMemory(Vec<AtomicU64>);

impl Backing for FakeMemory {
    fn address(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn extent(&self) -> usize {
        self.0.len() * 8
    }

    fn descriptor(&self) -> Result<OwnedFd, String> {
        File::open("/dev/null").map(OwnedFd::from).map_err(|error| error.to_string())
    }
}

impl Devices for FakeDevices {
    fn allocate(&self, bytes: usize, ordinal: u32) -> Result<Box<dyn Backing>, String> {
        if ordinal != 0 {
            return Err("there is device 0 only".to_owned());
        }
        Ok(Box::new(FakeMemory((0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect())))
    }

    fn open(&self, peer: Rank, _descriptor: OwnedFd, _extent: usize) -> Result<Box<dyn Backing>, String> {
        Err(format!("{peer} is another rank, and there is none"))
    }

    fn engine(&self, _depth: usize) -> Result<Box<dyn Engine>, String> {
        Ok(Box::new(FakeEngine(Arc::clone(&self.0))))
    }

    unsafe fn load(&self, word: *const u8) -> Result<u64, String> {
        if self.0.broken.load(Ordering::Relaxed) {
            return Err("it is on fire".to_owned());
        }
        // SAFETY: the caller's promise; words are atomics.
        Ok(unsafe { AtomicU64::from_ptr(word.cast_mut().cast()) }.load(Ordering::Acquire))
    }

    fn settle(&self) -> bool {
        self.0.work(usize::MAX);
        true
    }
}

impl Engine for FakeEngine {
    unsafe fn copy(&self, target: *mut u8, source: *const u8, bytes: usize) -> Result<(), String> {
        self.0.give(Work::Copy { target: target as usize, source: source as usize, bytes })
    }

    unsafe fn copy_inline(&self, target: *mut u8, bytes: &[u8], _slot: usize) -> Result<(), String> {
        self.0.give(Work::Inline { target: target as usize, bytes: bytes.to_vec() })
    }

    unsafe fn store(&self, word: *mut u8, value: u64) -> Result<(), String> {
        self.0.give(Work::Store { word: word as usize, value })
    }

    fn mark(&self, mark: u64) -> Result<(), String> {
        self.0.give(Work::Mark(mark))
    }

    fn reached(&self) -> Result<u64, String> {
        match self.0.broken.load(Ordering::Relaxed) {
            true => Err("it is on fire".to_owned()),
            false => Ok(self.0.reached.load(Ordering::Acquire)),
        }
    }
}

/// A region, and the same as this rank's own peer sees it.
struct Both {
    region: Region,
    remote: RemoteRegion,
}

impl Both {
    fn new(transport: &ShmTransport, kind: MemoryKind) -> Self {
        let region = transport.allocate(BYTES, kind).wait(PATIENCE).unwrap();
        let blob = transport.export(&region, &[Rank(0)]).unwrap();
        let remote = transport.import(Rank(0), &blob).wait(PATIENCE).unwrap();
        assert_eq!((region.kind(), remote.kind()), (kind, kind));
        Self { region, remote }
    }

    fn local(&self, offset: usize) -> LocalAddress {
        LocalAddress { region: self.region.key(), offset: offset as u64 }
    }

    fn remote(&self, offset: usize) -> RemoteAddress {
        RemoteAddress { region: self.remote.key(), offset: offset as u64 }
    }

    /// Every byte, while nothing is under way. Device memory is the host's here.
    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the region's memory, which nobody changes meanwhile.
        unsafe { std::slice::from_raw_parts(self.region.address(), BYTES) }.to_vec()
    }

    fn word(&self, offset: usize) -> u64 {
        // SAFETY: an aligned word of the region, which is only accessed as an atomic.
        unsafe { AtomicU64::from_ptr(self.region.address().add(offset).cast()) }.load(Ordering::Acquire)
    }

    fn fill(&self, seed: u8) {
        for at in 0..BYTES {
            // SAFETY: inside the region, which nobody uses meanwhile.
            unsafe { self.region.address().add(at).write((at * 31 + at / 256 * 7) as u8 ^ seed) };
        }
    }
}

/// One rank with a device, a window in either memory, and a queue to itself.
struct World {
    device: Arc<Device>,
    transport: ShmTransport,
    host: Both,
    far: Both,
    queue: Arc<dyn Queue>,
}

impl World {
    fn new() -> Self {
        let options = OpenOptions {
            rank: Rank(0),
            ranks: 1,
            node: Node::new("here"),
            ranks_on_node: 1,
            cores: 1,
            huge_pages: HugePages::Never,
            timeout: PATIENCE,
        };
        let device = Arc::new(Device::default());
        let info = TransportInfo { name: "fake", version: "1", summary: "for tests", device_code: None };
        let devices = Arc::new(FakeDevices(Arc::clone(&device)));
        let transport = ShmTransport::with_devices(info, options, devices).unwrap();
        transport.connect(&[(Rank(0), transport.address())]).wait(PATIENCE).unwrap();
        let (host, far) = (Both::new(&transport, MemoryKind::Host), Both::new(&transport, DEVICE));
        let queue = transport.queue(QueueTarget::Peer(Rank(0)), QueueOptions { depth: 64, ..Default::default() });
        Self { device, host, far, queue: queue.unwrap(), transport }
    }

    /// Posts, rings and makes progress once.
    fn start(&self, ops: &[Op]) -> campanile_core::Ticket {
        let ticket = self.queue.post(ops).unwrap();
        self.queue.ring().unwrap();
        self.queue.progress().unwrap();
        ticket
    }

    fn is_done(&self, ticket: campanile_core::Ticket) -> bool {
        self.queue.test(ticket, Completion::Remote(Agent::Gpu)).unwrap()
    }
}

fn put(from: &Both, source: usize, to: &Both, target: usize, bytes: u64) -> Op {
    Op::Put { source: from.local(source), target: to.remote(target), bytes }
}

fn set(to: &Both, at: usize, value: u64) -> SignalUpdate {
    SignalUpdate { target: to.remote(at), action: SignalAction::Set, value, strength: Strength::Strong }
}

#[test]
fn the_host_waits_for_its_turn_behind_the_engine() {
    let world = World::new();
    let World { device, host, far, queue, .. } = &world;
    host.fill(1);
    let ticket = world.start(&[put(host, 0, far, 0, 100), Op::Signal(set(host, 2048, 7))]);
    assert!(!world.is_done(ticket));
    assert_ne!(host.word(2048), 7, "a signal before its put");
    device.work(1);
    queue.progress().unwrap();
    assert_ne!(host.word(2048), 7, "a signal before the mark of its put");
    device.work(usize::MAX);
    assert_eq!(queue.progress().unwrap(), 2);
    assert!(world.is_done(ticket));
    assert_eq!((host.word(2048), &far.bytes()[..100]), (7, &host.bytes()[..100]));
    // Nothing is under way: the host does not wait.
    let ticket = world.start(&[put(host, 0, host, 1024, 8), Op::Signal(set(host, 2048, 8))]);
    assert!(world.is_done(ticket) && device.waiting() == 0);
    assert_eq!(host.word(2048), 8);
}

#[test]
fn a_put_and_its_signal_may_be_on_both_sides() {
    let world = World::new();
    let World { device, host, far, queue, .. } = &world;
    host.fill(2);
    let to_host = Op::PutSignal { source: host.local(0), target: far.remote(8), bytes: 64, signal: set(host, 4088, 3) };
    let to_far = Op::PutSignal { source: host.local(0), target: host.remote(256), bytes: 64, signal: set(far, 512, 4) };
    let ticket = world.start(&[to_host, to_far]);
    for _ in 0..2 {
        assert_ne!(host.word(4088), 3, "the signal of a put that is not done");
        assert_ne!(host.bytes()[256..320], host.bytes()[..64], "a put before its turn");
        assert!(!world.is_done(ticket));
        device.work(1);
        queue.progress().unwrap();
    }
    assert_eq!(host.word(4088), 3);
    assert_eq!(host.bytes()[256..320], host.bytes()[..64], "the host's turn came");
    assert_eq!(far.word(512), 0, "and the engine's has not");
    device.work(usize::MAX);
    assert_eq!(queue.progress().unwrap(), 1);
    assert!(world.is_done(ticket));
    assert_eq!((far.word(512), &far.bytes()[8..72]), (4, &host.bytes()[..64]));
}

/// Any list, whatever the engine's pace, leaves what it leaves when it is done one by one.
#[test]
fn memory_is_as_if_operations_were_done_in_turn() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = move |limit: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) as usize % limit
    };
    for round in 0..100 {
        let world = World::new();
        let sides = [&world.host, &world.far];
        world.host.fill(round);
        world.far.fill(round.wrapping_add(100));
        let mut expected = sides.map(Both::bytes);
        for _ in 0..20 {
            let mut list = Vec::new();
            for _ in 0..1 + below(3) {
                // Places of 64 bytes: nothing overlaps by a part.
                let [from, to, word] = [below(2), below(2), below(2)];
                let [here, there, at] =
                    [below(BYTES / 64), below(BYTES / 64), below(BYTES / 64)].map(|place| place * 64);
                let bytes = if from == to && here == there { 0 } else { below(64) };
                let (source, target, moved) = (sides[from].local(here), sides[to].remote(there), bytes as u64);
                let (signal, inline) = (set(sides[word], at, moved + 1), vec![bytes as u8; bytes]);
                let kind = below(6);
                list.push(match kind {
                    0 => Op::Put { source, target, bytes: moved },
                    1 => Op::Get { source: target, target: source, bytes: moved },
                    2 => Op::PutSignal { source, target, bytes: moved, signal },
                    3 => Op::PutInline { data: Inline::new(&inline).unwrap(), target },
                    4 => Op::Signal(signal),
                    _ => Op::Fence,
                });
                match kind {
                    0 | 2 => {
                        let moved = expected[from][here..here + bytes].to_vec();
                        expected[to][there..there + bytes].copy_from_slice(&moved);
                    }
                    1 => {
                        let moved = expected[to][there..there + bytes].to_vec();
                        expected[from][here..here + bytes].copy_from_slice(&moved);
                    }
                    3 => expected[to][there..there + bytes].copy_from_slice(&inline),
                    _ => {}
                }
                if matches!(kind, 2 | 4) {
                    expected[word][at..at + 8].copy_from_slice(&(moved + 1).to_ne_bytes());
                }
            }
            world.queue.post(&list).unwrap();
            world.queue.ring().unwrap();
            for _ in 0..below(5) {
                world.queue.progress().unwrap();
                world.device.work(below(4));
            }
        }
        let ticket = world.queue.flush();
        for _ in 0..10_000 {
            world.queue.progress().unwrap();
            world.device.work(1);
        }
        assert!(world.is_done(ticket), "{}", world.queue.describe());
        assert!(sides.map(Both::bytes) == expected, "round {round}");
    }
}

#[test]
fn what_failed_is_named_when_what_is_before_it_is_done() {
    let world = World::new();
    let World { device, host, far, queue, .. } = &world;
    let gone = Both::new(&world.transport, DEVICE);
    let first = queue.post(&[put(host, 0, far, 0, 8)]).unwrap();
    let second = queue.post(&[put(&gone, 0, far, 64, 8)]).unwrap();
    drop(gone);
    queue.ring().unwrap();
    queue.progress().unwrap();
    assert_eq!(queue.progress(), Ok(0), "the first is under way");
    device.work(usize::MAX);
    let error = queue.progress().unwrap_err();
    let QueueError::Completion { position: 1, reason, .. } = &error else { panic!("{error:?}") };
    assert!(reason.contains("local region was dropped"), "{reason}");
    assert_eq!(queue.test(first, Completion::Local), Ok(true));
    assert_eq!(queue.test(second, Completion::Local), Err(error));
}

#[test]
fn a_device_that_fails_says_why() {
    for fails_at_start in [true, false] {
        let world = World::new();
        let World { device, host, far, queue, .. } = &world;
        let operation = put(host, 0, far, 0, 8);
        if fails_at_start {
            device.broken.store(true, Ordering::Relaxed);
            queue.post(&[operation]).unwrap();
            queue.ring().unwrap();
        } else {
            world.start(&[operation]);
            device.broken.store(true, Ordering::Relaxed);
        }
        let error = queue.progress().unwrap_err();
        assert!(error.to_string().contains("it is on fire"), "{error}");
        assert_eq!(queue.post(&[operation]), Err(PostError::Queue(error)), "it stays failed");
    }
}

#[test]
fn a_dropped_region_waits_for_the_engine() {
    let world = World::new();
    let World { device, host, far, queue, .. } = &world;
    host.fill(5);
    let mut source = vec![9_u8; 64];
    let memory = Memory { address: source.as_mut_ptr(), bytes: 64, kind: MemoryKind::Host };
    // SAFETY: `source` outlives the region.
    let region = unsafe { world.transport.register(memory) }.wait(PATIENCE).unwrap();
    let from = LocalAddress { region: region.key(), offset: 0 };
    world.start(&[Op::Put { source: from, target: far.remote(0), bytes: 64 }]);
    assert_eq!((device.waiting(), far.bytes()[0]), (2, 0));
    drop(region);
    assert_eq!((device.waiting(), far.bytes()[0]), (0, 9), "it was waited for");
    assert_eq!(queue.progress(), Ok(1));
}

#[test]
fn a_cancelled_post_is_not_started() {
    let world = World::new();
    let World { device, host, far, queue, .. } = &world;
    host.fill(6);
    let first = world.start(&[put(host, 64, far, 0, 64)]);
    let second = queue.post(&[put(host, 0, far, 64, 64), Op::Signal(set(far, 128, 1))]).unwrap();
    assert_eq!(queue.cancel(second), Ok(Cancelled::Stopped));
    queue.ring().unwrap();
    queue.progress().unwrap();
    device.work(usize::MAX);
    queue.progress().unwrap();
    assert!(world.is_done(first) && world.is_done(second));
    assert_eq!(far.bytes()[..64], host.bytes()[64..128], "the first ran");
    assert!(far.bytes()[64..136].iter().all(|byte| *byte == 0), "the second did not");
    assert_eq!(queue.cancel(first), Ok(Cancelled::TooLate));
    // With nothing under way it is complete at once, and the device hears nothing of it.
    let third = queue.post(&[put(host, 0, far, 192, 64)]).unwrap();
    assert_eq!(queue.cancel(third), Ok(Cancelled::Stopped));
    queue.ring().unwrap();
    assert_eq!(queue.progress(), Ok(1));
    assert!(world.is_done(third) && device.waiting() == 0);
}

#[test]
fn what_a_device_does_not_do_is_refused_when_it_is_posted() {
    let world = World::new();
    let World { host, far, queue, .. } = &world;
    let add = SignalUpdate { action: SignalAction::Add, ..set(far, 0, 1) };
    let atomic = |target, op| Op::Atomic { op, target };
    let result = AtomicOp::Swap { value: 1, result: far.local(0) };
    for (op, reason) in [
        (Op::Signal(add), "an Add signal to device memory"),
        (atomic(far.remote(0), AtomicOp::Add { operand: 1 }), "an atomic on device memory"),
        (atomic(host.remote(0), result), "an atomic on device memory, or with its result there"),
        (put(far, 0, far, 8, 64), "devices copy ranges that do not overlap"),
        (put(far, 0, far, BYTES - 8, 64), "outside its remote region"),
        (Op::Signal(set(far, 4, 1)), "words are 8-byte aligned"),
    ] {
        match queue.post(&[Op::Fence, op]) {
            Err(PostError::Invalid { index: 1, reason: said }) => assert!(said.contains(reason), "{said}"),
            other => panic!("{other:?}"),
        }
    }
    // The same of the host's memory is done.
    world.start(&[Op::Signal(SignalUpdate { target: host.remote(0), ..add })]);
    assert_eq!(host.word(0), 1);
}

#[test]
fn a_word_of_a_device_is_waited_for() {
    let world = World::new();
    let World { device, far, .. } = &world;
    let wait = Wait {
        region: &far.region,
        offset: 64,
        condition: Condition::AtLeast(3),
        peer: Rank(0),
        operation: "test",
        slot: "word",
        epoch: 0,
    };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| world.transport.signal_wait(&wait));
        world.start(&[Op::Signal(set(far, 64, 2))]);
        device.work(usize::MAX);
        world.start(&[Op::Signal(set(far, 64, 3))]);
        device.work(usize::MAX);
        assert_eq!(waiter.join().unwrap(), Ok(3));
    });
    device.broken.store(true, Ordering::Relaxed);
    let error = world.transport.signal_wait(&Wait { condition: Condition::AtLeast(4), ..wait }).unwrap_err();
    let WaitError::Fault { fault, .. } = &error else { panic!("{error:?}") };
    assert_eq!((fault.culprit, fault.kind), (Rank(0), FaultKind::Failed));
}
