// MoE dispatch: every token to the ranks that own its experts, once a rank; then what the others sent is waited for.
//
// Routing is counted, not negotiated: a row's place is its ordinal among this rank's tokens for that owner. Each block
// has a contiguous chunk of the tokens and counts those before it by itself, which costs less than asking the others.
// Ranks are looked at 64 at a time. A wave copies a row, or a part of one where a block has more waves than tokens. The
// block that finishes last publishes META and ROWS.
//
// Then the blocks that finished last, `receivers` of them, wait for all sources and count the rows by expert; the others
// are gone. As many must fit on the device at once; when the first of them waits, those that have not begun find its
// place or another's, so any number of blocks does. Slots of masked ranks have no owner in `expert_rank`.
//
// With CAMPANILE_MOE_QUANTIZE, an FP8 type, rows come as bf16 and are quantised to it as they are sent. It is known when
// the kernel is compiled, so that it costs other rows nothing.
#include "moe/dispatch.h"
#include "moe/layout.h"
#include "portable.h"
#include "wait.h"
#if defined(CAMPANILE_MOE_QUANTIZE)
#include "moe/quantize.h"
#endif

using namespace campanile;

constexpr u32 CHUNK = 256;            // tokens that a block routes at a time
constexpr u32 GROUP = 64;             // ranks that are looked at at a time
constexpr u32 SHARED_EXPERTS = 1024;  // as many experts are looked up in shared memory
constexpr u32 MAX_WAVES = 512 / WAVE;

struct DispatchShared {
  u64 masks[CHUNK];                // owners of each token, one bit a rank of the group
  u64 ballots[GROUP][CHUNK / WAVE];  // the same by rank, one bit a token
  u32 base[GROUP];                 // rows for each rank before the chunk
  u32 ordinals[MAX_WAVES][GROUP];  // of the row that a wave copies
  u32 experts[SHARED_EXPERTS];     // owner of each expert; later the rows that came for each
  u32 numbers[SHARED_EXPERTS];     // number of each expert at its owner
  u32 came[GROUP];                 // rows from each source, where there are so few
  u64 sent[GROUP];                 // value of the ROWS word at each owner, where there are so few
  u64 active;                      // bits of the ranks of the group that are not masked
  u32 stop;                        // not 0: this block has failed, or found the operation failed
  u32 ticket;                      // how many blocks began before this one
  u32 receiver;                    // which of the receivers this block is; NONE: it is none
};

CAMPANILE_DEVICE u64 below(u32 bit) { return (u64{1} << bit) - 1; }

CAMPANILE_DEVICE u32 owner_of(const DispatchArguments& a, const DispatchShared& shared, u32 expert) {
  if (expert == NONE) return NONE;
  return a.experts <= SHARED_EXPERTS ? shared.experts[expert] : load(a.expert_rank + expert);
}

// Owners of a token among the ranks from `first` on.
CAMPANILE_DEVICE u64 owners_of(const DispatchArguments& a, const DispatchShared& shared, u32 token, u32 first) {
  const u32 topk = a.common.topk;
  const u64 begin = static_cast<u64>(token) * topk;
  u64 mask = 0;
  if (a.index_vectors) {
    for (u32 slot = 0; slot < topk; slot += 4) {
      Vec16 v = load16(static_cast<const Vec16*>(a.topk_idx) + (begin + slot) / 4);
      const u32 experts[4] = {v.x, v.y, v.z, v.w};
      CAMPANILE_UNROLL
      for (u32 expert : experts) {
        u32 bit = owner_of(a, shared, expert < a.experts ? expert : NONE) - first;
        if (bit < GROUP) mask |= u64{1} << bit;
      }
    }
  } else {
    for (u32 slot = 0; slot < topk; slot++) {
      u32 bit = owner_of(a, shared, expert_of(a, begin + slot)) - first;
      if (bit < GROUP) mask |= u64{1} << bit;
    }
  }
  return mask;
}

