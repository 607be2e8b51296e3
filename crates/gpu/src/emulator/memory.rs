//! Memory of the emulator: memfds, mapped where the caller reserved addresses, or anywhere.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create, open,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use super::{INVALID_VALUE, OUT_OF_MEMORY, failed};
use crate::CallError;
use crate::calls::{Address, IpcBytes, Result};

/// What an IPC handle begins with.
const IPC_MAGIC: &[u8; 8] = b"cmpnlipc";

/// Without these a peer could shrink the memory, and our loads would fault.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Physical memory: a sealed memfd.
#[derive(Debug)]
pub(super) struct Allocation {
    fd: OwnedFd,
    bytes: usize,
}

impl Allocation {
    pub(super) fn create(bytes: usize) -> Result<Self> {
        let refuse = system("allocation_create", bytes);
        // A GPU refuses what it does not have; a memfd takes it, until the system has to kill somebody.
        if let Ok(available) = campanile_host::memory::available()
            && bytes as u64 > available
        {
            let text = format!("{available} bytes are available");
            return Err(failed("allocation_create", format!("bytes {bytes}"), OUT_OF_MEMORY, text));
        }
        let fd = memfd_create("emulated-gpu", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(&refuse)?;
        ftruncate(&fd, bytes as u64).map_err(&refuse)?;
        fcntl_add_seals(&fd, SEALS).map_err(&refuse)?;
        Ok(Self { fd, bytes })
    }

    pub(super) fn import(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        let refuse = system("allocation_import", bytes);
        let found = fstat(fd).map_err(&refuse)?.st_size;
        if found != bytes as i64 {
            let arguments = format!("bytes {bytes}");
            return Err(failed("allocation_import", arguments, INVALID_VALUE, format!("it has {found} bytes")));
        }
        if !fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SEALS)) {
            let arguments = format!("bytes {bytes}");
            return Err(failed("allocation_import", arguments, INVALID_VALUE, "its size is not sealed"));
        }
        Ok(Self { fd: fd.try_clone_to_owned().map_err(|_| refuse(Errno::MFILE))?, bytes })
    }

    pub(super) fn export(&self) -> Result<OwnedFd> {
        self.fd.try_clone().map_err(|_| system("allocation_export", self.bytes)(Errno::MFILE))
    }
}

/// A span of addresses: reserved, or plain memory.
#[derive(Debug)]
struct Span {
    bytes: usize,
    /// What plain memory lies in.
    fd: Option<OwnedFd>,
}

/// What is mapped, by its first address.
#[derive(Debug, Default)]
pub(super) struct Memories {
    spans: Mutex<HashMap<Address, Span>>,
}

impl Memories {
    pub(super) fn allocate(&self, bytes: usize) -> Result<Address> {
        if bytes == 0 {
            return Err(failed("allocate", "bytes 0".to_owned(), INVALID_VALUE, "at least one byte is needed"));
        }
        let allocation = Allocation::create(bytes)?;
        self.place(allocation.fd, allocation.bytes)
    }

