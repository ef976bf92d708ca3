// What Python sees: plain C functions over the whole step, and over each operation for the tests.
// Built by build.py beside this file, declared to Python in library.py.
#include <exception>

#include "turn.h"

extern "C" {

// Which instructions the byte products use.
const char *baton_instructions() {
#if BATON_VNNI
  return "avx512-vnni";
#elif BATON_AVX2
  return "avx2";
#else
  return "portable";
#endif
}

// Rows that one pass can hold.
int baton_most_rows() { return MOST_ROWS; }

// Null where there is no memory.
Llama *baton_open(const Sizes *sizes) {
  try {
    return new Llama(*sizes);
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}

void baton_close(Llama *model) { delete model; }

float *baton_norm(Llama *model, int layer, int which) { return model->norm(layer, which); }

// 0, or 1 where there is no memory.
int baton_matrix(Llama *model, int layer, int slot, int kind, int rows, int columns) {
  try {
    model->make(layer, slot, (Kind)kind, rows, columns);
  } catch (const std::bad_alloc &) {
    return 1;
  }
  return 0;
}

// file_type: 0 Q4_0, 1 Q4_1, 2 Q8_0.
void baton_pack(Llama *model, int layer, int slot, int file_type, const uint8_t *raw, int first_row,
                int rows) {
  pack(model->matrix(layer, slot), file_type, raw, first_row, rows);
}

// One row of a packed matrix as floats: y [columns].
void baton_unpack(Llama *model, int layer, int slot, int row, float *y) {
  unpack(model->matrix(layer, slot), row, y);
}

// 0, or 1 where the system gives no memory or no threads.
int baton_decode(Llama *model, float *hidden, const Place *place, int threads) {
  try {
    model->decode(hidden, *place, threads);
  } catch (const std::exception &) {
    return 1;
  }
  return 0;
}

int baton_score(Llama *model, const float *hidden, int rows, float *logits, int threads) {
  try {
    model->score(hidden, rows, logits, threads);
  } catch (const std::exception &) {
    return 1;
  }
  return 0;
}

void baton_quantise(const float *x, int k, int rows, int8_t *planes, float *scale, float *sum,
                    int32_t *total) {
  quantise(x, k, rows, Activations{planes, scale, sum, total});
}

// `count` rows of activations, each times a packed matrix: y [count, rows of the matrix].
void baton_product(Llama *model, int layer, int slot, int8_t *planes, float *scale, float *sum,
                   int32_t *total, int count, float *y) {
  const Matrix &w = model->matrix(layer, slot);
  for (int b = 0; b < w.block_count(); b++) {
    f32x16 sums[MOST_ROWS];
    product(w, b, Activations{planes, scale, sum, total}, count, sums);
    int n = w.rows - b * LANES < LANES ? w.rows - b * LANES : LANES;
    for (int r = 0; r < count; r++)
      memcpy(y + (size_t)r * w.rows + b * LANES, &sums[r], sizeof(float) * n);
  }
}

void baton_rms_norm(const float *x, const float *weight, int n, float eps, float *y) {
  rms_norm(x, weight, n, eps, y);
}

// n a multiple of 16.
void baton_swiglu(const float *gate, const float *up, int n, float *y) {
  for (int i = 0; i < n; i += LANES) store(y + i, swiglu(load(gate + i), load(up + i)));
}

// scores: room for positions rounded up to 16.
void baton_attend(const float *q, const float *keys, const float *values, int positions, int width,
                  float *scores, float *out) {
  attend(q, keys, values, positions, width, scores, out);
}
}
