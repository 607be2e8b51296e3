/* The MoE case that all sides run: who sends which token where. Deterministic, and the same for every implementation.
 *
 * Every rank holds T tokens of HIDDEN bf16 values; each goes to TOPK distinct experts of EXPERTS, uniformly, with
 * positive weights that sum to 1. Expert e lives on rank e / ceil(EXPERTS / ranks). A token travels once to a rank
 * however many of its experts live there, with a `struct meta` beside it. */
#pragma once
#include "bf16.h"
#include <stddef.h>
#include <stdint.h>

enum { HIDDEN = 7168, TOPK = 8, EXPERTS = 256 };
#define ROW_BYTES ((size_t)HIDDEN * sizeof(bf16))

/* Travels with a row: for each of the token's slots the number of the expert on the target rank, or -1, and its weight. */
struct meta {
  int32_t expert[TOPK];
  float weight[TOPK];
};

static inline int experts_per_rank(int ranks) {
  return (EXPERTS + ranks - 1) / ranks;
}

/* splitmix64, https://prng.di.unimi.it/splitmix64.c (public domain). */
static inline uint64_t next_random(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/* Fills expert[tokens][TOPK] and weight[tokens][TOPK] for one source rank. */
static inline void make_routing(int rank, int tokens, int32_t *expert, float *weight) {
  uint64_t state = 0x1234 + 7919ull * (uint64_t)rank;
  for (int t = 0; t < tokens; t++) {
    int32_t *e = expert + t * TOPK;
    float *w = weight + t * TOPK;
    float sum = 0;
    for (int k = 0; k < TOPK; k++) {
      int taken;
      do {
        e[k] = (int32_t)(next_random(&state) % EXPERTS);
        taken = 0;
        for (int j = 0; j < k; j++)
          taken |= e[j] == e[k];
      } while (taken);
      w[k] = 0.25f + (float)(next_random(&state) >> 40) / (1 << 24);
      sum += w[k];
    }
    for (int k = 0; k < TOPK; k++)
      w[k] /= sum;
  }
}

/* Bit p: one of the token's experts lives on rank p. */
static inline uint64_t target_ranks(const int32_t *expert, int ranks) {
  int per_rank = experts_per_rank(ranks);
  uint64_t mask = 0;
  for (int k = 0; k < TOPK; k++)
    mask |= 1ull << (expert[k] / per_rank);
  return mask;
}

/* Layout: count[p] = rows this rank sends to p, ordinal[t * ranks + p] = the row's number among them, or -1. */
static inline void make_layout(const int32_t *expert, int tokens, int ranks, int *count, int32_t *ordinal) {
  for (int p = 0; p < ranks; p++)
    count[p] = 0;
  for (int t = 0; t < tokens; t++) {
    uint64_t mask = target_ranks(expert + t * TOPK, ranks);
    for (int p = 0; p < ranks; p++)
      ordinal[t * ranks + p] = (mask >> p & 1) ? count[p]++ : -1;
  }
}

static inline void make_meta(struct meta *meta, const int32_t *expert, const float *weight, int target, int ranks) {
  int per_rank = experts_per_rank(ranks);
  for (int k = 0; k < TOPK; k++) {
    int here = expert[k] / per_rank == target;
    meta->expert[k] = here ? expert[k] - target * per_rank : -1;
    meta->weight[k] = here ? weight[k] : 0;
  }
}

/* Small whole numbers, exact in bf16. */
static inline bf16 token_value(int rank, int token, int column) {
  uint32_t z = (uint32_t)(rank * 1000003 + token * 10007 + column) * 2654435761u;
  return bf16_from_float((float)((int)((z >> 24) & 127) - 64));
}

static inline void make_tokens(int rank, int tokens, bf16 *x) {
  for (int t = 0; t < tokens; t++)
    for (int h = 0; h < HIDDEN; h++)
      x[(size_t)t * HIDDEN + h] = token_value(rank, t, h);
}

/* Expert e multiplies by 1, 2, 3 or 4. Experts run only to verify, never while timed. */
static inline float expert_scale(int expert) {
  return 1.0f + (float)(expert & 3);
}

/* What a rank sends back for one row: its experts' weighted sum, rounded once. */
static inline void run_experts(bf16 *y, const bf16 *x, const struct meta *meta, int rank, int ranks) {
  float factor = 0;
  for (int k = 0; k < TOPK; k++)
    if (meta->expert[k] >= 0)
      factor += meta->weight[k] * expert_scale(rank * experts_per_rank(ranks) + meta->expert[k]);
  for (int h = 0; h < HIDDEN; h++)
    y[h] = bf16_from_float(factor * bf16_to_float(x[h]));
}
