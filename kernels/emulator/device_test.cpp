// Runs the kernels of the device API in the emulator without Rust, two ranks at once, so that ThreadSanitizer can watch
// all of it. Built as smoke_test.cpp is, with the same bugs: a signal without its release, and a group that does not meet
// before it.
#include <cstdio>
#include <thread>
#include <vector>

#include "barrier.cpp"
#include "device/smoke.cpp"
#include "emulator/program.h"

namespace {

constexpr u32 RANKS = 2, BLOCKS = 2, ROUNDS = 3, BYTES = 1028, STRIDE = 1040, SLOTS = 8;

struct Rank {
  std::vector<Vec16> window = std::vector<Vec16>(1024), source = std::vector<Vec16>(STRIDE / 16), target;
  u32 abort = 0, failed = 0, wrong[BLOCKS] = {};
  FailureRecord record{};
  BarrierState state{};
};

Rank ranks[RANKS];

void run(u32 me) {
  Rank& r = ranks[me];
  CommunicatorView c{};
  for (u32 i = 0; i < RANKS; i++) c.near[i] = reinterpret_cast<u8*>(ranks[i].window.data());
  c.signals = 0, c.abort = &r.abort, c.failed = &r.failed, c.record = &r.record, c.deadline = 60'000'000'000;
  c.rank = me, c.ranks = RANKS;
  const BarrierView b{{nullptr, me, RANKS}, &r.state, SLOTS, 1};
  launch(barrier_enter, EnterArguments{c, b, ROUNDS}, 1);
  launch(device_meet, MeetArguments{c, b, {256, 16, RANKS * BLOCKS}, r.wrong, 1, ROUNDS}, BLOCKS);
  require(r.wrong[0] == 0 && r.wrong[1] == 0, "a block was not waited for");
  void (*const groups[])(const void*) = {device_exchange_thread, device_exchange_wave, device_exchange_block};
  for (u32 group = 0; group < 3; group++) {
    for (u32 apart = 0; apart < 2; apart++) {
      const u32 value = 1 + group * 2 + apart;
      for (Vec16& row : r.source) row = {value, me, value, me};
      r.target.assign(RANKS * STRIDE / 16, {});
      ExchangeArguments e{c, {512, STRIDE, RANKS}, reinterpret_cast<const u8*>(r.source.data()),
                          reinterpret_cast<u8*>(r.target.data()), BYTES, value, apart};
      launch(groups[group], e, 1);
      for (u32 source = 0; source < RANKS; source++)
        for (u32 i = 0; i < BYTES / 16; i++) {
          const Vec16 v = r.target[source * STRIDE / 16 + i];
          require(v.x == value && v.w == source, "other rows arrived");
        }
      // Nobody puts the next bytes before all have copied these.
      launch(barrier_enter, EnterArguments{c, b, 1}, BLOCKS);
    }
  }
  require(r.failed == 0, "a wait ended early");
}

}  // namespace

int main() {
  std::thread other(run, 1);
  run(0);
  other.join();
  std::printf("device API, wave %u: right\n", WAVE);
}
