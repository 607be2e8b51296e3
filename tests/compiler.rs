//! The machine's C compiler, for the plugins that are written in C.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is inside the workspace").to_owned()
}

/// Whether there is one, and it knows these options: a program that does nothing can be built and run with them.
pub fn knows(options: &[&str]) -> bool {
    let source = scratch("knows.c");
    let program = scratch("knows");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("the folder for tests can be written");
    let built = Command::new("cc").args(options).arg(&source).arg("-o").arg(&program).output();
    built.is_ok_and(|built| built.status.success())
        && Command::new(&program).output().is_ok_and(|ran| ran.status.success())
}

/// Builds `output` from C11 files with all warnings as errors, the plugin boundary's header, and these options besides.
///
/// # Panics
/// With what the compiler says, if it refuses.
pub fn build(output: &str, sources: &[PathBuf], options: &[&str]) -> PathBuf {
    let output = scratch(output);
    let built = Command::new("cc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-O2",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            "-fvisibility=hidden",
        ])
        .args(options)
        .arg("-I")
        .arg(workspace().join("crates/abi/include"))
        .args(sources)
        .arg("-o")
        .arg(&output)
        .output()
        .expect("cc is there: `knows` said so");
    assert!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
    output
}

/// The C files of a folder of the workspace.
pub fn sources(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(workspace().join(folder)).expect("the folder is part of the workspace");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "c")).collect()
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}
