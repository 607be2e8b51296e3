// Failure: the first one of a rank stays, and is recorded for the host.
#ifndef CAMPANILE_DEVICE_FAILURE_H
#define CAMPANILE_DEVICE_FAILURE_H

#include "device/communicator.h"
#include "wait.h"

namespace campanile {

// In host memory. `outcome` is stored last: not 0, the rest is there.
struct FailureRecord {
  u32 outcome;    // of the wait
  u32 operation;  // the kernel's number for what it did
  u32 peer;
  u32 slot;
  u64 expected, seen;
};

CAMPANILE_DEVICE bool has_failed(const CommunicatorView& c) { return load_relaxed<Scope::Device>(c.failed) != 0; }

CAMPANILE_DEVICE void fail(const CommunicatorView& c, Outcome outcome, u32 operation, u32 peer, u32 slot, u64 expected,
                           u64 seen) {
  if (compare_swap_relaxed<Scope::Device>(c.failed, 0u, 1u) != 0) return;
  FailureRecord* r = c.record;
  store_relaxed<Scope::System>(&r->operation, operation);
  store_relaxed<Scope::System>(&r->peer, peer);
  store_relaxed<Scope::System>(&r->slot, slot);
  store_relaxed<Scope::System>(&r->expected, expected);
  store_relaxed<Scope::System>(&r->seen, seen);
  fence_release_window();
  store_relaxed<Scope::System>(&r->outcome, static_cast<u32>(outcome));
}

}  // namespace campanile

#endif
