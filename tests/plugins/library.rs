//! Libraries and programs of the workspace that tests load and run.
//!
//! `cargo test --workspace` builds them beside the tests, from the same dependencies: libraries are examples of
//! `campanile-tests`, because cargo builds examples for tests, and no `cdylib` that nobody depends on. What is not there, or
//! is older than its sources, as when one test is run alone, is built here; that takes longer, for cargo chooses features
//! of dependencies by what is built together.

// Not every test that has this module needs all of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Libraries in Rust that tests load: transports, and what stands for the library of a GPU.
#[derive(Clone, Copy)]
pub enum Library {
    /// Shared memory, as a file.
    Shm,
    /// The small example.
    Inproc,
    /// One whose device code has queues.
    Ring,
    /// One that panics.
    Panicking,
    /// The shim of HIP, no transport.
    HipShim,
}

impl Library {
    const fn example(self) -> &'static str {
        match self {
            Self::Shm => "shm_plugin",
            Self::Inproc => "inproc_plugin",
            Self::Ring => "ring_plugin",
            Self::Panicking => "panicking_plugin",
            Self::HipShim => "hip_shim",
        }
    }

    /// Its file, built as this test was.
    pub fn file(self) -> PathBuf {
        let file = beside_tests().join(format!("examples/lib{}.so", self.example()));
        built(file, &["--package", "campanile-tests", "--example", self.example()])
    }
}

/// The program `campanile`, built as this test was.
pub fn campanile() -> PathBuf {
    built(beside_tests().join("campanile"), &["--package", "campanile-cli"])
}

/// target/PROFILE, of target/PROFILE/deps/TEST-HASH.
fn beside_tests() -> PathBuf {
    let test = std::env::current_exe().expect("the system tells which program this is");
    test.ancestors().nth(2).expect("a test lies in a folder of the target folder").to_owned()
}

/// `file`, which `cargo build` makes with these arguments unless it is there and up to date.
fn built(file: PathBuf, arguments: &[&str]) -> PathBuf {
    if is_fresh(&file) {
        return file;
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet"]).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "cargo build {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(file.is_file(), "cargo build {arguments:?} does not make {file:?}");
    file
}

/// Folders of the workspace with what libraries and programs are made of.
const SOURCES: [&str; 6] =
    ["crates", "crates/gpu/tests/hip_shim", "examples/transport_rust", "kernels", "tests/plugins", "transports"];

/// Whether a file is there and not older than any source of the workspace.
fn is_fresh(file: &Path) -> bool {
    let Some(made) = changed(file) else { return false };
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a test's package is inside the workspace");
    let mut folders: Vec<_> = SOURCES.iter().map(|folder| workspace.join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the workspace can be read") {
            let path = entry.expect("the workspace can be read").path();
            if !path.is_dir() {
                if changed(&path).is_none_or(|changed| changed > made) {
                    return false;
                }
            } else if !path.ends_with("tests") && !path.ends_with("examples") {
                folders.push(path);
            }
        }
    }
    true
}

fn changed(file: &Path) -> Option<SystemTime> {
    file.metadata().ok()?.modified().ok()
}
