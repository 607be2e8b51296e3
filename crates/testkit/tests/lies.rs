//! Transports that are wrong on purpose: which cases find which lie.

mod common;

use std::time::Duration;

use campanile_shm::ShmPlugin;
use campanile_testkit::conformance::{Case, RanksAre, Suite, cases};
use campanile_testkit::lies::{Lie, LyingPlugin};

fn suite(lie: Option<Lie>, timeout: Duration) -> Suite {
    let plugin: &'static LyingPlugin = Box::leak(Box::new(LyingPlugin::new(&ShmPlugin, lie)));
    Suite { timeout, ..Suite::new(plugin, RanksAre::Threads) }
}

#[test]
fn without_a_lie_every_case_passes() {
    let all: Vec<_> = cases().collect();
    let report = common::threads(&suite(None, Duration::from_secs(20)), 3, &all);
    common::print(&report);
    assert_eq!(report.failed().count(), 0);
    assert!(report.passed().count() > 65);
}

#[test]
fn every_lie_is_found() {
    let mut all = String::new();
    for &lie in Lie::ALL {
        let start = std::time::Instant::now();
        let cases: Vec<&'static Case> = cases().filter(|c| c.name() != "recreated_regions_leave_nothing").collect();
        let report = common::threads(&suite(Some(lie), Duration::from_secs(1)), 3, &cases);
        let found: Vec<_> = report.failed().map(|outcome| outcome.case.name()).collect();
        println!("{lie:?} {:.1} {found:?}", start.elapsed().as_secs_f64());
        for f in report.failed() {
            println!("      {} {}", f.case.name(), f.verdict);
        }
        all += &format!("{lie:?}: {found:?}\n");
    }
    println!("{all}");
}
