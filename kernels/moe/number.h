// Conversions between f32 and the element types, with the bits of crates/moe's `number.rs`.
//
// Narrowing rounds to nearest, ties to even; subnormals are kept; too large becomes infinite, in FP8 the largest; a NaN
// comes out as the canonical one. In integers, so that no target's own conversion has a say, but where portable/ offers one with these
// bits. Compiled without contraction and without flushing to zero.
#ifndef CAMPANILE_MOE_NUMBER_H
#define CAMPANILE_MOE_NUMBER_H

#include "portable.h"

namespace campanile {

enum class Type : u32 { F32 = 0, F16 = 1, BF16 = 2, F8E4M3 = 3, F8E4M3FNUZ = 4, F4E2M1 = 5 };

CAMPANILE_DEVICE u32 bits_of(float value) { return __builtin_bit_cast(u32, value); }
CAMPANILE_DEVICE float float_of(u32 bits) { return __builtin_bit_cast(float, bits); }

CAMPANILE_DEVICE u32 canonical(float value) {
  u32 bits = bits_of(value);
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
}

// bf16 in the upper half of the word; the lower half is undefined.
CAMPANILE_DEVICE u32 round_bf16(float value) {
  u32 bits = canonical(value);
  return bits + 0x7fffu + (bits >> 16 & 1);
}

// f16 in the lower half of a word, whose upper half is ignored.
CAMPANILE_DEVICE float widen_f16(u32 word) {
  u32 magnitude = (word & 0x7fffu) << 13;
  // Read as f32 it is 2^112 too small; the product is exact, every f16 being a normal f32.
  u32 finite = bits_of(float_of(magnitude) * float_of((112u + 127u) << 23));
  u32 special = magnitude >= (0x7c00u << 13) ? 0x7f800000u : 0;
  return float_of((word & 0x8000u) << 16 | finite | special);
}

// F. Giesen, "float->half variants", float_to_half_fast3_rtne.
CAMPANILE_DEVICE u32 round_f16(float value) {
  u32 bits = bits_of(value), magnitude = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
  u32 subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  u32 normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  u32 finite = magnitude < 0x38800000u ? subnormal : normal;
  u32 number = sign | (magnitude >= 0x47800000u ? 0x7c00u : finite);
  return magnitude > 0x7f800000u ? 0x7e00u : number;
}

// The magnitude of a code of `mantissa` bits below the exponent, which is biased by `bias`.
CAMPANILE_DEVICE float widen_code(u32 magnitude, u32 mantissa, u32 bias) {
  const u32 exponent = magnitude >> mantissa, fraction = magnitude & ((1u << mantissa) - 1);
  // Subnormals count units in the last place of the least exponent.
  if (exponent == 0) return static_cast<float>(fraction) * float_of((128 - bias - mantissa) << 23);
  return float_of((exponent + 127 - bias) << 23 | fraction << (23 - mantissa));
}
CAMPANILE_DEVICE float with_sign(float magnitude, u32 sign) { return float_of(bits_of(magnitude) | sign << 31); }

CAMPANILE_DEVICE float widen_e4m3(u32 code) {
  if ((code & 0x7f) == 0x7f) return with_sign(float_of(0x7fc00000u), code >> 7);
  return with_sign(widen_code(code & 0x7f, 3, 7), code >> 7);
}
CAMPANILE_DEVICE float widen_e4m3fnuz(u32 code) {
  if (code == 0x80) return float_of(0x7fc00000u);
  return with_sign(widen_code(code & 0x7f, 3, 8), code >> 7);
}
// In the lower four bits of a word, whose others are ignored.
CAMPANILE_DEVICE float widen_e2m1(u32 code) { return with_sign(widen_code(code & 7, 1, 1), code >> 3 & 1); }

// The magnitude of a finite f32, by its bits, as such a code; what is more than the code `most` is that.
//
// Saturated first. Then added to a power of two whose unit in the last place is that of the code, and taken away again,
// which rounds; then of an exponent that makes subnormals of the code subnormals of f32. So there is nothing to choose
// between.
CAMPANILE_DEVICE u32 narrow_code(u32 magnitude, u32 most, u32 mantissa, u32 bias) {
  const u32 largest = ((most >> mantissa) + 127 - bias) << 23 | (most & ((1u << mantissa) - 1)) << (23 - mantissa);
  const u32 value = magnitude < largest ? magnitude : largest;
  const u32 exponent = value & 0x7f800000u, least = (128 - bias) << 23;
  const float rounder = float_of((exponent > least ? exponent : least) + ((23 - mantissa) << 23));
  const float rounded = (float_of(value) + rounder) - rounder;
  return bits_of(rounded * float_of(bias << 23)) >> (23 - mantissa);
}

// The types that rows are quantised to.
template <Type T>
struct Quantized;

template <>
struct Quantized<Type::F8E4M3> {
  static constexpr float LARGEST = 448.0f;
  CAMPANILE_MEMBER static u32 narrow(float value) {
    const u32 bits = bits_of(value), magnitude = bits & 0x7fffffffu;
    return magnitude > 0x7f800000u ? 0x7f : (bits >> 24 & 0x80) | narrow_code(magnitude, 0x7e, 3, 7);
  }
};

template <>
struct Quantized<Type::F8E4M3FNUZ> {
  static constexpr float LARGEST = 240.0f;
  CAMPANILE_MEMBER static u32 narrow(float value) {
    const u32 bits = bits_of(value), magnitude = bits & 0x7fffffffu, code = narrow_code(magnitude, 0x7f, 3, 8);
    // Zero has no sign: this has the bit of one only where the code is more than 0.
    const u32 has_sign = code + 0x7f;
    return magnitude >= 0x7f800000u ? 0x80 : (bits >> 24 & has_sign & 0x80) | code;
  }
};

// Four elements as codes, the first in the lowest byte.
template <Type T>
CAMPANILE_DEVICE u32 narrow_four(const float (&x)[4]) {
#if defined(CAMPANILE_NARROW_E4M3)
  if constexpr (T == Type::F8E4M3) return narrow_e4m3(x);
#endif
  u32 codes = 0;
  CAMPANILE_UNROLL
  for (u32 i = 0; i < 4; i++) codes |= Quantized<T>::narrow(x[i]) << (8 * i);
  return codes;
}

// Elements of a type in 16 bytes, to and from f32.
template <Type T>
struct Numbers;

template <>
struct Numbers<Type::F32> {
  static constexpr u32 COUNT = 4;
  CAMPANILE_MEMBER static void widen(Vec16 v, float (&x)[COUNT]) {
    x[0] = float_of(v.x), x[1] = float_of(v.y), x[2] = float_of(v.z), x[3] = float_of(v.w);
  }
  CAMPANILE_MEMBER static Vec16 narrow(const float (&x)[COUNT]) {
    return {canonical(x[0]), canonical(x[1]), canonical(x[2]), canonical(x[3])};
  }
};

#if !defined(CAMPANILE_NARROW_BF16)
CAMPANILE_DEVICE u32 narrow_bf16(float low, float high) {
  return round_bf16(low) >> 16 | (round_bf16(high) & 0xffff0000u);
}
#endif

template <>
struct Numbers<Type::BF16> {
  static constexpr u32 COUNT = 8;
  CAMPANILE_MEMBER static void widen(Vec16 v, float (&x)[COUNT]) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
    CAMPANILE_UNROLL
    for (int i = 0; i < 4; i++) x[2 * i] = float_of(words[i] << 16), x[2 * i + 1] = float_of(words[i] & 0xffff0000u);
  }
  CAMPANILE_MEMBER static Vec16 narrow(const float (&x)[COUNT]) {
    return {narrow_bf16(x[0], x[1]), narrow_bf16(x[2], x[3]), narrow_bf16(x[4], x[5]), narrow_bf16(x[6], x[7])};
  }
};

template <>
struct Numbers<Type::F16> {
  static constexpr u32 COUNT = 8;
  CAMPANILE_MEMBER static void widen(Vec16 v, float (&x)[COUNT]) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
    CAMPANILE_UNROLL
    for (int i = 0; i < 4; i++) x[2 * i] = widen_f16(words[i]), x[2 * i + 1] = widen_f16(words[i] >> 16);
  }
  CAMPANILE_MEMBER static Vec16 narrow(const float (&x)[COUNT]) {
    return {round_f16(x[0]) | round_f16(x[1]) << 16, round_f16(x[2]) | round_f16(x[3]) << 16,
            round_f16(x[4]) | round_f16(x[5]) << 16, round_f16(x[6]) | round_f16(x[7]) << 16};
  }
};

}  // namespace campanile

#endif
