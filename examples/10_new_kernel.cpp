// An all-gather: every rank puts its block into every other rank's window, with a signal behind it, and waits for theirs.
//
// It is written against the device API alone. Where the transport maps windows, put_signal becomes stores and a release;
// where it has queues, whatever its header does. The source of a put lies in this rank's own window, which every transport
// has registered.
#include "campanile.h"

using namespace campanile;

struct AllGather {
  CommunicatorView comm;
  RegionView blocks;  // [ranks] in each window; a rank's own is there before
  u64 bytes;          // of a block, a multiple of 4
  u64 round;          // from 1 on; a barrier is between two of them
};

// Blocks of the grid share the peers.
CAMPANILE_KERNEL(all_gather, 256, AllGather, a) {
  const CommunicatorView& c = a.comm;
  if (has_failed(c)) return;
  const u64 offset = offset_of(a.blocks, c.rank);
  for (u32 step = 1 + block_index(); step < c.ranks; step += grid_blocks()) {
    const u32 peer = (c.rank + step) % c.ranks;
    put_signal(c, Block(), peer, offset, window(c, c.rank) + offset, a.bytes, c.rank, a.round);
  }
  for (u32 step = 1 + block_index(); step < c.ranks; step += grid_blocks()) {
    const u32 peer = (c.rank + step) % c.ranks;
    if (wait(c, Block(), peer, peer, a.round, 10) != Outcome::Done) return;
  }
}
