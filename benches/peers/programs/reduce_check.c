/* Checks `sum_rows` with exact rounding against a scalar model: all 65,536 bf16 patterns alone, and as many random
 * pairs and triples; NaNs, infinities, subnormals and both zeros among them. Prints OK, or the first difference. */
#define _GNU_SOURCE
#include "memory.h"
#include "moe.h"
#include "reduce.h"
#include <stdio.h>

enum { PATTERNS = 65536, BLOCK = HIDDEN };

static bf16 model(const bf16 *const *row, int rows, int column) {
  volatile float sum = bf16_to_float(row[0][column]); /* volatile: one rounding per addition, whatever the compiler */
  for (int i = 1; i < rows; i++)
    sum += bf16_to_float(row[i][column]);
  return bf16_from_float(sum);
}

int main(void) {
  size_t blocks = (PATTERNS + BLOCK - 1) / BLOCK;
  bf16 *buffer = allocate(4 * ROW_BYTES, MEMORY_PRIVATE);
  const bf16 *row[3] = {buffer, buffer + HIDDEN, buffer + 2 * HIDDEN};
  bf16 *out = buffer + 3 * HIDDEN;
  uint64_t state = 42;
  for (int rows = 1; rows <= 3; rows++) {
    for (size_t block = 0; block < blocks; block++) {
      for (int h = 0; h < HIDDEN; h++) {
        buffer[h] = (bf16)(block * BLOCK + (size_t)h);
        for (int i = 1; i < rows; i++) {
          /* half of the partners are small, so that sums are subnormal too */
          uint64_t random = next_random(&state);
          buffer[i * HIDDEN + h] = (bf16)(random >> 32 & (random & 1 ? 0xffff : 0x807f));
        }
      }
      for (int store = COPY_MEMCPY; store <= COPY_STREAMING; store++) {
        memset(out, 0xff, ROW_BYTES);
        sum_rows(out, row, rows, ROUND_EXACT, (enum copy_kind)store);
        streaming_fence();
        for (int h = 0; h < HIDDEN; h++) {
          bf16 want = model(row, rows, h);
          if (out[h] != want) {
            printf("VERIFY FAILED %d rows, %#06x: got %#06x, want %#06x\n", rows, buffer[h], out[h], want);
            return 1;
          }
        }
      }
    }
  }
  printf("OK\n");
  return 0;
}
