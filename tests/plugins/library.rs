//! Libraries and programs of the workspace that tests load and run.

// Not every test that has this module needs all of it.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// The library that `cargo build` makes with these arguments, built as this test was.
pub fn of_cargo(arguments: &[&str]) -> PathBuf {
    let built = built(arguments);
    let files = built.iter().filter_map(|message| message["filenames"].as_array()).flatten();
    let mut libraries = files.filter_map(|file| file.as_str().map(PathBuf::from));
    // The last artefact is what was asked for; the others are what it needs, macros of the compiler among them.
    libraries.rfind(|file| file.extension().is_some_and(|extension| extension == "so")).expect("a library")
}

/// The program that `cargo build` makes with these arguments, built as this test was.
pub fn program_of_cargo(arguments: &[&str]) -> PathBuf {
    built(arguments).iter().rev().find_map(|message| message["executable"].as_str()).expect("a program").into()
}

/// What cargo says of each artefact.
fn built(arguments: &[&str]) -> Vec<Value> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--message-format", "json"])
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "cargo build {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("cargo speaks JSON")).collect()
}
