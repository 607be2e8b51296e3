//! A look at a file from a child process, so that a hang or a crash in it is a line for people, not the end of the job.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use campanile_core::{Probed, TransportPlugin};
use campanile_host::process::{Pidfd, Signal, die_with_parent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, setrlimit, waitpid};

use crate::import::Imported;
use crate::loader::LoadError;

/// A plugin that could be loaded, initialised and probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its file.
    pub path: PathBuf,
    /// Name of the transport.
    pub name: String,
    /// Version of the backend.
    pub version: String,
    /// Who made it.
    pub vendor: String,
    /// One line for people.
    pub summary: String,
    /// The devices that it could use, and a reason for each one left out.
    pub devices: Vec<Probed>,
}

impl Found {
    pub(crate) fn new(path: PathBuf, imported: &Imported, devices: Vec<Probed>) -> Self {
        let info = imported.info();
        let [name, version, vendor, summary] =
            [info.name, info.version, imported.vendor(), info.summary].map(str::to_owned);
        Self { path, name, version, vendor, summary, devices }
    }
}

/// Runs `look` in a child and returns what it found out.
pub(crate) fn in_child(
    path: &Path,
    deadline: Duration,
    look: impl FnOnce() -> Result<Found, LoadError>,
) -> Result<Found, LoadError> {
    let system = |call: &str, error: std::io::Error| LoadError::System {
        path: path.to_owned(),
        reason: format!("{call}: {error}"),
    };
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| system("pipe", error.into()))?;
    let parent = std::process::id();
    // SAFETY: the child has one thread and goes on in `answer` only, which takes no lock of this process that another thread
    // may have held (the C library makes its own usable again), and never returns.
    let pid = match unsafe { libc::fork() } {
        -1 => return Err(system("fork", std::io::Error::last_os_error())),
        0 => answer(parent, look, File::from(writer)),
        pid => Pid::from_raw(pid).expect("the pid of a child is positive"),
    };
    drop(writer);
    let child = Child { pid, reaped: false };
    let pidfd = Pidfd::open(pid.as_raw_nonzero().get().unsigned_abs())
        .map_err(|error| system("pidfd_open", std::io::Error::other(error)))?;

    let start = Instant::now();
    let answered = read_until(File::from(reader), &pidfd, start + deadline);
    let ended = pidfd.wait(start + deadline).map_err(|error| system("poll", std::io::Error::other(error)))?;
    if !ended {
        // Gone in between is as good.
        let _ = pidfd.send_signal(Signal::KILL);
        child.reap();
        return Err(LoadError::Hung { path: path.to_owned(), waited: start.elapsed() });
    }
    let status = child.reap();
    let answered = answered.map_err(|error| system("read", error))?;
    match status {
        Some(status) if !status.success() => {
            Err(LoadError::Crashed { path: path.to_owned(), status: status.to_string() })
        }
        _ => decode(path, &answered).unwrap_or_else(|| {
            let status = "it ended without an answer".to_owned();
            Err(LoadError::Crashed { path: path.to_owned(), status })
        }),
    }
}

/// A child that is not left behind.
struct Child {
    pid: Pid,
    reaped: bool,
}

impl Child {
    /// How it ended; `None` if somebody else has waited for it.
    fn reap(mut self) -> Option<ExitStatus> {
        self.reaped = true;
        // Before its number is free again; there is nobody left if it started nobody.
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        loop {
            match waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => return Some(ExitStatus::from_raw(status.as_raw())),
                Err(rustix::io::Errno::INTR) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            // It is this process's child and not waited for, so the pid is its own.
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
            let _ = waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}

/// The child: looks, answers, ends, and runs nothing of what its parent would run at its own end.
fn answer(parent: u32, look: impl FnOnce() -> Result<Found, LoadError>, mut to: File) -> ! {
    // Both only spare others work: a core of a child that crashes, a child of a parent that died.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = die_with_parent(parent);
    // What it starts ends with it, and what it prints is nobody's output.
    let _ = rustix::process::setpgid(None, None);
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
    let answered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look));
    let sent = answered.is_ok_and(|found| to.write_all(&encode(&found)).is_ok());
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(if sent { 0 } else { 1 }) }
}

