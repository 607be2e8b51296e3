//! Row arithmetic of the host engine: the reduction of combine, the scaling expert, the quantisation of dispatch.
//!
//! Model: a *row* is `hidden` elements of one type, at any address. Rows lie in windows that other ranks write, so they
//! are named by pointers, and whoever calls promises that nobody writes them meanwhile (the words of the protocol say
//! when that holds). The order of every sum is fixed; each operation rounds once, to nearest even, in f32; there is no
//! fused multiply-add and no flush to zero; a NaN made here is the canonical one. Hence the result depends on nothing
//! but the operands: all instruction sets give the same bits as the scalar model.
//!
//! One generic source (`rows`) is compiled per instruction set over its `Vector`; [`Kernels`] is the table of what came
//! out, chosen once at run time. bf16 is handled two elements a 32-bit lane, so that widening and narrowing need
//! shifts and masks but no shuffle: that, not the width of the registers, is what makes it as fast as memory.

mod quantize;
mod rows;
mod scale;
mod vector;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::sync::OnceLock;

use self::{
    rows::{Element, SumTable},
    vector::Vector,
};
use crate::DType;

/// Bytes of a cache line, and what a streamed row is aligned to; no register is longer.
const CACHE_LINE: usize = 64;

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// What every processor of the target has (SSE2 on x86-64, NEON on aarch64).
    Baseline,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512 F and BW.
    Avx512,
}

impl Isa {
    /// All of them, narrowest first.
    pub const ALL: [Self; 3] = [Self::Baseline, Self::Avx2, Self::Avx512];

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }
}

/// How results are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// Ordinary stores: the result is in this core's cache afterwards.
    #[default]
    Cached,
    /// Non-temporal stores, which save reading the destination's lines from memory first. They win when the rows and
    /// results of a call together exceed the cache (measured: from some 16 MiB), and lose when the results are used at
    /// once. A hint: a destination that does not start a cache line is written with ordinary stores, because streamed
    /// parts of lines cost more than they save. This thread sees them at once; before another thread is told of the
    /// results, after a whole run of rows, [`streaming_fence`](campanile_host::copy::streaming_fence).
    Streaming,
}

/// A row that is to be scaled: `hidden` elements of any type, and its block scales.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Type of the elements.
    pub dtype: DType,
    /// First byte of the row, at any alignment.
    pub data: *const u8,
    /// `[S]` scales, each for `ceil(hidden / S)` elements; empty unless the type is scaled.
    pub scales: &'a [f32],
}