#if defined(CAMPANILE_MOE_QUANTIZE)
CAMPANILE_DEVICE void copy_row(const DispatchArguments& a, u32 token, u64 mask, const u32* ordinals, u32 first,
                               u32 turn, u32 from, u32 to) {
  const u32 hidden = static_cast<u32>(a.row_bytes), block = (hidden + a.scale_count - 1) / a.scale_count;
  const bool aligned = is_aligned16(a.x, a.x_stride);
  const WideRow row{a.x + token * a.x_stride, aligned, hidden, a.scale_count, block};
  send_quantized<CAMPANILE_MOE_QUANTIZE>(row, {a.common, mask, ordinals, first, turn}, from, to);
}
#else
constexpr u32 UNROLL = WAVE == 32 ? 14 : 5;  // vectors of a row that a lane has in flight

// Copies vectors [from, to) of a row to the owners in `mask`, those from `turn` on first, so that the links share the
// load and rows for oneself are not first everywhere.
CAMPANILE_DEVICE void copy_vectors(const MoeCommon& c, const Vec16* x, u64 mask, const u32* ordinals, u32 first,
                                   u32 turn, u32 from, u32 to) {
  const u64 rotated = turn == 0 ? mask : mask >> turn | mask << (GROUP - turn);
  for (u32 i = from + lane(); i < to; i += WAVE * UNROLL) {
    Vec16 v[UNROLL];
    CAMPANILE_UNROLL
    for (u32 k = 0; k < UNROLL; k++)
      if (i + WAVE * k < to) v[k] = load16_stream(x + i + WAVE * k);
    // Bit b of `left` is rank (turn + b) mod 64 of the group.
    for (u64 left = rotated; left != 0; left &= left - 1) {
      const u32 bit = (first_set(left) + turn) % GROUP;
      Vec16* target = reinterpret_cast<Vec16*>(window(c, first + bit) +
                                               row_at(c, c.rows, c.row_stride, c.rank, ordinals[bit])) + i;
      CAMPANILE_UNROLL
      for (u32 k = 0; k < UNROLL; k++)
        if (i + WAVE * k < to) store16_window(target + WAVE * k, v[k]);
    }
  }
}

// The same by bytes: what is left of a row, and rows at odd addresses.
CAMPANILE_DEVICE void copy_bytes(const DispatchArguments& a, const u8* x, u64 mask, const u32* ordinals, u32 first,
                                 u32 from, u32 to) {
  const MoeCommon& c = a.common;
  for (u32 i = from + lane(); i < to; i += WAVE) {
    const u64 at = static_cast<u64>(i) * 16, bytes = a.row_bytes - at;
    const Vec16 v = load_bytes(x + at, bytes < 16 ? static_cast<u32>(bytes) : 16);
    for (u64 left = mask; left != 0; left &= left - 1) {
      const u32 bit = first_set(left);
      store16_window(reinterpret_cast<Vec16*>(window(c, first + bit) +
                                              row_at(c, c.rows, c.row_stride, c.rank, ordinals[bit])) + i, v);
    }
  }
}

CAMPANILE_DEVICE void copy_row(const DispatchArguments& a, u32 token, u64 mask, const u32* ordinals, u32 first,
                               u32 turn, u32 from, u32 to) {
  const u8* x = a.x + token * a.x_stride;
  const u32 whole = is_aligned16(a.x, a.x_stride) ? static_cast<u32>(a.row_bytes / 16) : 0;
  const u32 middle = to < whole ? to : whole < from ? from : whole;
  copy_vectors(a.common, reinterpret_cast<const Vec16*>(x), mask, ordinals, first, turn, from, middle);
  if (middle < to) copy_bytes(a, x, mask, ordinals, first, middle, to);
}
#endif

CAMPANILE_DEVICE u32 number_of(const DispatchArguments& a, const DispatchShared& shared, u32 expert) {
  return a.experts <= SHARED_EXPERTS ? shared.numbers[expert] : load(a.expert_number + expert);
}

