/* Binding of ranks to cores: rank r runs on the (r modulo n)-th of the n CPUs that the runner allows. The runner
 * allows one hardware thread of each physical core, so every side of the comparison is bound alike. */
#pragma once
#include <sched.h>

/* The CPUs the program was started with. Must be read before the first `bind_to_core`. */
static cpu_set_t allowed_cpus;
static int allowed_count;

static inline void read_allowed_cpus(void) {
  sched_getaffinity(0, sizeof allowed_cpus, &allowed_cpus);
  allowed_count = CPU_COUNT(&allowed_cpus);
}

static inline void bind_to_core(int rank) {
  int skip = rank % allowed_count;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed_cpus))
      continue;
    if (skip-- > 0)
      continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}
