// The emulator's runtime; runtime.h has its model.
#include "emulator/runtime.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "emulator/context.h"
#include "emulator/sanitizer.h"

namespace emulator {
namespace {

constexpr size_t STACK_BYTES = 64 << 10;
constexpr size_t SHARED_ALIGNMENT = 256;
// A block in which nothing but waits went on for this many rounds sleeps between the next ones: there are more blocks than
// cores, and what it waits for needs one.
constexpr uint32_t IDLE_ROUNDS = 16;
constexpr long IDLE_NANOSECONDS = 50'000;

enum class State { Runnable, AtBlockBarrier, AtWaveOperation, Ended };

// A thread of a block.
struct Fiber {
  Context context;
  Shadow shadow;
  State state = State::Runnable;
  uint64_t value = 0;  // what it brings to a wave operation
};

// What the blocks of one launch share.
struct Grid {
  const EmulatorLaunch& launch;
  std::atomic<bool> failed{false};
  std::atomic<uint32_t> begun{0};

  // The block that begins as number `turn`: the schedule says with which one, and in which direction.
  uint32_t block(uint32_t turn) const {
    const uint32_t first = static_cast<uint32_t>(launch.schedule % launch.blocks);
    return (first + (launch.schedule % 2 != 0 ? launch.blocks - turn : turn)) % launch.blocks;
  }
};

// A block: the OS thread that runs it, and its fibers.
class Block {
 public:
  Block(Grid& grid, uint32_t index)
      : grid(grid),
        index(index),
        fibers(grid.launch.threads),
        clocks(grid.launch.threads + 1),
        shared(static_cast<char*>(std::aligned_alloc(SHARED_ALIGNMENT, shared_size(grid.launch.shared_bytes))),
               std::free) {}

  void run();

  Grid& grid;
  const uint32_t index;
  std::vector<Fiber> fibers;
  uint32_t current = 0;
  void* dynamic_shared() { return shared.get(); }
  Shadow& shadow() { return fibers[current].shadow; }

  void yield() {
    scheduler_shadow.enter();
    switch_context(fibers[current].context, scheduler);
  }
  void pause() {
    progress++, pauses++;
    yield();
  }
  // Waits until every fiber of [first, end) is in `state` or has ended. `clock` is an address for the sanitizer.
  void rendezvous(uint32_t first, uint32_t end, State state, char* clock);
  void block_barrier() { rendezvous(0, threads(), State::AtBlockBarrier, &clocks[0]); }
  // The same for the lanes of the current fiber's wave; returns the first one.
  uint32_t wave_rendezvous(uint32_t wave);
  [[noreturn]] void end();

 private:
  static size_t shared_size(size_t bytes) { return (bytes / SHARED_ALIGNMENT + 1) * SHARED_ALIGNMENT; }
  uint32_t threads() const { return grid.launch.threads; }
  // Lets the fibers of [first, end) go on if all of them have arrived. One that waits for something else holds the
  // others: that is divergence, and ends as a deadlock.
  void open(uint32_t first, uint32_t end, State state);

  std::vector<char> clocks;  // addresses for the sanitizer: [0] of the block, then one a wave
  std::unique_ptr<char, void (*)(void*)> shared;
  Context scheduler;
  Shadow scheduler_shadow;
  uint64_t progress = 0;
  uint64_t pauses = 0;  // what of the progress is but another look at a word
  uint32_t wave_lanes = 0;  // 0 until the first wave operation
  uint32_t live = 0;
  char ended = 0;  // an address for the sanitizer
};

thread_local Block* block = nullptr;

void Block::open(uint32_t first, uint32_t end, State state) {
  for (uint32_t i = first; i < end; i++)
    if (fibers[i].state != state && fibers[i].state != State::Ended) return;
  for (uint32_t i = first; i < end; i++)
    if (fibers[i].state == state) fibers[i].state = State::Runnable;
}

void Block::rendezvous(uint32_t first, uint32_t end, State state, char* clock) {
  release(clock);
  Fiber& me = fibers[current];
  me.state = state;
  progress++;
  open(first, end, state);
  while (me.state == state) yield();
  acquire(clock);
}

uint32_t Block::wave_rendezvous(uint32_t wave) {
  wave_lanes = wave;
  uint32_t index = current / wave, first = index * wave;
  rendezvous(first, std::min(first + wave, threads()), State::AtWaveOperation, &clocks[1 + index]);
  return first;
}

void Block::end() {
  release(&ended);
  fibers[current].state = State::Ended;
  live--;
  progress++;
  // Nobody waits for a fiber that has ended.
  open(0, threads(), State::AtBlockBarrier);
  if (wave_lanes != 0) {
    uint32_t first = current / wave_lanes * wave_lanes;
    open(first, std::min(first + wave_lanes, threads()), State::AtWaveOperation);
  }
  yield();
  std::abort();  // nobody resumes it
}

void entry() {
  acquire(block);
  block->grid.launch.kernel(block->grid.launch.arguments);
  block->end();
}

void fail(Grid& grid, const char* text, uint32_t index) {
  const EmulatorLaunch& launch = grid.launch;
  if (!grid.failed.exchange(true) && launch.message_bytes > 0)
    std::snprintf(launch.message, launch.message_bytes, "block %u: %s", index, text);
}

void Block::run() {
  block = this;
  size_t bytes = STACK_BYTES * threads();
  // Touched as far as it is used; no allocator, which would be watched by the sanitizers.
  void* stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) return fail(grid, "no memory for the stacks of its threads", index);
  scheduler_shadow.attach();
  live = threads();
  release(this);
  for (uint32_t i = 0; i < threads(); i++) {
    make_context(fibers[i].context, static_cast<char*>(stacks) + STACK_BYTES * i, STACK_BYTES, entry);
    fibers[i].shadow.create();
  }
  uint64_t random = grid.launch.schedule == 0 ? 0 : grid.launch.schedule ^ (index + 1) * 0x9e3779b97f4a7c15;
  uint32_t idle_rounds = 0;
  while (live > 0 && !grid.failed.load(std::memory_order_relaxed)) {
    uint64_t before = progress, paused = pauses;
    // Another first thread and another direction each time. xorshift64 (Marsaglia 2003); 0 stays 0.
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    uint32_t first = random % threads();
    bool down = random >> 63;
    for (uint32_t turn = 0; turn < threads(); turn++) {
      current = (first + (down ? threads() - turn : turn)) % threads();
      if (fibers[current].state != State::Runnable) continue;
      fibers[current].shadow.enter();
      switch_context(scheduler, fibers[current].context);
    }
    if (progress == before) {
      fail(grid, "its threads wait for each other: a barrier or wave operation in divergent code", index);
    }
    idle_rounds = progress - before == pauses - paused ? idle_rounds + 1 : 0;
    if (idle_rounds < IDLE_ROUNDS) {
      sched_yield();
    } else {
      const timespec slice{0, IDLE_NANOSECONDS};
      nanosleep(&slice, nullptr);
    }
  }
  acquire(&ended);
  for (Fiber& fiber : fibers) fiber.shadow.destroy();
  munmap(stacks, bytes);
}

}  // namespace
}  // namespace emulator

