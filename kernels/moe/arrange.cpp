// MoE layouts: the rows that came, in another order; copied, or only mapped.
//
// Compact: without gaps, ordered by source, then by row. Expert-major: grouped by local expert, each group padded to a
// multiple of rows; a row stands once for each of its slots here, ordered by (source, row, slot), so that a place does not
// depend on the geometry. Counts, offsets and the map from places to rows stay on the device.
//
// A block arranges a contiguous part of the rows. It counts those before it by itself, which costs less than asking the
// others; so blocks never wait. A thread then places the rows of an expert, one after the other, a tile at a time.
#include "moe/layout.h"
#include "moe/sum.h"
#include "portable.h"

using namespace campanile;

struct ArrangeArguments {
  MoeCommon common;
  u8* x;  // [limit] rows, at any alignment; null: rows are only mapped
  u64 x_stride;
  u64 row_bytes;
  u32* scales;    // [limit][scale_count], or null
  Vec16* map;     // [limit] source, row, slot (NONE if compact), source token; all NONE: a row that pads a group
  u32* offsets;   // first row of each group (a source, or an expert), then the rows in all
  u32* places;    // expert-major: see Results
  u32* arranged;  // the epoch that this was done for
  const u32* expert_counts;
  u32 limit, scale_count, local_experts, alignment;
};

constexpr u32 TILE = 2048;           // slots that are placed at a time
constexpr u32 TILE_ROWS = 512;       // rows of a tile at most
constexpr u32 GROUP_EXPERTS = 1024;  // experts whose next places are known at a time
constexpr u32 COPIES = 4;            // vectors of a row that a lane has in flight; with more, registers spill

struct ArrangeShared {
  u32 experts[TILE];
  u32 source[TILE_ROWS], row[TILE_ROWS];
  u32 next[GROUP_EXPERTS];  // place of the next row for each expert
  u32 total;                // rows in all, with padding
  u32 stop;
};

// Row `number` of all.
struct Came {
  u32 source, row;
};
CAMPANILE_DEVICE Came row_number(const MoeCommon& c, u64 number) {
  u32 source = 0;
  for (; source + 1 < c.ranks; source++) {
    const u32 rows = load(c.rows_from + source);
    if (number < rows) break;
    number -= rows;
  }
  return {source, static_cast<u32>(number)};
}

CAMPANILE_DEVICE const u32* meta_of(const MoeCommon& c, Came at) {
  return reinterpret_cast<const u32*>(window(c, c.rank) + row_at(c, c.meta, c.meta_stride, at.source, at.row));
}

CAMPANILE_DEVICE u32 padded(const ArrangeArguments& a, u32 rows) {
  return (rows + a.alignment - 1) / a.alignment * a.alignment;
}

CAMPANILE_DEVICE void store_part(const ArrangeArguments& a, u32 place, u32 vector, bool whole, Vec16 v) {
  const u64 at = static_cast<u64>(vector) * 16;
  u8* to = a.x + place * a.x_stride + at;
  if (whole)
    store16(reinterpret_cast<Vec16*>(to), v);
  else
    store_bytes(to, v, a.row_bytes - at < 16 ? static_cast<u32>(a.row_bytes - at) : 16);
}

CAMPANILE_DEVICE u32 whole_vectors(const ArrangeArguments& a) {
  return is_aligned16(a.x, a.x_stride) ? static_cast<u32>(a.row_bytes / 16) : 0;
}

// Copies a part of a row to the places that the lanes in `valid` hold.
CAMPANILE_DEVICE void copy_row(const ArrangeArguments& a, Came from, u32 mine, u64 valid, RowPart part) {
  const MoeCommon& c = a.common;
  const u32 whole = whole_vectors(a), middle = part.to < whole ? part.to : whole < part.from ? part.from : whole;
  const Vec16* row = reinterpret_cast<const Vec16*>(
      window(c, c.rank) + row_at(c, c.rows, c.row_stride, from.source, from.row));
  for (u32 first = part.from; first < middle; first += WAVE * COPIES) {
    const Vec16* p[COPIES];
    Vec16 v[COPIES];
    CAMPANILE_UNROLL
    for (u32 k = 0; k < COPIES; k++) {
      const u32 i = first + WAVE * k + lane();
      p[k] = row + (i < middle ? i : middle - 1);
    }
    load_many(p, v);
    for (u64 left = valid; left != 0; left &= left - 1) {
      const u32 place = wave_shuffle(mine, first_set(left));
      CAMPANILE_UNROLL
      for (u32 k = 0; k < COPIES; k++)
        if (first + WAVE * k + lane() < middle) store_part(a, place, first + WAVE * k + lane(), true, v[k]);
    }
  }
  for (u32 first = middle; first < part.to; first += WAVE) {
    const u32 i = first + lane();
    const Vec16 v = load16_window(row + (i < part.to ? i : part.to - 1));
    for (u64 left = valid; left != 0; left &= left - 1) {
      const u32 place = wave_shuffle(mine, first_set(left));
      if (i < part.to) store_part(a, place, i, false, v);
    }
  }
}

