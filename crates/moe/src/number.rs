//! Scalar conversions between f32 and the element types.
//!
//! Every conversion to a narrower type rounds to nearest, ties to even; subnormals are exact on both sides (nothing
//! is flushed to zero); a value too large for f16 or bf16 becomes infinite, one too large for the FP8 and FP4 types the
//! largest that they have. A NaN that leaves an encoder is the canonical quiet NaN of the target type: encoders stand at
//! the end of arithmetic, and a NaN made by arithmetic has one spelling in this crate. Bytes that only travel never pass
//! through here.
//!
//! What becomes of infinities and NaN in the small types is ONNX's saturating Cast, which is that of NVIDIA's and AMD's
//! conversions: E4M3 infinity → ±448, NaN → NaN; FNUZ infinity and NaN → NaN; E2M1, which has neither, infinity → ±6,
//! NaN → 6. Sources: <https://onnx.ai/onnx/technical/float8.html>, <https://onnx.ai/onnx/technical/float4.html>.
//!
//! The functions are branch-free where that lets a loop over them become vector code. They assume the default
//! floating-point environment, as all Rust code does.

use crate::DType;

/// The canonical quiet NaN of f32.
pub const F32_NAN: u32 = 0x7fc0_0000;
/// The canonical quiet NaN of bf16.
pub const BF16_NAN: u16 = 0x7fc0;
/// The canonical quiet NaN of f16.
pub const F16_NAN: u16 = 0x7e00;
/// The NaN of E4M3 with a clear sign; its only other NaN is `0xff`.
pub const E4M3_NAN: u8 = 0x7f;
/// The NaN of E4M3 FNUZ, in the place of −0.
pub const E4M3FNUZ_NAN: u8 = 0x80;

/// The least that a block's largest magnitude counts as when it is quantised: so its scale and the inverse of that are
/// normal numbers, and a block of zeroes is coded as zeroes. The eps of vLLM's and SGLang's `per_token_group_quant_fp8`;
/// DeepEP takes 1e-4, which costs rows of small numbers their accuracy.
pub const LEAST_AMAX: f32 = 1e-10;

/// `value` itself, or the canonical NaN where `value` is any NaN.
///
/// Works on the bits, so that no optimiser may treat it as the identity.
#[inline(always)]
pub const fn canonical(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { F32_NAN } else { bits })
}

/// bf16 to f32: exact; the payload of a NaN is kept.
#[inline(always)]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// f32 to bf16.
#[inline(always)]
pub const fn f32_to_bf16(value: f32) -> u16 {
    (round_to_bf16(value) >> 16) as u16
}

/// f32 to bf16, in the upper half of the word; the lower half is left undefined.
///
/// Adding half a unit in the last place, less one where the kept part is even, carries into the kept part exactly
/// when nearest-even rounds up, across binades and into infinity alike.
#[inline(always)]
pub(crate) const fn round_to_bf16(value: f32) -> u32 {
    let bits = canonical(value).to_bits();
    bits + 0x7fff + (bits >> 16 & 1)
}

/// f16 to f32: exact; the payload of a NaN is kept.
#[inline(always)]
pub const fn f16_to_f32(bits: u16) -> f32 {
    widen_f16(bits as u32)
}

/// f16 in the lower half of a word, whose upper half is ignored, to f32.
#[inline(always)]
pub(crate) const fn widen_f16(word: u32) -> f32 {
    let magnitude = (word & 0x7fff) << 13;
    // Read as f32, the shifted magnitude is 2^112 too small: the difference of the biases, 127 − 15. The product is
    // exact for subnormals too, since every f16 is a normal f32.
    let finite = (f32::from_bits(magnitude) * f32::from_bits((112 + 127) << 23)).to_bits();
    let special = if magnitude >= 0x7c00 << 13 { 0x7f80_0000 } else { 0 };
    f32::from_bits((word & 0x8000) << 16 | finite | special)
}

