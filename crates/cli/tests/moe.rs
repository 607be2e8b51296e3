//! `campanile moe`, `bench` and `info` as a user runs them: files in, files out, exit codes, messages.

mod common;

use std::process::Command;

use safetensors::tensor::{Dtype, SafeTensors};

use common::{File, campanile, good, is_scaled, path, refused, text};

#[test]
fn odd_shapes_give_the_same_file_in_every_way() {
    let folder = tempfile::tempdir().unwrap();
    let files = [
        File::new(&[3, 0, 7], 40, 3, 7, Dtype::BF16, 1),
        File::new(&[2, 1, 0, 4, 9], 1, 16, 3, Dtype::F16, 2),
        File::new(&[1, 2, 3, 4, 5, 6, 7], 13, 1, 10, Dtype::F32, 3).map(&[6, 6, 0, 1, 2, 3, 3, 6, 0, 5]),
        File::new(&[5, 6, 2], 11, 2, 5, Dtype::F8_E4M3, 4).map(&[1, 1, 1, 1, 1]),
        File::new(&[2, 4], 21, 3, 6, Dtype::F8_E4M3FNUZ, 7),
        File::new(&[3, 5, 1], 22, 2, 4, Dtype::F4, 8),
        File::new(&[4], 16384, 2, 3, Dtype::BF16, 5),
        File::new(&[0, 0], 8, 2, 4, Dtype::BF16, 6),
    ];
    for (number, file) in files.iter().enumerate() {
        let input = file.write(folder.path(), &format!("in{number}"));
        let mut first: Option<Vec<u8>> = None;
        for ways in [
            &["--as", "threads"][..],
            &["--as", "processes", "--mode", "throughput", "--layout", "compact"],
            &["--as", "threads", "--mode", "low-latency", "--combine", "push", "--layout", "expert-major"],
            &["--as", "threads", "--path", "queue"],
        ] {
            let output = folder.path().join("out");
            let mut arguments = vec!["moe", "--input", path(&input), "--output", path(&output), "--dump-recv"];
            arguments.extend(ways);
            let report = good(&arguments);
            assert!(report.contains("verified"), "{report}");
            let bytes = std::fs::read(&output).unwrap();
            match &first {
                None => first = Some(bytes),
                Some(first) => assert!(*first == bytes, "file {number}: another result by {ways:?}"),
            }
        }
        let first = first.unwrap();
        let tensors = SafeTensors::deserialize(&first).unwrap();
        let ranks = file.tensors.keys().filter(|name| name.starts_with("x.")).count();
        for rank in 0..ranks {
            let (dtype, shape, _) = &file.tensors[&format!("x.{rank}")];
            let out = tensors.tensor(&format!("out.{rank}")).unwrap();
            assert_eq!(out.shape(), shape);
            assert_eq!(out.dtype(), if is_scaled(*dtype) { Dtype::BF16 } else { *dtype });
            assert_eq!(tensors.tensor(&format!("recv_x.{rank}")).unwrap().dtype(), *dtype);
            assert_eq!(tensors.tensor(&format!("recv_scales.{rank}")).is_ok(), is_scaled(*dtype));
            for name in ["out_weights", "recv_x", "recv_src", "recv_topk_idx", "recv_topk_weights"] {
                assert!(tensors.tensor(&format!("{name}.{rank}")).is_ok(), "{name}.{rank}");
            }
        }
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), files.len() + 1, "only inputs and the output are there: {left:?}");
}

