// Ranks with a few tokens each, in memory of this process: what the programs here run the MoE kernels on.
#ifndef CAMPANILE_MOE_RANKS_H
#define CAMPANILE_MOE_RANKS_H

#include <thread>
#include <vector>

#include "emulator/program.h"
#include "moe/dispatch.cpp"
#include "moe/layout.h"
#include "moe/number.h"

namespace {

using namespace campanile;

constexpr u32 RANKS = 3, BLOCKS = 2, CAPACITY = 5, HIDDEN = 48, TOPK = 3, EXPERTS = 6;
constexpr u32 ROW = HIDDEN * 2, META = 32;
// What travels: the rows as they are or, with blocks of 16 elements, quantised.
#if defined(CAMPANILE_MOE_QUANTIZE)
constexpr Type SENT = CAMPANILE_MOE_QUANTIZE;
constexpr u32 SENT_ROW = HIDDEN, SCALES = HIDDEN / 16;
#else
constexpr Type SENT = Type::BF16;
constexpr u32 SENT_ROW = ROW, SCALES = 0;
#endif

u16 bf16(float value) { return static_cast<u16>(__builtin_bit_cast(u32, value) >> 16); }

struct Rank {
  u32 tokens = 0;
  std::vector<Vec16> window = std::vector<Vec16>(4096);
  std::vector<u16> x, out;
  std::vector<u32> topk_idx, weights;
  MoeState state{};
  u64 sent[RANKS] = {}, came[2 * RANKS] = {}, routes[CAPACITY * RANKS] = {};
  u32 rows_to[RANKS] = {}, rows_from[RANKS] = {}, expert_counts[EXPERTS / RANKS] = {};
  u64 active = (1 << RANKS) - 1;
  u32 failed = 0, abort = 0;
  MoeRecord record{};
};

Rank ranks[RANKS];
u8* windows[RANKS];
// Two experts a rank.
u32 expert_rank[EXPERTS] = {0, 0, 1, 1, 2, 2};
const u32 EXPERT_NUMBER[EXPERTS] = {0, 1, 0, 1, 0, 1};

MoeCommon common(u32 rank) {
  Rank& r = ranks[rank];
  MoeCommon c{};
  for (u32 i = 0; i < RANKS; i++) c.near[i] = windows[i];
  c.windows = windows;
  c.rows = 256, c.row_stride = SENT_ROW;
  c.meta = c.rows + RANKS * CAPACITY * SENT_ROW, c.meta_stride = META;
  c.outputs = c.meta + RANKS * CAPACITY * META, c.output_stride = ROW;
  c.scales = c.outputs + RANKS * CAPACITY * ROW, c.scale_stride = 16;
  c.state = &r.state, c.sent = r.sent, c.came = r.came, c.rows_to = r.rows_to, c.rows_from = r.rows_from;
  c.routes = r.routes, c.active = &r.active, c.failed = &r.failed, c.abort = &r.abort, c.record = &r.record;
  c.deadline = 60'000'000'000;
  c.rank = rank, c.ranks = RANKS, c.capacity = CAPACITY, c.topk = TOPK, c.route_slots = RANKS, c.weighted = 1;
  return c;
}

// Elements are 0 to 14: of a block with a 14 the scale is 1/32, and all of them are numbers of E4M3.
void prepare(u32 rank, u32 tokens) {
  Rank& r = ranks[rank];
  windows[rank] = reinterpret_cast<u8*>(r.window.data());
  r.tokens = tokens;
  for (u32 t = 0; t < tokens; t++) {
    for (u32 h = 0; h < HIDDEN; h++) r.x.push_back(bf16(static_cast<float>((t + h + rank) % 15)));
    for (u32 k = 0; k < TOPK; k++) {
      r.topk_idx.push_back(t == 1 && k == 1 ? ~0u : (t + k + rank) % EXPERTS);
      r.weights.push_back(__builtin_bit_cast(u32, 1.0f));
    }
  }
}

// A dispatch of the rank's tokens.
DispatchArguments dispatch_of(u32 rank) {
  Rank& r = ranks[rank];
  DispatchArguments send{};
  send.common = common(rank);
  send.x = reinterpret_cast<const u8*>(r.x.data()), send.x_stride = ROW;
  send.row_bytes = SENT_ROW, send.scale_count = SCALES;
  send.topk_idx = r.topk_idx.data(), send.topk_weights = r.weights.data(), send.tokens = &r.tokens;
  send.expert_rank = expert_rank, send.expert_number = EXPERT_NUMBER, send.expert_counts = r.expert_counts;
  send.experts = EXPERTS, send.local_experts = EXPERTS / RANKS, send.index_bytes = 4;
  return send;
}

// Experts that scale give each token as often as it has slots whose experts are there.
void require_sums(u32 rank) {
  const Rank& r = ranks[rank];
  require(r.record.failure == 0, "a launch gave up");
  for (u32 t = 0; t < r.tokens; t++) {
    u32 slots = 0;
    for (u32 k = 0; k < TOPK; k++) {
      const u32 expert = r.topk_idx[t * TOPK + k];
      slots += expert < EXPERTS && expert_rank[expert] != NONE;
    }
    for (u32 h = 0; h < HIDDEN; h++)
      require(r.out[t * HIDDEN + h] == bf16(static_cast<float>(slots * ((t + h + rank) % 15))), "sums");
  }
}

// The same on several ranks at once.
template <class F>
void together(u32 count, F rounds) {
  std::vector<std::thread> threads;
  for (u32 rank = 1; rank < count; rank++) threads.emplace_back(rounds, rank);
  rounds(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

#endif
