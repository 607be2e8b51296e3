//! Processes: dying with one's parent, [`Pidfd`], and who can share memory with whom.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

pub use rustix::process::Signal;

use crate::poll::poll_until;

/// Why a process could not be watched or signalled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// There is no such process, or no longer.
    #[error("there is no process {pid}")]
    NotFound {
        /// The pid that was given.
        pid: u32,
    },
    /// The operating system refused.
    #[error("{operation} failed: {source}")]
    System {
        /// What was done.
        operation: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Asks the kernel to kill this process (`SIGKILL`) when `parent`, its parent, dies, however that happens.
///
/// For [`CommandExt::pre_exec`](std::os::unix::process::CommandExt::pre_exec): it is async-signal-safe, allocates
/// nothing, and its error keeps the child from starting. The request survives `execve` (but not of a set-uid
/// program), and is not inherited by further children.
///
/// The kernel means the *thread* that started this process: start children from a thread that lives as long as the
/// launcher.
///
/// # Errors
/// `ESRCH` if the parent is not `parent`: it died before the request, which would then never be fulfilled. The caller
/// should end.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if now == Some(parent) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
}

/// A process, by a descriptor that never comes to mean another one, as a pid does after a death.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// Opens the process that has `pid` now. To be sure which one that is, open it while it is a child that was not
    /// yet waited for. Needs Linux 5.3.
    ///
    /// # Errors
    /// [`ProcessError::NotFound`], [`ProcessError::System`].
    pub fn open(pid: u32) -> Result<Self, ProcessError> {
        use rustix::io::Errno;
        let not_found = ProcessError::NotFound { pid };
        let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Err(not_found);
        };
        match rustix::process::pidfd_open(raw, PidfdFlags::empty()) {
            Ok(fd) => Ok(Self(fd)),
            Err(Errno::SRCH) => Err(not_found),
            Err(errno) => Err(ProcessError::System { operation: "pidfd_open", source: errno.into() }),
        }
    }

    /// Takes a descriptor that is a pidfd.
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Waits until the process has ended or `deadline`, and tells whether it has ended. All its threads have, then; its
    /// parent may not yet have reaped it.
    ///
    /// # Errors
    /// [`ProcessError::System`].
    pub fn wait(&self, deadline: Instant) -> Result<bool, ProcessError> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll_until(&mut fds, deadline).map_err(|errno| ProcessError::System { operation: "poll", source: errno.into() })
    }

    /// Sends a signal. To a process that has ended it is no error.
    ///
    /// # Errors
    /// [`ProcessError::System`], such as for another user's process.
    pub fn send_signal(&self, signal: Signal) -> Result<(), ProcessError> {
        match rustix::process::pidfd_send_signal(&self.0, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(ProcessError::System { operation: "pidfd_send_signal", source: errno.into() }),
        }
    }
}

impl AsFd for Pidfd {
    /// For an event loop: readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A name that is equal for processes that can share memory through a [`Channel`](crate::channel::Channel) and
/// compare [clocks](crate::clock): the id of this boot of the kernel, and the namespaces of network (abstract
/// addresses live in it), users (uids are compared) and time.
///
/// Printable, without spaces. Different names: do not try. Equal names: it should work, and a connection proves it
/// (virtual machines that were cloned while running have one boot id).
///
/// # Errors
/// [`ProcessError::System`] if `/proc` is not mounted.
pub fn node_identity() -> Result<String, ProcessError> {
    node_identity_below(Path::new("/"))
}

fn node_identity_below(root: &Path) -> Result<String, ProcessError> {
    let boot = std::fs::read_to_string(root.join("proc/sys/kernel/random/boot_id"));
    let mut identity = boot
        .map_err(|source| ProcessError::System { operation: "reading /proc/sys/kernel/random/boot_id", source })?
        .trim()
        .to_owned();
    for namespace in crate::namespace::Namespace::SHARED {
        // A kernel without this kind of namespace has only one.
        if let Ok(name) = std::fs::read_link(root.join("proc/self/ns").join(namespace)) {
            identity.push('/');
            identity.push_str(&name.to_string_lossy());
        }
    }
    Ok(identity)
}
