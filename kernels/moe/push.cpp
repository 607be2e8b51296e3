// MoE combine by push: owners write results into the sources' `returns`; a source sums a token once its results are there.
//
// Blocks take roles by a ticket, senders first. The rows for each source are sent in units of a few, which senders take by
// ticket too, until none is left: so no block waits before all sends are under way, and progress does not need every block
// resident. RETURNED is advanced in the order of the rows, by a baton: who finishes a unit and holds the baton publishes
// it with all finished ones behind it, and leaves the baton at the first that is not. Senders never wait for each other.
//
// Then, or at once in the other blocks, waves take tokens by ticket and sum, ascending by rank as by pull. Rows for oneself
// are read where they are. The block that ends last publishes DONE_C and ends the round. Sending and receiving may be two
// launches.
#include "moe/layout.h"
#include "moe/results.h"
#include "moe/sum.h"
#include "moe/weights.h"
#include "portable.h"
#include "wait.h"

using namespace campanile;

// One a set.
struct PushState {
  u64 units, units_base;  // units that were ever taken by blocks, and how many before this launch
  u64 taken, taken_base;  // parts of tokens, likewise, by waves
  u32 own_in_place;       // whether the last send left the rows for oneself where they were
  u32 unused;
};

// One a set and rank: values of the RETURNED words when the round began.
struct PushLane {
  u64 returned;  // of this rank's at that one
  u64 seen;      // of that one's here
};

struct PushArguments {
  MoeCommon common;
  Results results;
  u8* out;  // [tokens] rows, at any alignment
  u64 out_stride;
  u32* out_weights;   // [tokens][topk], or null
  const u32* tokens;  // those of the dispatch
  u64 returns, return_weights;  // offsets of this set's planes
  u64 weight_stride;
  PushState* state;
  PushLane* lanes;  // [ranks]
  u32* batons;      // [ranks][capacity], a unit each; even between rounds
  u32 senders;      // blocks that send before they sum
  u32 phases;       // SEND, RECEIVE or both
};

// Rows for one source, so many at a time: which of them.
struct Unit {
  u32 peer, number;
};

struct PushShared {
  u64 taken_base, units_base;
  Unit unit[2];  // of the block, and the next one
  u32 ticket, epoch, tokens, own_in_place, stop;
};

// Rows for which `peer` is the source and that are sent to it: those for oneself are summed where they are.
CAMPANILE_DEVICE u32 rows_to_push(const PushArguments& a, u32 peer) {
  const bool own = peer == a.common.rank && in_place(a.results);
  return own || !is_active(a.common, peer) ? 0 : load(a.common.rows_from + peer);
}

// Rows of a unit: few enough that a source can begin early, many enough that a fence and a word are little beside them.
CAMPANILE_DEVICE u32 unit_rows(u64 rows, u32 senders) {
  constexpr u32 UNITS = 16, LEAST = 4, MOST = 16;
  const u64 each = (rows + senders - 1) / senders;
  const u64 wanted = each / UNITS > LEAST ? each / UNITS : each < LEAST ? each : LEAST;
  u32 unit = 1;
  while (unit < MOST && unit * 2 <= wanted) unit *= 2;
  return unit;
}

// Writes results and weights of rows [first, first + rows) for `peer`.
CAMPANILE_DEVICE void write_unit(const PushArguments& a, u32 peer, u32 first, u32 rows) {
  const MoeCommon& c = a.common;
  const u64 before = a.results.layout == static_cast<u32>(Layout::Compact) ? rows_before(c, peer) : 0;
  const RowSplit split = split_rows(result_vectors(a.results), rows, block_waves());
  for (u32 item = wave_index(); item < rows * split.parts; item += block_waves()) {
    const u32 row = first + item / split.parts, part = item % split.parts;
    u8* there = window(c, peer);
    write_result(c, a.results, peer, row, before, there + row_at(c, a.returns, c.output_stride, c.rank, row),
                 split.part(part));
    if (part != 0 || !c.weighted) continue;
    const u32* weights =
        reinterpret_cast<const u32*>(window(c, c.rank) + row_at(c, c.meta, c.meta_stride, peer, row)) + 1 + c.topk;
    u32* to = reinterpret_cast<u32*>(there + row_at(c, a.return_weights, a.weight_stride, c.rank, row));
    for (u32 slot = lane(); slot < c.topk; slot += WAVE)
      store_window(to + slot, load_relaxed<Scope::System>(weights + slot));
  }
}

