//! The scaling kernel: plain loops, which the compiler turns into vector code of the instruction set that encloses
//! them.

use std::ops::Range;

use super::Row;
use crate::{DType, number};

/// A combine type, one element at a time.
trait Scalar {
    /// The element as it lies in memory.
    type Bits: Copy;
    /// To f32, exactly.
    fn widen(bits: Self::Bits) -> f32;
    /// From f32, rounded once, with the canonical NaN.
    fn narrow(value: f32) -> Self::Bits;
}

macro_rules! scalar {
    ($name:ident, $bits:ty, $widen:expr, $narrow:expr) => {
        struct $name;
        impl Scalar for $name {
            type Bits = $bits;
            #[inline(always)]
            fn widen(bits: $bits) -> f32 {
                $widen(bits)
            }
            #[inline(always)]
            fn narrow(value: f32) -> $bits {
                $narrow(value)
            }
        }
    };
}
scalar!(F32, f32, |value| value, number::canonical);
scalar!(F16, u16, number::f16_to_f32, number::f32_to_f16);
scalar!(BF16, u16, number::bf16_to_f32, number::f32_to_bf16);

/// [`super::Kernels::scale_row`].
///
/// # Safety
/// As for [`super::Kernels::scale_row`].
#[inline(always)]
pub(super) unsafe fn scale(dst: *mut u8, combine: DType, row: Row<'_>, hidden: usize, c: f32) {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        match combine {
            DType::F32 => scale_to::<F32>(dst, row, hidden, c),
            DType::F16 => scale_to::<F16>(dst, row, hidden, c),
            DType::BF16 => scale_to::<BF16>(dst, row, hidden, c),
            _ => panic!("{combine} is not a combine type"),
        }
    }
}

/// Scales into a row of type `D`.
///
/// # Safety
/// As for [`scale`].
#[inline(always)]
unsafe fn scale_to<D: Scalar>(dst: *mut u8, row: Row<'_>, hidden: usize, c: f32) {
    let (dst, src) = (dst.cast::<D::Bits>(), row.data);
    // SAFETY: the caller's promises, passed on; element `at` of a row is at or behind byte `at * bits / 8`.
    unsafe {
        match row.dtype {
            DType::F32 => run::<D>(dst, 0..hidden, |at| c * src.cast::<f32>().add(at).read_unaligned()),
            DType::F16 => run::<D>(dst, 0..hidden, |at| c * F16::widen(src.cast::<u16>().add(at).read_unaligned())),
            DType::BF16 => run::<D>(dst, 0..hidden, |at| c * BF16::widen(src.cast::<u16>().add(at).read_unaligned())),
            DType::F8E4M3 => run_blocks::<D>(dst, row, hidden, c, |at| number::e4m3_to_f32(*src.add(at))),
            DType::F8E4M3FNUZ => run_blocks::<D>(dst, row, hidden, c, |at| number::e4m3fnuz_to_f32(*src.add(at))),
            DType::F4E2M1 => {
                run_blocks::<D>(dst, row, hidden, c, |at| number::e2m1_to_f32(*src.add(at / 2) >> (at % 2 * 4)));
            }
        }
    }
}

/// Makes each element of a scaled row out of its code, times its block's scale, times `c`.
///
/// # Safety
/// `dst` is writable for `hidden` elements, at any alignment.
#[inline(always)]
unsafe fn run_blocks<D: Scalar>(dst: *mut D::Bits, row: Row<'_>, hidden: usize, c: f32, code: impl Fn(usize) -> f32) {
    assert!(hidden == 0 || !row.scales.is_empty(), "a row of a scaled type has block scales");
    let block = hidden.div_ceil(row.scales.len().max(1));
    for (i, &scale) in row.scales.iter().enumerate() {
        let elements = hidden.min(i * block)..hidden.min((i + 1) * block);
        // SAFETY: the caller's promise; a block ends at or below `hidden`.
        unsafe { run::<D>(dst, elements, |at| c * (code(at) * scale)) }
    }
}

/// Makes `elements` of the row at `dst`, each by its number.
///
/// # Safety
/// `dst` is writable for that many elements, at any alignment.
#[inline(always)]
unsafe fn run<D: Scalar>(dst: *mut D::Bits, elements: Range<usize>, value: impl Fn(usize) -> f32) {
    for at in elements {
        // SAFETY: the caller's promise.
        unsafe { dst.add(at).write_unaligned(D::narrow(value(at))) }
    }
}
