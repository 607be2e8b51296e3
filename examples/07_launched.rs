//! A program whose ranks are processes, started by a launcher.
//!
//! ```text
//! cargo build -p campanile-examples --example 07_launched
//! cargo run -p campanile-cli -- run -n 4 -- target/debug/examples/07_launched
//! ```
//!
//! Started by itself it is a job of one rank. Every rank tells its process id to all others, through shared memory.

use std::error::Error;
use std::process::ExitCode;

use campanile::{Condition, MemoryKind, Wait, bootstrap, world};

/// Words of different writers do not share a cache line.
const LINE: usize = 64;

fn main() -> ExitCode {
    match introduce() {
        Ok(()) => ExitCode::SUCCESS,
        // The launcher puts the rank in front of the line, and ends the job.
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn introduce() -> Result<(), Box<dyn Error>> {
    // Environment and file; a misspelt CAMPANILE_ variable ends here, with the name that was probably meant.
    let config = bootstrap::configuration()?;
    let comm = world(&config)?;
    let (rank, ranks) = (comm.rank(), comm.ranks());

    let window = comm.window(ranks * LINE, MemoryKind::Host)?;
    for peer in 0..ranks {
        window.signal(peer, rank * LINE, u64::from(std::process::id()))?;
    }
    let mut processes = Vec::new();
    for peer in 0..ranks {
        processes.push(comm.wait(&Wait {
            region: window.region(),
            offset: peer * LINE,
            condition: Condition::AtLeast(1),
            peer: comm.team().member(peer),
            operation: "introduction",
            slot: "process id",
            epoch: 1,
        })?);
    }

    assert_eq!(processes[rank], u64::from(std::process::id()));
    let mut distinct = processes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), ranks, "each rank is a process of its own");
    println!("rank {rank} of {ranks} is process {}; all ranks: {processes:?}", processes[rank]);
    Ok(())
}
