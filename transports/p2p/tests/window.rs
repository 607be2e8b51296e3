//! Windows in device memory, over emulated devices: ranks as threads and as processes.

use std::sync::Arc;
use std::time::Duration;

use campanile_bootstrap::{Exit, Launch, Output, ThreadBootstrap, configuration, join};
use campanile_core::{
    Bootstrap, CommError, CommOptions, Communicator, Condition, FaultKind, GpuChoice, MemoryKind, Path, Rank, Window,
};
use campanile_gpu::{Emulation, Gpu, Settings};
use campanile_host::process::{Pidfd, Signal};
use campanile_p2p::P2pPlugin;

const RANKS: usize = 3;
const BYTES: usize = 100_000;
/// Where the words are.
const WORDS: usize = 65_536;

fn communicator(bootstrap: Arc<dyn Bootstrap>) -> Communicator {
    communicator_on(Path::Auto, bootstrap)
}

fn communicator_on(path: Path, bootstrap: Arc<dyn Bootstrap>) -> Communicator {
    let plugin = P2pPlugin::new(GpuChoice::Emulator, Settings::default());
    let options = CommOptions { timeout: Duration::from_secs(20), path, ..CommOptions::default() };
    Communicator::new(bootstrap, &plugin, options).expect("emulated devices are everywhere")
}

/// Runs `body` on ranks that are threads.
fn threads(body: impl Fn(&Communicator) + Sync) {
    threads_on(Path::Auto, body);
}

fn threads_on(path: Path, body: impl Fn(&Communicator) + Sync) {
    std::thread::scope(|scope| {
        let body = &body;
        for bootstrap in ThreadBootstrap::world(RANKS) {
            scope.spawn(move || body(&communicator_on(path, Arc::new(bootstrap))));
        }
    });
}

/// A window on the device of each rank, which are those of the machine in turn.
fn window(comm: &Communicator) -> Window {
    let device = comm.device().expect("a device of this rank");
    assert_eq!(device as usize, comm.rank() % 4);
    let window = comm.window(BYTES, MemoryKind::Device(device)).expect("device memory");
    assert_eq!((window.kind(), window.bytes()), (MemoryKind::Device(device), BYTES));
    window
}

fn pattern(rank: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 256 + rank * 31 + 1) as u8).collect()
}

/// Every rank puts its pattern into its place on every rank, itself included, and signals.
fn all_to_all(comm: &Communicator) {
    const PART: usize = 12_345;
    let window = window(comm);
    let source = comm.window(PART, MemoryKind::Host).expect("host memory");
    source.write(0, &pattern(comm.rank(), PART)).unwrap();
    for peer in 0..comm.ranks() {
        window.put(peer, source.region(), 0, comm.rank() * PART, PART).unwrap();
        window.signal(peer, WORDS + 8 * comm.rank(), 7).unwrap();
    }
    let mut seen = vec![0; PART];
    for peer in 0..comm.ranks() {
        // The queues are driven by whoever waits for them.
        window.quiet(peer).unwrap();
    }
    for peer in 0..comm.ranks() {
        let word = WORDS + 8 * peer;
        assert_eq!(window.wait(peer, word, Condition::AtLeast(7), "all to all").unwrap(), 7);
        assert_eq!(window.load(word).unwrap(), 7);
        window.read(peer * PART, &mut seen).unwrap();
        assert!(seen == pattern(peer, PART), "what rank {peer} has put");
    }
    // Nobody reads what is gone.
    comm.agree("done", &[]).unwrap();
}

/// Kernels of a rank reach its own part and those of the others by plain addresses.
fn addresses_reach_everybody(comm: &Communicator) {
    let window = window(comm);
    let mine = pattern(comm.rank(), 1000);
    window.write(64, &mine).unwrap();
    comm.agree("written", &[]).unwrap();
    for peer in 0..comm.ranks() {
        assert!(read_by_a_kernel(&window, peer) == pattern(peer, 1000), "the bytes of rank {peer} at its address");
    }
    comm.agree("read", &[]).unwrap();
}

/// 1000 bytes at 64 of the part of a rank, as this rank's device sees them.
fn read_by_a_kernel(window: &Window, peer: usize) -> Vec<u8> {
    let gpu = Gpu::emulator(Emulation::default(), &Settings::default()).unwrap();
    let stream = gpu.device(0).unwrap().stream().unwrap();
    let address = window.device_address(peer).expect("load / store reaches every device");
    let mut seen = vec![0_u8; 1000];
    // SAFETY: inside the peer's part, which is mapped here; the copy is waited for.
    unsafe { stream.copy(seen.as_mut_ptr() as u64, address + 64, 1000).unwrap() };
    stream.synchronize(Duration::from_secs(20)).unwrap();
    seen
}

#[test]
fn threads_share_device_memory() {
    threads(|comm| {
        all_to_all(comm);
        addresses_reach_everybody(comm);
    });
}

#[test]
fn processes_share_device_memory() {
    let config = configuration().unwrap();
    if config.launched().unwrap().is_some() {
        let comm = communicator(join(&config).unwrap());
        all_to_all(&comm);
        addresses_reach_everybody(&comm);
        return;
    }
    let arguments = ["--exact", "processes_share_device_memory", "--nocapture"];
    let outcome = Launch::current_exe(arguments, RANKS).unwrap().output(Output::Captured).run().unwrap();
    assert!(outcome.failure.is_none(), "{outcome}");
}

