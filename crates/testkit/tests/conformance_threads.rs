//! The shared-memory transport, with threads as ranks, keeps the whole contract.

mod suite;

use std::collections::HashSet;
use std::time::Duration;

use campanile_shm::ShmPlugin;
use campanile_testkit::conformance::{RanksAre, Suite, cases};

const LEFT_OUT: [&str; 5] = [
    "host_and_device_memory_in_one_list",
    "offsets_beyond_4_gib_there",
    "a_forked_child_disturbs_nothing",
    "a_forked_child_hides_no_death",
    "a_stopped_process_is_named",
];

#[test]
fn shared_memory_with_threads_as_ranks_keeps_the_contract() {
    let suite = Suite { timeout: Duration::from_secs(20), ..Suite::new(&ShmPlugin, RanksAre::Threads) };
    let all: Vec<_> = cases().collect();
    let report = suite::threads(&suite, 3, &all);
    suite::print(&report);
    assert_eq!(report.failed().count(), 0);
    let left_out: Vec<_> = report.not_applicable().map(|outcome| outcome.case.name()).collect();
    assert_eq!(left_out, LEFT_OUT, "everything else was run");
}

#[test]
fn one_rank_and_four_do_as_well() {
    for ranks in [1, 4] {
        let suite =
            Suite { timeout: Duration::from_secs(20), seed: ranks as u64, ..Suite::new(&ShmPlugin, RanksAre::Threads) };
        // What takes long and does not depend on the number of ranks is left to the other test.
        let slow = [suite::COUNTS_DESCRIPTORS, "stale_keys_are_refused"];
        let quick: Vec<_> = cases().filter(|case| !slow.contains(&case.name())).collect();
        let report = suite::threads(&suite, ranks, &quick);
        suite::print(&report);
        assert_eq!(report.failed().count(), 0);
        assert!(report.passed().count() > if ranks == 1 { 40 } else { 80 });
    }
}

#[test]
fn names_are_unique_and_every_case_says_what_it_proves() {
    let names: HashSet<_> = cases().map(|case| case.name()).collect();
    assert_eq!(names.len(), cases().count());
    assert!(
        cases().all(|case| !case.proves().is_empty() && case.group().cases.iter().any(|c| c.name() == case.name()))
    );
}
