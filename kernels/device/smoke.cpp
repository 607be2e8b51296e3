// The smallest kernels that touch everything of campanile.h.
#include "campanile.h"

using namespace campanile;

// Every rank puts `bytes` from `source` into element `rank` of the region at every other rank, with a signal in its own
// slot, then waits for theirs and copies what came into `target`, by source. `apart` sends bytes and signal apart.
struct ExchangeArguments {
  CommunicatorView comm;
  RegionView region;  // [ranks]
  const u8* source;
  u8* target;  // [ranks] as the region
  u64 bytes, value;
  u32 apart;
};

template <class Group>
CAMPANILE_DEVICE void exchange(const ExchangeArguments& a, Group group) {
  const CommunicatorView& c = a.comm;
  if (has_failed(c)) return;
  const u64 offset = offset_of(a.region, c.rank);
  for (u32 step = 0; step < c.ranks; step++) {
    const u32 peer = (c.rank + step) % c.ranks;
    if (a.apart) {
      put(c, group, peer, offset, a.source, a.bytes);
      signal(c, group, peer, c.rank, a.value);
    } else {
      put_signal(c, group, peer, offset, a.source, a.bytes, c.rank, a.value);
    }
  }
  for (u32 source = 0; source < c.ranks; source++) {
    if (wait(c, group, source, source, a.value, 0) != Outcome::Done) return;
    const Vec16* from = at<Vec16>(c, c.rank, a.region, source);
    Vec16* to = reinterpret_cast<Vec16*>(a.target + a.region.stride * source);
    CAMPANILE_NO_UNROLL
    for (u64 i = group.index(); i < a.region.stride / 16; i += group.count()) store16(to + i, load16_window(from + i));
  }
}

// One block.
CAMPANILE_KERNEL(device_exchange_thread, 512, ExchangeArguments, a) {
  if (thread_index() == 0) exchange(a, Thread());
}
CAMPANILE_KERNEL(device_exchange_wave, 512, ExchangeArguments, a) {
  if (wave_index() == 0) exchange(a, Wave());
}
CAMPANILE_KERNEL(device_exchange_block, 512, ExchangeArguments, a) { exchange(a, Block()); }

// `rounds` times: each block of each rank writes the round into its cell at every rank, all meet, each block reads all
// cells of its rank; counts what it finds wrong.
struct MeetArguments {
  CommunicatorView comm;
  BarrierView barrier;
  RegionView cells;  // [ranks * blocks] of 16 bytes
  u32* wrong;        // one a block, added to
  u32 first, rounds;
};

CAMPANILE_KERNEL(device_meet, 512, MeetArguments, a) {
  const CommunicatorView& c = a.comm;
  for (u32 round = a.first; round != a.first + a.rounds; round++) {
    for (u32 position = thread_index(); position < a.barrier.team.size; position += block_threads()) {
      const u32 peer = member(a.barrier.team, position);
      store16_window(at<Vec16>(c, peer, a.cells, c.rank * grid_blocks() + block_index()), {round, round, round, round});
    }
    if (barrier(c, a.barrier) != Outcome::Done) return;
    bool bad = false;
    for (u32 i = thread_index(); i < a.barrier.team.size * grid_blocks(); i += block_threads()) {
      const u32 rank = member(a.barrier.team, i / grid_blocks());
      const Vec16 v = load16_window(at<Vec16>(c, c.rank, a.cells, rank * grid_blocks() + i % grid_blocks()));
      bad |= v.x != round || v.w != round;
    }
    const u64 lanes = wave_ballot(bad);
    if (lane() == 0 && lanes != 0) fetch_add_relaxed<Scope::Device>(a.wrong + block_index(), popcount(lanes));
    // Nobody writes the next round before all have read this one.
    if (barrier(c, a.barrier) != Outcome::Done) return;
  }
}
