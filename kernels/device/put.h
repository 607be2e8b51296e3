// Put: bytes into a peer's window.
#ifndef CAMPANILE_DEVICE_PUT_H
#define CAMPANILE_DEVICE_PUT_H

#include "device/group.h"
#include "device/queue.h"

namespace campanile {

// Rows that a thread has in flight.
constexpr u32 PUT_UNROLL = 4;

// The MAP form.
template <class Group>
CAMPANILE_DEVICE void put_mapped(Group group, u8* target, const void* source, u64 bytes) {
  const Vec16* from = static_cast<const Vec16*>(source);
  Vec16* to = reinterpret_cast<Vec16*>(target);
  const u64 rows = bytes / 16, step = group.count();
  u64 i = group.index();
  CAMPANILE_NO_UNROLL
  for (; i + step * (PUT_UNROLL - 1) < rows; i += step * PUT_UNROLL) {
    Vec16 v[PUT_UNROLL];
    CAMPANILE_UNROLL
    for (u32 k = 0; k < PUT_UNROLL; k++) v[k] = load16_stream(from + i + step * k);
    CAMPANILE_UNROLL
    for (u32 k = 0; k < PUT_UNROLL; k++) store16_window(to + i + step * k, v[k]);
  }
  CAMPANILE_NO_UNROLL
  for (; i < rows; i += step) store16_window(to + i, load16_stream(from + i));
  // What is left of a row, by words.
  CAMPANILE_NO_UNROLL
  for (u64 word = rows * 4 + group.index(); word < bytes / 4; word += step)
    store_window(reinterpret_cast<u32*>(target) + word, load(static_cast<const u32*>(source) + word));
}

template <class Group>
CAMPANILE_DEVICE void put(const CommunicatorView& c, Group group, u32 peer, u64 offset, const void* source,
                          u64 bytes) {
  if (is_mapped(c, peer))
    put_mapped(group, window(c, peer) + offset, source, bytes);
  else
    Queue::put(c, group, peer, offset, source, bytes);
}

}  // namespace campanile

#endif
