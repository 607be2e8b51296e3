// Conversions between f32 and the element types, with the bits of crates/moe's `number.rs`.
//
// Narrowing rounds to nearest, ties to even; subnormals are kept; too large becomes infinite; a NaN comes out as the
// canonical one. In integers, so that no target's own conversion has a say, but where portable/ offers one with these
// bits. Compiled without contraction and without flushing to zero.
#ifndef CAMPANILE_MOE_NUMBER_H
#define CAMPANILE_MOE_NUMBER_H

#include "portable.h"

namespace campanile {

enum class Type : u32 { F32 = 0, F16 = 1, BF16 = 2, F8E4M3 = 3 };

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

CAMPANILE_DEVICE float widen_e4m3(u32 code) {
  u32 sign = (code & 0x80u) << 24, exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return float_of(0x7fc00000u | sign);
  // Subnormals count units of 2^-9.
  float magnitude = exponent == 0 ? static_cast<float>(mantissa) * float_of((127u - 9u) << 23)
                                  : float_of((exponent + 120) << 23 | mantissa << 20);
  return float_of(bits_of(magnitude) | sign);
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
