// Where the experts of a rank left the results of a round, and how one gets to where the sources read it.
//
// In place: in the `outputs` plane. Compact: in rows of the caller's, ordered by source, then by row. Expert-major: in rows
// of the caller's, one for each slot that a token has here; they are summed in slot order, in f32, rounded once.
#ifndef CAMPANILE_MOE_RESULTS_H
#define CAMPANILE_MOE_RESULTS_H

#include "moe/layout.h"
#include "moe/sum.h"
#include "portable.h"

namespace campanile {

enum class Layout : u32 { InPlace = 0, Compact = 1, ExpertMajor = 2 };

struct Results {
  const u8* data;  // the caller's rows, at any alignment; null in place
  u64 stride;
  u64 row_bytes;
  const u32* places;   // expert-major: [source][capacity][topk] rows of `data` in slot order, ended by NONE if fewer
  const u32* arranged;  // expert-major: the epoch whose rows these are
  u32 layout;
  u32 unused;
};

CAMPANILE_DEVICE bool in_place(const Results& r) { return r.layout == static_cast<u32>(Layout::InPlace); }

// Whether the places are not those of the round.
CAMPANILE_DEVICE bool is_stale(const Results& r, u32 epoch) {
  return r.layout == static_cast<u32>(Layout::ExpertMajor) && load(r.arranged) != epoch;
}

CAMPANILE_DEVICE u32 result_vectors(const Results& r) { return static_cast<u32>((r.row_bytes + 15) / 16); }

// A row of the caller's, or the only one.
struct PlacedRow {
  const u8* base;
  u64 stride;

  CAMPANILE_MEMBER const u8* at(u32 place) const { return base + place * stride; }
  CAMPANILE_MEMBER const Vec16* operator()(u32 place) const { return reinterpret_cast<const Vec16*>(at(place)); }
};

// As sum_list, for rows at odd addresses. No list: the only row.
CAMPANILE_DEVICE void sum_bytes(const OutRow& out, const PlacedRow& rows, const u32* list, u32 slots, RowPart part) {
  for (u32 i = part.from + lane(); i < part.to; i += WAVE) {
    const u64 at = static_cast<u64>(i) * 16;
    const u32 bytes = out.bytes - at < 16 ? static_cast<u32>(out.bytes - at) : 16;
    float sum[Sum::COUNT] = {};
    Vec16 v{};
    u32 n = 0;
    for (; n < slots; n++) {
      const u32 place = list == nullptr ? 0 : load(list + n);
      if (place == NONE) break;
      v = load_bytes(rows.at(place) + at, bytes);
      float x[Sum::COUNT];
      Sum::widen(v, x);
      CAMPANILE_UNROLL
      for (u32 k = 0; k < Sum::COUNT; k++) sum[k] = n == 0 ? x[k] : sum[k] + x[k];
    }
    store_vector<Out::Window>(out, i, n == 1 ? v : Sum::narrow(sum));
  }
}

// Writes a part of the result of row `row` of `source` to the window row `to`. `before`: rows of earlier sources.
CAMPANILE_DEVICE void write_result(const MoeCommon& c, const Results& r, u32 source, u32 row, u64 before, u8* to,
                                   RowPart part) {
  const OutRow out{to, r.row_bytes, 0};
  PlacedRow rows{r.data, r.stride};
  const u32* list = nullptr;
  u32 slots = 1, mine = lane() == 0 ? 0 : NONE;
  switch (static_cast<Layout>(r.layout)) {
    case Layout::InPlace:
      rows.base = window(c, c.rank) + row_at(c, c.outputs, c.output_stride, source, row);
      break;
    case Layout::Compact: rows.base += (before + row) * r.stride; break;
    default:
      slots = c.topk;
      list = r.places + (static_cast<u64>(source) * c.capacity + row) * slots;
      mine = load_listed(list, slots);
  }
  if (in_place(r) || is_aligned16(r.data, r.stride))
    sum_list<Out::Window>(out, rows, list, slots, mine, part);
  else
    sum_bytes(out, rows, list, slots, part);
}

}  // namespace campanile

#endif
