//! `campanile bench link` as a user runs it, on emulated devices; options; exit codes.

use std::process::{Command, Output};

use serde_json::Value;

fn link(arguments: &[&str]) -> Output {
    let cache = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.args(["bench", "link"]).args(arguments).env("CAMPANILE_KERNEL_CACHE", cache);
    command.output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_limit_is_in_the_report() {
    if let Err(error) = Command::new("c++").arg("--version").output() {
        println!("not run: no C++ compiler for the emulator's kernels ({error})");
        return;
    }
    let small = ["--device", "emulator", "-n", "2", "--bytes", "64K", "--iters", "2", "--warmup", "0"];
    let output = link(&[&small[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let rows = report["rows"].as_array().expect("a list of rows");
    for arm in ["peer_stores", "peer_loads", "bulk_loads", "copy_engines"] {
        for pattern in ["all_to_all", "pair"] {
            let row = rows.iter().find(|row| row["arm"] == arm && row["pattern"] == pattern);
            let row = row.unwrap_or_else(|| panic!("{arm} {pattern} is missing"));
            assert!(row["gbps"].as_f64() > Some(0.0) && row["bytes"] == 64 << 10, "{row}");
        }
    }
    assert_eq!((&report["ranks"], &report["shared"], &report["emulated"]), (&2.into(), &false.into(), &true.into()));
    let one_way = report["flag_one_way_us"].as_f64().expect("a flag");
    let flag = rows.iter().find(|row| row["arm"] == "flag").expect("a flag");
    // JSON keeps numbers to the last digit but one.
    let same = |value: &Value, wanted: f64| value.as_f64().is_some_and(|value| (value / wanted - 1.0).abs() < 1e-12);
    assert!(same(&flag["median_us"], 2.0 * one_way), "{flag} {one_way}");
    let barrier = &report["barrier"];
    let of_flag = barrier["in_launch_us"].as_f64().expect("a barrier") / one_way;
    assert!(same(&barrier["of_flag"], of_flag), "{barrier} {one_way}");
    // More ranks than devices share them, which is said.
    let shared = link(&["--device", "emulator", "-n", "5", "--bytes", "64K", "--iters", "1", "--warmup", "0"]);
    assert!(text(&shared.stdout).contains("ranks share a device"), "{}{}", text(&shared.stdout), text(&shared.stderr));
}

#[test]
fn wrong_options_are_named() {
    for (arguments, said) in [
        (&["--ranks", "1"][..], "--ranks 1: a link has two ends"),
        (&["--iters", "0"], "--iters 0"),
        (&["--sms", "0"], "--sms is 0; the device has 1 multiprocessors"),
        (&["--sms", "4294967295"], "--sms is 4294967295; the device has 1 multiprocessors"),
        (&["--round-trips", "0"], "--round-trips 0: 1 to 1000000"),
        (&["--round-trips", "4294967295"], "--round-trips 4294967295: 1 to 1000000"),
        (&["--bytes", "2T"], "bytes, or with K, M or G"),
    ] {
        let output = link(&[&["--device", "emulator"][..], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(said), "{arguments:?}: {}", text(&output.stderr));
    }
    // A machine without a GPU says what was tried, and what to do.
    let output = Command::new(env!("CARGO_BIN_EXE_campanile"))
        .args(["bench", "link"])
        .env("CAMPANILE_LIBCUDA", "/nonexistent/libcuda.so")
        .env("CAMPANILE_LIBAMDHIP64", "/nonexistent/libamdhip64.so")
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--device emulator"), "{}", text(&output.stderr));
    // The backend that is asked for is the only one that is tried.
    let output = Command::new(env!("CARGO_BIN_EXE_campanile"))
        .args(["bench", "link"])
        .env("CAMPANILE_GPU", "hip")
        .env("CAMPANILE_LIBAMDHIP64", "/nonexistent/libamdhip64.so")
        .output()
        .expect("the program starts");
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("libamdhip64") && !said.contains("libcuda"), "{said}");
}
