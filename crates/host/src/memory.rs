//! Memory that processes of one machine share: [`SharedMemory`].
//!
//! **Model.** A memfd: an unnamed file in memory, alive as long as any process holds its descriptor or a mapping of
//! it, so that nothing is left behind (no name in `/dev/shm`) whatever dies and however. Its creator hands the
//! descriptor to peers over a [`Channel`](crate::channel::Channel); a peer that knows the size
//! [opens](SharedMemory::open) it.
//!
//! **Invariants.**
//! - The size is fixed: `F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL` are set before anybody else sees the descriptor,
//!   and checked by [`SharedMemory::open`] before it maps. A peer that shrank the file would turn every later load of
//!   ours into SIGBUS.
//! - All pages are allocated when [`SharedMemory::create`] returns. Too little memory is its error, with what was
//!   asked and what there is, never a SIGBUS or the out-of-memory killer in the middle of a collective. The memory is
//!   claimed in chunks, each after a fresh look at [`available`], so that ranks that create at the same time see each
//!   other.
//! - All page tables are filled too, here and in [`SharedMemory::open`]: no page fault on the data path.
//! - The mapping does not move until the value is dropped, and is zero at first.
//!
//! **Huge pages.** From 2 MiB on, the address is 2 MiB aligned and each whole 2 MiB is asked for as one page with
//! `MADV_COLLAPSE` (Linux 6.1), which the kernel grants even where `shmem_enabled` is `never`, its default, and refuses
//! where it is `deny`; see `madvise(2)`. Measured on one machine, for 1 GiB: 55 ms to create and 1 ms to open, against
//! 430 ms and 200 ms in small pages. Where it is not granted, small pages serve: [`SharedMemory::huge_bytes`] tells.
//!
//! **NUMA.** Pages are allocated by the thread that calls [`SharedMemory::create`], on its node: bind it before.

mod available;

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

pub use available::available;

/// Bytes of a huge page: what one entry of the second level of page tables maps, on x86_64 and on aarch64 with 4 KiB
/// granules.
pub const HUGE_PAGE: usize = 2 << 20;

/// Bytes that are claimed between two looks at [`available`]. A multiple of [`HUGE_PAGE`]. At 55 ms a GiB a chunk takes
/// some 14 ms, and a look, two or three small files of `/proc` and `/sys`, well under a millisecond.
const CHUNK: usize = 256 << 20;

/// The part of the available memory that is left to others (page tables, stacks, whatever runs): 1 / 32.
const HEADROOM: u64 = 32;

/// The longest name of a memfd, `NAME_MAX - strlen("memfd:")`; see `memfd_create(2)`.
const NAME_MAX: usize = 249;

/// The seals without which memory is not shared.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Why memory could not be created, opened or measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// 0 bytes cannot be mapped.
    #[error("shared memory of 0 bytes was asked for; the smallest is 1 byte")]
    Empty,
    /// The name is too long for a memfd or has a NUL in it.
    #[error(
        "\"{name}\" ({} bytes) cannot name shared memory; a name has at most {NAME_MAX} bytes and no NUL",
        name.len()
    )]
    Name {
        /// The name that was given.
        name: String,
    },
    /// The machine, or a cgroup of this process, has too little memory left.
    #[error(
        "shared memory of {bytes} bytes was asked for, but this process can take only {available} bytes more \
         (MemAvailable and memory cgroups, less 1/{HEADROOM} for others); ask for less, use fewer ranks a node, or \
         raise the limit of the container"
    )]
    TooLittle {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that could have been had at the time.
        available: u64,
    },
    /// The descriptor's size is not sealed, so its owner could shrink it below our mapping.
    #[error(
        "the descriptor of {bytes} bytes of shared memory is sealed with {found:?} only; {SEALS:?} are needed \
         (was it made by SharedMemory::create?)"
    )]
    NotSealed {
        /// Bytes expected.
        bytes: usize,
        /// The names of the seals that were found; empty also for what is not a memfd.
        found: Vec<&'static str>,
    },
    /// The descriptor has another size than both sides agreed upon.
    #[error("the descriptor of shared memory has {found} bytes; {expected} were expected")]
    Size {
        /// Bytes expected.
        expected: usize,
        /// Bytes found.
        found: u64,
    },
    /// The operating system refused.
    #[error("{operation} for {bytes} bytes of shared memory failed: {source}")]
    System {
        /// What was done.
        operation: &'static str,
        /// Bytes asked for; 0 where none were.
        bytes: usize,
        /// Why it failed.
        source: io::Error,
    },
}

