// Runs the smoke kernels in the emulator without Rust, so that ThreadSanitizer can watch all of it.
//
//   c++ -std=c++17 -O1 -g -fsanitize=thread -I.. -c smoke_test.cpp
//   c++ -std=c++17 -O1 -g -DCAMPANILE_TSAN -I.. -c runtime.cpp
//   c++ -fsanitize=thread -pthread smoke_test.o runtime.o
//
// -DCAMPANILE_BUG_NO_RELEASE and -DCAMPANILE_BUG_NO_BARRIER seed the bugs that must be found. The whole of it also runs
// without a sanitizer, and with -DCAMPANILE_UCONTEXT.
#include <cstdio>
#include <thread>
#include <vector>

#include "emulator/program.h"
#include "smoke.cpp"

namespace {

const Patience PATIENCE{nullptr, 30'000'000'000};

// Device 0 puts, device 1 waits: two launches at once.
void put_and_wait() {
  constexpr u64 COUNT = 401;
  std::vector<Vec16> source(COUNT), window(COUNT), target(COUNT);
  u64 signal = 0, finished = 0;
  for (u64 round = 1; round <= 2; round++) {
    for (u32 i = 0; i < COUNT; i++) source[i] = {i, static_cast<u32>(round), ~i, i * 3};
    u32 outcome[2] = {9, 9};
    std::thread waiter([&] {
      launch(smoke_wait, WaitArguments{&signal, round, PATIENCE, window.data(), target.data(), COUNT, outcome}, 2);
    });
    launch(smoke_put_signal,
           PutSignalArguments{source.data(), window.data(), COUNT, &finished, (round - 1) * 3, &signal, round}, 3);
    waiter.join();
    require(outcome[0] == 0 && outcome[1] == 0, "a wait ended early");
    for (u32 i = 0; i < COUNT; i++) require(target[i].y == round && target[i].z == ~i, "other rows arrived");
  }
}

void barrier() {
  constexpr u32 BLOCKS = 3, ROUNDS = 3;
  u64 counter = 0;
  u32 cells[BLOCKS] = {}, errors[BLOCKS] = {}, outcome[BLOCKS] = {};
  launch(smoke_barrier, BarrierArguments{&counter, 0, PATIENCE, cells, errors, ROUNDS, outcome}, BLOCKS);
  for (u32 i = 0; i < BLOCKS; i++) require(errors[i] == 0 && outcome[i] == 0, "a block was not waited for");
}

void lanes() {
  std::vector<u32> words(2 * THREADS * 4);
  launch(smoke_lanes, LanesArguments{words.data()}, 2, 0, THREADS * sizeof(u32));
  for (u32 t = 0; t < 2 * THREADS; t++) {
    require(words[4 * t] == THREADS - 1 - t % THREADS, "shared memory");
    require(words[4 * t + 1] == (WAVE / 2 << 8 | 1), "votes");
    require(words[4 * t + 2] == ((t % THREADS) ^ 1) && words[4 * t + 3] == WAVE, "shuffles");
  }
}

template <class T>
void require_words(const std::vector<T>& words, u32 threads) {
  T ids = static_cast<T>(threads) * (threads + 1) / 2;
  require(words[0] == threads && words[1] == 2 * threads && words[2] == threads, "additions and swaps");
  require(words[3] + words[4] == ids && words[5] == 0, "exchanges");
}

void words() {
  constexpr u32 ALL = 2 * THREADS;
  std::vector<u32> device32(8 + ALL), system32(8 + ALL);
  std::vector<u64> device64(8 + ALL), system64(8 + ALL);
  launch(smoke_words, WordsArguments{device32.data(), device64.data(), system32.data(), system64.data()}, 2);
  require_words(device32, ALL);
  require_words(device64, ALL);
  require_words(system32, ALL);
  require_words(system64, ALL);
}

void copy() {
  std::vector<Vec16> source(999), target(999);
  for (u32 i = 0; i < 999; i++) source[i] = {i, i, i, i};
  launch(smoke_copy, CopyArguments{source.data(), target.data(), 999}, 3);
  require(target[998].w == 998, "copy");
}

}  // namespace

int main() {
  copy();
  lanes();
  words();
  barrier();
  put_and_wait();
  std::printf("smoke kernels, wave %u: right\n", WAVE);
}
