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

constexpr int kRowsMax = 8;      // at once; more go in blocks
constexpr int kSecondCache = 2;  // of __builtin_prefetch
constexpr int64_t kLineBytes = 64;

// --- outputs first: dot products

// What a chain of additions errs grows with its length, and in float32 that is what is left of a
// product's error: so long rows are added up in blocks of so many inputs, and then the blocks, in
// order. (Of 14,336 inputs it was up to 3 times eager's error without, in four lanes, and 2 in
// eight.) Elements of 16 bits are rounded to what hides it.
template <typename T>
constexpr bool kInBlocks = sizeof(T) == sizeof(float);
template <typename T>
constexpr int64_t kSumInputs = kInBlocks<T> ? Level::kSumSteps* Dot<T>::kStep : INT64_MAX / 2;

// Of output n.
template <typename T>
inline const T* weights_of(const Linear& call, int64_t n) {
  return static_cast<const T*>(call.weight) + (n - call.weight_begin) * call.weight_stride;
}

// What has been summed of it becomes the output n of one row.
template <typename T>
inline void finish_output(const Linear& call, const LinearRow& row, int64_t n, Vector sums) {
  float sum = Level::sum(sums);
  if (call.bias != nullptr) sum += Dot<T>::widen(static_cast<const T*>(call.bias)[n]);
  static_cast<T*>(row.y)[n] = Dot<T>::round(sum);
}

// Few rows are bound by memory: rows of weights are streams of it. A line is fetched once, into the
// second cache, since the first has too few lines on their way for a stream: of one row, on Zen 4,
// that took 0.8 of the time, and so did 3 KiB ahead; 8 KiB took 0.9, and 1 KiB 0.95.
constexpr int64_t kAheadBytes = 4096;

template <typename T>
inline void fetch_ahead(const T* at) {
  __builtin_prefetch(reinterpret_cast<const char*>(at) + kAheadBytes, 0, kSecondCache);
}

// Of one row, so many outputs at once, which lie a whole part of the share apart: each is a stream
// of memory of its own, and a chain of additions that waits for the one before. (Two threads of a
// Sapphire Rapids read float32 at 20 GB/s by one stream each, at 24.5 by two and 27 by three or
// four; bf16 by AVX2 at 16, 24, 25 and 25; int8 at 19, 22, 25 and 22.)
constexpr int kStreams = 3;

// The outputs n, n + apart and so on, W of them, of one row.
template <typename T, int W>
void outputs_of_one_row(const Linear& call, const LinearRow& row, int64_t n, int64_t apart) {
  using D = Dot<T>;
  constexpr int64_t kLine = kLineBytes / static_cast<int64_t>(sizeof(T));
  const T* const x = static_cast<const T*>(row.x);
  const T* w[W];
  Vector sums[W], blocks[W];
  DJINN_UNROLL
  for (int i = 0; i < W; ++i) {
    w[i] = weights_of<T>(call, n + i * apart);
    sums[i] = blocks[i] = Level::zero();
  }
  for (int64_t block = 0; block < call.inputs; block += kSumInputs<T>) {
    DJINN_UNROLL
    for (int i = 0; i < W && block > 0; ++i) {
      blocks[i] = Level::add(blocks[i], sums[i]);
      sums[i] = Level::zero();
    }
    const int64_t block_end = smaller(call.inputs, block + kSumInputs<T>);
    int64_t k = block;
    for (; k + kLine <= block_end; k += kLine) {
      DJINN_UNROLL
      for (int i = 0; i < W; ++i) fetch_ahead(w[i] + k);
      DJINN_UNROLL
      for (int64_t j = k; j < k + kLine; j += D::kStep) {
        const typename D::Operand factors = D::load(x + j);
        DJINN_UNROLL
        for (int i = 0; i < W; ++i) sums[i] = D::step(sums[i], factors, D::load(w[i] + j));
      }
    }
    for (; k + D::kStep <= block_end; k += D::kStep) {
      const typename D::Operand factors = D::load(x + k);
      DJINN_UNROLL
      for (int i = 0; i < W; ++i) sums[i] = D::step(sums[i], factors, D::load(w[i] + k));
    }
    if (k == block_end) continue;
    T x_tail[D::kStep], w_tail[D::kStep];
    copy_tail(x_tail, x + k, block_end - k);
    DJINN_UNROLL
    for (int i = 0; i < W; ++i) {
      copy_tail(w_tail, w[i] + k, block_end - k);
      sums[i] = D::step(sums[i], D::load(x_tail), D::load(w_tail));
    }
  }
  DJINN_UNROLL
  for (int i = 0; i < W; ++i) {
    if (call.inputs > kSumInputs<T>) sums[i] = Level::add(blocks[i], sums[i]);
    finish_output<T>(call, row, n + i * apart, sums[i]);
  }
}

