//! The GPU campaign, `benches/gpu/campaign.sh`, as a script: wrong options, folders with spaces, steps that fail.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn campaign(arguments: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/gpu/campaign.sh");
    Command::new("sh").arg(script).args(arguments).output().expect("every Linux has a shell")
}

fn results(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("results.json")).expect("the campaign leaves its results");
    serde_json::from_str(&text).expect("one JSON object")
}

#[test]
fn wrong_options_are_named_before_anything_is_run() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    for (arguments, said) in [
        (&["--only", "info,inof"][..], "--only inof: no such step; there are info selftest"),
        (&["--budget", "soon"], "--budget soon: a number"),
        (&["--budget", "-5"], "--budget -5: a number"),
        (&["--gpus", "all"], "--gpus all: a number"),
        (&["--gpus", "0"], "--gpus 0: a number"),
        (&["--device", "warp"], "--device warp: gpu or emulator"),
        (&["--gpu", "1"], "unknown option --gpu"),
        (&["--bin"], "--bin needs a value"),
    ] {
        let output = campaign(&[&["--out", out.to_str().unwrap()][..], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(said), "{arguments:?}: {stderr}");
    }
    assert!(!out.exists());
    let help = campaign(&["--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--budget  seconds"), "{help:?}");
}

#[test]
fn steps_that_fail_are_told_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("with a 'quote'"), folder.path().join("without programs"));
    let programs = Path::new(env!("CARGO_BIN_EXE_campanile")).parent().unwrap();
    for (out, bin, passes) in [(&good, programs, true), (&bad, Path::new("/no where"), false)] {
        let options = ["--device", "emulator", "--only", "info,nccl", "--out", out.to_str().unwrap()];
        let output = campaign(&[&options[..], &["--bin", bin.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(i32::from(!passes)), "{output:?}");
        let results = results(out);
        assert_eq!(results["failed"], !passes);
        let status = |step: usize| results["steps"][step]["status"].as_str().unwrap().to_owned();
        assert_eq!([status(0), status(1)], [if passes { "passed" } else { "failed" }, "skipped"]);
        assert_eq!(results["steps"][0]["output"].is_object(), passes, "what the step printed is there: {results}");
    }
}
