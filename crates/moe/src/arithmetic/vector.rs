//! A vector register, as the row kernels see it, and the one that every processor has.

use super::rows::{self, Element};
use crate::number;

/// A register of 32-bit lanes, each an f32 or two packed 16-bit elements.
///
/// The widening functions may hand the elements of a register over in any order, as long as the narrowing function of
/// the same type restores it: between the two only lane-wise operations happen.
///
/// # Safety
/// Every function may be called only where the processor has the instructions of the implementation. Whoever chooses
/// the type establishes that once; the kernels pass it on. `load`, `store` and `stream` ask for valid memory too.
pub(super) trait Vector: Copy {
    /// Bytes of the register.
    const BYTES: usize;

    /// Reads [`BYTES`](Self::BYTES) from any address.
    unsafe fn load(src: *const u8) -> Self;
    /// Writes [`BYTES`](Self::BYTES) to any address.
    unsafe fn store(self, dst: *mut u8);
    /// Writes [`BYTES`](Self::BYTES) past the caches, where there is a way, to a multiple of it.
    unsafe fn stream(self, dst: *mut u8);
    /// Adds f32 lanes.
    unsafe fn add(self, other: Self) -> Self;
    /// Replaces each f32 lane that is NaN by the canonical one.
    unsafe fn canonical(self) -> Self;
    /// Packed bf16 to f32.
    unsafe fn widen_bf16(self) -> [Self; 2];
    /// f32 to packed bf16: nearest even, canonical NaN.
    unsafe fn narrow_bf16(parts: [Self; 2]) -> Self;
    /// Packed f16 to f32.
    unsafe fn widen_f16(self) -> [Self; 2];
    /// f32 to packed f16: nearest even, canonical NaN.
    unsafe fn narrow_f16(parts: [Self; 2]) -> Self;

    /// [`rows::sum`] compiled for the instruction set, with its promises.
    unsafe fn sum<E: Element, const STREAM: bool, const ROWS: usize>(dst: *mut u8, rows: &[*const u8], bytes: usize);
}

/// A register in plain Rust, which the compiler maps to what the target has. It has no streaming stores.
///
/// Of a lane's two 16-bit elements, the lower half goes to the first part, the upper half to the second.
#[derive(Clone, Copy)]
pub(super) struct Words([u32; Words::LANES]);

impl Words {
    const LANES: usize = 8;

    #[inline(always)]
    fn map(self, f: impl Fn(u32) -> u32) -> Self {
        Self(self.0.map(f))
    }
}

impl Vector for Words {
    const BYTES: usize = 4 * Self::LANES;

    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { src.cast::<[u32; Self::LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, dst: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { dst.cast::<[u32; Self::LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.store(dst) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| (f32::from_bits(self.0[i]) + f32::from_bits(other.0[i])).to_bits()))
    }

    #[inline(always)]
    unsafe fn canonical(self) -> Self {
        self.map(|lane| number::canonical(f32::from_bits(lane)).to_bits())
    }

    #[inline(always)]
    unsafe fn widen_bf16(self) -> [Self; 2] {
        [self.map(|lane| lane << 16), self.map(|lane| lane & 0xffff_0000)]
    }

    #[inline(always)]
    unsafe fn narrow_bf16([low, high]: [Self; 2]) -> Self {
        let round = |lane| number::round_to_bf16(f32::from_bits(lane));
        Self(std::array::from_fn(|i| round(low.0[i]) >> 16 | round(high.0[i]) & 0xffff_0000))
    }

    #[inline(always)]
    unsafe fn widen_f16(self) -> [Self; 2] {
        [self.map(|lane| number::widen_f16(lane).to_bits()), self.map(|lane| number::widen_f16(lane >> 16).to_bits())]
    }

    #[inline(always)]
    unsafe fn narrow_f16([low, high]: [Self; 2]) -> Self {
        let round = |lane| number::round_to_f16(f32::from_bits(lane));
        Self(std::array::from_fn(|i| round(low.0[i]) | round(high.0[i]) << 16))
    }

    unsafe fn sum<E: Element, const STREAM: bool, const ROWS: usize>(dst: *mut u8, rows: &[*const u8], bytes: usize) {
        // SAFETY: the caller's promises, passed on.
        unsafe { rows::sum::<E, Self, STREAM, ROWS>(dst, rows, bytes) }
    }
}
