//! Signals to the launcher, as bytes of a pipe that its loop polls.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::pipe::{PipeFlags, pipe_with};

/// What is caught: what a terminal, a batch system or `kill` sends to end a job.
const CAUGHT: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The pipe from handler to loop. It is never closed: a handler may be running whenever.
static PIPE: OnceLock<(OwnedFd, OwnedFd)> = OnceLock::new();
/// Its end for the handler, which cannot use a `OnceLock`.
static WRITE_END: AtomicI32 = AtomicI32::new(-1);
/// The process that catches. Between fork and exec its children have its handlers, and must not use its pipe.
static OWNER: AtomicI32 = AtomicI32::new(0);
static CATCHING: AtomicBool = AtomicBool::new(false);

/// Catches [`CAUGHT`] while it lives. What was ignored stays ignored, as `nohup` wants it.
#[derive(Debug)]
pub(super) struct Signals {
    read_end: BorrowedFd<'static>,
    previous: Vec<(i32, libc::sigaction)>,
}

impl Signals {
    /// Starts to catch. One at a time in a process.
    pub(super) fn catch() -> io::Result<Self> {
        if CATCHING.swap(true, Ordering::AcqRel) {
            return Err(io::Error::other("another launch of this process does already"));
        }
        let result = Self::install();
        CATCHING.store(result.is_ok(), Ordering::Release);
        result
    }

    fn install() -> io::Result<Self> {
        let (read_end, write_end) = match PIPE.get() {
            Some(pipe) => pipe,
            None => {
                let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
                PIPE.get_or_init(|| pipe)
            }
        };
        WRITE_END.store(write_end.as_raw_fd(), Ordering::Release);
        OWNER.store(rustix::process::getpid().as_raw_nonzero().get(), Ordering::Release);
        let mut signals = Self { read_end: read_end.as_fd(), previous: Vec::new() };
        // What an earlier launch left unread is not for this one.
        while signals.take().is_some() {}
        for signal in CAUGHT {
            let previous = replace(signal, None)?;
            if previous.sa_sigaction != libc::SIG_IGN {
                let handler = on_signal as extern "C" fn(libc::c_int);
                replace(signal, Some(&action(handler as libc::sighandler_t)))?;
                // Dropping `signals` on a later error restores this one.
                signals.previous.push((signal, previous));
            }
        }
        Ok(signals)
    }

    /// The next signal that came, if there is one.
    pub(super) fn take(&mut self) -> Option<i32> {
        let mut signal = [0_u8];
        match rustix::io::read(self.read_end, &mut signal) {
            Ok(1) => Some(signal[0].into()),
            _ => None,
        }
    }
}

impl AsFd for Signals {
    /// Readable when a signal came.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read_end
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, previous) in &self.previous {
            // It worked when it was installed, and cannot fail for the same signal.
            let _ = replace(*signal, Some(previous));
        }
        CATCHING.store(false, Ordering::Release);
    }
}

/// The handler. Only async-signal-safe calls; `errno` of the interrupted code is kept.
extern "C" fn on_signal(signal: libc::c_int) {
    // SAFETY: `getpid` and `write` are async-signal-safe; the buffer is a local of one byte; `__errno_location` gives
    // this thread's `errno`, which is an int that lives as long as the thread.
    unsafe {
        if libc::getpid() != OWNER.load(Ordering::Acquire) {
            return;
        }
        let errno = *libc::__errno_location();
        let byte = signal as u8;
        // A full pipe holds more signals than anybody will act on.
        libc::write(WRITE_END.load(Ordering::Acquire), (&raw const byte).cast(), 1);
        *libc::__errno_location() = errno;
    }
}

fn action(handler: libc::sighandler_t) -> libc::sigaction {
    // SAFETY: all zeroes is a valid sigaction: no flags, no restorer, an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    action
}

/// Replaces the action of a signal, or only reads it; returns the previous one.
fn replace(signal: i32, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut previous = MaybeUninit::zeroed();
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `new` is null or a valid action, whose handler is async-signal-safe (`on_signal`) or was installed
    // before; `previous` is valid for writes.
    match unsafe { libc::sigaction(signal, new, previous.as_mut_ptr()) } {
        // SAFETY: the call has written it.
        0 => Ok(unsafe { previous.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}
