//! The device API of `kernels/campanile.h` in the emulator: puts and signals by each kind of group, to mapped peers and by
//! a transport's queues; deadlines and aborts.

mod emulated;

use std::time::Duration;

use campanile_core::{Arena, ArenaRegion, DeviceCode, DeviceForm, DeviceScope};
use campanile_gpu::view::{CommunicatorView, RegionView};
use campanile_gpu::{
    Address, Coherence, Compile, CompileError, Device, DeviceCommunicator, DeviceFailure, DeviceMemory, Emulation,
    FailureKind, Grid, Plan, Residency, Source, Stream,
};

use emulated::{cache, emulate};

const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a rank's slot.
const STRIDE: usize = 2048;

/// `ExchangeArguments` of `kernels/device/smoke.cpp`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Exchange {
    comm: CommunicatorView,
    region: RegionView,
    source: Address,
    target: Address,
    bytes: u64,
    value: u64,
    apart: u32,
}

/// Device code of a transport whose queues are a table of windows: what a put does is visible, and is not the MAP form. An
/// operation has at most 40 bytes, and none has 0.
static QUEUES: DeviceCode = DeviceCode {
    form: DeviceForm::Queue,
    header: HEADER,
    peer_bytes: 8,
    largest_op: 32 + 8,
    ..DeviceCode::map("table")
};

const HEADER: &str = "
namespace table {
using namespace campanile;
struct Peer {
  u8* window;
};
struct Queue {
  static CAMPANILE_MEMBER u8* target(const CommunicatorView& c, u32 peer) {
    return static_cast<const Peer*>(c.queues)[peer].window;
  }
  template <class Group>
  static CAMPANILE_MEMBER void put(const CommunicatorView& c, Group group, u32 peer, u64 offset, const void* source,
                                   u64 bytes) {
    if (bytes == 0 || bytes > 40 || offset % 16 != 0) return;
    u32* to = reinterpret_cast<u32*>(target(c, peer) + offset);
    for (u64 i = group.index(); i < bytes / 4; i += group.count())
      store_window(to + i, ~load(static_cast<const u32*>(source) + i));
  }
  template <class Group>
  static CAMPANILE_MEMBER void signal(const CommunicatorView& c, Group group, u32 peer, u32 slot, u64 value) {
    group.meet();
    if (group.index() != 0) return;
    fence_release_window();
    store_relaxed<Scope::System>(reinterpret_cast<u64*>(target(c, peer) + c.signals) + slot, value);
  }
  template <class Group>
  static CAMPANILE_MEMBER void put_signal(const CommunicatorView& c, Group group, u32 peer, u64 offset,
                                          const void* source, u64 bytes, u32 slot, u64 value) {
    put(c, group, peer, offset, source, bytes);
    signal(c, group, peer, slot, value);
  }
};
}  // namespace table
";

fn devices(ranks: u32, wave: u32, schedule: u64) -> Option<Vec<Device>> {
    emulate(Emulation { devices: ranks, wave, schedule, ..Emulation::default() })
}

struct Part {
    comm: DeviceCommunicator,
    stream: Stream,
    region: ArenaRegion,
    source: DeviceMemory,
    target: DeviceMemory,
}

impl Part {
    fn all(devices: &[Device], deadline: Duration) -> Vec<Self> {
        let mut arena = Arena::new();
        let region = arena.carve("slots", "bytes", STRIDE, devices.len()).unwrap();
        let ranks = DeviceCommunicator::in_process(devices, &arena, devices.len(), deadline).unwrap();
        let part = |comm: DeviceCommunicator| {
            let device = comm.device();
            let stream = device.stream().unwrap();
            let source = device.allocate(STRIDE, Coherence::Coarse).unwrap();
            let bytes: Vec<u8> = (0..STRIDE).map(|at| sent(comm.rank(), at)).collect();
            stream.upload(&source, 0, &bytes).unwrap();
            let target = device.allocate(STRIDE * comm.ranks(), Coherence::Coarse).unwrap();
            Self { stream, region: region.clone(), source, target, comm }
        };
        ranks.into_iter().map(part).collect()
    }

