//! Compilation for the emulator, with the machine's C++ compiler: [`Compiler`].

use std::fs::File;
use std::path::{Component, Path};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use campanile_host::process::Pidfd;

use crate::{CompileError, Source};

/// The longest that a compilation may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What every compilation is given.
const COMMON: &[&str] = &["-std=c++17", "-O1", "-fPIC", "-pthread", "-ffp-contract=off", "-I."];
const RUNTIME: &str = "emulator/runtime.cpp";
const RUNTIME_OBJECT: &str = "runtime.o";
const MODULE: &str = "module.so";

/// The last object of the runtime that this process has built, and of what: every emulated machine has the same.
static RUNTIME_BUILT: Mutex<Option<(RuntimeKey, Vec<u8>)>> = Mutex::new(None);

/// Program and version of the compiler, and the runtime's source.
type RuntimeKey = [String; 3];

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
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let folder = tempfile::tempdir().map_err(files("make a folder in", &std::env::temp_dir()))?;
        for (name, text) in source.headers() {
            write(folder.path(), name, text.as_bytes())?;
        }
        write(folder.path(), source.name(), source.text().as_bytes())?;
        write(folder.path(), RUNTIME_OBJECT, &self.runtime(source, folder.path())?)?;
        let log = self.run(folder.path(), &options, &[source.name(), RUNTIME_OBJECT], MODULE)?;
        log.map_or_else(
            || read(folder.path(), MODULE),
            |log| {
                Err(CompileError::Source {
                    source_name: source.name().to_owned(),
                    target: target.to_owned(),
                    options: options.join(" "),
                    log,
                })
            },
        )
    }

    /// The object of the runtime, which is the same for every kernel, and takes longer than most of them.
    fn runtime(&self, source: &Source, folder: &Path) -> Result<Vec<u8>, CompileError> {
        let text = source.headers().iter().find(|(name, _)| name == RUNTIME).map_or("", |(_, text)| text.as_str());
        let key = [&self.program, &self.version, text].map(str::to_owned);
        // Nothing panics while it is held.
        let mut built = RUNTIME_BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, object)) = built.as_ref().filter(|(of, _)| *of == key) {
            return Ok(object.clone());
        }
        let options = [COMMON, &["-c"]].concat();
        if let Some(log) = self.run(folder, &options, &[RUNTIME], RUNTIME_OBJECT)? {
            return Err(CompileError::Source {
                source_name: RUNTIME.to_owned(),
                target: "the emulator".to_owned(),
                options: options.join(" "),
                log,
            });
        }
        let object = read(folder, RUNTIME_OBJECT)?;
        *built = Some((key, object.clone()));
        Ok(object)
    }

    /// Runs the compiler in `folder`; what it said if it failed.
    fn run(
        &self,
        folder: &Path,
        options: &[&str],
        inputs: &[&str],
        output: &str,
    ) -> Result<Option<String>, CompileError> {
        let log = folder.join("log");
        let child = Command::new(&self.program)
            .args(options)
            .args(inputs)
            .args(["-o", output])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).map_err(files("write", &log))?)
            .spawn();
        let mut child = child.map_err(files("run", Path::new(&self.program)))?;
        let in_time = Pidfd::open(child.id()).and_then(|pidfd| pidfd.wait(Instant::now() + PATIENCE));
        if !matches!(in_time, Ok(true)) {
            // It has ended already, or ends now.
            let _ = child.kill();
        }
        let status = child.wait().map_err(files("wait for", Path::new(&self.program)))?;
        if status.success() {
            return Ok(None);
        }
        let said = String::from_utf8_lossy(&read(folder, "log")?).trim_end().to_owned();
        Ok(Some(if said.is_empty() { format!("the compiler ended with {status}") } else { said }))
    }
}

/// What every kernel is compiled with.
pub(super) fn base_options(target: &str) -> Vec<String> {
    let mut options: Vec<String> = COMMON.iter().map(|option| (*option).to_owned()).collect();
    options.extend(["-shared".to_owned(), format!("-DCAMPANILE_WAVE={}", target.trim_start_matches("wave"))]);
    options
}

fn read(folder: &Path, name: &str) -> Result<Vec<u8>, CompileError> {
    let path = folder.join(name);
    std::fs::read(&path).map_err(files("read", &path))
}

/// Writes a file of the source; names stay within the folder.
fn write(folder: &Path, name: &str, text: &[u8]) -> Result<(), CompileError> {
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
