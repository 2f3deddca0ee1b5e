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

// Rows of weights whose next ones are fetched, in order, while they are computed. They are in the
// second cache then, and are taken column by column, so that sums stay in registers.
constexpr int kBlockInputs = 16;
constexpr int kSecondCache = 2;  // of __builtin_prefetch
static_assert(kChunkInputs % kBlockInputs == 0);

template <typename T, int M>
struct Factors {
  Factors(const Linear& call, const T* x, int64_t inputs) {
    for (int m = 0; m < M; ++m) {
      for (int64_t j = 0; j < inputs; ++j) of[m][j] = Dot<T>::widen(x[m * call.x_stride + j]);
    }
  }
  float of[M][kBlockInputs];
};

// Adds rows of weights, times elements of x, to the parts.
template <typename T, int M>
void add_block(const Linear& call, const T* x, const T* w, int64_t inputs, float* parts) {
  constexpr int kTile = kLineBytes / sizeof(T), kVectors = kTile / kLanes;
  const Factors<T, M> factors(call, x, inputs);
  const int64_t stride = padded_outputs(call.outputs);
  const T* ahead = w + inputs * call.weight_stride;
  for (int64_t n = 0; n < call.outputs; n += kTile) {
    Vector sums[M][kVectors];
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      DJINN_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sums[m][v] = Level::load_floats(parts + m * stride + n + v * kLanes);
      }
    }
    for (int64_t j = 0; j < inputs; ++j) {
      const T* const row = w + j * call.weight_stride + n;
      __builtin_prefetch(ahead, 0, kSecondCache);
      ahead += kTile;
      DJINN_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const int64_t left = call.outputs - n - v * kLanes;
        if (left <= 0) break;
        const Vector weights = load_part(row + v * kLanes, left);
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
        Level::store_floats(parts + m * stride + n + v * kLanes, sums[m][v]);
      }
    }
  }
}

// The rows of weights of one chunk, for a block of rows of x.
template <typename T, int M>
void chunk_of_inputs(const Linear& call, int64_t row, int64_t chunk) {
  const int64_t stride = padded_outputs(call.outputs);
  float* const parts = call.parts + (chunk * call.rows + row) * stride;
  memset(parts, 0, static_cast<size_t>(M * stride) * sizeof(float));
  const int64_t begin = chunk * kChunkInputs;
  const int64_t end = smaller(call.inputs, begin + kChunkInputs);
  const T* const x = static_cast<const T*>(call.x) + row * call.x_stride;
  const T* const w = static_cast<const T*>(call.weight);
  for (int64_t k = begin; k < end; k += kBlockInputs) {
    add_block<T, M>(call, x + k, w + k * call.weight_stride, smaller(end - k, kBlockInputs), parts);
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
