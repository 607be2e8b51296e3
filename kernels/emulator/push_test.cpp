// Runs combine by push and the layouts in the emulator without Rust, three ranks at once, so that ThreadSanitizer can watch
// all of it: results in place, compact and expert-major, joint launches and split ones, more blocks than are resident, a
// masked rank. Built as smoke_test.cpp is, with bugs of its own: a unit that is published without its release, and one
// without the barrier before it.
#include "emulator/moe_ranks.h"
#include "moe/arrange.cpp"
#include "moe/outputs.cpp"
#include "moe/push.cpp"
#include "moe/scale.cpp"

namespace {

constexpr u32 LOCAL = EXPERTS / RANKS, PADDED = 4, MOST = RANKS * CAPACITY * TOPK + LOCAL * PADDED;
constexpr u64 RETURNS = 256 + RANKS * CAPACITY * (2 * ROW + META), WEIGHTS = RETURNS + RANKS * CAPACITY * ROW;

// What a rank has for push and for a layout.
struct Pushing {
  PushState state{};
  PushLane lanes[RANKS]{};
  u32 batons[RANKS * CAPACITY] = {};
  std::vector<Vec16> x = std::vector<Vec16>(MOST * ROW / 16), y = x, map = std::vector<Vec16>(MOST);
  u32 offsets[RANKS + LOCAL + 1] = {}, places[RANKS * CAPACITY * TOPK] = {}, arranged = 0;
};
Pushing pushing[RANKS];

// How a round is launched.
struct Way {
  Layout layout;
  bool split;
  u32 blocks, resident, senders;
};

void round(u32 rank, Way way) {
  Rank& r = ranks[rank];
  Pushing& p = pushing[rank];
  DispatchArguments send = dispatch_of(rank);
  send.receivers = way.resident == 0 ? way.blocks : way.resident;
  send.phases = SEND | RECEIVE;
  launch(moe_dispatch, send, way.blocks, way.resident);

  const u32 type = static_cast<u32>(Type::BF16);
  const ScaleArguments scale{common(rank), nullptr, HIDDEN, type, type, 0};
  u8* const x = reinterpret_cast<u8*>(p.x.data());
  u8* const y = reinterpret_cast<u8*>(p.y.data());
  Results results{};
  results.row_bytes = ROW, results.layout = static_cast<u32>(way.layout);
  if (way.layout == Layout::InPlace) {
    launch(moe_scale, scale, 1);
  } else {
    const bool compact = way.layout == Layout::Compact;
    const ArrangeArguments arrange{common(rank), x, ROW, ROW, nullptr, p.map.data(), p.offsets, p.places, &p.arranged,
                                   r.expert_counts, MOST, 0, LOCAL, PADDED};
    launch(compact ? moe_compact : moe_expert_major, arrange, way.blocks, way.resident);
    const u32* total = p.offsets + (compact ? RANKS : LOCAL);
    launch(moe_scale_arranged, ScaleArrangedArguments{scale, p.map.data(), total, x, ROW, y, ROW}, 1);
    results.data = y, results.stride = ROW, results.places = p.places, results.arranged = &p.arranged;
  }

  r.out.assign(r.tokens * HIDDEN, 0xffff);
  std::vector<u32> weights(r.tokens * TOPK, NONE);
  PushArguments push{common(rank), results, reinterpret_cast<u8*>(r.out.data()), ROW, weights.data(), &r.tokens,
                     RETURNS, WEIGHTS, 16, &p.state, p.lanes, p.batons, way.senders, SEND | RECEIVE};
  if (way.split) {
    push.phases = SEND, push.senders = way.blocks;
    launch(moe_push, push, way.blocks, way.resident);
    push.phases = RECEIVE;
  }
  launch(moe_push, push, way.blocks, way.resident);
  require_sums(rank);
  for (u32 i = 0; i < r.tokens * TOPK; i++) {
    const u32 expert = r.topk_idx[i];
    const bool valid = expert < EXPERTS && expert_rank[expert] != NONE;
    require(weights[i] == (valid ? r.weights[i] : 0), "weights");
  }
}

}  // namespace

int main() {
  const u32 tokens[RANKS] = {CAPACITY, 3, 4};
  for (u32 rank = 0; rank < RANKS; rank++) prepare(rank, tokens[rank]);
  together(RANKS, [](u32 rank) {
    round(rank, {Layout::InPlace, false, BLOCKS, 0, 1});
    round(rank, {Layout::ExpertMajor, false, 3, 0, 3});
    // A rank may split what another does not, and leave its results elsewhere. Blocks come one by one, later ones first.
    round(rank, {rank == 1 ? Layout::Compact : Layout::InPlace, rank == 1, 3, 1, 2});
    require(ranks[rank].state.stage == 0, "the end of a round");
  });
  // The last rank is gone.
  expert_rank[4] = expert_rank[5] = NONE;
  ranks[0].active = ranks[1].active = 3;
  together(RANKS - 1, [](u32 rank) { round(rank, {Layout::ExpertMajor, rank == 0, BLOCKS, 0, 1}); });
  std::printf("push and layouts, wave %u: right\n", WAVE);
}
