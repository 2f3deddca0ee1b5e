// SPDX-License-Identifier: Apache-2.0

// The linear kernels of a level for weights in int8; included by linear_template.h.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernel/exec/kernels/linear_packed_template.h"
#include "kernel/exec/kernels/vectors.h"

namespace djinn::kernels {
namespace {

static_assert(kInt8Most == 127 && kInt8Block % kLanes == 0);

constexpr int kInt8RowsMax = 4;  // at once

inline const uint8_t* int8_row(const Linear& call, int64_t row) {
  return static_cast<const uint8_t*>(call.weight) + row * call.weight_stride;
}
inline const int8_t* as_values(const void* row) {
  return static_cast<const int8_t*>(row);
}
inline const BFloat16* scales_of(const void* row, int64_t columns) {
  return reinterpret_cast<const BFloat16*>(static_cast<const uint8_t*>(row) +
                                           int8_scales_offset(columns));
}

// --- outputs first: integer products

// The products of M rows of x with W rows of weights, which lie so many outputs apart.
template <typename T, int M, int W>
struct Int8Tile : Tile<T, M, W> {
  using Tile<T, M, W>::sums;
  static constexpr int kStep = Int8Dots::kBlocks * kInt8Block;
  static constexpr int kSteps = kInt8ScalesAtOnce / Int8Dots::kBlocks;

  Int8Tile(const Linear& call, const LinearRow* row, int64_t n, int64_t apart) {
    for (int m = 0; m < M; ++m) {
      const auto* const at = static_cast<const uint8_t*>(row[m].x);
      x[m] = as_values(at);
      x_scales[m] = reinterpret_cast<const float*>(at + quantised_scales(call.inputs));
    }
    for (int w = 0; w < W; ++w) {
      weights[w] = as_values(int8_row(call, n + w * apart));
      weight_scales[w] = scales_of(weights[w], call.inputs);
    }
  }

  [[gnu::always_inline]] inline void compute(int64_t inputs) {
    DJINN_UNROLL
    for (int i = 0; i < M * W; ++i) sums[i] = Level::zero();
    int64_t left = (inputs + kStep - 1) / kStep;  // the last step has zeros behind the inputs
    for (int64_t block = 0; left > 0; block += kInt8ScalesAtOnce, left -= kSteps) {
      add(block, static_cast<int>(smaller(left, kSteps)));
    }
  }

  // So many steps, from a block on.
  [[gnu::always_inline]] inline void add(int64_t block, int steps) {
    Int8Dots::Scales scales[M * W];
    DJINN_UNROLL
    for (int w = 0; w < W; ++w) fetch(weight_scales[w] + block);
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      DJINN_UNROLL
      for (int w = 0; w < W; ++w) {
        scales[m * W + w] = Int8Dots::scales(weight_scales[w] + block, x_scales[m] + block);
      }
    }
    for (int step = 0; step < steps; ++step) {
      const int64_t at = block * kInt8Block + step * kStep;
      Int8Dots::Values values[W];
      DJINN_UNROLL
      for (int w = 0; w < W; ++w) {
        values[w] = Int8Dots::load(weights[w] + at);
        fetch(weights[w] + at);
      }
      DJINN_UNROLL
      for (int m = 0; m < M; ++m) {
        const Int8Dots::Values of_x = Int8Dots::load(x[m] + at);
        DJINN_UNROLL
        for (int w = 0; w < W; ++w) {
          const Vector parts = Int8Dots::multiply(of_x, values[w]);
          Vector& sum = sums[m * W + w];
          sum = Level::fma(parts, Int8Dots::scale(scales[m * W + w], step), sum);
        }
      }
    }
  }

  // Of one row, memory is read at its speed; of several it is fetched while they are computed.
  template <typename U>
  static void fetch(const U* at) {
    if constexpr (M == 1) {
      fetch_ahead(at);
    } else {
      __builtin_prefetch(reinterpret_cast<const char*>(at) + kPackedAheadBytes<M>, 0, kSecondCache);
    }
  }

