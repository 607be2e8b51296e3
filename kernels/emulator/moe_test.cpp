// Runs the MoE kernels in the emulator without Rust, two ranks at once, so that ThreadSanitizer can watch all of it. Built
// as smoke_test.cpp is, with the same bugs: a dispatch without its release, and one without the barrier before it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "moe/combine.cpp"
#include "moe/dispatch.cpp"
#include "moe/release.cpp"
#include "moe/scale.cpp"

namespace {

constexpr u32 RANKS = 2, THREADS = 128, BLOCKS = 2, CAPACITY = 5, HIDDEN = 40, TOPK = 3, EXPERTS = 4, ROUNDS = 3;
constexpr u32 ROW = HIDDEN * 2, META = 32;

template <class A>
void launch(void (*kernel)(const void*), const A& arguments, u32 blocks) {
  char message[256] = "";
  EmulatorLaunch launch{kernel, &arguments, blocks, THREADS, 0, 5, message, sizeof message};
  if (emulator_launch(&launch) != 0) {
    std::printf("launch failed: %s\n", message);
    std::exit(1);
  }
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::printf("wrong: %s\n", what);
  std::exit(1);
}

u16 bf16(float value) { return static_cast<u16>(__builtin_bit_cast(u32, value) >> 16); }

struct Rank {
  u32 tokens = 0;
  std::vector<Vec16> window = std::vector<Vec16>(4096);
  std::vector<u16> x, out;
  std::vector<u32> topk_idx, weights;
  MoeState state{};
  u64 sent[RANKS] = {}, came[RANKS] = {}, routes[CAPACITY * RANKS] = {};
  u32 rows_to[RANKS] = {}, rows_from[RANKS] = {}, expert_counts[EXPERTS / RANKS] = {};
  u32 failed = 0, abort = 0;
  MoeRecord record{};
};

Rank ranks[RANKS];
u8* windows[RANKS];
// Experts 0 and 1 on rank 0, 2 and 3 on rank 1.
const u32 EXPERT_RANK[EXPERTS] = {0, 0, 1, 1}, EXPERT_NUMBER[EXPERTS] = {0, 1, 0, 1};

MoeCommon common(u32 rank) {
  Rank& r = ranks[rank];
  MoeCommon c{};
  for (u32 i = 0; i < RANKS; i++) c.near[i] = windows[i];
  c.windows = windows;
  c.rows = 256, c.row_stride = ROW;
  c.meta = c.rows + RANKS * CAPACITY * ROW, c.meta_stride = META;
  c.outputs = c.meta + RANKS * CAPACITY * META, c.output_stride = ROW;
  c.state = &r.state, c.sent = r.sent, c.came = r.came, c.rows_to = r.rows_to, c.rows_from = r.rows_from;
  c.routes = r.routes, c.failed = &r.failed, c.abort = &r.abort, c.record = &r.record;
  c.deadline = 60'000'000'000;
  c.rank = rank, c.ranks = RANKS, c.capacity = CAPACITY, c.topk = TOPK, c.route_slots = RANKS, c.weighted = 1;
  return c;
}

void prepare(u32 rank, u32 tokens) {
  Rank& r = ranks[rank];
  windows[rank] = reinterpret_cast<u8*>(r.window.data());
  r.tokens = tokens;
  for (u32 t = 0; t < tokens; t++) {
    for (u32 h = 0; h < HIDDEN; h++) r.x.push_back(bf16(static_cast<float>((t + h + rank) % 16)));
    for (u32 k = 0; k < TOPK; k++) {
      r.topk_idx.push_back(t == 1 && k == 1 ? ~0u : (t + k + rank) % EXPERTS);
      r.weights.push_back(__builtin_bit_cast(u32, 1.0f));
    }
  }
}

void rounds(u32 rank) {
  Rank& r = ranks[rank];
  DispatchArguments send{};
  send.common = common(rank);
  send.x = reinterpret_cast<const u8*>(r.x.data()), send.x_stride = ROW, send.row_bytes = ROW;
  send.topk_idx = r.topk_idx.data(), send.topk_weights = r.weights.data(), send.tokens = &r.tokens;
  send.expert_rank = EXPERT_RANK, send.expert_number = EXPERT_NUMBER, send.expert_counts = r.expert_counts;
  send.experts = EXPERTS, send.local_experts = EXPERTS / RANKS, send.index_bytes = 4;
  ScaleArguments scale{common(rank), nullptr, HIDDEN, static_cast<u32>(Type::BF16), static_cast<u32>(Type::BF16), 0};
  for (u32 round = 0; round < ROUNDS; round++) {
    r.out.assign(r.tokens * HIDDEN, 0xffff);
    launch(moe_dispatch, send, BLOCKS);
    launch(moe_scale, scale, 1);
    CombineArguments sum{common(rank), reinterpret_cast<u8*>(r.out.data()), ROW, ROW, nullptr, &r.tokens};
    launch(moe_combine, sum, BLOCKS);
    require(r.record.failure == 0, "a launch gave up");
    for (u32 t = 0; t < r.tokens; t++)
      for (u32 h = 0; h < HIDDEN; h++) {
        const float slots = t == 1 ? TOPK - 1 : TOPK;
        require(r.out[t * HIDDEN + h] == bf16(slots * static_cast<float>((t + h + rank) % 16)), "sums");
      }
  }
  launch(moe_dispatch, send, BLOCKS);
  launch(moe_release, ReleaseArguments{common(rank)}, 1);
  require(r.record.failure == 0 && r.state.open == 0, "a release");
}

}  // namespace

int main() {
  prepare(0, CAPACITY);
  prepare(1, 3);
  std::thread other(rounds, 1);
  rounds(0);
  other.join();
  std::printf("moe kernels, wave %u: right\n", WAVE);
}
