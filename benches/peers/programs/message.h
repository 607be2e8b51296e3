/* The messages of the put case: a source and a target region of REGION bytes on each of two ranks, both larger than
 * the caches; message i uses the i-th slot and the slots rotate, so that no payload is found in a cache. */
#pragma once
#include <stddef.h>
#include <stdio.h>

#define REGION ((size_t)64 << 20)
enum { MESSAGE_SIZES = 3 };
static const size_t message_bytes[MESSAGE_SIZES] = {8, (size_t)1 << 20, (size_t)16 << 20};

/* Round trips per batch: enough to rotate through the region, or to time 8 bytes. */
static inline int round_trips(size_t bytes) {
  return bytes <= 4096 ? 20000 : bytes <= ((size_t)1 << 20) ? 64 : 4;
}

/* Slots are whole lines: two messages never share one. */
static inline size_t slot_bytes(size_t bytes) {
  return bytes < 64 ? 64 : bytes;
}

static inline size_t slot_offset(size_t bytes, size_t message) {
  size_t slots = REGION / slot_bytes(bytes);
  return message % slots * slot_bytes(bytes);
}

/* The byte that rank r's source region is filled with. */
static inline unsigned char fill_byte(int rank) {
  return (unsigned char)(0x51 + rank);
}

/* Whether all of the messages so far arrived in `region` from `peer`. */
static inline int arrived(const unsigned char *region, int peer, size_t bytes, size_t messages) {
  size_t slots = REGION / slot_bytes(bytes);
  for (size_t m = 0; m < messages && m < slots; m++) {
    size_t at = slot_offset(bytes, m);
    for (size_t i = 0; i < bytes; i++) {
      if (region[at + i] != fill_byte(peer)) {
        fprintf(stderr, "message %zu byte %zu from rank %d: got %#x\n", m, i, peer, region[at + i]);
        return 0;
      }
    }
  }
  return 1;
}
