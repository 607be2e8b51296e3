//! The scalar conversions against the `half` crate, the definitions of the FP8 and FP4 types, and each other.

use campanile_moe::{DType, number};
use half::{bf16, f16};

/// f32 bit patterns: every upper half, with lower halves around everything that rounding may look at.
fn patterns() -> impl Iterator<Item = u32> {
    let mut lower: Vec<u32> = (0..16).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]).collect();
    lower.extend([0x1800, 0x2fff, 0x3000, 0x3001, 0x7fff, 0xfffe, 0xffff]);
    lower.sort_unstable();
    lower.dedup();
    (0..=0xffff_u32).flat_map(move |upper| lower.clone().into_iter().map(move |lower| upper << 16 | lower))
}

/// The bits of `value`, quiet if it is NaN: `half` quiets some NaNs on the way to f32, which nobody here relies on.
fn quiet(value: f32) -> u32 {
    value.to_bits() | if value.is_nan() { 0x0040_0000 } else { 0 }
}

#[test]
fn all_16_bit_numbers_widen_as_in_half() {
    for bits in 0..=u16::MAX {
        assert_eq!(number::bf16_to_f32(bits).to_bits(), u32::from(bits) << 16);
        assert_eq!(quiet(number::bf16_to_f32(bits)), quiet(bf16::from_bits(bits).to_f32()), "bf16 {bits:#06x}");
        assert_eq!(quiet(number::f16_to_f32(bits)), quiet(f16::from_bits(bits).to_f32()), "f16 {bits:#06x}");
    }
}

#[test]
fn rounding_to_16_bits_is_that_of_half_with_a_canonical_nan() {
    let mut seen = [0_usize; 4];
    for bits in patterns() {
        let value = f32::from_bits(bits);
        let (b, h) = (number::f32_to_bf16(value), number::f32_to_f16(value));
        if value.is_nan() {
            assert_eq!((b, h), (0x7fc0, 0x7e00), "{bits:#010x}");
            seen[0] += 1;
        } else {
            assert_eq!(b, bf16::from_f32(value).to_bits(), "{bits:#010x} to bf16");
            assert_eq!(h, f16::from_f32(value).to_bits(), "{bits:#010x} to f16");
            seen[1] += usize::from(value.is_finite() && bf16::from_bits(b).is_infinite());
            seen[2] += usize::from(value.is_finite() && f16::from_bits(h).is_infinite());
            seen[3] += usize::from(value.is_subnormal() && b & 0x7fff != 0);
        }
    }
    assert!(seen.iter().all(|&seen| seen > 0), "NaN, overflows and subnormals were among the patterns: {seen:?}");
}

#[test]
fn what_is_a_number_of_the_type_survives() {
    for bits in 0..=u16::MAX {
        let (b, h) = (bf16::from_bits(bits), f16::from_bits(bits));
        let expected = (if b.is_nan() { 0x7fc0 } else { bits }, if h.is_nan() { 0x7e00 } else { bits });
        let got = (number::f32_to_bf16(number::bf16_to_f32(bits)), number::f32_to_f16(number::f16_to_f32(bits)));
        assert_eq!(got, expected, "{bits:#06x}");
    }
    for code in 0..=u8::MAX {
        let expected = if code & 0x7f == 0x7f { 0x7f } else { code };
        assert_eq!(number::f32_to_e4m3(number::e4m3_to_f32(code)), expected, "{code:#04x}");
        assert_eq!(number::f32_to_e4m3fnuz(number::e4m3fnuz_to_f32(code)), code, "{code:#04x}");
        assert_eq!(number::f32_to_e2m1(number::e2m1_to_f32(code)), code & 15, "{code:#04x}");
    }
}

