//! How far apart the cores of ranks are: what decides how a stream copies.
//!
//! Between cores that share a cache, a line that the one has read is cheap for the other to write again, so small parts
//! that stay in the first-level caches are fastest. Between cores that do not, or that ranks share, each such line costs
//! ten times that, and parts are better streamed past the caches. The topology that a virtual machine shows says nothing of
//! it, so it is measured: a word goes round the ranks.
//!
//! Two ranks on a Zen 4 guest of two cores that were now on one L3 (a line takes 37 to 43 ns), now on two (220 ns), minima of
//! interleaved calls, how many times faster 1 KiB parts are than what is done between cores that are far:
//!
//! | bytes | broadcast, near | far | bytes of a block | all-gather, near | far |
//! |---|---|---|---|---|---|
//! | 2 KiB | 2.7 | 1.15 | 2 KiB | 1.8 | 0.76 |
//! | 8 KiB | 1.8 | 0.51 | 8 KiB | 1.1 | 0.38 |
//! | 32 KiB | 1.6 | 0.48 | 16 KiB | 1.1 | 0.37 |
//! | 128 KiB | 1.5 | 0.50 | 64 KiB | 1.1 | 0.38 |
//! | 1 MiB | 1.3 | | 128 KiB | 0.9 | 0.30 |
//! | 4 MiB | 1.2 | | 512 KiB | 0.7 | |

use std::time::{Duration, Instant};

use campanile_core::{CommError, Communicator, Condition, MemoryKind};

/// Rounds of the word. The first ones wait for ranks that come late.
const ROUNDS: u64 = 64;
/// Ranks of a team for which it is measured: with more, the few small parts make a writer wait for the slowest reader again
/// and again, and there may be more ranks than cores.
const NEAR_RANKS: usize = 2;
/// Longest way of a word, with what a signal and a wait cost, that counts as near.
const NEAR: Duration = Duration::from_nanos(140);

/// Whether the cores of all ranks are near, on every rank the same. Load / store reaches all. Collective.
pub(super) fn is_near(comm: &Communicator, operation: &'static str) -> Result<bool, CommError> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    if ranks != NEAR_RANKS {
        return Ok(false);
    }
    let window = comm.window(8, MemoryKind::Host)?;
    let (previous, next) = ((rank + ranks - 1) % ranks, (rank + 1) % ranks);
    let mut least = Duration::MAX;
    for round in 1..=ROUNDS {
        let start = Instant::now();
        if rank == 0 {
            window.signal(next, 0, round)?;
        }
        window.wait(previous, 0, Condition::AtLeast(round), operation)?;
        if rank > 0 {
            window.signal(next, 0, round)?;
        }
        least = least.min(start.elapsed());
    }
    // A round passes every rank, and begins for the others when they have passed on the one before.
    let near = least <= NEAR * ranks as u32;
    Ok(comm.gather(operation, &[u8::from(near)])?.iter().all(|near| near == &[1]))
}
