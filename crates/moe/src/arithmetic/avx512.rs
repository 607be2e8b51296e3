//! The kernels for AVX-512 F and BW.
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

/// A 512-bit register. bf16 is split as in [`super::vector::Words`], f16 into the lower and the upper half.
#[derive(Clone, Copy)]
struct Zmm(__m512i);

impl Vector for Zmm {
    const BYTES: usize = 64;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_loadu_si512(src.cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn store(self, dst: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(dst.cast(), self.0) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: the caller's promise, which includes a fence before anybody relies on the order.
        unsafe { _mm512_stream_si512(dst.cast(), self.0) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn add(self, other: Self) -> Self {
        Self::from_ps(_mm512_add_ps(self.ps(), other.ps()))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn canonical(self) -> Self {
        self.canonical_lanes()
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn widen_bf16(self) -> [Self; 2] {
        let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        [Self(_mm512_slli_epi32::<16>(self.0)), Self(_mm512_and_si512(self.0, upper))]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn narrow_bf16([mut low, mut high]: [Self; 2]) -> Self {
        if _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(low.ps(), high.ps()) != 0 {
            (low, high) = (low.canonical_lanes(), high.canonical_lanes());
        }
        let low = _mm512_srli_epi32::<16>(low.round_bf16());
        Self(_mm512_mask_blend_epi16(0xaaaa_aaaa, low, high.round_bf16()))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn widen_f16(self) -> [Self; 2] {
        let (low, high) = (_mm512_castsi512_si256(self.0), _mm512_extracti64x4_epi64::<1>(self.0));
        [Self::from_ps(_mm512_cvtph_ps(low)), Self::from_ps(_mm512_cvtph_ps(high))]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn narrow_f16([low, high]: [Self; 2]) -> Self {
        let low = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(low.canonical_lanes().ps());
        let high = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(high.canonical_lanes().ps());
        Self(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high))
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn sum<E: Element, const STREAM: bool, const ROWS: usize>(dst: *mut u8, rows: &[*const u8], bytes: usize) {
        // SAFETY: the caller's promises, passed on.
        unsafe { rows::sum::<E, Self, STREAM, ROWS>(dst, rows, bytes) }
    }
}

impl Zmm {
    /// The lanes as f32.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn ps(self) -> __m512 {
        _mm512_castsi512_ps(self.0)
    }

    /// The lanes of f32.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn from_ps(lanes: __m512) -> Self {
        Self(_mm512_castps_si512(lanes))
    }

    /// [`Vector::canonical`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn canonical_lanes(self) -> Self {
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.ps(), self.ps());
        Self(_mm512_mask_set1_epi32(self.0, nan, number::F32_NAN as i32))
    }

    /// f32 lanes that are not NaN, rounded to bf16 in their upper halves; the lower halves are undefined.
    ///
    /// Whether the kept part is odd goes into a mask, which saves a shift and an addition.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn round_bf16(self) -> __m512i {
        let odd = _mm512_test_epi32_mask(self.0, _mm512_set1_epi32(0x1_0000));
        let even = _mm512_add_epi32(self.0, _mm512_set1_epi32(0x7fff));
        _mm512_mask_add_epi32(even, odd, self.0, _mm512_set1_epi32(0x8000))
    }
}

/// [`scale::scale`] for this instruction set.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn scale(dst: *mut u8, combine: DType, row: Row<'_>, hidden: usize, c: f32) {
    // SAFETY: the caller's promises, passed on.
    unsafe { scale::scale(dst, combine, row, hidden, c) }
}

/// [`quantize::quantize`] for this instruction set.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn quantize(dst: *mut u8, scales: &mut [f32], dtype: DType, src: *const u8, hidden: usize) {
    // SAFETY: the caller's promises, passed on.
    unsafe { quantize::quantize(dst, scales, dtype, src, hidden) }
}

/// To be handed out only where AVX-512 F and BW are present.
pub(super) static KERNELS: Kernels = Kernels::new::<Zmm>(Isa::Avx512, scale, quantize);
