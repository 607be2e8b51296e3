//! Compiling the C programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Where the C sources are.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// -ffp-contract=off: sums must round as the scalar model does (`programs/oracle.h`).
const FLAGS: [&str; 5] = ["-O3", "-march=native", "-std=gnu11", "-ffp-contract=off", "-pthread"];

/// A C compiler and what it needs to find a library.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// `cc`, or an MPI implementation's `mpicc`.
    pub program: PathBuf,
    /// Arguments before the source.
    pub before: Vec<String>,
    /// Arguments after the source: libraries.
    pub after: Vec<String>,
}

impl Compiler {
    /// A compiler, or a compiler wrapper, that needs nothing.
    pub fn plain(program: impl Into<PathBuf>) -> Self {
        Compiler { program: program.into(), before: Vec::new(), after: Vec::new() }
    }

    /// The machine's C compiler: `$CC`, else `cc`.
    pub fn system() -> Self {
        Compiler::plain(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
    }

    /// The first line of `--version`.
    pub fn version(&self) -> Option<String> {
        let output = Command::new(&self.program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().map(str::to_owned)
    }

    /// Compiles `programs/NAME.c` to `to/NAME` and gives that path.
    pub fn compile(&self, name: &str, to: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
        // Renamed at the end: another run may be using the program of this name.
        let fresh = to.join(format!("{name}.{}", std::process::id()));
        let output = Command::new(&self.program)
            .args(&self.before)
            .args(FLAGS)
            .arg(sources().join(name).with_extension("c"))
            .arg("-o")
            .arg(&fresh)
            .args(&self.after)
            .output()
            .with_context(|| format!("cannot run the C compiler {:?}", self.program.file_name().unwrap_or_default()))?;
        if !output.status.success() {
            bail!("{name}.c does not compile:\n{}", String::from_utf8_lossy(&output.stderr).trim_end());
        }
        let program = to.join(name);
        std::fs::rename(&fresh, &program).with_context(|| format!("cannot write {}", program.display()))?;
        Ok(program)
    }
}
