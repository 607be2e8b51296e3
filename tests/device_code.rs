//! Kernels that are written once, on a transport that maps windows (P2P) and on one with queues that is loaded from a file:
//! the same bytes. And device code that breaks its word: an error that names the transport, or the peer, and no hang.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use campanile::bootstrap::ThreadBootstrap;
use campanile::collectives::gpu::{BarrierView, GpuBarrier};
use campanile::core::{CommOptions, DeviceForm, Path};
use campanile::gpu::view::{CommunicatorView, RegionView};
use campanile::gpu::{
    Address, Cache, Coherence, Compile, CompileError, Device, DeviceCommunicator, DeviceCommunicatorError, Emulation,
    FailureKind, Gpu, Grid, Plan, Residency, Settings, Source, has_compiler,
};
use campanile::p2p::P2pPlugin;
use campanile::shm::ShmPlugin;
use campanile::{Arena, Communicator, GpuChoice, MemoryKind, TransportPlugin};
use campanile_plugin::{Exported, Imported, Loader, TableError};

#[path = "plugins/library.rs"]
mod library;
#[path = "plugins/ring/mod.rs"]
mod ring;

use ring::{Ring, Wrong};

const RANKS: usize = 3;
/// Bytes of a slot of the window.
const SLOT: usize = 5008;
/// Bounds every wait; nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The example's kernel, as it is.
const ALL_GATHER: &str = include_str!("../examples/10_new_kernel.cpp");

/// The same through the device barrier, joined by all blocks: `rounds` times, with what came in each of them.
const ROUNDS: &str = r#"
#include "campanile.h"
using namespace campanile;

struct Rounds {
  CommunicatorView comm;
  BarrierView barrier;
  RegionView slots;
  u32* came;  // [rounds][ranks]
  u32 rounds;
};

CAMPANILE_KERNEL(rounds, 256, Rounds, a) {
  const CommunicatorView& c = a.comm;
  for (u32 round = 1; round <= a.rounds; round++) {
    u8* own = window(c, c.rank);
    if (block_index() == 0 && thread_index() == 0)
      store_window(reinterpret_cast<u32*>(own + offset_of(a.slots, c.rank)), 1000 * c.rank + round);
    for (u32 peer = 0; peer < c.ranks && block_index() == 0; peer++)
      if (peer != c.rank) put(c, Block(), peer, offset_of(a.slots, c.rank), own + offset_of(a.slots, c.rank), 4);
    // What was put is seen behind the barrier.
    if (barrier(c, a.barrier) != Outcome::Done) return;
    if (block_index() == grid_blocks() - 1 && thread_index() < c.ranks)
      a.came[(round - 1) * c.ranks + thread_index()] = load(at<u32>(c, c.rank, a.slots, thread_index()));
    if (barrier(c, a.barrier) != Outcome::Done) return;
  }
}
"#;

/// `AllGather` of the example's kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct AllGather {
    comm: CommunicatorView,
    blocks: RegionView,
    bytes: u64,
    round: u64,
}

/// `Rounds` above.
#[derive(Clone, Copy)]
#[repr(C)]
struct Rounds {
    comm: CommunicatorView,
    barrier: BarrierView,
    slots: RegionView,
    came: Address,
    rounds: u32,
}

fn gpu(wave: u32, schedule: u64) -> Option<Gpu> {
    let gpu = Gpu::emulator(Emulation { wave, schedule, ..Emulation::default() }, &Settings::default()).unwrap();
    if !has_compiler(&gpu) {
        println!("not run: no C++ compiler for the emulator's kernels");
        return None;
    }
    Some(gpu)
}

fn kernels() -> PathBuf {
    FilePath::new(env!("CARGO_TARGET_TMPDIR")).join("device-code")
}

fn p2p() -> P2pPlugin {
    P2pPlugin::new(GpuChoice::Emulator, Settings::default())
}

