//! `campanile check` as a user runs it: the suite on shared memory, with processes and threads; options; exit codes.

use std::process::{Command, Output};

use serde_json::Value;

fn check(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.arg("check").args(arguments).env_remove("CAMPANILE_TIMEOUT").output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The one JSON object of a run.
fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn names<'a>(report: &'a Value, verdict: &str) -> Vec<&'a str> {
    let cases = report["cases"].as_array().expect("a list of cases");
    let such = cases.iter().filter(|case| case["verdict"] == verdict);
    such.map(|case| case["name"].as_str().expect("a name")).collect()
}

#[test]
fn shared_memory_with_processes_as_ranks_keeps_the_contract() {
    let output = check(&["--json", "--timeout", "20s"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let report = json(&output);
    let left_out = ["host_and_device_memory_in_one_list", "offsets_beyond_4_gib_there"];
    assert_eq!(names(&report, "not-applicable"), left_out);
    let passed = names(&report, "passed");
    assert_eq!(report["passed"], passed.len());
    for case in ["a_forked_child_hides_no_death", "a_stopped_process_is_named", "death_in_a_wait"] {
        assert!(passed.contains(&case), "{case} was not run");
    }
    assert_eq!(
        (&report["transport"], &report["ranks"], &report["ranks_as"]),
        (&"shm".into(), &3.into(), &"processes".into())
    );
}

#[test]
fn a_report_for_people_counts_by_group() {
    for ranks_as in ["threads", "processes"] {
        let output =
            check(&["--as", ranks_as, "-n", "2", "--case", "masks", "--case", "all_ranks_connect", "--seed", "9"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let stdout = text(&output.stdout);
        for line in [
            &format!("2 ranks as {ranks_as}, windows in host memory, waits of at most 10 s, seed 9"),
            "control     1 passed, 0 failed, 0 not applicable",
            "masks       0 passed, 0 failed, 7 not applicable",
            "survivors_go_on_after_a_mask: needs 3 ranks, there are 2",
            "8 cases: 1 passed, 0 failed, 7 not applicable",
        ] {
            assert!(stdout.contains(line), "{line:?} is not in {stdout}");
        }
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    }
}

#[test]
fn a_case_that_fails_is_exit_code_1() {
    // No rank finds another one in a nanosecond.
    let output = check(&["--json", "--timeout", "0.000000001", "--case", "all_ranks_connect"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).ends_with("error: 1 of 1 cases failed\n"), "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!(names(&report, "failed"), ["all_ranks_connect"]);
    assert!(report["cases"][0]["findings"][0]["seen"].as_str().is_some_and(|seen| seen.contains("rank")));
}

#[test]
fn what_can_be_run_is_listed() {
    let output = check(&["--list", "--case", "weak_signal"]);
    assert_eq!(output.status.code(), Some(0));
    let stdout = text(&output.stdout);
    assert!(stdout.starts_with("ordering: ") && stdout.contains("\n  weak_signal_announces_its_put\n"), "{stdout}");
    assert!(stdout.contains("needs 2 ranks, PutSignal, signals that set\n"), "{stdout}");
    let listed = json(&check(&["--list", "--json"]));
    assert!(listed["cases"].as_array().is_some_and(|cases| cases.len() > 80));
}

#[test]
fn what_does_not_exist_is_exit_code_2() {
    for (arguments, named) in [
        (&["--case", "nonsense"][..], "nonsense"),
        (&["--transport", "carrier-pigeon"], "carrier-pigeon"),
        (&["--ranks", "0"], "--ranks is 0"),
        (&["--timeout", "0"], "more than 0"),
        (&["--as", "fibres"], "fibres"),
        (&["--windows", "device"], "transport shm has no device memory"),
    ] {
        let output = check(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(named), "{output:?}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn nothing_that_could_be_run_is_a_failure() {
    let output = check(&["--as", "threads", "--case", "a_stopped_process"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("no case could be run"), "{}", text(&output.stderr));
}