/// Sealed memory that several processes map: see the [module](self).
///
/// Dropping it unmaps and closes the descriptor; the memory lives on while any peer has it.
///
/// The bytes are shared with other processes, so no `&[u8]` of them is ever given out: use atomics for words that
/// announce something, and raw copies for payload whose turn such a word has announced.
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    mapping: Mapping,
}

/// On what pages memory is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// Huge ones where the kernel gives them, small ones elsewhere.
    #[default]
    Huge,
    /// Small ones.
    Small,
}

impl SharedMemory {
    /// New zeroed memory of `bytes` bytes, allocated and mapped. `name` shows up in `/proc/PID/maps` as
    /// `/memfd:name`; it need not be unique.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::Name`], [`MemoryError::TooLittle`] before or while memory is claimed
    /// (all of it is given back), [`MemoryError::System`].
    pub fn create(name: &str, bytes: usize, pages: Pages) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        if name.len() > NAME_MAX || name.contains('\0') {
            return Err(MemoryError::Name { name: name.to_owned() });
        }
        check_available(bytes, bytes)?;

        let fd = memfd(name).map_err(system("memfd_create", bytes))?;
        ftruncate(&fd, bytes as u64).map_err(system("ftruncate", bytes))?;
        let mapping = Mapping::new(fd.as_fd(), bytes)?;
        for start in (0..bytes).step_by(CHUNK) {
            let len = CHUNK.min(bytes - start);
            if start > 0 {
                check_available(bytes, bytes - start)?;
            }
            if pages == Pages::Huge {
                mapping.collapse(start, len);
            }
            allocate(fd.as_fd(), start, len).map_err(|errno| out_of_memory(errno, bytes))?;
        }
        fcntl_add_seals(&fd, SEALS).map_err(system("sealing", bytes))?;
        mapping.populate()?;
        let memory = Self { fd, mapping };
        tracing::debug!(name, bytes, "created shared memory");
        Ok(memory)
    }

    /// Maps memory that a peer created, all page tables filled. `bytes` is the size that the peer gave to
    /// [`SharedMemory::create`].
    ///
    /// # Errors
    /// [`MemoryError::NotSealed`] and [`MemoryError::Size`] before anything is mapped, [`MemoryError::Empty`],
    /// [`MemoryError::System`]. `fd` is closed then.
    pub fn open(fd: OwnedFd, bytes: usize) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        // EINVAL is the answer of a file that cannot be sealed.
        let seals = match fcntl_get_seals(&fd) {
            Err(Errno::INVAL) => SealFlags::empty(),
            seals => seals.map_err(system("reading the seals", bytes))?,
        };
        if !seals.contains(SEALS) {
            return Err(MemoryError::NotSealed { bytes, found: seals.iter_names().map(|(name, _)| name).collect() });
        }
        let found = fstat(&fd).map_err(system("fstat", bytes))?.st_size as u64;
        if found != bytes as u64 {
            return Err(MemoryError::Size { expected: bytes, found });
        }
        let mapping = Mapping::new(fd.as_fd(), bytes)?;
        mapping.populate()?;
        Ok(Self { fd, mapping })
    }

    /// The first byte; page aligned, and [`HUGE_PAGE`] aligned from [`HUGE_PAGE`] bytes on. Valid for
    /// [`len`](Self::len) bytes of loads and stores until the value is dropped.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.address.as_ptr()
    }

    /// Bytes, as given to [`create`](Self::create) or [`open`](Self::open).
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is no empty shared memory")]
    pub fn len(&self) -> usize {
        self.mapping.bytes
    }

    /// The descriptor, to hand to peers.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Bytes of this mapping that huge pages back now, from `/proc/self/smaps`: between 0 and [`len`](Self::len). Slow
    /// (the kernel walks page tables); for reports. 0 if it cannot be told.
    #[must_use]
    pub fn huge_bytes(&self) -> usize {
        std::fs::read_to_string("/proc/self/smaps").map(|smaps| huge_bytes(&smaps, self.as_ptr() as usize)).unwrap_or(0)
    }
}

