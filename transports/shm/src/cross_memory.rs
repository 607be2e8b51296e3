//! Copies by the kernel: private memory of a process, which load / store does not reach.
//!
//! What Linux calls cross-memory attach: `process_vm_readv` and `process_vm_writev` copy between this process and another
//! one of the same user, a page at a time, without a mapping. Both sides are checked by the kernel, so an address where
//! nothing is mapped is an error, never a fault of this process; that holds for this process's own memory, too.
//!
//! The kernel may refuse: it asks the same as of a debugger (Yama's `ptrace_scope`, other users, processes that may not be
//! dumped), and containers filter the calls. So it is tried once for every peer, by a word whose value is known
//! ([`Probe`]). Mitigated here is nothing: a rank does not lower its own protection.

use std::io;

use libc::{c_ulong, iovec, pid_t};

/// Why a copy failed. What had been copied by then is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyError {
    /// Nothing is mapped at an address, here or there, or it may not be written.
    Unmapped,
    /// There is no such process (any more).
    Gone,
    /// The kernel refuses; its number.
    Refused(i32),
}

/// This process.
pub(crate) fn own_process() -> pid_t {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

/// Copies `bytes` at `from` in `process` to `to` in this one.
pub(crate) fn read(process: pid_t, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), CopyError> {
    copy(bytes, |at| {
        let (local, remote) = (span(to, at, bytes), span(from.cast_mut(), at, bytes));
        // SAFETY: one span on each side. The kernel checks that both are mapped, so no memory is touched that is not; that
        // nobody else uses what is written meanwhile is the ordering contract.
        unsafe { libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, FLAGS) }
    })
}

/// Copies `bytes` at `from` in this process to `to` in `process`.
pub(crate) fn write(process: pid_t, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), CopyError> {
    copy(bytes, |at| {
        let (local, remote) = (span(from.cast_mut(), at, bytes), span(to, at, bytes));
        // SAFETY: as in `read`.
        unsafe { libc::process_vm_writev(process, &raw const local, 1, &raw const remote, 1, FLAGS) }
    })
}

/// There are none.
const FLAGS: c_ulong = 0;

/// What is left from `at` on.
fn span(base: *mut u8, at: usize, bytes: usize) -> iovec {
    iovec { iov_base: base.wrapping_add(at).cast(), iov_len: bytes - at }
}

/// Calls until all is copied: the kernel copies at most 2 GiB at a time, and stops short of a page that is not there, about
/// which the next call then tells.
fn copy(bytes: usize, call: impl Fn(usize) -> isize) -> Result<(), CopyError> {
    let mut done = 0;
    while done < bytes {
        match call(done) {
            copied @ 1.. => done += copied.unsigned_abs(),
            // The kernel gives 0 for no bytes only; to go on would be to go on for ever.
            0 => return Err(CopyError::Unmapped),
            _ => match io::Error::last_os_error().raw_os_error().unwrap_or(0) {
                libc::EFAULT => return Err(CopyError::Unmapped),
                libc::ESRCH => return Err(CopyError::Gone),
                libc::EINTR => {}
                number => return Err(CopyError::Refused(number)),
            },
        }
    }
    Ok(())
}

/// A word in private memory whose value is known to others: who reads it there reaches this process.
pub(crate) struct Probe(Box<u64>);

impl Probe {
    pub(crate) fn new(value: u64) -> Self {
        Self(Box::new(value))
    }

    /// Where it is, and what it is.
    pub(crate) fn place(&self) -> (u64, u64) {
        ((&raw const *self.0).expose_provenance() as u64, *self.0)
    }
}

/// Whether the private memory of `process`, in which `(address, value)` is a [`Probe`], can be read; the reason if not.
pub(crate) fn probe(process: pid_t, (address, value): (u64, u64)) -> Result<(), String> {
    let mut seen = [0; 8];
    let from = std::ptr::without_provenance(address as usize);
    match read(process, from, seen.as_mut_ptr(), seen.len()) {
        Ok(()) if u64::from_ne_bytes(seen) == value => Ok(()),
        Ok(()) | Err(CopyError::Unmapped) => {
            Err(format!("process {process} is not the peer: they are in different pid namespaces"))
        }
        Err(CopyError::Gone) => Err(format!("there is no process {process}, as this one sees it")),
        Err(CopyError::Refused(number)) => {
            let error = io::Error::from_raw_os_error(number);
            Err(format!("process_vm_readv of process {process}: {error}{}", remedy(number)))
        }
    }
}

/// Why ranks that are other processes may not be read, as far as one of them can tell alone.
pub(crate) fn expected() -> Result<(), String> {
    probe(own_process(), Probe::new(0x63616d70).place())?;
    match yama() {
        None | Some(0) => Ok(()),
        Some(scope) => Err(format!("/proc/sys/kernel/yama/ptrace_scope is {scope}")),
    }
}

/// What lets the kernel do it.
fn remedy(number: i32) -> &'static str {
    match (number, yama()) {
        (libc::EPERM, Some(1..)) => {
            "; /proc/sys/kernel/yama/ptrace_scope is not 0: set it to 0, or give the ranks CAP_SYS_PTRACE"
        }
        (libc::EPERM, _) => {
            "; the container or the ranks' protection forbids it: allow process_vm_readv (CAP_SYS_PTRACE)"
        }
        _ => "",
    }
}

/// Yama's mode, where there is Yama.
fn yama() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_both_ways_and_not_one_more() {
        let from: Vec<u8> = (0..20_000).map(|at| (at % 251) as u8).collect();
        let mut to = vec![0xEE; 20_002];
        for bytes in [0, 1, 4095, 4096, 20_000] {
            for write_it in [false, true] {
                to.fill(0xEE);
                // SAFETY: not dereferenced here; the kernel checks it.
                let target = unsafe { to.as_mut_ptr().add(1) };
                let copied = if write_it {
                    write(own_process(), target, from.as_ptr(), bytes)
                } else {
                    read(own_process(), from.as_ptr(), target, bytes)
                };
                assert_eq!(copied, Ok(()));
                assert_eq!((to[0], &to[1..=bytes], to[bytes + 1]), (0xEE, &from[..bytes], 0xEE));
            }
        }
    }

    #[test]
    fn what_is_not_mapped_is_an_error() {
        let nowhere = std::ptr::without_provenance_mut::<u8>(16);
        let mut here = [0_u8; 16];
        assert_eq!(read(own_process(), nowhere, here.as_mut_ptr(), 16), Err(CopyError::Unmapped));
        assert_eq!(read(own_process(), here.as_ptr(), nowhere, 16), Err(CopyError::Unmapped));
        assert_eq!(write(own_process(), nowhere, here.as_ptr(), 16), Err(CopyError::Unmapped));
        assert_eq!(write(own_process(), here.as_mut_ptr(), nowhere, 16), Err(CopyError::Unmapped));
        assert_eq!(read(own_process(), nowhere, nowhere, 0), Ok(()));
        assert_eq!(read(pid_t::MAX, here.as_ptr(), nowhere, 1), Err(CopyError::Gone));
    }

    #[test]
    fn a_probe_tells_one_process_from_another() {
        let known = Probe::new(0x1234_5678_9abc_def0);
        assert_eq!(probe(own_process(), known.place()), Ok(()));
        let (address, value) = known.place();
        assert!(probe(own_process(), (address, value ^ 1)).unwrap_err().contains("not the peer"));
        assert!(probe(pid_t::MAX, known.place()).unwrap_err().contains("no process"));
        assert!(probe(own_process(), (16, value)).unwrap_err().contains("not the peer"));
    }
}
