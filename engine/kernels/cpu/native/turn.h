// One thread's way through one step: five phases a layer, then or instead the head.
//
//   0 qkv      norm, quantise, product; rotate, keys and values into the cache
//   1 attend   one query head per chunk
//   2 out      quantise, product, add to the stream
//   3 gate_up  norm, quantise, both products, SwiGLU
//   4 down     quantise, product, add to the stream
//
// A thread prepares a phase's input for itself when it claims its first chunk of it: that costs
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

  bool layers() {
    for (int n = 0; n < m.c.layers; n++)
      if (!layer(n)) return false;
    return true;
  }

  bool head() {
    return products(5 * m.c.layers, m.head, [&] { take_normed(m.final_norm); },
                    [&](int row, f32x16 y) { put(m.logits, m.head.rows, row, y); }, m.head);
  }

 private:
  bool layer(int n) {
    const Layer &l = m.layers[n];
    const Matrix &qkv = l.matrix[QKV], &out = l.matrix[OUT], &down = l.matrix[DOWN];
    const Matrix &gate = l.matrix[GATE], &up = l.matrix[UP];
    const Matrix &next = n + 1 < m.c.layers ? m.layers[n + 1].matrix[QKV] : m.head;
    return products(5 * n, qkv, [&] { take_normed(l.attention_norm); },
                    [&](int row, f32x16 y) { rotate_and_keep(n, row, y); }, out) &&
           attention(5 * n + 1, n) &&
           products(5 * n + 2, out, [&] { quantise(m.attended, out.columns, own.x); },
                    [&](int row, f32x16 y) { add(row, y); }, gate) &&
           products(5 * n + 3, gate, [&] { take_normed(l.ffn_norm); },
                    [&](int row, f32x16 y) {
                      f32x16 beside = product(up, row / LANES, own.x);
                      put(m.gated, gate.rows, row, swiglu(y, beside));
                    },
                    down) &&
           products(5 * n + 4, down, [&] { quantise(m.gated, down.columns, own.x); },
                    [&](int row, f32x16 y) { add(row, y); }, next);
  }

  // A phase of w x: `prepare()` once, `take(first row, 16 sums)` for every block.
  template <typename Prepare, typename Take>
  bool products(int index, const Matrix &w, Prepare prepare, Take take, const Matrix &next) {
    const int blocks = w.block_count(), per_chunk = blocks_per_chunk(w);
    bool prepared = false;
    auto chunk = [&](int i) {
      if (!prepared) prepare();
      prepared = true;
      int end = (i + 1) * per_chunk < blocks ? (i + 1) * per_chunk : blocks;
      for (int b = i * per_chunk; b < end; b++) take(b * LANES, product(w, b, own.x));
    };
    return pool.phase(index, chunks(w), thread, number, chunk, [&] { ask_for(next); });
  }

  bool attention(int index, int n) {
    const Sizes &c = m.c;
    auto chunk = [&](int h) {
      const int kv = h / (c.heads / c.kv_heads);
      attend(m.queries + h * c.head_width, cached(n, 0, kv), cached(n, 1, kv),
             m.place.position + 1, c.head_width, own.scores, m.attended + h * c.head_width);
    };
    return pool.phase(index, c.heads, thread, number, chunk, [] {});
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
    rms_norm(m.stream, weight, m.c.width, m.c.eps, own.normed);
    quantise(own.normed, m.c.width, own.x);
  }

  float *cached(int n, int values, int kv) const {
    const Sizes &c = m.c;
    size_t slice = ((size_t)n * 2 + values) * c.kv_heads + kv;
    return m.place.cache + slice * m.place.capacity * c.head_width;
  }

  // Rows of queries, keys, values: neighbouring rows of the first two are rotated as pairs.
  void rotate_and_keep(int n, int row, f32x16 y) {
    const Sizes &c = m.c;
    const int e = c.head_width, query_rows = c.heads * e, key_rows = c.kv_heads * e;
    const float query_scale = 1.0f / std::sqrt((float)e);
    const int end = row + LANES < m.layers[n].matrix[QKV].rows ? LANES
                                                               : m.layers[n].matrix[QKV].rows - row;
    for (int i = 0; i < end; i += 2) {
      int r = row + i;
      float a = y[i], b = y[i + 1];
      if (r < query_rows + key_rows) {
        float cosine = m.place.rotations[r % e], sine = m.place.rotations[r % e + 1];
        float turned = a * cosine - b * sine;
        b = a * sine + b * cosine;
        a = turned;
      }
      float *to;
      if (r < query_rows) {
        to = m.queries + r;
        a *= query_scale;
        b *= query_scale;
      } else {
        int values = r >= query_rows + key_rows;
        int k = r - query_rows - values * key_rows;
        to = cached(n, values, k / e) + (size_t)m.place.position * e + k % e;
      }
      to[0] = a;
      to[1] = b;
    }
  }

  void add(int row, f32x16 y) { store(m.stream + row, load(m.stream + row) + y); }

  static void put(float *to, int rows, int row, f32x16 y) {
    int n = rows - row < LANES ? rows - row : LANES;
    memcpy(to + row, &y, sizeof(float) * n);
  }
};

inline void Llama::step(Pool &pool, int thread, uint32_t number) {
  Turn turn{*this, pool, thread, number};
  if (number & 1)
    turn.head();
  else
    turn.layers();
}
