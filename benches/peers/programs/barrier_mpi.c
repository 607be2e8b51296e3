/* MPI_Barrier.
 *
 *   mpiexec -n RANKS barrier_mpi BATCHES */
#define _GNU_SOURCE
#include <mpi.h>

#include "batch.h"
#include "clock.h"
#include "core.h"
#include "deadline.h"
#include "library.h"
#include "row.h"

int main(int argc, char **argv) {
  arm_deadline();
  read_allowed_cpus();
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  bind_to_core(rank);
  int batches = argc == 2 ? atoi(argv[1]) : 0;
  if (batches < 1 || batches > MAX_BATCHES) {
    fprintf(stderr, "usage: barrier_mpi BATCHES, 1 to %d\n", MAX_BATCHES);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  if (rank == 0)
    print_library();

  double sample_us[MAX_BATCHES];
  int size = FIRST_BATCH;
  for (int b = -1; b < batches; b++) { /* batch -1 warms up and sets the size of the others */
    MPI_Barrier(MPI_COMM_WORLD);
    double start = (double)now_ns();
    for (int i = 0; i < size; i++)
      MPI_Barrier(MPI_COMM_WORLD);
    double end = (double)now_ns();
    double first = 0;
    double last = 0;
    MPI_Allreduce(&start, &first, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double each_us = (last - first) / size / 1e3;
    if (b < 0)
      size = size_of_batch(each_us); /* the same on all ranks: it follows from the reduced times */
    else
      sample_us[b] = each_us;
  }
  if (rank == 0)
    print_row("barrier", ranks, 0, "MPI_Barrier", "barrier", "us", sample_us, batches);
  MPI_Finalize();
  return 0;
}
