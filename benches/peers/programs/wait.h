/* Waiting for a word that another rank writes: spin, then give the core away with sched_yield. */
#pragma once
#include <sched.h>

/* Tries before the first yield. Lowered when there are more ranks than cores: whoever is waited for may need this core. */
static int spins_before_yield = 2000;

static inline void choose_spins(int ranks, int cores) {
  spins_before_yield = ranks > cores ? 20 : 2000;
}

static inline void relax_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

#define WAIT_UNTIL(condition)               \
  do {                                      \
    int spins_ = 0;                         \
    while (!(condition)) {                  \
      if (spins_++ < spins_before_yield)    \
        relax_cpu();                        \
      else                                  \
        sched_yield();                      \
    }                                       \
  } while (0)
