//! `campanile moe`, `bench moe` and `check` on emulated devices as a user runs them: the same files in and out as on the
//! host, figures, warnings, refusals.

mod common;

use std::process::Command;

use safetensors::tensor::Dtype;
use serde_json::Value;

use common::{File, campanile, good, path, refused, text};

/// Whether the emulator has its compiler; says so if not.
fn has_compiler() -> bool {
    let found = Command::new("c++").arg("--version").output();
    if let Err(error) = &found {
        println!("not run: no C++ compiler for the emulator's kernels ({error})");
    }
    found.is_ok()
}

/// Some options.
type Options = &'static [&'static str];

#[test]
fn files_give_the_same_bytes_as_on_the_host() {
    if !has_compiler() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    const DEVICE: [&str; 4] = ["--device", "emulator", "--timeout", "60"];
    let cases: [(File, Options, &[Options]); 7] = [
        (
            File::new(&[3, 0, 7], 40, 3, 7, Dtype::BF16, 1),
            &[],
            &[
                &["--as", "processes"],
                &["--as", "threads", "--layout", "compact"],
                &["--as", "threads", "--layout", "expert-major", "--combine", "push"],
                &["--as", "threads", "--mode", "throughput"],
                &["--as", "threads", "--mode", "low-latency"],
            ],
        ),
        (File::new(&[2, 9], 1, 16, 3, Dtype::F16, 2), &[], &[&["--as", "threads"]]),
        (File::new(&[1, 2, 3, 4], 13, 1, 10, Dtype::F32, 3).map(&[3, 3, 0, 1, 2, 3, 3, 3, 0, 2]), &[], &[&[]]),
        (File::new(&[5, 6, 2], 11, 2, 5, Dtype::F8_E4M3, 4).map(&[1, 1, 1, 1, 1]), &[], &[&["--as", "threads"]]),
        (File::new(&[4], 4096, 2, 3, Dtype::BF16, 5), &["--combine-dtype", "f32"], &[&["--as", "threads"]]),
        (File::new(&[0, 0], 8, 2, 4, Dtype::BF16, 6), &[], &[&["--as", "threads", "--combine", "push"]]),
        (File::new(&[4, 5], 136, 2, 4, Dtype::BF16, 7), &["--quantize", "fp8"], &[&["--as", "threads"]]),
    ];
    for (number, (file, what, ways)) in cases.iter().enumerate() {
        let input = file.write(folder.path(), &format!("in{number}"));
        let run = |options: &[&str]| {
            let output = folder.path().join("out");
            let whole = ["moe", "--input", path(&input), "--output", path(&output), "--dump-recv"];
            let report = good(&[&whole[..], what, options].concat());
            assert!(report.contains("verified"), "{report}");
            assert_eq!(report.contains("nothing about a GPU"), options.contains(&"emulator"), "{report}");
            std::fs::read(&output).unwrap()
        };
        let host = run(&["--as", "threads"]);
        for way in *ways {
            assert!(run(&[&DEVICE[..], way].concat()) == host, "file {number}: another result by {way:?}");
        }
    }
}

