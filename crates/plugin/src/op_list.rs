//! Lists of operations cross as they lie: the core's [`Op`] has the layout of the boundary's.
//!
//! The assertions here are what makes that sound. The other direction needs a look at each operation: every tag that a C
//! caller wrote must be one that [`Op`] has, and the length of inline bytes one that fits.

use std::mem::offset_of;

use campanile_abi as abi;
use campanile_core::{AtomicOp, Inline, LocalAddress, Op, RegionKey, RemoteAddress, RemoteKey, SignalUpdate};

const _: () = {
    assert!(size_of::<Op>() == size_of::<abi::Op>() && align_of::<Op>() == align_of::<abi::Op>());
    assert!(size_of::<LocalAddress>() == size_of::<abi::LocalAddress>());
    assert!(offset_of!(LocalAddress, region) == offset_of!(abi::LocalAddress, region));
    assert!(offset_of!(LocalAddress, offset) == offset_of!(abi::LocalAddress, offset));
    assert!(size_of::<RemoteAddress>() == size_of::<abi::RemoteAddress>());
    assert!(offset_of!(RemoteAddress, region) == offset_of!(abi::RemoteAddress, region));
    assert!(offset_of!(RemoteAddress, offset) == offset_of!(abi::RemoteAddress, offset));
    assert!(size_of::<SignalUpdate>() == size_of::<abi::SignalUpdate>());
    assert!(offset_of!(SignalUpdate, target) == offset_of!(abi::SignalUpdate, target));
    assert!(offset_of!(SignalUpdate, value) == offset_of!(abi::SignalUpdate, value));
    assert!(offset_of!(SignalUpdate, action) == offset_of!(abi::SignalUpdate, action));
    assert!(offset_of!(SignalUpdate, strength) == offset_of!(abi::SignalUpdate, strength));
    assert!(Inline::MAX == abi::INLINE_BYTES);
    assert!(size_of::<RegionKey>() == 8 && size_of::<RemoteKey>() == 8);
    assert!(size_of::<AtomicOp>() == offset_of!(abi::Atomic, target));
};

/// The list as the other side reads it.
#[inline]
pub(crate) fn as_abi(ops: &[Op]) -> *const abi::Op {
    ops.as_ptr().cast()
}

/// The list that a caller of the C table gave, or the position of the first operation that is none.
///
/// # Safety
/// `ops` are `count` operations, each with the payload of its kind initialised, that stay for `'a`.
#[inline]
pub(crate) unsafe fn from_abi<'a>(ops: *const abi::Op, count: usize) -> Result<&'a [Op], usize> {
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise; only the tags and lengths that the kind has are read.
    let list = unsafe { std::slice::from_raw_parts(ops, count) };
    // Puts have no tag but their own: a list of them is looked at without a branch an operation.
    let puts = list[0].kind == abi::OP_PUT && list.iter().fold(0, |other, op| other | (op.kind ^ abi::OP_PUT)) == 0;
    let mut rest = if puts { &[] } else { list };
    while let Some(first) = rest.first() {
        // SAFETY: as above.
        match unsafe { run(first.kind, rest) } {
            0 => return Err(count - rest.len()),
            valid => rest = &rest[valid..],
        }
    }
    // SAFETY: the same layout (asserted above), and every tag is one of the enum's (checked).
    Ok(unsafe { std::slice::from_raw_parts(ops.cast(), count) })
}

const MOST_INLINE: u8 = Inline::MAX as u8;

/// How many operations at the beginning of a list are of that kind and have a valid payload.
#[inline(always)]
fn of_kind(kind: u32, list: &[abi::Op], valid: impl Fn(&abi::Payload) -> bool) -> usize {
    list.iter().take_while(|op| op.kind == kind && valid(&op.payload)).count()
}

