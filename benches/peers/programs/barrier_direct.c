/* A barrier by hand: one flag per rank in shared memory.
 *
 *   barrier_direct RANKS threads|processes BATCHES */
#define _GNU_SOURCE
#include "barrier.h"
#include "batch.h"
#include "clock.h"
#include "memory.h"
#include "rank.h"
#include "row.h"

struct world {
  struct line barrier[MAX_RANKS];
  double start_ns[MAX_RANKS];
  double end_ns[MAX_RANKS];
  double sample_us[MAX_BATCHES];
  int batches;
  int batch_size;
};

static void rank_main(int rank, int ranks, void *shared) {
  struct world *w = shared;
  uint64_t epoch = 0;
  for (int b = -1; b < w->batches; b++) { /* batch -1 warms up and sets the size of the others */
    flag_barrier(w->barrier, rank, ranks, ++epoch);
    int size = w->batch_size;
    w->start_ns[rank] = (double)now_ns();
    for (int i = 0; i < size; i++)
      flag_barrier(w->barrier, rank, ranks, ++epoch);
    w->end_ns[rank] = (double)now_ns();
    flag_barrier(w->barrier, rank, ranks, ++epoch);
    if (rank == 0) {
      double first = w->start_ns[0];
      double last = w->end_ns[0];
      for (int r = 1; r < ranks; r++) {
        if (w->start_ns[r] < first)
          first = w->start_ns[r];
        if (w->end_ns[r] > last)
          last = w->end_ns[r];
      }
      double each_us = (last - first) / size / 1e3;
      if (b < 0)
        w->batch_size = size_of_batch(each_us);
      else
        w->sample_us[b] = each_us;
    }
  }
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: barrier_direct RANKS threads|processes BATCHES\n");
    return 2;
  }
  int ranks = atoi(argv[1]);
  enum rank_kind kind = parse_rank_kind(argv[2]);
  if (ranks < 1 || ranks > MAX_RANKS) {
    fprintf(stderr, "ranks are 1 to %d\n", MAX_RANKS);
    return 2;
  }
  arm_deadline();
  read_allowed_cpus();
  choose_spins(ranks, allowed_count);
  struct world *w = allocate(sizeof *w, MEMORY_SHARED);
  w->batches = atoi(argv[3]) < MAX_BATCHES ? atoi(argv[3]) : MAX_BATCHES;
  w->batch_size = FIRST_BATCH;
  if (run_ranks(ranks, kind, rank_main, w))
    return 1;
  print_row("barrier", ranks, 0, argv[2], "barrier", "us", w->sample_us, w->batches);
  return 0;
}