template <typename T>
void one_row(const Linear& call, const LinearRow& row, int64_t begin, int64_t end) {
  const int64_t apart = (end - begin) / kStreams;
  for (int64_t n = begin; n < begin + apart; ++n) {
    outputs_of_one_row<T, kStreams>(call, row, n, apart);
  }
  for (int64_t n = begin + kStreams * apart; n < end; ++n) {
    outputs_of_one_row<T, 1>(call, row, n, 0);
  }
}

// Several rows are bound by arithmetic, if what is read of them stays in the first cache: so they
// are packed, side by side and in the form that is multiplied, as many elements at once as fit
// there. (Where they lie as far apart as pages do, a few of them fill the cache's ways.) Meanwhile
// sums wait, as vectors, for the next elements. A row's outputs are summed in the same order
// whatever the number of rows, and of weights that are taken at once.
// (On Zen 3 rows of 16 KiB were 1.05 to 1.2 times as fast as of 24, six at once.)
constexpr int64_t kPackedBytes = (Level::kRegisters >= 32 ? 24 : 16) * 1024;
// Two rows of weights halve what is read of x for each product. Of few rows of x, which memory
// holds up, they are streams, as of one. (Side by side four or three at once were slower for up to
// four rows of x on Zen 4, and so were two for two.)
constexpr int kTileSums = Level::kRegisters * 3 / 4;
constexpr int kRowsOfStreams = smaller(4, kTileSums / kStreams);
template <int M>
constexpr bool kAreStreams = M <= kRowsOfStreams;
template <int M>
constexpr int kWeightsAtOnce = kAreStreams<M>      ? kStreams
                               : 2 * M > kTileSums ? 1
                               : M == kRowsMax     ? Level::kWeightsMax
                                                   : 2;
// How far ahead weights are fetched into the second cache, in the order in which they are read: the
// more rows, the longer each takes.
template <int M>
constexpr int64_t kPackedAheadBytes = M > kRowsMax ? 4096 : 8192;

// Elements [begin, end) of M rows, and zeros behind the last.
template <typename T, int M>
struct PackedRows {
  using D = Dot<T>;
  using Operand = typename D::Operand;
  // Parts of float32 are whole blocks of kSumInputs.
  static constexpr int64_t kMultiple = kInBlocks<T> ? Level::kSumSteps : 1;
  static constexpr int64_t kStepsMax =
      kPackedBytes / static_cast<int64_t>(M * sizeof(Operand)) / kMultiple * kMultiple;
  static_assert(kStepsMax > 0);

  // How many are packed at once, so that there are few parts of nearly the same size.
  static int64_t inputs_at_once(int64_t inputs) {
    const int64_t steps = (inputs + D::kStep - 1) / D::kStep;
    const int64_t parts = (steps + kStepsMax - 1) / kStepsMax;
    const int64_t at_once = (steps + parts - 1) / parts;
    return (at_once + kMultiple - 1) / kMultiple * kMultiple * D::kStep;
  }

  void pack(const LinearRow* row, int64_t from, int64_t to) {
    begin = from;
    end = to;
    for (int m = 0; m < M; ++m) {
      const T* const x = static_cast<const T*>(row[m].x);
      Operand(*packed)[M] = of;
      int64_t k = begin;
      for (; k + D::kStep <= end; k += D::kStep) (*packed++)[m] = D::load(x + k);
      if (k == end) continue;
      T tail[D::kStep];
      copy_tail(tail, x + k, end - k);
      (*packed)[m] = D::load(tail);
    }
  }

