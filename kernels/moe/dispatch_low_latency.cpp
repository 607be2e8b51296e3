// MoE dispatch for few tokens: the words and rows of dispatch.cpp, in a schedule made for latency.
//
// What few tokens cost is not bytes but steps that wait for one another: loads, fences, a flag, and instructions that are
// not in the cache. So a block takes a token and asks for all that it needs of it at once. Each block routes all tokens, a
// thread a token, so that it knows the ordinal of its own without asking, and the totals. The block that finishes last
// publishes META and ROWS, waits for all sources and counts by expert, alone; the others are gone, and blocks without a
// token leave before they are counted. One token is one block: no atomic, one fence.
//
// For as many ranks as travel in the argument, as many tokens as MAX_TOKENS, and tables that fit in shared memory; the
// host chooses. Rows that are quantised as they are sent go by dispatch.cpp.
#include "moe/dispatch.h"
#include "moe/layout.h"
#include "portable.h"
#include "wait.h"

using namespace campanile;

constexpr u32 MAX_TOKENS = 512;
constexpr u32 MAX_EXPERTS = 1024;
constexpr u32 AHEAD = 2;  // vectors of its row that a thread asks for before it knows where they go

struct LowLatencyShared {
  u32 owners[MAX_EXPERTS];   // of each expert
  u32 numbers[MAX_EXPERTS];  // of each expert at its owner
  u32 counts[MAX_EXPERTS];   // rows that came for each
  u32 masks[MAX_TOKENS];     // owners of each token, one bit a rank
  u64 ballots[NEAR][MAX_TOKENS / WAVE];  // the same by rank, one bit a token
  u64 sent[NEAR];            // value of the ROWS word at each owner after this round
  u32 rows[NEAR];            // rows for each owner
  u32 came[NEAR];            // rows from each source
  u32 stop;                  // not 0: this block has failed, or found the operation failed
  u32 last;                  // whether this block was the last to finish
};

// The first experts of a token, where they can be loaded by fours.
struct FirstExperts {
  Vec16 four, eight;

  CAMPANILE_MEMBER void load_token(const DispatchArguments& a, u32 token) {
    const Vec16* from = static_cast<const Vec16*>(a.topk_idx) + static_cast<u64>(token) * a.common.topk / 4;
    four = load16(from);
    if (a.common.topk > 4) eight = load16(from + 1);
  }
};

// The owners of a token, one bit a rank.
struct TokenOwners {
  const DispatchArguments& a;
  const LowLatencyShared& shared;
  u32 mask = 0;

  CAMPANILE_MEMBER void add(u32 expert) {
    const u32 owner = expert < a.experts ? shared.owners[expert] : NONE;
    if (owner != NONE) mask |= 1u << owner;
  }
  CAMPANILE_MEMBER void add_four(const Vec16& v) { add(v.x), add(v.y), add(v.z), add(v.w); }
};
CAMPANILE_DEVICE u32 owners_of(const DispatchArguments& a, const LowLatencyShared& shared, u32 token,
                               const FirstExperts& first) {
  const u32 topk = a.common.topk;
  const u64 begin = static_cast<u64>(token) * topk;
  TokenOwners owners{a, shared};
  u32 slot = 0;
  if (a.index_vectors) {
    owners.add_four(first.four);
    if (topk > 4) owners.add_four(first.eight);
    slot = 8;
  }
  CAMPANILE_NO_UNROLL
  for (; slot < topk; slot++) {
    const u32 expert = expert_of(a, begin + slot);
    if (expert != NONE) owners.add(expert);
  }
  return owners.mask;
}

// Rows for `rank` among the tokens [0, end).
CAMPANILE_DEVICE u32 rows_before(const LowLatencyShared& shared, u32 rank, u32 end) {
  u32 rows = 0;
  for (u32 word = 0; word < end / WAVE; word++) rows += popcount(shared.ballots[rank][word]);
  if (end % WAVE != 0) rows += popcount(shared.ballots[rank][end / WAVE] & ((u64{1} << end % WAVE) - 1));
  return rows;
}

// Word `at` of a token's routing: its number, K experts, K weights; and what a thread has of it before it knows where the
// token goes.
struct RoutingWord {
  u32 at, expert, weight;

