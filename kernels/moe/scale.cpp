// Experts that scale, for tests and benchmarks of MoE: each row that came times the sum of weight · factor over its
// slots here, in f32, rounded once to the combine type. What crates/moe's `exchange` does on the host. A wave a row.
#include "moe/layout.h"
#include "moe/number.h"
#include "portable.h"

using namespace campanile;

struct ScaleArguments {
  MoeCommon common;
  const float* factors;  // [local_experts], or null
  u32 hidden;
  u32 type, combine_type;
  u32 scale_block;  // elements that a block scale covers; 0: there are none
};

CAMPANILE_DEVICE float element(const u8* row, u32 type, u64 at) {
  switch (static_cast<Type>(type)) {
    case Type::F32: return load(reinterpret_cast<const float*>(row) + at);
    case Type::F16: return widen_f16(load(reinterpret_cast<const u16*>(row) + at));
    case Type::BF16: return float_of(static_cast<u32>(load(reinterpret_cast<const u16*>(row) + at)) << 16);
    case Type::F8E4M3: return widen_e4m3(load(row + at));
    case Type::F8E4M3FNUZ: return widen_e4m3fnuz(load(row + at));
    default: return widen_e2m1(load(row + at / 2) >> (at % 2 * 4));
  }
}

CAMPANILE_DEVICE void put(u8* row, u32 type, u64 at, float value) {
  switch (static_cast<Type>(type)) {
    case Type::F32: return store(reinterpret_cast<u32*>(row) + at, canonical(value));
    case Type::F16: return store(reinterpret_cast<u16*>(row) + at, static_cast<u16>(round_f16(value)));
    default: return store(reinterpret_cast<u16*>(row) + at, static_cast<u16>(round_bf16(value) >> 16));
  }
}

// The sum of weight · factor over the slots that a row has here.
CAMPANILE_DEVICE float coefficient(const ScaleArguments& a, const u32* meta) {
  const MoeCommon& c = a.common;
  float sum = c.weighted ? 0.0f : 1.0f;
  for (u32 slot = 0; slot < c.topk && c.weighted; slot++) {
    const u32 expert = load_relaxed<Scope::System>(meta + 1 + slot);
    if (expert == NONE) continue;
    float weight = float_of(load_relaxed<Scope::System>(meta + 1 + c.topk + slot));
    if (a.factors != nullptr) weight *= load(a.factors + expert);
    sum += weight;
  }
  return sum;
}

// A wave: y = coefficient · x, for row `row` of `source`; its elements are at `x`.
CAMPANILE_DEVICE void scale_row(const ScaleArguments& a, u32 source, u32 row, const u8* x, u8* y) {
  const MoeCommon& c = a.common;
  const u8* own = window(c, c.rank);
  const float factor =
      coefficient(a, reinterpret_cast<const u32*>(own + row_at(c, c.meta, c.meta_stride, source, row)));
  const float* scales = reinterpret_cast<const float*>(own + row_at(c, c.scales, c.scale_stride, source, row));
  for (u32 h = lane(); h < a.hidden; h += WAVE) {
    float value = element(x, a.type, h);
    if (a.scale_block != 0) value *= load(scales + h / a.scale_block);
    put(y, a.combine_type, h, factor * value);
  }
}

CAMPANILE_KERNEL(moe_scale, 512, ScaleArguments, a) {
  const MoeCommon& c = a.common;
  if (has_failed(c)) return;
  u8* own = window(c, c.rank);
  for (u32 source = 0; source < c.ranks; source++) {
    const u32 rows = load(c.rows_from + source);
    for (u64 i = grid_thread_index() / WAVE; i < rows; i += grid_threads() / WAVE) {
      const u32 row = static_cast<u32>(i);
      scale_row(a, source, row, own + row_at(c, c.rows, c.row_stride, source, row),
                own + row_at(c, c.outputs, c.output_stride, source, row));
    }
  }
}

// The same in a layout of arrange.cpp.
struct ScaleArrangedArguments {
  ScaleArguments scale;
  const Vec16* map;
  const u32* total;  // rows of the layout
  const u8* x;       // null: rows are read in place
  u64 x_stride;
  u8* y;
  u64 y_stride;
};

CAMPANILE_KERNEL(moe_scale_arranged, 512, ScaleArrangedArguments, a) {
  const MoeCommon& c = a.scale.common;
  if (has_failed(c)) return;
  const u8* own = window(c, c.rank);
  const u32 total = load(a.total);
  for (u64 place = grid_thread_index() / WAVE; place < total; place += grid_threads() / WAVE) {
    const Vec16 at = load16(a.map + place);
    const u32 source = at.x, row = at.y, slot = at.z;
    if (source == NONE) continue;
    // The factor of a token belongs to all its slots here together. Its first slot applies it; the others give -0, which
    // changes nothing that it is added to.
    const u32* meta = reinterpret_cast<const u32*>(own + row_at(c, c.meta, c.meta_stride, source, row));
    bool first = true;
    for (u32 before = 0; slot != NONE && before < slot; before++)
      first = first && load_relaxed<Scope::System>(meta + 1 + before) == NONE;
    u8* y = a.y + place * a.y_stride;
    const u8* x = a.x != nullptr ? a.x + place * a.x_stride : own + row_at(c, c.rows, c.row_stride, source, row);
    if (first)
      scale_row(a.scale, source, row, x, y);
    else
      for (u32 h = lane(); h < a.scale.hidden; h += WAVE) put(y, a.scale.combine_type, h, -0.0f);
  }
}
