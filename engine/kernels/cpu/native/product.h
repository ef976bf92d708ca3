// y = W x for one row x and weights of 4 or 8 bits in groups of 32, rows interleaved by 16.
//
//     FOUR   w = scale * code + minimum, code 0..15      20 bytes per row and group: Q4_1, Q4_0
//     EIGHT  w = scale * (code - 128),   code 0..255     34 bytes: Q8_0
//
// A block is 16 rows. Of each group it holds quads of 16 x 4 neighbouring codes, 64 bytes that one
// VNNI instruction multiplies by 4 activations, and the group's 16 float16 scales (and minima):
//
//     FOUR   per group: 16 scales, 16 minima, 4 quads; a byte's low half is code k, its high half
//            code k + 16, as in the file
//     EIGHT  all groups' 16 scales (in whole lines of 64 bytes), then all groups' 8 quads
//
// Claim: one Zen 4 core reads weights with it as fast as memory gives them (docs/performance.md).
// A block's sums depend on nothing but the block and x.
#pragma once

#include "activations.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
#define BATON_VNNI 1
#elif defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#define BATON_AVX2 1
#endif

enum Kind { FOUR = 4, EIGHT = 8 };

struct Matrix {
  Kind kind;
  int rows, columns;
  uint8_t *blocks;

  int groups() const { return columns / GROUP; }
  int block_count() const { return (rows + LANES - 1) / LANES; }
  size_t quads_at() const { return ((size_t)groups() * 32 + 63) / 64 * 64; }  // of EIGHT
  size_t block_bytes() const {
    return kind == FOUR ? (size_t)groups() * 320 : quads_at() + (size_t)groups() * 512;
  }
  const uint8_t *block(int b) const { return blocks + block_bytes() * b; }
};

// Bytes ahead that are asked for while a group (320 or 512 bytes) is computed. Into the second
// cache: asked into the first, whose few open requests then stand in the way of the hardware's own
// prefetching, EIGHT reads at half the speed.
constexpr size_t AHEAD = 8192;

static inline void prefetch(const uint8_t *p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

static inline f32x16 halves(const uint8_t *p) {
#if BATON_VNNI
  return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif BATON_AVX2
  __m256 both[2] = {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                    _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16)))};
  f32x16 v;
  memcpy(&v, both, sizeof v);
  return v;
#else
  _Float16 h[LANES];
  memcpy(h, p, sizeof h);
  f32x16 v;
  for (int i = 0; i < LANES; i++) v[i] = (float)h[i];
  return v;
#endif
}

#if BATON_VNNI

static inline __m512i four_of(const int8_t *x) {
  int32_t word;
  memcpy(&word, x, 4);
  return _mm512_set1_epi32(word);
}

