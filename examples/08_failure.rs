//! What the others see when a rank fails: a named error within the deadline, on every rank that needs it.
//!
//! Rank 2 goes wrong in four ways. The others wait in a barrier; each of them gets an error whose fault names rank 2 and
//! says what happened, also those that wait for a neighbour that waits for rank 2.
//!
//! `cargo run -p campanile-examples --example 08_failure`
//!
//! Ranks are threads here, so that one program shows it. Processes that are killed (`kill -9`) or stopped are seen in the
//! same way, by the kernel's word on them or by the deadline.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier as Meeting};
use std::time::Duration;

use campanile::{Barrier, CommError, CommOptions, Communicator, FaultKind, Rank, threads};

const RANKS: usize = 4;
const CULPRIT: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Failure {
    /// It calls abort.
    Aborts,
    /// It ends while the others still need it.
    Leaves,
    /// It panics.
    Panics,
    /// It does nothing for longer than the deadline.
    Stalls,
}

fn main() -> Result<(), CommError> {
    // The panic of rank 2 is meant to happen; its message would only confuse.
    std::panic::set_hook(Box::new(|_| ()));
    for (failure, kind) in [
        (Failure::Aborts, FaultKind::Aborted),
        (Failure::Leaves, FaultKind::Left),
        (Failure::Panics, FaultKind::Died),
        (Failure::Stalls, FaultKind::Stalled),
    ] {
        // Every wait is bounded by this.
        let options = CommOptions { timeout: Duration::from_millis(500), ..CommOptions::default() };
        // Where the stalled rank stays until the others have given up.
        let over = Meeting::new(RANKS);
        let ranks = threads(RANKS, &options, |comm| -> Result<Option<CommError>, CommError> {
            let mut barrier = Barrier::new(&comm)?;
            barrier.wait()?;
            if comm.rank() == CULPRIT {
                fail(failure, comm, barrier, &over);
                return Ok(None);
            }
            let error = barrier.wait().expect_err("rank 2 does not come");
            let again = barrier.wait().expect_err("the first error is sticky");
            assert!(matches!(again, CommError::Failed(_)), "{again}");
            if matches!(failure, Failure::Stalls) {
                over.wait();
            }
            Ok(Some(error))
        });
        for (rank, error) in ranks.into_iter().enumerate().filter(|(rank, _)| *rank != CULPRIT) {
            let error = error?.expect("every rank but the culprit has an error");
            let fault = error.fault().expect("the error names a culprit");
            assert_eq!((fault.culprit, fault.kind), (Rank::new(CULPRIT), kind), "{error}");
            if rank == 0 {
                println!("{failure:?}:\n    {error}");
            }
        }
    }
    Ok(())
}

/// Rank 2 goes wrong.
fn fail(failure: Failure, comm: Arc<Communicator>, barrier: Barrier, over: &Meeting) {
    match failure {
        Failure::Aborts => comm.abort(),
        Failure::Leaves => drop((comm, barrier)),
        Failure::Panics => {
            let panicked = catch_unwind(AssertUnwindSafe(move || {
                let _both = (comm, barrier);
                panic!("an expert went wrong");
            }));
            assert!(panicked.is_err());
        }
        Failure::Stalls => {
            over.wait();
        }
    }
}
