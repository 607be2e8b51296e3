//! Libraries that tests load.

use std::path::PathBuf;
use std::process::Command;

/// The library that `cargo build` makes with these arguments, built as this test was.
pub fn of_cargo(arguments: &[&str]) -> PathBuf {
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
    let messages = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("cargo speaks JSON"));
    let files = messages.filter_map(|message| message["filenames"].as_array().cloned()).flatten();
    let mut libraries = files.filter_map(|file| file.as_str().map(PathBuf::from));
    // The last artefact is what was asked for; the others are what it needs, macros of the compiler among them.
    libraries.rfind(|file| file.extension().is_some_and(|extension| extension == "so")).expect("a library")
}
