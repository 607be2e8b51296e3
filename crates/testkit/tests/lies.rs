//! Transports that are wrong on purpose: which cases find which lie.

mod suite;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile_shm::ShmPlugin;
use campanile_testkit::conformance::{GROUPS, RanksAre, Suite, cases};
use campanile_testkit::lies::{Lie, LyingPlugin};

/// Each lie and cases that find it, the one that is about it first. Others may find it, too.
const FOUND_BY: &[(Lie, &[&str])] = &[
    (Lie::StrongSignalEarly, &["strong_signal_announces_all_earlier_puts"]),
    (Lie::WeakSignalEarly, &["weak_signal_announces_its_put"]),
    (Lie::FenceIgnored, &["fence_orders_what_is_around_it"]),
    (Lie::GetPassesFence, &["a_fence_orders_gets_and_puts"]),
    (Lie::PutsOutOfOrder, &["ordered_puts_arrive_in_order"]),
    (Lie::LocalCompletionEarly, &["local_completion_frees_the_source", "gets_of_every_size"]),
    (
        Lie::RemoteCompletionEarly,
        &["remote_completion_is_visible", "puts_of_every_size", "a_get_sees_what_was_put_before_it", "queues_wrap"],
    ),
    (Lie::LostSignal, &["put_signals_of_every_size", "signals_set_and_add_once", "weak_signal_announces_its_put"]),
    (Lie::EmptySignalLost, &["put_signals_of_every_size"]),
    (Lie::AddTwice, &["signals_set_and_add_once", "put_signals_of_every_size", "more_operations_than_slots"]),
    (Lie::WordsTorn, &["words_are_never_torn"]),
    (Lie::AtomicsRace, &["concurrent_counters_lose_nothing"]),
    (Lie::LastByteLost, &["puts_of_every_size", "put_signals_of_every_size", "local_completion_frees_the_source"]),
    (Lie::OffsetsOf32Bits, &["offsets_beyond_4_gib_here"]),
    (Lie::FlushRings, &["a_flush_rings_nothing"]),
    (Lie::FlushWaits, &["a_flush_waits_for_nothing"]),
    (Lie::RingBlocks, &["large_puts_both_ways"]),
    (Lie::DrainForgets, &["a_drain_completes_what_was_posted"]),
    (Lie::TicketsOf16Bits, &["queues_wrap"]),
    (Lie::ForeignTicketAccepted, &["a_foreign_ticket_is_refused"]),
    (Lie::CancelDoesNothing, &["a_cancelled_post_does_not_run"]),
    (Lie::TooLargeIsBusy, &["a_list_that_never_fits_is_too_large"]),
    (Lie::RefusedListHalfQueued, &["a_refused_list_leaves_nothing"]),
    (Lie::RangeUnchecked, &["ranges_beyond_a_region_are_refused", "a_refused_list_leaves_nothing"]),
    (Lie::MisalignedAccepted, &["misaligned_words_are_refused"]),
    (Lie::StaleKeyAccepted, &["stale_keys_are_refused", "keys_that_never_were_are_refused"]),
    (Lie::FailureSwallowed, &["a_source_dropped_in_flight"]),
    (Lie::FailureForgotten, &["a_source_dropped_in_flight", "a_target_dropped_in_flight"]),
    (Lie::MemoryNotZeroed, &["memory_is_zeroed"]),
    (
        Lie::DeathUntold,
        &["death_in_a_wait", "death_after_connect", "leaving_is_told_from_dying", "survivors_go_on_after_a_mask"],
    ),
    (Lie::LastSignalIgnored, &["signals_before_the_end_are_good", "signals_at_the_end_are_good"]),
    (Lie::AbortUntold, &["abort_ends_every_wait", "the_first_fault_stands", "a_mask_forgives_only_the_masked"]),
    (Lie::NeighbourBlamed, &["death_behind_a_wait", "abort_ends_every_wait"]),
    (Lie::EventsRepeated, &["death_after_connect", "leaving_is_told_from_dying"]),
    (Lie::MaskIgnored, &["survivors_go_on_after_a_mask", "a_masked_rank_is_told_no_more"]),
    (Lie::MaskedWaitHangs, &["a_wait_for_a_masked_rank_is_an_error"]),
];

