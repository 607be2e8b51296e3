// Regions of a window's arena; crates/core/src/arena.rs lays them out, the same on every rank.
#ifndef CAMPANILE_DEVICE_ARENA_H
#define CAMPANILE_DEVICE_ARENA_H

#include "device/communicator.h"

namespace campanile {

struct RegionView {
  u64 offset, stride, count;
};

// Offset of element `index` in each window.
CAMPANILE_DEVICE u64 offset_of(const RegionView& region, u64 index) { return region.offset + region.stride * index; }

// Element `index` in the window of a rank that is mapped; see portable.h for how window memory is loaded and stored.
template <class T>
CAMPANILE_DEVICE T* at(const CommunicatorView& c, u32 rank, const RegionView& region, u64 index) {
  return reinterpret_cast<T*>(window(c, rank) + offset_of(region, index));
}

}  // namespace campanile

#endif