static inline i32x16 together(__m512i high, __m512i low) {
  return (i32x16)_mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

static inline i32x16 dot_four(const uint8_t *quads, const int8_t *high, const int8_t *low) {
  const __m512i mask = _mm512_set1_epi8(15);
  __m512i h0 = _mm512_setzero_si512(), h1 = h0, l0 = h0, l1 = h0;
  for (int q = 0; q < 4; q++) {
    __m512i packed = _mm512_loadu_si512(quads + 64 * q);
    __m512i first = _mm512_and_si512(packed, mask);
    __m512i second = _mm512_and_si512(_mm512_srli_epi16(packed, 4), mask);
    h0 = _mm512_dpbusd_epi32(h0, first, four_of(high + 4 * q));
    l0 = _mm512_dpbusd_epi32(l0, first, four_of(low + 4 * q));
    h1 = _mm512_dpbusd_epi32(h1, second, four_of(high + 16 + 4 * q));
    l1 = _mm512_dpbusd_epi32(l1, second, four_of(low + 16 + 4 * q));
  }
  return together(_mm512_add_epi32(h0, h1), _mm512_add_epi32(l0, l1));
}

static inline i32x16 dot_eight(const uint8_t *quads, const int8_t *high, const int8_t *low) {
  __m512i h0 = _mm512_setzero_si512(), h1 = h0, l0 = h0, l1 = h0;
  for (int q = 0; q < 8; q += 2) {
    __m512i first = _mm512_loadu_si512(quads + 64 * q);
    __m512i second = _mm512_loadu_si512(quads + 64 * q + 64);
    h0 = _mm512_dpbusd_epi32(h0, first, four_of(high + 4 * q));
    l0 = _mm512_dpbusd_epi32(l0, first, four_of(low + 4 * q));
    h1 = _mm512_dpbusd_epi32(h1, second, four_of(high + 4 * q + 4));
    l1 = _mm512_dpbusd_epi32(l1, second, four_of(low + 4 * q + 4));
  }
  return together(_mm512_add_epi32(h0, h1), _mm512_add_epi32(l0, l1));
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

static inline i32x16 dot_four(const uint8_t *quads, const int8_t *high, const int8_t *low) {
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

static inline i32x16 dot_eight(const uint8_t *quads, const int8_t *high, const int8_t *low) {
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

static inline i32x16 dot_four(const uint8_t *quads, const int8_t *high, const int8_t *low) {
  int32_t acc[LANES] = {};
  for (int q = 0; q < 4; q++) {
    dot_quad(quads + 64 * q, 15, 0, high + 4 * q, low + 4 * q, acc);
    dot_quad(quads + 64 * q, 15, 4, high + 16 + 4 * q, low + 16 + 4 * q, acc);
  }
  i32x16 v;
  memcpy(&v, acc, sizeof v);
  return v;
}

static inline i32x16 dot_eight(const uint8_t *quads, const int8_t *high, const int8_t *low) {
  int32_t acc[LANES] = {};
  for (int q = 0; q < 8; q++) dot_quad(quads + 64 * q, 255, 0, high + 4 * q, low + 4 * q, acc);
  i32x16 v;
  memcpy(&v, acc, sizeof v);
  return v;
}

#endif

// Rows 16 b .. 16 b + 15 of W x. Behind the last row are zeros.
static inline f32x16 product(const Matrix &w, int b, const Activations &x) {
  const uint8_t *p = w.block(b);
  const uint8_t *scales = p;
  f32x16 y = {};
  if (w.kind == EIGHT) {
    prefetch(p + AHEAD, w.quads_at());
    p += w.quads_at();
  }
  for (int g = 0; g < w.groups(); g++) {
    const int8_t *high = x.high + g * GROUP, *low = x.low + g * GROUP;
    if (w.kind == FOUR) {
      prefetch(p + AHEAD, 320);
      f32x16 dot = __builtin_convertvector(dot_four(p + 64, high, low), f32x16);
      y += dot * (halves(p) * x.scale[g]);
      y += halves(p + 32) * x.sum[g];
      p += 320;
    } else {
      prefetch(p + AHEAD, 512);
      i32x16 dot = dot_eight(p, high, low) - 128 * x.total[g];
      y += __builtin_convertvector(dot, f32x16) * (halves(scales + 32 * g) * x.scale[g]);
      p += 512;
    }
  }
  return y;
}

// One row's weights as floats: the file's exact values. y [columns].
static void unpack(const Matrix &w, int row, float *y) {
  const uint8_t *block = w.block(row / LANES);
  const int lane = row % LANES;
  for (int g = 0; g < w.groups(); g++, y += GROUP) {
    _Float16 scale, minimum = 0;
    const uint8_t *at = w.kind == FOUR ? block + 320 * g : block + 32 * g;
    memcpy(&scale, at + 2 * lane, 2);
    if (w.kind == FOUR) {
      memcpy(&minimum, at + 32 + 2 * lane, 2);
      for (int k = 0; k < GROUP; k++) {
        uint8_t both = at[64 + 64 * (k % 16 / 4) + 4 * lane + k % 4];
        y[k] = (float)(k < 16 ? both & 15 : both >> 4) * (float)scale + (float)minimum;
      }
    } else {
      const uint8_t *quads = block + w.quads_at() + 512 * g;
      for (int k = 0; k < GROUP; k++)
        y[k] = (float)(quads[64 * (k / 4) + 4 * lane + k % 4] - 128) * (float)scale;
    }
  }
}

// Rows of a file's blocks (Q4_0: 18 bytes, Q4_1: 20, Q8_0: 34 per 32 weights) to their places.
static void pack(const Matrix &w, int file_type, const uint8_t *raw, int first_row, int rows) {
  const int groups = w.groups();
  for (int n = first_row; n < first_row + rows; n++) {
    uint8_t *block = w.blocks + w.block_bytes() * (n / LANES);
    const int lane = n % LANES;
    for (int g = 0; g < groups; g++) {
      if (w.kind == FOUR) {
        uint8_t *to = block + 320 * g;
        _Float16 scale, minimum;
        memcpy(&scale, raw, 2);
        if (file_type == 0) {
          minimum = (_Float16)(-8.0f * (float)scale);
        } else {
          memcpy(&minimum, raw + 2, 2);
        }
        const uint8_t *codes = raw + (file_type == 0 ? 2 : 4);
        memcpy(to + 2 * lane, &scale, 2);
        memcpy(to + 32 + 2 * lane, &minimum, 2);
        for (int q = 0; q < 4; q++) memcpy(to + 64 + 64 * q + 4 * lane, codes + 4 * q, 4);
        raw = codes + 16;
      } else {
        memcpy(block + 32 * g + 2 * lane, raw, 2);
        for (int k = 0; k < GROUP; k++)
          block[w.quads_at() + 512 * g + 64 * (k / 4) + 4 * lane + k % 4] = raw[2 + k] ^ 0x80;
        raw += 34;
      }
    }
  }
}
