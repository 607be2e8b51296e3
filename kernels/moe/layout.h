// The window of an MoE operation as kernels see it, and what a rank keeps between launches.
//
// Planes, strides, words and their values are those of crates/moe: `plan.rs` lays the window out, `protocol.rs` says what
// each word means. The host fills these structs from its plan; nothing here is a second source of the layout.
//
// Invariants. A word has one writer. The state of a set belongs to the rank and is written by one block of a launch, at a
// time when every block of that launch that takes part has read it; others leave, whatever they have read. After a failure
// (`failed`) nothing is published, and later launches end at once, until the host begins a new generation.
//
// Progress. A launch may have more blocks than fit on the device at once, and shares it with others. So roles are taken by
// tickets, in the order in which blocks begin or finish, never by the block's index: whoever must be first is (it posts
// words, it looks at the abort word), and no block waits for what a block that has not begun has yet to do.
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

// Which phases of its operation a launch does: one of them, or both.
constexpr u32 SEND = 1, RECEIVE = 2;

// Where the round of a set is.
enum class Stage : u32 { Closed, DispatchSent, Dispatched, CombineSent };

// How a launch ended: those of a wait, and two more.
enum class Failure : u32 {
  Timeout = 1,
  Aborted = 2,
  Protocol = 3,  // a word that no correct peer could have written
  Misuse = 4,    // a phase that is not the round's next one, more tokens than the capacity, others than dispatched
  Overflow = 5,  // more rows than the caller has room for
};

// The first failure of a rank, in host memory. `failure` is stored last.
struct MoeRecord {
  u32 failure, phase, peer, word;
  u64 expected, seen;
  u32 set, unused;
};

// One a set, in device memory.
struct MoeState {
  u32 epoch;   // of the last round begun
  u32 stage;   // where that is
  u32 ready;   // what the last READY_C counted
  u32 tokens;  // of its dispatch
  // Blocks that have ever begun, and finished, a launch on this set, and how many of each before this launch.
  u64 started, finished, started_before, finished_before;
};

constexpr u32 NEAR = 8;

struct MoeCommon {
  u8* near[NEAR];      // windows of the ranks as mapped here, where there are few: no load comes before their use
  u8* const* windows;  // of every rank
  u64 words, rows, scales, meta, outputs;  // offsets of this set's planes
  u64 row_stride, scale_stride, meta_stride, output_stride;
  MoeState* state;
  u64* sent;       // [ranks] value of the ROWS word at each owner
  u64* came;       // [2][ranks] value of the ROWS word of each source when the round began, by the epoch's last bit
  u32* rows_to;    // [ranks] rows of this round for each owner
  u32* rows_from;  // [ranks] rows of this round from each source
  u64* routes;     // [capacity][route_slots] (owner, ordinal), owners ascending; ended by NO_ROUTE if fewer
  const u64* active;  // bits of the ranks that are not masked
  u32* failed;
  u32* abort;  // in host memory
  MoeRecord* record;
  u64 deadline;  // of each wait, nanoseconds
  u32 rank, ranks, capacity, topk;
  u32 route_slots;  // the lesser of topk and ranks
  u32 weighted;
  u32 set;
};

constexpr u32 NONE = ~0u;
constexpr u64 NO_ROUTE = ~u64{0};

CAMPANILE_DEVICE u64 tagged(u32 epoch, u32 count) { return static_cast<u64>(epoch) << 32 | count; }
CAMPANILE_DEVICE u64 route(u32 owner, u32 ordinal) { return static_cast<u64>(owner) << 32 | ordinal; }

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
  store_relaxed<Scope::System>(&r->set, c.set);
  fence_release_window();
  store_relaxed<Scope::System>(&r->failure, static_cast<u32>(failure));
}

// A masked rank is neither written to, nor waited for, nor read from. The mask changes between launches.
CAMPANILE_DEVICE bool is_active(const MoeCommon& c, u32 rank) { return load(c.active + rank / 64) >> rank % 64 & 1; }

// Counts this block as begun, one of the `blocks` that take part: its ticket in this launch, from 0. By one thread.
CAMPANILE_DEVICE u32 take_ticket(const MoeCommon& c, u32 blocks) {
  if (blocks == 1) return 0;
  const u64 before = load(&c.state->started_before);
  return static_cast<u32>(fetch_add_relaxed<Scope::Device>(&c.state->started, u64{1}) - before);
}

// Whether the blocks that take part in a launch have taken tickets.
enum class Tickets { None, Taken };

// Counts this block as finished: how many of the `blocks` that take part were before it in this launch. By one thread,
// after a barrier behind what the block has stored, which is visible to whoever sees what the last block then publishes. A
// block that has failed is not counted: then none is the last, and nothing is published.
CAMPANILE_DEVICE u32 finish(const MoeCommon& c, u32 blocks, Tickets tickets) {
  MoeState* state = c.state;
  u32 before = 0;
  if (blocks > 1) {
    const u64 base = load(&state->finished_before);
#if !defined(CAMPANILE_BUG_NO_RELEASE)
    fence_release_part();
#endif
    before = static_cast<u32>(fetch_add_relaxed<Scope::Device>(&state->finished, u64{1}) - base);
    if (before != blocks - 1) return before;
    fence_window();
    // Every block that takes part has read the state.
    store(&state->finished_before, base + blocks);
    if (tickets == Tickets::Taken) store(&state->started_before, load(&state->started_before) + blocks);
  } else {
#if !defined(CAMPANILE_BUG_NO_RELEASE)
    fence_release_window();
#endif
  }
  return before;
}

// Polls between two looks of a wait at the host's abort word, where it is not the one that watches it.
constexpr u32 POLLS_PER_ABORT = 64 * POLLS_PER_CHECK;

// After a poll that did not see what it waits for. Where many wait, one watches the host's abort word: reads of host
// memory are slow, and in the way of rows for peers. The others see that it has failed, and look themselves but seldom.
CAMPANILE_DEVICE Outcome poll_again(const MoeCommon& c, bool watches, Watch& watch) {
  const bool looks = watches || (watch.polls + 1) % POLLS_PER_ABORT == 0;
  const Outcome outcome = watch.poll_again({looks ? c.abort : c.failed, c.deadline});
  const bool checked = outcome == Outcome::Done && looks && watch.polls % POLLS_PER_CHECK == 0;
  return checked && has_failed(c) ? Outcome::Aborted : outcome;
}

// Waits for a word of `source` in this rank's own memory; false after a failure, which is recorded. Beyond `limit` no
// correct peer could be; READY_C must say what this rank's own round says. It is an acquire.
CAMPANILE_DEVICE bool await_word(const MoeCommon& c, bool watches, Phase phase, u32 source, Word word, u64 wanted,
                                 u64 limit) {
  const u64* at = word_of(c, c.rank, source, word);
  Outcome outcome = Outcome::Done;
  Watch watch;
  u64 seen;
  while (!reached(seen = load_acquire_window(at), wanted)) {
    outcome = poll_again(c, watches, watch);
    if (outcome != Outcome::Done) break;
  }
  if (outcome == Outcome::Done && (word == Word::ReadyC ? seen == limit : reached(limit, seen))) return true;
  Failure failure = outcome == Outcome::Done ? Failure::Protocol : static_cast<Failure>(outcome);
  fail(c, failure, phase, source, word, wanted, seen);
  return false;
}

// Ends the round: what the last launch of it does, by one thread, once nobody reads the state.
CAMPANILE_DEVICE void close_round(const MoeCommon& c, Ready ready) {
  store(&c.state->ready, static_cast<u32>(ready));
  store(&c.state->stage, static_cast<u32>(Stage::Closed));
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
