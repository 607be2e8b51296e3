// The weights that come back to a source.
#ifndef CAMPANILE_MOE_WEIGHTS_H
#define CAMPANILE_MOE_WEIGHTS_H

#include "moe/layout.h"
#include "moe/sum.h"
#include "portable.h"

namespace campanile {

// A wave: the weight of each slot of a token that was valid, to `out`. It lives at one owner and is 0 at all others, so
// joining the bits keeps every bit of it, and nothing has to be known before all of them are loaded: four owners at a
// time. `weights_of` says where those of a route are; the lanes hold the first of the `routes`.
template <class WeightsOf>
CAMPANILE_DEVICE void join_weights(const MoeCommon& c, u32* out, const u64* routes, u64 mine,
                                   const WeightsOf& weights_of) {
  const u32 count = count_listed(routes, c.route_slots, mine);
  for (u32 first = 0; first < c.topk; first += WAVE) {
    const u32 slot = first + lane();
    u32 weight = 0;
    for (u32 i = 0; i < count; i += 4) {
      u32 found[4] = {};
      CAMPANILE_UNROLL
      for (u32 n = 0; n < 4; n++) {
        const u64 held = wave_shuffle(mine, i + n);
        if (i + n >= count || slot >= c.topk) continue;
        found[n] = load_relaxed<Scope::System>(weights_of(i + n < WAVE ? held : load(routes + i + n)) + slot);
      }
      weight |= found[0] | found[1] | found[2] | found[3];
    }
    if (slot < c.topk) store(out + slot, weight);
  }
}

}  // namespace campanile

#endif
