//! Quantisation of a bf16 row to FP8: plain loops, which the compiler turns into vector code of the instruction set that
//! encloses them.

use crate::{DType, number};

/// [`super::Kernels::quantize_row`].
///
/// # Safety
/// As for [`super::Kernels::quantize_row`].
#[inline(always)]
pub(super) unsafe fn quantize(dst: *mut u8, scales: &mut [f32], dtype: DType, src: *const u8, hidden: usize) {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        match dtype {
            DType::F8E4M3 => blocks(dst, scales, dtype, src, hidden, number::f32_to_e4m3),
            DType::F8E4M3FNUZ => blocks(dst, scales, dtype, src, hidden, number::f32_to_e4m3fnuz),
            _ => panic!("rows are not quantised to {dtype}"),
        }
    }
}

/// Quantises block by block.
///
/// # Safety
/// As for [`quantize`].
#[inline(always)]
unsafe fn blocks(
    dst: *mut u8,
    scales: &mut [f32],
    dtype: DType,
    src: *const u8,
    hidden: usize,
    narrow: impl Fn(f32) -> u8,
) {
    let src = src.cast::<u16>();
    let block = hidden.div_ceil(scales.len());
    for (i, scale) in scales.iter_mut().enumerate() {
        let (start, end) = (hidden.min(i * block), hidden.min((i + 1) * block));
        let mut amax = 0;
        for at in start..end {
            // SAFETY: below `hidden`.
            let magnitude = unsafe { src.add(at).read_unaligned() } & 0x7fff;
            // bf16 magnitudes ascend with their bits; above infinity are the NaN, which do not count.
            amax = amax.max(if magnitude > 0x7f80 { 0 } else { magnitude });
        }
        let amax = number::bf16_to_f32(amax).max(number::LEAST_AMAX);
        *scale = amax / dtype.largest();
        let inverse = dtype.largest() / amax;
        for at in start..end {
            // SAFETY: below `hidden`.
            unsafe { dst.add(at).write(narrow(number::bf16_to_f32(src.add(at).read_unaligned()) * inverse)) }
        }
    }
}