// One thread: results for `peer` up to row `end` are there; those were the last if `all`.
CAMPANILE_DEVICE void publish_returned(const PushArguments& a, u32 epoch, u32 peer, u32 end, bool all) {
  const MoeCommon& c = a.common;
  store_relaxed<Scope::System>(word_of(c, peer, c.rank, Word::Returned), load(&a.lanes[peer].returned) + end);
  if (all)
    store_relaxed<Scope::System>(word_of(c, peer, c.rank, Word::ReadyC), tagged(epoch, static_cast<u32>(Ready::Push)));
}

// One thread, when its block has written a unit. A unit's cell counts two events: that it is written, and that all before
// it are published, which is the baton. Who brings the second one goes on from there.
CAMPANILE_DEVICE void finish_unit(const PushArguments& a, u32 epoch, Unit finished, u32 size) {
  const MoeCommon& c = a.common;
  const u32 peer = finished.peer, rows = load(c.rows_from + peer), units = (rows + size - 1) / size;
  u32 unit = finished.number;
  u32* cells = a.batons + static_cast<u64>(peer) * c.capacity;
#if !defined(CAMPANILE_BUG_NO_RETURN_RELEASE)
  fence_release_window();
#endif
  if (unit != 0 && fetch_add_relaxed<Scope::Device>(cells + unit, 1u) % 2 == 0) return;
  while (true) {
    u32 end = unit + 1;
    for (; end < units && load_relaxed<Scope::Device>(cells + end) % 2 != 0; end++)
      fetch_add_relaxed<Scope::Device>(cells + end, 1u);
    // What other blocks wrote, and their words.
    if (end != 1) fence_window();
    if (has_failed(c)) return;
    const u32 there = end * size;
    publish_returned(a, epoch, peer, there < rows ? there : rows, end == units);
    if (end == units) return;
    fence_release_window();
    if (fetch_add_relaxed<Scope::Device>(cells + end, 1u) % 2 == 0) return;
    unit = end;
  }
}

// Units for a source.
CAMPANILE_DEVICE u32 units_for(const PushArguments& a, u32 peer, u32 size) {
  return (rows_to_push(a, peer) + size - 1) / size;
}

// The unit with this number in all: first ones first, the sources in turn, those that have fewer dropping out.
CAMPANILE_DEVICE Unit unit_number(const PushArguments& a, u32 size, u64 number) {
  const MoeCommon& c = a.common;
  u32 turn = 0;
  while (true) {
    u64 before = 0;
    u32 active = 0;
    for (u32 peer = 0; peer < c.ranks; peer++) {
      const u32 units = units_for(a, peer, size);
      before += units < turn ? units : turn;
      active += units > turn;
    }
    if (active == 0) return {NONE, 0};
    u64 left = number - before;
    if (left >= active) {
      // Later turns have no more.
      turn += static_cast<u32>(left / active);
      continue;
    }
    for (u32 i = 1;; i++) {
      const u32 peer = (c.rank + i) % c.ranks;
      if (units_for(a, peer, size) > turn && left-- == 0) return {peer, turn};
    }
  }
}

CAMPANILE_DEVICE Unit take_unit(const PushArguments& a, const PushShared& shared, u32 size) {
  return unit_number(a, size, fetch_add_relaxed<Scope::Device>(&a.state->units, u64{1}) - shared.units_base);
}

// Sends results until no unit is left.
CAMPANILE_DEVICE void send_results(const PushArguments& a, PushShared& shared) {
  const MoeCommon& c = a.common;
  u64 total = 0;
  for (u32 peer = 0; peer < c.ranks; peer++) total += rows_to_push(a, peer);
  const u32 size = unit_rows(total, a.senders);
  if (thread_index() == 0) shared.unit[0] = take_unit(a, shared, size);
  if (shared.ticket == 0) {
    // Whom nothing is sent to.
    for (u32 peer = thread_index(); peer < c.ranks; peer += block_threads()) {
      if (rows_to_push(a, peer) != 0 || !is_active(c, peer)) continue;
      fence_release_window();
      publish_returned(a, shared.epoch, peer, load(c.rows_from + peer), true);
    }
  }
  block_barrier();
  for (u32 now = 0;; now ^= 1) {
    const Unit unit = shared.unit[now];
    if (unit.peer == NONE) return;
    if (thread_index() == 0) shared.unit[now ^ 1] = take_unit(a, shared, size);
    const u32 rows = rows_to_push(a, unit.peer), first = unit.number * size;
    write_unit(a, unit.peer, first, rows - first < size ? rows - first : size);
    drain();
#if !defined(CAMPANILE_BUG_NO_RETURN_BARRIER)
    block_barrier();
#endif
    // The other waves go on.
    if (thread_index() == 0) finish_unit(a, shared.epoch, unit, size);
  }
}