// Writes routing and scales of a token's rows at the owners in `mask`: source token, K expert numbers, K weights. A lane
// a word, loaded once for all of them; weight and expert of a slot do not wait for each other. Scales that are made here
// go with their row.
CAMPANILE_DEVICE void write_meta(const DispatchArguments& a, const DispatchShared& shared, u32 token, u64 mask,
                                 const u32* ordinals, u32 first) {
  const MoeCommon& c = a.common;
  for (u32 at = lane(); at <= 2 * c.topk; at += WAVE) {
    const bool weight = at > c.topk;
    u32 value = token, elsewhere = token, owner = NONE;
    if (at != 0) {
      const u64 slot = static_cast<u64>(token) * c.topk + (at - 1) % c.topk;
      value = weight && a.topk_weights != nullptr ? load(a.topk_weights + slot) : 0;
      const u32 expert = expert_of(a, slot);
      owner = owner_of(a, shared, expert);
      elsewhere = weight ? 0 : NONE;
      if (!weight && owner != NONE) value = number_of(a, shared, expert);
    }
    for (u64 left = mask; left != 0; left &= left - 1) {
      const u32 bit = first_set(left);
      u8* there = window(c, first + bit) + row_at(c, c.meta, c.meta_stride, c.rank, ordinals[bit]);
      store_window(reinterpret_cast<u32*>(there) + at, owner == first + bit ? value : elsewhere);
    }
  }
#if !defined(CAMPANILE_MOE_QUANTIZE)
  for (u32 at = lane(); at < a.scale_count; at += WAVE) {
    const u32 scale = load(a.scales + static_cast<u64>(token) * a.scale_count + at);
    for (u64 left = mask; left != 0; left &= left - 1) {
      const u32 bit = first_set(left);
      u8* there = window(c, first + bit) + row_at(c, c.scales, c.scale_stride, c.rank, ordinals[bit]);
      store_window(reinterpret_cast<u32*>(there) + at, scale);
    }
  }
#endif
}

// Rows for each rank of the group among the tokens [0, end).
CAMPANILE_DEVICE void count_before(const DispatchArguments& a, DispatchShared& shared, u32 end, u32 first) {
  const u32 ranks = a.common.ranks - first < GROUP ? a.common.ranks - first : GROUP;
  u32 mine[GROUP / WAVE] = {};
  for (u32 group = wave_index() * WAVE; group < end; group += block_waves() * WAVE) {
    const u32 token = group + lane();
    const u64 mask = token < end ? owners_of(a, shared, token, first) : 0;
    for (u32 rank = 0; rank < ranks; rank++) {
      const u32 count = popcount(wave_ballot(mask >> rank & 1));
      CAMPANILE_UNROLL
      for (u32 part = 0; part < GROUP / WAVE; part++)
        if (part * WAVE + lane() == rank) mine[part] += count;
    }
  }
  CAMPANILE_UNROLL
  for (u32 part = 0; part < GROUP / WAVE; part++)
    if (part * WAVE + lane() < ranks && mine[part] != 0) add_shared(&shared.base[part * WAVE + lane()], mine[part]);
}

// Whose the tokens [begin, begin + count) are: masks and ballots. A barrier follows.
CAMPANILE_DEVICE void route_chunk(const DispatchArguments& a, DispatchShared& shared, u32 begin, u32 count, u32 first) {
  const u32 ranks = a.common.ranks - first < GROUP ? a.common.ranks - first : GROUP;
  const u32 words = (count + WAVE - 1) / WAVE;
  for (u32 word = wave_index(); word < words; word += block_waves()) {
    const u32 i = word * WAVE + lane();
    const u64 mask = i < count ? owners_of(a, shared, begin + i, first) : 0;
    shared.masks[i] = mask;
    for (u32 rank = 0; rank < ranks; rank++) {
      const u64 ballot = wave_ballot(mask >> rank & 1);
      if (lane() == 0) shared.ballots[rank][word] = ballot;
    }
  }
}

