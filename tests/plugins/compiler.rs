//! The C compiler of this machine.

#![allow(dead_code, reason = "not every test that has this module needs all of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// How transports in C are built.
pub const C11: [&str; 3] = ["-std=c11", "-O2", "-g"];

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

/// The transport whose sources are in that folder of the workspace, as a library, which all tests share; `None`, and a word
/// about it, without a compiler.
pub fn transport(folder: &str) -> Option<PathBuf> {
    // Threads of this process build it once.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let folders = [workspace().join(folder), workspace().join("crates/abi/include")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("it is part of the workspace"));
    let newest = files.map(|file| changed(&file.expect("the folder can be read").path())).max();
    let library = scratch(&format!("libcampanile_{}.so", folder.replace('/', "_")));
    if Some(changed(&library)) > newest {
        return Some(library);
    }
    // Other processes see all of it or nothing.
    let made = build(
        &sources(folder),
        library.with_extension(std::process::id().to_string()),
        &[&C11[..], &["-shared", "-fPIC"]].concat(),
    )?;
    fs::rename(made, &library).expect("the folder for tests can be written");
    Some(library)
}

/// Whether a program that is built with these arguments runs: sanitizers are not there on every machine.
pub fn knows(arguments: &[&str]) -> bool {
    let (source, program) = (scratch("knows.c"), scratch("knows"));
    fs::write(&source, "int main(void) { return 0; }\n").expect("the folder for tests can be written");
    let built = Command::new("cc").args(arguments).arg(&source).arg("-o").arg(&program).output();
    built.is_ok_and(|built| built.status.success())
        && Command::new(&program).output().is_ok_and(|ran| ran.status.success())
}

/// The C files of a folder of the workspace.
pub fn sources(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(workspace().join(folder)).expect("the folder is part of the workspace");
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
