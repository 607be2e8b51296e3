//! The C compiler of this machine.

#![allow(dead_code, reason = "not every test that has this module needs all of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes a library of a C file beside this one with these arguments; `None`, and a word about it, without a compiler.
pub fn library(source: &str, to: PathBuf, arguments: &[&str]) -> Option<PathBuf> {
    let source = workspace().join("tests/plugins").join(source);
    let arguments = [&["-std=gnu11", "-Wno-unused-function", "-shared", "-fPIC"], arguments].concat();
    build(&[source], to, &arguments)
}

/// Builds C files with these arguments, the header of the plugin boundary, and warnings as errors; `None`, and a word about
/// it, without a compiler.
///
/// # Panics
/// With what the compiler says, if it refuses.
pub fn build(sources: &[PathBuf], to: PathBuf, arguments: &[&str]) -> Option<PathBuf> {
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror"]);
    // Libraries among the arguments are linked to what stands before them.
    cc.arg("-I").arg(workspace().join("crates/abi/include")).arg("-o").arg(&to).args(sources).args(arguments);
    let Ok(output) = cc.output() else {
        println!("not run: no C compiler");
        return None;
    };
    assert!(output.status.success(), "cc {sources:?} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(to)
}

/// Whether a program that is built with these arguments runs: sanitizers are not there on every machine.
pub fn knows(arguments: &[&str]) -> bool {
    let (source, program) = (scratch("knows.c"), scratch("knows"));
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("the folder for tests can be written");
    let built = Command::new("cc").args(arguments).arg(&source).arg("-o").arg(&program).output();
    built.is_ok_and(|built| built.status.success())
        && Command::new(&program).output().is_ok_and(|ran| ran.status.success())
}

/// The C files of a folder of the workspace.
pub fn sources(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(workspace().join(folder)).expect("the folder is part of the workspace");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "c")).collect()
}

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is inside the workspace")
}

/// A file of that name in the folder for tests.
pub fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}