/// The transport with queues, through the table of a plugin.
fn broken(wrong: Wrong) -> Result<Imported, TableError> {
    let plugin: &'static Ring = Box::leak(Box::new(Ring::new(wrong)));
    let exported: &'static Exported = Box::leak(Box::new(Exported::new(plugin, "a test")));
    // SAFETY: a table that stays for ever.
    unsafe { Imported::new(exported.table(), &[]) }
}

/// Runs `body` on each rank of a job over `plugin`; the ranks end together.
fn ranks<T: Send>(
    plugin: &dyn TransportPlugin,
    options: &CommOptions,
    body: impl Fn(&Communicator) -> T + Sync,
) -> Vec<T> {
    ranks_of([plugin; RANKS], options, body)
}

/// As [`ranks`], over a plugin of each rank's own.
fn ranks_of<T: Send>(
    plugins: [&dyn TransportPlugin; RANKS],
    options: &CommOptions,
    body: impl Fn(&Communicator) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let rank = |(bootstrap, plugin)| {
            let body = &body;
            scope.spawn(move || {
                let comm = Communicator::new(Arc::new(bootstrap), plugin, options.clone()).unwrap();
                let result = body(&comm);
                // Nobody's window goes before the others have done; who failed has told them.
                let _ = comm.agree("end", &[]);
                result
            })
        };
        let threads: Vec<_> = ThreadBootstrap::world(RANKS).into_iter().zip(plugins).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn options(timeout: Duration) -> CommOptions {
    CommOptions { timeout, ..CommOptions::default() }
}

fn device_of(gpu: &Gpu, comm: &Communicator) -> Device {
    gpu.device(comm.device().expect("the transport has a device for each rank")).unwrap()
}

fn block(rank: usize, round: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 256 + at * 7 + rank * 50 + round as usize) as u8).collect()
}

/// One rank of the all-gather, several sizes with the barrier between: its window after each.
fn gather(comm: &Communicator, device: &Device, cache: &Cache) -> Vec<Vec<u8>> {
    let mut arena = Arena::new();
    let slots = arena.carve("slots", "bytes", SLOT, RANKS).unwrap();
    let comm = Arc::new(DeviceCommunicator::new(comm, device, &arena, 2 * RANKS).unwrap());
    let barrier = GpuBarrier::new(&comm, &campanile::Team::world(RANKS), RANKS as u32, cache).unwrap();
    let module = comm.compile(&Source::new("all_gather.cpp", ALL_GATHER), &Compile::default(), cache).unwrap();
    let grid = Grid { blocks: 2, threads: 128, shared_bytes: 0 };
    let plan = Plan::<AllGather>::new(&module, "all_gather", grid, Residency::Any).unwrap();
    let (stream, window) = (device.stream().unwrap(), comm.part(&slots).unwrap());
    let mut windows = Vec::new();
    // Around what one operation of the ring takes, 1024 bytes.
    for (bytes, round) in [0, 4, 1020, 1024, 1028, 5000].into_iter().zip(1..) {
        stream.upload(&window, SLOT * comm.rank(), &block(comm.rank(), round, bytes)).unwrap();
        let argument = AllGather { comm: comm.view(), blocks: RegionView::from(&slots), bytes: bytes as u64, round };
        // SAFETY: all of it lives until the stream has been waited for.
        unsafe { plan.launch(&stream, &argument).unwrap() };
        stream.synchronize(PATIENCE).unwrap();
        assert_eq!(comm.failure(), None);
        let mut all = vec![0; slots.bytes()];
        stream.download(&window, 0, &mut all).unwrap();
        for (peer, came) in all.chunks(SLOT).enumerate() {
            assert_eq!(came[..bytes], block(peer, round, bytes), "{bytes} bytes of rank {peer}");
        }
        windows.push(all);
        // SAFETY: as above.
        unsafe { barrier.enter_times(&stream, 2).unwrap() };
    }
    stream.synchronize(PATIENCE).unwrap();
    barrier.check().unwrap();
    windows
}

