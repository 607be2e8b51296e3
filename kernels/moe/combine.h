// What the schedules of a combine by pull share: their argument, where contributions stand, and the end of the round.
#ifndef CAMPANILE_MOE_COMBINE_H
#define CAMPANILE_MOE_COMBINE_H

#include "moe/layout.h"
#include "portable.h"

namespace campanile {

struct CombineArguments {
  MoeCommon common;
  u8* out;  // [tokens] rows, at any alignment
  u64 out_stride;
  u64 row_bytes;
  u32* out_weights;  // [tokens][topk], or null
  const u32* tokens;  // those of the dispatch
  u32 phases;         // RECEIVE, or both
};

// Where the owner of a route left the result.
struct PulledRow {
  const MoeCommon& c;

  CAMPANILE_MEMBER const Vec16* operator()(u64 route) const {
    return reinterpret_cast<const Vec16*>(
        window(c, static_cast<u32>(route >> 32)) +
        row_at(c, c.outputs, c.output_stride, c.rank, static_cast<u32>(route)));
  }
};

// Where the owner of a route has its weights.
struct PulledWeights {
  const MoeCommon& c;

  CAMPANILE_MEMBER const u32* operator()(u64 route) const {
    return reinterpret_cast<const u32*>(window(c, static_cast<u32>(route >> 32)) +
                                        row_at(c, c.meta, c.meta_stride, c.rank, static_cast<u32>(route))) +
           1 + c.topk;
  }
};

// Publishes DONE_C and ends the round; by one thread. `active` are the first 64 ranks that are.
CAMPANILE_DEVICE void publish_done(const MoeCommon& c, u32 epoch, u64 active) {
  for (u32 owner = 0; owner < c.ranks; owner++)
    if (owner < 64 ? active >> owner & 1 : is_active(c, owner))
      store_relaxed<Scope::System>(word_of(c, owner, c.rank, Word::DoneC), tagged(epoch, 0));
  close_round(c, Ready::Pull);
}

}  // namespace campanile

#endif
