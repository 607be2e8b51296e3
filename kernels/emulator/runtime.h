// The emulator: runs kernels on the CPU, for tests.
//
// Model. Each block of a launch is an OS thread, so that blocks (and devices: launches on other threads) are concurrent
// and waits across them end, as far as they may be resident at once; later blocks begin when earlier ones end, in an
// order that is the schedule's; the threads of a block are fibers of that thread, which take turns at barriers, wave
// operations and pause(). Memory is the process's own, or shared with other processes, so that several emulated devices
// are ranks.
//
// Invariants. A fiber never changes its OS thread. All lanes of a wave, or threads of a block, that have not ended must
// meet at its operation: where none of a block's fibers can run, the launch ends with an error, never with a hang. An
// access that is not aligned is an error, as on GPUs. What the emulator says nothing about: cache coherence, sc bits, missing waits (the committed instruction counts do),
// speed.
#ifndef CAMPANILE_EMULATOR_RUNTIME_H
#define CAMPANILE_EMULATOR_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

extern "C" {

// A launch. `kernel` is what CAMPANILE_KERNEL defines, `arguments` its struct.
struct EmulatorLaunch {
  void (*kernel)(const void* arguments);
  const void* arguments;
  uint32_t blocks;
  uint32_t threads;
  size_t shared_bytes;
  uint64_t schedule;  // 0: the threads of a block take turns in order; another number: in an order drawn from it
  char* message;  // where the error goes, NUL-terminated
  size_t message_bytes;
  uint32_t resident = 0;  // so many blocks at once, the others as those end; 0: all
};

// Runs a launch to its end: 0, or 1 with a message.
int emulator_launch(const EmulatorLaunch* launch);

// For kernels, through portable.h.
uint32_t emulator_thread_index();
uint32_t emulator_block_index();
uint32_t emulator_block_threads();
uint32_t emulator_grid_blocks();
void* emulator_dynamic_shared();
void emulator_block_barrier();
void emulator_wave_barrier(uint32_t wave);
unsigned long long emulator_ballot(bool predicate, uint32_t wave);
uint32_t emulator_shuffle(uint32_t value, uint32_t source, uint32_t wave);
void emulator_pause();
unsigned long long emulator_nanoseconds();
void emulator_fence_release();
void emulator_fence_acquire();
void emulator_before_relaxed_store(const void* address);
void emulator_after_relaxed_load(const void* address);
// Ends the launch with an error.
[[noreturn]] void emulator_misaligned(const void* address, uint32_t bytes);
}

#endif
