// MoE combine by pull for few tokens: the words and sums of combine.cpp, in a schedule made for latency.
//
// A block takes a token, and each of its waves a part of the row; blocks without a token leave before they are counted.
// The block that begins first posts READY_C: what this rank's experts wrote stands, by the order of the stream.
// One token is one block: no atomic behind the sums.
//
// For as many ranks as travel in the argument; the host chooses.
#include "moe/combine.h"
#include "moe/layout.h"
#include "moe/sum.h"
#include "moe/weights.h"
#include "portable.h"
#include "wait.h"

using namespace campanile;

CAMPANILE_KERNEL(moe_combine_low_latency, 512, CombineArguments, a) {
  CAMPANILE_SHARED u32 stop, ticket;
  const MoeCommon& c = a.common;
  const u32 thread = thread_index(), block = block_index();
  const bool sends = a.phases & SEND;
  const u32 tokens = load(a.tokens), dispatched = load(&c.state->tokens);
  const u32 epoch = load(&c.state->epoch), stage = load(&c.state->stage);
  const u64 active = load(c.active);
  // Of the rank that this thread posts to and waits for.
  const u32 rows_to = thread < c.ranks ? load(c.rows_to + thread) : 0;
  const bool failed = thread == 0 && has_failed(c);
  const bool misuse = stage != static_cast<u32>(sends ? Stage::Dispatched : Stage::CombineSent) || tokens != dispatched;
  const u32 some = misuse || tokens == 0 ? 1 : tokens;
  const u32 blocks = some < grid_blocks() ? some : grid_blocks();
  if (block >= blocks) return;
  u32 begun = 0;
  if (thread == 0) begun = take_ticket(c, blocks);
  u64 routes = NO_ROUTE;
  if (!misuse && block < tokens) routes = load_listed(routes_of(c, block), c.route_slots);
  if (thread == 0) {
    const Phase phase = sends ? Phase::CombineSend : Phase::CombineReceive;
    if (!failed && misuse) fail(c, Failure::Misuse, phase, c.rank, Word::ReadyC, dispatched, tokens);
    stop = failed || misuse;
    ticket = begun;
  }
  block_barrier();
  if (stop) return;
  const u64 wanted = tagged(epoch, static_cast<u32>(Ready::Pull));
  const bool peer = thread < c.ranks && active >> thread & 1;
  if (sends && peer && ticket == 0) {
    fence_release_window();
    store_relaxed<Scope::System>(word_of(c, thread, c.rank, Word::ReadyC), wanted);
  }
  if (peer && rows_to != 0 && !await_word(c, ticket == 0, Phase::CombineReceive, thread, Word::ReadyC, wanted, wanted))
    add_shared(&stop, 1);
  block_barrier();
  if (stop) return;
  // The last wave collects the weights, and sums nothing: both wait for peers.
  const bool weighted = a.out_weights != nullptr;
  const u32 part = wave_index();
  const RowSplit split = split_rows(static_cast<u32>((a.row_bytes + 15) / 16), 1, block_waves(), weighted);
  for (u32 token = block; token < tokens; token += blocks) {
    if (token != block) routes = load_listed(routes_of(c, token), c.route_slots);
    if (part < split.parts)
      sum_list<Out::Stream, 2>(caller_row(a.out, a.out_stride, a.row_bytes, token), PulledRow{c}, routes_of(c, token),
                               c.route_slots, routes, split.part(part));
    if (weighted && part == split.parts - 1)
      join_weights(c, a.out_weights + static_cast<u64>(token) * c.topk, routes_of(c, token), routes, PulledWeights{c});
  }
  drain();
  block_barrier();
  if (thread == 0 && finish(c, blocks, Tickets::Taken) == blocks - 1) publish_done(c, epoch, active);
}