  int64_t begin, end;
  Operand of[kStepsMax][M];
};

// The products of M rows with W rows of weights, which lie so many outputs apart: their sums, and
// the outputs they become.
template <typename T, int M, int W>
struct Tile {
  using D = Dot<T>;
  using Operand = typename D::Operand;
  static constexpr int kCount = M * W;
  static constexpr int kVectors = (kCount + kLanes - 1) / kLanes;

  // w: the first of the weights' rows, and the stride to the next. ahead: what is fetched
  // meanwhile.
  [[gnu::always_inline]] inline void add(const PackedRows<T, M>& x, const T* w, int64_t stride,
                                         const T* ahead) {
    w += x.begin;
    const Operand(*packed)[M] = x.of;
    int64_t left = 0;
    Operand weights[W];
    for (int64_t block = x.begin; block < x.end; block += kSumInputs<T>) {
      if (kInBlocks<T> && block > x.begin) end_block();
      left = smaller(x.end - block, kSumInputs<T>);
      for (; left >= D::kStep; left -= D::kStep, w += D::kStep, ahead += D::kStep) {
        DJINN_UNROLL
        for (int i = 0; i < W; ++i) {
          weights[i] = D::load(w + i * stride);
          __builtin_prefetch(ahead + i * stride, 0, kSecondCache);
        }
        step(*packed++, weights);
      }
    }
    if (left == 0) return;
    T tail[D::kStep];
    DJINN_UNROLL
    for (int i = 0; i < W; ++i) {
      copy_tail(tail, w + i * stride, left);
      weights[i] = D::load(tail);
    }
    step(*packed, weights);
  }

  [[gnu::always_inline]] inline void step(const Operand (&x)[M], const Operand (&weights)[W]) {
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      Operand row = x[m];
      if constexpr (W > 1) Level::hold(row);
      DJINN_UNROLL
      for (int i = 0; i < W; ++i) sums[m * W + i] = D::step(sums[m * W + i], row, weights[i]);
    }
  }

  [[gnu::always_inline]] inline void end_block() {
    DJINN_UNROLL
    for (int i = 0; i < kCount; ++i) {
      blocks[i] = Level::add(blocks[i], sums[i]);
      sums[i] = Level::zero();
    }
  }
  [[gnu::always_inline]] inline void end_last_block() {
    DJINN_UNROLL
    for (int i = 0; i < kCount; ++i) sums[i] = Level::add(blocks[i], sums[i]);
  }

  // The outputs n, n + apart and so on.
  [[gnu::always_inline]] inline void finish(const Linear& call, const LinearRow* row, int64_t n,
                                            int64_t apart) {
    // Copies of the others fill up the last vectors, so that the compiler adds them up once.
    DJINN_UNROLL
    for (int i = kCount; i < kVectors * kLanes; ++i) {
      sums[i] = sums[i % 8 < kCount ? i % 8 : i % 4 < kCount ? i % 4 : i % 2];
    }
    if (apart == 1) return finish_neighbours(call, row, n);
    float outputs[kVectors * kLanes];
    DJINN_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      Level::store_floats(outputs + v * kLanes, Level::sums(sums + v * kLanes));
    }
    const T* const bias = static_cast<const T*>(call.bias);
    for (int i = 0; i < W; ++i, n += apart) {
      const float more = bias != nullptr ? D::widen(bias[n]) : 0;
      for (int m = 0; m < M; ++m) {
        const float sum = outputs[m * W + i];
        static_cast<T*>(row[m].y)[n] = D::round(bias != nullptr ? sum + more : sum);
      }
    }
  }
  [[gnu::always_inline]] inline void finish_neighbours(const Linear& call, const LinearRow* row,
                                                       int64_t n) {
    T outputs[kVectors * kLanes];
    const Biases bias(call, n);
    DJINN_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      Vector sum = Level::sums(sums + v * kLanes);
      if (call.bias != nullptr) sum = Level::add(sum, bias.vector(v));
      D::from_vector(outputs + v * kLanes, sum);
    }
    DJINN_UNROLL
    for (int m = 0; m < M; ++m) {
      memcpy(static_cast<T*>(row[m].y) + n, outputs + m * W, W * sizeof(T));
    }
  }

  // Each row's, side by side. A pair of floats is one number to a vector: put together in memory,
  // it would be waited for.
  struct Biases {
    static constexpr bool kArePairs = W == 2 && sizeof(T) == 4;
    Biases(const Linear& call, int64_t n) {
      if (call.bias == nullptr) return;
      const T* const from = static_cast<const T*>(call.bias) + n;
      if constexpr (kArePairs) {
        memcpy(&pair, from, sizeof pair);
      } else {
        DJINN_UNROLL
        for (int m = 0; m < M; ++m) memcpy(of + m * W, from, W * sizeof(T));
      }
    }
    [[nodiscard]] Vector vector(int v) const {
      if constexpr (!kArePairs) return D::to_vector(of + v * kLanes);
      typedef int64_t Pairs __attribute__((vector_size(sizeof(Vector))));
      const Pairs pairs = Pairs{} + pair;
      Vector all;
      memcpy(&all, &pairs, sizeof all);
      return all;
    }
    int64_t pair = 0;
    T of[kArePairs ? 1 : kVectors * kLanes] = {};
  };

  Vector sums[kVectors * kLanes];
  Vector blocks[kCount];  // the sums of those before this one
};

