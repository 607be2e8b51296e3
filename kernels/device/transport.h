// The place of the transport's device code: where it has queues, the host compiles another file of this name, which
// declares them and includes the transport's header (Source::with_device_code of crates/gpu). This one: no queues.
#ifndef CAMPANILE_DEVICE_TRANSPORT_H
#define CAMPANILE_DEVICE_TRANSPORT_H

#include "portable.h"

namespace campanile {

constexpr u32 QUEUE_SMALLEST_SCOPE = 0;

}  // namespace campanile

#endif
