// MoE combine by pull: the results for this rank's tokens, summed ascending by rank in f32, rounded once.
//
// READY_C goes out first, from the block that begins first: what this rank's experts wrote stands, by the order of the
// stream. (Or moe_release has posted it, as the send phase.) Then a wave sums a token, or a part of one where there are
// more waves than tokens, straight from the peers' memory: as many loads in flight as the registers hold, since the
// link's latency times its rate is far more than a block's. The block that finishes last publishes DONE_C and ends the
// round. Blocks wait for peers only, so any number of them does.
//
// CAMPANILE_MOE_TYPE is the combine type.
#include "moe/layout.h"
#include "moe/number.h"
#include "portable.h"
#include "wait.h"

using namespace campanile;

#if !defined(CAMPANILE_MOE_TYPE)
#define CAMPANILE_MOE_TYPE Type::BF16
#endif

struct CombineArguments {
  MoeCommon common;
  u8* out;  // [tokens] rows, at any alignment
  u64 out_stride;
  u64 row_bytes;
  u32* out_weights;  // [tokens][topk], or null
  const u32* tokens;  // those of the dispatch
  u32 phases;         // RECEIVE, or both
};

using Sum = Numbers<CAMPANILE_MOE_TYPE>;

// N window rows and where in them a lane reads.
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

// How sums are written: whole vectors, or by bytes what is left of a row, and rows at odd addresses.
enum class Out { Vectors, Bytes };

template <Out OUT>
CAMPANILE_DEVICE void store_out(const CombineArguments& a, u8* out, u32 vector, Vec16 v) {
  const u64 at = static_cast<u64>(vector) * 16;
  if constexpr (OUT == Out::Vectors)
    store16_stream(reinterpret_cast<Vec16*>(out + at), v);
  else
    store_bytes(out + at, v, a.row_bytes - at < 16 ? static_cast<u32>(a.row_bytes - at) : 16);
}

CAMPANILE_DEVICE void store_any(const CombineArguments& a, u8* out, u32 vector, Vec16 v) {
  const bool whole = is_aligned16(a.out, a.out_stride) && (static_cast<u64>(vector) + 1) * 16 <= a.row_bytes;
  whole ? store_out<Out::Vectors>(a, out, vector, v) : store_out<Out::Bytes>(a, out, vector, v);
}

// Vectors i, i + WAVE, … (U of them) of N rows.
template <u32 N, u32 U, Out OUT>
CAMPANILE_DEVICE void sum_step(const CombineArguments& a, u8* out, const Rows<N>& rows, u32 i) {
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
    store_out<OUT>(a, out, i + WAVE * u, result);
  }
}

// Vectors [from, to) of N rows, U at a time, then fewer.
template <u32 N, u32 U>
CAMPANILE_DEVICE void sum_rows(const CombineArguments& a, u8* out, const Rows<N>& rows, u32 from, u32 to) {
  // The same for all lanes.
  for (; from + WAVE * U <= to; from += WAVE * U) sum_step<N, U, Out::Vectors>(a, out, rows, from + lane());
  if constexpr (U > 1)
    sum_rows<N, U / 2>(a, out, rows, from, to);
  else if (from + lane() < to)
    sum_step<N, 1, Out::Vectors>(a, out, rows, from + lane());
}

CAMPANILE_DEVICE const Vec16* result_of(const MoeCommon& c, u64 route) {
  return reinterpret_cast<const Vec16*>(
      window(c, static_cast<u32>(route >> 32)) +
      row_at(c, c.outputs, c.output_stride, c.rank, static_cast<u32>(route)));
}

// The routes of a token, a lane each: loaded before they are used.
CAMPANILE_DEVICE u64 load_route(const MoeCommon& c, u32 token) {
  return lane() < c.route_slots ? load(c.routes + static_cast<u64>(token) * c.route_slots + lane()) : NO_ROUTE;
}

template <u32 N, u32 U>
CAMPANILE_DEVICE void sum_routes(const CombineArguments& a, u8* out, u64 routes, u32 from, u32 to) {
  Rows<N> rows;
  CAMPANILE_UNROLL
  for (u32 n = 0; n < N; n++) rows.from[n] = result_of(a.common, wave_shuffle(routes, n));
  const u32 whole = is_aligned16(a.out, a.out_stride) ? static_cast<u32>(a.row_bytes / 16) : 0;
  sum_rows<N, U>(a, out, rows, from, to < whole ? to : whole);
  for (u32 i = (from > whole ? from : whole) + lane(); i < to; i += WAVE)
    sum_step<N, 1, Out::Bytes>(a, out, rows, i);
}

