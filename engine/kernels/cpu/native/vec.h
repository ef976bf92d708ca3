// Sixteen floats at a time, in the compiler's own vectors: one AVX-512 register, two of AVX2, four
// of NEON, by the target. Sums always run in the order written here, whatever the machine splits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));

constexpr int LANES = 16;

static inline f32x16 load(const float *p) {
  f32x16 v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline void store(float *p, f32x16 v) { memcpy(p, &v, sizeof v); }

static inline f32x16 all(float x) { return f32x16{} + x; }

// The lanes taken together in pairs: lane i with lane i + 8, then with i + 4, i + 2, i + 1.
template <typename Vector, typename Half, typename Quarter, typename Take>
static inline auto fold(Vector v, Take take) {
  Half h[2];
  memcpy(h, &v, sizeof v);
  h[0] = take(h[0], h[1]);
  Quarter q[2];
  memcpy(q, h, sizeof h[0]);
  q[0] = take(q[0], q[1]);
  return take(take(q[0][0], q[0][2]), take(q[0][1], q[0][3]));
}

static inline float sum(f32x16 v) {
  return fold<f32x16, f32x8, f32x4>(v, [](auto a, auto b) { return a + b; });
}

static inline int32_t sum(i32x16 v) {
  return fold<i32x16, i32x8, i32x4>(v, [](auto a, auto b) { return a + b; });
}

static inline f32x16 larger(f32x16 a, f32x16 b) { return a > b ? a : b; }

static inline float largest(f32x16 v) {
  return fold<f32x16, f32x8, f32x4>(v, [](auto a, auto b) { return a > b ? a : b; });
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
