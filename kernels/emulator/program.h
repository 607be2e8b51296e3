// What the programs of this folder share: launches of 128 threads a block, and an end with exit code 1.
#ifndef CAMPANILE_EMULATOR_PROGRAM_H
#define CAMPANILE_EMULATOR_PROGRAM_H

#include <cstdio>
#include <cstdlib>

#include "portable.h"

namespace {

constexpr campanile::u32 THREADS = 128;
// Which thread goes first, and which block.
constexpr uint64_t SCHEDULE = 5;

// From any thread: others may be in kernels.
[[noreturn]] void fail(const char* how, const char* what) {
  std::printf("%s: %s\n", how, what);
  std::fflush(stdout);
  std::_Exit(1);
}

void require(bool holds, const char* what) {
  if (!holds) fail("wrong", what);
}

// Runs it to its end, with so many blocks at a time; 0: all.
template <class A>
void launch(void (*kernel)(const void*), const A& arguments, campanile::u32 blocks, campanile::u32 resident = 0,
            size_t shared_bytes = 0) {
  char message[256] = "";
  EmulatorLaunch launch{kernel,   &arguments, blocks,         THREADS, shared_bytes,
                        SCHEDULE, message,    sizeof message, resident};
  if (emulator_launch(&launch) != 0) fail("launch failed", message);
}

}  // namespace

#endif
