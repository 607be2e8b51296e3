/* bfloat16: the upper half of a float. */
#pragma once
#include <stdint.h>

typedef uint16_t bf16;

static inline float bf16_to_float(bf16 value) {
  union {
    uint32_t bits;
    float number;
  } u = {(uint32_t)value << 16};
  return u.number;
}

/* Nearest even; subnormals kept; a NaN becomes the canonical quiet NaN. */
static inline bf16 bf16_from_float(float number) {
  union {
    float number;
    uint32_t bits;
  } u = {number};
  if (number != number)
    return 0x7fc0;
  return (bf16)((u.bits + 0x7fff + ((u.bits >> 16) & 1)) >> 16);
}
