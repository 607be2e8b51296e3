//! Operations: what each one does to memory, by the CPU.
//!
//! Addresses are keys: they are checked when an operation is posted and held while it executes, so a region that was
//! dropped in between fails the queue and is never touched. Memory of devices is told apart here and touched elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use campanile_core::{AtomicOp, LocalAddress, Op, Rank, RemoteAddress, SignalAction, SignalUpdate};
use campanile_host::copy::Copier;

use crate::registry::{Pin, Registry};
use crate::transport::Inner;

/// What an operation can fail with when it executes; the ring carries the number.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Status {
    LocalGone = 1,
    RemoteGone = 2,
    Device = 3,
}

impl Status {
    pub(crate) fn describe(status: u32) -> String {
        match status {
            1 => "its local region was dropped before it executed; keep a region until local completion".to_owned(),
            2 => "its remote region was dropped before it executed; keep it until completion".to_owned(),
            3 => "the device failed".to_owned(),
            other => format!("status {other}"),
        }
    }
}

/// Whose memory a part of an operation touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// None.
    Nobody,
    /// Of the host alone.
    Host,
    /// Of a device, on one side at least.
    Device,
}

/// Operations of one queue.
pub(crate) struct Operations {
    pub(crate) inner: Arc<Inner>,
    /// `Some`: only this peer's memory may be named.
    pub(crate) peer: Option<Rank>,
}

impl Operations {
    /// Checks an operation as it is posted: keys alive, ranges inside, words aligned, and done where the memory is.
    pub(crate) fn check(&self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Put { source, target, bytes } => self.check_move(source, target, bytes),
            Op::PutSignal { source, target, bytes, signal } => {
                self.check_move(source, target, bytes)?;
                self.check_signal(&signal)
            }
            Op::PutInline { data, target } => self.check_remote(target, data.as_slice().len() as u64).map(|_| ()),
            Op::Signal(signal) => self.check_signal(&signal),
            Op::Get { source, target, bytes } => self.check_move(target, source, bytes),
            Op::Atomic { op, target } => {
                let on_device = self.check_word(target)?.on_device;
                let result_on_device = match op {
                    AtomicOp::Add { .. } => false,
                    AtomicOp::FetchAdd { result, .. }
                    | AtomicOp::CompareSwap { result, .. }
                    | AtomicOp::Swap { result, .. } => self.check_local(result, 8)?.on_device,
                };
                match on_device || result_on_device {
                    false => Ok(()),
                    true => Err("an atomic on device memory, or with its result there; the caps have host memory \
                        alone: let a kernel do it"
                        .to_owned()),
                }
            }
            Op::Fence => Ok(()),
            ref other => Err(format!("{:?} is not known to transport {}", other.kind(), self.inner.name())),
        }
    }

    fn check_move(&self, local: LocalAddress, remote: RemoteAddress, bytes: u64) -> Result<(), String> {
        let (here, there) = (self.check_local(local, bytes)?, self.check_remote(remote, bytes)?);
        let distance = here.at(local.offset).addr().abs_diff(there.at(remote.offset).addr());
        if here.on_device && there.on_device && (distance as u64) < bytes {
            return Err(format!(
                "{bytes} bytes of device memory to {distance} bytes from where they are; devices copy \
                ranges that do not overlap"
            ));
        }
        Ok(())
    }

    fn check_signal(&self, signal: &SignalUpdate) -> Result<(), String> {
        let word = self.check_word(signal.target)?;
        match signal.action {
            SignalAction::Add if word.on_device => {
                Err("an Add signal to device memory, which is only Set: keep the sum here and Set it".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn check_local(&self, at: LocalAddress, bytes: u64) -> Result<Pin<'_>, String> {
        check_range("local", &self.inner.locals, at.region.0, at.offset, bytes)
    }

    fn check_remote(&self, at: RemoteAddress, bytes: u64) -> Result<Pin<'_>, String> {
        let pin = check_range("remote", &self.inner.remotes, at.region.0, at.offset, bytes)?;
        match self.peer {
            Some(peer) if pin.owner != peer => {
                Err(format!("its remote region belongs to {}, the queue leads to {peer}", pin.owner))
            }
            _ => Ok(pin),
        }
    }

    fn check_word(&self, at: RemoteAddress) -> Result<Pin<'_>, String> {
        if !at.offset.is_multiple_of(8) {
            return Err(format!("a word at offset {}; words are 8-byte aligned", at.offset));
        }
        self.check_remote(at, 8)
    }

    /// Whose memory an operation moves bytes in, and whose word it changes.
    pub(crate) fn sides(&self, op: &Op) -> Result<(Side, Side), Status> {
        let bytes = match *op {
            Op::Put { bytes: 0, .. } | Op::PutSignal { bytes: 0, .. } | Op::Get { bytes: 0, .. } => Side::Nobody,
            Op::Put { source, target, .. } | Op::PutSignal { source, target, .. } => self.side(Some(source), target)?,
            Op::Get { source, target, .. } => self.side(Some(target), source)?,
            Op::PutInline { target, .. } => self.side(None, target)?,
            _ => Side::Nobody,
        };
        let word = match *op {
            Op::Atomic { target, .. } => self.side(None, target)?,
            _ => op.signal().map_or(Ok(Side::Nobody), |signal| self.side(None, signal.target))?,
        };
        Ok((bytes, word))
    }

    fn side(&self, local: Option<LocalAddress>, remote: RemoteAddress) -> Result<Side, Status> {
        let here = local.map_or(Ok(false), |local| self.local(local.region.0).map(|pin| pin.on_device))?;
        let on_device = here || self.remote(remote.region.0)?.on_device;
        Ok(if on_device { Side::Device } else { Side::Host })
    }

    /// Executes one operation on host memory.
    pub(crate) fn execute(&self, op: &Op) -> Result<(), Status> {
        match *op {
            Op::Atomic { op, target } => self.atomic(op, target),
            // A fence is in order anyway. Other operations were refused when they were posted.
            _ => {
                self.move_bytes(op)?;
                op.signal().map_or(Ok(()), |signal| self.signal(signal))
            }
        }
    }

    /// Moves the bytes of an operation in host memory.
    pub(crate) fn move_bytes(&self, op: &Op) -> Result<(), Status> {
        match *op {
            Op::Put { source, target, bytes } | Op::PutSignal { source, target, bytes, .. } => {
                let (from, to) = (self.local(source.region.0)?, self.remote(target.region.0)?);
                copy(to.at(target.offset), from.at(source.offset), bytes as usize);
            }
            Op::PutInline { data, target } => {
                let to = self.remote(target.region.0)?;
                let bytes = data.as_slice();
                // SAFETY: the range was checked when it was posted, the pin keeps the mapping; races are the callers'.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.at(target.offset), bytes.len()) };
            }
            Op::Get { source, target, bytes } => {
                let (from, to) = (self.remote(source.region.0)?, self.local(target.region.0)?);
                copy(to.at(target.offset), from.at(source.offset), bytes as usize);
            }
            _ => {}
        }
        Ok(())
    }

    /// Changes a word of host memory.
    pub(crate) fn signal(&self, signal: &SignalUpdate) -> Result<(), Status> {
        let pin = self.remote(signal.target.region.0)?;
        let word = word(&pin, signal.target.offset);
        match signal.action {
            SignalAction::Set => word.store(signal.value, Ordering::Release),
            SignalAction::Add => {
                word.fetch_add(signal.value, Ordering::Release);
            }
        }
        self.notify(pin.owner);
        Ok(())
    }

    fn atomic(&self, op: AtomicOp, target: RemoteAddress) -> Result<(), Status> {
        let pin = self.remote(target.region.0)?;
        let word = word(&pin, target.offset);
        let (old, result) = match op {
            AtomicOp::Add { operand } => {
                word.fetch_add(operand, Ordering::AcqRel);
                self.notify(pin.owner);
                return Ok(());
            }
            AtomicOp::FetchAdd { operand, result } => (word.fetch_add(operand, Ordering::AcqRel), result),
            AtomicOp::CompareSwap { compare, swap, result } => {
                let old = word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
                (old.unwrap_or_else(|old| old), result)
            }
            AtomicOp::Swap { value, result } => (word.swap(value, Ordering::AcqRel), result),
        };
        self.notify(pin.owner);
        let to = self.local(result.region.0)?;
        // SAFETY: 8 bytes inside the region (checked when it was posted), pinned; any alignment is legal here.
        unsafe { to.at(result.offset).cast::<u64>().write_unaligned(old) };
        Ok(())
    }

    /// Wakes whoever waits on that rank.
    pub(crate) fn notify(&self, owner: Rank) {
        if let Some(peer) = self.inner.peer(owner) {
            peer.control().notify();
        }
    }

    pub(crate) fn local(&self, key: u64) -> Result<Pin<'_>, Status> {
        self.inner.locals.pin(key).ok_or(Status::LocalGone)
    }

    pub(crate) fn remote(&self, key: u64) -> Result<Pin<'_>, Status> {
        self.inner.remotes.pin(key).ok_or(Status::RemoteGone)
    }
}