  CAMPANILE_MEMBER void load_token(const DispatchArguments& a, u32 token) {
    const u32 topk = a.common.topk;
    expert = NONE, weight = 0;
    if (at == 0 || at > 2 * topk) return;
    const bool weighs = at > topk;
    const u64 slot = static_cast<u64>(token) * topk + at - (weighs ? topk + 1 : 1);
    expert = expert_of(a, slot);
    if (weighs && a.topk_weights != nullptr) weight = load(a.topk_weights + slot);
  }
  // As `owner`, and as the others are told.
  CAMPANILE_MEMBER u32 owner(const LowLatencyShared& shared) const {
    return expert == NONE ? NONE : shared.owners[expert];
  }
  CAMPANILE_MEMBER u32 here(const MoeCommon& c, const LowLatencyShared& shared) const {
    return at > c.topk ? weight : expert == NONE ? NONE : shared.numbers[expert];
  }
  CAMPANILE_MEMBER u32 elsewhere(const MoeCommon& c, u32 token) const {
    return at == 0 ? token : at > c.topk ? 0 : NONE;
  }
};

// What a thread has of its block's token before it knows where that goes.
struct Ahead {
  Vec16 row[AHEAD];
  RoutingWord word;
  u32 scale;

  CAMPANILE_MEMBER void load_token(const DispatchArguments& a, u32 token, u32 whole) {
    const u32 at = thread_index();
    const Vec16* x = reinterpret_cast<const Vec16*>(a.x + token * a.x_stride) + at;
    CAMPANILE_UNROLL
    for (u32 n = 0; n < AHEAD; n++)
      if (at + n * block_threads() < whole) row[n] = load16_stream(x + n * block_threads());
    word.at = at;
    word.load_token(a, token);
    scale = at < a.scale_count ? load(a.scales + static_cast<u64>(token) * a.scale_count + at) : 0;
  }
};

// Calls `send` with each owner in `mask`, its window and the token's ordinal there, which lane r holds for rank r.
template <class Send>
CAMPANILE_DEVICE void for_owners(const MoeCommon& c, u32 mask, u32 ordinal, const Send& send) {
  for (u32 left = mask; left != 0; left &= left - 1) {
    const u32 rank = first_set(left);
    send(rank, c.near[rank], wave_shuffle(ordinal, rank));
  }
}

// What the threads of a block could not have ahead: long rows and rows at odd addresses, many slots, many scales.
CAMPANILE_DEVICE void send_rest(const DispatchArguments& a, const LowLatencyShared& shared, u32 token, u32 mask,
                              u32 ordinal, u32 whole) {
  const MoeCommon& c = a.common;
  const u32 thread = thread_index(), threads = block_threads();
  const u32 vectors = static_cast<u32>((a.row_bytes + 15) / 16);
  const u8* x = a.x + token * a.x_stride;
  for (u32 first = whole < AHEAD * threads ? whole : AHEAD * threads; first < vectors; first += threads) {
    const u32 i = first + thread;
    const u64 at = static_cast<u64>(i) * 16, bytes = i < vectors ? a.row_bytes - at : 0;
    Vec16 v{};
    if (i < whole)
      v = load16_stream(reinterpret_cast<const Vec16*>(x) + i);
    else if (i < vectors)
      v = load_bytes(x + at, bytes < 16 ? static_cast<u32>(bytes) : 16);
    for_owners(c, mask, ordinal, [&](u32, u8* window, u32 row) {
      Vec16* to = reinterpret_cast<Vec16*>(window + row_at(c, c.rows, c.row_stride, c.rank, row));
      if (i < vectors) store16_window(to + i, v);
    });
  }
  for (u32 first = threads; first <= 2 * c.topk; first += threads) {
    RoutingWord word{first + thread, 0, 0};
    word.load_token(a, token);
    const u32 owner = word.owner(shared), here = word.here(c, shared), elsewhere = word.elsewhere(c, token);
    for_owners(c, mask, ordinal, [&](u32 rank, u8* window, u32 row) {
      u32* to = reinterpret_cast<u32*>(window + row_at(c, c.meta, c.meta_stride, c.rank, row));
      if (word.at <= 2 * c.topk) store_window(to + word.at, owner == rank ? here : elsewhere);
    });
  }
  for (u32 first = threads; first < a.scale_count; first += threads) {
    const u32 at = first + thread;
    const u32 scale = at < a.scale_count ? load(a.scales + static_cast<u64>(token) * a.scale_count + at) : 0;
    for_owners(c, mask, ordinal, [&](u32, u8* window, u32 row) {
      u32* to = reinterpret_cast<u32*>(window + row_at(c, c.scales, c.scale_stride, c.rank, row));
      if (at < a.scale_count) store_window(to + at, scale);
    });
  }
}

