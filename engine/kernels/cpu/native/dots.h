// The integer sums of one group of 32 for a block's 16 rows and R rows of activations at once: the
// group's codes are read and unpacked once. Which instructions add them up changes nothing, integers
// are exact.
//
//     dot_four<R>, dot_eight<R>   group's quads, planes of R rows -> sums [R]
#pragma once

#include "activations.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
#define BATON_VNNI 1
#elif defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#define BATON_AVX2 1
#endif

#if BATON_VNNI

static inline __m512i four_of(const int8_t *x) {
  int32_t word;
  memcpy(&word, x, 4);
  return _mm512_set1_epi32(word);
}

static inline i32x16 together(__m512i high, __m512i low) {
  return (i32x16)_mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

template <int R>
static inline void dot_four(const uint8_t *quads, const int8_t *planes, i32x16 *sums) {
  const __m512i mask = _mm512_set1_epi8(15);
  __m512i first[4], second[4];
  for (int q = 0; q < 4; q++) {
    __m512i packed = _mm512_loadu_si512(quads + 64 * q);
    first[q] = _mm512_and_si512(packed, mask);
    second[q] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), mask);
  }
  for (int r = 0; r < R; r++) {
    const int8_t *high = planes + r * PLANES, *low = high + GROUP;
    __m512i h0 = _mm512_setzero_si512(), h1 = h0, l0 = h0, l1 = h0;
    for (int q = 0; q < 4; q++) {
      h0 = _mm512_dpbusd_epi32(h0, first[q], four_of(high + 4 * q));
      l0 = _mm512_dpbusd_epi32(l0, first[q], four_of(low + 4 * q));
      h1 = _mm512_dpbusd_epi32(h1, second[q], four_of(high + 16 + 4 * q));
      l1 = _mm512_dpbusd_epi32(l1, second[q], four_of(low + 16 + 4 * q));
    }
    sums[r] = together(_mm512_add_epi32(h0, h1), _mm512_add_epi32(l0, l1));
  }
}

template <int R>
static inline void dot_eight(const uint8_t *quads, const int8_t *planes, i32x16 *sums) {
  __m512i codes[8];
  for (int q = 0; q < 8; q++) codes[q] = _mm512_loadu_si512(quads + 64 * q);
  for (int r = 0; r < R; r++) {
    const int8_t *high = planes + r * PLANES, *low = high + GROUP;
    __m512i h0 = _mm512_setzero_si512(), h1 = h0, l0 = h0, l1 = h0;
    for (int q = 0; q < 8; q += 2) {
      h0 = _mm512_dpbusd_epi32(h0, codes[q], four_of(high + 4 * q));
      l0 = _mm512_dpbusd_epi32(l0, codes[q], four_of(low + 4 * q));
      h1 = _mm512_dpbusd_epi32(h1, codes[q + 1], four_of(high + 4 * q + 4));
      l1 = _mm512_dpbusd_epi32(l1, codes[q + 1], four_of(low + 4 * q + 4));
    }
    sums[r] = together(_mm512_add_epi32(h0, h1), _mm512_add_epi32(l0, l1));
  }
}

#elif BATON_AVX2  // the same integers: products of 4-bit codes, summed in 16 bits (8 * 2 * 15 * 128)

// 8 rows of a group: 16-bit sums over the two halves of each four, then one sum a row.
struct Sums16 {
  __m256i high = _mm256_setzero_si256(), low = high;

  void add(__m256i codes, const int8_t *x_high, const int8_t *x_low) {
    high = _mm256_add_epi16(high, _mm256_maddubs_epi16(codes, four_of(x_high)));
    low = _mm256_add_epi16(low, _mm256_maddubs_epi16(codes, four_of(x_low)));
  }
  __m256i together() const {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i h = _mm256_madd_epi16(high, one), l = _mm256_madd_epi16(low, one);
    return _mm256_add_epi32(_mm256_slli_epi32(h, 8), l);
  }
  static __m256i four_of(const int8_t *x) {
    int32_t word;
    memcpy(&word, x, 4);
    return _mm256_set1_epi32(word);
  }
};