/// Scales `row` by `c` into the row at `dst`, of the given combine type.
type ScaleFn = unsafe fn(dst: *mut u8, combine: DType, row: Row<'_>, hidden: usize, c: f32);

/// Quantises the bf16 row at `src` into a row of `dtype` at `dst`, and its scales.
type QuantizeFn = unsafe fn(dst: *mut u8, scales: &mut [f32], dtype: DType, src: *const u8, hidden: usize);

/// The bodies of the reduction of one combine type.
#[derive(Debug)]
struct Reduce {
    cached: SumTable,
    streaming: SumTable,
}

impl Reduce {
    const fn new<E: Element, V: Vector>() -> Self {
        Self { cached: rows::table::<E, V, false>(), streaming: rows::table::<E, V, true>() }
    }
}

/// The kernels of one instruction set.
#[derive(Debug)]
pub struct Kernels {
    isa: Isa,
    f32: Reduce,
    f16: Reduce,
    bf16: Reduce,
    scale: ScaleFn,
    quantize: QuantizeFn,
}

impl Kernels {
    /// The widest that this processor has; chosen at the first call.
    pub fn get() -> &'static Self {
        static BEST: OnceLock<&'static Kernels> = OnceLock::new();
        BEST.get_or_init(|| {
            Isa::ALL.into_iter().rev().find_map(Self::for_isa).expect("the baseline is always available")
        })
    }

    /// Those of `isa`, or `None` where this processor lacks it.
    pub fn for_isa(isa: Isa) -> Option<&'static Self> {
        static BASELINE: Kernels = Kernels::new::<vector::Words>(Isa::Baseline, scale::scale, quantize::quantize);
        if !isa.is_available() {
            return None;
        }
        match isa {
            Isa::Baseline => Some(&BASELINE),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Some(&avx2::KERNELS),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Some(&avx512::KERNELS),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => None,
        }
    }

    const fn new<V: Vector>(isa: Isa, scale: ScaleFn, quantize: QuantizeFn) -> Self {
        Self {
            isa,
            f32: Reduce::new::<rows::F32, V>(),
            f16: Reduce::new::<rows::F16, V>(),
            bf16: Reduce::new::<rows::BF16, V>(),
            scale,
            quantize,
        }
    }

    /// The instruction set of this table.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Sums the contributions to one token: `dst = rows[0] + rows[1] + …`, in that order, in f32, rounded once to
    /// `dtype`.
    ///
    /// No row gives +0; a single row is copied bit by bit. Both reductions of combine are this one: the source's over
    /// the destination ranks (ascending), and the owner's over a token's expert-major rows (slot order). Never
    /// allocates.
    ///
    /// # Safety
    /// Each of `rows` is readable and `dst` writable for `dtype.row_bytes(hidden)` bytes, and no other thread writes
    /// the rows or touches `dst` during the call. A row is either disjoint from `dst` or starts exactly at it.
    ///
    /// # Panics
    /// When `dtype` is not a combine type.
    #[inline]
    pub unsafe fn reduce_rows(&self, dtype: DType, dst: *mut u8, rows: &[*const u8], hidden: usize, store: Store) {
        let reduce = match dtype {
            DType::F32 => &self.f32,
            DType::F16 => &self.f16,
            DType::BF16 => &self.bf16,
            _ => panic!("{dtype} is not a combine type"),
        };
        let bytes = dtype.row_bytes(hidden);
        let streaming = store == Store::Streaming && dst.addr().is_multiple_of(CACHE_LINE);
        let table = if streaming { &reduce.streaming } else { &reduce.cached };
        // SAFETY: the memory is the caller's promise; the instruction set was checked when this table was handed out,
        // and the alignment just now.
        unsafe {
            match rows.len() {
                0 => dst.write_bytes(0, bytes),
                n => table.get(n).unwrap_or(&table[rows::ANY])(dst, rows, bytes),
            }
        }
    }

    /// The scaling expert: `dst = c · x`, in f32, rounded once to `combine`.
    ///
    /// A scaled type is first multiplied by its block scale, which rounds too. Also with `c` = 1 this is arithmetic:
    /// a NaN comes out canonical. Never allocates.
    ///
    /// # Safety
    /// `row.data` is readable for `row.dtype.row_bytes(hidden)` bytes and `dst` writable for
    /// `combine.row_bytes(hidden)` bytes; they are disjoint; no other thread writes the one or touches the other
    /// during the call.
    ///
    /// # Panics
    /// When `combine` is not a combine type, or a row of a scaled type with elements has no scales.
    #[inline]
    pub unsafe fn scale_row(&self, dst: *mut u8, combine: DType, row: Row<'_>, hidden: usize, c: f32) {
        // SAFETY: the memory is the caller's promise; the instruction set was checked when this table was handed out.
        unsafe { (self.scale)(dst, combine, row, hidden, c) }
    }

    /// Quantises a bf16 row to `dtype`, with `scales.len()` block scales.
    ///
    /// For each block of `ceil(hidden / S)` elements, in f32: amax = the largest |x| that is not NaN, but at least
    /// [`LEAST_AMAX`](crate::number::LEAST_AMAX); scale = amax / largest; code = x · (largest / amax), rounded to nearest
    /// even, saturating, where `largest` is [`DType::largest`]. That is `per_token_cast_to_fp8` of DeepGEMM and DeepEP but
    /// for the bound of amax. A NaN stays one, and its block is as if it were not there. An infinity makes its block's scale
    /// infinite and itself NaN, and since 0 · ∞ is NaN all of the block when it is scaled back: as it does there, so that
    /// an overflow is seen. A block without elements has the scale of zeroes. Never allocates.
    ///
    /// ```
    /// use campanile_moe::{DType, arithmetic::Kernels, number};
    ///
    /// let row: Vec<u8> = [1.0, -2.0, 7.0].iter().flat_map(|x| number::f32_to_bf16(*x).to_le_bytes()).collect();
    /// let (mut codes, mut scales) = ([0; 3], [0.0]);
    /// // SAFETY: a row of three elements, and room for as many codes.
    /// unsafe { Kernels::get().quantize_row(codes.as_mut_ptr(), &mut scales, DType::F8E4M3, row.as_ptr(), 3) };
    /// assert_eq!(scales, [7.0 / 448.0]);
    /// assert_eq!(codes.map(|code| number::e4m3_to_f32(code) * scales[0]), [1.0, -2.0, 7.0]);
    /// ```
    ///
    /// # Safety
    /// `src` is readable for `hidden` bf16 elements, at any address, and `dst` writable for
    /// `dtype.row_bytes(hidden)` bytes; they are disjoint; no other thread writes the one or touches the other during
    /// the call.
    ///
    /// # Panics
    /// When `dtype` is not one that rows are quantised to ([`DType::is_quantized`]), or there are no scales.
    #[inline]
    pub unsafe fn quantize_row(&self, dst: *mut u8, scales: &mut [f32], dtype: DType, src: *const u8, hidden: usize) {
        assert!(!scales.is_empty(), "a row of {dtype} has at least one scale");
        // SAFETY: the memory is the caller's promise; the instruction set was checked when this table was handed out.
        unsafe { (self.quantize)(dst, scales, dtype, src, hidden) }
    }
}

/// The factor c of one token on one owner: the sum of `weight · expert_scale[expert]` over its slots there.
///
/// `topk_idx` holds one entry a slot, negative where the slot lives elsewhere; it indexes `expert_scale`. Sums and
/// products are taken in slot order in f32, from +0. Without weights (an empty slice) c is 1; without `expert_scale`
/// that factor is left out.
///
/// # Panics
/// When an index is past the end of `expert_scale`, or there are weights for fewer slots than indices.
pub fn coefficient(topk_idx: &[i32], topk_weights: &[f32], expert_scale: Option<&[f32]>) -> f32 {
    if topk_weights.is_empty() {
        return 1.0;
    }
    let mut sum = 0.0;
    for (slot, &expert) in topk_idx.iter().enumerate() {
        if expert >= 0 {
            let weight = topk_weights[slot];
            sum += expert_scale.map_or(weight, |scale| weight * scale[expert as usize]);
        }
    }
    sum
}
