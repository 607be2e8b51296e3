// Bulk loads: one thread moves a chunk of global memory, a peer's too, into shared memory, where the target has that:
// sm_90 (cp.async.bulk), and the emulator, which copies at once. CAMPANILE_BULK says so.
//
// A chunk is a multiple of 16 bytes, both addresses are aligned to 16. bulk_wait follows one bulk_load of the same
// barrier; the parity is that of how often the barrier was used before.
#ifndef CAMPANILE_LINK_BULK_H
#define CAMPANILE_LINK_BULK_H

#include "portable.h"

namespace campanile {

#if defined(__CUDA_ARCH__)
#define CAMPANILE_BULK 1

CAMPANILE_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
CAMPANILE_DEVICE void bulk_init(u64* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
// After all have been initialised: the asynchronous proxy sees them.
CAMPANILE_DEVICE void bulk_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
CAMPANILE_DEVICE void bulk_load(u8* shared, const u8* global, u32 bytes, u64* barrier) {
  const u32 b = shared_address(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(b)
               : "memory");
}
CAMPANILE_DEVICE void bulk_wait(u64* barrier, u32 parity) {
  u32 done = 0;
  while (!done)
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
}

#elif !defined(__AMDGCN__)
#define CAMPANILE_BULK 1

CAMPANILE_DEVICE void bulk_init(u64* barrier) { *barrier = 0; }
CAMPANILE_DEVICE void bulk_ready() {}
CAMPANILE_DEVICE void bulk_load(u8* shared, const u8* global, u32 bytes, u64*) {
  for (u32 i = 0; i < bytes; i++) shared[i] = global[i];
}
CAMPANILE_DEVICE void bulk_wait(u64*, u32) {}
#endif

}  // namespace campanile

#endif