/// Takes seconds, and counts the descriptors of a process in which other runs go on.
const SLOW: &str = "recreated_regions_leave_nothing";

fn lying(lie: Option<Lie>, timeout: Duration) -> Suite {
    // Plugins are never unloaded.
    let plugin: &'static LyingPlugin = Box::leak(Box::new(LyingPlugin::new(&ShmPlugin, lie)));
    Suite { timeout, ..Suite::new(plugin, RanksAre::Threads) }
}

/// For a lie that makes ranks wait for what never comes, which costs it often.
const SHORT: Duration = Duration::from_millis(800);
/// Where a case must fail for what it sees and not for the time it takes.
const LONG: Duration = Duration::from_secs(10);

fn timeout(lie: Lie) -> Duration {
    match lie {
        Lie::LostSignal
        | Lie::RingBlocks
        | Lie::DrainForgets
        | Lie::LocalCompletionEarly
        | Lie::RemoteCompletionEarly
        | Lie::FlushWaits
        | Lie::TicketsOf16Bits
        | Lie::DeathUntold
        | Lie::MaskedWaitHangs => SHORT,
        _ => LONG,
    }
}

#[test]
fn without_a_lie_every_case_passes() {
    let _alone = suite::alone();
    let all: Vec<_> = cases().collect();
    let report = suite::threads(&lying(None, Duration::from_secs(20)), 3, &all);
    suite::print(&report);
    assert_eq!(report.failed().count(), 0);
    assert!(report.passed().count() > 80);
}

#[test]
fn every_lie_is_found() {
    let _alone = suite::alone();
    assert!(Lie::ALL.iter().eq(FOUND_BY.iter().map(|(lie, _)| lie)), "the table has every lie once");
    // Ranks that wait in vain need no core, so more of those are examined at once.
    let (waiting, working): (Vec<_>, Vec<_>) = FOUND_BY.iter().partition(|(lie, _)| timeout(*lie) == SHORT);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (lies, at_once) in [(waiting, 4), (working, 2)] {
            let lies = Arc::new(Mutex::new(lies.into_iter()));
            threads.extend((0..at_once).map(|_| {
                let lies = Arc::clone(&lies);
                let next = move || lies.lock().expect("nobody panics who holds it").next();
                scope.spawn(move || std::iter::from_fn(next).for_each(|(lie, expected)| is_found(lie, expected)))
            }));
        }
        for thread in threads {
            thread.join().expect("every lie is found");
        }
    });
}

fn is_found(lie: Lie, expected: &[&'static str]) {
    // The groups of these cases: all of them for every lie would take minutes.
    let groups = GROUPS.iter().filter(|group| group.cases.iter().any(|case| expected.contains(&case.name())));
    let cases: Vec<_> = groups.flat_map(|group| group.cases).filter(|case| case.name() != SLOW).collect();
    // Some lies must be caught in the act: on a busy machine that may take another run.
    let mut found = BTreeSet::new();
    for seed in 1..=3 {
        let report = suite::threads(&Suite { seed, ..lying(Some(lie), timeout(lie)) }, 3, &cases);
        found.extend(report.failed().map(|outcome| outcome.case.name()));
        if expected.iter().all(|case| found.contains(case)) {
            break;
        }
    }
    println!("{} ({lie:?}): {found:?}", lie.says());
    let missed: Vec<_> = expected.iter().filter(|case| !found.contains(*case)).collect();
    assert!(missed.is_empty(), "{lie:?} is not found by {missed:?}");
}

#[test]
fn the_manual_has_the_table() {
    let page = include_str!("../../../docs/src/manual/conformance.md");
    for (lie, cases) in FOUND_BY {
        let cases: Vec<_> = cases.iter().map(|case| format!("`{case}`")).collect();
        let row = format!("| {} | {} |", lie.says(), cases.join(", "));
        assert!(page.contains(&row), "this row is not in the manual:\n{row}");
    }
    for case in cases() {
        assert!(page.contains(&format!("| `{}` | {} |", case.name(), case.proves())), "{} is not there", case.name());
    }
}
