//! The conformance suite for every transport that there is: shared memory as a file, P2P over emulated devices with windows
//! in host and in device memory, P2P over the same devices through a shim of HIP, the mailbox in C, the two small examples,
//! and every decorator around shared memory that is linked in; with threads as ranks, and, where ranks can be processes, by
//! `campanile check`. Shared memory that is linked in is examined by the suite's own tests. Without a C compiler what is
//! written in C is not run, and it says so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{GpuChoice, TransportPlugin};
use campanile_gpu::Settings;
use campanile_p2p::P2pPlugin;
use campanile_plugin::Loader;
use campanile_shm::ShmPlugin;
use campanile_testkit::conformance::{Case, RanksAre, Report, Suite, WindowsIn, cases};
use campanile_testkit::decorate::Stack;
use serde_json::Value;

#[path = "plugins/compiler.rs"]
mod compiler;
#[path = "plugins/library.rs"]
mod library;
#[path = "../crates/testkit/tests/suite/mod.rs"]
mod suite;

const RANKS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(20);

/// What threads cannot do, and what needs more memory than a case may take.
const NOT_WITH_THREADS: [&str; 4] = [
    "offsets_beyond_4_gib_there",
    "a_forked_child_disturbs_nothing",
    "a_forked_child_hides_no_death",
    "a_stopped_process_is_named",
];

/// Registered memory of peers, which is not reached through the boundary of plugins, nor by what must see every byte.
const REGISTERED: [&str; 5] = [
    "registered_memory_is_reached",
    "registered_memory_is_not_mapped",
    "the_address_space_is_reached",
    "what_is_taken_back_is_not_read",
    "death_ends_gets_of_registered_memory",
];

fn mailbox() -> Option<PathBuf> {
    compiler::transport("tests/mailbox")
}

fn shm() -> PathBuf {
    library::Library::Shm.file()
}

fn load(library: &Path) -> &'static dyn TransportPlugin {
    Loader::default().load_file(library).expect("the library is a plugin")
}

/// Shared memory that is linked in with these decorators around it, for the rest of the process: a case that hangs is left
/// behind with it.
fn decorated(decorators: &str) -> &'static dyn TransportPlugin {
    let stack: Stack = decorators.parse().expect("these are decorators");
    &**Box::leak(Box::new(stack.apply(Arc::new(ShmPlugin))))
}

/// Examines with threads as ranks.
fn examine(plugin: &'static dyn TransportPlugin, timeout: Duration, cases: &[&'static Case]) -> Report {
    examine_with(&Suite { timeout, ..Suite::new(plugin, RanksAre::Threads) }, cases)
}

fn examine_with(suite: &Suite, cases: &[&'static Case]) -> Report {
    let report = suite::threads(suite, RANKS, cases);
    suite::print(&report);
    report
}

/// Of these cases every one passes, but for those that do not apply: what threads cannot do, and `more`.
fn passes(what: &str, plugin: &'static dyn TransportPlugin, cases: &[&'static Case], more: &[&str]) {
    let report = examine(plugin, TIMEOUT, cases);
    assert_eq!(report.failed().count(), 0, "{what}");
    let left_out: BTreeSet<_> = report.not_applicable().map(|outcome| outcome.case.name()).collect();
    let expected = NOT_WITH_THREADS.iter().chain(more).copied().chain([DEVICE_MEMORY]);
    assert_eq!(left_out, expected.collect(), "{what}: all else was run");
}

/// The whole suite for a library.
fn library_passes(library: &Path, more: &[&str]) {
    let more = [&REGISTERED[..], more].concat();
    passes(&library.display().to_string(), load(library), &cases().collect::<Vec<_>>(), &more);
}

/// A case that needs device memory.
const DEVICE_MEMORY: &str = "host_and_device_memory_in_one_list";

/// What the small examples do not do.
const OF_THE_EXAMPLES: [&str; 15] = [
    "a_fence_orders_gets_and_puts",
    "gets_of_every_size",
    "inline_puts_up_to_the_limit",
    "offsets_beyond_4_gib_here",
    "atomics_return_the_old_value",
    "concurrent_counters_lose_nothing",
    "compare_swap_has_one_winner",
    "a_get_sees_what_was_put_before_it",
    MAPPED,
    "producers_and_flushers_share_a_queue",
    "a_flush_rings_nothing",
    "a_flush_waits_for_nothing",
    "engines_reach_every_peer",
    "ranges_beyond_a_region_are_refused",
    "offsets_beyond_4_gib_there",
];

#[test]
fn shared_memory_as_a_file() {
    library_passes(&shm(), &[]);
}

/// What P2P does not do in device memory: the host has no atomics and no `Add` signals there, and loads nothing.
const NOT_IN_DEVICE_MEMORY: [&str; 6] = [
    "atomics_return_the_old_value",
    "concurrent_counters_lose_nothing",
    "compare_swap_has_one_winner",
    "signals_set_and_add_once",
    MAPPED,
    "producers_and_flushers_share_a_queue",
];