using emulator::State;

extern "C" {

int emulator_launch(const EmulatorLaunch* launch) {
  emulator::Grid grid{*launch};
  const uint32_t resident = launch->resident == 0 ? launch->blocks : std::min(launch->resident, launch->blocks);
  std::vector<std::thread> threads;
  threads.reserve(resident);
  auto run = [&grid, launch] {
    for (uint32_t turn; (turn = grid.begun++) < launch->blocks && !grid.failed;)
      std::make_unique<emulator::Block>(grid, grid.block(turn))->run();
  };
  try {
    for (uint32_t index = 0; index < resident; index++) threads.emplace_back(run);
  } catch (const std::system_error&) {
    emulator::fail(grid, "the system gave no thread for it", static_cast<uint32_t>(threads.size()));
  }
  for (std::thread& thread : threads) thread.join();
  return grid.failed ? 1 : 0;
}

uint32_t emulator_thread_index() { return emulator::block->current; }
uint32_t emulator_block_index() { return emulator::block->index; }
uint32_t emulator_block_threads() { return emulator::block->grid.launch.threads; }
uint32_t emulator_grid_blocks() { return emulator::block->grid.launch.blocks; }
void* emulator_dynamic_shared() { return emulator::block->dynamic_shared(); }
void emulator_pause() { emulator::block->pause(); }

void emulator_misaligned(const void* address, uint32_t bytes) {
  char text[96];
  std::snprintf(text, sizeof text, "an access of %u bytes at %p, which is no multiple of that", bytes, address);
  emulator::fail(emulator::block->grid, text, emulator::block->index);
  // Nobody goes on after a failure.
  while (true) emulator::block->yield();
}

void emulator_block_barrier() { emulator::block->block_barrier(); }

void emulator_wave_barrier(uint32_t wave) { emulator::block->wave_rendezvous(wave); }

// Two meetings: all have brought their value, all have read the others'.
unsigned long long emulator_ballot(bool predicate, uint32_t wave) {
  emulator::Block& block = *emulator::block;
  block.fibers[block.current].value = predicate;
  uint32_t first = block.wave_rendezvous(wave);
  unsigned long long bits = 0;
  for (uint32_t i = 0; i < wave && first + i < block.fibers.size(); i++)
    if (block.fibers[first + i].state != State::Ended && block.fibers[first + i].value != 0) bits |= 1ull << i;
  block.wave_rendezvous(wave);
  return bits;
}

uint32_t emulator_shuffle(uint32_t value, uint32_t source, uint32_t wave) {
  emulator::Block& block = *emulator::block;
  block.fibers[block.current].value = value;
  uint32_t first = block.wave_rendezvous(wave);
  uint32_t from = std::min<uint32_t>(first + source % wave, block.fibers.size() - 1);
  uint32_t result = block.fibers[from].value;
  block.wave_rendezvous(wave);
  return result;
}

unsigned long long emulator_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<unsigned long long>(now.tv_sec) * 1000000000ull + static_cast<unsigned long long>(now.tv_nsec);
}

void emulator_fence_release() { emulator::block->shadow().fence_release(); }
void emulator_fence_acquire() { emulator::block->shadow().fence_acquire(); }
void emulator_before_relaxed_store(const void* address) {
  emulator::block->shadow().before_relaxed_store(const_cast<void*>(address));
}
void emulator_after_relaxed_load(const void* address) {
  emulator::block->shadow().after_relaxed_load(const_cast<void*>(address));
}
}
