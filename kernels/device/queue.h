// Peers that are not mapped: the place where a transport's header comes in.
//
// A transport that reaches peers by queues brings device code (DeviceCode of crates/core and crates/abi). Kernels that run
// on it are compiled with its header, in whose namespace, the kind's own, there are
//
//   struct Peer { ... };  // what a kernel needs to post to one peer; peer_bytes long. `queues` of the view is [ranks] of it
//   struct Queue {        // of static member functions, for any group from the smallest scope on
//     template <class Group> void put(const CommunicatorView&, Group, u32 peer, u64 offset, const void* source, u64 bytes)
//     template <class Group> void signal(const CommunicatorView&, Group, u32 peer, u32 slot, u64 value)
//     template <class Group> void put_signal(const CommunicatorView&, Group, u32 peer, u64 offset, const void* source,
//                                            u64 bytes, u32 slot, u64 value)
//   };
//
// with the meaning of campanile.h. `offset` is in the peer's window, `bytes` from 1 to the largest op. The source lies in
// this rank's own window, the one memory that every transport has registered. Signals are strong, and when one has been
// posted, the sources of what it covers are the kernel's again. What waits for room in a queue is bounded by the view's
// deadline, ends with fail(), and calls pause(). Waits for signals stay as they are: they end in a word of this rank's own
// window. The header finds device/communicator.h, device/failure.h and device/group.h included. Experimental until two
// transports bring queues.
#ifndef CAMPANILE_DEVICE_QUEUE_H
#define CAMPANILE_DEVICE_QUEUE_H

#include "device/communicator.h"
#include "device/failure.h"
#include "device/group.h"
#include "device/transport.h"

namespace campanile {

// Version of the device API, which device code is written against; DeviceCode::API is the host's.
constexpr u32 DEVICE_API = 1;

#if defined(CAMPANILE_QUEUE)
// The transport's queues, within what it declares.
struct Queue {
  using Transport = ::CAMPANILE_QUEUE::Queue;
  static_assert(QUEUE_API == DEVICE_API, "the transport's header is of another device API");
  static_assert(sizeof(::CAMPANILE_QUEUE::Peer) == QUEUE_PEER_BYTES,
                "the header's Peer is not as long as the transport's device code declares");
  // Of a put in several operations: the next one begins aligned.
  static constexpr u64 PIECE = QUEUE_LARGEST_OP & ~u64{15};

  template <class Group>
  static CAMPANILE_MEMBER void put(const CommunicatorView& c, Group group, u32 peer, u64 offset, const void* source,
                                   u64 bytes) {
    check_scope<Group>();
    const u8* from = static_cast<const u8*>(source);
    for (; bytes > QUEUE_LARGEST_OP; offset += PIECE, from += PIECE, bytes -= PIECE)
      Transport::put(c, group, peer, offset, from, PIECE);
    if (bytes != 0) Transport::put(c, group, peer, offset, from, bytes);
  }
  template <class Group>
  static CAMPANILE_MEMBER void signal(const CommunicatorView& c, Group group, u32 peer, u32 slot, u64 value) {
    check_scope<Group>();
    Transport::signal(c, group, peer, slot, value);
  }
  template <class Group>
  static CAMPANILE_MEMBER void put_signal(const CommunicatorView& c, Group group, u32 peer, u64 offset,
                                          const void* source, u64 bytes, u32 slot, u64 value) {
    if (bytes != 0 && bytes <= QUEUE_LARGEST_OP) {
      check_scope<Group>();
      return Transport::put_signal(c, group, peer, offset, source, bytes, slot, value);
    }
    put(c, group, peer, offset, source, bytes);
    signal(c, group, peer, slot, value);
  }

 private:
  template <class Group>
  static CAMPANILE_MEMBER void check_scope() {
    static_assert(Group::SCOPE >= QUEUE_SMALLEST_SCOPE, "the transport's queues need a larger group to post");
  }
};
#else
// Never called: every peer is mapped.
struct Queue {
  template <class... Arguments>
  static CAMPANILE_MEMBER void put(const Arguments&...) {}
  template <class... Arguments>
  static CAMPANILE_MEMBER void signal(const Arguments&...) {}
  template <class... Arguments>
  static CAMPANILE_MEMBER void put_signal(const Arguments&...) {}
};
#endif

// Whether load and store reach a peer's window.
CAMPANILE_DEVICE bool is_mapped([[maybe_unused]] const CommunicatorView& c, [[maybe_unused]] u32 peer) {
#if defined(CAMPANILE_QUEUE)
  return window(c, peer) != nullptr;
#else
  return true;
#endif
}

}  // namespace campanile

#endif