// Sends a token to its owners.
CAMPANILE_DEVICE void send_token(const DispatchArguments& a, const LowLatencyShared& shared, u32 token, u32 whole,
                                 const Ahead& ahead) {
  const MoeCommon& c = a.common;
  const u32 mask = shared.masks[token], thread = thread_index(), threads = block_threads();
  u32 ordinal = 0;
  if (lane() < c.ranks && mask >> lane() & 1) ordinal = rows_before(shared, lane(), token);
  const u32 owner = ahead.word.owner(shared), here = ahead.word.here(c, shared);
  const u32 elsewhere = ahead.word.elsewhere(c, token);
  for_owners(c, mask, ordinal, [&](u32 rank, u8* window, u32 ordinal) {
    const u64 row = static_cast<u64>(c.rank) * c.capacity + ordinal;
    Vec16* to = reinterpret_cast<Vec16*>(window + c.rows + c.row_stride * row) + thread;
    CAMPANILE_UNROLL
    for (u32 n = 0; n < AHEAD; n++)
      if (thread + n * threads < whole) store16_window(to + n * threads, ahead.row[n]);
    if (thread <= 2 * c.topk)
      store_window(reinterpret_cast<u32*>(window + c.meta + c.meta_stride * row) + thread,
                   owner == rank ? here : elsewhere);
    if (thread < a.scale_count)
      store_window(reinterpret_cast<u32*>(window + c.scales + c.scale_stride * row) + thread, ahead.scale);
  });
  const bool all = whole <= AHEAD * threads && whole * u64{16} == a.row_bytes && 2 * c.topk < threads &&
                   a.scale_count <= threads;
  if (!all) send_rest(a, shared, token, mask, ordinal, whole);
  // Where its results will be.
  if (thread >= c.ranks) return;
  u64* routes = c.routes + static_cast<u64>(token) * c.route_slots;
  const u32 count = popcount(mask);
  if (mask >> thread & 1) store(routes + popcount(mask & ((1u << thread) - 1)), route(thread, ordinal));
  if (thread == 0 && count < c.route_slots) store(routes + count, NO_ROUTE);
}

// Counts the rows that came by expert. A wave a row where there are so few, else a thread a row. `counts` are zero.
CAMPANILE_DEVICE void count_experts(const DispatchArguments& a, LowLatencyShared& shared) {
  const MoeCommon& c = a.common;
  u32 total = 0;
  for (u32 source = 0; source < c.ranks; source++) total += shared.came[source];
  const bool few = total <= block_waves();
  for (u32 i = few ? wave_index() : thread_index(); i < total; i += few ? block_waves() : block_threads()) {
    u32 source = 0, row = i;
    while (row >= shared.came[source]) row -= shared.came[source++];
    const u32* experts =
        reinterpret_cast<const u32*>(c.near[c.rank] + row_at(c, c.meta, c.meta_stride, source, row)) + 1;
    if (few) {
      for (u32 slot = lane(); slot < c.topk; slot += WAVE) {
        const u32 expert = load_relaxed<Scope::System>(experts + slot);
        if (expert < a.local_experts) add_shared(&shared.counts[expert], 1);
      }
      continue;
    }
    CAMPANILE_NO_UNROLL
    for (u32 slot = 0; slot < c.topk; slot += 8) {
      u32 found[8];
      CAMPANILE_UNROLL
      for (u32 n = 0; n < 8; n++) found[n] = slot + n < c.topk ? load_relaxed<Scope::System>(experts + slot + n) : NONE;
      CAMPANILE_UNROLL
      for (u32 n = 0; n < 8; n++)
        if (found[n] < a.local_experts) add_shared(&shared.counts[found[n]], 1);
    }
  }
}