// A block of rows of x and the outputs [begin, end), at most kTileOutputs where it comes in parts.
template <typename T, int M>
struct Block {
  static constexpr int W = kWeightsAtOnce<M>;

  Block(const Linear& linear, const LinearRow* rows, int64_t from, int64_t to)
      : call(linear), row(rows), begin(from), end(to) {}

  void compute() {
    const int64_t at_once = x.inputs_at_once(call.inputs);
    for (int64_t k = 0; k < call.inputs; k += at_once) {
      x.pack(row, k, smaller(k + at_once, call.inputs));
      apart = kAreStreams<M> ? tiles : 1;
      const int64_t bytes = (x.end - x.begin) * static_cast<int64_t>(sizeof(T)) * to_next_tile();
      const int64_t tiles_ahead = (kPackedAheadBytes<M> + bytes - 1) / bytes;
      for (int64_t i = 0; i < tiles; ++i) {
        compute_tile<W>(begin + i * to_next_tile(), i * W, ahead_of(i + tiles_ahead));
      }
      apart = 1;
      for (int64_t n = begin + tiles * W; n < end; ++n) {
        compute_tile<1>(n, n - begin, ahead_of(tiles));
      }
    }
  }

  [[nodiscard]] int64_t to_next_tile() const { return apart == 1 ? W : 1; }

  // Where the weights of the tile i are read next: behind these outputs are their next inputs, or
  // the first ones of the next outputs. It may be behind all weights, since it is only fetched.
  const T* ahead_of(int64_t i) const {
    int64_t first = begin, k = x.begin;
    if (i >= tiles) {
      const bool ends = x.end == call.inputs;
      first = ends ? end : begin;
      k = ends ? 0 : x.end;
      i -= tiles;
    }
    return weights_of<T>(call, first + i * to_next_tile()) + k;
  }

  // place: of the outputs' sums among those that wait.
  template <int kWeights>
  [[gnu::always_inline]] inline void compute_tile(int64_t n, int64_t place, const T* ahead) {
    Tile<T, M, kWeights> tile;
    Vector* const sums_waiting = waiting + place * M;
    // A part ends with a block, where there are some.
    Vector* const before = kInBlocks<T> ? tile.blocks : tile.sums;
    DJINN_UNROLL
    for (int i = 0; i < tile.kCount; ++i) {
      if (kInBlocks<T>) tile.sums[i] = Level::zero();
      before[i] = x.begin == 0 ? Level::zero() : sums_waiting[i];
    }
    tile.add(x, weights_of<T>(call, n), apart * call.weight_stride, ahead);
    if (x.end == call.inputs) {
      if (kInBlocks<T> && call.inputs > kSumInputs<T>) tile.end_last_block();
      return tile.finish(call, row, n, apart);
    }
    if (kInBlocks<T>) tile.end_block();
    DJINN_UNROLL
    for (int i = 0; i < tile.kCount; ++i) sums_waiting[i] = before[i];
  }

