/* MoE dispatch and combine over MPI, as an MPI user would write it: pack, exchange counts, exchange rows; and back.
 *
 *   mpiexec -n RANKS moe_mpi TOKENS dedup|dedup_nt|dedup_p2p ITERATIONS WARMUP BUDGET_MS
 *
 * dedup:     MPI_Alltoallv of one row per (token, rank) and its meta; combine sends one result row per (token, rank)
 *            back and sums at the source. (The "normal" mode of DeepEP.)
 * dedup_nt:  the same, packed with non-temporal stores.
 * dedup_p2p: MPI_Isend to each peer as soon as its rows are packed, instead of MPI_Alltoallv.
 *
 * Rows that a rank sends to itself never pass through MPI: they are written to their final place. */
#define _GNU_SOURCE
#include <mpi.h>

#include "clock.h"
#include "copy.h"
#include "core.h"
#include "deadline.h"
#include "library.h"
#include "memory.h"
#include "moe.h"
#include "oracle.h"
#include "reduce.h"
#include "row.h"
#include <string.h>

enum { MAX_RANKS = 64, MAX_SAMPLES = 10000, MIN_SAMPLES = 5 };
enum { TAG_ROWS = 1, TAG_META = 2, TAG_RESULTS = 3 };
enum phase { DISPATCH, COMBINE, PHASES };

/* How many rows go to or come from each rank, and where they start in a buffer. */
struct split {
  int count[MAX_RANKS];
  int offset[MAX_RANKS];
  int rows;
};

struct exchange {
  int rank;
  int ranks;
  int tokens;
  int point_to_point;
  enum copy_kind copy;
  int32_t *expert;    /* [tokens][TOPK] */
  float *weight;      /* [tokens][TOPK] */
  int32_t *ordinal;   /* [tokens][ranks] */
  bf16 *x;            /* [tokens][HIDDEN] */
  bf16 *combined;     /* [tokens][HIDDEN] */
  bf16 *packed;       /* rows to others, by target; in combine the rows that come back */
  struct meta *packed_meta;
  bf16 *received;     /* rows by source rank, then token; own rows at their place among them */
  struct meta *received_meta;
  bf16 *result;       /* what the experts made of `received` */
  struct split send;  /* own rows left out */
  struct split receive;
  int own_offset;     /* of this rank's own rows in `received` */
  int capacity;       /* rows of `received` and `result` */
};

/* Element counts for MPI: `unit` bytes a row. Counts are ints in MPI-3, so 2 GiB per pair is the limit. */
struct byte_split {
  int count[MAX_RANKS];
  int offset[MAX_RANKS];
};

static struct byte_split in_bytes(const struct split *split, int ranks, size_t unit) {
  struct byte_split bytes = {{0}, {0}};
  for (int p = 0; p < ranks; p++) {
    bytes.count[p] = (int)((size_t)split->count[p] * unit);
    bytes.offset[p] = (int)((size_t)split->offset[p] * unit);
  }
  return bytes;
}

static void all_to_all(const void *from, const struct split *send, void *to, const struct split *receive, int ranks,
                       size_t unit) {
  struct byte_split s = in_bytes(send, ranks, unit);
  struct byte_split r = in_bytes(receive, ranks, unit);
  MPI_Alltoallv(from, s.count, s.offset, MPI_BYTE, to, r.count, r.offset, MPI_BYTE, MPI_COMM_WORLD);
}

static void post_receive(void *to, const struct split *split, int peer, size_t unit, int tag, MPI_Request *request) {
  char *at = (char *)to + (size_t)split->offset[peer] * unit;
  MPI_Irecv(at, (int)((size_t)split->count[peer] * unit), MPI_BYTE, peer, tag, MPI_COMM_WORLD, request);
}

static void post_send(const void *from, const struct split *split, int peer, size_t unit, int tag, MPI_Request *request) {
  const char *at = (const char *)from + (size_t)split->offset[peer] * unit;
  MPI_Isend(at, (int)((size_t)split->count[peer] * unit), MPI_BYTE, peer, tag, MPI_COMM_WORLD, request);
}

/* Sets `send`, `receive` and `own_offset` from the counts that all ranks exchange. */
static void exchange_counts(struct exchange *x) {
  int count[MAX_RANKS];
  int incoming[MAX_RANKS];
  make_layout(x->expert, x->tokens, x->ranks, count, x->ordinal);
  MPI_Alltoall(count, 1, MPI_INT, incoming, 1, MPI_INT, MPI_COMM_WORLD);
  x->send.rows = 0;
  x->receive.rows = 0;
  for (int p = 0; p < x->ranks; p++) {
    int own = p == x->rank;
    x->receive.offset[p] = x->receive.rows;
    x->receive.count[p] = own ? 0 : incoming[p];
    x->receive.rows += incoming[p];
    x->send.offset[p] = x->send.rows;
    x->send.count[p] = own ? 0 : count[p];
    x->send.rows += x->send.count[p];
  }
  x->own_offset = x->receive.offset[x->rank];
}