fn check_range<'a>(side: &str, registry: &'a Registry, key: u64, offset: u64, bytes: u64) -> Result<Pin<'a>, String> {
    let pin = registry.pin(key).ok_or_else(|| format!("its {side} region {key:#x} does not exist (any more)"))?;
    if offset.checked_add(bytes).is_some_and(|end| end <= pin.bytes as u64) {
        return Ok(pin);
    }
    Err(format!("{bytes} bytes at offset {offset} are outside its {side} region of {} bytes", pin.bytes))
}

fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    let copier = Copier::for_bytes(bytes);
    let distance = to.addr().abs_diff(from.addr());
    // SAFETY: both ranges were checked when the operation was posted and are pinned; that nobody else touches them
    // meanwhile is the ordering contract. A put inside one's own region may overlap: `ptr::copy` is for that.
    unsafe {
        if distance < bytes {
            std::ptr::copy(from, to, bytes);
        } else {
            copier.copy(to, from, bytes);
            copier.fence();
        }
    }
}

fn word<'a>(pin: &'a Pin<'_>, offset: u64) -> &'a AtomicU64 {
    // SAFETY: 8 bytes inside the region and aligned (checked when it was posted; windows are page-aligned), pinned while
    // `pin` lives; words are only accessed as atomics (the ordering contract).
    unsafe { AtomicU64::from_ptr(pin.at(offset).cast()) }
}