CAMPANILE_DEVICE void copy_scales(const ArrangeArguments& a, Came from, u32 mine, u64 valid) {
  const MoeCommon& c = a.common;
  const u32* scales = reinterpret_cast<const u32*>(
      window(c, c.rank) + row_at(c, c.scales, c.scale_stride, from.source, from.row));
  for (u64 left = valid; left != 0; left &= left - 1) {
    u32* to = a.scales + static_cast<u64>(wave_shuffle(mine, first_set(left))) * a.scale_count;
    for (u32 at = lane(); at < a.scale_count; at += WAVE)
      store(to + at, load_relaxed<Scope::System>(scales + at));
  }
}

// Copies what belongs to a row, or a part of it.
CAMPANILE_DEVICE void copy_all(const ArrangeArguments& a, Came from, u32 mine, u64 valid, u32 part,
                               const RowSplit& split) {
  if (a.x != nullptr) copy_row(a, from, mine, valid, split.part(part));
  if (a.scales != nullptr && part == 0) copy_scales(a, from, mine, valid);
}

// Whether this block can do its part; what cannot be is recorded. `needed` rows are.
CAMPANILE_DEVICE bool may_arrange(const ArrangeArguments& a, u64 needed) {
  const MoeCommon& c = a.common;
  if (has_failed(c)) return false;
  if (load(&c.state->stage) != static_cast<u32>(Stage::Dispatched)) {
    fail(c, Failure::Misuse, Phase::DispatchReceive, c.rank, Word::Rows, c.capacity, load(&c.state->tokens));
    return false;
  }
  if (needed > a.limit) {
    fail(c, Failure::Overflow, Phase::DispatchReceive, c.rank, Word::Rows, a.limit, needed);
    return false;
  }
  return true;
}

CAMPANILE_KERNEL(moe_compact, 512, ArrangeArguments, argument) {
  CAMPANILE_LARGE_ARGUMENT(ArrangeArguments, a, argument);
  CAMPANILE_SHARED u32 stop;
  const MoeCommon& c = a.common;
  const u64 rows = rows_before(c, c.ranks);
  if (thread_index() == 0) stop = !may_arrange(a, rows);
  block_barrier();
  if (stop) return;
  const u32 waves = grid_blocks() * block_waves(), wave = wave_index() * grid_blocks() + block_index();
  const RowSplit split = split_rows(static_cast<u32>((a.row_bytes + 15) / 16), rows, waves);
  for (u64 item = wave; item < rows * split.parts; item += waves) {
    const u32 place = static_cast<u32>(item / split.parts), part = static_cast<u32>(item % split.parts);
    const Came from = row_number(c, place);
    copy_all(a, from, place, 1, part, split);
    if (part == 0 && lane() == 0)
      store16(a.map + place, {from.source, from.row, NONE, load_relaxed<Scope::System>(meta_of(c, from))});
  }
  if (block_index() != 0) return;
  for (u32 source = thread_index(); source <= c.ranks; source += block_threads())
    store(a.offsets + source, static_cast<u32>(rows_before(c, source)));
  if (thread_index() == 0) store(a.arranged, load(&c.state->epoch));
}