  const int8_t* x[M];
  const float* x_scales[M];
  const int8_t* weights[W];
  const BFloat16* weight_scales[W];
};

// The outputs n, n + apart and so on, W of them, of one row.
template <typename T, int W>
void int8_outputs_of_one_row(const Linear& call, const LinearRow& row, int64_t n, int64_t apart) {
  Int8Tile<T, 1, W> tile(call, &row, n, apart);
  tile.compute(call.inputs);
  DJINN_UNROLL
  for (int i = 0; i < W; ++i) finish_output<T>(call, row, n + i * apart, tile.sums[i]);
}

template <typename T>
void int8_one_row(const Linear& call, int64_t first, int64_t begin, int64_t end) {
  const LinearRow& row = call.row[first];
  const int64_t apart = (end - begin) / kStreams;
  for (int64_t n = begin; n < begin + apart; ++n) {
    int8_outputs_of_one_row<T, kStreams>(call, row, n, apart);
  }
  for (int64_t n = begin + kStreams * apart; n < end; ++n) {
    int8_outputs_of_one_row<T, 1>(call, row, n, 0);
  }
}

// The outputs n, n + apart and so on, W of them, of M rows.
template <typename T, int M, int W>
[[gnu::always_inline]] inline void int8_outputs(const Linear& call, const LinearRow* row, int64_t n,
                                                int64_t apart) {
  Int8Tile<T, M, W> tile(call, row, n, apart);
  tile.compute(call.inputs);
  tile.finish(call, row, n, apart);
}

template <typename T, int M>
void int8_block(const Linear& call, int64_t first, int64_t begin, int64_t end) {
  constexpr int W = M == 2 ? kStreams : 2;
  const LinearRow* const row = call.row + first;
  const int64_t apart = (end - begin) / W;
  for (int64_t n = begin; n < begin + apart; ++n) int8_outputs<T, M, W>(call, row, n, apart);
  for (int64_t n = begin + W * apart; n < end; ++n) int8_outputs<T, M, 1>(call, row, n, 1);
}

template <typename T>
void int8_outputs_first(const Linear& call, int64_t begin, int64_t end) {
  static constexpr BlockKernel kBlocks[kInt8RowsMax] = {&int8_one_row<T>, &int8_block<T, 2>,
                                                        &int8_block<T, 3>, &int8_block<T, 4>};
  compute_outputs(kBlocks, kInt8RowsMax, call, begin, end);
}

// --- rows to int8

constexpr float kLeastMagnitude = 1e-30f;  // of a block; below it all is zero
constexpr int32_t kMagnitudeBits = 0x7fffffff, kInfinityBits = 0x7f800000;

struct Int8Block {
  static constexpr int kVectors = kInt8Block / kLanes;

  // The scale.
  [[gnu::always_inline]] inline float make(const Vector (&x)[kVectors]) {
    Ints most = as_ints(x[0]) & kMagnitudeBits;  // bits order magnitudes as their numbers
    DJINN_UNROLL
    for (int v = 1; v < kVectors; ++v) {
      const Ints bits = as_ints(x[v]) & kMagnitudeBits;
      most = bits > most ? bits : most;
    }
    int32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) bits = most[i] > bits ? most[i] : bits;
    memset(values, 0, sizeof values);
    if (bits >= kInfinityBits) return float_of_bits(kInfinityBits | 0x400000);
    const float magnitude = float_of_bits(static_cast<uint32_t>(bits));
    if (magnitude < kLeastMagnitude) return 0;
    round(x, static_cast<float>(kInt8Most) / magnitude);
    return magnitude / static_cast<float>(kInt8Most);
  }

  [[gnu::always_inline]] inline void round(const Vector (&x)[kVectors], float factor) {
    typedef int8_t Bytes __attribute__((vector_size(kLanes)));
    constexpr float kRounder = 0x1.8p+23f;  // adding it leaves an integer in the low bits
    DJINN_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const Vector shifted = Level::fma(x[v], Level::broadcast(factor), Level::broadcast(kRounder));
      const Ints nearest = as_ints(shifted) - static_cast<int32_t>(0x4b400000);
      const Bytes bytes = __builtin_convertvector(nearest, Bytes);
      memcpy(values + v * kLanes, &bytes, sizeof bytes);
    }
  }

  int8_t values[kInt8Block];
};

template <typename T>
void quantise(const void* row, int64_t inputs, void* to) {
  const T* const x = static_cast<const T*>(row);
  auto* const values = static_cast<int8_t*>(to);
  auto* const scales = reinterpret_cast<float*>(values + quantised_scales(inputs));
  const auto values_bytes = static_cast<size_t>(quantised_bytes(inputs));
  memset(to, 0, values_bytes);
  for (int64_t k = 0, block = 0; k < inputs; k += kInt8Block, ++block) {
    Vector of_block[Int8Block::kVectors];
    DJINN_UNROLL
    for (int v = 0; v < Int8Block::kVectors; ++v) {
      const int64_t left = inputs - k - v * kLanes;
      of_block[v] = left > 0 ? load_part(x + k + v * kLanes, left) : Level::zero();
    }
    Int8Block made;
    scales[block] = made.make(of_block);
    memcpy(values + k, made.values, sizeof made.values);
  }
}

