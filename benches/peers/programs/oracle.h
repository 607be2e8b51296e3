/* Checks every combined element, bit for bit, against a scalar model that shares only the routing and the inputs with
 * the code under test: per target rank, factor in slot order, product rounded to bf16; ranks ascending, summed in
 * float, rounded once. Compile with -ffp-contract=off, or the model and the code may round differently. */
#pragma once
#include "moe.h"
#include <stdio.h>

/* Number of wrong elements; the first three are printed. */
static inline long count_wrong(int rank, int ranks, int tokens, const int32_t *expert, const float *weight,
                               const bf16 *combined) {
  int per_rank = experts_per_rank(ranks);
  long wrong = 0;
  for (int t = 0; t < tokens; t++) {
    float factor[64] = {0};
    uint64_t mask = target_ranks(expert + t * TOPK, ranks);
    for (int k = 0; k < TOPK; k++) {
      int e = expert[t * TOPK + k];
      factor[e / per_rank] += weight[t * TOPK + k] * expert_scale(e);
    }
    for (int h = 0; h < HIDDEN; h++) {
      float x = bf16_to_float(token_value(rank, t, h));
      float sum = 0;
      for (int p = 0; p < ranks; p++)
        if (mask >> p & 1)
          sum += bf16_to_float(bf16_from_float(factor[p] * x));
      float want = bf16_to_float(bf16_from_float(sum));
      float got = bf16_to_float(combined[(size_t)t * HIDDEN + h]);
      if (got == want)
        continue;
      if (wrong++ < 3)
        fprintf(stderr, "rank %d token %d column %d: got %.9g, want %.9g\n", rank, t, h, got, want);
    }
  }
  return wrong;
}
