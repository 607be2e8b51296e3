// The barrier over the ranks of a team as a kernel of its own: in stream order, and joined by as many blocks as there are.
#include "campanile.h"

using namespace campanile;

struct EnterArguments {
  CommunicatorView comm;
  BarrierView barrier;
  u32 rounds;  // barriers, one after another: more than one is for measuring
};

CAMPANILE_KERNEL(barrier_enter, 512, EnterArguments, a) {
  for (u32 round = 0; round < a.rounds; round++)
    if (barrier(a.comm, a.barrier) != Outcome::Done) return;
}
