//! The C compiler of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes a library of a C file with these arguments; `None`, and a word about it, without a compiler.
pub fn library(source: &str, to: PathBuf, arguments: &[&str]) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-shared", "-fPIC"]);
    cc.arg("-I").arg(here.join("../crates/abi/include")).arg("-o").arg(&to);
    cc.arg(here.join("plugins").join(source)).args(arguments);
    let Ok(output) = cc.output() else {
        println!("not run: no C compiler");
        return None;
    };
    assert!(output.status.success(), "cc {source} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(to)
}
