// Activations as 16-bit integers in groups of 32, split into two planes of signed bytes.
//
//     x[k] ~ scale[k / 32] * (256 * high[k] + low[k]),   scale = max |x| of the group / 32512
//
// Byte products (VNNI) multiply each plane by the weights' codes and the two integer sums are put
// together exactly, so the only loss is the rounding to 1 / 32512 of a group's largest value:
// about as fine as float32 sums, where one plane (1 / 127, what llama.cpp uses) is not.
#pragma once

#include "vec.h"

constexpr int GROUP = 32;
constexpr int PLANES = 2 * GROUP;  // bytes of one group of one row: 32 high ones, then 32 low ones

// The rows of a pass, R of them, side by side in each group, so that a product walks through all of
// them with one address: entry (g, r) of each of these stands at g * R + r.
struct Activations {
  int8_t *planes;  // [K / 32, R, 64]
  float *scale;    // [K / 32, R]
  float *sum;      // [K / 32, R] of scale * (256 high + low): what a weight's minimum is multiplied by
  int32_t *total;  // [K / 32, R] of 256 high + low
};

// x [R, k] float -> its planes; k a multiple of 32.
static void quantise(const float *x, int k, int rows, const Activations &to) {
  for (int i = 0; i < k / GROUP * rows; i++) {
    const float *from = x + (size_t)(i % rows) * k + i / rows * GROUP;
    f32x16 a = load(from), b = load(from + LANES);
    float most = largest(larger(absolute(a), absolute(b)));
    float inverse = most > 0 ? 32512.0f / most : 0.0f;
    // a group of values below 1e-34 counts as zeros: its inverse is not a number
    if (!(inverse < 3e38f)) inverse = 0.0f;
    i32x16 qa = nearest(a * inverse), qb = nearest(b * inverse);
    i32x16 ha = (qa + 128) >> 8, hb = (qb + 128) >> 8;
    i32x16 la = qa - (ha << 8), lb = qb - (hb << 8);
    int32_t total = sum(qa + qb);
    typedef int8_t i8x16 __attribute__((vector_size(16)));
    i8x16 bytes[4] = {__builtin_convertvector(ha, i8x16), __builtin_convertvector(hb, i8x16),
                      __builtin_convertvector(la, i8x16), __builtin_convertvector(lb, i8x16)};
    memcpy(to.planes + (size_t)i * PLANES, bytes, PLANES);
    to.scale[i] = most / 32512.0f;
    to.total[i] = total;
    to.sum[i] = to.scale[i] * (float)total;
  }
}

// y = x / sqrt(mean(x^2) + eps) * weight; n a multiple of 16.
static void rms_norm(const float *x, const float *weight, int n, float eps, float *y) {
  f32x16 squares = {};
  for (int i = 0; i < n; i += LANES) squares += load(x + i) * load(x + i);
  float inverse = 1.0f / std::sqrt(sum(squares) / (float)n + eps);
  for (int i = 0; i < n; i += LANES) store(y + i, load(x + i) * inverse * load(weight + i));
}

// silu(gate) * up
static inline f32x16 swiglu(f32x16 gate, f32x16 up) {
  return gate / (1.0f + exponential(-gate)) * up;
}