// Sends them to the group's ranks, and advances `base`, which wave 0 sees.
CAMPANILE_DEVICE void send_chunk(const DispatchArguments& a, DispatchShared& shared, u32 begin, u32 count, u32 first) {
  const MoeCommon& c = a.common;
  const u32 ranks = c.ranks - first < GROUP ? c.ranks - first : GROUP;
  // Where there are more waves than tokens, several take a token: the first writes its routes, the last its routing, and
  // no part of the row, since both take a chain of loads.
  const u32 vectors = static_cast<u32>((a.row_bytes + 15) / 16);
  const u32 parts = count < block_waves() ? block_waves() / count : 1, movers = parts > 1 ? parts - 1 : 1;
  const u32 share = (vectors + movers - 1) / movers;
  u32* ordinals = shared.ordinals[wave_index()];
  for (u32 item = wave_index(); item < count * parts; item += block_waves()) {
    const u32 i = item / parts, part = item % parts, token = begin + i;
    const u64 mask = shared.masks[i];
    u32 before = 0;  // owners in earlier groups
    for (u32 group = 0; group < first; group += GROUP) before += popcount(owners_of(a, shared, token, group));
    for (u32 bit = lane(); bit < ranks; bit += WAVE) {
      if (!(mask >> bit & 1)) continue;
      u32 ordinal = shared.base[bit] + popcount(shared.ballots[bit][i / WAVE] & below(i % WAVE));
      for (u32 word = 0; word < i / WAVE; word++) ordinal += popcount(shared.ballots[bit][word]);
      ordinals[bit] = ordinal;
      if (part == 0) {
        const u64 place = static_cast<u64>(token) * c.route_slots + before + popcount(mask & below(bit));
        store(c.routes + place, route(first + bit, ordinal));
      }
    }
    const u32 routes = before + popcount(mask);
    if (part == 0 && lane() == 0 && first + GROUP >= c.ranks && routes < c.route_slots)
      store(c.routes + static_cast<u64>(token) * c.route_slots + routes, NO_ROUTE);
    wave_barrier();
    const u32 from = part * share < vectors ? part * share : vectors;
    const u32 to = from + share < vectors ? from + share : vectors;
    copy_row(a, token, mask, ordinals, first, (c.rank + 1 + token) % ranks, from, to);
    if (part == parts - 1) write_meta(a, shared, token, mask, ordinals, first);
    wave_barrier();
  }
  drain();
#if !defined(CAMPANILE_BUG_NO_BARRIER)
  block_barrier();
#endif
  if (wave_index() != 0) return;
  for (u32 rank = lane(); rank < ranks; rank += WAVE)
    for (u32 word = 0; word < (count + WAVE - 1) / WAVE; word++)
      shared.base[rank] += popcount(shared.ballots[rank][word]);
}

// Wave 0 of the block that finished last: publishes META and ROWS, and begins the round. One lane has fenced, so that one
// stores.
CAMPANILE_DEVICE void publish_rows(const DispatchArguments& a, const DispatchShared& shared, u32 epoch, u32 tokens) {
  const MoeCommon& c = a.common;
  const bool alone = grid_blocks() == 1, few = c.ranks <= GROUP;
  for (u32 first = 0; first < c.ranks; first += WAVE) {
    const u32 peer = first + lane();
    u32 rows = 0;
    u64 total = 0;
    bool active = false;
    if (peer < c.ranks) {
      active = few ? shared.active >> peer & 1 : is_active(c, peer);
      rows = alone && few ? shared.base[peer] : load_relaxed<Scope::Device>(c.rows_to + peer);
      total = (few ? shared.sent[peer] : load(c.sent + peer)) + rows;
    }
    for (u64 left = wave_ballot(active); left != 0; left &= left - 1) {
      const u32 from = first_set(left);
      const u32 rows_to = wave_shuffle(rows, from);
      const u64 rows_ever = wave_shuffle(total, from);
      if (lane() != 0) continue;
      store_relaxed<Scope::System>(word_of(c, first + from, c.rank, Word::Rows), rows_ever);
      store_relaxed<Scope::System>(word_of(c, first + from, c.rank, Word::Meta), tagged(epoch, rows_to));
    }
    if (active) store(c.sent + peer, total);
  }
  if (lane() == 0) {
    store(&c.state->epoch, epoch);
    store(&c.state->tokens, tokens);
    // Whatever is still to be received in this launch: nobody looks before it is over.
    store(&c.state->stage, static_cast<u32>(a.phases & RECEIVE ? Stage::Dispatched : Stage::DispatchSent));
  }
}

// Takes note of the rows that came from a source: the same from every block.
CAMPANILE_DEVICE void take_rows(const MoeCommon& c, DispatchShared& shared, u32 source, u32 rows) {
  store_relaxed<Scope::Device>(c.rows_from + source, rows);
  if (source < GROUP) shared.came[source] = rows;
}