/// One rank of the rounds: what came in each.
fn rounds(comm: &Communicator, device: &Device, cache: &Cache) -> Vec<u8> {
    const TIMES: usize = 4;
    let mut arena = Arena::new();
    let slots = arena.carve("slots", "bytes", SLOT, RANKS).unwrap();
    let comm = Arc::new(DeviceCommunicator::new(comm, device, &arena, RANKS).unwrap());
    let barrier = GpuBarrier::new(&comm, &campanile::Team::world(RANKS), 0, cache).unwrap();
    let module = comm.compile(&Source::new("rounds.cpp", ROUNDS), &Compile::default(), cache).unwrap();
    let grid = Grid { blocks: 2, threads: device.wave(), shared_bytes: 0 };
    let plan = Plan::<Rounds>::new(&module, "rounds", grid, Residency::Together).unwrap();
    let stream = device.stream().unwrap();
    let came = device.allocate(4 * TIMES * RANKS, Coherence::Coarse).unwrap();
    let argument = Rounds {
        comm: comm.view(),
        barrier: barrier.view(),
        slots: RegionView::from(&slots),
        came: came.address(),
        rounds: TIMES as u32,
    };
    // SAFETY: all of it lives until the stream has been waited for.
    unsafe { plan.launch(&stream, &argument).unwrap() };
    stream.synchronize(PATIENCE).unwrap();
    barrier.check().unwrap();
    let mut bytes = vec![0; 4 * TIMES * RANKS];
    stream.download(&came, 0, &mut bytes).unwrap();
    let words: Vec<_> = bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    let expected = (1..=TIMES as u32).flat_map(|round| (0..RANKS as u32).map(move |rank| 1000 * rank + round));
    assert_eq!(words, expected.collect::<Vec<_>>());
    bytes
}

#[test]
fn one_kernel_on_mapped_windows_and_on_queues() {
    let Some(_) = gpu(64, 0) else { return };
    let file = Loader::default().load_file(&library::Library::Ring.file()).unwrap();
    let waves = broken(Wrong::Waves).unwrap();
    let cache = Cache::at(kernels());
    for (wave, schedule) in [(32, 0), (64, 5)] {
        let gpu = gpu(wave, schedule).unwrap();
        let over = |plugin: &dyn TransportPlugin, form: DeviceForm| {
            ranks(plugin, &options(PATIENCE), |comm| {
                assert_eq!(comm.transport().info().device_code.unwrap().form, form);
                let device = device_of(&gpu, comm);
                (gather(comm, &device, &cache), rounds(comm, &device, &cache))
            })
        };
        let mapped = over(&p2p(), DeviceForm::Map);
        assert_eq!(over(file, DeviceForm::Queue), mapped, "wave {wave}");
        assert_eq!(over(&waves, DeviceForm::Queue), mapped, "wave {wave}, posts of whole waves");
    }
}