/* Writes token t's row for rank p where it is sent from, or, for the own rank, where it stays. */
static void pack(struct exchange *x, int t, int p) {
  int place = x->ordinal[t * x->ranks + p];
  if (place < 0)
    return;
  int own = p == x->rank;
  place += own ? x->own_offset : x->send.offset[p];
  bf16 *to = (own ? x->received : x->packed) + (size_t)place * HIDDEN;
  const bf16 *from = x->x + (size_t)t * HIDDEN;
  if (x->copy == COPY_STREAMING)
    copy_streaming_unfenced(to, from, ROW_BYTES);
  else
    memcpy(to, from, ROW_BYTES);
  struct meta *meta = (own ? x->received_meta : x->packed_meta) + place;
  make_meta(meta, x->expert + t * TOPK, x->weight + t * TOPK, p, x->ranks);
}

static void dispatch_all_to_all(struct exchange *x) {
  exchange_counts(x);
  for (int t = 0; t < x->tokens; t++)
    for (int p = 0; p < x->ranks; p++)
      pack(x, t, p);
  streaming_fence();
  all_to_all(x->packed, &x->send, x->received, &x->receive, x->ranks, ROW_BYTES);
  all_to_all(x->packed_meta, &x->send, x->received_meta, &x->receive, x->ranks, sizeof(struct meta));
}

static void dispatch_point_to_point(struct exchange *x) {
  MPI_Request request[4 * MAX_RANKS];
  MPI_Status status[4 * MAX_RANKS];
  int requests = 0;
  exchange_counts(x);
  for (int i = 1; i < x->ranks; i++) {
    int p = (x->rank - i + x->ranks) % x->ranks;
    post_receive(x->received, &x->receive, p, ROW_BYTES, TAG_ROWS, &request[requests++]);
    post_receive(x->received_meta, &x->receive, p, sizeof(struct meta), TAG_META, &request[requests++]);
  }
  /* the own rows last: peers have something to do meanwhile */
  for (int i = 1; i <= x->ranks; i++) {
    int p = (x->rank + i) % x->ranks;
    for (int t = 0; t < x->tokens; t++)
      pack(x, t, p);
    streaming_fence();
    if (p == x->rank)
      continue;
    post_send(x->packed, &x->send, p, ROW_BYTES, TAG_ROWS, &request[requests++]);
    post_send(x->packed_meta, &x->send, p, sizeof(struct meta), TAG_META, &request[requests++]);
  }
  MPI_Waitall(requests, request, status);
}

static void return_point_to_point(struct exchange *x) {
  MPI_Request request[2 * MAX_RANKS];
  MPI_Status status[2 * MAX_RANKS];
  int requests = 0;
  for (int i = 1; i < x->ranks; i++) {
    int p = (x->rank - i + x->ranks) % x->ranks;
    post_receive(x->packed, &x->send, p, ROW_BYTES, TAG_RESULTS, &request[requests++]);
  }
  for (int i = 1; i < x->ranks; i++) {
    int p = (x->rank + i) % x->ranks;
    post_send(x->result, &x->receive, p, ROW_BYTES, TAG_RESULTS, &request[requests++]);
  }
  MPI_Waitall(requests, request, status);
}

static void combine(struct exchange *x) {
  const enum rounding rounding = HAS_HARDWARE_ROUNDING ? ROUND_HARDWARE : ROUND_EXACT;
  if (x->point_to_point)
    return_point_to_point(x);
  else
    all_to_all(x->result, &x->receive, x->packed, &x->send, x->ranks, ROW_BYTES);
  for (int t = 0; t < x->tokens; t++) {
    const bf16 *row[MAX_RANKS];
    int rows = 0;
    for (int p = 0; p < x->ranks; p++) {
      int place = x->ordinal[t * x->ranks + p];
      if (place < 0)
        continue;
      row[rows++] = p == x->rank ? x->result + (size_t)(x->own_offset + place) * HIDDEN
                                 : x->packed + (size_t)(x->send.offset[p] + place) * HIDDEN;
    }
    sum_rows(x->combined + (size_t)t * HIDDEN, row, rows, rounding, x->copy);
  }
  streaming_fence();
}

static void dispatch(struct exchange *x) {
  if (x->point_to_point)
    dispatch_point_to_point(x);
  else
    dispatch_all_to_all(x);
}

