//! Scalar conversions between f32 and the element types.
//!
//! Every conversion to a narrower type rounds to nearest, ties to even; subnormals are exact on both sides (nothing
//! is flushed to zero); a value too large for f16 or bf16 becomes infinite. A NaN that leaves an encoder is the
//! canonical quiet NaN of the target type: encoders stand at the end of arithmetic, and a NaN made by arithmetic has
//! one spelling in this crate. Bytes that only travel never pass through here.
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
/// The largest finite E4M3 value.
pub const E4M3_MAX: f32 = 448.0;

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

/// All 256 values of OCP FP8 E4M3: bias 7, no infinities, NaN only at `0x7f` and `0xff`.
pub const E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = ((code >> 3 & 15) as u32, (code & 7) as f32);
        let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
        table[code] = if code & 0x7f == E4M3_NAN as usize {
            f32::from_bits(F32_NAN | ((code & 0x80) as u32) << 24)
        } else if exponent == 0 {
            sign * mantissa * f32::from_bits((127 - 9) << 23)
        } else {
            sign * (8.0 + mantissa) * f32::from_bits((exponent + 127 - 10) << 23)
        };
        code += 1;
    }
    table
};

/// OCP FP8 E4M3 to f32: exact.
#[inline(always)]
pub const fn e4m3_to_f32(code: u8) -> f32 {
    E4M3[code as usize]
}

/// f32 to OCP FP8 E4M3, saturating to ±448 (also from infinity), as the OCP OFP8 specification recommends.
///
/// The engine moves fp8 but never makes it; this is for test data and callers that quantise.
#[inline(always)]
pub const fn f32_to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = (bits >> 24 & 0x80) as u8;
    let code = if magnitude > 0x7f80_0000 {
        return E4M3_NAN;
    } else if magnitude < 0x3c80_0000 {
        // Below 2^-6 the unit in the last place is 2^-9, that of f32 numbers in [2^14, 2^15).
        (f32::from_bits(magnitude) + 16384.0).to_bits() - 0x4680_0000
    } else {
        (magnitude - (120 << 23) + 0x7_ffff + (magnitude >> 20 & 1)) >> 20
    };
    sign | if code > 0x7e { 0x7e } else { code as u8 }
}

/// Element `index` of a row of `dtype` as f32, without its block scale.
///
/// # Panics
/// When the row has no such element.
#[inline]
pub fn read(dtype: DType, row: &[u8], index: usize) -> f32 {
    let at = index * dtype.bytes();
    match dtype {
        DType::F32 => f32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]),
        DType::F16 => f16_to_f32(u16::from_le_bytes([row[at], row[at + 1]])),
        DType::BF16 => bf16_to_f32(u16::from_le_bytes([row[at], row[at + 1]])),
        DType::F8E4M3 => e4m3_to_f32(row[at]),
    }
}

/// Rounds `value` to `dtype` and makes it element `index` of the row.
///
/// # Panics
/// When the row has no such element.
#[inline]
pub fn write(dtype: DType, row: &mut [u8], index: usize, value: f32) {
    let at = index * dtype.bytes();
    match dtype {
        DType::F32 => row[at..at + 4].copy_from_slice(&canonical(value).to_le_bytes()),
        DType::F16 => row[at..at + 2].copy_from_slice(&f32_to_f16(value).to_le_bytes()),
        DType::BF16 => row[at..at + 2].copy_from_slice(&f32_to_bf16(value).to_le_bytes()),
        DType::F8E4M3 => row[at] = f32_to_e4m3(value),
    }
}