#[test]
fn rows_are_quantised_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let input = File::new(&[3, 0, 7], 300, 3, 7, Dtype::BF16, 1).write(folder.path(), "in");
    for (name, dtype) in [("fp8", Dtype::F8_E4M3), ("fp8-fnuz", Dtype::F8_E4M3FNUZ)] {
        let output = folder.path().join("out");
        let mut first: Option<Vec<u8>> = None;
        for ranks_as in ["threads", "processes"] {
            let report = good(&[
                "moe",
                "--input",
                path(&input),
                "--output",
                path(&output),
                "--dump-recv",
                "--quantize",
                name,
                "--as",
                ranks_as,
                "--json",
            ]);
            let report: serde_json::Value = serde_json::from_str(&report).expect("one JSON object");
            assert_eq!((&report["verified"], &report["problem"]["x_dtype"]), (&true.into(), &"bf16".into()));
            // A row of bytes, three scales for 300 elements, and 1 + 3 + 3 words of routing and weights.
            assert_eq!(report["dispatch"]["row_bytes"], 300 + 3 * 4 + 28);
            let bytes = std::fs::read(&output).unwrap();
            assert!(first.as_ref().is_none_or(|first| *first == bytes), "{name} as {ranks_as}");
            first = Some(bytes);
        }
        let first = first.unwrap();
        let tensors = SafeTensors::deserialize(&first).unwrap();
        let tensor = |name: &str| tensors.tensor(name).unwrap();
        assert_eq!((tensor("recv_x.1").dtype(), tensor("out.2").dtype()), (dtype, Dtype::BF16));
        assert_eq!(tensor("recv_scales.1").shape(), [tensor("recv_x.1").shape()[0], 3]);
    }
    refused(&["moe", "--quantize", "f8"], &["--quantize", "fp8 or fp8-fnuz"]);
    let halves = File::new(&[1], 8, 1, 1, Dtype::F16, 1).write(folder.path(), "halves");
    refused(&["moe", "--input", path(&halves), "--quantize", "fp8"], &["halves", "bf16 rows", "x.0 is f16"]);
}

#[test]
fn json_is_one_object() {
    let output = campanile(&["moe", "--as", "threads", "--ranks", "2", "--json"]);
    assert!(output.status.success());
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(value["verified"], true);
    assert_eq!(value["ranks"], 2);
    assert!(value["dispatch"]["wire_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn bad_files_name_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let file = || File::new(&[3, 2], 8, 2, 4, Dtype::BF16, 1);
    let write = |file: File| file.write(folder.path(), "bad");

    let mut missing = file();
    missing.tensors.remove("topk_idx.1");
    refused(&["moe", "--input", path(&write(missing))], &["topk_idx.1", "bad"]);
    let mut range = file();
    range.tensors.get_mut("topk_idx.0").unwrap().2[..4].copy_from_slice(&4i32.to_le_bytes());
    refused(&["moe", "--input", path(&write(range))], &["topk_idx.0"]);
    let mut mixed = file();
    let (_, shape, data) = mixed.tensors["x.1"].clone();
    mixed.tensors.insert("x.1".to_owned(), (Dtype::F16, shape, data));
    refused(&["moe", "--input", path(&write(mixed))], &["x.1"]);
    let whole = write(file());
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::write(&whole, &bytes[..bytes.len() - 3]).unwrap();
    refused(&["moe", "--input", path(&whole)], &["bad"]);
    refused(&["moe", "--input", path(&folder.path().join("none"))], &["none"]);
    refused(&["moe", "--input", path(folder.path())], &["regular file"]);
    refused(&["moe", "--input", "/dev/zero"], &["regular file"]);
    refused(&["moe", "--input", path(&write(file())), "--ranks", "3"], &["--ranks is 3", "2 ranks"]);
    refused(&["moe", "--output", path(&folder.path().join("no/such/place"))], &["no/such/place"]);
}

#[test]
fn bad_usage_is_refused() {
    refused(&["moe", "--ranks", "0"], &["--ranks"]);
    refused(&["moe", "--ranks", "100000"], &["--ranks", "4096"]);
    refused(&["run", "-n", "4294967295", "--", "true"], &["4096"]);
    refused(&["bench", "moe", "--tokens", "99999999999"], &["available"]);
    refused(&["bench", "moe", "--iters", "18446744073709551615"], &["--iters"]);
    refused(&["bench", "barrier", "--iters", "18446744073709551615"], &["--iters"]);
    refused(&["moe", "--layout", "diagonal"], &["rows, compact or expert-major"]);
    refused(&["moe", "--combine-dtype", "f8_e4m3"], &["bf16, f16 or f32"]);
    refused(&["moe", "--timeout", "never"], &["--timeout"]);
    refused(&["moe", "--dump-recv"], &["--output"]);
    refused(&["bench", "put", "-b", "16", "-e", "8"], &["16", "8"]);
    refused(&["bench", "put", "--path", "queue"], &["side by side"]);
    refused(&["moe", "--combine", "pull", "--path", "queue"], &["use push"]);
    refused(&["bench", "moe", "--iters", "0"], &["--iters"]);
    refused(&["bench", "barrier", "--ranks", "0"], &["--ranks"]);
    refused(&["no-such-command"], &["no-such-command"]);
}

#[test]
fn an_unknown_variable_is_refused() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_campanile")).arg("moe").env("CAMPANILE_TIMEOT", "3").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.contains("CAMPANILE_TIMEOT") && message.contains("CAMPANILE_TIMEOUT"), "{message}");
}

#[test]
fn variables_that_make_no_sense_are_refused_by_every_command() {
    for (name, value, fragment) in [
        ("CAMPANILE_RANK", "0", "CAMPANILE_WORLD_SIZE"),
        ("CAMPANILE_TRANSPORT", "nccl", "shm"),
        ("CAMPANILE_TIMEOUT", "0", "more than 0"),
    ] {
        for command in [&["moe"][..], &["info"], &["bench", "barrier"]] {
            let output = Command::new(env!("CARGO_BIN_EXE_campanile")).args(command).env(name, value).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{command:?} with {name}={value}");
            assert!(text(&output.stderr).contains(fragment), "{}", text(&output.stderr));
        }
    }
}

#[test]
fn a_configuration_that_is_no_file_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_campanile"))
        .arg("info")
        .env("CAMPANILE_CONFIG", "/dev/zero")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("not a regular file"), "{}", text(&output.stderr));
}