/// How many operations at the beginning of a list are of that kind and valid. What must hold of a kind is looked up once
/// for all of them: lists are runs of one kind.
///
/// # Safety
/// The payloads of the operations' kinds are initialised.
#[inline]
unsafe fn run(kind: u32, list: &[abi::Op]) -> usize {
    // Both are 0 or 1: one comparison for two.
    const { assert!(abi::SIGNAL_ADD == 1 && abi::STRENGTH_STRONG == 1) };
    let signal = |signal: &abi::SignalUpdate| signal.action | signal.strength <= 1;
    // SAFETY: the caller's promise: the payload is that of the kind, in each of them.
    unsafe {
        match kind {
            abi::OP_PUT | abi::OP_GET | abi::OP_FENCE => of_kind(kind, list, |_| true),
            abi::OP_PUT_SIGNAL => of_kind(kind, list, |payload| signal(&payload.put_signal.signal)),
            abi::OP_SIGNAL => of_kind(kind, list, |payload| signal(&payload.signal)),
            abi::OP_PUT_INLINE => of_kind(kind, list, |payload| payload.put_inline.bytes <= MOST_INLINE),
            abi::OP_ATOMIC => of_kind(kind, list, |payload| payload.atomic.kind <= abi::ATOMIC_SWAP),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use campanile_core::{SignalAction, Strength};

    fn op(kind: u32, payload: abi::Payload) -> abi::Op {
        abi::Op { kind, reserved: u32::MAX, payload }
    }

    const SOURCE: abi::LocalAddress = abi::LocalAddress { region: 1, offset: 2 };
    const TARGET: abi::RemoteAddress = abi::RemoteAddress { region: 3, offset: 4 };
    const LOCAL: LocalAddress = LocalAddress { region: RegionKey(1), offset: 2 };
    const REMOTE: RemoteAddress = RemoteAddress { region: RemoteKey(3), offset: 4 };

    fn signal(action: u32, strength: u32) -> abi::SignalUpdate {
        abi::SignalUpdate { target: TARGET, value: 7, action, strength }
    }

    fn atomic(kind: u32) -> abi::Op {
        let atomic = abi::Atomic { kind, reserved: 9, operand: 5, result: SOURCE, compare: 6, target: TARGET };
        op(abi::OP_ATOMIC, abi::Payload { atomic })
    }

    fn inline(bytes: u8) -> abi::Op {
        let mut data = [0; Inline::MAX];
        data[..3].copy_from_slice(b"abc");
        let put_inline = abi::PutInline { data, bytes, reserved: [1; 7], target: TARGET };
        op(abi::OP_PUT_INLINE, abi::Payload { put_inline })
    }

    #[test]
    fn every_field_of_every_operation_crosses() {
        let put = abi::Put { source: SOURCE, target: TARGET, bytes: 8 };
        let put_signal = abi::PutSignal { source: SOURCE, target: TARGET, bytes: 8, signal: signal(1, 0) };
        let get = abi::Get { source: TARGET, target: SOURCE, bytes: 8 };
        let list = [
            op(abi::OP_PUT, abi::Payload { put }),
            op(abi::OP_PUT_SIGNAL, abi::Payload { put_signal }),
            inline(3),
            op(abi::OP_SIGNAL, abi::Payload { signal: signal(0, 1) }),
            op(abi::OP_GET, abi::Payload { get }),
            atomic(abi::ATOMIC_ADD),
            atomic(abi::ATOMIC_FETCH_ADD),
            atomic(abi::ATOMIC_COMPARE_SWAP),
            atomic(abi::ATOMIC_SWAP),
            op(abi::OP_FENCE, abi::Payload { size: [0; 11] }),
        ];
        let update = |action, strength| SignalUpdate { target: REMOTE, value: 7, action, strength };
        let atomic = |op| Op::Atomic { op, target: REMOTE };
        let expected = [
            Op::Put { source: LOCAL, target: REMOTE, bytes: 8 },
            Op::PutSignal {
                source: LOCAL,
                target: REMOTE,
                bytes: 8,
                signal: update(SignalAction::Add, Strength::Weak),
            },
            Op::PutInline { data: Inline::new(b"abc").unwrap(), target: REMOTE },
            Op::Signal(update(SignalAction::Set, Strength::Strong)),
            Op::Get { source: REMOTE, target: LOCAL, bytes: 8 },
            atomic(AtomicOp::Add { operand: 5 }),
            atomic(AtomicOp::FetchAdd { operand: 5, result: LOCAL }),
            atomic(AtomicOp::CompareSwap { swap: 5, result: LOCAL, compare: 6 }),
            atomic(AtomicOp::Swap { value: 5, result: LOCAL }),
            Op::Fence,
        ];
        // SAFETY: the list is an array of whole operations.
        assert_eq!(unsafe { from_abi(list.as_ptr(), list.len()) }, Ok(&expected[..]));
    }

    #[test]
    fn an_unknown_tag_is_an_error() {
        let put_signal = |signal| abi::PutSignal { source: SOURCE, target: TARGET, bytes: 0, signal };
        let nonsense = [
            op(0, abi::Payload { size: [0; 11] }),
            op(8, abi::Payload { size: [0; 11] }),
            op(u32::MAX, abi::Payload { size: [0; 11] }),
            op(abi::OP_SIGNAL, abi::Payload { signal: signal(2, 0) }),
            op(abi::OP_SIGNAL, abi::Payload { signal: signal(0, 2) }),
            op(abi::OP_PUT_SIGNAL, abi::Payload { put_signal: put_signal(signal(2, 0)) }),
            op(abi::OP_PUT_SIGNAL, abi::Payload { put_signal: put_signal(signal(0, 2)) }),
            inline(65),
            atomic(4),
        ];
        for bad in nonsense {
            for first in [inline(64), op(abi::OP_PUT, abi::Payload { size: [0; 11] })] {
                let list = [[first; 9].as_slice(), &[bad]].concat();
                // SAFETY: the list is an array of whole operations.
                assert_eq!(unsafe { from_abi(list.as_ptr(), list.len()) }, Err(9), "kind {}", bad.kind);
            }
        }
        // SAFETY: nothing is read of an empty list.
        assert_eq!(unsafe { from_abi(std::ptr::null(), 0) }, Ok(&[][..]));
    }
}