    fn place(&self, fd: OwnedFd, bytes: usize) -> Result<Address> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, anywhere.
        let pointer = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &fd, 0) };
        let address = pointer.map_err(system("allocate", bytes))? as Address;
        self.lock().insert(address, Span { bytes, fd: Some(fd) });
        Ok(address)
    }

    pub(super) fn free(&self, address: Address) -> Result<()> {
        let Some(span) = self.lock().remove(&address) else { return Err(unknown("free", address)) };
        // SAFETY: mapped by `place` with this length; that nobody uses it is the promise of who frees it.
        unsafe { munmap(address as *mut c_void, span.bytes) }.map_err(system("free", span.bytes))
    }

    pub(super) fn reserve(&self, bytes: usize) -> Result<Address> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, anywhere.
        let pointer = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags) };
        let address = pointer.map_err(system("address_reserve", bytes))? as Address;
        self.lock().insert(address, Span { bytes, fd: None });
        Ok(address)
    }

    pub(super) fn release(&self, address: Address, bytes: usize) -> Result<()> {
        self.reserved("address_free", address, bytes)?;
        self.free(address)
    }

    /// # Safety
    /// Nobody uses the addresses.
    pub(super) unsafe fn map(&self, address: Address, bytes: usize, allocation: &Allocation) -> Result<()> {
        self.reserved("map", address, bytes)?;
        if bytes != allocation.bytes {
            let text = format!("the allocation has {} bytes", allocation.bytes);
            return Err(failed("map", format!("bytes {bytes}"), INVALID_VALUE, text));
        }
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: over a reservation of this length. Without access, as on GPUs.
        unsafe { mmap(address as *mut c_void, bytes, ProtFlags::empty(), flags, &allocation.fd, 0) }
            .map_err(system("map", bytes))?;
        Ok(())
    }

    /// # Safety
    /// Nobody uses the addresses.
    pub(super) unsafe fn unmap(&self, address: Address, bytes: usize) -> Result<()> {
        self.reserved("unmap", address, bytes)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: over a reservation of this length.
        unsafe { mmap_anonymous(address as *mut c_void, bytes, ProtFlags::empty(), flags) }
            .map_err(system("unmap", bytes))?;
        Ok(())
    }

    /// # Safety
    /// The addresses are mapped.
    pub(super) unsafe fn set_access(&self, address: Address, bytes: usize) -> Result<()> {
        self.reserved("set_access", address, bytes)?;
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: within a reservation.
        unsafe { mprotect(address as *mut c_void, bytes, access) }.map_err(system("set_access", bytes))
    }

    /// Process and descriptor: the importer opens it through `/proc`, for as long as this process lives.
    pub(super) fn ipc_export(&self, address: Address) -> Result<IpcBytes> {
        let spans = self.lock();
        let Some(Span { fd: Some(fd), .. }) = spans.get(&address) else { return Err(unknown("ipc_export", address)) };
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(IPC_MAGIC);
        bytes[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[12..16].copy_from_slice(&fd.as_fd().as_raw_fd().to_le_bytes());
        Ok(IpcBytes(bytes))
    }

    pub(super) fn ipc_open(&self, IpcBytes(handle): IpcBytes) -> Result<Address> {
        let word = |at: usize| u32::from_le_bytes(handle[at..at + 4].try_into().expect("four bytes"));
        if handle[..8] != IPC_MAGIC[..] {
            return Err(failed("ipc_open", "handle".to_owned(), INVALID_VALUE, "it is none of the emulator's"));
        }
        let path = format!("/proc/{}/fd/{}", word(8), word(12));
        let refuse = |errno: Errno| failed("ipc_open", path.clone(), INVALID_VALUE, errno.to_string());
        let fd = open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(refuse)?;
        let bytes = fstat(&fd).map_err(refuse)?.st_size;
        self.place(fd, bytes as usize)
    }

    fn reserved(&self, call: &'static str, address: Address, bytes: usize) -> Result<()> {
        match self.lock().get(&address) {
            Some(span) if span.bytes == bytes && span.fd.is_none() => Ok(()),
            _ => Err(unknown(call, address)),
        }
    }

    /// Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, HashMap<Address, Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Memories {
    fn drop(&mut self) {
        for (address, span) in self.lock().drain() {
            // SAFETY: mapped with this length; the table is gone, and with it everybody who could use the memory.
            let _ = unsafe { munmap(address as *mut c_void, span.bytes) };
        }
    }
}

fn system(call: &'static str, bytes: usize) -> impl Fn(Errno) -> CallError {
    move |errno| failed(call, format!("bytes {bytes}"), OUT_OF_MEMORY, errno.to_string())
}

fn unknown(call: &'static str, address: Address) -> CallError {
    failed(call, format!("address {address:#x}"), INVALID_VALUE, "nothing of that kind and size begins there")
}
