//! Compilation for the emulator, with the machine's C++ compiler: [`Compiler`].

use std::fs::File;
use std::path::{Component, Path};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use campanile_host::process::Pidfd;

use crate::{CompileError, Source};

/// The longest that a compilation may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A C++ compiler that answered.
#[derive(Debug)]
pub(super) struct Compiler {
    program: String,
    version: String,
}

impl Compiler {
    pub(super) fn open(program: &str) -> Result<Self, String> {
        let hint = "the emulator needs a C++17 compiler; install one, or set CAMPANILE_CXX to its path";
        let output = Command::new(program)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{program} does not start ({error}); {hint}"))?;
        if !output.status.success() {
            return Err(format!("{program} --version ended with {}; {hint}", output.status));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().next().unwrap_or_default().to_owned();
        Ok(Self { program: program.to_owned(), version })
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// A shared object of the source and the emulator's runtime.
    pub(super) fn compile(&self, source: &Source, target: &str, options: &[String]) -> Result<Vec<u8>, CompileError> {
        let folder = tempfile::tempdir().map_err(files("make a folder in", &std::env::temp_dir()))?;
        for (name, text) in source.headers().iter().map(|(name, text)| (name.as_str(), text.as_str())) {
            write(folder.path(), name, text)?;
        }
        write(folder.path(), source.name(), source.text())?;
        let wave = target.trim_start_matches("wave");
        let mut all: Vec<String> = ["-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-I."]
            .map(String::from)
            .to_vec();
        all.push(format!("-DCAMPANILE_WAVE={wave}"));
        all.extend_from_slice(options);

        let log = folder.path().join("log");
        let to_log = || File::create(&log).map(Stdio::from).map_err(files("write", &log));
        let child = Command::new(&self.program)
            .args(&all)
            .args([source.name(), "emulator/runtime.cpp", "-o", "module.so"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(to_log()?)
            .spawn();
        let mut child = child.map_err(files("run", Path::new(&self.program)))?;
        let in_time = Pidfd::open(child.id()).and_then(|pidfd| pidfd.wait(Instant::now() + PATIENCE));
        if !matches!(in_time, Ok(true)) {
            // It has ended already, or ends now.
            let _ = child.kill();
        }
        let status = child.wait().map_err(files("wait for", Path::new(&self.program)))?;
        if !status.success() {
            let said = std::fs::read(&log).map_err(files("read", &log))?;
            let said = String::from_utf8_lossy(&said).trim_end().to_owned();
            return Err(CompileError::Source {
                source_name: source.name().to_owned(),
                target: target.to_owned(),
                options: all.join(" "),
                log: if said.is_empty() { format!("the compiler ended with {status}") } else { said },
            });
        }
        let module = folder.path().join("module.so");
        std::fs::read(&module).map_err(files("read", &module))
    }
}

/// Writes a file of the source; names stay within the folder.
fn write(folder: &Path, name: &str, text: &str) -> Result<(), CompileError> {
    let relative = Path::new(name);
    if !relative.components().all(|component| matches!(component, Component::Normal(_))) {
        return Err(CompileError::NoCompiler(format!("{name:?} is no relative path without dots")));
    }
    let path = folder.join(relative);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(files("make", parent))?;
    }
    std::fs::write(&path, text).map_err(files("write", &path))
}

fn files(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CompileError {
    let path = path.display().to_string();
    move |source| CompileError::Files { operation, path, source }
}
