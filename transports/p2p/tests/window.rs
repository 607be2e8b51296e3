//! Windows in device memory, over emulated devices: ranks as threads and as processes.

use std::sync::Arc;
use std::time::Duration;

use campanile_bootstrap::{Launch, Output, ThreadBootstrap, configuration, join};
use campanile_core::{Bootstrap, CommError, CommOptions, Communicator, Condition, GpuChoice, MemoryKind, Window};
use campanile_gpu::{Emulation, Gpu, Settings};
use campanile_p2p::P2pPlugin;

const RANKS: usize = 3;
const BYTES: usize = 100_000;
/// Where the words are.
const WORDS: usize = 65_536;

fn communicator(bootstrap: Arc<dyn Bootstrap>) -> Communicator {
    let plugin = P2pPlugin::new(GpuChoice::Emulator, Settings::default());
    let options = CommOptions { timeout: Duration::from_secs(20), ..CommOptions::default() };
    Communicator::new(bootstrap, &plugin, options).expect("emulated devices are everywhere")
}

/// Runs `body` on ranks that are threads.
fn threads(body: impl Fn(&Communicator) + Sync) {
    std::thread::scope(|scope| {
        let body = &body;
        for bootstrap in ThreadBootstrap::world(RANKS) {
            scope.spawn(move || body(&communicator(Arc::new(bootstrap))));
        }
    });
}

/// A window on the device of each rank.
fn window(comm: &Communicator) -> Window {
    let device = comm.device().expect("a device of this rank");
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
    let gpu = Gpu::emulator(Emulation::default(), &Settings::default()).unwrap();
    let stream = gpu.device(0).unwrap().stream().unwrap();
    for peer in 0..comm.ranks() {
        let address = window.device_address(peer).expect("load / store reaches every device");
        let mut seen = vec![0_u8; 1000];
        // SAFETY: inside the peer's part, which is mapped here; the copy is waited for.
        unsafe { stream.copy(seen.as_mut_ptr() as u64, address + 64, 1000).unwrap() };
        stream.synchronize(Duration::from_secs(20)).unwrap();
        assert!(seen == pattern(peer, 1000), "the bytes of rank {peer} at its address");
    }
    comm.agree("read", &[]).unwrap();
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
