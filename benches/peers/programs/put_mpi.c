/* Messages between two ranks over MPI, half round trip.
 *
 *   mpiexec -n 2 put_mpi send|put BATCHES
 *
 * send: MPI_Send and MPI_Recv.
 * put:  MPI_Put of the payload, flush, MPI_Put of a flag, flush; the target polls the flag in its window. */
#define _GNU_SOURCE
#include <mpi.h>

#include "batch.h"
#include "clock.h"
#include "core.h"
#include "deadline.h"
#include "library.h"
#include "memory.h"
#include "message.h"
#include "row.h"
#include <string.h>

/* A window: the target region, then a flag alone in its line. */
#define FLAG_OFFSET REGION
#define WINDOW_BYTES (REGION + 128)

struct mailbox {
  int rank;
  int peer;
  unsigned char *source;
  unsigned char *target; /* REGION bytes, then the flag when it is a window */
  MPI_Win window;
};

static void send_message(struct mailbox *m, size_t bytes, size_t message) {
  MPI_Send(m->source + slot_offset(bytes, message), (int)bytes, MPI_BYTE, m->peer, 0, MPI_COMM_WORLD);
}

static void receive_message(struct mailbox *m, size_t bytes, size_t message) {
  unsigned char *at = m->target + slot_offset(bytes, message);
  MPI_Recv(at, (int)bytes, MPI_BYTE, m->peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void put_message(struct mailbox *m, size_t bytes, size_t message) {
  size_t at = slot_offset(bytes, message);
  uint64_t epoch = message + 1;
  MPI_Put(m->source + at, (int)bytes, MPI_BYTE, m->peer, (MPI_Aint)at, (int)bytes, MPI_BYTE, m->window);
  MPI_Win_flush(m->peer, m->window);
  MPI_Put(&epoch, 8, MPI_BYTE, m->peer, (MPI_Aint)FLAG_OFFSET, 8, MPI_BYTE, m->window);
  MPI_Win_flush(m->peer, m->window);
}

static void await_message(struct mailbox *m, size_t message) {
  volatile uint64_t *flag = (volatile uint64_t *)(m->target + FLAG_OFFSET);
  for (unsigned polls = 1; *flag < message + 1; polls++) {
    MPI_Win_sync(m->window);
    if (polls % 128 == 0) { /* some implementations need the target to make progress */
      int found = 0;
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    }
  }
  MPI_Win_sync(m->window);
}

static void round_trip(struct mailbox *m, int one_sided, size_t bytes, size_t message) {
  for (int leg = 0; leg < 2; leg++) {
    int sender = leg == m->rank;
    if (one_sided && sender)
      put_message(m, bytes, message);
    else if (one_sided)
      await_message(m, message);
    else if (sender)
      send_message(m, bytes, message);
    else
      receive_message(m, bytes, message);
  }
}

int main(int argc, char **argv) {
  arm_deadline();
  read_allowed_cpus();
  MPI_Init(&argc, &argv);
  struct mailbox m = {0};
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &m.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  bind_to_core(m.rank);
  m.peer = 1 - m.rank;
  int batches = argc == 3 ? atoi(argv[2]) : 0;
  if (ranks != 2 || batches < 1 || batches > MAX_BATCHES) {
    fprintf(stderr, "usage: put_mpi send|put BATCHES, 2 ranks, 1 to %d batches\n", MAX_BATCHES);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  int one_sided = !strcmp(argv[1], "put");
  if (m.rank == 0)
    print_library();

  m.source = allocate(REGION, MEMORY_PRIVATE);
  memset(m.source, fill_byte(m.rank), REGION);
  if (one_sided) {
    MPI_Win_allocate((MPI_Aint)WINDOW_BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &m.target, &m.window);
    MPI_Win_lock_all(0, m.window);
  } else {
    m.target = allocate(REGION, MEMORY_PRIVATE);
  }
  int wrong = 0;
  for (int z = 0; z < MESSAGE_SIZES; z++) {
    size_t bytes = message_bytes[z];
    int trips = round_trips(bytes);
    double sample_us[MAX_BATCHES];
    size_t message = 0;
    memset(m.target, 0, one_sided ? WINDOW_BYTES : REGION);
    if (one_sided)
      MPI_Win_sync(m.window);
    for (int b = -1; b < batches; b++) { /* batch -1 warms up */
      MPI_Barrier(MPI_COMM_WORLD);
      double start = (double)now_ns();
      for (int i = 0; i < trips; i++)
        round_trip(&m, one_sided, bytes, message++);
      if (b >= 0)
        sample_us[b] = ((double)now_ns() - start) / trips / 2 / 1e3;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    wrong |= !arrived(m.target, m.peer, bytes, message);
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
    if (m.rank == 0 && !wrong)
      print_row("put", 2, bytes, argv[1], "half_round_trip", "us", sample_us, batches);
  }
  if (m.rank == 0 && wrong)
    printf("VERIFY FAILED\n");
  fflush(stdout);
  if (one_sided) {
    MPI_Win_unlock_all(m.window);
    MPI_Win_free(&m.window);
  }
  MPI_Finalize();
  return wrong;
}