    fn exchange(&self, kernel: &str, view: CommunicatorView, source: &Source, bytes: usize, value: u64, apart: u32) {
        let device = self.comm.device();
        let module = device.compile(source, &Compile::default(), &cache()).unwrap();
        let grid = Grid { blocks: 1, threads: 2 * device.wave(), shared_bytes: 0 };
        let plan = Plan::<Exchange>::new(&module, kernel, grid, Residency::Any).unwrap();
        let argument = Exchange {
            comm: view,
            region: RegionView::from(&self.region),
            source: self.source.address(),
            target: self.target.address(),
            bytes: bytes as u64,
            value,
            apart,
        };
        // SAFETY: everything lives until the stream has been waited for.
        unsafe { plan.launch(&self.stream, &argument).unwrap() };
    }

    /// What came from each source.
    fn came(&self) -> Vec<Vec<u8>> {
        self.stream.synchronize(PATIENCE).unwrap();
        assert_eq!(self.comm.failure(), None);
        let mut bytes = vec![0; STRIDE * self.comm.ranks()];
        self.stream.download(&self.target, 0, &mut bytes).unwrap();
        bytes.chunks_exact(STRIDE).map(<[u8]>::to_vec).collect()
    }
}

fn sent(rank: usize, at: usize) -> u8 {
    (at * 7 + at / 256 + rank * 31) as u8
}

const GROUPS: [&str; 3] = ["device_exchange_thread", "device_exchange_wave", "device_exchange_block"];

/// Any number of words arrives, and no more; a signal covers what its group has put, with it or before it.
#[test]
fn every_group_puts_and_signals() {
    for (wave, schedule) in [(32, 0), (64, 5)] {
        let Some(devices) = devices(3, wave, schedule) else { return };
        for (group, kernel) in GROUPS.into_iter().enumerate() {
            let parts = Part::all(&devices, PATIENCE);
            // Values of signals start near the wrap of their words' differences and stay above what was.
            for (turn, bytes) in [0, 4, 16, 20, 1028, STRIDE].into_iter().enumerate() {
                let (value, apart) = (turn as u64 + 1, (turn + group) as u32 % 2);
                for part in &parts {
                    part.exchange(kernel, part.comm.view(), &Source::device_smoke(), bytes, value, apart);
                }
                for (source, came) in parts.iter().flat_map(|part| part.came().into_iter().enumerate()) {
                    let wrong = (0..STRIDE).find(|&at| came[at] != if at < bytes { sent(source, at) } else { 0 });
                    assert_eq!(wrong, None, "{kernel}, wave {wave}, {bytes} bytes from rank {source}");
                }
            }
        }
    }
}

/// Peers that are not mapped are reached by what the transport's header does; this rank itself is mapped.
#[test]
fn a_header_brings_queues() {
    let Some(devices) = devices(2, 32, 0) else { return };
    let parts = Part::all(&devices, PATIENCE);
    let source = Source::device_smoke().with_device_code(&QUEUES);
    for (turn, kernel) in GROUPS.into_iter().enumerate() {
        for apart in 0..2 {
            for part in &parts {
                let mut view = part.comm.view();
                view.queues = view.windows;
                view.near[1 - part.comm.rank()] = 0;
                part.exchange(kernel, view, &source, 100, 1 + 2 * turn as u64 + u64::from(apart), apart);
            }
            for (rank, part) in parts.iter().enumerate() {
                for (source, came) in part.came().into_iter().enumerate() {
                    // The queues of the test turn every bit, so that it is seen who brought the bytes.
                    let brought = |at| if source == rank { sent(source, at) } else { !sent(source, at) };
                    let wrong = (0..100).find(|&at| came[at] != brought(at));
                    assert_eq!(wrong, None, "{kernel} from rank {source} to {rank}");
                }
            }
        }
    }
}