// Counts this receiver's part of the rows that came, by expert.
CAMPANILE_DEVICE void count_experts(const DispatchArguments& a, DispatchShared& shared) {
  const MoeCommon& c = a.common;
  const bool in_shared = a.local_experts <= SHARED_EXPERTS;
  const u64 threads = static_cast<u64>(a.receivers) * block_threads();
  for (u32 source = 0; source < c.ranks; source++) {
    const u32 rows =
        c.ranks <= GROUP ? shared.came[source] : load_relaxed<Scope::Device>(c.rows_from + source);
    for (u64 row = static_cast<u64>(shared.receiver) * block_threads() + thread_index(); row < rows; row += threads) {
      const Vec16* meta = reinterpret_cast<const Vec16*>(
          window(c, c.rank) + row_at(c, c.meta, c.meta_stride, source, static_cast<u32>(row)));
      // Four vectors at a time, the last one again where there are fewer.
      const u32 last = c.topk / 4;
      for (u32 first = 0; first <= last; first += 4) {
        const Vec16* p[4];
        Vec16 v[4];
        CAMPANILE_UNROLL
        for (u32 n = 0; n < 4; n++) p[n] = meta + (first + n < last ? first + n : last);
        load16_window(p, v);
        CAMPANILE_UNROLL
        for (u32 n = 0; n < 4; n++) {
          const u32 words[4] = {v[n].x, v[n].y, v[n].z, v[n].w};
          CAMPANILE_UNROLL
          for (u32 k = 0; k < 4; k++) {
            const u32 at = 4 * (first + n) + k;
            if (at < 1 || at > c.topk || words[k] >= a.local_experts) continue;
            if (in_shared)
              add_shared(&shared.experts[words[k]], 1);
            else
              fetch_add_relaxed<Scope::Device>(a.expert_counts + words[k], 1u);
          }
        }
      }
    }
  }
  if (!in_shared) return;
  block_barrier();
  for (u32 e = thread_index(); e < a.local_experts; e += block_threads())
    if (shared.experts[e] != 0) fetch_add_relaxed<Scope::Device>(a.expert_counts + e, shared.experts[e]);
}

// Sends the tokens. A block that has failed says so in `shared.stop`; one that is to receive has its number.
CAMPANILE_DEVICE void send(const DispatchArguments& a, DispatchShared& shared, u32 tokens, u32 epoch, u32 ready) {
  const MoeCommon& c = a.common;
  const u32 block = block_index(), blocks = grid_blocks();
  const u32 begin = static_cast<u32>(static_cast<u64>(tokens) * block / blocks);
  const u32 end = static_cast<u32>(static_cast<u64>(tokens) * (block + 1) / blocks);
  for (u32 first = 0; first < c.ranks; first += GROUP) {
    if (first != 0) block_barrier();
    for (u32 rank = thread_index(); rank < GROUP; rank += block_threads()) shared.base[rank] = 0;
    block_barrier();
    const u32 head = end - begin < CHUNK ? end - begin : CHUNK;
    route_chunk(a, shared, begin, head, first);
    count_before(a, shared, begin, first);
    if (first == 0) {
      // Meanwhile the credit of every rank: it may still be reading the last round's rows.
      for (u32 peer = block_threads() - 1 - thread_index(); peer < c.ranks; peer += block_threads()) {
        if (!(peer < GROUP ? shared.active >> peer & 1 : is_active(c, peer))) continue;
        const u64 credit = tagged(epoch - 1, ready), oldest = tagged(epoch - 1, 0);
        if (!await_word(c, shared.ticket == 0, Phase::DispatchSend, peer, Word::ReadyC, oldest, credit))
          add_shared(&shared.stop, 1);
      }
    }
    block_barrier();
    if (shared.stop) return;
    for (u32 chunk = begin; chunk < end; chunk += CHUNK) {
      const u32 count = end - chunk < CHUNK ? end - chunk : CHUNK;
      if (chunk != begin) {
        block_barrier();
        route_chunk(a, shared, chunk, count, first);
        block_barrier();
      }
      send_chunk(a, shared, chunk, count, first);
    }
    // The block that has the end of the tokens knows the totals.
    if (block == blocks - 1 && wave_index() == 0)
      for (u32 rank = lane(); rank < GROUP && first + rank < c.ranks; rank += WAVE)
        store_relaxed<Scope::Device>(c.rows_to + first + rank, shared.base[rank]);
  }
  if (wave_index() != 0) return;
  wave_barrier();
  u32 before = 0;
  if (lane() == 0) {
    before = finish(c, grid_blocks(), Tickets::Taken);
    if (before + a.receivers >= blocks) shared.receiver = before + a.receivers - blocks;
  }
  if (wave_shuffle(before, 0) != blocks - 1) return;
  wave_barrier();
  publish_rows(a, shared, epoch, tokens);
}

