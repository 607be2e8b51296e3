/* MPI_Bcast and MPI_Allgather.
 *
 *   mpiexec -n RANKS collective_mpi broadcast|all_gather BATCHES BUDGET_MS
 *
 * A size stops after BUDGET_MS if it has 5 samples. */
#define _GNU_SOURCE
#include <mpi.h>

#include "batch.h"
#include "clock.h"
#include "collective.h"
#include "core.h"
#include "deadline.h"
#include "library.h"
#include "memory.h"
#include "row.h"
#include <string.h>

struct subject {
  int broadcasts;
  int rank;
  int ranks;
  size_t bytes; /* that a rank sends */
  unsigned char *block;
  unsigned char *all; /* the message of a broadcast */
};

static void call(struct subject *s, int root) {
  if (s->broadcasts)
    MPI_Bcast(s->all, (int)s->bytes, MPI_BYTE, root, MPI_COMM_WORLD);
  else
    MPI_Allgather(s->block, (int)s->bytes, MPI_BYTE, s->all, (int)s->bytes, MPI_BYTE, MPI_COMM_WORLD);
}

/* Calls from every root into poisoned buffers; whether every byte is right. */
static int right(struct subject *s) {
  int good = 1;
  for (int root = 0; root < s->ranks; root++) {
    memset(s->all, 0xEE, s->bytes * (size_t)(s->broadcasts ? 1 : s->ranks));
    if (s->broadcasts && s->rank == root)
      collective_fill(s->all, s->bytes, root);
    call(s, root);
    for (int peer = 0; !s->broadcasts && peer < s->ranks; peer++)
      good &= collective_right(s->all + (size_t)peer * s->bytes, s->bytes, peer);
    if (s->broadcasts)
      good &= collective_right(s->all, s->bytes, root);
  }
  return good;
}

/* Nanoseconds from the first rank's start to the last rank's end. */
static double batch_ns(struct subject *s, long rounds) {
  MPI_Barrier(MPI_COMM_WORLD);
  double start = (double)now_ns();
  for (long i = 0; i < rounds * s->ranks; i++)
    call(s, (int)(i % s->ranks));
  double end = (double)now_ns();
  double first = 0;
  double last = 0;
  MPI_Allreduce(&start, &first, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return last - first; /* the same on all ranks, and so is what follows from it */
}

int main(int argc, char **argv) {
  arm_deadline();
  read_allowed_cpus();
  MPI_Init(&argc, &argv);
  struct subject s = {0};
  MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &s.ranks);
  bind_to_core(s.rank);
  int batches = argc == 4 ? atoi(argv[2]) : 0;
  if (batches < 1 || batches > MAX_BATCHES) {
    fprintf(stderr, "usage: collective_mpi broadcast|all_gather BATCHES BUDGET_MS, 1 to %d batches\n", MAX_BATCHES);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  s.broadcasts = !strcmp(argv[1], "broadcast");
  double budget_ns = atof(argv[3]) * 1e6;
  if (s.rank == 0)
    print_library();

  size_t most = collective_bytes[COLLECTIVE_SIZES - 1];
  s.block = allocate(most, MEMORY_PRIVATE);
  s.all = allocate(most, MEMORY_PRIVATE);
  collective_fill(s.block, most, s.rank);
  int wrong = 0;
  for (int z = 0; z < COLLECTIVE_SIZES; z++) {
    s.bytes = s.broadcasts ? collective_bytes[z] : collective_bytes[z] / (size_t)s.ranks;
    wrong |= !right(&s);
    double sample_us[MAX_BATCHES];
    long rounds = rounds_of_batch(batch_ns(&s, 2) / 2);
    double spent_ns = 0;
    int samples = 0;
    while (samples < batches && (samples < 5 || spent_ns < budget_ns)) {
      double ns = batch_ns(&s, rounds);
      spent_ns += ns;
      sample_us[samples++] = ns / (double)(rounds * s.ranks) / 1e3;
    }
    wrong |= !right(&s);
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
    if (s.rank == 0 && !wrong)
      print_row(argv[1], s.ranks, collective_bytes[z], s.broadcasts ? "MPI_Bcast" : "MPI_Allgather", argv[1], "us",
                sample_us, samples);
  }
  if (s.rank == 0 && wrong)
    printf("VERIFY FAILED\n");
  fflush(stdout);
  MPI_Finalize();
  return wrong;
}
