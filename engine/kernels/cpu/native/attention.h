// One query head against the keys and values of one cache head: softmax(K q) V, q scaled already.
//
// Two passes, the scores between them in `scores`, so nothing is rescaled on the way. Positions
// are taken in order, one after the other, whatever else runs.
#pragma once

#include "vec.h"

static float dot(const float *a, const float *b, int n) {
  f32x16 acc = {};
  int i = 0;
  for (; i + LANES <= n; i += LANES) acc += load(a + i) * load(b + i);
  float rest = 0;
  for (; i < n; i++) rest += a[i] * b[i];
  return sum(acc) + rest;
}

// scores [S] -> e^(score - largest); returns their sum. `scores` has room for whole vectors.
static float softmax_weights(float *scores, int positions) {
  float most = scores[0];
  for (int s = 1; s < positions; s++) most = scores[s] > most ? scores[s] : most;
  int padded = (positions + LANES - 1) / LANES * LANES;
  for (int s = positions; s < padded; s++) scores[s] = -INFINITY;
  f32x16 total = {};
  for (int s = 0; s < padded; s += LANES) {
    f32x16 e = exponential(load(scores + s) - most);
    store(scores + s, e);
    total += e;
  }
  return sum(total);
}

template <int TILES>
static void weigh(const float *weights, const float *values, int positions, int width,
                  float inverse, float *out) {
  f32x16 acc[TILES] = {};
  for (int s = 0; s < positions; s++)
    for (int t = 0; t < TILES; t++)
      acc[t] += weights[s] * load(values + (size_t)s * width + t * LANES);
  for (int t = 0; t < TILES; t++) store(out + t * LANES, acc[t] * inverse);
}

// q [E], keys and values [S, E] -> out [E].
static void attend(const float *q, const float *keys, const float *values, int positions,
                   int width, float *scores, float *out) {
  for (int s = 0; s < positions; s++) scores[s] = dot(q, keys + (size_t)s * width, width);
  float inverse = 1.0f / softmax_weights(scores, positions);
  int e = 0;
  for (; e + 4 * LANES <= width; e += 4 * LANES)
    weigh<4>(scores, values + e, positions, width, inverse, out + e);
  for (; e + LANES <= width; e += LANES)
    weigh<1>(scores, values + e, positions, width, inverse, out + e);
  for (; e < width; e++) {
    float acc = 0;
    for (int s = 0; s < positions; s++) acc += scores[s] * values[(size_t)s * width + e];
    out[e] = acc * inverse;
  }
}
