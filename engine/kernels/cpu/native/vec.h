// Sixteen floats at a time, in the compiler's own vectors: one AVX-512 register, two of AVX2, four
// of NEON, by the target. Sums always run in the order written here, whatever the machine splits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));

constexpr int LANES = 16;

static inline f32x16 load(const float *p) {
  f32x16 v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline void store(float *p, f32x16 v) { memcpy(p, &v, sizeof v); }

static inline f32x16 all(float x) { return f32x16{} + x; }

// The lanes added pairwise: 16 -> 8 -> 4 -> 2 -> 1.
static inline float sum(f32x16 v) {
  float a[LANES];
  store(a, v);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) a[i] += a[i + width];
  return a[0];
}

static inline f32x16 larger(f32x16 a, f32x16 b) { return a > b ? a : b; }

static inline float largest(f32x16 v) {
  float best = v[0];
  for (int i = 1; i < LANES; i++) best = v[i] > best ? v[i] : best;
  return best;
}

static inline f32x16 absolute(f32x16 v) { return (f32x16)((i32x16)v & 0x7fffffff); }

// To the nearest integer, ties to even, for |v| < 2^22: adding 1.5 * 2^23 leaves no room for less.
static inline i32x16 nearest(f32x16 v) { return (i32x16)(v + 12582912.0f) - 0x4b400000; }

// e^v, held at e^88 above and 0 below -87: 2^n * e^r, |r| <= ln(2) / 2, e^r by its series to the seventh term
// (left out: 5e-9).
static inline f32x16 exponential(f32x16 v) {
  f32x16 x = larger(v, all(-87.0f));
  x = x < 88.0f ? x : all(88.0f);
  i32x16 n = nearest(x * 1.44269504f);
  f32x16 whole = __builtin_convertvector(n, f32x16);
  f32x16 r = x - whole * 0.693359375f + whole * 2.12194440e-4f;  // ln 2 in two parts
  f32x16 e = all(1.0f / 5040);
  e = e * r + 1.0f / 720;
  e = e * r + 1.0f / 120;
  e = e * r + 1.0f / 24;
  e = e * r + 1.0f / 6;
  e = e * r + 0.5f;
  e = e * r + 1.0f;
  e = e * r + 1.0f;
  return v < -87.0f ? f32x16{} : e * (f32x16)((n + 127) << 23);
}