// Where the result of a route is.
struct ReturnedRow {
  const PushArguments& a;
  bool own_in_place;

  CAMPANILE_MEMBER const Vec16* operator()(u64 route) const {
    const MoeCommon& c = a.common;
    const u32 owner = static_cast<u32>(route >> 32);
    const u64 plane = owner == c.rank && own_in_place ? c.outputs : a.returns;
    return reinterpret_cast<const Vec16*>(
        window(c, c.rank) + row_at(c, plane, c.output_stride, owner, static_cast<u32>(route)));
  }
};

// Waits for the results of the routes that the lanes of a wave hold. `known`: rows of owner `lane()` that are there, as
// far as this wave has looked. False after a failure.
CAMPANILE_DEVICE bool await_routes(const PushArguments& a, bool own_in_place, u64 route, u32& known) {
  const MoeCommon& c = a.common;
  const u32 owner = static_cast<u32>(route >> 32), needed = static_cast<u32>(route) + 1;
  const bool remote = route != NO_ROUTE && !(owner == c.rank && own_in_place);
  const u32 there = wave_shuffle(known, owner % WAVE);
  const bool unknown = remote && (owner >= WAVE || there < needed);
  const u64 looking = wave_ballot(unknown);
  if (looking == 0) return true;
  const u64 base = unknown ? load(&a.lanes[owner].seen) : 0;
  const u64 limit = base + (unknown ? load(c.rows_to + owner) : 0);
  u64 seen = base;
  Watch watch;
  while (true) {
    if (unknown) seen = load_relaxed<Scope::System>(word_of(c, c.rank, owner, Word::Returned));
    const u64 wrong = wave_ballot(unknown && !reached(limit, seen));
    const u64 late = wave_ballot(unknown && !reached(seen, base + needed));
    if (wrong == 0 && late == 0) break;
    Failure failure = Failure::Protocol;
    if (wrong == 0) {
      const u32 outcome = wave_shuffle(static_cast<u32>(poll_again(c, false, watch)), 0);
      if (outcome == static_cast<u32>(Outcome::Done)) continue;
      failure = static_cast<Failure>(outcome);
    }
    if (lane() == first_set(wrong != 0 ? wrong : late))
      fail(c, failure, Phase::CombineReceive, owner, Word::Returned, base + needed, seen);
    return false;
  }
  fence_acquire_window();
  wave_barrier();
  const u32 rows = static_cast<u32>(seen - base);
  for (u64 left = looking; left != 0; left &= left - 1) {
    const u32 from = first_set(left), of = wave_shuffle(owner, from), now = wave_shuffle(rows, from);
    if (of == lane() && now > known) known = now;
  }
  return true;
}

// The same for a token, whose first routes the lanes hold.
CAMPANILE_DEVICE bool await_token(const PushArguments& a, bool own_in_place, const u64* routes, u64 mine,
                                  u32& known) {
  if (!await_routes(a, own_in_place, mine, known)) return false;
  for (u32 first = WAVE; first < a.common.route_slots; first += WAVE) {
    // Behind the end of the list stand routes of earlier rounds.
    if (wave_ballot(mine == NO_ROUTE) != 0) break;
    const u64 loaded = load_listed(routes + first, a.common.route_slots - first);
    const u64 ended = wave_ballot(loaded == NO_ROUTE);
    mine = ended != 0 && lane() >= first_set(ended) ? NO_ROUTE : loaded;
    if (!await_routes(a, own_in_place, mine, known)) return false;
  }
  return true;
}

// Where the weights of a route are.
struct ReturnedWeights {
  const PushArguments& a;
  bool own_in_place;

  CAMPANILE_MEMBER const u32* operator()(u64 route) const {
    const MoeCommon& c = a.common;
    const u32 owner = static_cast<u32>(route >> 32), row = static_cast<u32>(route);
    const u64 at = owner == c.rank && own_in_place ? row_at(c, c.meta, c.meta_stride, owner, row) + 4 * (1 + c.topk)
                                                   : row_at(c, a.return_weights, a.weight_stride, owner, row);
    return reinterpret_cast<const u32*>(window(c, c.rank) + at);
  }
};

// The part of a token that a wave takes next, the same for all its lanes.
CAMPANILE_DEVICE u64 take(const PushArguments& a, const PushShared& shared) {
  u64 taken = 0;
  if (lane() == 0) taken = fetch_add_relaxed<Scope::Device>(&a.state->taken, u64{1}) - shared.taken_base;
  return wave_shuffle(taken, 0);
}

