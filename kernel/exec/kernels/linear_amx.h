// SPDX-License-Identifier: Apache-2.0

// Products of bf16 where the outputs are first, by AMX: 16 outputs of up to 16 rows at once.
//
// A tile of weights is the left operand as it lies: 16 outputs, 32 inputs each. Rows of x are
// packed for the right one: of each pair of inputs the rows' pairs, side by side. What comes out is
// [16 outputs, rows], and each element has been summed by itself, so whoever is beside it changes
// no bit of it: of each 32 inputs the even ones and the odd ones, then both, then that and the sum
// of those before. So what is packed at once begins at a multiple of 32 inputs, whatever the number
// of rows. Subnormal numbers are zeros, as to vdpbf16ps.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernel/exec/kernels/linear_template.h"

namespace djinn::kernels {
namespace {

constexpr int kTileRows = kOutputsAtOnce, kTileInputs = 32;
constexpr int kPairsOfTile = kTileInputs / 2;

// Of the sums, the weights, and the packed rows. (To intrinsics of GCC's they go as literals, which
// become the text of an instruction.)
constexpr int kSumTile = 0, kWeightTile = 1, kPackedTile = 2;

// What was written before is there for tiles, and what tiles are stored to for what reads it after:
// GCC 12 knows of neither.
inline void settle_memory() {
  asm volatile("" : : : "memory");
}

// As LDTILECFG reads them.
struct alignas(64) TileShapes {
  void set(int tile, int tile_rows, int tile_row_bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(tile_row_bytes);
  }
  uint8_t palette = 1;
  uint8_t reserved[15] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Of the thread, from here on; releases the tiles in the end, so that a switch of threads need not
// save them, and others find none of ours.
class Tiles {
 public:
  Tiles(int outputs, int rows) {
    shapes_.set(kSumTile, outputs, rows * 4);
    shapes_.set(kWeightTile, outputs, kTileInputs * 2);
    shapes_.set(kPackedTile, kPairsOfTile, rows * 4);
    settle_memory();
    _tile_loadconfig(&shapes_);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  TileShapes shapes_;
};

// Of up to 16 rows, the elements [begin, end), with zeros behind the last: of each pair one number
// of 32 bits, [pairs, columns]. Rows come in fours, of which those that are none are zeros, but for
// one that is alone.
struct PackedPairs {
  static constexpr int64_t kBytes = 64 * 1024;

  explicit PackedPairs(int64_t count)
      : rows(count), columns(count == 1 ? 1 : (count + 3) / 4 * 4) {}

  // As many at once as fit, in parts of nearly the same size.
  [[nodiscard]] int64_t inputs_at_once(int64_t inputs) const {
    const int64_t most = kBytes / (2 * columns) / kTileInputs;
    const int64_t steps = (inputs + kTileInputs - 1) / kTileInputs;
    const int64_t parts = (steps + most - 1) / most;
    return (steps + parts - 1) / parts * kTileInputs;
  }

  void pack(const LinearRow* row, int64_t from, int64_t to) {
    begin = from;
    end = to;
    int64_t k = begin;
    for (; k + kTileInputs <= end; k += kTileInputs) pack_tile(row, k, kTileInputs);
    if (k < end) pack_tile(row, k, end - k);
  }

  [[nodiscard]] uint32_t* tile_at(int64_t k) { return of + (k - begin) / 2 * columns; }

  void pack_tile(const LinearRow* row, int64_t k, int64_t inputs) {
    if (rows == 1) return _mm512_storeu_si512(tile_at(k), part_of(row[0], k, inputs));
    for (int64_t m = 0; m < columns; m += 4) {
      __m512i four[4];
      DJINN_UNROLL
      for (int i = 0; i < 4; ++i) {
        four[i] = m + i < rows ? part_of(row[m + i], k, inputs) : _mm512_setzero_si512();
      }
      put_turned(four, tile_at(k) + m);
    }
  }

  static __m512i part_of(const LinearRow& row, int64_t k, int64_t inputs) {
    const auto mask = static_cast<__mmask32>((uint64_t{1} << inputs) - 1);
    return _mm512_maskz_loadu_epi16(mask, static_cast<const BFloat16*>(row.x) + k);
  }

  // Of four rows of 16 pairs, each pair of all four.
  void put_turned(const __m512i (&row)[4], uint32_t* to) const {
    const __m512i a = _mm512_unpacklo_epi32(row[0], row[1]);
    const __m512i b = _mm512_unpacklo_epi32(row[2], row[3]);
    const __m512i c = _mm512_unpackhi_epi32(row[0], row[1]);
    const __m512i d = _mm512_unpackhi_epi32(row[2], row[3]);
    // Each has one of the four pairs of which a lane has four.
    const __m512i pairs[4] = {_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b),
                              _mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d)};
    DJINN_UNROLL
    for (int i = 0; i < 4; ++i) {
      put(to + i * columns, _mm512_castsi512_si128(pairs[i]));
      put(to + (4 + i) * columns, _mm512_extracti32x4_epi32(pairs[i], 1));
      put(to + (8 + i) * columns, _mm512_extracti32x4_epi32(pairs[i], 2));
      put(to + (12 + i) * columns, _mm512_extracti32x4_epi32(pairs[i], 3));
    }
  }
  static void put(uint32_t* to, __m128i four) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), four);
  }

  const int64_t rows, columns;
  int64_t begin = 0, end = 0;
  alignas(64) uint32_t of[kBytes / sizeof(uint32_t)];
};

