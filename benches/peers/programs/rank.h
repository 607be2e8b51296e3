/* Ranks of the hand-written programs: threads of this process, or processes forked from it that share what was
 * allocated as MEMORY_SHARED before. Each is bound to its core. */
#pragma once
#include "core.h"
#include "deadline.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RANKS = 64 };
enum rank_kind { RANK_THREAD, RANK_PROCESS };

/* What a rank runs. A rank that cannot go on calls `exit` or `_exit` with a status other than 0. */
typedef void (*rank_body)(int rank, int ranks, void *shared);

struct rank_start {
  rank_body body;
  int rank;
  int ranks;
  void *shared;
};

static void *rank_thread(void *argument) {
  struct rank_start *start = argument;
  bind_to_core(start->rank);
  start->body(start->rank, start->ranks, start->shared);
  return NULL;
}

static int run_threads(int ranks, rank_body body, void *shared) {
  pthread_t thread[MAX_RANKS];
  struct rank_start start[MAX_RANKS];
  for (int r = 0; r < ranks; r++) {
    start[r] = (struct rank_start){body, r, ranks, shared};
    if (pthread_create(&thread[r], NULL, rank_thread, &start[r])) {
      fprintf(stderr, "cannot start thread %d\n", r);
      exit(1);
    }
  }
  for (int r = 0; r < ranks; r++)
    pthread_join(thread[r], NULL);
  return 0;
}

static int run_processes(int ranks, rank_body body, void *shared) {
  pid_t child[MAX_RANKS];
  pid_t parent = getpid();
  fflush(stdout);
  for (int r = 0; r < ranks; r++) {
    child[r] = fork();
    if (child[r] < 0) {
      perror("fork");
      exit(1);
    }
    if (child[r] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent)
        _exit(1);
      arm_deadline(); /* alarms are not inherited */
      bind_to_core(r);
      body(r, ranks, shared);
      fflush(stdout);
      _exit(0);
    }
  }
  int failed = 0;
  for (int left = ranks; left > 0; left--) {
    int status = 0;
    waitpid(-1, &status, 0);
    if (status == 0 || failed)
      continue;
    failed = 1;
    fprintf(stderr, "a rank failed (status %#x); ending the others\n", (unsigned)status);
    for (int r = 0; r < ranks; r++)
      kill(child[r], SIGKILL);
  }
  return failed;
}

/* Runs `body` on all ranks; 0 when all of them returned. */
static inline int run_ranks(int ranks, enum rank_kind kind, rank_body body, void *shared) {
  return kind == RANK_PROCESS ? run_processes(ranks, body, shared) : run_threads(ranks, body, shared);
}

/* Parses the word that all hand-written programs take. */
static inline enum rank_kind parse_rank_kind(const char *word) {
  if (!strcmp(word, "processes"))
    return RANK_PROCESS;
  if (!strcmp(word, "threads"))
    return RANK_THREAD;
  fprintf(stderr, "ranks are 'threads' or 'processes', not '%s'\n", word);
  exit(2);
}

/* Exit status for a variant that this machine's CPU cannot run; the runner lists it as not run. */
enum { EXIT_UNAVAILABLE = 77 };

static inline void unavailable(const char *why) {
  fprintf(stderr, "%s\n", why);
  exit(EXIT_UNAVAILABLE);
}
