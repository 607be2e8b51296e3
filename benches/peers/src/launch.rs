//! One run of a program, with a deadline.
//!
//! A launch that overstays gets SIGTERM (on which MPI launchers end their ranks), then SIGKILL. Ranks that survive
//! their launcher end by themselves: see `programs/deadline.h` and `programs/rank.h`. Output goes to files, so that a
//! survivor that holds a pipe open cannot stall the reader.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A command to run.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables set for it beside the inherited ones.
    pub env: Vec<(String, String)>,
}

/// What became of a launch.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Whether it was ended because it overstayed.
    pub timed_out: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// How long a program may take to leave after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);

impl Launch {
    /// A launch without variables of its own.
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = impl ToString>) -> Self {
        let args = args.into_iter().map(|arg| arg.to_string()).collect();
        Launch { program: program.into(), args, env: Vec::new() }
    }

    /// Runs it to its end, at most `limit` (and a grace) long. `scratch` is an existing folder for its output.
    pub fn run(&self, limit: Duration, scratch: &Path) -> io::Result<Outcome> {
        let (stdout, stderr) = (scratch.join("stdout"), scratch.join("stderr"));
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("PEERS_DEADLINE_S", (limit + 2 * GRACE).as_secs().to_string())
            .stdin(Stdio::null())
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?)
            .spawn()?;
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let timed_out = !ends_within(&process, limit)?;
        if timed_out {
            // Errors: it left by itself between the poll and the signal.
            pidfd_send_signal(&process, Signal::TERM).ok();
            if !ends_within(&process, GRACE)? {
                pidfd_send_signal(&process, Signal::KILL).ok();
            }
        }
        let status = child.wait()?;
        let read = |path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Outcome { status, timed_out, stdout: read(stdout)?, stderr: read(stderr)? })
    }
}

/// A pidfd is readable once its process has ended.
fn ends_within(process: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let start = std::time::Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_status_come_back() {
        let scratch = tempfile::tempdir().unwrap();
        let outcome = Launch::new("sh", ["-c", "echo out; echo err >&2; exit 77"])
            .run(Duration::from_secs(20), scratch.path())
            .unwrap();
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!((outcome.status.code(), outcome.timed_out), (Some(77), false));
    }

    #[test]
    fn a_program_that_ignores_sigterm_is_ended() {
        let scratch = tempfile::tempdir().unwrap();
        let outcome = Launch::new("sh", ["-c", "trap '' TERM; while :; do sleep 0.1; done"])
            .run(Duration::from_millis(100), scratch.path())
            .unwrap();
        assert!(outcome.timed_out);
        assert_eq!(outcome.status.code(), None);
    }
}