/// The rank that made a window is killed; those that have mapped it go on reading it.
#[test]
fn a_dead_rank_takes_no_memory_from_the_others() {
    const VICTIM: usize = 1;
    let config = configuration().unwrap();
    if config.launched().unwrap().is_some() {
        let comm = communicator(join(&config).unwrap());
        let window = window(&comm);
        window.write(64, &pattern(comm.rank(), 1000)).unwrap();
        comm.agree("written", &[]).unwrap();
        if comm.rank() == VICTIM {
            let this = Pidfd::open(std::process::id()).unwrap();
            this.send_signal(Signal::KILL).unwrap();
        }
        let ended = window.wait(VICTIM, WORDS, Condition::AtLeast(1), "test").unwrap_err();
        let CommError::Wait(error) = &ended else { panic!("{ended}") };
        assert_eq!(error.fault().map(|fault| (fault.culprit, fault.kind)), Some((Rank(1), FaultKind::Died)), "{error}");
        assert!(read_by_a_kernel(&window, VICTIM) == pattern(VICTIM, 1000), "what the dead rank had written");
        return;
    }
    let arguments = ["--exact", "a_dead_rank_takes_no_memory_from_the_others", "--nocapture"];
    let launch = Launch::current_exe(arguments, RANKS).unwrap().output(Output::Captured);
    let outcome = launch.grace(Duration::from_secs(30)).run().unwrap();
    for (rank, ended) in outcome.ranks.iter().enumerate() {
        let expected = if rank == VICTIM { Exit::Signal(9) } else { Exit::Code(0) };
        assert_eq!(ended.exit, expected, "rank {rank}: {outcome}");
    }
}

#[test]
fn device_memory_comes_back_to_the_host() {
    threads(|comm| {
        let (far, host) = (window(comm), comm.window(2000, MemoryKind::Host).unwrap());
        let peer = (comm.rank() + 1) % comm.ranks();
        far.write(100, &pattern(comm.rank(), 2000)).unwrap();
        // From this rank's device to the peer's host memory: complete on return, so that a store may announce it.
        host.put(peer, far.region(), 100, 0, 1992).unwrap();
        host.signal(peer, 1992, 1).unwrap();
        let from = (comm.rank() + comm.ranks() - 1) % comm.ranks();
        host.wait(from, 1992, Condition::AtLeast(1), "test").unwrap();
        let mut seen = vec![0; 1992];
        host.read(0, &mut seen).unwrap();
        assert!(seen == pattern(from, 2000)[..1992], "what rank {from} has put");
        // A source of the host is reusable after a flush.
        host.write(0, &pattern(7, 1992)).unwrap();
        far.put(peer, host.region(), 0, 50_000, 1992).unwrap();
        far.flush(peer).unwrap();
        host.write(0, &[0; 1992]).unwrap();
        far.quiet(peer).unwrap();
        comm.agree("put", &[]).unwrap();
        far.read(50_000, &mut seen).unwrap();
        assert!(seen == pattern(7, 1992), "what was there when it was put");
        comm.agree("read", &[]).unwrap();
    });
}

#[test]
fn the_path_of_windows_is_kept() {
    for (path, mapped) in [(Path::Auto, true), (Path::LoadStore, true), (Path::Queue, false)] {
        threads_on(path, |comm| {
            let window = window(comm);
            let peer = (comm.rank() + 1) % comm.ranks();
            assert_eq!(window.device_address(peer).is_some(), mapped, "{path:?}");
            assert!(window.device_address(comm.rank()).is_some());
            // Kernels are told the same.
            let of_kernels = window.device_window().unwrap();
            let addresses: Vec<_> = (0..comm.ranks()).map(|rank| window.device_address(rank).unwrap_or(0)).collect();
            assert_eq!((of_kernels.code.kind, of_kernels.windows, of_kernels.peers), ("p2p", addresses, vec![]));
            window.signal(peer, WORDS, 1).unwrap();
            let from = (comm.rank() + comm.ranks() - 1) % comm.ranks();
            assert_eq!(window.wait(from, WORDS, Condition::AtLeast(1), "test").unwrap(), 1);
            comm.agree("done", &[]).unwrap();
        });
    }
}

#[test]
fn the_host_touches_no_device_memory() {
    threads(|comm| {
        let window = window(comm);
        let word = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| window.word(0)));
        assert!(word.is_err(), "a reference to a word of a device was given");
        let host = comm.window(64, MemoryKind::Host).unwrap();
        assert_eq!(host.device_address(comm.rank()), None);
        assert_eq!(host.word(0).load(std::sync::atomic::Ordering::Relaxed), 0);
        let mut zeroes = vec![1; BYTES];
        window.read(0, &mut zeroes).unwrap();
        assert!(zeroes.iter().all(|byte| *byte == 0), "device memory is zeroed");
        assert!(matches!(window.read(1, &mut zeroes), Err(CommError::Misuse { .. })));
    });
}

#[test]
fn a_rank_takes_memory_of_its_own_device_only() {
    threads(|comm| {
        let other = MemoryKind::Device(comm.device().unwrap() + 1);
        let error = comm.window(4096, other).unwrap_err().to_string();
        assert!(error.contains("this rank has emulator:"), "{error}");
        let kind = if comm.rank() == 0 { MemoryKind::Host } else { MemoryKind::Device(comm.device().unwrap()) };
        let error = comm.window(4096, kind).unwrap_err();
        assert!(matches!(&error, CommError::Mismatch { field, .. } if field == "memory"), "{error}");
    });
}