// Takes in what the others send.
CAMPANILE_DEVICE void receive(const DispatchArguments& a, DispatchShared& shared, u32 epoch) {
  const MoeCommon& c = a.common;
  for (u32 e = thread_index(); e < a.local_experts && e < SHARED_EXPERTS; e += block_threads()) shared.experts[e] = 0;
  // All threads know that they are to receive before one of them can fail.
  block_barrier();
  for (u32 source = block_threads() - 1 - thread_index(); source < c.ranks; source += block_threads()) {
    if (!(source < GROUP ? shared.active >> source & 1 : is_active(c, source))) {
      take_rows(c, shared, source, 0);
      continue;
    }
    const bool first = shared.receiver == 0;
    u32 rows = 0;
    if (await_rows(c, first, first, source, epoch, load(came_of(c, epoch) + source), rows))
      take_rows(c, shared, source, rows);
    else
      add_shared(&shared.stop, 1);
  }
  block_barrier();
  if (!shared.stop) count_experts(a, shared);
}

CAMPANILE_KERNEL(moe_dispatch, 512, DispatchArguments, argument) {
  CAMPANILE_LARGE_ARGUMENT(DispatchArguments, a, argument);
  CAMPANILE_SHARED DispatchShared shared;
  const MoeCommon& c = a.common;
  const bool sends = a.phases & SEND;
  const u32 tokens = sends ? load(a.tokens) : 0, epoch = load(&c.state->epoch) + sends, ready = load(&c.state->ready);
  const u32 stage = load(&c.state->stage);
  // Asked for here, looked at behind the loads of the others.
  u64 active = 0;
  u32 ticket = 0;
  bool failed = false;
  if (thread_index() == 0) active = load(c.active), ticket = take_ticket(c, grid_blocks()), failed = has_failed(c);
  if (sends) {
    if (a.experts <= SHARED_EXPERTS)
      for (u32 e = thread_index(); e < a.experts; e += block_threads()) {
        const u32 owner = load(a.expert_rank + e), number = load(a.expert_number + e);
        shared.experts[e] = owner;
        shared.numbers[e] = number;
      }
    for (u32 rank = thread_index(); rank < GROUP && rank < c.ranks; rank += block_threads())
      shared.sent[rank] = load(c.sent + rank);
    // Published by the words that every receiver waits for.
    if (block_index() == 0)
      for (u32 e = thread_index(); e < a.local_experts; e += block_threads())
        store_relaxed<Scope::Device>(a.expert_counts + e, 0u);
  }
  if (thread_index() == 0) {
    const bool next = stage == static_cast<u32>(sends ? Stage::Closed : Stage::DispatchSent);
    const bool misuse = !failed && (!next || tokens > c.capacity);
    if (misuse) {
      const Phase phase = sends ? Phase::DispatchSend : Phase::DispatchReceive;
      fail(c, Failure::Misuse, phase, c.rank, Word::Meta, c.capacity, tokens);
    }
    shared.active = active;
    shared.ticket = ticket;
    shared.stop = failed || misuse;
    shared.receiver = !sends && ticket < a.receivers ? ticket : NONE;
  }
  block_barrier();
  if (sends) {
    if (!shared.stop) send(a, shared, tokens, epoch, ready);
    block_barrier();
  }
  const bool receives = (a.phases & RECEIVE) != 0 && shared.receiver != NONE;
  if (receives && !shared.stop) receive(a, shared, epoch);
  if (sends || shared.stop) return;
  block_barrier();
  if (thread_index() == 0 && finish(c, grid_blocks(), Tickets::Taken) == grid_blocks() - 1)
    store(&c.state->stage, static_cast<u32>(Stage::Dispatched));
}
