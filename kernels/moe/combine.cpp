// MoE combine by pull: the results for this rank's tokens, summed ascending by rank in f32, rounded once.
//
// READY_C goes out first, from the block that begins first: what this rank's experts wrote stands, by the order of the
// stream. (Or moe_release has posted it, as the send phase.) Then a wave sums a token, or a part of one where there are
// more waves than tokens, straight from the peers' memory. The block that finishes last publishes DONE_C and
// ends the round. Blocks wait for peers only, so any number of them does.
#include "moe/combine.h"
#include "moe/layout.h"
#include "moe/sum.h"
#include "moe/weights.h"
#include "portable.h"
#include "wait.h"

using namespace campanile;

CAMPANILE_KERNEL(moe_combine, 512, CombineArguments, a) {
  CAMPANILE_SHARED u32 stop, ticket;
  const MoeCommon& c = a.common;
  const bool sends = a.phases & SEND;
  const u32 epoch = load(&c.state->epoch), stage = load(&c.state->stage);
  const u32 tokens = load(a.tokens), dispatched = load(&c.state->tokens);
  // Of the rank that this thread may post to and wait for.
  const bool active = thread_index() < c.ranks && is_active(c, thread_index());
  const u32 sent = thread_index() < c.ranks ? load(c.rows_to + thread_index()) : 0;
  // Asked for here, looked at behind the loads of the others.
  u32 begun = 0;
  bool failed = false;
  if (thread_index() == 0) begun = take_ticket(c, grid_blocks()), failed = has_failed(c);
  // A wave sums a token; where there are more waves, a part of one. Neighbouring waves are of different blocks, so that
  // few tokens use all of them.
  const u32 waves = grid_blocks() * block_waves(), wave = wave_index() * grid_blocks() + block_index();
  // The last part collects the weights, and sums nothing: both wait for peers.
  const bool weighted = a.out_weights != nullptr;
  const RowSplit split = split_rows(static_cast<u32>((a.row_bytes + 15) / 16), tokens, waves, weighted);
  const u64 items = tokens <= c.capacity ? static_cast<u64>(tokens) * split.parts : 0;
  u64 routes = wave < items ? load_listed(routes_of(c, wave / split.parts), c.route_slots) : NO_ROUTE;
  if (thread_index() == 0) {
    const bool next = stage == static_cast<u32>(sends ? Stage::Dispatched : Stage::CombineSent);
    const bool misuse = !failed && (!next || tokens != dispatched);
    if (misuse) {
      const Phase phase = sends ? Phase::CombineSend : Phase::CombineReceive;
      fail(c, Failure::Misuse, phase, c.rank, Word::ReadyC, dispatched, tokens);
    }
    ticket = begun;
    stop = failed || misuse;
  }
  block_barrier();
  if (!stop) {
    const u64 wanted = tagged(epoch, static_cast<u32>(Ready::Pull));
    if (sends && ticket == 0) {
      for (u32 peer = thread_index(); peer < c.ranks; peer += block_threads()) {
        if (!(peer == thread_index() ? active : is_active(c, peer))) continue;
        fence_release_window();
        store_relaxed<Scope::System>(word_of(c, peer, c.rank, Word::ReadyC), wanted);
      }
    }
    for (u32 owner = thread_index(); owner < c.ranks; owner += block_threads()) {
      const bool needed = owner == thread_index() ? active && sent != 0
                                                  : is_active(c, owner) && load(c.rows_to + owner) != 0;
      if (needed && !await_word(c, ticket == 0, Phase::CombineReceive, owner, Word::ReadyC, wanted, wanted))
        add_shared(&stop, 1);
    }
  }
  block_barrier();
  for (u64 item = wave; item < items && !stop; item += waves) {
    const u64 mine = routes;
    if (item + waves < items) routes = load_listed(routes_of(c, (item + waves) / split.parts), c.route_slots);
    const u32 token = static_cast<u32>(item / split.parts), part = static_cast<u32>(item % split.parts);
    sum_list<Out::Stream>(caller_row(a.out, a.out_stride, a.row_bytes, token), PulledRow{c}, routes_of(c, token),
                          c.route_slots, mine, split.part(part));
    if (weighted && part == split.parts - 1)
      join_weights(c, a.out_weights + static_cast<u64>(token) * c.topk, routes_of(c, token), mine, PulledWeights{c});
  }
  drain();
  block_barrier();
  if (thread_index() != 0 || stop) return;
  const u64 peers = load(c.active);
  if (finish(c, grid_blocks(), Tickets::Taken) == grid_blocks() - 1) publish_done(c, epoch, peers);
}
