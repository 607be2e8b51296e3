//! What was made before ranks were masked, used after it.

use std::time::Duration;

use campanile::{CommError, CommOptions, Condition, MemoryKind, threads};

#[test]
fn waiting_for_a_masked_rank_is_a_mistake_that_changes_nothing() {
    let options = CommOptions { timeout: Duration::from_secs(20), ..CommOptions::default() };
    let ended = threads(3, &options, |comm| -> Result<(), CommError> {
        let old = comm.window(64, MemoryKind::Host)?;
        comm.agree("everybody has it", &[])?;
        if comm.rank() == 2 {
            return Ok(());
        }
        let culprit = old.wait(2, 0, Condition::AtLeast(1), "a signal").unwrap_err().fault().expect("rank 2 left");
        let survivors = comm.mask(&[culprit.culprit.index()])?;
        let error = old.wait(2, 0, Condition::AtLeast(1), "a signal").unwrap_err();
        assert!(error.fault().is_none() && error.to_string().contains("rank 2 is masked"), "{error}");
        // Neither this rank nor the other has failed by that.
        survivors.agree("both have tried", &[])?;
        assert!(comm.error().is_none(), "{:?}", comm.error());
        let (window, other) = (survivors.window(64, MemoryKind::Host)?, 1 - survivors.rank());
        window.signal(other, 0, 1)?;
        window.wait(other, 0, Condition::AtLeast(1), "a signal")?;
        // The same ranks are not masked twice: the survivors' names for each other are used.
        let error = comm.mask(&[2]).unwrap_err().to_string();
        assert!(error.contains("were masked before"), "{error}");
        survivors.agree("done", &[])
    });
    for (rank, ended) in ended.into_iter().enumerate() {
        ended.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}
