// MoE release: READY_C and DONE_C without results, so that the credits flow; or READY_C alone, which is the send phase of
// a combine by pull: the results that this rank's experts wrote stand, by the order of the stream. One block.
#include "moe/layout.h"
#include "portable.h"

using namespace campanile;

struct ReleaseArguments {
  MoeCommon common;
  u32 ready;  // what READY_C counts: Pull gives results back, Released ends the round
};

CAMPANILE_KERNEL(moe_release, 512, ReleaseArguments, a) {
  CAMPANILE_SHARED u32 stop;
  const MoeCommon& c = a.common;
  const u32 epoch = load(&c.state->epoch), stage = load(&c.state->stage);
  const bool ends = a.ready == static_cast<u32>(Ready::Released);
  if (thread_index() == 0) {
    stop = has_failed(c);
    if (!stop && stage != static_cast<u32>(Stage::Dispatched)) {
      fail(c, Failure::Misuse, ends ? Phase::Release : Phase::CombineSend, c.rank, Word::ReadyC, c.capacity, load(&c.state->tokens));
      stop = 1;
    }
  }
  block_barrier();
  if (stop) return;
  for (u32 peer = thread_index(); peer < c.ranks; peer += block_threads()) {
    if (!is_active(c, peer)) continue;
    fence_release_window();
    store_relaxed<Scope::System>(word_of(c, peer, c.rank, Word::ReadyC), tagged(epoch, a.ready));
    if (ends) store_relaxed<Scope::System>(word_of(c, peer, c.rank, Word::DoneC), tagged(epoch, 0));
  }
  if (thread_index() != 0) return;
  if (ends)
    close_round(c, Ready::Released);
  else
    store(&c.state->stage, static_cast<u32>(Stage::CombineSent));
}
