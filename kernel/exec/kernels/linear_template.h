// SPDX-License-Identifier: Apache-2.0

// The linear kernels of a level (vectors.h).
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernel/exec/kernels/linear.h"
#include "kernel/exec/kernels/vectors.h"

namespace djinn::kernels {
namespace {

constexpr int kRowsMax = 8;           // at once; more go in blocks
constexpr int64_t kTileOutputs = 64;  // their weights stay in the second cache for all blocks
constexpr int64_t kAheadBytes = 8192;
constexpr int64_t kLineBytes = 64;

template <typename T>
inline void prefetch(const T* at) {
  __builtin_prefetch(reinterpret_cast<const char*>(at) + kAheadBytes);
}

// --- outputs first: dot products

// The numbers of a block of rows, of which there may be several.
template <typename T, int M>
struct Rows {
  explicit Rows(const LinearRow* row) {
    for (int m = 0; m < M; ++m) {
      x[m] = static_cast<const T*>(row[m].x);
      y[m] = static_cast<T*>(row[m].y);
    }
  }
  const T* x[M];
  T* y[M];
};

// The rows [n, n + W) of weights, which begin at w. What a row of x gets is summed in the same
// order for each W and M.
template <typename T, int M, int W>
[[gnu::always_inline]] inline void dots(const Linear& call, const Rows<T, M>& rows, const T* w,
                                        int64_t n) {
  using D = Dot<T>;
  Vector sums[W][M];
  DJINN_UNROLL
  for (int i = 0; i < W; ++i) {
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) sums[i][m] = Level::zero();
  }
  typename D::Operand weights[W];
  const auto add = [&](int m, typename D::Operand x) {
    DJINN_UNROLL
    for (int i = 0; i < W; ++i) sums[i][m] = D::step(sums[i][m], x, weights[i]);
  };
  int64_t k = 0;
  for (; k + D::kStep <= call.inputs; k += D::kStep) {
    DJINN_UNROLL
    for (int i = 0; i < W; ++i) {
      weights[i] = D::load(w + i * call.weight_stride + k);
      prefetch(w + i * call.weight_stride + k);
    }
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) add(m, D::load(rows.x[m] + k));
  }
  if (k < call.inputs) {
    T tail[D::kStep];
    DJINN_UNROLL
    for (int i = 0; i < W; ++i) {
      copy_tail(tail, w + i * call.weight_stride + k, call.inputs - k);
      weights[i] = D::load(tail);
    }
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      copy_tail(tail, rows.x[m] + k, call.inputs - k);
      add(m, D::load(tail));
    }
  }
  DJINN_UNROLL
  for (int i = 0; i < W; ++i) {
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      float sum = Level::sum(sums[i][m]);
      if (call.bias != nullptr) sum += D::widen(static_cast<const T*>(call.bias)[n + i]);
      rows.y[m][n + i] = D::round(sum);
    }
  }
}

// One row of weights after the other is one stream of memory, which is read fastest. Of several
// rows of x, each read once for three rows of weights, the first cache gives enough; it pays where
// rows of weights are long, and their streams far apart (measured on Zen 4).
constexpr int kRowsForSeveral = 3;
constexpr int kWeightsAtOnce = 3;
constexpr int64_t kLongRowBytes = 3072;

template <typename T, int M>
void block_outputs_first(const Linear& call, int64_t row, int64_t begin, int64_t end) {
  const Rows<T, M> rows(call.row + row);
  const T* const w = static_cast<const T*>(call.weight);
  int64_t n = begin;
  if constexpr (M >= kRowsForSeveral) {
    const bool is_long = call.inputs * static_cast<int64_t>(sizeof(T)) >= kLongRowBytes;
    for (; is_long && n + kWeightsAtOnce <= end; n += kWeightsAtOnce) {
      dots<T, M, kWeightsAtOnce>(call, rows, w + n * call.weight_stride, n);
    }
  }
  for (; n < end; ++n) dots<T, M, 1>(call, rows, w + n * call.weight_stride, n);
}

// --- inputs first: columns

// Rows of weights whose next ones are fetched, in order, while they are computed. They are in the
// second cache then, and are taken column by column, so that sums stay in registers.
constexpr int kBlockInputs = 16;
constexpr int kSecondCache = 2;  // of __builtin_prefetch
static_assert(kChunkInputs % kBlockInputs == 0);

template <typename T, int M>
struct Factors {
  Factors(const LinearRow* row, int64_t k, int64_t inputs) {
    for (int m = 0; m < M; ++m) {
      const T* const x = static_cast<const T*>(row[m].x) + k;
      for (int64_t j = 0; j < inputs; ++j) of[m][j] = Dot<T>::widen(x[j]);
    }
  }
  float of[M][kBlockInputs];
};

