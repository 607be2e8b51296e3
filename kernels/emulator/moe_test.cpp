// Runs the MoE kernels in the emulator without Rust, three ranks at once, so that ThreadSanitizer can watch all of it:
// joint launches, split ones, more blocks than are resident, ranks of one schedule and the other, a masked rank. Built as
// smoke_test.cpp is, with the same bugs: launches that finish without their release, and a dispatch without the barrier
// before it.
#include "emulator/moe_ranks.h"
#include "moe/combine.cpp"
#include "moe/combine_low_latency.cpp"
#include "moe/dispatch_low_latency.cpp"
#include "moe/release.cpp"
#include "moe/scale.cpp"

namespace {

// Built with it, every round is in the low-latency schedule, so that its bugs are found without those of the other.
#if defined(CAMPANILE_LOW_LATENCY)
constexpr bool ALWAYS_LOW_LATENCY = true;
#else
constexpr bool ALWAYS_LOW_LATENCY = false;
#endif

// How a round is launched.
struct Way {
  bool split;
  u32 blocks, resident;
  bool low_latency = false;
};

void round(u32 rank, Way way, bool releases = false) {
  Rank& r = ranks[rank];
  DispatchArguments send = dispatch_of(rank);
  send.receivers = way.resident == 0 ? way.blocks : way.resident;
  ScaleArguments scale{common(rank), nullptr, HIDDEN, static_cast<u32>(SENT), static_cast<u32>(Type::BF16),
                       SCALES == 0 ? 0 : HIDDEN / SCALES};
  r.out.assign(r.tokens * HIDDEN, 0xffff);
  CombineArguments sum{common(rank), reinterpret_cast<u8*>(r.out.data()), ROW, ROW, nullptr, &r.tokens, RECEIVE};
  way.low_latency = way.low_latency || ALWAYS_LOW_LATENCY;
  // Rows that are quantised have one way.
  const auto sending = way.low_latency && SENT == Type::BF16 ? moe_dispatch_low_latency : moe_dispatch;
  if (way.split) {
    send.phases = SEND;
    launch(sending, send, way.blocks, way.resident);
    send.phases = RECEIVE;
    launch(moe_dispatch, send, way.blocks, way.resident);
    launch(moe_scale, scale, 1);
    if (!releases) launch(moe_release, ReleaseArguments{common(rank), static_cast<u32>(Ready::Pull)}, 1);
  } else {
    send.phases = SEND | RECEIVE, sum.phases |= SEND;
    launch(sending, send, way.blocks, way.resident);
    launch(moe_scale, scale, 1);
  }
  if (releases) return launch(moe_release, ReleaseArguments{common(rank), static_cast<u32>(Ready::Released)}, 1);
  launch(way.low_latency ? moe_combine_low_latency : moe_combine, sum, way.blocks, way.resident);
  require_sums(rank);
}

}  // namespace

int main() {
  const u32 tokens[RANKS] = {CAPACITY, 3, 4};
  for (u32 rank = 0; rank < RANKS; rank++) prepare(rank, tokens[rank]);
  together(RANKS, [](u32 rank) {
    round(rank, {false, BLOCKS, 0});
    // A rank may split what another does not. Blocks come one by one, later ones first.
    round(rank, {rank == 1, 3, 1});
    round(rank, {rank != 1, 1, 0}, true);
    // One schedule here, the other there; then low latency everywhere, in one block and in more than are resident.
    round(rank, {rank == 0, BLOCKS, 0, rank != 1});
    round(rank, {rank == 2, 1 + 2 * rank, 1, true});
    round(rank, {rank == 1, 1, 0, true}, true);
    require(ranks[rank].record.failure == 0 && ranks[rank].state.stage == 0, "a release");
  });
  // The last rank is gone.
  expert_rank[4] = expert_rank[5] = NONE;
  ranks[0].active = ranks[1].active = 3;
  together(RANKS - 1, [](u32 rank) {
    round(rank, {rank == 0, BLOCKS, 0});
    round(rank, {rank == 1, BLOCKS, 0, true});
  });
  std::printf("moe kernels, wave %u: right\n", WAVE);
}
