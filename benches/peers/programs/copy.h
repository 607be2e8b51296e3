/* Copies of rows. `copy_streaming` writes past the caches (non-temporal stores): no line of the target is read first
 * and nothing of the reader's or the writer's cache is thrown out; glibc's memcpy does so only far above a row's size. */
#pragma once
#include <stddef.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#define HAS_STREAMING 1
#else
#define HAS_STREAMING 0
#endif

enum copy_kind { COPY_MEMCPY, COPY_STREAMING };

/* Streaming stores are not ordered by a later release store alone: fence first. */
static inline void streaming_fence(void) {
#if HAS_STREAMING
  _mm_sfence();
#endif
}

/* `to` 64-byte aligned, `bytes` a multiple of 64. Without the final fence. */
static inline void copy_streaming_unfenced(void *to, const void *from, size_t bytes) {
#if defined(__AVX512F__)
  char *d = to;
  const char *s = from;
  size_t i = 0;
  for (; i + 256 <= bytes; i += 256) {
    __m512i a = _mm512_loadu_si512(s + i);
    __m512i b = _mm512_loadu_si512(s + i + 64);
    __m512i c = _mm512_loadu_si512(s + i + 128);
    __m512i e = _mm512_loadu_si512(s + i + 192);
    _mm512_stream_si512((void *)(d + i), a);
    _mm512_stream_si512((void *)(d + i + 64), b);
    _mm512_stream_si512((void *)(d + i + 128), c);
    _mm512_stream_si512((void *)(d + i + 192), e);
  }
  for (; i < bytes; i += 64)
    _mm512_stream_si512((void *)(d + i), _mm512_loadu_si512(s + i));
#elif HAS_STREAMING
  __m128i *d = to;
  const __m128i *s = from;
  for (size_t i = 0; i < bytes / 16; i++)
    _mm_stream_si128(d + i, _mm_loadu_si128(s + i));
#else
  memcpy(to, from, bytes);
#endif
}

static inline void copy_streaming(void *to, const void *from, size_t bytes) {
  copy_streaming_unfenced(to, from, bytes);
  streaming_fence();
}