// How far ahead of each of a tile's rows weights are fetched. (On Sapphire Rapids eight tiles took
// 0.9 of the time of sixteen, or of four.)
constexpr int64_t kInputsAhead = 8 * kTileInputs;

// A block of up to 16 rows of x and the outputs [begin, end), at most kTileOutputsMax.
struct AmxBlock {
  AmxBlock(const Linear& linear, const LinearRow* rows, int64_t count, int64_t from, int64_t to)
      : call(linear), row(rows), begin(from), end(to), x(count) {}

  void compute() {
    const int64_t at_once = x.inputs_at_once(call.inputs);
    const int64_t whole = begin + (end - begin) / kTileRows * kTileRows;
    for (int64_t k = 0; k < call.inputs; k += at_once) {
      x.pack(row, k, smaller(k + at_once, call.inputs));
      if (whole > begin) compute_tiles(kTileRows, begin, whole);
      if (end > whole) compute_tiles(static_cast<int>(end - whole), whole, end);
    }
  }

  // A tile's outputs are neighbours, whose rows of weights are few pages. Where memory alone holds
  // up, they lie as far apart as these have: then each is a stream of its own, which goes on in the
  // next tile. (Of 16 rows that was slower.)
  void compute_tiles(int outputs, int64_t from, int64_t to) {
    const Tiles tiles(outputs, static_cast<int>(x.columns));
    const int64_t count = (to - from) / outputs;
    apart = call.rows <= kRowsMax ? count : 1;
    for (int64_t i = 0; i < count; ++i) {
      float* const sums = waiting + (from - begin + i * outputs) * x.columns;
      compute_tile(outputs, from + i * to_next_tile(), sums);
    }
  }
  [[nodiscard]] int64_t to_next_tile() const { return apart == 1 ? kTileRows : 1; }

  // The outputs n, n + apart and so on.
  void compute_tile(int outputs, int64_t n, float* sums) {
    settle_memory();
    const int64_t sums_bytes = x.columns * 4, stride = apart * call.weight_stride;
    if (x.begin == 0) {
      _tile_zero(0);
    } else {
      _tile_loadd(0, sums, sums_bytes);
    }
    // Behind what a row has here, what is read next of memory is the next tile's. It may be behind
    // all weights, since it is only fetched.
    const int64_t to_next = to_next_tile() * call.weight_stride - (x.end - x.begin);
    const BFloat16* const w = weights_of<BFloat16>(call, n);
    int64_t k = x.begin;
    for (; k + kTileInputs <= x.end; k += kTileInputs) {
      const int64_t next = k + kInputsAhead;
      const BFloat16* const ahead = w + next + (next < x.end ? 0 : to_next);
      DJINN_UNROLL
      for (int i = 0; i < kTileRows; ++i) __builtin_prefetch(ahead + i * stride);
      multiply(w + k, stride, k);
    }
    if (k < x.end) {
      BFloat16 tail[kTileRows][kTileInputs];
      for (int i = 0; i < outputs; ++i) copy_tail(tail[i], w + i * stride + k, x.end - k);
      settle_memory();
      multiply(tail[0], kTileInputs, k);
    }
    _tile_stored(0, sums, sums_bytes);
    settle_memory();
    if (x.end == call.inputs) finish(outputs, n, sums);
  }

  [[gnu::always_inline]] inline void multiply(const BFloat16* weights, int64_t stride, int64_t k) {
    _tile_loadd(2, x.tile_at(k), x.columns * 4);
    _tile_loadd(1, weights, stride * 2);
    _tile_dpbf16ps(0, 1, 2);
  }

  // sums: [outputs, columns].
  void finish(int outputs, int64_t n, const float* sums) const {
    const auto* const bias = static_cast<const BFloat16*>(call.bias);
    if (apart > 1) return finish_apart(n, sums);
    const __m512i counts = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i places =
        _mm512_mullo_epi32(counts, _mm512_set1_epi32(static_cast<int>(x.columns)));
    const auto mask = static_cast<__mmask16>((1U << outputs) - 1);
    for (int64_t m = 0; m < x.rows; ++m) {
      Vector sum = _mm512_mask_i32gather_ps(Level::zero(), mask, places, sums + m, 4);
      if (bias != nullptr) sum = Level::add(sum, load_part(bias + n, outputs));
      store_part(static_cast<BFloat16*>(row[m].y) + n, sum, outputs);
    }
  }

  void finish_apart(int64_t n, const float* sums) const {
    for (int i = 0; i < kTileRows; ++i, n += apart, sums += x.columns) {
      const auto* const bias = static_cast<const BFloat16*>(call.bias);
      const float more = bias != nullptr ? Dot<BFloat16>::widen(bias[n]) : 0;
      for (int64_t m = 0; m < x.rows; ++m) {
        static_cast<BFloat16*>(row[m].y)[n] = Dot<BFloat16>::round(sums[m] + more);
      }
    }
  }

  const Linear& call;
  const LinearRow* row;
  int64_t begin, end;
  int64_t apart = 1;  // of a tile's outputs
  PackedPairs x;
  alignas(64) float waiting[kTileOutputsMax * kTileRows];
};

void amx_outputs_first(const Linear& call, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; n += kTileOutputsMax) {
    const int64_t tile_end = smaller(end, n + kTileOutputsMax);
    for (int64_t first = 0; first < call.rows; first += kTileRows) {
      const int64_t rows = smaller(call.rows - first, kTileRows);
      AmxBlock(call, call.row + first, rows, n, tile_end).compute();
    }
  }
}

}  // namespace
}  // namespace djinn::kernels
