// y = W x for rows x and weights of 4 or 8 bits in groups of 32, rows interleaved by 16.
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
// A block's sums for one row of x depend on nothing but the block and that row.
#pragma once

#include "dots.h"

// Rows of x that one pass can hold: the token to run and seven drafts.
constexpr int MOST_ROWS = 8;

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

// Rows 16 b .. 16 b + 15 of W x for R of the `rows` rows of x, from row `at` on, into y [R]. Behind
// the last row of W are zeros. `first`: nobody has read this block yet.
template <int R>
static inline void product_four(const Matrix &w, int b, const Activations &x, int rows, int at,
                                bool first, f32x16 *y) {
  const uint8_t *p = w.block(b);
  f32x16 out[R] = {};
  for (int i = at, end = at + w.groups() * rows; i < end; i += rows, p += 320) {
    if (first) prefetch(p + AHEAD, 320);
    i32x16 dot[R];
    dot_four<R>(p + 64, x.planes + (size_t)i * PLANES, dot);
    f32x16 steps = halves(p), minima = halves(p + 32);
    for (int r = 0; r < R; r++) {
      out[r] += __builtin_convertvector(dot[r], f32x16) * (steps * x.scale[i + r]);
      out[r] += minima * x.sum[i + r];
    }
  }
  for (int r = 0; r < R; r++) y[r] = out[r];
}

template <int R>
static inline void product_eight(const Matrix &w, int b, const Activations &x, int rows, int at,
                                 bool first, f32x16 *y) {
  const uint8_t *scales = w.block(b), *p = scales + w.quads_at();
  f32x16 out[R] = {};
  if (first) prefetch(scales + AHEAD, w.quads_at());
  for (int i = at, end = at + w.groups() * rows; i < end; i += rows, scales += 32, p += 512) {
    if (first) prefetch(p + AHEAD, 512);
    i32x16 dot[R];
    dot_eight<R>(p, x.planes + (size_t)i * PLANES, dot);
    f32x16 steps = halves(scales);
    for (int r = 0; r < R; r++) {
      i32x16 centred = dot[r] - 128 * x.total[i + r];
      out[r] += __builtin_convertvector(centred, f32x16) * (steps * x.scale[i + r]);
    }
  }
  for (int r = 0; r < R; r++) y[r] = out[r];
}

template <int R>
static inline void product_of(const Matrix &w, int b, const Activations &x, int rows, int at,
                              f32x16 *y) {
  if (w.kind == FOUR)
    product_four<R>(w, b, x, rows, at, at == 0, y + at);
  else
    product_eight<R>(w, b, x, rows, at, at == 0, y + at);
}

// The same for all rows of x, 1 to MOST_ROWS of them: the block comes from memory once.
static inline void product(const Matrix &w, int b, const Activations &x, int rows, f32x16 *y) {
  int at = 0;
  for (; rows - at >= 4; at += 4) product_of<4>(w, b, x, rows, at, y);
  switch (rows - at) {
    case 3: return product_of<3>(w, b, x, rows, at, y);
    case 2: return product_of<2>(w, b, x, rows, at, y);
    case 1: return product_of<1>(w, b, x, rows, at, y);
  }
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