/// `MFD_NOEXEC_SEAL` is what kernels from 6.3 on want to hear, and may insist on (`vm.memfd_noexec`); older ones
/// refuse it.
fn memfd(name: &str) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        result => result,
    }
}

/// Refuses early if less than `rest` of `bytes` can still be had.
fn check_available(bytes: usize, rest: usize) -> Result<(), MemoryError> {
    let available = available()?;
    let available = available - available / HEADROOM;
    if rest as u64 > available {
        // What was claimed so far is part of what could have been had.
        let claimed = (bytes - rest) as u64;
        return Err(MemoryError::TooLittle { bytes, available: available + claimed });
    }
    Ok(())
}

/// Allocates the pages of `start..start + len` that are not yet there.
fn allocate(fd: BorrowedFd<'_>, start: usize, len: usize) -> Result<(), Errno> {
    loop {
        // What was allocated before a signal is given back by the kernel; a signal a millisecond is not our case.
        match fallocate(fd, FallocateFlags::empty(), start as u64, len as u64) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

fn system(operation: &'static str, bytes: usize) -> impl Fn(Errno) -> MemoryError {
    move |errno| MemoryError::System { operation, bytes, source: errno.into() }
}

/// The error of an allocation: "no space" and "no memory" are the same to the caller.
fn out_of_memory(errno: Errno, bytes: usize) -> MemoryError {
    match errno {
        Errno::NOSPC | Errno::NOMEM => MemoryError::TooLittle { bytes, available: available().unwrap_or(0) },
        errno => system("fallocate", bytes)(errno),
    }
}

/// `ShmemPmdMapped` of the mapping that starts at `address` in the text of `/proc/PID/smaps`, in bytes.
fn huge_bytes(smaps: &str, address: usize) -> usize {
    let header = format!("{address:x}-");
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&header));
    lines.next();
    lines
        // The next mapping's header has a lower-case first letter or a digit; fields start with a capital.
        .take_while(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
        .find_map(|line| line.strip_prefix("ShmemPmdMapped:"))
        .and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<usize>().ok())
        .map_or(0, |kilobytes| kilobytes * 1024)
}