  const Linear& call;
  const LinearRow* row;
  int64_t begin, end;
  int64_t tiles = (end - begin) / W;  // of W outputs
  int64_t apart = 1;                  // of a tile's outputs
  PackedRows<T, M> x;
  Vector waiting[kTileOutputs * M];
};

template <typename T, int M>
void block_outputs_first(const Linear& call, int64_t first, int64_t begin, int64_t end) {
  const LinearRow* const row = call.row + first;
  if constexpr (M == 1) {
    one_row<T>(call, *row, begin, end);
  } else {
    Block<T, M>(call, row, begin, end).compute();
  }
}

// --- inputs first: columns

// Rows of weights whose next ones are fetched, in order, while they are computed. They are in the
// second cache then, and are taken column by column, so that sums stay in registers. (Of float32
// two threads of a Sapphire Rapids read 30 GB/s by 8 rows, or 4, and 28 by 16.)
constexpr int kBlockInputsMax = 16;
template <typename T>
constexpr int kBlockInputs = sizeof(T) == sizeof(float) ? 8 : kBlockInputsMax;

template <typename T, int M>
struct Factors {
  Factors(const LinearRow* row, int64_t k, int64_t inputs) {
    for (int m = 0; m < M; ++m) {
      const T* const x = static_cast<const T*>(row[m].x) + k;
      for (int64_t j = 0; j < inputs; ++j) of[m][j] = Dot<T>::widen(x[j]);
    }
  }
  float of[M][kBlockInputsMax];
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

// As add_block.
using AddBlock = void (*)(const Linear& call, const LinearRow* row, int64_t k, int64_t inputs,
                          float* const* parts);

// The rows of weights of one chunk, so many at once, for a block of rows of x.
template <int kInputs, int M, AddBlock kAdd>
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
  for (int64_t k = begin; k < end; k += kInputs) {
    kAdd(call, rows, k, smaller(end - k, kInputs), parts);
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

using BlockKernel = void (*)(const Linear& call, int64_t row, int64_t begin, int64_t end);

// blocks: of one row, of two, and so on to most. Blocks are as few as can be, and of nearly the
// same size: on Zen 3 two rows that were left of 128, by six, took 4 % of the time. at_once: how
// many outputs of a block are computed before those of the next. One row has no other block to wait
// for, and its streams are long.
inline void compute_outputs(const BlockKernel* blocks, int64_t most, const Linear& call,
                            int64_t begin, int64_t end, int64_t at_once = kTileOutputs) {
  if (call.rows == 1) return blocks[0](call, 0, begin, end);
  for (int64_t n = begin; n < end; n += at_once) {
    const int64_t tile_end = smaller(end, n + at_once);
    int64_t row = 0;
    for (int64_t left = (call.rows + most - 1) / most; left > 0; --left) {
      const int64_t rows = (call.rows - row + left - 1) / left;
      blocks[rows - 1](call, row, n, tile_end);
      row += rows;
    }
  }
}

// Of more rows than go at once so many do for which two rows of weights are taken: where registers
// are few, fewer. (At AVX2 six rows and two of weights are 12 products for 8 loads, and eight rows
// and one 8 for 9.)
constexpr int kRowsOfMany = smaller(kRowsMax, kTileSums / 2);

// A block of rows is packed for each tile of outputs. Where it is packed whole, no sums wait, and a
// tile is what of the weights stays in the second cache beside it: on Zen 4 packing for 64 outputs
// of 384 inputs took 6 % of the products' time.
constexpr int64_t kTileBytes = 400 * 1024;
template <typename T, int M>
inline int64_t outputs_at_once(const Linear& call) {
  const int64_t row_bytes = call.inputs * static_cast<int64_t>(sizeof(T));
  const bool is_whole = call.inputs <= PackedRows<T, M>::kStepsMax * Dot<T>::kStep;
  if (!is_whole || row_bytes == 0) return kTileOutputs;
  const int64_t tiles = smaller(kTileOutputsMax, kTileBytes / row_bytes) / kTileOutputs;
  return tiles > 1 ? tiles * kTileOutputs : kTileOutputs;
}

template <typename T>
void in_blocks(const Linear& call, int64_t begin, int64_t end) {
  static constexpr BlockKernel kBlocks[kRowsMax] = {
      &block_outputs_first<T, 1>, &block_outputs_first<T, 2>, &block_outputs_first<T, 3>,
      &block_outputs_first<T, 4>, &block_outputs_first<T, 5>, &block_outputs_first<T, 6>,
      &block_outputs_first<T, 7>, &block_outputs_first<T, 8>};
  const int64_t most = call.rows > kRowsMax ? kRowsOfMany : kRowsMax;
  compute_outputs(kBlocks, most, call, begin, end, outputs_at_once<T, kRowsMax>(call));
}

// Of two blocks of rows the first waits for weights, and the second has them from the second cache
// while memory idles. In one block the one goes on beside the other, although 16 rows leave no
// registers for a second row of weights, and their products alone take 1.25 of the time.
template <typename T>
void in_one_block(const Linear& call, int64_t begin, int64_t end) {
  static_assert(Level::kRowsInOneBlock <= 2 * kRowsMax);
  static constexpr BlockKernel kBlocks[kRowsMax] = {
      &block_outputs_first<T, 9>,  &block_outputs_first<T, 10>, &block_outputs_first<T, 11>,
      &block_outputs_first<T, 12>, &block_outputs_first<T, 13>, &block_outputs_first<T, 14>,
      &block_outputs_first<T, 15>, &block_outputs_first<T, 16>};
  const int64_t at_once = outputs_at_once<T, 2 * kRowsMax>(call);
  for (int64_t n = begin; n < end; n += at_once) {
    kBlocks[call.rows - kRowsMax - 1](call, 0, n, smaller(end, n + at_once));
  }
}

// Weights are of memory, not of a cache.
template <typename T>
void outputs_first(const Linear& call, int64_t begin, int64_t end) {
  if constexpr (Level::kRowsInOneBlock > kRowsMax && sizeof(T) == sizeof(float)) {
    if (call.rows > kRowsMax && call.rows <= Level::kRowsInOneBlock) {
      return in_one_block<T>(call, begin, end);
    }
  }
  in_blocks<T>(call, begin, end);
}

using Chunk = void (*)(const Linear& call, int64_t row, int64_t chunk);

// kernels: of one row, of two, and so on.
template <int kMax>
inline void compute_chunks(const Chunk (&kernels)[kMax], const Linear& call, int64_t begin,
                           int64_t end) {
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    for (int64_t row = 0; row < call.rows; row += kMax) {
      kernels[smaller(call.rows - row, kMax) - 1](call, row, chunk);
    }
  }
}

template <typename T, int M>
constexpr Chunk kChunkKernel = &chunk_of_inputs<kBlockInputs<T>, M, &add_block<T, M>>;

template <typename T>
void inputs_first(const Linear& call, int64_t begin, int64_t end) {
  static constexpr Chunk kChunks[kRowsMax] = {
      kChunkKernel<T, 1>, kChunkKernel<T, 2>, kChunkKernel<T, 3>, kChunkKernel<T, 4>,
      kChunkKernel<T, 5>, kChunkKernel<T, 6>, kChunkKernel<T, 7>, kChunkKernel<T, 8>};
  compute_chunks(kChunks, call, begin, end);
}

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/int8_template.h"

namespace djinn::kernels {
namespace {

constexpr LinearKernels kLinearOfThisLevel = {
    {&outputs_first<float>, &outputs_first<BFloat16>, &outputs_first<Float16>},
    {&inputs_first<float>, &inputs_first<BFloat16>, &inputs_first<Float16>},
    {&sum_chunks<float>, &sum_chunks<BFloat16>, &sum_chunks<Float16>},
    {&packed<float, &pack_row<float>>, &packed<BFloat16, &pack_row<BFloat16>>,
     &packed<Float16, &pack_row<Float16>>},
    kInt8OfThisLevel,
    {}};

}  // namespace
}  // namespace djinn::kernels
