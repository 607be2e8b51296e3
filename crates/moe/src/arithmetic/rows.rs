//! The reduction kernel, generic over element type and register.

use super::{CACHE_LINE, vector::Vector};

/// Registers of a row that are handled together, to have several independent sums in flight.
const UNROLL: usize = 2;

/// In the place of a number of rows: any.
pub(super) const ANY: usize = 0;

/// A combine type: how its rows become f32 lanes and back.
pub(super) trait Element {
    /// One register of packed elements, widened.
    type Wide<V: Vector>: Copy;

    /// # Safety
    /// As for [`Vector`].
    unsafe fn widen<V: Vector>(packed: V) -> Self::Wide<V>;
    /// # Safety
    /// As for [`Vector`].
    unsafe fn add<V: Vector>(a: Self::Wide<V>, b: Self::Wide<V>) -> Self::Wide<V>;
    /// Rounds once; makes NaN canonical.
    ///
    /// # Safety
    /// As for [`Vector`].
    unsafe fn narrow<V: Vector>(wide: Self::Wide<V>) -> V;
}

/// [`crate::DType::F32`].
pub(super) struct F32;
/// [`crate::DType::F16`].
pub(super) struct F16;
/// [`crate::DType::BF16`].
pub(super) struct BF16;

impl Element for F32 {
    type Wide<V: Vector> = V;

    #[inline(always)]
    unsafe fn widen<V: Vector>(packed: V) -> V {
        packed
    }
    #[inline(always)]
    unsafe fn add<V: Vector>(a: V, b: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { a.add(b) }
    }
    #[inline(always)]
    unsafe fn narrow<V: Vector>(wide: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { wide.canonical() }
    }
}

/// A 16-bit type: two parts a register.
macro_rules! half_width {
    ($element:ty, $widen:ident, $narrow:ident) => {
        impl Element for $element {
            type Wide<V: Vector> = [V; 2];

            #[inline(always)]
            unsafe fn widen<V: Vector>(packed: V) -> [V; 2] {
                // SAFETY: the caller's promise.
                unsafe { packed.$widen() }
            }
            #[inline(always)]
            unsafe fn add<V: Vector>(a: [V; 2], b: [V; 2]) -> [V; 2] {
                // SAFETY: the caller's promise.
                unsafe { [a[0].add(b[0]), a[1].add(b[1])] }
            }
            #[inline(always)]
            unsafe fn narrow<V: Vector>(wide: [V; 2]) -> V {
                // SAFETY: the caller's promise.
                unsafe { V::$narrow(wide) }
            }
        }
    };
}
half_width!(F16, widen_f16, narrow_f16);
half_width!(BF16, widen_bf16, narrow_bf16);

/// Sums one or more rows of so many bytes into the row at `dst`.
pub(super) type SumFn = unsafe fn(dst: *mut u8, rows: &[*const u8], bytes: usize);

/// The bodies for 1 to 8 rows, which are constants in them so that the pointers stay in registers and the loop over
/// rows unrolls, and at [`ANY`] the one for any number.
pub(super) type SumTable = [SumFn; 9];

/// All bodies of [`sum`] for element type `E` on registers `V`.
pub(super) const fn table<E: Element, V: Vector, const STREAM: bool>() -> SumTable {
    [
        V::sum::<E, STREAM, ANY>,
        V::sum::<E, STREAM, 1>,
        V::sum::<E, STREAM, 2>,
        V::sum::<E, STREAM, 3>,
        V::sum::<E, STREAM, 4>,
        V::sum::<E, STREAM, 5>,
        V::sum::<E, STREAM, 6>,
        V::sum::<E, STREAM, 7>,
        V::sum::<E, STREAM, 8>,
    ]
}

/// Sums one or more rows: [`UNROLL`] registers at a time, then what is left register by register, the last one padded.
///
/// The number of rows is `ROWS`, or anything if that is [`ANY`]. All loads of a step come before its stores, so `dst`
/// may be one of the rows and no check for overlap is needed.
///
/// # Safety
/// As for [`super::Kernels::reduce_rows`] and [`Vector`]; with `STREAM`, `dst` is aligned to the register.
#[inline(always)]
pub(super) unsafe fn sum<E: Element, V: Vector, const STREAM: bool, const ROWS: usize>(
    dst: *mut u8,
    rows: &[*const u8],
    bytes: usize,
) {
    let mut at = 0;
    // SAFETY: every access ends at or below `bytes`, within the memory that the caller vouches for.
    unsafe {
        if let Ok(rows) = <&[*const u8; ROWS]>::try_from(rows) {
            let rows = *rows;
            while bytes - at >= UNROLL * V::BYTES {
                step::<E, V, STREAM>(dst, &rows, at);
                at += UNROLL * V::BYTES;
            }
        } else {
            while bytes - at >= UNROLL * V::BYTES {
                step::<E, V, STREAM>(dst, rows, at);
                at += UNROLL * V::BYTES;
            }
        }
        while at < bytes {
            let length = V::BYTES.min(bytes - at);
            rest::<E, V>(dst, rows, at, length);
            at += length;
        }
    }
}

/// Sums bytes `at ..` of the rows, `UNROLL` registers of them.
///
/// # Safety
/// As for [`sum`]; the rows reach that far.
#[inline(always)]
unsafe fn step<E: Element, V: Vector, const STREAM: bool>(dst: *mut u8, rows: &[*const u8], at: usize) {
    let (&first, others) = rows.split_first().expect("reduce_rows has dealt with no rows");
    // SAFETY: the caller's promises.
    unsafe {
        let mut packed = [V::load(first.add(at)); UNROLL];
        for (u, packed) in packed.iter_mut().enumerate() {
            *packed = V::load(first.add(at + u * V::BYTES));
        }
        if !others.is_empty() {
            let mut sums = [E::widen(packed[0]); UNROLL];
            for (sum, packed) in sums.iter_mut().zip(packed) {
                *sum = E::widen(packed);
            }
            for other in others {
                for (u, sum) in sums.iter_mut().enumerate() {
                    let next = V::load(other.add(at + u * V::BYTES));
                    *sum = E::add(*sum, E::widen(next));
                }
            }
            for (packed, sum) in packed.iter_mut().zip(sums) {
                *packed = E::narrow(sum);
            }
        }
        for (u, packed) in packed.into_iter().enumerate() {
            let dst = dst.add(at + u * V::BYTES);
            if STREAM { packed.stream(dst) } else { packed.store(dst) }
        }
    }
}

/// Sums `length` bytes of the rows, at most a register, from byte `at` on.
///
/// # Safety
/// As for [`sum`]; the rows reach that far.
#[inline(always)]
unsafe fn rest<E: Element, V: Vector>(dst: *mut u8, rows: &[*const u8], at: usize, length: usize) {
    let (&first, others) = rows.split_first().expect("reduce_rows has dealt with no rows");
    const { assert!(V::BYTES <= CACHE_LINE) };
    let mut padded = [0_u8; CACHE_LINE];
    // SAFETY: the caller's promises; `padded` is as long as any register.
    unsafe {
        first.add(at).copy_to_nonoverlapping(padded.as_mut_ptr(), length);
        if !others.is_empty() {
            let mut sum = E::widen(V::load(padded.as_ptr()));
            for other in others {
                other.add(at).copy_to_nonoverlapping(padded.as_mut_ptr(), length);
                sum = E::add(sum, E::widen(V::load(padded.as_ptr())));
            }
            E::narrow(sum).store(padded.as_mut_ptr());
        }
        padded.as_ptr().copy_to_nonoverlapping(dst.add(at), length);
    }
}