#[test]
fn ranks_that_share_devices_are_told_so_and_json_is_one_object() {
    if !has_compiler() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let input = File::new(&[2, 1, 0, 4, 3], 16, 2, 10, Dtype::BF16, 8).write(folder.path(), "in");
    let options = ["--device", "emulator", "--as", "threads", "--timeout", "60", "--json"];
    let output = campanile(&[&["moe", "--input", path(&input)][..], &options].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).starts_with("warning: 5 ranks share 4 devices"), "{}", text(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((&value["verified"], &value["run"]["device"]), (&true.into(), &"emulator".into()));
    assert_eq!((&value["run"]["transport"], &value["run"]["combine"]), (&"p2p".into(), &"pull".into()));
    assert!(value["dispatch"]["limit_gbps"].as_f64() > Some(0.0), "the links are the limit: {value}");
}

#[test]
fn a_benchmark_has_kernel_times_and_the_limit_of_the_links() {
    if !has_compiler() {
        return;
    }
    let shape = ["bench", "moe", "--tokens", "9", "--hidden", "40", "--topk", "3", "--experts", "6", "--iters", "3"];
    let device = ["--warmup", "1", "--device", "emulator", "--timeout", "60", "--json"];
    let bench = |options: &[&str]| -> Value {
        serde_json::from_str(&good(&[&shape[..], &device, options].concat())).expect("one JSON object")
    };
    for (options, sms, round) in
        [(&["--as", "threads"][..], 3, false), (&["--sms", "2", "--graph", "--combine", "push"], 2, true)]
    {
        let value = bench(options);
        assert_eq!((&value["verified"], &value["sms"], &value["graph"]), (&true.into(), &sms.into(), &round.into()));
        assert_eq!(value["round_us"].as_f64() > Some(0.0), round, "{value}");
        for phase in ["dispatch", "combine"] {
            for figure in ["kernel_us", "end_to_end_us", "median_us", "wire_gbps", "limit_gbps", "ratio"] {
                assert!(value[phase][figure].as_f64() > Some(0.0), "{phase} {figure}: {value}");
            }
            assert_eq!(value[phase]["end_to_end_us"], value[phase]["median_us"]);
            assert_eq!(value[phase]["grid"][0], sms);
            let quick = phase == "dispatch" || value["combine_by"] == "pull";
            assert_eq!(value[phase]["schedule"], if quick { "low-latency" } else { "throughput" });
        }
    }
    // The figures of devices are not those of the host.
    let host: Value = serde_json::from_str(&good(&[&shape[..], &["--as", "threads", "--json"]].concat())).unwrap();
    assert_eq!((&host["sms"], &host["dispatch"]["kernel_us"]), (&Value::Null, &Value::Null));
    assert_eq!(host["dispatch"]["end_to_end_us"], host["dispatch"]["median_us"]);
}

#[test]
fn the_suite_examines_the_transport_of_devices() {
    // Whoever asks for devices means their memory, unless he says otherwise.
    for (options, windows) in [(&[][..], "device"), (&["--windows", "host"], "host")] {
        let check = ["check", "--device", "emulator", "--as", "threads", "--case", "all_ranks_connect", "--json"];
        let value: Value = serde_json::from_str(&good(&[&check, options].concat())).expect("one JSON object");
        assert_eq!((&value["transport"], &value["passed"]), (&"p2p".into(), &1.into()));
        assert_eq!(value["windows"], windows);
    }
}

#[test]
fn what_a_device_cannot_do_is_refused() {
    let emulator = |options: &[&'static str]| [&["moe", "--device", "emulator"][..], options].concat();
    refused(&["moe", "--device", "warp"], &["host", "gpu", "emulator"]);
    refused(&emulator(&["--path", "queue"]), &["path queue", "load-store"]);
    refused(&["check", "--device", "emulator", "--transport", "shm"], &["p2p", "shm"]);
    for option in [&["--graph"][..], &["--sms", "2"]] {
        refused(&[&["bench", "moe"], option].concat(), &[option[0], "--device gpu"]);
    }
    refused(&["bench", "moe", "--device", "emulator", "--sms", "0"], &["--sms"]);
    // Sizes that no machine has are no reason to take its memory, or to panic.
    for (option, most) in
        [("--hidden", "16777216"), ("--topk", "65536"), ("--experts", "16777216"), ("--warmup", "1000000")]
    {
        for value in [u64::MAX.to_string(), "16777217".to_owned()] {
            refused(&["bench", "moe", "--device", "emulator", option, &value], &[option, &value, most]);
        }
    }
    refused(&["bench", "moe", "--tokens", &u64::MAX.to_string()], &["--tokens"]);
    if has_compiler() {
        refused(&["bench", "moe", "--device", "emulator", "--sms", "500"], &["--sms is 500", "4 multiprocessors"]);
        let quick = ["--device", "emulator", "--mode", "low-latency"];
        refused(&[&["moe", "-n", "9"][..], &quick].concat(), &["low-latency", "9 ranks", "at most 8", "throughput"]);
        let many = ["bench", "moe", "--tokens", "600", "--hidden", "8"];
        refused(&[&many[..], &quick].concat(), &["600 tokens a rank", "at most 512"]);
    }
}

#[test]
fn what_this_machine_does_not_have_is_told_with_what_to_do() {
    let libraries =
        [("CAMPANILE_LIBCUDA", "/nowhere/libcuda.so"), ("CAMPANILE_LIBAMDHIP64", "/nowhere/libamdhip64.so")];
    let said = |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        let output = command.args(arguments).envs(environment.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
        text(&output.stderr)
    };
    for command in
        [&["moe", "--device", "gpu"][..], &["bench", "moe", "--device", "gpu"], &["check", "--device", "gpu"]]
    {
        let message = said(command, &libraries);
        for fragment in ["/nowhere/libcuda.so", "/nowhere/libamdhip64.so", "--device emulator"] {
            assert!(message.contains(fragment), "{fragment:?} is not in {message}");
        }
    }
    let message = said(&["moe", "--device", "emulator"], &[("CAMPANILE_CXX", "/nowhere/c++")]);
    assert!(message.contains("/nowhere/c++") && message.contains("CAMPANILE_CXX"), "{message}");
    let message = said(&["moe", "--device", "emulator"], &[("CAMPANILE_TRANSPORT", "shm")]);
    assert!(message.contains("p2p") && message.contains("shm"), "{message}");
}
