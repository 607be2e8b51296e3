//! The scaling kernel: plain loops, which the compiler turns into vector code of the instruction set that encloses
//! them.

use super::Row;
use crate::{DType, number};

/// An element type, one element at a time.
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
scalar!(F8E4M3, u8, number::e4m3_to_f32, number::f32_to_e4m3);

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
            DType::F8E4M3 => panic!("{combine} is not a combine type"),
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
    // SAFETY: the caller's promises, passed on; a block of scaled elements ends at or below `hidden`.
    unsafe {
        match row.dtype {
            DType::F32 => run::<F32, D>(dst, src.cast(), hidden, |x| c * x),
            DType::F16 => run::<F16, D>(dst, src.cast(), hidden, |x| c * x),
            DType::BF16 => run::<BF16, D>(dst, src.cast(), hidden, |x| c * x),
            DType::F8E4M3 => {
                assert!(hidden == 0 || !row.scales.is_empty(), "a row of a scaled type has block scales");
                let block = hidden.div_ceil(row.scales.len().max(1));
                for (i, &scale) in row.scales.iter().enumerate() {
                    let start = hidden.min(i * block);
                    let length = block.min(hidden - start);
                    run::<F8E4M3, D>(dst.add(start), src.add(start), length, |x| c * (x * scale));
                }
            }
        }
    }
}

/// Maps `length` elements of type `S` to type `D`.
///
/// # Safety
/// `src` is readable and `dst` writable for `length` elements, at any alignment.
#[inline(always)]
unsafe fn run<S: Scalar, D: Scalar>(dst: *mut D::Bits, src: *const S::Bits, length: usize, f: impl Fn(f32) -> f32) {
    for i in 0..length {
        // SAFETY: below `length`.
        unsafe { dst.add(i).write_unaligned(D::narrow(f(S::widen(src.add(i).read_unaligned())))) }
    }
}
