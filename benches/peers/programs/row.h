/* Results, one line each, for the runner:
 *
 *   ROW,case,ranks,size,variant,metric,unit,median,p10,p90,p99,samples
 *
 * `size` is tokens per rank for moe, bytes for put and collectives, 0 for barrier. Fields hold no commas. */
#pragma once
#include <stdio.h>
#include <stdlib.h>

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Nearest rank, as numpy's `method="nearest"`. */
static inline double percentile(const double *sorted, int count, double fraction) {
  return sorted[(int)(fraction * (count - 1) + 0.5)];
}

static inline void print_row(const char *name, int ranks, size_t size, const char *variant, const char *metric,
                             const char *unit, double *sample, int samples) {
  if (samples <= 0)
    return;
  qsort(sample, (size_t)samples, sizeof *sample, compare_doubles);
  printf("ROW,%s,%d,%zu,%s,%s,%s,%.6g,%.6g,%.6g,%.6g,%d\n", name, ranks, size, variant, metric, unit,
         percentile(sample, samples, 0.5), percentile(sample, samples, 0.1), percentile(sample, samples, 0.9),
         percentile(sample, samples, 0.99), samples);
  fflush(stdout);
}
