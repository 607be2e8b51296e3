//! The guardian: a process that kills what a launcher that died by SIGKILL leaves behind.
//!
//! `PR_SET_PDEATHSIG` reaches the processes that the launcher started, but not what these started: a rank behind a
//! wrapper script would live on. So before the ranks, the launcher forks a guardian into a session of its own, and
//! each rank makes its process group known to it over a socket before it runs its program. When the last end of that
//! socket closes, the launcher has died, and the guardian kills every group that is still known. A rank that was
//! reaped is made unknown first, so that its number, which may come to mean another group, is never used again.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use rustix::process::{Pid, Signal, WaitOptions};

/// The guardian of a launch. Dropping it ends it; every rank is gone by then.
#[derive(Debug)]
pub(super) struct Guardian {
    socket: Arc<OwnedFd>,
    process: Pid,
}

impl Guardian {
    /// Starts a guardian for that many process groups.
    pub(super) fn start(ranks: usize) -> io::Result<Self> {
        // Boundaries of messages are kept, and writers do not mix.
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut groups = vec![0; ranks];
        // SAFETY: other threads of this process may hold locks of the allocator or of anything else at the moment of
        // the fork, which the child then never sees released. `guard` therefore does nothing but system calls and
        // plain stores to memory that was allocated before, and does not return.
        match unsafe { libc::fork() } {
            0 => guard(theirs.as_raw_fd(), &mut groups),
            child => match Pid::from_raw(child) {
                Some(process) if child > 0 => Ok(Self { socket: Arc::new(ours), process }),
                _ => Err(io::Error::last_os_error()),
            },
        }
    }

    /// The end of the socket on which ranks make themselves known.
    pub(super) fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// Makes the group of a rank unknown. Call it when the group was killed and before its leader is reaped.
    pub(super) fn forget(&self, group: Pid) {
        tell(&self.socket, -group.as_raw_nonzero().get());
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // It is our child, not yet waited for, so the number means it. It dies at once: it is never stuck in the
        // kernel.
        let _ = rustix::process::kill_process(self.process, Signal::KILL);
        while matches!(rustix::process::waitpid(Some(self.process), WaitOptions::empty()), Err(rustix::io::Errno::INTR))
        {
        }
    }
}

/// Makes the group that the calling process leads known to the guardian. Async-signal-safe, for `pre_exec`.
pub(super) fn make_known(socket: &OwnedFd) {
    tell(socket, rustix::process::getpid().as_raw_nonzero().get());
}

/// A guardian that was killed is no reason to fail: it is the second line of defence.
fn tell(socket: &OwnedFd, message: i32) {
    let _ = send(socket, &message.to_ne_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// The guardian process: `groups` are those known, 0 where there is none. Async-signal-safe, allocates nothing.
fn guard(socket: RawFd, groups: &mut [i32]) -> ! {
    // SAFETY: this process has no other code that could use what is closed here. The calls take no pointers.
    unsafe {
        // Neither the terminal's signals nor those to the launcher's group are meant for it.
        libc::setsid();
        // Other ends of pipes and sockets of the launcher must not seem alive, above all not that of `socket`.
        let close_range = |first: u32, last: u32| libc::syscall(libc::SYS_close_range, first, last, 0_u32);
        let number = socket.unsigned_abs();
        if (number > 0 && close_range(0, number - 1) != 0) || close_range(number + 1, u32::MAX) != 0 {
            // Linux before 5.9. 65536 is beyond any usual limit of descriptors.
            (0..65536).filter(|&fd| fd != socket).for_each(|fd| {
                libc::close(fd);
            });
        }
    }
    let _ = rustix::thread::set_name(c"campanile-guard");
    // SAFETY: `socket` is open: it was kept above, and nothing else runs in this process.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    let mut message = [0; 4];
    loop {
        match rustix::io::read(socket, &mut message) {
            Ok(4) => {
                let told = i32::from_ne_bytes(message);
                let (find, replace) = if told > 0 { (0, told) } else { (-told, 0) };
                if let Some(entry) = groups.iter_mut().find(|entry| **entry == find) {
                    *entry = replace;
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            _ => break,
        }
    }
    for group in groups.iter().filter_map(|&group| Pid::from_raw(group)) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    // SAFETY: ends this process without running anything that the launcher registered for its own exit.
    unsafe { libc::_exit(0) }
}