/// f32 to f16.
#[inline(always)]
pub const fn f32_to_f16(value: f32) -> u16 {
    round_to_f16(value) as u16
}

/// f32 to f16, in a word whose upper half is zero.
///
/// Source of the method: F. Giesen, "float->half variants", `float_to_half_fast3_rtne`.
#[inline(always)]
pub(crate) const fn round_to_f16(value: f32) -> u32 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = bits >> 16 & 0x8000;
    // Below 2^-14 the unit in the last place is 2^-24, that of f32 numbers in [0.5, 1): adding 0.5 rounds there.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    // Otherwise change the bias and round 13 bits away as in bf16; 65520 and more carries into infinity.
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    let finite = select(magnitude < 0x3880_0000, subnormal, normal);
    let number = sign | select(magnitude >= 0x4780_0000, 0x7c00, finite);
    select(magnitude > 0x7f80_0000, F16_NAN as u32, number)
}

/// `yes` or `no`, by a mask: the compiler's vector code comes and goes with the way this is written.
#[inline(always)]
const fn select(condition: bool, yes: u32, no: u32) -> u32 {
    let mask = (condition as u32).wrapping_neg();
    yes & mask | no & !mask
}

/// The magnitude of a code of `mantissa` bits below the exponent, which is biased by `bias`: exact.
const fn widen_code(magnitude: u32, mantissa: u32, bias: u32) -> f32 {
    let (exponent, fraction) = (magnitude >> mantissa, (magnitude & ((1 << mantissa) - 1)) as f32);
    // Units in the last place; those of subnormals are those of the least exponent.
    let (units, exponent) = if exponent == 0 { (fraction, 1) } else { (fraction + (1 << mantissa) as f32, exponent) };
    units * f32::from_bits((127 + exponent - bias - mantissa) << 23)
}

/// The magnitude of an f32, by its bits, as such a code; anything above the largest where it is too large.
///
/// The method of [`round_to_f16`] for other widths: in the subnormal range an addition rounds at the unit in the last
/// place, elsewhere the bias is changed and the rest rounded away.
#[inline(always)]
const fn round_to_code(magnitude: u32, mantissa: u32, bias: u32) -> u32 {
    let shift = 23 - mantissa;
    // The power of two whose unit in the last place, as an f32, is the least subnormal.
    let rounder = (127 + 24 - bias - mantissa) << 23;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(rounder)).to_bits().wrapping_sub(rounder);
    let half = (1 << (shift - 1)) - 1 + (magnitude >> shift & 1);
    let normal = magnitude.wrapping_sub((127 - bias) << 23).wrapping_add(half) >> shift;
    select(magnitude < (128 - bias) << 23, subnormal, normal)
}

#[inline(always)]
const fn at_most(value: u32, most: u32) -> u32 {
    select(value > most, most, value)
}

/// All 256 values of OCP FP8 E4M3: bias 7, no infinities, NaN only at `0x7f` and `0xff`.
pub const E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let magnitude =
            if code & 0x7f == E4M3_NAN as usize { F32_NAN } else { widen_code((code & 0x7f) as u32, 3, 7).to_bits() };
        table[code] = f32::from_bits(magnitude | ((code & 0x80) as u32) << 24);
        code += 1;
    }
    table
};

/// OCP FP8 E4M3 to f32: exact.
#[inline(always)]
pub const fn e4m3_to_f32(code: u8) -> f32 {
    E4M3[code as usize]
}

/// f32 to OCP FP8 E4M3, saturating to ±448, also from infinity.
#[inline(always)]
pub const fn f32_to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let number = bits >> 24 & 0x80 | at_most(round_to_code(magnitude, 3, 7), 0x7e);
    select(magnitude > 0x7f80_0000, E4M3_NAN as u32, number) as u8
}