/* A whole exchange from poisoned buffers; the number of wrong elements over all ranks. */
static long verify(struct exchange *x) {
  memset(x->received, 0xff, (size_t)x->capacity * ROW_BYTES);
  memset(x->received_meta, 0xff, (size_t)x->capacity * sizeof(struct meta));
  memset(x->result, 0xff, (size_t)x->capacity * ROW_BYTES);
  memset(x->combined, 0xff, (size_t)x->tokens * ROW_BYTES);
  dispatch(x);
  long wrong = x->receive.rows != x->capacity;
  for (int i = 0; i < x->receive.rows && !wrong; i++) {
    size_t at = (size_t)i * HIDDEN;
    run_experts(x->result + at, x->received + at, x->received_meta + i, x->rank, x->ranks);
  }
  combine(x);
  wrong += count_wrong(x->rank, x->ranks, x->tokens, x->expert, x->weight, x->combined);
  long total = 0;
  MPI_Allreduce(&wrong, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  return total;
}

/* First rank's start to last rank's end, in us; the same number on every rank. */
static double time_phase(struct exchange *x, enum phase phase) {
  double first = 0;
  double last = 0;
  MPI_Barrier(MPI_COMM_WORLD);
  double start = (double)now_ns();
  if (phase == DISPATCH)
    dispatch(x);
  else
    combine(x);
  double end = (double)now_ns();
  MPI_Allreduce(&start, &first, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return (last - first) / 1e3;
}

static int time_all(struct exchange *x, int iterations, int warmup, double budget_ns, double sample_us[PHASES][MAX_SAMPLES]) {
  int samples = 0;
  double begin = 0;
  for (int i = -warmup; i < iterations && samples < MAX_SAMPLES; i++) {
    if (i == 0)
      begin = (double)now_ns();
    double dispatch_us = time_phase(x, DISPATCH);
    double combine_us = time_phase(x, COMBINE);
    int stop = 0;
    if (i >= 0) {
      sample_us[DISPATCH][samples] = dispatch_us;
      sample_us[COMBINE][samples] = combine_us;
      samples++;
      stop = samples >= MIN_SAMPLES && (double)now_ns() - begin > budget_ns;
    }
    MPI_Bcast(&stop, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (stop)
      break;
  }
  return samples;
}

/* Rows this rank receives, its own among them. */
static int rows_for(int rank, int ranks, int tokens) {
  int32_t *expert = malloc((size_t)tokens * TOPK * sizeof *expert);
  float *weight = malloc((size_t)tokens * TOPK * sizeof *weight);
  int rows = 0;
  for (int source = 0; source < ranks; source++) {
    make_routing(source, tokens, expert, weight);
    for (int t = 0; t < tokens; t++)
      rows += (int)(target_ranks(expert + t * TOPK, ranks) >> rank & 1);
  }
  free(expert);
  free(weight);
  return rows;
}

int main(int argc, char **argv) {
  arm_deadline();
  read_allowed_cpus();
  MPI_Init(&argc, &argv);
  struct exchange x = {0};
  MPI_Comm_rank(MPI_COMM_WORLD, &x.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &x.ranks);
  bind_to_core(x.rank);
  if (argc != 6 || x.ranks > MAX_RANKS) {
    fprintf(stderr, "usage: moe_mpi TOKENS dedup|dedup_nt|dedup_p2p ITERATIONS WARMUP BUDGET_MS, at most %d ranks\n", MAX_RANKS);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  x.tokens = atoi(argv[1]);
  const char *variant = argv[2];
  x.point_to_point = strstr(variant, "_p2p") != NULL;
  x.copy = strstr(variant, "_nt") ? COPY_STREAMING : COPY_MEMCPY;

  size_t slots = (size_t)x.tokens * TOPK;
  size_t sent = (size_t)x.tokens * (size_t)(x.ranks < TOPK ? x.ranks : TOPK);
  x.capacity = rows_for(x.rank, x.ranks, x.tokens);
  size_t capacity = (size_t)x.capacity;
  x.expert = malloc(slots * sizeof *x.expert);
  x.weight = malloc(slots * sizeof *x.weight);
  x.ordinal = malloc((size_t)x.tokens * (size_t)x.ranks * sizeof *x.ordinal);
  x.x = allocate((size_t)x.tokens * ROW_BYTES, MEMORY_PRIVATE);
  x.combined = allocate((size_t)x.tokens * ROW_BYTES, MEMORY_PRIVATE);
  x.packed = allocate(sent * ROW_BYTES, MEMORY_PRIVATE);
  x.packed_meta = allocate(sent * sizeof(struct meta), MEMORY_PRIVATE);
  x.received = allocate(capacity * ROW_BYTES, MEMORY_PRIVATE);
  x.received_meta = allocate(capacity * sizeof(struct meta), MEMORY_PRIVATE);
  x.result = allocate(capacity * ROW_BYTES, MEMORY_PRIVATE);
  memset(x.packed, 0, sent * ROW_BYTES);
  memset(x.packed_meta, 0, sent * sizeof(struct meta));
  make_routing(x.rank, x.tokens, x.expert, x.weight);
  make_tokens(x.rank, x.tokens, x.x);

  if (x.rank == 0)
    print_library();
  static double sample_us[PHASES][MAX_SAMPLES];
  long wrong = verify(&x);
  int samples = 0;
  if (!wrong) {
    samples = time_all(&x, atoi(argv[3]), atoi(argv[4]), atof(argv[5]) * 1e6, sample_us);
    wrong = verify(&x);
  }
  if (x.rank == 0 && wrong)
    printf("VERIFY FAILED\n");
  if (x.rank == 0 && !wrong) {
    print_row("moe", x.ranks, (size_t)x.tokens, variant, "dispatch", "us", sample_us[DISPATCH], samples);
    print_row("moe", x.ranks, (size_t)x.tokens, variant, "combine", "us", sample_us[COMBINE], samples);
  }
  fflush(stdout);
  MPI_Finalize();
  return wrong ? 1 : 0;
}
