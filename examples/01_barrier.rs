//! A barrier among ranks that are threads of this process, and one among a part of them.
//!
//! Who has passed a barrier knows that every rank has entered it, and sees what each of them had written before.
//!
//! `cargo run -p campanile-examples --example 01_barrier`

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use campanile::{Barrier, CommOptions, Rank, Team, threads};

const RANKS: usize = 4;
const ROUNDS: usize = 100;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let entered = AtomicUsize::new(0);

    let ranks = threads(RANKS, &CommOptions::default(), |comm| -> Result<usize> {
        // Made by all ranks together, then used any number of times.
        let mut barrier = Barrier::new(&comm)?;
        for round in 1..=ROUNDS {
            entered.fetch_add(1, Relaxed);
            barrier.wait()?;
            // All have entered this barrier, and none can have passed the next one, which this rank has not entered.
            let seen = entered.load(Relaxed);
            assert!((round * RANKS..(round + 1) * RANKS).contains(&seen), "{seen} in round {round}");
        }

        // A team is an ordered set of ranks. All ranks split; those that are not in the new team get `None`.
        let odd = Team::new([Rank(3), Rank(1)])?;
        let Some(odd) = comm.split(&odd)? else { return Ok(ROUNDS) };
        Barrier::new(&Arc::new(odd))?.wait()?;
        Ok(ROUNDS + 1)
    });

    let passed: Vec<_> = ranks.into_iter().collect::<Result<_>>()?;
    assert_eq!(passed, [ROUNDS, ROUNDS + 1, ROUNDS, ROUNDS + 1]);
    println!("barriers passed, by rank: {passed:?}");
    Ok(())
}
