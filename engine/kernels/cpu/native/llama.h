// Weights and buffers of one Llama, and the two things to do with them: a decode step through all
// layers, and the head. How a thread goes through them stands in turn.h.
#pragma once

#include <memory>
#include <mutex>

#include "arena.h"
#include "pool.h"
#include "product.h"

struct Sizes {
  int32_t layers, width, heads, kv_heads, head_width, ffn_width, vocabulary, context;
  float eps;
};

enum Slot { QKV, OUT, GATE, UP, DOWN, SLOTS };

struct Layer {
  Matrix matrix[SLOTS];
  float *attention_norm, *ffn_norm;
};

// Where a step stands in which text: its rows are `rows` neighbouring positions from `position` on.
struct Place {
  float *cache;            // [L, 2, K, capacity, E]
  const float *rotations;  // [rows, E / 2] pairs of cosine and sine
  int32_t capacity, position, rows;
};

// What one thread needs for itself.
struct Scratch {
  float *normed, *scores;
  Activations x;
};

struct Llama : Work {
  const Sizes c;
  std::vector<Layer> layers;
  Matrix head;
  float *final_norm;
  Place place{};
  float *logits = nullptr;  // [rows, V], the caller's
  // What the phases hand on, a row for each of the pass: the stream [D], queries and attended [H E],
  // gated [F].
  float *stream, *queries, *attended, *gated;

  explicit Llama(const Sizes &sizes) : c(sizes), layers(sizes.layers) {
    stream = floats(MOST_ROWS * c.width);
    queries = floats(MOST_ROWS * c.heads * c.head_width);
    attended = floats(MOST_ROWS * c.heads * c.head_width);
    gated = floats(MOST_ROWS * c.ffn_width);
    final_norm = floats(c.width);
    for (auto &layer : layers) {
      layer.attention_norm = floats(c.width);
      layer.ffn_norm = floats(c.width);
    }
  }

  ~Llama() override { close_pool(); }

  // Layer -1 is what stands outside of all layers: final norm and head.
  float *norm(int layer, int which) {
    if (layer < 0) return final_norm;
    return which ? layers[layer].ffn_norm : layers[layer].attention_norm;
  }

  Matrix &matrix(int layer, int slot) { return layer < 0 ? head : layers[layer].matrix[slot]; }

  void make(int layer, int slot, Kind kind, int rows, int columns) {
    Matrix made{kind, rows, columns, nullptr};
    made.blocks = arena_.take(made.block_bytes() * made.block_count());
    matrix(layer, slot) = made;
  }

  // hidden [rows, D], in and out.
  void decode(float *hidden, const Place &at, int threads) {
    std::lock_guard<std::mutex> one_at_a_time(mutex_);
    use(threads);
    place = at;
    memcpy(stream, hidden, sizeof(float) * at.rows * c.width);
    pool_->run(false, 0, head_phase());
    memcpy(hidden, stream, sizeof(float) * at.rows * c.width);
  }

  // hidden [rows, D] -> to [rows, V].
  void score(const float *hidden, int rows, float *to, int threads) {
    std::lock_guard<std::mutex> one_at_a_time(mutex_);
    use(threads);
    logits = to;
    place.rows = rows;
    memcpy(stream, hidden, sizeof(float) * rows * c.width);
    pool_->run(true, head_phase(), head_phase() + 1);
  }

  int head_phase() const { return 5 * c.layers; }

  Scratch &scratch(int thread) { return scratch_[thread]; }

  void step(Pool &pool, int thread, uint32_t number) override;

 private:
  float *floats(size_t n) { return (float *)arena_.take(n * sizeof(float)); }

  void use(int threads) {
    if (pool_ && (pool_->orphaned() || pool_->threads != threads)) close_pool();
    while ((int)scratch_.size() < threads) scratch_.push_back(new_scratch());
    if (!pool_) pool_ = std::make_unique<Pool>(*this, threads, head_phase() + 1);
  }

  void close_pool() {
    // After a fork its threads are the parent's: nothing to join, nothing to free.
    if (pool_ && pool_->orphaned()) (void)pool_.release();
    pool_.reset();
  }

  Scratch new_scratch() {
    int query_width = c.heads * c.head_width;
    int widest = c.width > c.ffn_width ? c.width : c.ffn_width;
    widest = widest > query_width ? widest : query_width;
    Scratch made;
    made.normed = floats(MOST_ROWS * c.width);
    made.scores = floats(c.context + LANES);
    made.x.planes = (int8_t *)arena_.take(MOST_ROWS * 2 * widest);
    made.x.scale = floats(MOST_ROWS * widest / GROUP);
    made.x.sum = floats(MOST_ROWS * widest / GROUP);
    made.x.total = (int32_t *)floats(MOST_ROWS * widest / GROUP);
    return made;
  }

  Arena arena_;
  std::vector<Scratch> scratch_;
  std::unique_ptr<Pool> pool_;
  std::mutex mutex_;
};
