//! How far apart the first two cores are: the time a cache line takes from one to the other.
//!
//! A virtual machine's cores are where the hypervisor puts them, and that changes while one measures: now two cores,
//! now two threads of one core, with caches in common. The distance then differs by a factor of four, a kernel copy
//! between ranks by one of five, and figures from the two worlds must not be compared. So the distance is measured
//! beside every launch, and [`crate::summary`] leaves launches at an unusual distance out.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::core_set::CoreSet;

const BATCHES: u64 = 8;
const ROUND_TRIPS: u64 = 500;

/// A word alone in its pair of lines.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// One way in ns: the best of a few batches, since another program can only add to it. `None` with a single core.
pub fn measure(cores: &CoreSet) -> Option<f64> {
    let &[first, second, ..] = &cores.cpus[..] else { return None };
    let [ping, pong] = [Line::default(), Line::default()];
    thread::scope(|scope| {
        scope.spawn(|| {
            bind(second);
            for turn in 1..=BATCHES * ROUND_TRIPS {
                await_turn(&ping, turn);
                pong.0.store(turn, Ordering::Release);
            }
        });
        let here = scope.spawn(|| {
            bind(first);
            let mut best = f64::INFINITY;
            for batch in 0..BATCHES {
                let start = Instant::now();
                for turn in batch * ROUND_TRIPS + 1..=(batch + 1) * ROUND_TRIPS {
                    ping.0.store(turn, Ordering::Release);
                    await_turn(&pong, turn);
                }
                best = best.min(start.elapsed().as_secs_f64() * 1e9 / (2 * ROUND_TRIPS) as f64);
            }
            best
        });
        here.join().ok()
    })
}

/// Both threads take part to their end, so this ends.
fn await_turn(line: &Line, turn: u64) {
    while line.0.load(Ordering::Acquire) < turn {
        spin_loop();
    }
}

/// Restricts the calling thread to a CPU of the set; where that fails the distance is that of any two.
fn bind(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cores_have_a_distance_and_one_has_none() {
        // The same CPU twice would spin until the scheduler's tick; a machine with one core has nothing to measure.
        assert_eq!(measure(&CoreSet { cpus: vec![0] }), None);
        let cores = CoreSet::bind().unwrap();
        if cores.len() > 1 {
            assert!(measure(&cores).unwrap() > 0.0);
        }
    }
}