#[test]
fn ties_go_to_even() {
    // Between 1 and the next bf16, 1 + 2^-7, and between that and 1 + 2^-6; a hair more goes up.
    assert_eq!(number::f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
    assert_eq!(number::f32_to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
    assert_eq!(number::f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
    // Half the least subnormal goes to zero with its sign, a hair more does not.
    assert_eq!(number::f32_to_bf16(f32::from_bits(0x8000_8000)), 0x8000);
    assert_eq!(number::f32_to_bf16(f32::from_bits(0x8000_8001)), 0x8001);
    assert_eq!(number::f32_to_f16(-(2.0_f32.powi(-25))), 0x8000);
    assert_eq!(number::f32_to_f16(3.0 * 2.0_f32.powi(-25)), 2);
    // The largest finite numbers, and the tie above them, which is infinite.
    assert_eq!(number::f32_to_f16(65519.996), 0x7bff);
    assert_eq!(number::f32_to_f16(65520.0), 0x7c00);
    assert_eq!(number::f32_to_bf16(f32::from_bits(0x7f7f_7fff)), 0x7f7f);
    assert_eq!(number::f32_to_bf16(f32::from_bits(0xff7f_8000)), 0xff80);
}

#[test]
fn canonical_touches_only_nan() {
    for bits in patterns() {
        let value = f32::from_bits(bits);
        let expected = if value.is_nan() { 0x7fc0_0000 } else { bits };
        assert_eq!(number::canonical(value).to_bits(), expected, "{bits:#010x}");
    }
}

/// The value of a code with `mantissa` bits below an exponent that is biased by `bias`, after the definition: if the
/// exponent is not 0, 2^(e − bias) · (1 + m / 2^mantissa), else 2^(1 − bias) · m / 2^mantissa.
fn defined(magnitude: u8, mantissa: u32, bias: i32) -> f64 {
    let (exponent, fraction) = (i32::from(magnitude >> mantissa), f64::from(magnitude & ((1 << mantissa) - 1)));
    let fraction = fraction / f64::from(1 << mantissa);
    if exponent == 0 { fraction * 2_f64.powi(1 - bias) } else { (1.0 + fraction) * 2_f64.powi(exponent - bias) }
}

fn signed(negative: bool, magnitude: f64) -> f64 {
    if negative { -magnitude } else { magnitude }
}

/// OCP OFP8, table 1: bias 7, no infinity, S.1111.111 is NaN.
fn e4m3(code: u8) -> f64 {
    let magnitude = if code & 0x7f == 0x7f { f64::NAN } else { defined(code & 0x7f, 3, 7) };
    signed(code & 0x80 != 0, magnitude)
}

/// arXiv 2206.02915: bias 8, no infinity, 1.0000.000 is NaN.
fn e4m3fnuz(code: u8) -> f64 {
    if code == 0x80 { f64::NAN } else { signed(code & 0x80 != 0, defined(code & 0x7f, 3, 8)) }
}

/// OCP MX 1.0, table 5: bias 1, neither infinity nor NaN.
fn e2m1(code: u8) -> f64 {
    signed(code & 8 != 0, defined(code & 7, 1, 1))
}

/// A type of at most eight bits: its definition and what is under test.
struct Small {
    dtype: DType,
    defined: fn(u8) -> f64,
    widen: fn(u8) -> f32,
    narrow: fn(f32) -> u8,
    sign: u8,
    /// The code of the largest magnitude.
    most: u8,
    /// What infinity, −infinity and NaN become.
    special: [u8; 3],
    /// Whether zero has a sign.
    negative_zero: bool,
}

const SMALL: [Small; 3] = [
    Small {
        dtype: DType::F8E4M3,
        defined: e4m3,
        widen: number::e4m3_to_f32,
        narrow: number::f32_to_e4m3,
        sign: 0x80,
        most: 0x7e,
        special: [0x7e, 0xfe, 0x7f],
        negative_zero: true,
    },
    Small {
        dtype: DType::F8E4M3FNUZ,
        defined: e4m3fnuz,
        widen: number::e4m3fnuz_to_f32,
        narrow: number::f32_to_e4m3fnuz,
        sign: 0x80,
        most: 0x7f,
        special: [0x80; 3],
        negative_zero: false,
    },
    Small {
        dtype: DType::F4E2M1,
        defined: e2m1,
        widen: number::e2m1_to_f32,
        narrow: number::f32_to_e2m1,
        sign: 8,
        most: 7,
        special: [7, 15, 7],
        negative_zero: true,
    },
];

#[test]
fn small_types_are_decoded_by_their_definition() {
    for Small { dtype, defined, widen, most, .. } in SMALL {
        for code in 0..=u8::MAX {
            // Of a byte that holds two, one is asked for.
            let expected = defined(if dtype == DType::F4E2M1 { code & 15 } else { code });
            let got = widen(code);
            assert_eq!(got.is_nan(), expected.is_nan(), "{dtype} {code:#04x}");
            if !got.is_nan() {
                assert_eq!(f64::from(got).to_bits(), expected.to_bits(), "{dtype} {code:#04x}");
            }
        }
        assert_eq!(dtype.largest(), widen(most), "{dtype}");
    }
    assert_eq!([0x7e, 0x08, 0x01].map(number::e4m3_to_f32), [448.0, 2_f32.powi(-6), 2_f32.powi(-9)]);
    assert_eq!([0x7f, 0x08, 0x01].map(number::e4m3fnuz_to_f32), [240.0, 2_f32.powi(-7), 2_f32.powi(-10)]);
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(number::e2m1_to_f32), [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
    // The only NaN of FNUZ is the canonical one.
    assert_eq!(number::e4m3fnuz_to_f32(0x80).to_bits(), number::F32_NAN);
}

#[test]
fn small_types_are_rounded_to_the_nearest_even_code_and_saturate() {
    for Small { dtype, defined, narrow, sign, most, special, negative_zero, .. } in SMALL {
        // The finite magnitudes ascend with the code, so the nearest is one of two neighbours.
        let magnitudes: Vec<f64> = (0..=most).map(defined).collect();
        for bits in patterns() {
            let value = f32::from_bits(bits);
            let got = narrow(value);
            if !value.is_finite() {
                let expected = special[if value.is_nan() { 2 } else { usize::from(value < 0.0) }];
                assert_eq!(got, expected, "{dtype} of {value}");
                continue;
            }
            let magnitude = f64::from(value).abs();
            let above = magnitudes.partition_point(|&other| other < magnitude);
            let expected = if above == 0 {
                0
            } else if above == magnitudes.len() {
                usize::from(most)
            } else {
                let (down, up) = (magnitude - magnitudes[above - 1], magnitudes[above] - magnitude);
                if up < down || (up == down && above % 2 == 0) { above } else { above - 1 }
            };
            let signed = value.is_sign_negative() && (expected > 0 || negative_zero);
            assert_eq!(got, expected as u8 | if signed { sign } else { 0 }, "{dtype} of {bits:#010x}");
        }
    }
}

#[test]
fn four_bit_elements_share_bytes_and_rows_do_not() {
    let mut row = [0xee; 3];
    for (index, value) in [1.0, -0.5, 6.0].into_iter().enumerate() {
        number::write(DType::F4E2M1, &mut row, index, value);
    }
    // The first in the lower half; what is behind an odd number stays as it was.
    assert_eq!(row, [0x92, 0xe7, 0xee]);
    assert_eq!([0, 1, 2].map(|index| number::read(DType::F4E2M1, &row, index)), [1.0, -0.5, 6.0]);
    assert_eq!([0, 1, 2, 7, 8].map(|hidden| DType::F4E2M1.row_bytes(hidden)), [0, 1, 1, 4, 4]);
}

#[test]
fn names_are_accepted_as_printed() {
    for dtype in DType::ALL {
        assert_eq!(DType::parse(&dtype.to_string()), Some(dtype));
        assert_eq!(dtype.default_scales(0) + dtype.default_scales(129) > 0, dtype.is_scaled(), "{dtype}");
    }
    assert_eq!(DType::parse("f8"), None);
}

#[test]
fn elements_are_little_endian_and_in_order() {
    let mut row = [0; 8];
    number::write(DType::F32, &mut row, 1, 1.5);
    assert_eq!(row, [0, 0, 0, 0, 0, 0, 0xc0, 0x3f]);
    number::write(DType::BF16, &mut row, 1, -2.0);
    assert_eq!(row, [0, 0, 0, 0xc0, 0, 0, 0xc0, 0x3f]);
    number::write(DType::F16, &mut row, 3, 1.0);
    number::write(DType::F8E4M3, &mut row, 4, 448.0);
    assert_eq!(row, [0, 0, 0, 0xc0, 0x7e, 0, 0, 0x3c]);
    for (dtype, index, value) in
        [(DType::BF16, 1, -2.0), (DType::F16, 3, 1.0), (DType::F8E4M3, 4, 448.0), (DType::F32, 0, -2.0)]
    {
        assert_eq!(number::read(dtype, &row, index), value, "{dtype}");
    }
}