// More rows than sum_rows is unrolled for: four at a time.
CAMPANILE_DEVICE void sum_many(const CombineArguments& a, u8* out, const u64* routes, u32 count, u32 from, u32 to) {
  for (u32 i = from + lane(); i < to; i += WAVE) {
    float sum[Sum::COUNT] = {};
    for (u32 first = 0; first < count; first += 4) {
      const Vec16* p[4];
      Vec16 v[4];
      CAMPANILE_UNROLL
      for (u32 n = 0; n < 4; n++) p[n] = result_of(a.common, load(routes + (first + n < count ? first + n : first))) + i;
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
    store_any(a, out, i, Sum::narrow(sum));
  }
}

// How many routes a token has, the first of which the lanes hold. Behind the end stand those of earlier rounds.
CAMPANILE_DEVICE u32 count_routes(const MoeCommon& c, const u64* list, u64 routes) {
  const u64 ended = wave_ballot(routes == NO_ROUTE);
  u32 count = ended == 0 ? WAVE : first_set(ended);
  while (count >= WAVE && count < c.route_slots && load(list + count) != NO_ROUTE) count++;
  return count;
}

// Vectors [from, to) of a token, whose routes the lanes hold.
CAMPANILE_DEVICE void sum_token(const CombineArguments& a, u32 token, u64 routes, u32 from, u32 to) {
  const MoeCommon& c = a.common;
  const u64* list = c.routes + static_cast<u64>(token) * c.route_slots;
  const u32 count = count_routes(c, list, routes);
  u8* out = a.out + token * a.out_stride;
  switch (count) {
    case 0:
      for (u32 i = from + lane(); i < to; i += WAVE) store_any(a, out, i, Vec16{});
      break;
    case 1: sum_routes<1, 8>(a, out, routes, from, to); break;
    case 2: sum_routes<2, 8>(a, out, routes, from, to); break;
    case 3: sum_routes<3, 4>(a, out, routes, from, to); break;
    case 4: sum_routes<4, 4>(a, out, routes, from, to); break;
    default: sum_many(a, out, list, count, from, to);
  }
}

// The weight of each slot that was valid. It lives at one owner and is 0 at all others, so joining the bits keeps every
// bit of it, and nothing has to be known before all of them are loaded: four owners at a time.
CAMPANILE_DEVICE void collect_weights(const CombineArguments& a, u32 token, u64 routes) {
  const MoeCommon& c = a.common;
  const u64* list = c.routes + static_cast<u64>(token) * c.route_slots;
  const u32 count = count_routes(c, list, routes);
  for (u32 first = 0; first < c.topk; first += WAVE) {
    const u32 slot = first + lane();
    u32 weight = 0;
    for (u32 i = 0; i < count; i += 4) {
      u32 found[4] = {};
      CAMPANILE_UNROLL
      for (u32 n = 0; n < 4; n++) {
        const u64 held = wave_shuffle(routes, i + n);
        if (i + n >= count || slot >= c.topk) continue;
        const u64 to = i + n < WAVE ? held : load(list + i + n);
        const u8* meta = window(c, static_cast<u32>(to >> 32)) +
                         row_at(c, c.meta, c.meta_stride, c.rank, static_cast<u32>(to));
        found[n] = load_relaxed<Scope::System>(reinterpret_cast<const u32*>(meta) + 1 + c.topk + slot);
      }
      weight |= found[0] | found[1] | found[2] | found[3];
    }
    if (slot < c.topk) store(a.out_weights + static_cast<u64>(token) * c.topk + slot, weight);
  }
}

// Publishes DONE_C and ends the round; by one thread. `active` are the first 64 ranks that are.
CAMPANILE_DEVICE void publish_done(const MoeCommon& c, u32 epoch, u64 active) {
  for (u32 owner = 0; owner < c.ranks; owner++)
    if (owner < 64 ? active >> owner & 1 : is_active(c, owner))
      store_relaxed<Scope::System>(word_of(c, owner, c.rank, Word::DoneC), tagged(epoch, 0));
  close_round(c, Ready::Pull);
}

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
  if (thread_index() == 0) begun = take_ticket(c), failed = has_failed(c);
  // A wave sums a token; where there are more waves, a part of one. Neighbouring waves are of different blocks, so that
  // few tokens use all of them.
  const u32 vectors = static_cast<u32>((a.row_bytes + 15) / 16);
  const u32 waves = grid_blocks() * block_waves(), wave = wave_index() * grid_blocks() + block_index();
  u32 parts = tokens == 0 ? 1 : waves / tokens;
  // The last part collects the weights, and sums nothing: both wait for peers.
  const bool weighted = a.out_weights != nullptr;
  const u32 most = (vectors + WAVE - 1) / WAVE + weighted;
  parts = parts < 1 ? 1 : parts > most ? most : parts;
  const u32 sums = weighted && parts > 1 ? parts - 1 : parts;
  // Whole turns of a wave: the loads of a turn that is left over would wait for those before it.
  const u32 share = ((vectors + sums - 1) / sums + WAVE - 1) / WAVE * WAVE;
  const u64 items = tokens <= c.capacity ? static_cast<u64>(tokens) * parts : 0;
  u64 routes = wave < items ? load_route(c, wave / parts) : NO_ROUTE;
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
      fence_acquire_window();
    }
  }
  block_barrier();
  for (u64 item = wave; item < items && !stop; item += waves) {
    const u64 mine = routes;
    if (item + waves < items) routes = load_route(c, static_cast<u32>((item + waves) / parts));
    const u32 token = static_cast<u32>(item / parts), part = static_cast<u32>(item % parts);
    const u32 from = part * share, to = from + share < vectors ? from + share : vectors;
    if (from < to) sum_token(a, token, mine, from, to);
    if (weighted && part == parts - 1) collect_weights(a, token, mine);
  }
  drain();
  block_barrier();
  if (thread_index() != 0 || stop) return;
  const u64 peers = load(c.active);
  if (finish(c) == grid_blocks() - 1) publish_done(c, epoch, peers);
}
