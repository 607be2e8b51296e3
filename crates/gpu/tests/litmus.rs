//! The litmus program on the emulator, at both waves: its cases run and end, and the rules hold.

use std::path::PathBuf;
use std::process::Command;

#[test]
fn the_rules_hold_on_the_emulator() {
    if let Err(error) = Command::new("c++").arg("--version").output() {
        println!("not run: no C++ compiler for the emulator's kernels ({error})");
        return;
    }
    let test = std::env::current_exe().expect("a test has a path");
    let program = test.ancestors().nth(2).expect("tests lie in target/PROFILE/deps").join("examples/litmus");
    let run = |arguments: &[&str]| {
        Command::new(&program)
            .args(arguments)
            .env("CAMPANILE_KERNEL_CACHE", PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels"))
            .output()
            .expect("the program is built by `cargo test -p campanile-gpu`")
    };
    for (backend, devices) in [("emulator", "two"), ("emulator32", "one")] {
        let output = run(&[backend, "--devices", devices, "--rounds", "4", "--rows", "200"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let results = report["results"].as_array().unwrap();
        let must = results.iter().filter(|result| result["must_hold"] == true).count();
        assert_eq!((results.len(), must), (27, 4), "{text}");
        assert!(results.iter().all(|result| result["ended"] == true), "{text}");
    }
    let chosen = run(&["emulator", "--devices", "two", "--case", "left by", "--rounds", "1"]);
    assert_eq!(String::from_utf8_lossy(&chosen.stdout).matches(" two ").count(), 3);
    for wrong in [&["metal"][..], &["emulator", "--devices", "three"], &["emulator", "--case", "none"], &[]] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
