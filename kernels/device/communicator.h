// The communicator as a kernel sees it.
#ifndef CAMPANILE_DEVICE_COMMUNICATOR_H
#define CAMPANILE_DEVICE_COMMUNICATOR_H

#include "portable.h"

namespace campanile {

struct FailureRecord;

// Ranks whose windows travel in the argument: no load comes before their use.
constexpr u32 NEAR_RANKS = 8;

// Filled by the host, passed by value. Windows are as mapped for this device; null is a peer that only a queue reaches.
struct CommunicatorView {
  u8* near[NEAR_RANKS];
  u8* const* windows;     // [ranks], in device memory
  const void* queues;     // [ranks] of the transport header's Peer, in device memory; null where there is none
  u64 signals;            // offset of word 0 in each window
  const u32* abort;       // in host memory; not 0: give up
  u32* failed;            // in device memory; not 0: this rank has failed
  FailureRecord* record;  // in host memory
  u64 deadline;           // of each wait, nanoseconds
  u32 rank, ranks;
};

// First byte of a rank's window.
CAMPANILE_DEVICE u8* window(const CommunicatorView& c, u32 rank) {
  return c.ranks <= NEAR_RANKS ? c.near[rank] : load(c.windows + rank);
}
// Word `slot` in a rank's window.
CAMPANILE_DEVICE u64* signal_word(const CommunicatorView& c, u32 rank, u32 slot) {
  return reinterpret_cast<u64*>(window(c, rank) + c.signals) + slot;
}

}  // namespace campanile

#endif
