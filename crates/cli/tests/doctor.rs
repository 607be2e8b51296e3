//! `campanile doctor` and `campanile info --explain` on this machine: exit codes and what is always there.

use std::process::{Command, Output};

use serde_json::Value;

fn campanile(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.args(arguments).env_remove("CAMPANILE_CONFIG").envs(environment.iter().copied());
    command.output().expect("campanile starts")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn the_doctor_finds_that_shared_memory_can_run() {
    let output = campanile(&["doctor", "-n", "2", "--json"], &[("CAMPANILE_PLUGIN_PATH", "/no/such/directory")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = json(&output);
    assert_eq!((&report["can_run"], &report["ranks"]), (&true.into(), &2.into()));
    let checks = report["checks"].as_array().unwrap();
    let check = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(check("transport")["verdict"], "ok");
    assert_eq!(check("exchange")["verdict"], "ok");
    assert_eq!(check("plugin path")["verdict"], "warning");
    for library in ["libcuda.so.1", "libamdhip64.so", "libibverbs.so.1", "librdmacm.so.1", "libfabric.so.1"] {
        // It is there or not, but nothing else happened.
        let found = check(library)["found"].as_str().unwrap();
        assert!(found.starts_with('/') || found.contains(library), "{library}: {found}");
    }
    let text = campanile(&["doctor"], &[]);
    assert_eq!(text.status.code(), Some(0), "{text:?}");
    assert!(String::from_utf8_lossy(&text.stdout).contains("memlock"));
}

#[test]
fn what_makes_no_sense_is_bad_usage() {
    for (arguments, environment, named) in [
        (&["doctor", "-n", "0"][..], &[][..], "--ranks is 0"),
        (&["doctor"], &[("CAMPANILE_TRANSPORT", "rdma")], "any of shm"),
        (&["info"], &[("CAMPANILE_TRANSPORT", "auto,shm")], "CAMPANILE_TRANSPORT"),
        (&["info", "--explain", "-n", "0"], &[], "--ranks is 0"),
        (&["info", "--peer", "node"], &[], "--explain"),
    ] {
        let output = campanile(arguments, environment);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(named), "{output:?}");
    }
}

#[test]
fn the_explanation_follows_the_forced_path() {
    for (path, chosen) in [("auto", "load-store"), ("load-store", "load-store"), ("queue", "queue")] {
        let environment = [("CAMPANILE_PATH", path), ("CAMPANILE_TRANSPORT", "shm")];
        let output = campanile(&["info", "--explain", "--json", "--peer", "node", "-n", "3"], &environment);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let table = json(&output);
        assert_eq!((&table["communicator"], &table["path"]), (&"shm".into(), &path.into()));
        let rows = table["rows"].as_array().unwrap();
        let host: Vec<_> = rows.iter().filter(|row| row["memory"] == "host").collect();
        assert_eq!(host.len(), 2 * 6, "two peers, six operations");
        assert!(host.iter().all(|row| row["chosen"]["path"] == chosen), "{host:?}");
        assert!(rows.iter().filter(|row| row["memory"] != "host").all(|row| row["chosen"].is_null()));
    }
    let text = campanile(&["info", "--explain"], &[("CAMPANILE_PATH", "queue")]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        text.starts_with("Selection with CAMPANILE_TRANSPORT=auto (default), CAMPANILE_PATH=queue (environment)\n")
    );
    assert!(text.contains("rejected  shm load-store  CAMPANILE_PATH=queue (environment) forbids it"), "{text}");
}

#[test]
fn a_library_that_is_loaded_is_named_by_its_file() {
    let output = campanile(&["library", "libc.so.6"], &[]);
    assert!(output.status.success() && output.stdout.starts_with(b"/"), "{output:?}");
    let output = campanile(&["library", "libno-such.so.1"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("libno-such.so.1"), "{output:?}");
}
