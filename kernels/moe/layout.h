// The window of an MoE operation as kernels see it, and what a rank keeps between launches.
//
// Planes, strides, words and their values are those of crates/moe: `plan.rs` lays the window out, `protocol.rs` says what
// each word means. The host fills these structs from its plan; nothing here is a second source of the layout.
//
// Invariants. A word has one writer. The state of a set belongs to the rank and is written by one block of a launch, at a
// time when every block of that launch has read it. After a failure (`failed`) nothing is published, and later launches
// end at once.
#ifndef CAMPANILE_MOE_LAYOUT_H
#define CAMPANILE_MOE_LAYOUT_H

#include "portable.h"
#include "wait.h"

namespace campanile {

// Words of one (set, source) line, in this order.
enum class Word : u32 { Meta, Rows, Returned, ReadyC, DoneC };
constexpr u32 LINE_WORDS = 8;

// What READY_C counts.
enum class Ready : u32 { Pull = 0, Push = 1, Released = 2 };

enum class Phase : u32 { DispatchSend, DispatchReceive, CombineSend, CombineReceive, Release };

// How a launch ended: those of a wait, and two more.
enum class Failure : u32 {
  Timeout = 1,
  Aborted = 2,
  Protocol = 3,  // a word that no correct peer could have written
  Misuse = 4,    // a round that is open or not, more tokens than the capacity
  Overflow = 5,  // more rows than the caller has room for
};

// The first failure of a rank, in host memory. `failure` is stored last.
struct MoeRecord {
  u32 failure, phase, peer, word;
  u64 expected, seen;
};

// One a set, in device memory.
struct MoeState {
  u32 epoch;  // of the last round begun
  u32 open;   // whether that is still open
  u32 ready;  // what the last READY_C counted
  u32 unused;
  // Blocks that have ever sent their rows, or pulled their results, and how many of them before this launch.
  u64 sent, sent_base;
  u64 pulled, pulled_base;
};

constexpr u32 NEAR = 8;

struct MoeCommon {
  u8* near[NEAR];      // windows of the ranks as mapped here, where there are few: no load comes before their use
  u8* const* windows;  // of every rank
  u64 words, rows, scales, meta, outputs;  // offsets of this set's planes
  u64 row_stride, scale_stride, meta_stride, output_stride;
  MoeState* state;
  u64* sent;       // [ranks] value of the ROWS word at each owner
  u64* came;       // [ranks] value of the ROWS word of each source when the round began
  u32* rows_to;    // [ranks] rows of this round for each owner
  u32* rows_from;  // [ranks] rows of this round from each source
  u64* routes;     // [capacity][route_slots] (owner, ordinal), owners ascending; ended by NO_ROUTE if fewer
  u32* failed;
  u32* abort;  // in host memory
  MoeRecord* record;
  u64 deadline;  // of each wait, nanoseconds
  u32 rank, ranks, capacity, topk;
  u32 route_slots;  // the lesser of topk and ranks
  u32 weighted;
};

constexpr u32 NONE = ~0u;
constexpr u64 NO_ROUTE = ~u64{0};

CAMPANILE_DEVICE u64 tagged(u32 epoch, u32 count) { return static_cast<u64>(epoch) << 32 | count; }
CAMPANILE_DEVICE u64 route(u32 owner, u32 ordinal) { return static_cast<u64>(owner) << 32 | ordinal; }

// All blocks wait for the same words, so one of them looks at the host's abort word: reads of host memory are slow, and
// in the way of rows for peers. The others see that it has failed.
CAMPANILE_DEVICE Patience patience(const MoeCommon& c) {
  return {block_index() == 0 ? c.abort : c.failed, c.deadline};
}
CAMPANILE_DEVICE u8* window(const MoeCommon& c, u32 rank) {
  return c.ranks <= NEAR ? c.near[rank] : load(c.windows + rank);
}
// The word of the line that `source` writes at `rank`.
CAMPANILE_DEVICE u64* word_of(const MoeCommon& c, u32 rank, u32 source, Word word) {
  return reinterpret_cast<u64*>(window(c, rank) + c.words) + static_cast<u64>(source) * LINE_WORDS +
         static_cast<u32>(word);
}
// Row `ordinal` of `source` in a plane of [source][capacity].
CAMPANILE_DEVICE u64 row_at(const MoeCommon& c, u64 plane, u64 stride, u32 source, u32 ordinal) {
  return plane + stride * (static_cast<u64>(source) * c.capacity + ordinal);
}

CAMPANILE_DEVICE bool has_failed(const MoeCommon& c) { return load_relaxed<Scope::Device>(c.failed) != 0; }

// Records a failure; the first one stays.
CAMPANILE_DEVICE void fail(const MoeCommon& c, Failure failure, Phase phase, u32 peer, Word word, u64 expected,
                           u64 seen) {
  if (compare_swap_relaxed<Scope::Device>(c.failed, 0u, 1u) != 0) return;
  MoeRecord* r = c.record;
  store_relaxed<Scope::System>(&r->phase, static_cast<u32>(phase));
  store_relaxed<Scope::System>(&r->peer, peer);
  store_relaxed<Scope::System>(&r->word, static_cast<u32>(word));
  store_relaxed<Scope::System>(&r->expected, expected);
  store_relaxed<Scope::System>(&r->seen, seen);
  fence_release_window();
  store_relaxed<Scope::System>(&r->failure, static_cast<u32>(failure));
}

// Waits for a word of `source` in this rank's own memory; false after a failure, which is recorded. Beyond `limit` no
// correct peer could be; READY_C must say what this rank's own round says. The caller fences.
CAMPANILE_DEVICE bool await_word(const MoeCommon& c, Phase phase, u32 source, Word word, u64 wanted, u64 limit) {
  u64 seen;
  Outcome outcome = wait_until(word_of(c, c.rank, source, word), wanted, patience(c), seen);
  if (outcome == Outcome::Done && (word == Word::ReadyC ? seen == limit : reached(limit, seen))) return true;
  Failure failure = outcome == Outcome::Done ? Failure::Protocol : static_cast<Failure>(outcome);
  fail(c, failure, phase, source, word, wanted, seen);
  return false;
}

// Ends the round: what the last launch of it does, by the threads of one wave or more, once nobody reads the state.
CAMPANILE_DEVICE void close_round(const MoeCommon& c, Ready ready, u32 thread, u32 threads) {
  for (u32 source = thread; source < c.ranks; source += threads)
    store(c.came + source, load(c.came + source) + load(c.rows_from + source));
  if (thread == 0) {
    store(&c.state->ready, static_cast<u32>(ready));
    store(&c.state->open, 0u);
  }
}

// `bytes` (1 to 16) bytes at any address, the rest zero.
CAMPANILE_DEVICE Vec16 load_bytes(const u8* p, u32 bytes) {
  u32 words[4] = {};
  CAMPANILE_UNROLL
  for (u32 i = 0; i < 16; i++)
    if (i < bytes) words[i / 4] |= static_cast<u32>(load(p + i)) << (i % 4 * 8);
  return {words[0], words[1], words[2], words[3]};
}
CAMPANILE_DEVICE void store_bytes(u8* p, Vec16 v, u32 bytes) {
  const u32 words[4] = {v.x, v.y, v.z, v.w};
  CAMPANILE_UNROLL
  for (u32 i = 0; i < 16; i++)
    if (i < bytes) store(p + i, static_cast<u8>(words[i / 4] >> (i % 4 * 8)));
}
CAMPANILE_DEVICE bool is_aligned16(const void* p, u64 stride) {
  return ((reinterpret_cast<u64>(p) | stride) & 15) == 0;
}

}  // namespace campanile

#endif
