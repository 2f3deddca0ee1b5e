// SPDX-License-Identifier: Apache-2.0

// Inputs first, and many rows, which are float32 here: a tile of outputs has its weights widened
// once, side by side, and all rows are multiplied with them. Sums are those of few rows
// (linear_template.h), bit for bit: of each chunk of inputs one after the other, from zero, and
// then the chunks in order.
#pragma once

#include "kernel/exec/kernels/linear_template.h"

namespace djinn::kernels {
namespace {

// As many sums as leave registers for the weights: of 32, or of 16.
constexpr int kPackedVectors = kLanes >= 16 ? 4 : 2;
constexpr int kPackedRows = kLanes >= 8 ? 6 : 4;
constexpr int64_t kPackedAtOnce = kPackedVectors * kLanes;
static_assert(kPackedOutputs % kPackedAtOnce == 0);

// Widens row k of the weights, outputs [n, n + kPackedAtOnce), with zeros behind the last.
using PackRow = void (*)(const Linear& call, int64_t k, int64_t n, float* to);

// Each row of weights is on another page, so those that come are fetched.
constexpr int64_t kRowsAhead = 12;

template <typename T>
inline void pack_row(const Linear& call, int64_t k, int64_t n, float* to) {
  const T* const from = static_cast<const T*>(call.weight) + k * call.weight_stride + n;
  const T* const next = from + kRowsAhead * call.weight_stride;
  for (int64_t at = 0; at < kPackedAtOnce; at += kLineBytes / sizeof(T))
    __builtin_prefetch(next + at);
  DJINN_UNROLL
  for (int v = 0; v < kPackedVectors; ++v) {
    const int64_t left = call.outputs - n - v * kLanes;
    Level::store_floats(to + v * kLanes,
                        left > 0 ? load_part(from + v * kLanes, left) : Level::zero());
  }
}

// Of M rows the inputs [begin, end), at most kChunkInputs, from zero, added to the totals.
template <int M>
[[gnu::always_inline]] inline void add_chunk(const float* const* x, const float* packed,
                                             int64_t begin, int64_t end,
                                             Vector (&totals)[M][kPackedVectors]) {
  Vector sums[M][kPackedVectors];
  DJINN_UNROLL
  for (int m = 0; m < M; ++m) {
    DJINN_UNROLL
    for (int v = 0; v < kPackedVectors; ++v) sums[m][v] = Level::zero();
  }
  for (int64_t k = begin; k < end; ++k) {
    Vector weights[kPackedVectors];
    DJINN_UNROLL
    for (int v = 0; v < kPackedVectors; ++v) {
      weights[v] = Level::load_floats(packed + k * kPackedAtOnce + v * kLanes);
    }
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      const Vector factor = Level::broadcast(x[m][k]);
      DJINN_UNROLL
      for (int v = 0; v < kPackedVectors; ++v) {
        sums[m][v] = Level::fma(factor, weights[v], sums[m][v]);
      }
    }
  }
  DJINN_UNROLL
  for (int m = 0; m < M; ++m) {
    DJINN_UNROLL
    for (int v = 0; v < kPackedVectors; ++v) totals[m][v] = Level::add(totals[m][v], sums[m][v]);
  }
}

// The outputs [n, end), at most kPackedAtOnce, of M rows.
template <typename T, int M>
void packed_rows(const Linear& call, int64_t row, int64_t n, int64_t end) {
  const auto* const packed = static_cast<const float*>(call.scratch);
  const float* x[M];
  Vector totals[M][kPackedVectors];
  for (int m = 0; m < M; ++m) {
    x[m] = static_cast<const float*>(call.row[row + m].x);
    for (int v = 0; v < kPackedVectors; ++v) totals[m][v] = Level::zero();
  }
  for (int64_t k = 0; k < call.inputs; k += kChunkInputs) {
    add_chunk<M>(x, packed, k, smaller(call.inputs, k + kChunkInputs), totals);
  }
  const T* const bias = static_cast<const T*>(call.bias);
  for (int m = 0; m < M; ++m) {
    T* const y = static_cast<T*>(call.row[row + m].y);
    for (int v = 0; v < kPackedVectors; ++v) {
      const int64_t at = n + v * kLanes;
      if (at >= end) break;
      Vector sum = totals[m][v];
      if (bias != nullptr) sum = Level::add(sum, load_part(bias + at, end - at));
      store_part(y + at, sum, end - at);
    }
  }
}

// The outputs [begin, end) of all rows.
template <typename T, PackRow kPack>
void packed(const Linear& call, int64_t begin, int64_t end) {
  static constexpr BlockKernel kRows[] = {&packed_rows<T, 1>, &packed_rows<T, 2>,
                                          &packed_rows<T, 3>, &packed_rows<T, 4>,
                                          &packed_rows<T, 5>, &packed_rows<T, 6>};
  for (int64_t n = begin; n < end; n += kPackedAtOnce) {
    auto* to = static_cast<float*>(call.scratch);
    for (int64_t k = 0; k < call.inputs; ++k, to += kPackedAtOnce) kPack(call, k, n, to);
    const int64_t tile_end = smaller(end, n + kPackedAtOnce);
    for (int64_t row = 0; row < call.rows; row += kPackedRows) {
      kRows[smaller(call.rows - row, kPackedRows) - 1](call, row, n, tile_end);
    }
  }
}

}  // namespace
}  // namespace djinn::kernels