/// All 256 values of FP8 E4M3 FNUZ: bias 8, no infinities, one zero, NaN only at `0x80`.
pub const E4M3FNUZ: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let magnitude = widen_code((code & 0x7f) as u32, 3, 8).to_bits();
        table[code] = f32::from_bits(magnitude | ((code & 0x80) as u32) << 24);
        code += 1;
    }
    table[E4M3FNUZ_NAN as usize] = f32::from_bits(F32_NAN);
    table
};

/// FP8 E4M3 FNUZ to f32: exact.
#[inline(always)]
pub const fn e4m3fnuz_to_f32(code: u8) -> f32 {
    E4M3FNUZ[code as usize]
}

/// f32 to FP8 E4M3 FNUZ, saturating to ±240. Infinity becomes NaN; −0, and what rounds to it, the only zero.
#[inline(always)]
pub const fn f32_to_e4m3fnuz(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let code = at_most(round_to_code(magnitude, 3, 8), 0x7f);
    let number = select(code == 0, 0, bits >> 24 & 0x80) | code;
    select(magnitude >= 0x7f80_0000, E4M3FNUZ_NAN as u32, number) as u8
}

/// All 16 values of FP4 E2M1: ±0, 0.5, 1, 1.5, 2, 3, 4, 6.
pub const E2M1: [f32; 16] = {
    let mut table = [0.0; 16];
    let mut code = 0;
    while code < 16 {
        let magnitude = widen_code((code & 7) as u32, 1, 1).to_bits();
        table[code] = f32::from_bits(magnitude | ((code & 8) as u32) << 28);
        code += 1;
    }
    table
};

/// FP4 E2M1 in the lower four bits, whose upper ones are ignored, to f32: exact.
#[inline(always)]
pub const fn e2m1_to_f32(code: u8) -> f32 {
    E2M1[(code & 15) as usize]
}

/// f32 to FP4 E2M1 in the lower four bits, saturating to ±6, also from infinity. NaN becomes 6.
#[inline(always)]
pub const fn f32_to_e2m1(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let number = bits >> 28 & 8 | at_most(round_to_code(magnitude, 1, 1), 7);
    select(magnitude > 0x7f80_0000, 7, number) as u8
}

/// Element `index` of a row of `dtype` as f32, without its block scale.
///
/// # Panics
/// When the row has no such element.
#[inline]
pub fn read(dtype: DType, row: &[u8], index: usize) -> f32 {
    let at = index * dtype.bits() / 8;
    match dtype {
        DType::F32 => f32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]),
        DType::F16 => f16_to_f32(u16::from_le_bytes([row[at], row[at + 1]])),
        DType::BF16 => bf16_to_f32(u16::from_le_bytes([row[at], row[at + 1]])),
        DType::F8E4M3 => e4m3_to_f32(row[at]),
        DType::F8E4M3FNUZ => e4m3fnuz_to_f32(row[at]),
        DType::F4E2M1 => e2m1_to_f32(row[at] >> (index % 2 * 4)),
    }
}

/// Rounds `value` to `dtype` and makes it element `index` of the row; its neighbours stay.
///
/// # Panics
/// When the row has no such element.
#[inline]
pub fn write(dtype: DType, row: &mut [u8], index: usize, value: f32) {
    let at = index * dtype.bits() / 8;
    match dtype {
        DType::F32 => row[at..at + 4].copy_from_slice(&canonical(value).to_le_bytes()),
        DType::F16 => row[at..at + 2].copy_from_slice(&f32_to_f16(value).to_le_bytes()),
        DType::BF16 => row[at..at + 2].copy_from_slice(&f32_to_bf16(value).to_le_bytes()),
        DType::F8E4M3 => row[at] = f32_to_e4m3(value),
        DType::F8E4M3FNUZ => row[at] = f32_to_e4m3fnuz(value),
        DType::F4E2M1 => {
            let shift = index % 2 * 4;
            row[at] = row[at] & !(15 << shift) | f32_to_e2m1(value) << shift;
        }
    }
}
