/* MoE dispatch and combine by hand: direct writes into memory that all ranks share, no library. The limit that
 * `campanile` is measured against.
 *
 *   moe_direct RANKS TOKENS threads|processes memcpy|nt hardware|exact ITERATIONS WARMUP BUDGET_MS
 *
 * dispatch: layout; publish counts; barrier; write each needed row once to its final place; barrier.
 * combine:  barrier (peers' results are ready); sum the peers' rows in place; barrier (peers may overwrite them).
 * `nt` stores rows, and the sums of combine, past the caches. */
#define _GNU_SOURCE
#include "barrier.h"
#include "clock.h"
#include "copy.h"
#include "memory.h"
#include "moe.h"
#include "oracle.h"
#include "rank.h"
#include "reduce.h"
#include "row.h"

enum { MAX_SAMPLES = 10000, MIN_SAMPLES = 5 };
enum phase { DISPATCH, COMBINE, PHASES };

/* Shared by all ranks. */
struct world {
  struct line barrier[MAX_RANKS];
  int count[MAX_RANKS][MAX_RANKS]; /* [source][target] rows */
  double start_ns[MAX_RANKS];      /* of the phase being timed */
  double end_ns[MAX_RANKS];
  double sample_us[PHASES][MAX_SAMPLES];
  int samples;
  int stop;
  _Atomic int wrong; /* a rank found a wrong element */

  int tokens;
  enum copy_kind copy;
  enum rounding rounding;
  int iterations;
  int warmup;
  double budget_ns;

  size_t capacity;               /* rows of each buffer below */
  bf16 *received[MAX_RANKS];     /* [capacity][HIDDEN], by source rank, then token */
  struct meta *meta[MAX_RANKS];  /* [capacity] */
  bf16 *result[MAX_RANKS];       /* [capacity][HIDDEN], what the experts made of `received` */
};

/* One rank's own memory. */
struct rank_state {
  struct world *world;
  int rank;
  int ranks;
  uint64_t epoch;
  int32_t *expert;  /* [tokens][TOPK] */
  float *weight;    /* [tokens][TOPK] */
  int32_t *place;   /* [tokens][ranks] row in the target's buffers, or -1 */
  bf16 *x;          /* [tokens][HIDDEN] */
  bf16 *combined;   /* [tokens][HIDDEN] */
};

static void barrier(struct rank_state *s) {
  flag_barrier(s->world->barrier, s->rank, s->ranks, ++s->epoch);
}

static void dispatch(struct rank_state *s) {
  struct world *w = s->world;
  make_layout(s->expert, w->tokens, s->ranks, w->count[s->rank], s->place);
  barrier(s);
  int offset[MAX_RANKS]; /* where this source's rows start on each target */
  for (int p = 0; p < s->ranks; p++) {
    offset[p] = 0;
    for (int source = 0; source < s->rank; source++)
      offset[p] += w->count[source][p];
  }
  for (int t = 0; t < w->tokens; t++) {
    const bf16 *from = s->x + (size_t)t * HIDDEN;
    for (int p = 0; p < s->ranks; p++) {
      int32_t *place = &s->place[t * s->ranks + p];
      if (*place < 0)
        continue;
      *place += offset[p];
      bf16 *to = w->received[p] + (size_t)*place * HIDDEN;
      if (w->copy == COPY_STREAMING)
        copy_streaming_unfenced(to, from, ROW_BYTES);
      else
        memcpy(to, from, ROW_BYTES);
      make_meta(w->meta[p] + *place, s->expert + t * TOPK, s->weight + t * TOPK, p, s->ranks);
    }
  }
  streaming_fence();
  barrier(s);
}

static void combine(struct rank_state *s) {
  struct world *w = s->world;
  barrier(s);
  for (int t = 0; t < w->tokens; t++) {
    const bf16 *row[MAX_RANKS];
    int rows = 0;
    for (int p = 0; p < s->ranks; p++) {
      int place = s->place[t * s->ranks + p];
      if (place >= 0)
        row[rows++] = w->result[p] + (size_t)place * HIDDEN;
    }
    sum_rows(s->combined + (size_t)t * HIDDEN, row, rows, w->rounding, w->copy);
  }
  streaming_fence();
  barrier(s);
}

/* The experts of this rank, on all rows it received. */
static void experts(struct rank_state *s) {
  struct world *w = s->world;
  int rows = 0;
  for (int source = 0; source < s->ranks; source++)
    rows += w->count[source][s->rank];
  for (int i = 0; i < rows; i++) {
    size_t at = (size_t)i * HIDDEN;
    run_experts(w->result[s->rank] + at, w->received[s->rank] + at, w->meta[s->rank] + i, s->rank, s->ranks);
  }
}

/* A whole exchange from poisoned buffers, every combined element checked. */
static void verify(struct rank_state *s) {
  struct world *w = s->world;
  memset(w->received[s->rank], 0xff, w->capacity * ROW_BYTES);
  memset(w->result[s->rank], 0xff, w->capacity * ROW_BYTES);
  memset(w->meta[s->rank], 0xff, w->capacity * sizeof(struct meta));
  memset(s->combined, 0xff, (size_t)w->tokens * ROW_BYTES);
  barrier(s);
  dispatch(s);
  experts(s);
  combine(s);
  if (count_wrong(s->rank, s->ranks, w->tokens, s->expert, s->weight, s->combined))
    w->wrong = 1;
  barrier(s);
}

