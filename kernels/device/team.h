// Teams: some of the ranks of a communicator, in an order.
#ifndef CAMPANILE_DEVICE_TEAM_H
#define CAMPANILE_DEVICE_TEAM_H

#include "portable.h"

namespace campanile {

struct TeamView {
  const u32* members;  // [size] ranks, in device memory; null: all ranks of the communicator in order
  u32 position;        // of this rank
  u32 size;
};

CAMPANILE_DEVICE u32 member(const TeamView& team, u32 position) {
  return team.members == nullptr ? position : load(team.members + position);
}

}  // namespace campanile

#endif
