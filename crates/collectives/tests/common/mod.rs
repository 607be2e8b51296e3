//! What the tests of the stream collectives share: ranks, messages that tell which call and rank they are of, and delays.

use std::sync::Arc;

use campanile::{CommError, CommOptions, Communicator, Path, threads};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

pub fn options(path: Path) -> CommOptions {
    CommOptions { path, ..CommOptions::default() }
}

/// Runs `body` on every rank; none may fail.
pub fn all(ranks: usize, path: Path, body: impl Fn(Arc<Communicator>) -> Result<(), CommError> + Sync) {
    threads::<_, CommError>(ranks, &options(path), body).into_iter().for_each(|rank| rank.expect("no rank fails"));
}

/// Sizes that sit on and beside what the streams cut at.
pub const SIZES: [usize; 9] = [0, 1, 7, 64, 4095, 4096, 65_537, 300_000, (1 << 20) + 1];

/// Fills `bytes` with what `rank` says in `call`; no two of these agree in a run of bytes.
pub fn fill(bytes: &mut [u8], call: u64, rank: usize) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(call << 8 | rank as u64);
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_le_bytes()[..word.len()]);
    }
}

/// What `rank` says in `call`, `bytes` long.
pub fn message(bytes: usize, call: u64, rank: usize) -> Vec<u8> {
    let mut message = vec![0; bytes];
    fill(&mut message, call, rank);
    message
}

/// The same on every rank.
pub fn schedule(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

/// Gives the core away a few times, now and then.
pub fn dawdle(rng: &mut Xoshiro256PlusPlus) {
    if rng.next_u64().is_multiple_of(4) {
        for _ in 0..rng.next_u64() % 20 {
            std::thread::yield_now();
        }
    }
}

/// Mostly small, some of several rings.
pub fn ragged(rng: &mut Xoshiro256PlusPlus, most: usize) -> usize {
    let bits = rng.next_u64() % u64::from(most.ilog2() + 2);
    (rng.next_u64() % (1 << bits)) as usize % (most + 1)
}