/// The whole suite with threads as ranks, and windows in memory of devices.
fn device_windows_pass(plugin: &'static dyn TransportPlugin) {
    let suite = Suite { timeout: TIMEOUT, windows_in: WindowsIn::Device, ..Suite::new(plugin, RanksAre::Threads) };
    let report = examine_with(&suite, &cases().collect::<Vec<_>>());
    assert_eq!(report.failed().count(), 0);
    let left_out: BTreeSet<_> = report.not_applicable().map(|outcome| outcome.case.name()).collect();
    let expected = NOT_WITH_THREADS.iter().chain(&NOT_IN_DEVICE_MEMORY).chain(&REGISTERED).copied();
    assert_eq!(left_out, expected.collect(), "all else was run");
}

#[test]
fn emulated_devices() {
    let plugin: &'static dyn TransportPlugin =
        Box::leak(Box::new(P2pPlugin::new(GpuChoice::Emulator, Settings::default())));
    passes("p2p, host memory", plugin, &cases().collect::<Vec<_>>(), &[]);
    device_windows_pass(plugin);
}

/// The suite's cases by processes on devices that `environment` chooses, but for those that do not apply.
fn devices_pass_by_processes(
    environment: &[(&str, &str)],
    windows: &'static str,
    cases: &[&'static str],
    left_out: &[&str],
) {
    let arguments = [&["--windows", windows, "--timeout", "10s"], cases].concat();
    let (status, tested) = checked_by_processes(Path::new("p2p"), environment, &arguments);
    assert_eq!(that_are("failed", &tested), [""; 0], "{windows}");
    let found: BTreeSet<_> = that_are("not-applicable", &tested).into_iter().collect();
    assert_eq!(found, left_out.iter().copied().collect(), "{windows}");
    assert!(status.success() && tested.len() > left_out.len(), "{windows}: {status}");
}

#[test]
fn emulated_devices_by_processes() {
    let environment = [("CAMPANILE_GPU", "emulator")];
    // What differs between processes and threads in host memory.
    let on_host = ["--case", "control", "--case", "operations", "--case", "processes"];
    let far = ["offsets_beyond_4_gib_there"];
    devices_pass_by_processes(&environment, "host", &on_host, &[&far[..], &[DEVICE_MEMORY]].concat());
    devices_pass_by_processes(&environment, "device", &[], &[&far[..], &NOT_IN_DEVICE_MEMORY, &REGISTERED].concat());
}

/// HIP's side of the call table, through the shim, which stands for AMD's library and is not it.
#[test]
fn hip_devices_through_the_shim() {
    let libamdhip64 = Some(library::Library::HipShim.file().display().to_string());
    let settings = Settings { libamdhip64, ..Settings::default() };
    device_windows_pass(Box::leak(Box::new(P2pPlugin::new(GpuChoice::Hip, settings))));
}

/// Memory from another process by descriptor, as HIP imports it since 7.1 and as it did before, and deaths.
#[test]
fn hip_devices_by_processes_through_the_shim() {
    let shim = library::Library::HipShim.file().display().to_string();
    for version in ["70200000", "70051831"] {
        let environment = [("CAMPANILE_GPU", "hip"), ("CAMPANILE_LIBAMDHIP64", &shim), ("HIP_SHIM_VERSION", version)];
        let cases = ["--case", "puts_of_every_size", "--case", "strong_signal", "--case", "processes"];
        devices_pass_by_processes(&environment, "device", &cases, &[]);
    }
}

#[test]
fn the_mailbox() {
    if let Some(library) = mailbox() {
        library_passes(&library, &[MAPPED, "engines_reach_every_peer"]);
    }
}

#[test]
fn the_example_in_rust() {
    library_passes(&library::Library::Inproc.file(), &OF_THE_EXAMPLES);
}

#[test]
fn the_example_in_c() {
    if let Some(library) = compiler::transport("examples/transport_c") {
        library_passes(&library, &[&OF_THE_EXAMPLES[..], &["a_chain_of_stalls_blames_its_end"]].concat());
    }
}

/// Cases that wait for a deadline, or do the same a thousand times, in parts of a transport that decorators pass on.
const PASSED_ON: [&str; 7] = [
    "recreated_regions_leave_nothing",
    "a_missing_peer_is_named",
    "death_of_the_first_before_connect",
    "death_of_the_last_before_connect",
    "death_during_connect",
    "a_stall_is_named_in_time",
    "a_ring_of_waits_ends",
];

/// A case that needs pointers into peers' memory.
const MAPPED: &str = "stores_through_a_mapping";

/// Behind these decorators every case passes, but for those that do not apply: here `more` than with threads.
fn passes_behind(decorators: &str, more: &[&str]) {
    let cases: Vec<_> = cases().filter(|case| !PASSED_ON.contains(&case.name())).collect();
    passes(decorators, decorated(decorators), &cases, more);
}

#[test]
fn decorators_that_change_nothing() {
    for decorators in ["plain", "stats", "trace"] {
        passes_behind(decorators, &[]);
    }
}

#[test]
fn decorators_that_hide_mappings() {
    for decorators in ["check", "throttle(latency=5us)", "fault(delay=20us)"] {
        passes_behind(decorators, &[&REGISTERED[..], &[MAPPED]].concat());
    }
}

#[test]
fn what_reorders_keeps_what_it_still_claims() {
    let unordered = [&REGISTERED[..], &[MAPPED, "ordered_puts_arrive_in_order"]].concat();
    passes_behind("fault(delay=20us, reorder=yes)", &unordered);
    passes_behind("lean(add=yes)", &[&unordered[..], &["strong_signal_announces_all_earlier_puts"]].concat());
}

#[test]
fn injected_faults_fail_the_cases_that_meet_them() {
    // The first two post nothing.
    const CASES: [&str; 7] = [
        "all_ranks_connect",
        "memory_is_zeroed",
        "puts_of_every_size",
        "depths_are_checked",
        "a_foreign_ticket_is_refused",
        "a_cancelled_post_does_not_run",
        "a_target_dropped_in_flight",
    ];
    let cases: Vec<_> = cases().filter(|case| CASES.contains(&case.name())).collect();
    for (faults, expected, because) in [
        ("fault(rank=1, fail_post=5)", &CASES[2..], "fails post 5 of rank 1"),
        // A target that is dropped may fail its put: it does not tell why.
        ("fault(rank=1, fail_completion=5)", &CASES[2..6], "made its completion an error"),
        // What is cancelled need not complete either.
        ("fault(rank=1, drop_completion=5)", &CASES[2..5], "not complete after"),
    ] {
        let report = examine(decorated(faults), Duration::from_secs(1), &cases);
        let failed: Vec<_> = report.failed().map(|outcome| outcome.case.name()).collect();
        assert_eq!(failed, expected, "{faults}");
        for outcome in report.failed() {
            let verdict = outcome.verdict.to_string();
            assert!(verdict.contains(because) && verdict.contains("rank 1: "), "{faults}: {verdict}");
        }
    }
}

/// What `campanile check` of a transport says of each case.
fn checked_by_processes(
    transport: &Path,
    environment: &[(&str, &str)],
    arguments: &[&str],
) -> (ExitStatus, Vec<Value>) {
    let mut check = Command::new(library::campanile());
    check.args(["check", "--json", "--ranks", &RANKS.to_string(), "--memory", "64"]).args(arguments);
    check.arg("--transport").arg(transport).envs(environment.iter().copied());
    let _beside_others = suite::beside_others();
    let output = check.output().expect("the program runs");
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let cases = report["cases"].as_array().expect("a list of cases");
    cases.iter().filter(|case| case["verdict"] != "passed").for_each(|case| println!("{case}"));
    (output.status, cases.clone())
}

/// The names of the cases that ended so.
fn that_are<'a>(verdict: &str, tested: &'a [Value]) -> Vec<&'a str> {
    let cases = tested.iter().filter(|case| case["verdict"] == verdict);
    cases.map(|case| case["name"].as_str().expect("a name")).collect()
}

