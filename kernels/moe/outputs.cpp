// Results that the experts left in rows of the caller's, brought into the `outputs` plane for a combine by pull.
#include "moe/layout.h"
#include "moe/results.h"
#include "portable.h"

using namespace campanile;

struct OutputsArguments {
  MoeCommon common;
  Results results;
};

CAMPANILE_KERNEL(moe_outputs, 512, OutputsArguments, argument) {
  CAMPANILE_LARGE_ARGUMENT(OutputsArguments, a, argument);
  CAMPANILE_SHARED u32 stop;
  const MoeCommon& c = a.common;
  if (thread_index() == 0) {
    const u32 epoch = load(&c.state->epoch), stage = load(&c.state->stage), tokens = load(&c.state->tokens);
    stop = has_failed(c);
    if (!stop && (stage != static_cast<u32>(Stage::Dispatched) || is_stale(a.results, epoch))) {
      fail(c, Failure::Misuse, Phase::CombineSend, c.rank, Word::ReadyC, c.capacity, tokens);
      stop = 1;
    }
  }
  block_barrier();
  if (stop) return;
  const u32 waves = grid_blocks() * block_waves(), wave = wave_index() * grid_blocks() + block_index();
  const RowSplit split = split_rows(result_vectors(a.results), rows_before(c, c.ranks), waves);
  u64 before = 0;
  for (u32 source = 0; source < c.ranks; source++) {
    const u32 rows = load(c.rows_from + source);
    // Rows are dealt out to the waves through all sources.
    const u32 taken = static_cast<u32>(before * split.parts % waves);
    for (u64 item = (wave + waves - taken) % waves; item < static_cast<u64>(rows) * split.parts; item += waves) {
      const u32 row = static_cast<u32>(item / split.parts), part = static_cast<u32>(item % split.parts);
      u8* to = window(c, c.rank) + row_at(c, c.outputs, c.output_stride, source, row);
      write_result(c, a.results, source, row, before, to, split.part(part));
    }
    before += rows;
  }
}
