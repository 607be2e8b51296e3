/* Large buffers: 2 MiB aligned, huge pages advised. Touch them before anything is timed: a first touch costs more than
 * the copy that it is part of. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum memory_kind { MEMORY_PRIVATE, MEMORY_SHARED /* with the ranks that are forked later */ };

static inline void *allocate(size_t bytes, enum memory_kind kind) {
  const size_t align = (size_t)2 << 20;
  size_t length = ((bytes + align - 1) & ~(align - 1)) + align;
  int flags = MAP_ANONYMOUS | (kind == MEMORY_SHARED ? MAP_SHARED : MAP_PRIVATE);
  char *map = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (map == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  map = (char *)(((uintptr_t)map + align - 1) & ~(uintptr_t)(align - 1));
  madvise(map, length - align, MADV_HUGEPAGE);
  return map;
}