/// A shared mapping of a whole descriptor; unmapped on drop.
#[derive(Debug)]
struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address range of the process, not of a thread; who loads and stores through the raw pointer
// answers for the order of its accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out nothing but the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of `fd`, which has as many, at an address aligned for the largest page that fits in.
    fn new(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, MemoryError> {
        let failed = system("mmap", bytes);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        if bytes < HUGE_PAGE {
            // SAFETY: the kernel chooses the address; no memory of ours is touched.
            let address = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0) };
            return Self::own(address.map_err(failed)?, bytes);
        }
        // Reserve address space with room for an aligned start, map over it, give the ends back.
        let page = rustix::param::page_size();
        let reserved = bytes
            .checked_next_multiple_of(page)
            .and_then(|bytes| bytes.checked_add(HUGE_PAGE))
            .ok_or_else(|| system("mmap", bytes)(Errno::NOMEM))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address; no memory of ours is touched.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), flags) }.map_err(&failed)?;
        let lead = base.align_offset(HUGE_PAGE);
        let start = base.wrapping_byte_add(lead);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: `start..start + bytes` lies within the reservation that was just made and that nobody else knows:
        // lead < HUGE_PAGE, and reserved >= bytes + HUGE_PAGE.
        let mapped = unsafe { mmap(start, bytes, protection, flags, fd, 0) };
        let address = match mapped {
            Ok(address) => address,
            Err(errno) => {
                // SAFETY: the reservation is ours, and nothing was mapped over it.
                let _ = unsafe { munmap(base, reserved) };
                return Err(failed(errno));
            }
        };
        let end = lead + bytes.next_multiple_of(page);
        for (from, to) in [(0, lead), (end, reserved)] {
            if from < to {
                // SAFETY: both ends are of the reservation and outside the mapping; page aligned since base, lead and
                // end are. A failure (too many mappings) would only keep address space reserved.
                let _ = unsafe { munmap(base.wrapping_byte_add(from), to - from) };
            }
        }
        Self::own(address, bytes)
    }

    fn own(address: *mut c_void, bytes: usize) -> Result<Self, MemoryError> {
        match NonNull::new(address.cast()) {
            Some(address) => Ok(Self { address, bytes }),
            None => Err(system("mmap", bytes)(Errno::FAULT)),
        }
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.address.as_ptr().wrapping_add(offset).cast()
    }

    /// Allocates each whole huge page in `start..start + len` as one, where the kernel can. `start` is a multiple of
    /// [`HUGE_PAGE`]. Best effort: what it does not get, [`allocate`] fills with small pages.
    fn collapse(&self, start: usize, len: usize) {
        /// As in the kernel's `asm-generic/mman-common.h`. rustix has no name for it, nor has libc for every target.
        const MADV_COLLAPSE: libc::c_int = 25;
        let page = rustix::param::page_size();
        let len = len / HUGE_PAGE * HUGE_PAGE;
        for offset in (start..start + len).step_by(HUGE_PAGE) {
            // The kernel refuses to collapse a range without any page, but one is enough, and then the rest needs no
            // copying. Populating reports a lack of memory, where touching would be a SIGBUS.
            // SAFETY: the page is within this mapping; populating changes no byte.
            let first = unsafe { madvise(self.at(offset), page, Advice::LinuxPopulateWrite) };
            if first.is_err() {
                return;
            }
        }
        if len > 0 {
            // SAFETY: the range is within this mapping; collapsing moves pages, and changes no byte.
            let result = unsafe { libc::madvise(self.at(start), len, MADV_COLLAPSE) };
            if result != 0 {
                let reason = io::Error::last_os_error();
                tracing::debug!(start, len, %reason, "some huge pages were not granted");
            }
        }
    }

    /// Fills the page tables of the whole mapping, whose pages are allocated. Changes no byte.
    fn populate(&self) -> Result<(), MemoryError> {
        // SAFETY: the range is this mapping; populating changes no byte.
        let populated = unsafe { madvise(self.at(0), self.bytes, Advice::LinuxPopulateWrite) };
        match populated {
            // Linux before 5.14.
            Err(Errno::INVAL) => {
                self.touch();
                Ok(())
            }
            result => result.map_err(system("filling the page tables", self.bytes)),
        }
    }

    /// [`populate`](Self::populate) by hand: a load from each page. The pages of a shared mapping are mapped writable
    /// at the first load.
    fn touch(&self) {
        for offset in (0..self.bytes).step_by(rustix::param::page_size()) {
            // SAFETY: the byte is within this mapping, and its page is allocated. A peer may be storing to it: the
            // load is volatile, and its value is not used.
            unsafe { self.at(offset).cast::<u8>().read_volatile() };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is not used after; whoever holds the raw pointer was told so.
        let _ = unsafe { munmap(self.at(0), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::huge_bytes;

    const SMAPS: &str = "\
7f10a0000000-7f10c0000000 rw-s 00000000 00:01 1030 /memfd:a (deleted)
Size:             524288 kB
Rss:              524288 kB
ShmemPmdMapped:    6144 kB
VmFlags: rd wr sh mr mw me ms sd
7f10c0000000-7f10c0001000 rw-p 00000000 00:00 0
Size:                  4 kB
7f10d0000000-7f10d0001000 rw-s 00000000 00:01 1031 /memfd:b (deleted)
ShmemPmdMapped:        0 kB
";

    #[test]
    fn huge_pages_are_counted_for_the_mapping_alone() {
        assert_eq!(huge_bytes(SMAPS, 0x7f10_a000_0000), 3 * super::HUGE_PAGE);
        // Has no such line; the next mapping's is not its own.
        assert_eq!(huge_bytes(SMAPS, 0x7f10_c000_0000), 0);
        assert_eq!(huge_bytes(SMAPS, 0x7f10_d000_0000), 0);
        assert_eq!(huge_bytes(SMAPS, 0x1000), 0);
    }
}
