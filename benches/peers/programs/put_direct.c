/* One-sided messages between two ranks by hand, half round trip.
 *
 *   put_direct threads|processes BATCHES
 *
 * cache_line: the message is one word; the two ranks write a line in turn. What the hardware needs, and no less.
 * direct:     memcpy into the peer's memory, then a release flag in a line of its own.
 * direct_nt:  the same with non-temporal stores (from 64 bytes).
 *
 * The receiver sees the flag; it does not read the payload while timed. All payload is checked afterwards. */
#define _GNU_SOURCE
#include "barrier.h"
#include "batch.h"
#include "clock.h"
#include "copy.h"
#include "memory.h"
#include "message.h"
#include "rank.h"
#include "row.h"

enum method { CACHE_LINE, DIRECT, DIRECT_NT };
static const char *const method_name[] = {"cache_line", "direct", "direct_nt"};

struct world {
  struct line barrier[2];
  struct line flag[2]; /* flag[r] is written by rank r */
  unsigned char *target[2];
  enum method method;
  size_t bytes;
  int batches;
  double sample_us[MAX_BATCHES];
  _Atomic int wrong;
};

static void signal_peer(struct world *w, int rank, uint64_t epoch) {
  atomic_store_explicit(&w->flag[rank].value, epoch, memory_order_release);
}

/* Spins without yielding: the two ranks have a core each. */
static void await_peer(struct world *w, int rank, uint64_t epoch) {
  while (atomic_load_explicit(&w->flag[1 - rank].value, memory_order_acquire) < epoch)
    ;
}

static void put(struct world *w, int rank, const unsigned char *source, size_t message) {
  size_t at = slot_offset(w->bytes, message);
  if (w->method == DIRECT)
    memcpy(w->target[1 - rank] + at, source + at, w->bytes);
  else if (w->method == DIRECT_NT)
    copy_streaming(w->target[1 - rank] + at, source + at, w->bytes);
}

static void rank_main(int rank, int ranks, void *shared) {
  struct world *w = shared;
  uint64_t barrier_epoch = 0;
  uint64_t epoch = 0;
  size_t message = 0;
  unsigned char *source = allocate(REGION, MEMORY_PRIVATE);
  memset(source, fill_byte(rank), REGION);
  memset(w->target[rank], 0, REGION);
  int trips = round_trips(w->bytes);
  for (int b = -1; b < w->batches; b++) { /* batch -1 warms up */
    flag_barrier(w->barrier, rank, ranks, ++barrier_epoch);
    double start = (double)now_ns();
    for (int i = 0; i < trips; i++) {
      epoch++;
      if (rank == 0) {
        put(w, rank, source, message);
        signal_peer(w, rank, epoch);
        await_peer(w, rank, epoch);
      } else {
        await_peer(w, rank, epoch);
        put(w, rank, source, message);
        signal_peer(w, rank, epoch);
      }
      message++;
    }
    if (rank == 0 && b >= 0)
      w->sample_us[b] = ((double)now_ns() - start) / trips / 2 / 1e3;
  }
  flag_barrier(w->barrier, rank, ranks, ++barrier_epoch);
  if (w->method != CACHE_LINE && !arrived(w->target[rank], 1 - rank, w->bytes, message))
    w->wrong = 1;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: put_direct threads|processes BATCHES\n");
    return 2;
  }
  enum rank_kind kind = parse_rank_kind(argv[1]);
  arm_deadline();
  read_allowed_cpus();
  if (allowed_count < 2)
    unavailable("a ping-pong needs two cores");
  struct world *w = allocate(sizeof *w, MEMORY_SHARED);
  w->target[0] = allocate(REGION, MEMORY_SHARED);
  w->target[1] = allocate(REGION, MEMORY_SHARED);
  w->batches = atoi(argv[2]) < MAX_BATCHES ? atoi(argv[2]) : MAX_BATCHES;
  for (int z = 0; z < MESSAGE_SIZES; z++) {
    for (int m = CACHE_LINE; m <= DIRECT_NT; m++) {
      w->method = (enum method)m;
      w->bytes = message_bytes[z];
      if (m == CACHE_LINE && w->bytes != 8)
        continue;
      if (m == DIRECT_NT && (!HAS_STREAMING || w->bytes < 64))
        continue;
      memset(w->barrier, 0, sizeof w->barrier);
      memset(w->flag, 0, sizeof w->flag);
      if (run_ranks(2, kind, rank_main, w))
        return 1;
      if (w->wrong) {
        printf("VERIFY FAILED\n");
        return 1;
      }
      char variant[64];
      snprintf(variant, sizeof variant, "%s %s", argv[1], method_name[m]);
      print_row("put", 2, w->bytes, variant, "half_round_trip", "us", w->sample_us, w->batches);
    }
  }
  return 0;
}