/// What the child writes until it closes the pipe or ends; whoever it started may hold the pipe for longer.
fn read_until(mut from: File, pidfd: &Pidfd, deadline: Instant) -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        let mut fds = [PollFd::new(&from, PollFlags::IN), PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        match poll(&mut fds, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(0) => return Ok(answer),
            Ok(_) => {}
        }
        if fds[0].revents().is_empty() {
            // It has ended, and what it wrote has been read.
            return Ok(answer);
        }
        let mut part = [0; 4096];
        match from.read(&mut part)? {
            0 => return Ok(answer),
            bytes => answer.extend_from_slice(&part[..bytes]),
        }
    }
}

/// Tag of an answer: what was found. An answer is the length of its texts together, a tag, and the texts, each with its
/// length before it.
const FOUND: u8 = b'+';
/// Tag of an answer: why the file was refused.
const REFUSED: u8 = b'-';

fn encode(found: &Result<Found, LoadError>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |text: &str| {
        bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
    };
    let tag = match found {
        Ok(found) => {
            [&found.name, &found.version, &found.vendor, &found.summary].into_iter().for_each(|text| put(text));
            for device in &found.devices {
                put(&device.device);
                let (good, detail) = match &device.usable {
                    Ok(detail) => ("+", detail),
                    Err(reason) => ("-", reason),
                };
                put(good);
                put(detail);
            }
            FOUND
        }
        Err(LoadError::Refused { reason, .. }) => {
            put(reason);
            REFUSED
        }
        Err(other) => {
            put(&other.to_string());
            REFUSED
        }
    };
    [&(bytes.len() as u64).to_le_bytes()[..], &[tag], &bytes].concat()
}

/// What the child found; `None` if the answer is not whole.
fn decode(path: &Path, answer: &[u8]) -> Option<Result<Found, LoadError>> {
    let (length, answer) = answer.split_first_chunk::<8>()?;
    let (tag, mut rest) = answer.split_first()?;
    if rest.len() as u64 != u64::from_le_bytes(*length) {
        return None;
    }
    let mut texts = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<8>() {
        let (text, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        texts.push(String::from_utf8(text.to_vec()).ok()?);
        rest = after;
    }
    let mut texts = texts.into_iter();
    if *tag == REFUSED {
        return Some(Err(LoadError::Refused { path: path.to_owned(), reason: texts.next()? }));
    }
    let (name, version, vendor, summary) = (texts.next()?, texts.next()?, texts.next()?, texts.next()?);
    let mut devices = Vec::new();
    while let Some(device) = texts.next() {
        let (good, detail) = (texts.next()? == "+", texts.next()?);
        devices.push(Probed { device, usable: if good { Ok(detail) } else { Err(detail) } });
    }
    Some(Ok(Found { path: path.to_owned(), name, version, vendor, summary, devices }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_cross_the_pipe() {
        let path = Path::new("/a/b.so");
        let found = Found {
            path: path.to_owned(),
            name: "n".to_owned(),
            version: String::new(),
            vendor: "ü".to_owned(),
            summary: "s".to_owned(),
            devices: vec![
                Probed { device: "d".to_owned(), usable: Ok("fine".to_owned()) },
                Probed { device: "e".to_owned(), usable: Err("broken".to_owned()) },
            ],
        };
        assert_eq!(decode(path, &encode(&Ok(found.clone()))), Some(Ok(found.clone())));
        let refused = LoadError::Refused { path: path.to_owned(), reason: "why".to_owned() };
        assert_eq!(decode(path, &encode(&Err(refused.clone()))), Some(Err(refused)));
        let whole = encode(&Ok(found));
        for part in 0..whole.len() {
            assert_eq!(decode(path, &whole[..part]), None, "the first {part} bytes are taken for an answer");
        }
    }
}
