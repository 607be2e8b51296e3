/* The cases broadcast and all_gather: sizes, contents and the length of a batch, the same for every side.
 *
 * A size is what ends up on every rank (the message; all blocks together). Calls run in batches without a barrier in
 * between; the root of a broadcast moves on by one with every call. */
#pragma once
#include <stddef.h>
#include <stdio.h>

enum { COLLECTIVE_SIZES = 8 };
static const size_t collective_bytes[COLLECTIVE_SIZES] = {
    (size_t)1 << 10,  (size_t)4 << 10, (size_t)16 << 10, (size_t)64 << 10,
    (size_t)256 << 10, (size_t)1 << 20, (size_t)4 << 20,  (size_t)16 << 20,
};

/* Rounds of calls, one for every root, that take about 20 ms. */
static inline long rounds_of_batch(double round_ns) {
  double rounds = 20e6 / (round_ns > 1 ? round_ns : 1);
  return rounds < 1 ? 1 : rounds > 5000 ? 5000 : (long)rounds;
}

/* The byte at `index` of what `rank` sends. */
static inline unsigned char collective_byte(size_t index, int rank) {
  return (unsigned char)((index % 251) ^ (size_t)(rank + 1));
}

static inline void collective_fill(unsigned char *bytes, size_t count, int rank) {
  for (size_t i = 0; i < count; i++)
    bytes[i] = collective_byte(i, rank);
}

/* Whether `bytes` are what `rank` sends. */
static inline int collective_right(const unsigned char *bytes, size_t count, int rank) {
  for (size_t i = 0; i < count; i++) {
    if (bytes[i] != collective_byte(i, rank)) {
      fprintf(stderr, "byte %zu of rank %d: got %#x\n", i, rank, bytes[i]);
      return 0;
    }
  }
  return 1;
}
