// One thread's way through one step: five phases a layer, then or instead the head.
//
//   0 qkv      norm, quantise, product; rotate, keys and values into the cache
//   1 attend   one query head of one row per chunk
//   2 out      quantise, product, add to the stream
//   3 gate_up  norm, quantise, both products, SwiGLU
//   4 down     quantise, product, add to the stream
//
// All rows of the pass go through a phase together, so weights are read once; a row's numbers are
// those it would have alone. A thread prepares a phase's input for itself when it claims its first chunk of it: that costs
// less than another meeting of all threads, and nothing is read before it is complete.
#pragma once

#include "attention.h"
#include "llama.h"

constexpr int CHUNKS_PER_THREAD = 8;

struct Turn {
  Llama &m;
  Pool &pool;
  const int thread;
  const uint32_t number;
  Scratch &own = m.scratch(thread);
  const int rows = m.place.rows;

  bool layers() {
    for (int n = 0; n < m.c.layers; n++)
      if (!layer(n)) return false;
    return true;
  }

  bool head() {
    return products(m.head_phase(), m.head, [&] { take_normed(m.final_norm); },
                    [&](int row, const f32x16 *y) { put(m.logits, m.head.rows, row, y); }, m.head);
  }

 private:
  bool layer(int n) {
    const Layer &l = m.layers[n];
    const Matrix &qkv = l.matrix[QKV], &out = l.matrix[OUT], &down = l.matrix[DOWN];
    const Matrix &gate = l.matrix[GATE], &up = l.matrix[UP];
    const Matrix &next = n + 1 < m.c.layers ? m.layers[n + 1].matrix[QKV] : m.head;
    return products(5 * n, qkv, [&] { take_normed(l.attention_norm); },
                    [&](int row, const f32x16 *y) { rotate_and_keep(n, row, y); }, out) &&
           attention(5 * n + 1, n) &&
           products(5 * n + 2, out, [&] { quantise(m.attended, out.columns, rows, own.x); },
                    [&](int row, const f32x16 *y) { add(row, y); }, gate) &&
           products(5 * n + 3, gate, [&] { take_normed(l.ffn_norm); },
                    [&](int row, f32x16 *y) {
                      f32x16 beside[MOST_ROWS];
                      product(up, row / LANES, own.x, rows, beside);
                      for (int r = 0; r < rows; r++) y[r] = swiglu(y[r], beside[r]);
                      put(m.gated, gate.rows, row, y);
                    },
                    down) &&
           products(5 * n + 4, down, [&] { quantise(m.gated, down.columns, rows, own.x); },
                    [&](int row, const f32x16 *y) { add(row, y); }, next);
  }

  // A phase of w x: `prepare()` once, `take(first row of w, 16 sums of each row of x)` for every block.
  template <typename Prepare, typename Take>
  bool products(int index, const Matrix &w, Prepare prepare, Take take, const Matrix &next) {
    const int blocks = w.block_count(), per_chunk = blocks_per_chunk(w);
    bool prepared = false;
    auto chunk = [&](int i) {
      if (!prepared) prepare();
      prepared = true;
      int end = (i + 1) * per_chunk < blocks ? (i + 1) * per_chunk : blocks;
      for (int b = i * per_chunk; b < end; b++) {
        f32x16 y[MOST_ROWS];
        product(w, b, own.x, rows, y);
        take(b * LANES, y);
      }
    };
    return pool.phase(index, chunks(w), thread, number, chunk, [&] { ask_for(next); });
  }

  bool attention(int index, int n) {
    const Sizes &c = m.c;
    auto chunk = [&](int i) {  // a head's rows behind each other: they read the same keys
      const int h = i / rows, r = i % rows, kv = h / (c.heads / c.kv_heads);
      const int at = (r * c.heads + h) * c.head_width;
      attend(m.queries + at, cached(n, 0, kv), cached(n, 1, kv), m.place.position + r + 1,
             c.head_width, own.scores, m.attended + at);
    };
    return pool.phase(index, c.heads * rows, thread, number, chunk, [] {});
  }