CAMPANILE_KERNEL(moe_dispatch_low_latency, 512, DispatchArguments, argument) {
  CAMPANILE_LARGE_ARGUMENT(DispatchArguments, a, argument);
  CAMPANILE_SHARED LowLatencyShared shared;
  const MoeCommon& c = a.common;
  const u32 thread = thread_index(), threads = block_threads(), block = block_index();
  const u32 tokens = load(a.tokens), epoch = load(&c.state->epoch) + 1;
  const u32 ready = load(&c.state->ready), stage = load(&c.state->stage);
  const u64 active = load(c.active);
  const bool failed = thread == 0 && has_failed(c);
  // Of the rank that this thread has to do with: what was sent to it, where its round begins, and whether it still reads
  // the last round's rows.
  u64 sent = 0, even = 0, odd = 0, credit = 0;
  if (thread < c.ranks) {
    sent = load(c.sent + thread);
    even = load(came_of(c, 0) + thread), odd = load(came_of(c, 1) + thread);
    credit = load_acquire_window(word_of(c, c.rank, thread, Word::ReadyC));
  }
  for (u32 e = thread; e < a.local_experts; e += threads) shared.counts[e] = 0;
  for (u32 e = thread; e < a.experts; e += threads) {
    const u32 owner = load(a.expert_rank + e), number = load(a.expert_number + e);
    shared.owners[e] = owner;
    shared.numbers[e] = number;
  }
  // Those that take part; more tokens than there is room for is a misuse, which one says.
  const bool misuse = stage != static_cast<u32>(Stage::Closed) || tokens > c.capacity;
  const u32 some = tokens == 0 || misuse ? 1 : tokens;
  const u32 blocks = some < grid_blocks() ? some : grid_blocks();
  if (block >= blocks) return;
  const u32 whole = is_aligned16(a.x, a.x_stride) ? static_cast<u32>(a.row_bytes / 16) : 0;
  Ahead ahead{};
  FirstExperts experts{};
  if (!misuse && block < tokens) ahead.load_token(a, block, whole);
  if (!misuse && thread < tokens && a.index_vectors) experts.load_token(a, thread);
  const bool peer = thread < c.ranks && active >> thread & 1;
  if (thread == 0) {
    if (!failed && misuse) fail(c, Failure::Misuse, Phase::DispatchSend, c.rank, Word::Meta, c.capacity, tokens);
    shared.stop = failed || misuse;
  }
  block_barrier();
  if (shared.stop) return;
  const u64 returned = tagged(epoch - 1, ready);
  if (peer && credit != returned &&
      !await_word(c, block == 0, Phase::DispatchSend, thread, Word::ReadyC, tagged(epoch - 1, 0), returned))
    add_shared(&shared.stop, 1);
  for (u32 first = 0; first < tokens; first += threads) {
    const u32 token = first + thread;
    if (token - lane() >= tokens) break;  // the same for a wave
    if (first != 0 && token < tokens && a.index_vectors) experts.load_token(a, token);
    const u32 mask = token < tokens ? owners_of(a, shared, token, experts) : 0;
    if (token < tokens) shared.masks[token] = mask;
    for (u32 rank = 0; rank < c.ranks; rank++) {
      const u64 ballot = wave_ballot(mask >> rank & 1);
      if (lane() == 0) shared.ballots[rank][token / WAVE] = ballot;
    }
  }
  block_barrier();
  if (shared.stop) return;
  for (u32 token = block; token < tokens; token += blocks) {
    if (token != block) ahead.load_token(a, token, whole);
    send_token(a, shared, token, whole, ahead);
  }
  if (thread < c.ranks) {
    const u32 rows = rows_before(shared, thread, tokens);
    shared.rows[thread] = rows;
    shared.sent[thread] = sent + rows;
  }
  drain();
#if !defined(CAMPANILE_BUG_NO_BARRIER)
  block_barrier();
#endif
  const bool receives = a.phases & RECEIVE;
  if (thread == 0) {
    const bool last = finish(c, blocks, Tickets::None) == blocks - 1;
    shared.last = last;
    // One lane has fenced, so that one stores.
    for (u32 rank = 0; rank < c.ranks && last; rank++) {
      if (!(active >> rank & 1)) continue;
      u64* line = word_of(c, rank, c.rank, Word::Meta);
      store_relaxed<Scope::System>(line + static_cast<u32>(Word::Rows), shared.sent[rank]);
      store_relaxed<Scope::System>(line, tagged(epoch, shared.rows[rank]));
    }
  }
  if (blocks > 1) {
    block_barrier();
    if (!shared.last) return;
  }
  if (thread < c.ranks) {
    store(c.rows_to + thread, shared.rows[thread]);
    store(c.sent + thread, shared.sent[thread]);
  }
  if (thread == 0) {
    store(&c.state->epoch, epoch);
    store(&c.state->tokens, tokens);
    store(&c.state->stage, static_cast<u32>(receives ? Stage::Dispatched : Stage::DispatchSent));
  }
  if (receives) {
    if (thread < c.ranks) {
      u32 rows = 0;
      if (peer && !await_rows(c, true, true, thread, epoch, epoch & 1 ? odd : even, rows)) add_shared(&shared.stop, 1);
      shared.came[thread] = rows;
      store(c.rows_from + thread, rows);
    }
    block_barrier();
    if (shared.stop) return;
    count_experts(a, shared);
    block_barrier();
  }
  // Those of a send alone are 0: what receives adds to them.
  for (u32 e = thread; e < a.local_experts; e += threads) store(a.expert_counts + e, shared.counts[e]);
}