/* First rank's start to last rank's end. */
static double span_us(const struct world *w, int ranks) {
  double first = w->start_ns[0];
  double last = w->end_ns[0];
  for (int r = 1; r < ranks; r++) {
    if (w->start_ns[r] < first)
      first = w->start_ns[r];
    if (w->end_ns[r] > last)
      last = w->end_ns[r];
  }
  return (last - first) / 1e3;
}

static void time_phase(struct rank_state *s, enum phase phase) {
  struct world *w = s->world;
  barrier(s);
  double start = (double)now_ns();
  if (phase == DISPATCH)
    dispatch(s);
  else
    combine(s);
  w->end_ns[s->rank] = (double)now_ns();
  w->start_ns[s->rank] = start;
  barrier(s);
  if (s->rank == 0)
    w->sample_us[phase][w->samples] = span_us(w, s->ranks);
}

static void time_all(struct rank_state *s) {
  struct world *w = s->world;
  double begin = 0;
  for (int i = -w->warmup; i < w->iterations; i++) {
    if (i == 0)
      begin = (double)now_ns();
    time_phase(s, DISPATCH);
    time_phase(s, COMBINE);
    if (s->rank == 0 && i >= 0) {
      w->samples++;
      w->stop = w->samples >= MIN_SAMPLES && (double)now_ns() - begin > w->budget_ns;
    }
    barrier(s);
    if (w->stop)
      break;
  }
}

static void rank_main(int rank, int ranks, void *shared) {
  struct world *w = shared;
  size_t slots = (size_t)w->tokens * TOPK;
  struct rank_state s = {.world = w, .rank = rank, .ranks = ranks};
  s.expert = malloc(slots * sizeof *s.expert);
  s.weight = malloc(slots * sizeof *s.weight);
  s.place = malloc((size_t)w->tokens * (size_t)ranks * sizeof *s.place);
  s.x = allocate((size_t)w->tokens * ROW_BYTES, MEMORY_PRIVATE);
  s.combined = allocate((size_t)w->tokens * ROW_BYTES, MEMORY_PRIVATE);
  make_routing(rank, w->tokens, s.expert, s.weight);
  make_tokens(rank, w->tokens, s.x);
  verify(&s);
  if (!w->wrong)
    time_all(&s);
  if (!w->wrong)
    verify(&s);
}

/* Most rows that any rank receives. */
static size_t largest_receive(int ranks, int tokens) {
  int32_t *expert = malloc((size_t)tokens * TOPK * sizeof *expert);
  float *weight = malloc((size_t)tokens * TOPK * sizeof *weight);
  int32_t *ordinal = malloc((size_t)tokens * (size_t)ranks * sizeof *ordinal);
  size_t total[MAX_RANKS] = {0};
  for (int source = 0; source < ranks; source++) {
    int count[MAX_RANKS];
    make_routing(source, tokens, expert, weight);
    make_layout(expert, tokens, ranks, count, ordinal);
    for (int p = 0; p < ranks; p++)
      total[p] += (size_t)count[p];
  }
  size_t most = 0;
  for (int p = 0; p < ranks; p++)
    if (total[p] > most)
      most = total[p];
  free(expert);
  free(weight);
  free(ordinal);
  return most;
}

int main(int argc, char **argv) {
  if (argc != 9) {
    fprintf(stderr, "usage: moe_direct RANKS TOKENS threads|processes memcpy|nt hardware|exact ITERATIONS WARMUP BUDGET_MS\n");
    return 2;
  }
  int ranks = atoi(argv[1]);
  int tokens = atoi(argv[2]);
  enum rank_kind kind = parse_rank_kind(argv[3]);
  int streaming = !strcmp(argv[4], "nt");
  int exact = !strcmp(argv[5], "exact");
  if (ranks < 1 || ranks > MAX_RANKS || tokens < 1) {
    fprintf(stderr, "ranks are 1 to %d, tokens at least 1\n", MAX_RANKS);
    return 2;
  }
  if (streaming && !HAS_STREAMING)
    unavailable("no non-temporal stores known for this CPU");
  if (!exact && !HAS_HARDWARE_ROUNDING)
    unavailable("this CPU has no AVX512-BF16");
  arm_deadline();
  read_allowed_cpus();
  choose_spins(ranks, allowed_count);

  struct world *w = allocate(sizeof *w, MEMORY_SHARED);
  w->tokens = tokens;
  w->copy = streaming ? COPY_STREAMING : COPY_MEMCPY;
  w->rounding = exact ? ROUND_EXACT : ROUND_HARDWARE;
  w->iterations = atoi(argv[6]) < MAX_SAMPLES ? atoi(argv[6]) : MAX_SAMPLES;
  w->warmup = atoi(argv[7]);
  w->budget_ns = atof(argv[8]) * 1e6;
  w->capacity = largest_receive(ranks, tokens);
  for (int p = 0; p < ranks; p++) {
    w->received[p] = allocate(w->capacity * ROW_BYTES, MEMORY_SHARED);
    w->result[p] = allocate(w->capacity * ROW_BYTES, MEMORY_SHARED);
    w->meta[p] = allocate(w->capacity * sizeof(struct meta), MEMORY_SHARED);
  }
  if (run_ranks(ranks, kind, rank_main, w))
    return 1;
  if (w->wrong) {
    printf("VERIFY FAILED\n");
    return 1;
  }
  char variant[64];
  snprintf(variant, sizeof variant, "%s %s %s", argv[3], argv[4], argv[5]);
  print_row("moe", ranks, (size_t)tokens, variant, "dispatch", "us", w->sample_us[DISPATCH], w->samples);
  print_row("moe", ranks, (size_t)tokens, variant, "combine", "us", w->sample_us[COMBINE], w->samples);
  return 0;
}
