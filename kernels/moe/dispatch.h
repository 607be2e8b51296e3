// What the schedules of a dispatch share: their argument, and the wait for what the others send.
#ifndef CAMPANILE_MOE_DISPATCH_H
#define CAMPANILE_MOE_DISPATCH_H

#include "moe/layout.h"
#include "portable.h"
#include "wait.h"

namespace campanile {

struct DispatchArguments {
  MoeCommon common;
  const u8* x;  // [tokens] rows, at any alignment
  u64 x_stride;
  u64 row_bytes;  // as they travel
  const u32* scales;  // [tokens][scale_count], unless rows are quantised here
  const void* topk_idx;  // [tokens][topk], i32 or i64; what is no expert is dropped
  const u32* topk_weights;  // [tokens][topk], or null
  const u32* tokens;         // null where nothing is sent
  const u32* expert_rank;    // [experts] its owner; NONE for those of masked ranks
  const u32* expert_number;  // [experts] its number there
  u32* expert_counts;        // [local_experts], out: rows that came for each
  u32 scale_count;
  u32 experts, local_experts;
  u32 index_bytes;    // 4 or 8
  u32 index_vectors;  // whether the indices of a token can be loaded by fours
  u32 phases;
  u32 receivers;  // blocks that take in what comes, at most as many as are resident
};

CAMPANILE_DEVICE u32 expert_of(const DispatchArguments& a, u64 at) {
  u64 expert = a.index_bytes == 8 ? load(static_cast<const u64*>(a.topk_idx) + at)
                                  : load(static_cast<const u32*>(a.topk_idx) + at);
  return expert < a.experts ? static_cast<u32>(expert) : NONE;
}

CAMPANILE_DEVICE u64* came_of(const MoeCommon& c, u32 epoch) { return c.came + (epoch & 1 ? c.ranks : 0); }

// Waits for META and ROWS of a source and for the leave to write results for it, all at once. True: `came` rows have
// come; false after a failure. The `keeper`, one thread of a launch for each source, keeps where the next round begins,
// as `base` was kept for this one.
CAMPANILE_DEVICE bool await_rows(const MoeCommon& c, bool watches, bool keeper, u32 source, u32 epoch, u64 base,
                                 u32& came) {
  constexpr Phase PHASE = Phase::DispatchReceive;
  const u64* line = word_of(c, c.rank, source, Word::Meta);
  constexpr u32 ROWS = static_cast<u32>(Word::Rows), DONE = static_cast<u32>(Word::DoneC);
  const u64 announced = tagged(epoch, 0), freed = tagged(epoch - 1, 0);
  Watch watch;
  while (true) {
    const u64 meta = load_relaxed<Scope::System>(line), done = load_relaxed<Scope::System>(line + DONE),
              rows = load_acquire_window(line + ROWS);
    const bool known = reached(meta, announced);
    const u64 wanted = base + (known ? static_cast<u32>(meta) : 0);
    // What is missing, or wrong; nobody can be further than this.
    Word word = Word::DoneC;
    u64 expected = freed, seen = done, limit = announced;
    if (!known || !reached(tagged(epoch, c.capacity), meta))
      word = Word::Meta, expected = announced, seen = meta, limit = tagged(epoch, c.capacity);
    else if (rows != wanted)
      word = Word::Rows, expected = wanted, seen = rows, limit = wanted;
    Failure failure = Failure::Protocol;
    if (reached(limit, seen)) {
      if (reached(seen, expected)) {
        came = static_cast<u32>(meta);
        if (keeper) store(came_of(c, epoch + 1) + source, rows);
        return true;
      }
      const Outcome outcome = poll_again(c, watches, watch);
      if (outcome == Outcome::Done) continue;
      failure = static_cast<Failure>(outcome);
    }
    fail(c, failure, PHASE, source, word, expected, seen);
    return false;
  }
}

}  // namespace campanile

#endif
