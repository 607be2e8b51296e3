//! Running the suite on threads.

#![allow(dead_code, reason = "not every test that has this module needs all of it")]

use std::sync::{Arc, PoisonError, RwLock};

use campanile_bootstrap::ThreadBootstrap;
use campanile_core::Bootstrap;
use campanile_testkit::conformance::{Case, Report, Suite, run};

/// The case that counts the descriptors of the process, and so is run while nothing else is.
pub const COUNTS_DESCRIPTORS: &str = "recreated_regions_leave_nothing";

static RUNS: RwLock<()> = RwLock::new(());

/// Held by what opens descriptors beside others that do.
#[must_use]
pub fn beside_others() -> impl Drop {
    RUNS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the suite with threads as ranks, beside other runs; the report of rank 0, whose verdicts are those of all.
pub fn threads(suite: &Suite, ranks: usize, cases: &[&'static Case]) -> Report {
    let (alone, others): (Vec<_>, Vec<_>) = cases.iter().partition(|case| case.name() == COUNTS_DESCRIPTORS);
    let mut report = {
        let _beside_others = beside_others();
        report(suite, ranks, &others)
    };
    if !alone.is_empty() {
        let _alone = RUNS.write().unwrap_or_else(PoisonError::into_inner);
        report.outcomes.extend(self::report(suite, ranks, &alone).outcomes);
    }
    report
}

fn report(suite: &Suite, ranks: usize, cases: &[&'static Case]) -> Report {
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

/// What is seen when a test fails.
pub fn print(report: &Report) {
    for outcome in &report.outcomes {
        println!("{:8.1} ms  {}: {}", outcome.took.as_secs_f64() * 1e3, outcome.case.name(), outcome.verdict);
    }
}
