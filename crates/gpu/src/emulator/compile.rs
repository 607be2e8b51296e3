//! Compilation for the emulator, with the machine's C++ compiler: [`Compiler`].

use std::io::{self, Read, Seek};
use std::path::{Component, Path};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use campanile_host::process::Pidfd;

use crate::{CompileError, Source};

/// The longest that a compilation may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest that a compiler may take to say its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(10);
/// The most of what a compiler says that is kept.
const SAID_BYTES: u64 = 16 << 10;

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
        let mut command = Command::new(program);
        let ended = ask(command.arg("--version"), Stream::Output, VERSION_PATIENCE)
            .map_err(|error| format!("{program} does not start ({error}); {hint}"))?;
        if !ended.well() {
            return Err(format!("{program} --version {}; {hint}", ended.how()));
        }
        // Folders of users are shared between machines: what one built is not for another instruction set.
        let line = ended.said.lines().next().unwrap_or_default();
        let version = format!("{line} for {}", std::env::consts::ARCH);
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
        let mut command = Command::new(&self.program);
        command.args(options).args(inputs).args(["-o", output]).current_dir(folder);
        let ended = ask(&mut command, Stream::Errors, PATIENCE).map_err(files("run", Path::new(&self.program)))?;
        if ended.well() {
            return Ok(None);
        }
        let said = ended.said.trim_end();
        Ok(Some(match (said, ended.overdue) {
            ("", _) | (_, Some(_)) => format!("the compiler {}; it said {said:?}", ended.how()),
            _ => said.to_owned(),
        }))
    }
}

/// What of a program is listened to.
enum Stream {
    Output,
    Errors,
}

/// How a program ended, and the beginning of what it said.
struct Ended {
    status: ExitStatus,
    /// The patience that it exceeded; it was ended then.
    overdue: Option<Duration>,
    said: String,
}

impl Ended {
    fn well(&self) -> bool {
        self.status.success()
    }

    fn how(&self) -> String {
        match self.overdue {
            Some(patience) => format!("was not done within {} s", patience.as_secs()),
            None => format!("ended with {}", self.status),
        }
    }
}

/// Runs a program to its end, or to that of the patience.
fn ask(command: &mut Command, stream: Stream, patience: Duration) -> io::Result<Ended> {
    // A file, for a pipe that nobody empties stops who writes.
    let mut heard = tempfile::tempfile()?;
    let (output, errors) = match stream {
        Stream::Output => (heard.try_clone()?.into(), Stdio::null()),
        Stream::Errors => (Stdio::null(), heard.try_clone()?.into()),
    };
    let mut child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn()?;
    let in_time = Pidfd::open(child.id()).and_then(|pidfd| pidfd.wait(Instant::now() + patience));
    let overdue = !matches!(in_time, Ok(true));
    if overdue {
        // It has ended already, or ends now.
        let _ = child.kill();
    }
    let status = child.wait()?;
    heard.rewind()?;
    let mut said = Vec::new();
    let length = heard.metadata()?.len();
    heard.take(SAID_BYTES).read_to_end(&mut said)?;
    let mut said = String::from_utf8_lossy(&said).into_owned();
    if length > SAID_BYTES {
        said += &format!("… ({} bytes more)", length - SAID_BYTES);
    }
    Ok(Ended { status, overdue: (overdue && !status.success()).then_some(patience), said })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_ended() {
        let ended = ask(Command::new("sleep").arg("600"), Stream::Output, Duration::from_millis(50)).unwrap();
        assert!(!ended.well() && ended.overdue.is_some(), "{}", ended.how());
        assert!(ended.how().contains("not done within"), "{}", ended.how());
    }

    #[test]
    fn of_much_that_is_said_the_beginning_is_kept() {
        let mut command = Command::new("sh");
        let command = command.args(["-c", "echo first >&2; head -c 1000000 /dev/zero >&2; exit 3"]);
        let ended = ask(command, Stream::Errors, PATIENCE).unwrap();
        assert!(!ended.well() && ended.overdue.is_none() && ended.how().contains('3'), "{}", ended.how());
        assert!(ended.said.starts_with("first\n") && ended.said.contains(" bytes more)"));
        assert!(ended.said.len() < 2 * SAID_BYTES as usize, "{} bytes", ended.said.len());
    }

    #[test]
    fn what_one_machine_built_is_not_for_another_kind() {
        let compiler = Compiler::open("true").unwrap();
        assert!(compiler.version().ends_with(std::env::consts::ARCH), "{}", compiler.version());
    }
}
