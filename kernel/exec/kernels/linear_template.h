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

// The row of weights n. One row after the other is read, so that memory is one stream.
template <typename T, int M>
inline void dots(const Linear& call, const T* x, const T* w, T* y, const T* bias) {
  using D = Dot<T>;
  Vector sums[M];
  DJINN_UNROLL
  for (int m = 0; m < M; ++m) sums[m] = Level::zero();
  int64_t k = 0;
  for (; k + D::kStep <= call.inputs; k += D::kStep) {
    const typename D::Operand weights = D::load(w + k);
    prefetch(w + k);
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      sums[m] = D::step(sums[m], D::load(x + m * call.x_stride + k), weights);
    }
  }
  if (k < call.inputs) {
    T tail[D::kStep];
    copy_tail(tail, w + k, call.inputs - k);
    const typename D::Operand weights = D::load(tail);
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      copy_tail(tail, x + m * call.x_stride + k, call.inputs - k);
      sums[m] = D::step(sums[m], D::load(tail), weights);
    }
  }
  DJINN_UNROLL
  for (int m = 0; m < M; ++m) {
    float sum = Level::sum(sums[m]);
    if (bias != nullptr) sum += D::widen(*bias);
    y[m * call.y_stride] = D::round(sum);
  }
}

template <typename T, int M>
void block_outputs_first(const Linear& call, int64_t row, int64_t begin, int64_t end) {
  const T* const x = static_cast<const T*>(call.x) + row * call.x_stride;
  const T* const w = static_cast<const T*>(call.weight);
  const T* const bias = static_cast<const T*>(call.bias);
  T* const y = static_cast<T*>(call.y) + row * call.y_stride;
  for (int64_t n = begin; n < end; ++n) {
    dots<T, M>(call, x, w + n * call.weight_stride, y + n, bias == nullptr ? bias : bias + n);
  }
}

// --- inputs first: columns

// Columns whose parts are in the first cache, beside what is read.
constexpr int64_t kPanel = 4096;

// Rows of weights that are read side by side. Memory likes one; a part is loaded and stored for all
// of them once, which counts where there are more rows of x.
template <int M>
constexpr int weights_at_once() {
  if (M == 1) return 1;
  return M < 4 ? 4 : 8;
}

// Adds rows of weights, times elements of x, to the parts of these columns.
template <typename T, int M, int kCount>
inline void add_rows(const Linear& call, const T* x, const T* w, int64_t columns, float* parts) {
  Vector factors[M][kCount];
  DJINN_UNROLL
  for (int m = 0; m < M; ++m) {
    DJINN_UNROLL
    for (int j = 0; j < kCount; ++j) {
      factors[m][j] = Level::broadcast(Dot<T>::widen(x[m * call.x_stride + j]));
    }
  }
  const int64_t stride = padded_outputs(call.outputs);
  for (int64_t n = 0; n < columns; n += kLanes) {
    Vector weights[kCount];
    DJINN_UNROLL
    for (int j = 0; j < kCount; ++j) {
      weights[j] = load_part(w + j * call.weight_stride + n, columns - n);
      prefetch(w + j * call.weight_stride + n);
    }
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      Vector part = Level::load_floats(parts + m * stride + n);
      DJINN_UNROLL
      for (int j = 0; j < kCount; ++j) part = Level::fma(factors[m][j], weights[j], part);
      Level::store_floats(parts + m * stride + n, part);
    }
  }
}

// The rows of weights of one chunk, for a block of rows of x.
template <typename T, int M>
void chunk_of_inputs(const Linear& call, int64_t row, int64_t chunk) {
  constexpr int kCount = weights_at_once<M>();
  const int64_t stride = padded_outputs(call.outputs);
  float* const parts = call.parts + (chunk * call.rows + row) * stride;
  memset(parts, 0, static_cast<size_t>(M * stride) * sizeof(float));
  const int64_t begin = chunk * kChunkInputs;
  const int64_t end = smaller(call.inputs, begin + kChunkInputs);
  const T* const x = static_cast<const T*>(call.x) + row * call.x_stride;
  const T* const w = static_cast<const T*>(call.weight);
  for (int64_t n = 0; n < call.outputs; n += kPanel) {
    const int64_t columns = smaller(call.outputs - n, kPanel);
    int64_t k = begin;
    for (; k + kCount <= end; k += kCount) {
      add_rows<T, M, kCount>(call, x + k, w + k * call.weight_stride + n, columns, parts + n);
    }
    for (; k < end; ++k) {
      add_rows<T, M, 1>(call, x + k, w + k * call.weight_stride + n, columns, parts + n);
    }
  }
}

template <typename T>
void sum_chunks(const Linear& call, int64_t begin, int64_t end) {
  const int64_t stride = padded_outputs(call.outputs), chunks = chunks_of(call.inputs);
  const T* const bias = static_cast<const T*>(call.bias);
  for (int64_t row = 0; row < call.rows; ++row) {
    T* const y = static_cast<T*>(call.y) + row * call.y_stride;
    for (int64_t n = begin; n < end; n += kLanes) {
      Vector sum = Level::zero();
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        // What lies behind the last output is padding.
        const float* const part = call.parts + (chunk * call.rows + row) * stride + n;
        sum = Level::add(sum, Level::load_floats(part));
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