// Wave 0: the first places of the experts from `first` on; `begin` is the first one's. The place behind them.
CAMPANILE_DEVICE u32 start_groups(const ArrangeArguments& a, ArrangeShared& shared, u32 first, u32 begin) {
  const u32 experts = a.local_experts - first < GROUP_EXPERTS ? a.local_experts - first : GROUP_EXPERTS;
  for (u32 base = 0; base < experts; base += WAVE) {
    const u32 e = base + lane();
    const u32 rows = e < experts ? padded(a, load(a.expert_counts + first + e)) : 0;
    u32 behind = rows;
    for (u32 step = 1; step < WAVE; step *= 2) {
      const u32 other = wave_shuffle(behind, (lane() + WAVE - step) % WAVE);
      if (lane() >= step) behind += other;
    }
    if (e < experts) {
      shared.next[e] = begin + behind - rows;
      if (block_index() == 0) store(a.offsets + first + e, begin + behind - rows);
    }
    begin += wave_shuffle(behind, WAVE - 1);
  }
  return begin;
}

// Fills the rows that pad the groups of this block's share of the experts from `first` on.
CAMPANILE_DEVICE void pad_groups(const ArrangeArguments& a, const ArrangeShared& shared, u32 first) {
  const u32 waves = grid_blocks() * block_waves(), wave = wave_index() * grid_blocks() + block_index();
  const u32 vectors = static_cast<u32>((a.row_bytes + 15) / 16), whole = a.x == nullptr ? 0 : whole_vectors(a);
  for (u32 e = wave; e < GROUP_EXPERTS && first + e < a.local_experts; e += waves) {
    const u32 rows = load(a.expert_counts + first + e), end = shared.next[e] + padded(a, rows);
    for (u32 place = shared.next[e] + rows; place < end; place++) {
      if (lane() == 0) store16(a.map + place, {NONE, NONE, NONE, NONE});
      for (u32 i = lane(); i < vectors && a.x != nullptr; i += WAVE) store_part(a, place, i, i < whole, Vec16{});
      for (u32 at = lane(); at < a.scale_count && a.scales != nullptr; at += WAVE)
        store(a.scales + static_cast<u64>(place) * a.scale_count + at, 0u);
    }
  }
}

// Counts the rows [0, end) for the experts from `first` on.
CAMPANILE_DEVICE void count_rows(const ArrangeArguments& a, ArrangeShared& shared, u32 first, u64 end) {
  const MoeCommon& c = a.common;
  for (u32 source = 0; source < c.ranks && end != 0; source++) {
    const u32 came = load(c.rows_from + source), rows = end < came ? static_cast<u32>(end) : came;
    for (u32 row = thread_index(); row < rows; row += block_threads()) {
      const Vec16* meta = reinterpret_cast<const Vec16*>(meta_of(c, {source, row}));
      for (u32 i = 0; i <= c.topk / 4; i++) {
        const Vec16 v = load16_window(meta + i);
        const u32 words[4] = {v.x, v.y, v.z, v.w};
        CAMPANILE_UNROLL
        for (u32 k = 0; k < 4; k++) {
          // Word 0 is the token, those behind the slots are weights.
          const bool slot = 4 * i + k >= 1 && 4 * i + k <= c.topk;
          if (slot && words[k] - first < GROUP_EXPERTS && words[k] < a.local_experts)
            add_shared(&shared.next[words[k] - first], 1);
        }
      }
    }
    end -= rows;
  }
}

// Places the rows [begin, end) for the experts from `first` on, in order.
CAMPANILE_DEVICE void place_rows(const ArrangeArguments& a, ArrangeShared& shared, u32 first, u64 begin, u64 end) {
  const MoeCommon& c = a.common;
  const u32 slots = c.topk < TILE ? c.topk : TILE;
  const u32 most = TILE / slots < TILE_ROWS ? TILE / slots : TILE_ROWS;
  for (u64 number = begin; number < end; number += most) {
    const u32 rows = end - number < most ? static_cast<u32>(end - number) : most;
    for (u32 slot = 0; slot < c.topk; slot += slots) {
      const u32 width = c.topk - slot < slots ? c.topk - slot : slots;
      block_barrier();
      for (u32 i = wave_index(); i < rows; i += block_waves()) {
        const Came at = row_number(c, number + i);
        if (lane() == 0) shared.source[i] = at.source, shared.row[i] = at.row;
        const u32* meta = meta_of(c, at) + 1 + slot;
        for (u32 k = lane(); k < width; k += WAVE)
          shared.experts[i * width + k] = load_relaxed<Scope::System>(meta + k);
      }
      block_barrier();
      for (u32 e = thread_index(); e < GROUP_EXPERTS && first + e < a.local_experts; e += block_threads()) {
        u32 next = shared.next[e];
        for (u32 i = 0; i < rows; i++)
          for (u32 k = 0; k < width; k++) {
            if (shared.experts[i * width + k] != first + e) continue;
            const u64 row = static_cast<u64>(shared.source[i]) * c.capacity + shared.row[i];
            store(a.places + row * c.topk + slot + k, next++);
          }
        shared.next[e] = next;
      }
    }
  }
}

