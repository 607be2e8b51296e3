/* Operations too short for one reading of the clock are timed in batches; a sample is the mean of one batch. */
#pragma once

enum { FIRST_BATCH = 10, MAX_BATCHES = 100 };

/* About 20 ms of work. */
static inline int size_of_batch(double each_us) {
  double size = 20e3 / (each_us > 0.01 ? each_us : 0.01);
  return size < 1 ? 1 : size > 20000 ? 20000 : (int)size;
}
