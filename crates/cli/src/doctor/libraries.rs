//! Vendor libraries that transports load: whether they are there.
//!
//! Each is loaded in a child of its own with a deadline, so that one that hangs or crashes is a line of the report.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use campanile::host::process::Pidfd;

use super::check::{Check, Verdict};
use crate::exit::Error;
use crate::output::print;

/// A library and what it is for.
pub struct Library {
    name: &'static str,
    /// Files that it may be in, as those who load it try them.
    files: &'static [&'static str],
    matters: &'static str,
}

/// The libraries.
pub const LIBRARIES: [Library; 7] = [
    Library { name: "libcuda.so.1", files: &["libcuda.so.1"], matters: "not shm; NVIDIA GPUs: the driver" },
    Library {
        name: "libnvrtc.so",
        files: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"],
        matters: "not shm; NVIDIA GPUs: kernels are compiled at run time",
    },
    Library {
        name: "libamdhip64.so",
        files: &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so"],
        matters: "not shm; AMD GPUs: the runtime",
    },
    Library {
        name: "libhiprtc.so",
        files: &["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so", "/opt/rocm/lib/libhiprtc.so"],
        matters: "not shm; AMD GPUs: kernels are compiled at run time",
    },
    Library { name: "libibverbs.so.1", files: &["libibverbs.so.1"], matters: "not shm; rdma: InfiniBand and RoCE" },
    Library { name: "librdmacm.so.1", files: &["librdmacm.so.1"], matters: "not shm; rdma: connections by address" },
    Library {
        name: "libfabric.so.1",
        files: &["libfabric.so.1"],
        matters: "not shm; networks by libfabric, such as EFA and Slingshot",
    },
];

/// How long one may take to load; a GPU driver that wakes its devices takes a second or two.
const DEADLINE: Duration = Duration::from_secs(10);

/// All of them, loaded at the same time.
pub fn libraries() -> Vec<Check> {
    let deadline = Instant::now() + DEADLINE;
    let loading: Vec<_> = LIBRARIES.iter().map(|library| (library, start(library.files))).collect();
    loading.into_iter().map(|(library, child)| check(library, child.and_then(|child| end(child, deadline)))).collect()
}

/// What the child said.
fn check(library: &Library, loaded: Result<String, String>) -> Check {
    let Library { name, matters, .. } = *library;
    match loaded {
        Ok(path) => Check::ok(name, path, matters),
        Err(reason) => Check::not(
            name,
            Verdict::Note,
            reason,
            matters,
            "if there is such a device: install it, or add its directory to LD_LIBRARY_PATH",
        ),
    }
}

fn start(files: &[&str]) -> Result<Child, String> {
    let failed = |error: std::io::Error| format!("the program that loads it cannot be started: {error}");
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.arg("library").args(files).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(failed)
}

/// Waits for the child until `deadline` and takes what it wrote. It writes at most a line, which fits into a pipe.
fn end(mut child: Child, deadline: Instant) -> Result<String, String> {
    let ended = Pidfd::open(child.id()).and_then(|pidfd| pidfd.wait(deadline)).map_err(|error| error.to_string());
    if !matches!(ended, Ok(true)) {
        // It may end in between; then there is nothing to kill.
        let _ = child.kill();
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if !ended? {
        return Err(format!("loading it did not end within {DEADLINE:?}"));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    match text(&output.stderr).strip_prefix("error: ") {
        Some(reason) if output.status.code().is_some() => Err(reason.to_owned()),
        _ => Err(format!("loading it ended the process: {}", output.status)),
    }
}

/// The child: loads the first of these files that can be loaded, and prints where it is.
pub fn main(files: &[String]) -> Result<(), Error> {
    let mut reasons = Vec::new();
    for file in files {
        // SAFETY: this process exists to load it, and nothing else; if it is lost, its parent says so.
        match unsafe { campanile::host::library::load(file) } {
            Ok(path) => return print(&format!("{}\n", path.display())),
            Err(reason) => reasons.push(reason.to_string()),
        }
    }
    Err(anyhow::Error::msg(reasons.join("; ")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("sh is there")
    }

    #[test]
    fn a_child_that_ends_says_what_it_found() {
        let soon = || Instant::now() + Duration::from_secs(10);
        assert_eq!(end(shell("echo /lib/libx.so.1"), soon()), Ok("/lib/libx.so.1".to_owned()));
        assert_eq!(end(shell("echo 'error: no such file' >&2; exit 1"), soon()), Err("no such file".to_owned()));
        let crashed = end(shell("kill -SEGV $$"), soon()).unwrap_err();
        assert!(crashed.starts_with("loading it ended the process: signal: 11"), "{crashed}");
        let strange = end(shell("echo nonsense >&2; exit 3"), soon()).unwrap_err();
        assert_eq!(strange, "loading it ended the process: exit status: 3");
    }

    #[test]
    fn a_child_that_hangs_is_killed() {
        let hung = end(shell("exec sleep 1000"), Instant::now()).unwrap_err();
        assert_eq!(hung, "loading it did not end within 10s");
    }

    #[test]
    fn a_missing_library_is_a_note() {
        let missing = check(&LIBRARIES[0], Err("libcuda.so.1: cannot open shared object file".to_owned()));
        assert_eq!((missing.verdict, missing.name), (Verdict::Note, "libcuda.so.1"));
        assert!(missing.todo.is_some() && check(&LIBRARIES[0], Ok("/x".to_owned())).todo.is_none());
    }
}
