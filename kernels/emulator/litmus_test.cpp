// Runs the litmus kernels in the emulator without Rust, so that ThreadSanitizer judges the rules: whole, they are clean,
// and each of the three that the C++ model knows is missed when it is left out. Built as smoke_test.cpp is; what is left
// out is chosen by the same macros.
#include <cstdio>
#include <thread>
#include <vector>

#include "emulator/program.h"
#include "litmus/outputs.cpp"
#include "litmus/rows.cpp"

namespace {

constexpr u32 BLOCKS = 2, ROUNDS = 3;
constexpr u64 COUNT = 401;
#if defined(CAMPANILE_BUG_NO_RELEASE)
constexpr LeftOut LEFT_OUT = LeftOut::Release;
#elif defined(CAMPANILE_BUG_NO_BARRIER)
constexpr LeftOut LEFT_OUT = LeftOut::Barrier;
#elif defined(CAMPANILE_BUG_NO_ACQUIRE)
constexpr LeftOut LEFT_OUT = LeftOut::Acquire;
#else
constexpr LeftOut LEFT_OUT = LeftOut::Nothing;
#endif

// Rows passed by one kernel (rows.cpp) or left for another (outputs.cpp).
void pass(bool leave) {
  std::vector<Vec16> rows(COUNT);
  u64 signal = 0, ack = 0, written = 0, read = 0, wrong = 0;
  u32 outcomes[2] = {};
  const Patience patience{nullptr, 60'000'000'000};
  const auto arguments = [&](u32 side, u64 first, u32 rounds) {
    return LitmusArguments{rows.data(), COUNT, &signal, &ack, side == 0 ? &written : &read, 0,
                           &wrong, &outcomes[side], patience, first, rounds, LEFT_OUT};
  };
  std::thread reader([&] { launch(litmus_read, arguments(1, 1, ROUNDS), BLOCKS); });
  if (leave) {
    for (u64 round = 1; round <= ROUNDS; round++) {
      launch(litmus_leave, arguments(0, round, 1), BLOCKS);
      launch(litmus_raise, arguments(0, round, 1), 1);
    }
  } else {
    launch(litmus_write, arguments(0, 1, ROUNDS), BLOCKS);
  }
  reader.join();
  require(outcomes[0] == 0 && outcomes[1] == 0, "a wait ended early");
  require(wrong == 0 || LEFT_OUT != LeftOut::Nothing, "rows of another round");
}

}  // namespace

int main() {
  pass(false);
  pass(true);
  std::printf("litmus kernels, wave %u: right\n", WAVE);
}
