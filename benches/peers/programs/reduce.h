/* The sum of combine: bf16 rows, added in float in the order given, rounded once to bf16 (nearest even).
 *
 * ROUND_HARDWARE uses the AVX512-BF16 instruction as it is: subnormals are flushed to zero, a NaN keeps its payload.
 * ROUND_EXACT does what `campanile` promises: subnormals are kept, a NaN becomes the canonical one. Where AVX512-BF16
 * exists it uses the instruction too, and integer arithmetic for the rare blocks that hold such a value; bf16 and
 * float have the same exponents, so a sum that is a normal float is never rounded to something the instruction flushes.
 * On the values of the MoE case both give the same bits. */
#pragma once
#include "bf16.h"
#include "copy.h"
#include "moe.h"

enum rounding { ROUND_HARDWARE, ROUND_EXACT };

#if defined(__AVX512BF16__)
#define HAS_HARDWARE_ROUNDING 1
#else
#define HAS_HARDWARE_ROUNDING 0
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)

static inline __m512 widen16(const bf16 *from) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* The rounded value is in the upper half of each word; the lower half is rubbish. */
static inline __m512i round_in_place(__m512 number) {
  const __m512i half = _mm512_set1_epi32(0x7fff);
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i lowest_kept_bit = _mm512_set1_epi32(0x10000);
  const __m512i canonical_nan = _mm512_set1_epi32(0x7fc00000);
  __m512i bits = _mm512_castps_si512(number);
  __mmask16 odd = _mm512_test_epi32_mask(bits, lowest_kept_bit);
  __mmask16 nan = _mm512_cmp_ps_mask(number, number, _CMP_UNORD_Q);
  __m512i rounded = _mm512_add_epi32(bits, half);
  rounded = _mm512_mask_add_epi32(rounded, odd, rounded, one);
  return _mm512_mask_mov_epi32(rounded, nan, canonical_nan);
}

/* 32 floats to 32 bf16, in integer arithmetic. */
static inline __m512i narrow32_integer(__m512 low, __m512 high) {
  /* word i of the result = upper half of float i: words 1, 3, 5, ... of low, then of high */
  const __m512i upper_halves = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29,
                                                27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_permutex2var_epi16(round_in_place(low), upper_halves, round_in_place(high));
}

#if HAS_HARDWARE_ROUNDING

static inline __m512i narrow32_hardware(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* Whether the instruction would give other bits than the exact rounding: some value is a NaN or subnormal. */
static inline int needs_integer(__m512 low, __m512 high) {
  enum { QUIET_NAN = 0x01, SUBNORMAL = 0x20, SIGNALLING_NAN = 0x80 };
  __mmask16 a = _mm512_fpclass_ps_mask(low, QUIET_NAN | SUBNORMAL | SIGNALLING_NAN);
  __mmask16 b = _mm512_fpclass_ps_mask(high, QUIET_NAN | SUBNORMAL | SIGNALLING_NAN);
  return !_kortestz_mask16_u8(a, b);
}

static inline __m512i narrow32(__m512 low, __m512 high, enum rounding rounding) {
  if (rounding == ROUND_EXACT && __builtin_expect(needs_integer(low, high), 0))
    return narrow32_integer(low, high);
  return narrow32_hardware(low, high);
}

#else

static inline __m512i narrow32(__m512 low, __m512 high, enum rounding rounding) {
  (void)rounding;
  return narrow32_integer(low, high);
}

#endif

static inline __attribute__((always_inline)) void sum_rows_as(bf16 *out, const bf16 *const *row, int rows,
                                                              const enum rounding rounding, const enum copy_kind store) {
  for (int h = 0; h < HIDDEN; h += 64) {
    __m512 a = widen16(row[0] + h);
    __m512 b = widen16(row[0] + h + 16);
    __m512 c = widen16(row[0] + h + 32);
    __m512 d = widen16(row[0] + h + 48);
    for (int i = 1; i < rows; i++) {
      const bf16 *from = row[i] + h;
      a = _mm512_add_ps(a, widen16(from));
      b = _mm512_add_ps(b, widen16(from + 16));
      c = _mm512_add_ps(c, widen16(from + 32));
      d = _mm512_add_ps(d, widen16(from + 48));
    }
    __m512i first = narrow32(a, b, rounding);
    __m512i second = narrow32(c, d, rounding);
    if (store == COPY_STREAMING) {
      _mm512_stream_si512((void *)(out + h), first);
      _mm512_stream_si512((void *)(out + h + 32), second);
    } else {
      _mm512_storeu_si512(out + h, first);
      _mm512_storeu_si512(out + h + 32, second);
    }
  }
}

#else /* any CPU: the compiler vectorises the inner loops; streaming stores and hardware rounding fall away */

static inline void sum_rows_as(bf16 *out, const bf16 *const *row, int rows, enum rounding rounding,
                               enum copy_kind store) {
  (void)rounding;
  (void)store;
  for (int h = 0; h < HIDDEN; h += 64) {
    float sum[64];
    for (int j = 0; j < 64; j++)
      sum[j] = bf16_to_float(row[0][h + j]);
    for (int i = 1; i < rows; i++)
      for (int j = 0; j < 64; j++)
        sum[j] += bf16_to_float(row[i][h + j]);
    for (int j = 0; j < 64; j++)
      out[h + j] = bf16_from_float(sum[j]);
  }
}

#endif

/* At least one row; `out` 64-byte aligned. After streaming stores the caller fences once, before it tells anyone. */
static inline void sum_rows(bf16 *out, const bf16 *const *row, int rows, enum rounding rounding, enum copy_kind store) {
  if (rounding == ROUND_HARDWARE && store == COPY_STREAMING)
    sum_rows_as(out, row, rows, ROUND_HARDWARE, COPY_STREAMING);
  else if (rounding == ROUND_HARDWARE)
    sum_rows_as(out, row, rows, ROUND_HARDWARE, COPY_MEMCPY);
  else if (store == COPY_STREAMING)
    sum_rows_as(out, row, rows, ROUND_EXACT, COPY_STREAMING);
  else
    sum_rows_as(out, row, rows, ROUND_EXACT, COPY_MEMCPY);
}