  int blocks_per_chunk(const Matrix &w) const {
    int wanted = CHUNKS_PER_THREAD * pool.threads;
    return (w.block_count() + wanted - 1) / wanted;
  }

  int chunks(const Matrix &w) const {
    int each = blocks_per_chunk(w);
    return (w.block_count() + each - 1) / each;
  }

  // The first weights of our next share, on their way while we wait for the others.
  void ask_for(const Matrix &w) const {
    if (pool.threads > 1)
      prefetch(w.block(pool.front(chunks(w), thread) * blocks_per_chunk(w)), AHEAD);
  }

  void take_normed(const float *weight) {
    const int width = m.c.width;
    for (int r = 0; r < rows; r++)
      rms_norm(m.stream + r * width, weight, width, m.c.eps, own.normed + r * width);
    quantise(own.normed, width, rows, own.x);
  }

  float *cached(int n, int values, int kv) const {
    const Sizes &c = m.c;
    size_t slice = ((size_t)n * 2 + values) * c.kv_heads + kv;
    return m.place.cache + slice * m.place.capacity * c.head_width;
  }

  // Results of queries, keys, values: neighbouring ones of the first two are rotated as pairs.
  void rotate_and_keep(int n, int row, const f32x16 *y) {
    for (int r = 0; r < rows; r++) rotate_and_keep(n, row, r, y[r]);
  }

  void rotate_and_keep(int n, int row, int r, f32x16 y) {
    const Sizes &c = m.c;
    const int e = c.head_width, end = m.layers[n].matrix[QKV].rows;
    const float query_scale = 1.0f / std::sqrt((float)e);
    if (e % LANES) {  // heads begin and end within the block
      for (int i = 0; i < LANES && row + i < end; i += 2) {
        f32x16 pair = {y[i], y[i + 1]};
        pair = turned(pair, row + i, r, 2) * (row + i < c.heads * e ? query_scale : 1.0f);
        memcpy(home(n, row + i, r), &pair, 2 * sizeof(float));
      }
    } else {
      store(home(n, row, r), turned(y, row, r, LANES) * (row < c.heads * e ? query_scale : 1.0f));
    }
  }

  // The first `count` of y, which belong to one head, rotated unless they are values.
  f32x16 turned(f32x16 y, int row, int r, int count) const {
    const Sizes &c = m.c;
    if (row >= (c.heads + c.kv_heads) * c.head_width) return y;
    f32x16 by = {};
    memcpy(&by, m.place.rotations + r * c.head_width + row % c.head_width, sizeof(float) * count);
    f32x16 cosine = __builtin_shufflevector(by, by, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12,
                                            14, 14);
    f32x16 sine = __builtin_shufflevector(by, by, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13,
                                          15, 15);
    f32x16 other = __builtin_shufflevector(y, -y, 17, 0, 19, 2, 21, 4, 23, 6, 25, 8, 27, 10, 29,
                                           12, 31, 14);
    return y * cosine + other * sine;
  }

  // Where the result is kept: among the queries, or in the cache.
  float *home(int n, int row, int r) const {
    const Sizes &c = m.c;
    const int e = c.head_width, key = row - c.heads * e, value = key - c.kv_heads * e;
    if (key < 0) return m.queries + r * c.heads * e + row;
    int inside = value < 0 ? key : value;
    return cached(n, value >= 0, inside / e) + (size_t)(m.place.position + r) * e + inside % e;
  }

  void add(int row, const f32x16 *y) {
    for (int r = 0; r < rows; r++) {
      float *at = m.stream + r * m.c.width + row;
      store(at, load(at) + y[r]);
    }
  }

  // y [rows] to rows of `to`, which are `width` wide.
  void put(float *to, int width, int row, const f32x16 *y) const {
    int n = width - row < LANES ? width - row : LANES;
    for (int r = 0; r < rows; r++) memcpy(to + (size_t)r * width + row, &y[r], sizeof(float) * n);
  }
};

inline void Llama::step(Pool &pool, int thread, uint32_t number) {
  Turn turn{*this, pool, thread, number};
  if (number & 1)
    turn.head();
  else
    turn.layers();
}
