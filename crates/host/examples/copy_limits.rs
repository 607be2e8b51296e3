//! Copy bandwidth of this machine, through the caches and past them: the measurements behind `Copier::for_bytes`.
//!
//! `cargo run --release -p campanile-host --example copy_limits`
//!
//! Each thread is bound to a core of its own and copies rows of 14,336 bytes (hidden 7168 in bf16) from one buffer to
//! another, over and over. `bytes` is the size of each buffer. The two ways take turns, round by round; medians of
//! `ROUNDS` rounds are printed, in GB/s of payload, summed over the threads.
//!
//! - `copy`: one core writes what it alone reads again (in the next round, as a copy's source is never written).
//! - `exchange` (two threads): each writes into the other's buffer; when both are done, each reads its own once. A
//!   reader that is another core is what a collective has.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use campanile_host::affinity::bind_current_thread;
use campanile_host::cache::Caches;
use campanile_host::clock::now_ns;
use campanile_host::copy::{Copier, streaming_isa};
use campanile_host::memory::{Pages, SharedMemory};
use campanile_host::topology::Topology;
use campanile_host::wait::{SpinPolicy, Step, Waiter};

const ROW: usize = 14_336;
const ROUNDS: usize = 9;
const BYTES_A_ROUND: usize = 128 << 20;
const SIZES: [usize; 13] = [
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
    32 << 20,
    64 << 20,
    128 << 20,
    256 << 20,
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let topology = Topology::of_machine()?;
    let caches = Caches::of_cpu(std::path::Path::new("/"), 0);
    println!("{caches:?}, streaming stores: {}", streaming_isa());
    println!(
        "{:>9} {:>8} | {:>8} {:>9} {:>6} | {:>8} {:>9} {:>6}",
        "bytes", "threads", "temporal", "streaming", "ratio", "temporal", "streaming", "ratio"
    );
    println!("{:>18} | {:^25} | {:^25}", "", "copy", "exchange");
    for bytes in SIZES {
        for threads in 1..=topology.cores().len().min(2) {
            let copy = measure(&topology, threads, bytes, false)?;
            print!("{:>9} {threads:>8} | {}", in_units(bytes), columns(copy));
            if threads == 2 {
                let exchange = measure(&topology, threads, bytes, true)?;
                print!(" | {}", columns(exchange));
            }
            println!();
        }
    }
    Ok(())
}

fn in_units(bytes: usize) -> String {
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn columns([temporal, streaming]: [f64; 2]) -> String {
    format!("{temporal:>8.1} {streaming:>9.1} {:>6.2}", streaming / temporal)
}

/// GB/s of all threads together: temporal, streaming.
fn measure(
    topology: &Topology,
    threads: usize,
    bytes: usize,
    exchange: bool,
) -> Result<[f64; 2], Box<dyn std::error::Error>> {
    let sources = buffers(threads, bytes)?;
    let targets = buffers(threads, bytes)?;
    let placement = topology.placement(threads);
    let ways = [Copier::TEMPORAL, Copier::streaming()];
    let repeats = (BYTES_A_ROUND / bytes).max(1);
    let barrier = SpinBarrier::new(threads);

    // Per thread, round and way: start and end.
    let spans = std::thread::scope(|scope| {
        let workers = (0..threads)
            .map(|thread| {
                let (sources, targets, placement) = (&sources, &targets, &placement);
                let barrier = &barrier;
                scope.spawn(move || {
                    bind_current_thread(&placement[thread])?;
                    let source = sources[thread].as_ptr();
                    let own = targets[thread].as_ptr();
                    let target = targets[(thread + usize::from(exchange)) % threads].as_ptr();
                    let mut spans = Vec::new();
                    for round in 0..=ROUNDS {
                        for copier in ways {
                            barrier.wait();
                            let start = now_ns();
                            for _ in 0..repeats {
                                for offset in (0..bytes).step_by(ROW) {
                                    let len = ROW.min(bytes - offset);
                                    // SAFETY: within both buffers, which are apart; each target has one writer, and its
                                    // reader waits at the barrier.
                                    unsafe {
                                        copier.copy(target.add(offset), source.add(offset), len);
                                    }
                                }
                                copier.fence();
                                if exchange {
                                    barrier.wait();
                                    // SAFETY: `own` is `bytes` long and aligned, and its writer is past the barrier.
                                    black_box(unsafe { sum(own.cast(), bytes / 8) });
                                    barrier.wait();
                                }
                            }
                            let end = now_ns();
                            // The leading round warms up.
                            if round > 0 {
                                spans.push((start, end));
                            }
                        }
                    }
                    Ok::<_, campanile_host::affinity::AffinityError>(spans)
                })
            })
            .collect::<Vec<_>>();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker returns its errors"))
            .collect::<Result<Vec<_>, _>>()
    })?;

    Ok([0, 1].map(|way| {
        let mut rates = (0..ROUNDS)
            .map(|round| {
                let all = spans.iter().map(|spans| spans[2 * round + way]);
                let start = all.clone().map(|span| span.0).min().unwrap_or(0);
                let end = all.map(|span| span.1).max().unwrap_or(1);
                (threads * bytes * repeats) as f64 / (end - start) as f64
            })
            .collect::<Vec<_>>();
        rates.sort_by(f64::total_cmp);
        rates[ROUNDS / 2]
    }))
}

/// A barrier that wakes nobody: the standard one costs more than a small exchange.
struct SpinBarrier {
    threads: usize,
    arrived: AtomicUsize,
}

impl SpinBarrier {
    const fn new(threads: usize) -> Self {
        Self { threads, arrived: AtomicUsize::new(0) }
    }

    fn wait(&self) {
        let before = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (before / self.threads + 1) * self.threads;
        let mut waiter = Waiter::new(SpinPolicy::DEDICATED);
        while self.arrived.load(Ordering::Acquire) < all {
            match waiter.step() {
                Step::Spin => std::hint::spin_loop(),
                Step::Yield | Step::Sleep(_) => std::thread::yield_now(),
            }
        }
    }
}

fn buffers(count: usize, bytes: usize) -> Result<Vec<SharedMemory>, campanile_host::memory::MemoryError> {
    (0..count).map(|_| SharedMemory::create("copy_limits", bytes, Pages::Huge)).collect()
}

/// # Safety
/// `words` is valid for `len` loads that nobody stores to meanwhile.
unsafe fn sum(words: *const u64, len: usize) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(words, len) }.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}
