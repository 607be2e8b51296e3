// Points in time of a stream or a graph, on the device's clock: see crates/gpu/src/stamps.rs.
#include "portable.h"

using namespace campanile;

struct StampArguments {
  u64* stamp;
};

CAMPANILE_KERNEL(stamp, 64, StampArguments, a) {
  if (thread_index() == 0) store(a.stamp, global_nanoseconds());
}
