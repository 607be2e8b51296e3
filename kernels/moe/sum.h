// Sums of rows: element by element in f32, in the order given, rounded once to the combine type.
//
// A wave sums a part of a row. It reads whole window vectors, as many at once as the registers hold, since the latency of
// a link times its rate is far more than a block's. A single row comes out bit by bit, no row as +0.
//
// What to sum is a list: numbers of rows in order, ended by ~0 if there are fewer than `slots`. `row_of` says where a row
// is; rows start at multiples of 16 bytes and may be read to the next one.
//
// CAMPANILE_MOE_TYPE is the combine type.
#ifndef CAMPANILE_MOE_SUM_H
#define CAMPANILE_MOE_SUM_H

#include "moe/layout.h"
#include "moe/number.h"
#include "portable.h"

#if !defined(CAMPANILE_MOE_TYPE)
#define CAMPANILE_MOE_TYPE Type::BF16
#endif

namespace campanile {

using Sum = Numbers<CAMPANILE_MOE_TYPE>;

// Vectors [from, to) of a row are a wave's: `parts` waves share a row of `vectors`.
struct RowPart {
  u32 from, to;
};
struct RowSplit {
  u32 parts, share, vectors;

  CAMPANILE_MEMBER RowPart part(u32 number) const {
    const u32 from = number * share < vectors ? number * share : vectors;
    return {from, from + share < vectors ? from + share : vectors};
  }
};
// For so many rows and waves: a wave a row; where there are more waves, a part of one. The last of several parts may be
// `spare`: nothing is left for it, so that it can do something else which waits as long.
CAMPANILE_DEVICE RowSplit split_rows(u32 vectors, u64 rows, u32 waves, bool spare = false) {
  const u32 most = (vectors + WAVE - 1) / WAVE + spare;
  u32 parts = rows == 0 || rows >= waves ? 1 : waves / static_cast<u32>(rows);
  parts = parts > most ? most : parts;
  const u32 sums = spare && parts > 1 ? parts - 1 : parts;
  // Whole turns of a wave: the loads of a turn that is left over would wait for those before it.
  return {parts, ((vectors + sums - 1) / sums + WAVE - 1) / WAVE * WAVE, vectors};
}

// A row that a sum goes to: `bytes` bytes, of which the first `whole` vectors are stored as such, the rest by bytes.
struct OutRow {
  u8* to;
  u64 bytes;
  u32 whole;
};

// How vectors are stored. A window row is all vectors: its stride is a multiple of 16.
enum class Out { Stream, Window };

template <Out OUT>
CAMPANILE_DEVICE void store_vector(const OutRow& out, u32 vector, Vec16 v) {
  Vec16* to = reinterpret_cast<Vec16*>(out.to) + vector;
  OUT == Out::Window ? store16_window(to, v) : store16_stream(to, v);
}

template <Out OUT>
CAMPANILE_DEVICE void store_any(const OutRow& out, u32 vector, Vec16 v) {
  if (OUT == Out::Window || vector < out.whole) return store_vector<OUT>(out, vector, v);
  const u64 at = static_cast<u64>(vector) * 16;
  store_bytes(out.to + at, v, out.bytes - at < 16 ? static_cast<u32>(out.bytes - at) : 16);
}

// Where the caller's rows at any address take sums.
CAMPANILE_DEVICE OutRow caller_row(u8* out, u64 stride, u64 bytes, u32 number) {
  return {out + number * stride, bytes, is_aligned16(out, stride) ? static_cast<u32>(bytes / 16) : 0};
}

// N rows that are summed.
template <u32 N>
struct Rows {
  const Vec16* from[N];
};

// M loads at once.
template <u32 M>
CAMPANILE_DEVICE void load_many(const Vec16* const (&p)[M], Vec16 (&v)[M]) {
  constexpr u32 N = M >= 8 ? 8 : M >= 4 ? 4 : M >= 2 ? 2 : 1;
  const Vec16* head[N];
  Vec16 loaded[N];
  CAMPANILE_UNROLL
  for (u32 i = 0; i < N; i++) head[i] = p[i];
  if constexpr (N == 1)
    loaded[0] = load16_window(head[0]);
  else
    load16_window(head, loaded);
  CAMPANILE_UNROLL
  for (u32 i = 0; i < N; i++) v[i] = loaded[i];
  if constexpr (M > N) {
    const Vec16* rest[M - N];
    Vec16 others[M - N];
    CAMPANILE_UNROLL
    for (u32 i = N; i < M; i++) rest[i - N] = p[i];
    load_many(rest, others);
    CAMPANILE_UNROLL
    for (u32 i = N; i < M; i++) v[i] = others[i - N];
  }
}

// Vectors i, i + WAVE, … (U of them) of N rows.
template <u32 N, u32 U, Out OUT, bool WHOLE>
CAMPANILE_DEVICE void sum_step(const OutRow& out, const Rows<N>& rows, u32 i) {
  const Vec16* p[N * U];
  Vec16 v[N * U];
  CAMPANILE_UNROLL
  for (u32 u = 0; u < U; u++)
    CAMPANILE_UNROLL
    for (u32 n = 0; n < N; n++) p[u * N + n] = rows.from[n] + i + WAVE * u;
  load_many(p, v);
  CAMPANILE_UNROLL
  for (u32 u = 0; u < U; u++) {
    // A single result comes back bit by bit.
    Vec16 result = v[u * N];
    if constexpr (N > 1) {
      float sum[Sum::COUNT], x[Sum::COUNT];
      Sum::widen(result, sum);
      CAMPANILE_UNROLL
      for (u32 n = 1; n < N; n++) {
        Sum::widen(v[u * N + n], x);
        CAMPANILE_UNROLL
        for (u32 k = 0; k < Sum::COUNT; k++) sum[k] += x[k];
      }
      result = Sum::narrow(sum);
    }
    WHOLE ? store_vector<OUT>(out, i + WAVE * u, result) : store_any<OUT>(out, i + WAVE * u, result);
  }
}

// Vectors [from, to) of N rows, U at a time, then fewer.
template <u32 N, u32 U, Out OUT>
CAMPANILE_DEVICE void sum_rows(const OutRow& out, const Rows<N>& rows, u32 from, u32 to) {
  // The same for all lanes.
  for (; from + WAVE * U <= to; from += WAVE * U) sum_step<N, U, OUT, true>(out, rows, from + lane());
  if constexpr (U > 1)
    sum_rows<N, U / 2, OUT>(out, rows, from, to);
  else if (from + lane() < to)
    sum_step<N, 1, OUT, true>(out, rows, from + lane());
}

// The first N rows of a list, which the lanes hold.
template <u32 N, u32 U, Out OUT, class Number, class RowOf>
CAMPANILE_DEVICE void sum_listed(const OutRow& out, const RowOf& row_of, Number mine, u32 from, u32 to) {
  Rows<N> rows;
  CAMPANILE_UNROLL
  for (u32 n = 0; n < N; n++) rows.from[n] = row_of(wave_shuffle(mine, n));
  if constexpr (OUT == Out::Window) return sum_rows<N, U, OUT>(out, rows, from, to);
  sum_rows<N, U, OUT>(out, rows, from, to < out.whole ? to : out.whole);
  for (u32 i = (from > out.whole ? from : out.whole) + lane(); i < to; i += WAVE)
    sum_step<N, 1, OUT, false>(out, rows, i);
}

// More rows than sum_rows is unrolled for: four at a time.
template <Out OUT, class Number, class RowOf>
CAMPANILE_DEVICE void sum_many(const OutRow& out, const RowOf& row_of, const Number* list, u32 count, u32 from,
                               u32 to) {
  for (u32 i = from + lane(); i < to; i += WAVE) {
    float sum[Sum::COUNT] = {};
    for (u32 first = 0; first < count; first += 4) {
      const Vec16* p[4];
      Vec16 v[4];
      CAMPANILE_UNROLL
      for (u32 n = 0; n < 4; n++) p[n] = row_of(load(list + (first + n < count ? first + n : first))) + i;
      load16_window(p, v);
      CAMPANILE_UNROLL
      for (u32 n = 0; n < 4; n++) {
        float x[Sum::COUNT];
        Sum::widen(v[n], x);
        CAMPANILE_UNROLL
        for (u32 k = 0; k < Sum::COUNT; k++)
          if (first + n < count) sum[k] = first + n == 0 ? x[k] : sum[k] + x[k];
      }
    }
    store_any<OUT>(out, i, Sum::narrow(sum));
  }
}

// The start of a list, a number a lane: loaded before it is used.
template <class Number>
CAMPANILE_DEVICE Number load_listed(const Number* list, u32 slots) {
  return lane() < slots ? load(list + lane()) : static_cast<Number>(~Number{0});
}

// Rows of the sources before `source`.
CAMPANILE_DEVICE u64 rows_before(const MoeCommon& c, u32 source) {
  u64 before = 0;
  for (u32 s = 0; s < source; s++) before += load(c.rows_from + s);
  return before;
}

// The routes of a token.
CAMPANILE_DEVICE const u64* routes_of(const MoeCommon& c, u64 token) { return c.routes + token * c.route_slots; }

// How long a list is, whose start the lanes hold. Behind its end stand numbers of earlier rounds.
template <class Number>
CAMPANILE_DEVICE u32 count_listed(const Number* list, u32 slots, Number mine) {
  constexpr Number END = ~Number{0};
  const u64 ended = wave_ballot(mine == END);
  u32 count = ended == 0 ? WAVE : first_set(ended);
  while (count >= WAVE && count < slots && load(list + count) != END) count++;
  return count;
}

// Vectors [from, to) of the sum of a list, whose start the lanes hold. DEPTH is for short parts: as many vectors of a row at
// most are a lane's at once. Code that is jumped over costs time too.
template <Out OUT, u32 DEPTH = 8, class Number, class RowOf>
CAMPANILE_DEVICE void sum_list(const OutRow& out, const RowOf& row_of, const Number* list, u32 slots, Number mine,
                               RowPart part) {
  constexpr u32 HALF = DEPTH > 4 ? 4 : DEPTH;
  const u32 from = part.from, to = part.to, count = count_listed(list, slots, mine);
  switch (count) {
    case 0:
      for (u32 i = from + lane(); i < to; i += WAVE) store_any<OUT>(out, i, Vec16{});
      break;
    case 1: sum_listed<1, DEPTH, OUT>(out, row_of, mine, from, to); break;
    case 2: sum_listed<2, DEPTH, OUT>(out, row_of, mine, from, to); break;
    case 3: sum_listed<3, HALF, OUT>(out, row_of, mine, from, to); break;
    case 4: sum_listed<4, HALF, OUT>(out, row_of, mine, from, to); break;
    default: sum_many<OUT>(out, row_of, list, count, from, to);
  }
}

}  // namespace campanile

#endif