static inline __m256i low_codes(__m256i bytes) {
  return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
}

static inline __m256i high_codes(__m256i bytes) { return low_codes(_mm256_srli_epi16(bytes, 4)); }

static inline __m256i eight_rows(const uint8_t *quad) {
  return _mm256_loadu_si256((const __m256i *)quad);
}

static inline i32x16 dot_four_row(const uint8_t *quads, const int8_t *high) {
  const int8_t *low = high + GROUP;
  __m256i rows[2];
  for (int half = 0; half < 2; half++) {
    Sums16 sums;
    for (int q = 0; q < 4; q++) {
      __m256i bytes = eight_rows(quads + 64 * q + 32 * half);
      sums.add(low_codes(bytes), high + 4 * q, low + 4 * q);
      sums.add(high_codes(bytes), high + 16 + 4 * q, low + 16 + 4 * q);
    }
    rows[half] = sums.together();
  }
  i32x16 v;
  memcpy(&v, rows, sizeof v);
  return v;
}

static inline i32x16 dot_eight_row(const uint8_t *quads, const int8_t *high) {
  const int8_t *low = high + GROUP;
  __m256i rows[2];
  for (int half = 0; half < 2; half++) {
    Sums16 below, above;  // a code is above * 16 + below
    for (int q = 0; q < 8; q++) {
      __m256i bytes = eight_rows(quads + 64 * q + 32 * half);
      below.add(low_codes(bytes), high + 4 * q, low + 4 * q);
      above.add(high_codes(bytes), high + 4 * q, low + 4 * q);
    }
    rows[half] = _mm256_add_epi32(_mm256_slli_epi32(above.together(), 4), below.together());
  }
  i32x16 v;
  memcpy(&v, rows, sizeof v);
  return v;
}

#else  // the same integers, without such instructions

static inline void dot_quad(const uint8_t *codes, int mask, int shift, const int8_t *high,
                            const int8_t *low, int32_t *acc) {
  int32_t x[4];
  for (int i = 0; i < 4; i++) x[i] = 256 * high[i] + low[i];
  for (int row = 0; row < LANES; row++)
    for (int i = 0; i < 4; i++) acc[row] += (codes[4 * row + i] >> shift & mask) * x[i];
}

static inline i32x16 dot_four_row(const uint8_t *quads, const int8_t *high) {
  const int8_t *low = high + GROUP;
  int32_t acc[LANES] = {};
  for (int q = 0; q < 4; q++) {
    dot_quad(quads + 64 * q, 15, 0, high + 4 * q, low + 4 * q, acc);
    dot_quad(quads + 64 * q, 15, 4, high + 16 + 4 * q, low + 16 + 4 * q, acc);
  }
  i32x16 v;
  memcpy(&v, acc, sizeof v);
  return v;
}

static inline i32x16 dot_eight_row(const uint8_t *quads, const int8_t *high) {
  const int8_t *low = high + GROUP;
  int32_t acc[LANES] = {};
  for (int q = 0; q < 8; q++) dot_quad(quads + 64 * q, 255, 0, high + 4 * q, low + 4 * q, acc);
  i32x16 v;
  memcpy(&v, acc, sizeof v);
  return v;
}

#endif

#if !BATON_VNNI  // row after row, on codes that are in the first cache after the first one

template <int R>
static inline void dot_four(const uint8_t *quads, const int8_t *planes, i32x16 *sums) {
  for (int r = 0; r < R; r++) sums[r] = dot_four_row(quads, planes + r * PLANES);
}

template <int R>
static inline void dot_eight(const uint8_t *quads, const int8_t *planes, i32x16 *sums) {
  for (int r = 0; r < R; r++) sums[r] = dot_eight_row(quads, planes + r * PLANES);
}

#endif
