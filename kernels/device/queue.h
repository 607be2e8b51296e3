// Peers that are not mapped: the place where a transport's header comes in.
//
// A transport that reaches peers by queues brings a header (DeviceCode of crates/abi), and kernels that run on it are
// compiled with -DCAMPANILE_QUEUE_HEADER='"name.h"' and -DCAMPANILE_QUEUE=KIND. In namespace KIND, its own, it defines
//
//   struct Queue {  // of static member functions, for any group
//     template <class Group> void put(const CommunicatorView&, Group, u32 peer, u64 offset, const void* source, u64 bytes)
//     template <class Group> void signal(const CommunicatorView&, Group, u32 peer, u32 slot, u64 value)
//     template <class Group> void put_signal(const CommunicatorView&, Group, u32 peer, u64 offset, const void* source,
//                                            u64 bytes, u32 slot, u64 value)
//   };
//
// with the meaning of campanile.h, over what it finds in `queues` of the view. Sources lie in registered memory. Waits
// stay as they are: a signal ends in a word of this rank's own window. Experimental until two transports use it.
#ifndef CAMPANILE_DEVICE_QUEUE_H
#define CAMPANILE_DEVICE_QUEUE_H

#include "device/communicator.h"

#if defined(CAMPANILE_QUEUE_HEADER)
#include CAMPANILE_QUEUE_HEADER
namespace campanile {
using Queue = ::CAMPANILE_QUEUE::Queue;
}
#else
namespace campanile {
// Never called: every peer is mapped.
struct Queue {
  template <class... Arguments>
  static CAMPANILE_MEMBER void put(const Arguments&...) {}
  template <class... Arguments>
  static CAMPANILE_MEMBER void signal(const Arguments&...) {}
  template <class... Arguments>
  static CAMPANILE_MEMBER void put_signal(const Arguments&...) {}
};
}  // namespace campanile
#endif

namespace campanile {

// Whether load and store reach a peer's window.
CAMPANILE_DEVICE bool is_mapped([[maybe_unused]] const CommunicatorView& c, [[maybe_unused]] u32 peer) {
#if defined(CAMPANILE_QUEUE_HEADER)
  return window(c, peer) != nullptr;
#else
  return true;
#endif
}

}  // namespace campanile

#endif
