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

// How many rows of weights are read side by side, for so many rows of x.
template <int M>
constexpr int rows_of_weights() {
  if (M <= 2) return 4;
  if (Level::kRegisters >= 32) return M <= 4 ? 4 : 3;
  return M <= 4 ? 2 : 1;
}

template <typename T>
inline void prefetch(const T* at) {
  __builtin_prefetch(reinterpret_cast<const char*>(at) + kAheadBytes);
}

// --- outputs first: dot products

template <typename T, int M, int R>
inline void dots(const Linear& call, const T* x, const T* w, T* y, const T* bias) {
  using D = Dot<T>;
  Vector sums[M][R];
  DJINN_UNROLL
  for (int m = 0; m < M; ++m) {
    DJINN_UNROLL
    for (int r = 0; r < R; ++r) sums[m][r] = Level::zero();
  }
  int64_t k = 0;
  for (; k + D::kStep <= call.inputs; k += D::kStep) {
    typename D::Operand weights[R];
    DJINN_UNROLL
    for (int r = 0; r < R; ++r) {
      weights[r] = D::load(w + r * call.weight_stride + k);
      prefetch(w + r * call.weight_stride + k);
    }
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      const typename D::Operand row = D::load(x + m * call.x_stride + k);
      DJINN_UNROLL
      for (int r = 0; r < R; ++r) sums[m][r] = D::step(sums[m][r], row, weights[r]);
    }
  }
  if (k < call.inputs) {
    T tail[D::kStep];
    typename D::Operand weights[R];
    DJINN_UNROLL
    for (int r = 0; r < R; ++r) {
      copy_tail(tail, w + r * call.weight_stride + k, call.inputs - k);
      weights[r] = D::load(tail);
    }
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      copy_tail(tail, x + m * call.x_stride + k, call.inputs - k);
      const typename D::Operand row = D::load(tail);
      DJINN_UNROLL
      for (int r = 0; r < R; ++r) sums[m][r] = D::step(sums[m][r], row, weights[r]);
    }
  }
  DJINN_UNROLL
  for (int m = 0; m < M; ++m) {
    DJINN_UNROLL
    for (int r = 0; r < R; ++r) {
      float sum = Level::sum(sums[m][r]);
      if (bias != nullptr) sum += D::widen(bias[r]);
      y[m * call.y_stride + r] = D::round(sum);
    }
  }
}

template <typename T, int M>
void block_outputs_first(const Linear& call, int64_t row, int64_t begin, int64_t end) {
  constexpr int R = rows_of_weights<M>();
  const T* const x = static_cast<const T*>(call.x) + row * call.x_stride;
  const T* const w = static_cast<const T*>(call.weight);
  const T* const bias = static_cast<const T*>(call.bias);
  T* const y = static_cast<T*>(call.y) + row * call.y_stride;
  int64_t n = begin;
  for (; n + R <= end; n += R) {
    dots<T, M, R>(call, x, w + n * call.weight_stride, y + n, bias == nullptr ? bias : bias + n);
  }
  for (; n < end; ++n) {
    dots<T, M, 1>(call, x, w + n * call.weight_stride, y + n, bias == nullptr ? bias : bias + n);
  }
}

// --- inputs first: columns

constexpr int64_t kPanel = 512;  // columns whose sums stay in the first cache
constexpr int kDepth = 8;        // rows of weights that a sum takes in before it is stored

template <typename T, int M>
void panel(const Linear& call, int64_t row, int64_t begin, int64_t end) {
  using D = Dot<T>;
  alignas(kLineBytes) float sums[M][kPanel];
  memset(sums, 0, sizeof sums);
  const T* const x = static_cast<const T*>(call.x) + row * call.x_stride;
  const T* const w = static_cast<const T*>(call.weight) + begin;
  const int64_t columns = end - begin;
  for (int64_t k = 0; k < call.inputs; k += kDepth) {
    const int depth = static_cast<int>(smaller(kDepth, call.inputs - k));
    const T* const rows = w + k * call.weight_stride;
    for (int64_t n = 0; n < columns; n += kLanes) {
      Vector weights[kDepth];
      for (int j = 0; j < depth; ++j) {
        const T* const at = rows + j * call.weight_stride + n;
        weights[j] = load_part(at, columns - n);
        if (k + kDepth + j < call.inputs) __builtin_prefetch(at + kDepth * call.weight_stride);
      }
      DJINN_UNROLL
      for (int m = 0; m < M; ++m) {
        // A sum of few terms first: errors grow with the number of additions to one sum.
        Vector part = Level::zero();
        for (int j = 0; j < depth; ++j) {
          const Vector factor = Level::broadcast(D::widen(x[m * call.x_stride + k + j]));
          part = Level::fma(factor, weights[j], part);
        }
        Level::store_floats(sums[m] + n, Level::add(Level::load_floats(sums[m] + n), part));
      }
    }
  }
  const T* const bias = static_cast<const T*>(call.bias);
  DJINN_UNROLL
  for (int m = 0; m < M; ++m) {
    T* const y = static_cast<T*>(call.y) + (row + m) * call.y_stride;
    for (int64_t n = begin; n < end; ++n) {
      const float sum = sums[m][n - begin];
      y[n] = D::round(bias != nullptr ? sum + D::widen(bias[n]) : sum);
    }
  }
}

template <typename T, int M>
void block_inputs_first(const Linear& call, int64_t row, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; n += kPanel) {
    panel<T, M>(call, row, n, smaller(end, n + kPanel));
  }
}

// --- all rows

using Block = void (*)(const Linear& call, int64_t row, int64_t begin, int64_t end);

inline void all_rows(const Linear& call, int64_t begin, int64_t end,
                     const Block (&blocks)[kRowsMax], int64_t tile) {
  for (int64_t n = begin; n < end; n += tile) {
    const int64_t tile_end = smaller(end, n + tile);
    for (int64_t row = 0; row < call.rows; row += kRowsMax) {
      blocks[smaller(call.rows - row, kRowsMax) - 1](call, row, n, tile_end);
    }
  }
}

template <typename T>
void outputs_first(const Linear& call, int64_t begin, int64_t end) {
  static constexpr Block kBlocks[kRowsMax] = {
      &block_outputs_first<T, 1>, &block_outputs_first<T, 2>, &block_outputs_first<T, 3>,
      &block_outputs_first<T, 4>, &block_outputs_first<T, 5>, &block_outputs_first<T, 6>,
      &block_outputs_first<T, 7>, &block_outputs_first<T, 8>};
  all_rows(call, begin, end, kBlocks, kTileOutputs);
}

template <typename T>
void inputs_first(const Linear& call, int64_t begin, int64_t end) {
  static constexpr Block kBlocks[kRowsMax] = {&block_inputs_first<T, 1>, &block_inputs_first<T, 2>,
                                              &block_inputs_first<T, 3>, &block_inputs_first<T, 4>,
                                              &block_inputs_first<T, 5>, &block_inputs_first<T, 6>,
                                              &block_inputs_first<T, 7>, &block_inputs_first<T, 8>};
  all_rows(call, begin, end, kBlocks, kPanel);
}

constexpr LinearKernels kLinearOfThisLevel = {
    {&outputs_first<float>, &outputs_first<BFloat16>, &outputs_first<Float16>},
    {&inputs_first<float>, &inputs_first<BFloat16>, &inputs_first<Float16>}};

}  // namespace
}  // namespace djinn::kernels