/// What is wrong with device code is the compiler's word, at the place where it is.
#[test]
fn device_code_that_breaks_its_word_does_not_compile() {
    let Some(devices) = devices(1, 32, 0) else { return };
    let refused = |code: DeviceCode| {
        let source = Source::device_smoke().with_device_code(&code);
        match devices[0].compile(&source, &Compile::default(), &cache()) {
            Err(CompileError::Source { log, .. }) => log,
            other => panic!("{other:?}"),
        }
    };
    let log = refused(DeviceCode { peer_bytes: 16, ..QUEUES });
    assert!(log.contains("Peer is not as long as"), "{log}");
    let log = refused(DeviceCode { abi: 2, ..QUEUES });
    assert!(log.contains("of another device API"), "{log}");
    let log = refused(DeviceCode { smallest_scope: DeviceScope::Wave, ..QUEUES });
    assert!(log.contains("need a larger group"), "{log}");
    let log = refused(DeviceCode { header: "namespace table { struct Peer { no_such_type x; }; }", ..QUEUES });
    assert!(log.contains("device/transport/table.h:1") && log.contains("no_such_type"), "{log}");
}

#[test]
fn a_wait_ends() {
    let Some(devices) = devices(3, 32, 0) else { return };
    let failure = |part: &Part| {
        part.stream.synchronize(PATIENCE).unwrap();
        part.comm.failure().expect("rank 2 never comes")
    };
    let short = Part::all(&devices, Duration::from_millis(50));
    for part in &short[..2] {
        part.exchange(GROUPS[2], part.comm.view(), &Source::device_smoke(), 16, 9, 0);
    }
    for (rank, part) in short[..2].iter().enumerate() {
        let kind = FailureKind::Timeout;
        let wanted = DeviceFailure { rank, kind, operation: 0, peer: 2, slot: 2, expected: 9, seen: 0 };
        assert_eq!(failure(part), wanted);
    }
    // A kernel that begins on a communicator that has failed publishes nothing.
    let mut before = [0; 24];
    let mut after = [0; 24];
    short[2].stream.download(&short[2].comm.signal_words(), 0, &mut before).unwrap();
    short[0].exchange(GROUPS[0], short[0].comm.view(), &Source::device_smoke(), 16, 10, 0);
    failure(&short[0]);
    short[2].stream.download(&short[2].comm.signal_words(), 0, &mut after).unwrap();
    assert_eq!((&before, &before[..8]), (&after, &9u64.to_ne_bytes()[..]));

    let patient = Part::all(&devices, Duration::from_secs(1000));
    patient[0].exchange(GROUPS[1], patient[0].comm.view(), &Source::device_smoke(), 16, 1, 1);
    assert!(patient[0].stream.synchronize(Duration::from_millis(20)).is_err(), "it waits");
    patient[0].comm.abort();
    let aborted = failure(&patient[0]);
    assert_eq!((aborted.kind, aborted.peer), (FailureKind::Aborted, 1));
    assert!(aborted.to_string().contains("rank 0, operation 0: waited for word 1 of rank 1"), "{aborted}");
}

#[test]
fn regions_are_inside_the_window() {
    let Some(devices) = devices(1, 32, 0) else { return };
    let mut arena = Arena::new();
    let region = arena.carve("all", "byte", 1, 1000).unwrap();
    let comm = &DeviceCommunicator::in_process(&devices, &arena, 4, PATIENCE).unwrap()[0];
    assert!(comm.part(&region).is_ok());
    let beyond = ArenaRegion { count: 1 << 20, ..region };
    let error = comm.part(&beyond).unwrap_err().to_string();
    assert!(error.contains("region all is not inside the window of"), "{error}");
    assert!(arena.carve("signals", "word", 8, 1).is_ok());
    assert!(DeviceCommunicator::in_process(&devices, &arena, 4, PATIENCE).is_err(), "the name is taken");
}