// A wave: maps the places of a row, and moves them to the front of its list. `number`: which row of all.
CAMPANILE_DEVICE void list_places(const ArrangeArguments& a, u64 number) {
  const MoeCommon& c = a.common;
  const Came at = row_number(c, number);
  const u32* meta = meta_of(c, at);
  u32* list = a.places + (static_cast<u64>(at.source) * c.capacity + at.row) * c.topk;
  const u32 token = load_relaxed<Scope::System>(meta);
  u32 count = 0;
  for (u32 first = 0; first < c.topk; first += WAVE) {
    const u32 slot = first + lane();
    const bool here = slot < c.topk && load_relaxed<Scope::System>(meta + 1 + slot) < a.local_experts;
    const u32 place = here ? load(list + slot) : NONE;
    const u64 valid = wave_ballot(here);
    wave_barrier();
    if (here) {
      store16(a.map + place, {at.source, at.row, slot, token});
      store(list + count + popcount(valid & ((u64{1} << lane()) - 1)), place);
    }
    count += popcount(valid);
    wave_barrier();
  }
  if (lane() == 0 && count < c.topk) store(list + count, NONE);
}

CAMPANILE_KERNEL(moe_expert_major, 512, ArrangeArguments, argument) {
  CAMPANILE_LARGE_ARGUMENT(ArrangeArguments, a, argument);
  CAMPANILE_SHARED ArrangeShared shared;
  const MoeCommon& c = a.common;
  if (thread_index() == 0) shared.total = 0;
  block_barrier();
  for (u32 e = thread_index(); e < a.local_experts; e += block_threads())
    add_shared(&shared.total, padded(a, load(a.expert_counts + e)));
  block_barrier();
  if (thread_index() == 0) shared.stop = !may_arrange(a, shared.total);
  block_barrier();
  if (shared.stop) return;
  const u64 rows = rows_before(c, c.ranks);
  const u64 begin = rows * block_index() / grid_blocks(), end = rows * (block_index() + 1) / grid_blocks();
  u32 start = 0;
  for (u32 first = 0; first < a.local_experts; first += GROUP_EXPERTS) {
    if (wave_index() == 0) start = start_groups(a, shared, first, start);
    block_barrier();
    pad_groups(a, shared, first);
    block_barrier();
    count_rows(a, shared, first, begin);
    place_rows(a, shared, first, begin, end);
    block_barrier();
  }
  if (block_index() == 0 && thread_index() == 0) {
    store(a.offsets + a.local_experts, shared.total);
    store(a.arranged, load(&c.state->epoch));
  }
  drain();
  block_barrier();
  for (u64 number = begin + wave_index(); number < end; number += block_waves()) list_places(a, number);
  if (a.x == nullptr && a.scales == nullptr) return;
  drain();
  block_barrier();
  const RowSplit split = split_rows(static_cast<u32>((a.row_bytes + 15) / 16), end - begin, block_waves());
  for (u64 item = wave_index(); item < (end - begin) * split.parts; item += block_waves()) {
    const Came from = row_number(c, begin + item / split.parts);
    const u32* list = a.places + (static_cast<u64>(from.source) * c.capacity + from.row) * c.topk;
    for (u32 first = 0; first < c.topk; first += WAVE) {
      const u32 mine = load_listed(list + first, c.topk - first);
      // Behind the end of the list stand places of earlier rounds.
      const u64 ended = wave_ballot(mine == NONE);
      const u64 valid = ended == 0 ? ~u64{0} >> (64 - WAVE) : (u64{1} << first_set(ended)) - 1;
      copy_all(a, from, mine, valid, static_cast<u32>(item % split.parts), split);
      if (ended != 0) break;
    }
  }
}