// --- inputs first: weights are widened

constexpr int64_t kInt8Tile = kLineBytes;  // outputs

// As add_block.
template <typename T, int M>
void add_int8_block(const Linear& call, const LinearRow* row, int64_t k, int64_t inputs,
                    float* const* parts) {
  constexpr int kVectors = kInt8Tile / kLanes, kOfBlock = kInt8Block / kLanes;
  const Factors<T, M> factors(row, k, inputs);
  const uint8_t* const first = int8_row(call, k);
  const uint8_t* ahead = int8_row(call, k + inputs);
  const int64_t padded = padded_outputs(call.outputs);
  for (int64_t n = 0; n < call.outputs; n += kInt8Tile) {
    const int vectors = static_cast<int>(smaller(kVectors, (padded - n) / kLanes));
    Vector sums[M][kVectors];
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      DJINN_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sums[m][v] = v < vectors ? Level::load_floats(parts[m] + n + v * kLanes) : Level::zero();
      }
    }
    for (int64_t j = 0; j < inputs; ++j) {
      const uint8_t* const weights_row = first + j * call.weight_stride;
      const BFloat16* const scales = scales_of(weights_row, call.outputs) + n / kInt8Block;
      __builtin_prefetch(ahead, 0, kSecondCache);
      ahead += kLineBytes;
      DJINN_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        if (v >= vectors) break;
        const Vector scale = Level::broadcast(widen_bfloat16(scales[v / kOfBlock]));
        const Vector weights = scale * Int8Dots::widen(as_values(weights_row) + n + v * kLanes);
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
        if (v < vectors) Level::store_floats(parts[m] + n + v * kLanes, sums[m][v]);
      }
    }
  }
}

template <typename T>
void int8_inputs_first(const Linear& call, int64_t begin, int64_t end) {
  static constexpr Chunk kChunks[kInt8RowsMax] = {
      &chunk_of_inputs<kBlockInputsMax, 1, &add_int8_block<T, 1>>,
      &chunk_of_inputs<kBlockInputsMax, 2, &add_int8_block<T, 2>>,
      &chunk_of_inputs<kBlockInputsMax, 3, &add_int8_block<T, 3>>,
      &chunk_of_inputs<kBlockInputsMax, 4, &add_int8_block<T, 4>>};
  compute_chunks(kChunks, call, begin, end);
}

// Elements [begin, end) of a row, which begin at a block.
template <typename T>
void widen_part(const void* row, int64_t columns, int64_t begin, int64_t end, T* to) {
  const int8_t* const values = as_values(row);
  const BFloat16* const scales = scales_of(row, columns);
  for (int64_t n = begin; n < end; n += kLanes) {
    const Vector scale = Level::broadcast(widen_bfloat16(scales[n / kInt8Block]));
    store_part(to + (n - begin), scale * Int8Dots::widen(values + n), end - n);
  }
}

template <typename T>
void widen_row(const void* row, int64_t columns, void* to) {
  widen_part(row, columns, 0, columns, static_cast<T*>(to));
}

// As pack_row.
inline void pack_int8_row(const Linear& call, int64_t k, int64_t n, float* to) {
  const uint8_t* const row = int8_row(call, k);
  const BFloat16* const scales = scales_of(row, call.outputs);
  for (int64_t v = n; v < n + kPackedAtOnce; v += kLanes, to += kLanes) {
    if (v >= call.outputs) {
      Level::store_floats(to, Level::zero());
      continue;
    }
    const Vector scale = Level::broadcast(widen_bfloat16(scales[v / kInt8Block]));
    Level::store_floats(to, scale * Int8Dots::widen(as_values(row) + v));
  }
}

constexpr Int8LinearKernels kInt8OfThisLevel = {
    {&int8_outputs_first<float>, &int8_outputs_first<BFloat16>, &int8_outputs_first<Float16>},
    {&int8_inputs_first<float>, &int8_inputs_first<BFloat16>, &int8_inputs_first<Float16>},
    {&packed<float, &pack_int8_row>, &packed<BFloat16, &pack_int8_row>,
     &packed<Float16, &pack_int8_row>},
    {&quantise<float>, &quantise<BFloat16>, &quantise<Float16>},
    {&widen_row<float>, &widen_row<BFloat16>, &widen_row<Float16>}};

}  // namespace
}  // namespace djinn::kernels
