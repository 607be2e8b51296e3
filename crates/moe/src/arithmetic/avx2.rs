//! The kernels for AVX2 and F16C.
//!
//! Where a function below enables an instruction set, its register operations are safe; only those on memory are not.

use std::arch::x86_64::*;

use super::{
    Isa, Kernels, Row, quantize,
    rows::{self, Element},
    scale,
    vector::Vector,
};
use crate::{DType, number};

/// A 256-bit register. bf16 is split as in [`super::vector::Words`], f16 into the lower and the upper half.
#[derive(Clone, Copy)]
struct Ymm(__m256i);

impl Vector for Ymm {
    const BYTES: usize = 32;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm256_loadu_si256(src.cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn store(self, dst: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(dst.cast(), self.0) }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: the caller's promise, which includes a fence before anybody relies on the order.
        unsafe { _mm256_stream_si256(dst.cast(), self.0) }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn add(self, other: Self) -> Self {
        Self::from_ps(_mm256_add_ps(self.ps(), other.ps()))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn canonical(self) -> Self {
        self.canonical_lanes()
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen_bf16(self) -> [Self; 2] {
        let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        [Self(_mm256_slli_epi32::<16>(self.0)), Self(_mm256_and_si256(self.0, upper))]
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn narrow_bf16([mut low, mut high]: [Self; 2]) -> Self {
        if _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(low.ps(), high.ps())) != 0 {
            (low, high) = (low.canonical_lanes(), high.canonical_lanes());
        }
        let low = _mm256_srli_epi32::<16>(low.round_bf16());
        Self(_mm256_blend_epi16::<0b1010_1010>(low, high.round_bf16()))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn widen_f16(self) -> [Self; 2] {
        let (low, high) = (_mm256_castsi256_si128(self.0), _mm256_extracti128_si256::<1>(self.0));
        [Self::from_ps(_mm256_cvtph_ps(low)), Self::from_ps(_mm256_cvtph_ps(high))]
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn narrow_f16([low, high]: [Self; 2]) -> Self {
        let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(low.canonical_lanes().ps());
        let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(high.canonical_lanes().ps());
        Self(_mm256_set_m128i(high, low))
    }

    #[target_feature(enable = "avx2,f16c")]
    unsafe fn sum<E: Element, const STREAM: bool, const ROWS: usize>(dst: *mut u8, rows: &[*const u8], bytes: usize) {
        // SAFETY: the caller's promises, passed on.
        unsafe { rows::sum::<E, Self, STREAM, ROWS>(dst, rows, bytes) }
    }
}

impl Ymm {
    /// The lanes as f32.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn ps(self) -> __m256 {
        _mm256_castsi256_ps(self.0)
    }

    /// The lanes of f32.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn from_ps(lanes: __m256) -> Self {
        Self(_mm256_castps_si256(lanes))
    }

    /// [`Vector::canonical`].
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn canonical_lanes(self) -> Self {
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.ps(), self.ps());
        let canonical = _mm256_set1_ps(f32::from_bits(number::F32_NAN));
        Self::from_ps(_mm256_blendv_ps(self.ps(), canonical, nan))
    }

    /// f32 lanes that are not NaN, rounded to bf16 in their upper halves; the lower halves are undefined.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn round_bf16(self) -> __m256i {
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(self.0), _mm256_set1_epi32(1));
        _mm256_add_epi32(_mm256_add_epi32(self.0, _mm256_set1_epi32(0x7fff)), odd)
    }
}

/// [`scale::scale`] for this instruction set.
#[target_feature(enable = "avx2,f16c")]
unsafe fn scale(dst: *mut u8, combine: DType, row: Row<'_>, hidden: usize, c: f32) {
    // SAFETY: the caller's promises, passed on.
    unsafe { scale::scale(dst, combine, row, hidden, c) }
}

/// [`quantize::quantize`] for this instruction set.
#[target_feature(enable = "avx2,f16c")]
unsafe fn quantize(dst: *mut u8, scales: &mut [f32], dtype: DType, src: *const u8, hidden: usize) {
    // SAFETY: the caller's promises, passed on.
    unsafe { quantize::quantize(dst, scales, dtype, src, hidden) }
}

/// To be handed out only where AVX2 and F16C are present.
pub(super) static KERNELS: Kernels = Kernels::new::<Ymm>(Isa::Avx2, scale, quantize);
