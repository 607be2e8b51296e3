//! Running the suite on threads.

use std::sync::{Arc, Mutex, PoisonError};

use campanile_bootstrap::ThreadBootstrap;
use campanile_core::Bootstrap;
use campanile_testkit::conformance::{Case, Report, Suite, run};

/// Runs the suite with threads as ranks; the report of rank 0, whose verdicts are those of all.
pub fn threads(suite: &Suite, ranks: usize, cases: &[&'static Case]) -> Report {
    let reports = std::thread::scope(|scope| {
        let rank = |bootstrap: ThreadBootstrap| {
            scope.spawn(move || {
                let bootstrap: Arc<dyn Bootstrap> = Arc::new(bootstrap);
                run(suite, &bootstrap, cases, |_| {}).expect("there is something to examine")
            })
        };
        let ranks: Vec<_> = ThreadBootstrap::world(ranks).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect::<Vec<_>>()
    });
    let verdicts = |report: &Report| report.outcomes.iter().map(|outcome| outcome.verdict.clone()).collect::<Vec<_>>();
    assert!(reports.iter().all(|report| verdicts(report) == verdicts(&reports[0])), "every rank has the same verdicts");
    reports.into_iter().next().expect("there are ranks")
}

/// Held by a run in which descriptors of the process are counted, or that opens many.
#[must_use]
pub fn alone() -> impl Drop {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is seen when a test fails.
pub fn print(report: &Report) {
    for outcome in &report.outcomes {
        println!("{:8.1} ms  {}: {}", outcome.took.as_secs_f64() * 1e3, outcome.case.name(), outcome.verdict);
    }
}