#[test]
fn benches_count_and_verify() {
    let shape =
        ["--tokens", "40", "--hidden", "100", "--topk", "3", "--experts", "9", "--iters", "12", "--warmup", "1"];
    for (dtype, row) in [("bf16", 200), ("f8_e4m3", 100 + 4), ("f8_e4m3fnuz", 100 + 4), ("f4_e2m1", 50 + 4 * 4)] {
        let mut arguments = vec!["bench", "moe", "--ranks", "3", "--dtype", dtype, "--json", "--as", "threads"];
        arguments.extend(shape);
        let value: serde_json::Value = serde_json::from_str(&good(&arguments)).expect("one JSON object");
        assert_eq!(value["verified"], true);
        for phase in ["dispatch", "combine"] {
            for figure in ["median_us", "p99_us", "max_over_mean", "wire_gbps", "limit_gbps", "ratio"] {
                assert!(value[phase][figure].as_f64().unwrap() > 0.0, "{phase} {figure}");
            }
            let bytes = |name: &str| value[phase][name].as_u64().unwrap();
            assert!(bytes("wire_bytes") < bytes("logical_bytes"));
        }
        // A row, its scales, and 1 + 3 + 3 words of routing and weights.
        assert_eq!(value["dispatch"]["wire_bytes"].as_u64().unwrap() % (row + 28), 0);
    }
    let value: serde_json::Value =
        serde_json::from_str(&good(&["bench", "barrier", "--iters", "200", "--warmup", "1", "--json"])).unwrap();
    assert_eq!(value["iters"], 200);
    assert!(value["median_us"].as_f64().unwrap() > 0.0);
    let value: serde_json::Value =
        serde_json::from_str(&good(&["bench", "put", "-b", "8", "-e", "1K", "-f", "4", "--json"])).unwrap();
    let sizes: Vec<_> = value["rows"].as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [8, 32, 128, 512, 1024], "the end is always measured");
    assert!(value["rows"][0]["queue"]["median_us"].as_f64().unwrap() > 0.0);
}

#[test]
fn info_lists_transports_and_variables() {
    let value: serde_json::Value = serde_json::from_str(&good(&["info", "--json"])).unwrap();
    assert_eq!(
        (&value["transports"][0]["name"], &value["transports"][0]["origin"]),
        (&"shm".into(), &"linked in".into())
    );
    assert_eq!(value["transports"][0]["devices"][0]["usable"], true);
    assert_eq!(value["refused"], serde_json::json!([]));
    assert_eq!(value["launch"], serde_json::Value::Null);
    let names: Vec<_> = value["variables"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"CAMPANILE_TIMEOUT"));
    assert!(good(&["info"]).contains("CAMPANILE_TIMEOUT"));
    let run = ["run", "-n", "2", "--", env!("CARGO_BIN_EXE_campanile"), "info"];
    let said = good(&run);
    for rank in ["[0]   campanile run: rank 0 of 2", "[1]   campanile run: rank 1 of 2"] {
        assert!(said.contains(rank), "{said}");
    }
}