// Sums tokens until none is left. False after a failure.
CAMPANILE_DEVICE bool receive_results(const PushArguments& a, const PushShared& shared) {
  const MoeCommon& c = a.common;
  const bool weighted = a.out_weights != nullptr;
  const RowSplit split = split_rows(result_vectors(a.results), shared.tokens, grid_blocks() * block_waves(), weighted);
  const u64 items = static_cast<u64>(shared.tokens) * split.parts;
  const bool own = shared.own_in_place != 0;
  u32 known = 0;
  u64 item = take(a, shared);
  u64 routes = item < items ? load_listed(routes_of(c, item / split.parts), c.route_slots) : NO_ROUTE;
  while (item < items) {
    const u64* list = routes_of(c, item / split.parts);
    const u64 next = take(a, shared);
    const u64 following = next < items ? load_listed(routes_of(c, next / split.parts), c.route_slots) : NO_ROUTE;
    // Behind the end of the list stand routes of earlier rounds.
    const u64 ended = wave_ballot(routes == NO_ROUTE);
    const u64 mine = ended != 0 && lane() >= first_set(ended) ? NO_ROUTE : routes;
    if (!await_token(a, own, list, mine, known)) return false;
    const u32 token = static_cast<u32>(item / split.parts), part = static_cast<u32>(item % split.parts);
    sum_list<Out::Stream>(caller_row(a.out, a.out_stride, a.results.row_bytes, token), ReturnedRow{a, own}, list,
                          c.route_slots, mine, split.part(part));
    if (weighted && part == split.parts - 1)
      join_weights(c, a.out_weights + static_cast<u64>(token) * c.topk, list, mine, ReturnedWeights{a, own});
    item = next;
    routes = following;
  }
  return true;
}

// One thread of the block that finished last: the bases of the next launch, the words and stage of this one.
CAMPANILE_DEVICE void end_launch(const PushArguments& a, const PushShared& shared) {
  const MoeCommon& c = a.common;
  store(&a.state->units_base, load_relaxed<Scope::Device>(&a.state->units));
  store(&a.state->taken_base, load_relaxed<Scope::Device>(&a.state->taken));
  if (a.phases & SEND) {
    store(&a.state->own_in_place, shared.own_in_place);
    store(&c.state->stage, static_cast<u32>(Stage::CombineSent));
  }
  for (u32 rank = 0; rank < c.ranks; rank++) {
    if (!is_active(c, rank)) continue;
    PushLane* const to = a.lanes + rank;
    if (a.phases & SEND) store(&to->returned, load(&to->returned) + load(c.rows_from + rank));
    if (!(a.phases & RECEIVE)) continue;
    store(&to->seen, load(&to->seen) + load(c.rows_to + rank));
    store_relaxed<Scope::System>(word_of(c, rank, c.rank, Word::DoneC), tagged(shared.epoch, 0));
  }
  if (a.phases & RECEIVE) close_round(c, Ready::Push);
}

CAMPANILE_KERNEL(moe_push, 512, PushArguments, argument) {
  CAMPANILE_LARGE_ARGUMENT(PushArguments, a, argument);
  CAMPANILE_SHARED PushShared shared;
  const MoeCommon& c = a.common;
  if (thread_index() == 0) {
    const bool sends = a.phases & SEND, receives = a.phases & RECEIVE;
    const u32 epoch = load(&c.state->epoch), stage = load(&c.state->stage), dispatched = load(&c.state->tokens);
    const u32 tokens = receives ? load(a.tokens) : dispatched;
    shared.epoch = epoch;
    shared.tokens = tokens;
    shared.taken_base = load(&a.state->taken_base);
    shared.units_base = load(&a.state->units_base);
    shared.own_in_place = sends ? in_place(a.results) : load(&a.state->own_in_place);
    shared.ticket = take_ticket(c, grid_blocks());
    shared.stop = has_failed(c);
    const bool next = stage == static_cast<u32>(sends ? Stage::Dispatched : Stage::CombineSent);
    if (!shared.stop && (!next || tokens != dispatched || (sends && is_stale(a.results, epoch)))) {
      fail(c, Failure::Misuse, sends ? Phase::CombineSend : Phase::CombineReceive, c.rank, Word::ReadyC, dispatched,
           tokens);
      shared.stop = 1;
    }
  }
  block_barrier();
  if (!shared.stop) {
    if (a.phases & SEND && shared.ticket < a.senders) send_results(a, shared);
    if (a.phases & RECEIVE && !receive_results(a, shared)) add_shared(&shared.stop, 1);
  }
  drain();
  block_barrier();
  if (thread_index() == 0 && !shared.stop && finish(c, grid_blocks(), Tickets::Taken) == grid_blocks() - 1 && !has_failed(c)) end_launch(a, shared);
}