/// Every case passes with processes as ranks, but for those that do not apply.
fn passes_by_processes(library: &Path, not_applicable: &[&str]) {
    let (status, tested) = checked_by_processes(library, &[], &["--timeout", "10s"]);
    assert_eq!(that_are("failed", &tested), [""; 0], "{}", library.display());
    let not_applicable: BTreeSet<_> = not_applicable.iter().chain(&REGISTERED).copied().collect();
    assert_eq!(BTreeSet::from_iter(that_are("not-applicable", &tested)), not_applicable, "{}", library.display());
    assert_eq!(tested.len(), cases().count());
    assert!(status.success(), "{status}");
}

#[test]
fn shared_memory_as_a_file_by_processes() {
    passes_by_processes(&shm(), &[DEVICE_MEMORY, "offsets_beyond_4_gib_there"]);
}

#[test]
fn the_mailbox_by_processes() {
    if let Some(library) = mailbox() {
        let left_out = [DEVICE_MEMORY, "offsets_beyond_4_gib_there", MAPPED, "engines_reach_every_peer"];
        passes_by_processes(&library, &left_out);
    }
}

#[test]
fn a_rank_that_a_decorator_kills_fails_the_case_that_it_is_killed_in() {
    let arguments = ["--case", "all_ranks_connect", "--case", "a_foreign_ticket_is_refused", "--timeout", "300ms"];
    let kills = [("CAMPANILE_DECORATE", "fault(rank=1, kill_after=5)")];
    let (status, tested) = checked_by_processes(Path::new("shm"), &kills, &arguments);
    let verdicts: Vec<_> = tested.iter().map(|case| [&case["name"], &case["verdict"]]).collect();
    assert_eq!(verdicts, [["all_ranks_connect", "passed"], ["a_foreign_ticket_is_refused", "failed"]]);
    let seen = tested[1]["findings"][0]["seen"].as_str().expect("a finding");
    assert!(seen.starts_with("rank 1 was killed by signal 9 (SIGKILL)"), "{seen}");
    assert_eq!(status.code(), Some(1));
}
