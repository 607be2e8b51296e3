// MoE release: ends a round without results, so that the credits flow. One block.
#include "moe/layout.h"
#include "portable.h"

using namespace campanile;

struct ReleaseArguments {
  MoeCommon common;
};

CAMPANILE_KERNEL(moe_release, 512, ReleaseArguments, a) {
  CAMPANILE_SHARED u32 stop;
  const MoeCommon& c = a.common;
  const u32 epoch = load(&c.state->epoch);
  if (thread_index() == 0) {
    stop = has_failed(c);
    if (!stop && load(&c.state->open) == 0) {
      fail(c, Failure::Misuse, Phase::Release, c.rank, Word::ReadyC, 1, 0);
      stop = 1;
    }
  }
  block_barrier();
  if (stop) return;
  for (u32 peer = thread_index(); peer < c.ranks; peer += block_threads()) {
    fence_release_window();
    store_relaxed<Scope::System>(word_of(c, peer, c.rank, Word::ReadyC),
                                 tagged(epoch, static_cast<u32>(Ready::Released)));
    store_relaxed<Scope::System>(word_of(c, peer, c.rank, Word::DoneC), tagged(epoch, 0));
  }
  close_round(c, Ready::Released, thread_index(), block_threads());
}