// Adds the rows [k, k + inputs) of weights, times those elements of x, to the parts.
template <typename T, int M>
void add_block(const Linear& call, const LinearRow* row, int64_t k, int64_t inputs,
               float* const* parts) {
  constexpr int kTile = kLineBytes / sizeof(T), kVectors = kTile / kLanes;
  const Factors<T, M> factors(row, k, inputs);
  const T* const w = static_cast<const T*>(call.weight) + k * call.weight_stride;
  const T* ahead = w + inputs * call.weight_stride;
  for (int64_t n = 0; n < call.outputs; n += kTile) {
    Vector sums[M][kVectors];
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      DJINN_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sums[m][v] = Level::load_floats(parts[m] + n + v * kLanes);
      }
    }
    for (int64_t j = 0; j < inputs; ++j) {
      const T* const weights_row = w + j * call.weight_stride + n;
      __builtin_prefetch(ahead, 0, kSecondCache);
      ahead += kTile;
      DJINN_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const int64_t left = call.outputs - n - v * kLanes;
        if (left <= 0) break;
        const Vector weights = load_part(weights_row + v * kLanes, left);
        DJINN_UNROLL
        for (int m = 0; m < M; ++m) {
          sums[m][v] = Level::fma(Level::broadcast(factors.of[m][j]), weights, sums[m][v]);
        }
      }
    }
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      DJINN_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        Level::store_floats(parts[m] + n + v * kLanes, sums[m][v]);
      }
    }
  }
}

// The rows of weights of one chunk, for a block of rows of x.
template <typename T, int M>
void chunk_of_inputs(const Linear& call, int64_t row, int64_t chunk) {
  const LinearRow* const rows = call.row + row;
  const auto bytes = static_cast<size_t>(padded_outputs(call.outputs)) * sizeof(float);
  float* parts[M];
  for (int m = 0; m < M; ++m) {
    parts[m] = rows[m].parts + chunk * rows[m].parts_stride;
    memset(parts[m], 0, bytes);
  }
  const int64_t begin = chunk * kChunkInputs;
  const int64_t end = smaller(call.inputs, begin + kChunkInputs);
  for (int64_t k = begin; k < end; k += kBlockInputs) {
    add_block<T, M>(call, rows, k, smaller(end - k, kBlockInputs), parts);
  }
}

template <typename T>
void sum_chunks(const Linear& call, int64_t begin, int64_t end) {
  const int64_t chunks = chunks_of(call.inputs);
  const T* const bias = static_cast<const T*>(call.bias);
  for (const LinearRow* row = call.row; row < call.row + call.rows; ++row) {
    T* const y = static_cast<T*>(row->y);
    for (int64_t n = begin; n < end; n += kLanes) {
      Vector sum = Level::zero();
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        // What lies behind the last output is padding.
        sum = Level::add(sum, Level::load_floats(row->parts + chunk * row->parts_stride + n));
      }
      if (bias != nullptr) sum = Level::add(sum, load_part(bias + n, end - n));
      store_part(y + n, sum, end - n);
    }
  }
}

// --- all rows

using Block = void (*)(const Linear& call, int64_t row, int64_t begin, int64_t end);

template <typename T>
void outputs_first(const Linear& call, int64_t begin, int64_t end) {
  static constexpr Block kBlocks[kRowsMax] = {
      &block_outputs_first<T, 1>, &block_outputs_first<T, 2>, &block_outputs_first<T, 3>,
      &block_outputs_first<T, 4>, &block_outputs_first<T, 5>, &block_outputs_first<T, 6>,
      &block_outputs_first<T, 7>, &block_outputs_first<T, 8>};
  for (int64_t n = begin; n < end; n += kTileOutputs) {
    const int64_t tile_end = smaller(end, n + kTileOutputs);
    for (int64_t row = 0; row < call.rows; row += kRowsMax) {
      kBlocks[smaller(call.rows - row, kRowsMax) - 1](call, row, n, tile_end);
    }
  }
}

using Chunk = void (*)(const Linear& call, int64_t row, int64_t chunk);

template <typename T>
void inputs_first(const Linear& call, int64_t begin, int64_t end) {
  static constexpr Chunk kChunks[kRowsMax] = {&chunk_of_inputs<T, 1>, &chunk_of_inputs<T, 2>,
                                              &chunk_of_inputs<T, 3>, &chunk_of_inputs<T, 4>,
                                              &chunk_of_inputs<T, 5>, &chunk_of_inputs<T, 6>,
                                              &chunk_of_inputs<T, 7>, &chunk_of_inputs<T, 8>};
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    for (int64_t row = 0; row < call.rows; row += kRowsMax) {
      kChunks[smaller(call.rows - row, kRowsMax) - 1](call, row, chunk);
    }
  }
}

constexpr LinearKernels kLinearOfThisLevel = {
    {&outputs_first<float>, &outputs_first<BFloat16>, &outputs_first<Float16>},
    {&inputs_first<float>, &inputs_first<BFloat16>, &inputs_first<Float16>},
    {&sum_chunks<float>, &sum_chunks<BFloat16>, &sum_chunks<Float16>}};

}  // namespace
}  // namespace djinn::kernels