#[test]
fn queues_are_all_that_reaches_a_peer() {
    let Some(gpu) = gpu(64, 0) else { return };
    let file = Loader::default().load_file(&library::Library::Ring.file()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let entries = || std::fs::read_dir(folder.path()).unwrap().filter(|it| !is_lock(it.as_ref().unwrap())).count();
    let source = Source::new("all_gather.cpp", ALL_GATHER);
    let compiled = |plugin: &dyn TransportPlugin| {
        ranks(plugin, &options(PATIENCE), |comm| {
            let device = device_of(&gpu, comm);
            let comm = DeviceCommunicator::new(comm, &device, &Arena::new(), RANKS).unwrap();
            comm.compile(&source, &Compile::default(), &Cache::at(folder.path())).unwrap();
            let mapped: Vec<_> = (0..RANKS).map(|rank| comm.window(rank) != 0).collect();
            (comm.rank(), mapped, comm.view().queues != 0, comm.check_mapped().map_err(|error| error.to_string()))
        })
    };
    for (_, mapped, queues, all) in compiled(&p2p()) {
        assert_eq!((mapped, queues, all), (vec![true; RANKS], false, Ok(())));
    }
    assert_eq!(entries(), 1);
    // The transport's header is part of what an entry is known by.
    for _ in 0..2 {
        for (own, mapped, queues, all) in compiled(file) {
            assert!((0..RANKS).all(|rank| mapped[rank] == (rank == own)) && queues);
            let first = usize::from(own == 0);
            assert!(all.unwrap_err().contains(&format!("do not reach the window of rank {first}")));
        }
        assert_eq!(entries(), 2);
    }
}

fn is_lock(entry: &std::fs::DirEntry) -> bool {
    entry.path().extension().is_some()
}

/// Checks what each rank is told that makes its part of a device communicator.
fn is_refused(plugin: &dyn TransportPlugin, gpu: &Gpu, words: &[&str]) {
    let refused = ranks(plugin, &options(PATIENCE), |comm| {
        DeviceCommunicator::new(comm, &device_of(gpu, comm), &Arena::new(), RANKS).map(drop).unwrap_err()
    });
    for error in refused {
        let error = error.to_string();
        assert!(error.contains("transport ring") && words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn a_view_that_the_header_does_not_read_is_refused() {
    let Some(gpu) = gpu(64, 0) else { return };
    let says = |wrong: Wrong, words: &[&str]| is_refused(&broken(wrong).unwrap(), &gpu, words);
    says(Wrong::View, &["device view", "56 bytes; 3 members have 3 × (8 of address + 8 of the header's Peer)"]);
    says(Wrong::Kind, &["kind \"wheel\"", "device code is \"ring\", version 1"]);
    says(Wrong::Own, &["has no address; a rank's own part always has one"]);
}

#[test]
fn a_rank_that_cannot_is_an_error_on_all() {
    let Some(gpu) = gpu(64, 0) else { return };
    let [good, bad] = [Wrong::Nothing, Wrong::View].map(|wrong| broken(wrong).unwrap());
    let errors = ranks_of([&good, &bad, &good], &options(PATIENCE), |comm| {
        DeviceCommunicator::new(comm, &device_of(&gpu, comm), &Arena::new(), RANKS).map(drop).unwrap_err()
    });
    for (rank, error) in errors.into_iter().enumerate() {
        let text = error.to_string();
        assert_eq!(text.starts_with("device communicator: rank 1 could not: "), rank != 1, "{text}");
        assert!(text.contains("it has 56 bytes"), "{text}");
    }
}

#[test]
fn a_device_api_that_this_host_has_not_is_refused() {
    let error = broken(Wrong::Api).err().expect("it is refused when it is loaded").to_string();
    assert!(error.contains("its device code: it is written against version 2 of the device API"), "{error}");
    // Linked in, it is as good as one that maps nothing.
    let Some(gpu) = gpu(64, 0) else { return };
    is_refused(&Ring::new(Wrong::Api), &gpu, &["transport ring: it is written against version 2"]);
}

#[test]
fn a_header_that_does_not_compile_is_the_transports() {
    let Some(gpu) = gpu(64, 0) else { return };
    let source = Source::new("all_gather.cpp", ALL_GATHER);
    for (wrong, words) in [
        (Wrong::Header, &["device/transport/ring.h:3", "Nothing"][..]),
        (Wrong::Peer, &["the header's Peer is not as long as the transport's device code declares"]),
    ] {
        let plugin = broken(wrong).unwrap();
        let errors = ranks(&plugin, &options(PATIENCE), |comm| {
            let comm = DeviceCommunicator::new(comm, &device_of(&gpu, comm), &Arena::new(), RANKS).unwrap();
            comm.compile(&source, &Compile::default(), &Cache::none()).map(drop).unwrap_err()
        });
        for error in errors {
            assert!(matches!(error, CompileError::DeviceCode { transport: "ring", .. }), "{error}");
            let error = error.to_string();
            assert!(error.starts_with("with the device code of transport ring: all_gather.cpp"), "{error}");
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
    // What is wrong with a kernel is not a transport's that brings no header.
    let plugin = p2p();
    let errors = ranks(&plugin, &options(PATIENCE), |comm| {
        let comm = DeviceCommunicator::new(comm, &device_of(&gpu, comm), &Arena::new(), RANKS).unwrap();
        comm.compile(&Source::new("bad.cpp", "bad"), &Compile::default(), &Cache::none()).map(drop).unwrap_err()
    });
    assert!(errors.iter().all(|error| matches!(error, CompileError::Source { .. })), "{errors:?}");
}

#[test]
fn an_abort_frees_who_waits_for_a_queue() {
    let Some(gpu) = gpu(64, 0) else { return };
    let plugin = broken(Wrong::Silent).unwrap();
    let failures = ranks(&plugin, &options(PATIENCE), |comm| {
        let device = device_of(&gpu, comm);
        let mut arena = Arena::new();
        let slots = arena.carve("slots", "bytes", SLOT, RANKS).unwrap();
        let comm = DeviceCommunicator::new(comm, &device, &arena, RANKS).unwrap();
        let source = Source::new("all_gather.cpp", ALL_GATHER);
        let module = comm.compile(&source, &Compile::default(), &Cache::at(kernels())).unwrap();
        let grid = Grid { blocks: 1, threads: 64, shared_bytes: 0 };
        let plan = Plan::<AllGather>::new(&module, "all_gather", grid, Residency::Any).unwrap();
        let stream = device.stream().unwrap();
        let argument = AllGather { comm: comm.view(), blocks: RegionView::from(&slots), bytes: 16, round: 1 };
        // SAFETY: all of it lives until the stream has been waited for.
        unsafe { plan.launch(&stream, &argument).unwrap() };
        assert!(stream.synchronize(Duration::from_millis(20)).is_err(), "it waits for the proxy");
        comm.abort();
        stream.synchronize(PATIENCE).unwrap();
        comm.failure().expect("nobody executes what was posted")
    });
    for (rank, failure) in failures.iter().enumerate() {
        assert_eq!((failure.kind, failure.operation, failure.expected), (FailureKind::Aborted, 0x71, 1), "{failure}");
        assert_eq!(failure.peer as usize, (rank + 1) % RANKS);
    }
}

#[test]
fn kernels_reach_no_host_memory() {
    let says = |plugin: &dyn TransportPlugin, word: &str| {
        for error in ranks(plugin, &options(PATIENCE), |comm| {
            comm.window(64, MemoryKind::Host).unwrap().device_window().map(drop).unwrap_err().to_string()
        }) {
            assert!(error.contains(word), "{error}");
        }
    };
    says(&p2p(), "transport p2p: kernels on emulator:");
    says(&p2p(), "do not reach host memory; give a window of their device");
    says(&broken(Wrong::Nothing).unwrap(), "transport ring: kernels post for no host memory");
    says(&ShmPlugin, "device code: not supported by transport shm: it brings none for kernels");
}

#[test]
fn a_path_by_queue_forbids_mapped_windows() {
    let Some(gpu) = gpu(64, 0) else { return };
    let options = CommOptions { path: Path::Queue, ..options(PATIENCE) };
    let errors = ranks(&p2p(), &options, |comm| {
        DeviceCommunicator::new(comm, &device_of(&gpu, comm), &Arena::new(), RANKS).map(drop).unwrap_err()
    });
    for (rank, error) in errors.into_iter().enumerate() {
        let first = usize::from(rank == 0);
        assert!(matches!(error, DeviceCommunicatorError::Unreachable { rank } if rank == first), "{error}");
    }
}
