// Rows of bf16, quantised to FP8 as a wave sends them, with the bits of crates/moe's `arithmetic/quantize.rs`.
//
// A block's largest magnitude gives its scale, so all of it is looked at before any of it is coded. Blocks of 16, 32, 64 …
// elements, which is what GEMMs take, are shared by as many lanes, which keep them in registers meanwhile; any others are
// read twice, by the element.
#ifndef CAMPANILE_MOE_QUANTIZE_H
#define CAMPANILE_MOE_QUANTIZE_H

#include "moe/layout.h"
#include "moe/number.h"
#include "portable.h"

namespace campanile {

// A bf16 row and its blocks.
struct WideRow {
  const u8* x;
  bool aligned;  // to 16 bytes
  u32 hidden;
  u32 scales;
  u32 block;  // elements that a scale covers
};

// Where a row goes: the owners in `mask`, those from `turn` on first.
struct Owners {
  const MoeCommon& c;
  u64 mask;
  const u32* ordinals;
  u32 first, turn;

  // The row of the group's rank `bit` in a plane.
  CAMPANILE_MEMBER u8* row(u32 bit, u64 plane, u64 stride) const {
    return window(c, first + bit) + row_at(c, plane, stride, c.rank, ordinals[bit]);
  }
  // A lane's own codes and scale.
  CAMPANILE_MEMBER void store_codes(u32 vector, Vec16 codes) const {
    for (u64 left = turn == 0 ? mask : mask >> turn | mask << (64 - turn); left != 0; left &= left - 1)
      store16_window(reinterpret_cast<Vec16*>(row((first_set(left) + turn) % 64, c.rows, c.row_stride)) + vector, codes);
  }
  CAMPANILE_MEMBER void store_scale(u32 block, float scale) const {
    for (u64 left = mask; left != 0; left &= left - 1)
      store_window(reinterpret_cast<u32*>(row(first_set(left), c.scales, c.scale_stride)) + block, bits_of(scale));
  }
  // A scale that all lanes have, an owner a lane.
  CAMPANILE_MEMBER void share_scale(u32 block, float scale) const {
    for (u32 bit = lane(); bit < 64; bit += WAVE)
      if (mask >> bit & 1)
        store_window(reinterpret_cast<u32*>(row(bit, c.scales, c.scale_stride)) + block, bits_of(scale));
  }
};

struct Scaling {
  float scale, inverse;
};

// That of a block by the bf16 bits of its largest magnitude. The divisions are correctly rounded.
template <Type T>
CAMPANILE_DEVICE Scaling scaling_of(u32 largest) {
  constexpr float LEAST_AMAX = 1e-10f;
  const float found = float_of(largest << 16), amax = found < LEAST_AMAX ? LEAST_AMAX : found;
  return {amax / Quantized<T>::LARGEST, Quantized<T>::LARGEST / amax};
}

CAMPANILE_DEVICE u32 greater(u32 a, u32 b) { return a > b ? a : b; }
// bf16 magnitudes ascend with their bits; above infinity are the NaN, which do not count.
CAMPANILE_DEVICE u32 magnitude_of(u32 bf16) { return (bf16 & 0x7fff) > 0x7f80 ? 0 : bf16 & 0x7fff; }
#if !defined(CAMPANILE_GREATER_HALVES)
CAMPANILE_DEVICE u32 greater_halves(u32 a, u32 b) {
  return greater(a & 0xffff, b & 0xffff) | greater(a >> 16, b >> 16) << 16;
}
#endif
// The greatest of 16 elements. NaN are counted at first, two elements at a time, and left out if there is one.
CAMPANILE_DEVICE u32 magnitude_of(Vec16 low, Vec16 high) {
  const u32 words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  u32 halves = 0;
  CAMPANILE_UNROLL
  for (u32 word : words) halves = greater_halves(halves, word & 0x7fff7fffu);
  u32 magnitude = greater(halves & 0xffff, halves >> 16);
  if (magnitude <= 0x7f80) return magnitude;
  magnitude = 0;
  CAMPANILE_UNROLL
  for (u32 word : words) magnitude = greater(magnitude, greater(magnitude_of(word), magnitude_of(word >> 16)));
  return magnitude;
}
// The greatest among `lanes` lanes, a power of two.
CAMPANILE_DEVICE u32 greatest(u32 value, u32 lanes) {
  for (u32 other = lanes / 2; other > 0; other /= 2) value = greater(value, wave_shuffle_xor(value, other));
  return value;
}

// 16 elements.
template <Type T>
CAMPANILE_DEVICE Vec16 narrow16(Vec16 low, Vec16 high, float inverse) {
  const u32 words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  u32 codes[4];
  CAMPANILE_UNROLL
  for (u32 i = 0; i < 4; i++) {
    float x[4];
    CAMPANILE_UNROLL
    for (u32 k = 0; k < 4; k++) {
      const u32 word = words[2 * i + k / 2];
      x[k] = float_of(k % 2 == 0 ? word << 16 : word & 0xffff0000u) * inverse;
    }
    codes[i] = narrow_four<T>(x);
  }
  return {codes[0], codes[1], codes[2], codes[3]};
}

// Blocks of a power of two of vectors, at most one a lane: those that begin in the vectors [from, to), and those behind the
// last that have no elements.
template <Type T>
CAMPANILE_DEVICE void send_blocks(const WideRow& row, const Owners& owners, u32 from, u32 to) {
  const Vec16* x = reinterpret_cast<const Vec16*>(row.x);
  const u32 size = row.block / 16, shift = popcount(size - 1), vectors = row.hidden / 16;
  const u32 end = to < vectors ? (to + size - 1) >> shift : row.scales;
  const auto is_there = [&](u32 i) { return i < vectors && i >> shift < end; };
  u32 i = ((from + size - 1) >> shift << shift) + lane();
  Vec16 low{}, high{};
  if (is_there(i)) low = load16(x + 2 * i), high = load16(x + 2 * i + 1);
  for (; i - lane() < end << shift; i += WAVE) {
    // The next ones are on their way while these are coded.
    Vec16 next_low{}, next_high{};
    if (is_there(i + WAVE)) next_low = load16(x + 2 * (i + WAVE)), next_high = load16(x + 2 * (i + WAVE) + 1);
    const u32 block = i >> shift;
    const Scaling scaling = scaling_of<T>(greatest(magnitude_of(low, high), size));
    if (is_there(i)) owners.store_codes(i, narrow16<T>(low, high, scaling.inverse));
    if (block < end && block << shift == i) owners.store_scale(block, scaling.scale);
    low = next_low, high = next_high;
  }
}

CAMPANILE_DEVICE u32 element_of(const WideRow& row, u32 at) {
  const u8* x = row.x + 2 * static_cast<u64>(at);
  if ((reinterpret_cast<u64>(row.x) & 1) == 0) return load(reinterpret_cast<const u16*>(x));
  return load(x) | static_cast<u32>(load(x + 1)) << 8;
}

// Any blocks, at any address: the vectors [from, to), and the scales of the blocks that begin in them or behind the last.
template <Type T>
CAMPANILE_DEVICE void send_elements(const WideRow& row, const Owners& owners, u32 from, u32 to) {
  u32 known = NONE;  // the block of `scaling`
  Scaling scaling{};
  for (u32 tile = from; tile < to; tile += WAVE) {
    const u32 vector = tile + lane(), begin = 16 * tile;
    const u32 reach = 16 * (to - tile < WAVE ? to : tile + WAVE), end = reach < row.hidden ? reach : row.hidden;
    u64 low = 0, high = 0;  // the codes; no array, since the loop over them is not unrolled
    const u32 blocks = end < row.hidden ? (end + row.block - 1) / row.block : row.scales;
    for (u32 block = begin / row.block; block < blocks; block++) {
      const u32 start = block * row.block, stop = start + row.block < row.hidden ? start + row.block : row.hidden;
      if (block != known) {
        u32 magnitude = 0;
        for (u32 at = start + lane(); at < stop; at += WAVE)
          magnitude = greater(magnitude, magnitude_of(element_of(row, at)));
        scaling = scaling_of<T>(greatest(magnitude, WAVE));
        known = block;
      }
      const u32 last = 16 * vector + 16 < stop ? 16 * vector + 16 : stop;
      for (u32 at = 16 * vector < start ? start : 16 * vector; at < last; at++) {
        const u64 code = Quantized<T>::narrow(float_of(element_of(row, at) << 16) * scaling.inverse);
        (at % 16 < 8 ? low : high) |= code << (at % 8 * 8);
      }
      if (start >= begin) owners.share_scale(block, scaling.scale);
    }
    const Vec16 codes{static_cast<u32>(low), static_cast<u32>(low >> 32), static_cast<u32>(high),
                      static_cast<u32>(high >> 32)};
    if (vector < to) owners.store_codes(vector, codes);
  }
}

// Sends the vectors [from, to) of the quantised row, of whose parts each goes to one wave, and the scales that go with them.
template <Type T>
CAMPANILE_DEVICE void send_quantized(const WideRow& row, const Owners& owners, u32 from, u32 to) {
  if (from == to) return;
  const u32 size = row.block / 16;
  if (row.aligned && row.block % 16 == 0 && row.hidden % 16 == 0 && size <= WAVE && (size & (size - 1)) == 0)
    send_blocks<T>(row, owners, from, to);
  else
    send_elements<T>(row, owners, from, to);
}

}  // namespace campanile

#endif
