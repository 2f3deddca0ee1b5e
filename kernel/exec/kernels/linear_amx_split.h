// SPDX-License-Identifier: Apache-2.0

// Products of float32 by AMX, which multiplies bf16 (SplitLinearKernels). Each number is the sum of
// three bf16 (a = a1 + a2 + a3), and of the nine products of two numbers six are added: those that
// are left out, a2 b3 and its like, are below 2^-23 of the product, with either sign. Rows of x
// come split; weights are split 32 outputs at once, for up to kSplitRowsAtOnce rows.
//
// A tile of x is 16 rows of 32 inputs, one of weights 32 inputs of 16 outputs: of each pair of
// inputs, k and k + 16, the outputs' pairs, side by side. What comes out is [rows, outputs], and
// each element has been summed by itself, in one order: of up to kStepsMax times 32 inputs, one 32
// after the other, the six products; then these sums. So neither the number of rows, nor how the
// outputs are shared out changes a bit.
//
// To AMX subnormal numbers are zeros, and what is not finite has parts that add up to NaN. So a sum
// that is not finite, or whose size is below 2^-60, is summed again in plain float32. What is left
// of it: each x and each weight is known to 2^-126, which shows beside factors above 2^40.
#pragma once

#include "kernel/exec/kernels/linear_amx.h"

namespace djinn::kernels {
namespace {

static_assert(kSplitInputs == kTileInputs);
constexpr int64_t kTileRowBytes = 64, kPartTileBytes = kTileRows * kTileRowBytes;
// Of as many outputs weights are split at once.
constexpr int64_t kPanelOutputs = kSplitOutputs;
static_assert(kPanelOutputs == 2 * kTileRows);
// Rows of x whose parts, of as many inputs as are summed at once, stay in the second cache.
constexpr int64_t kSplitRowsAtOnce = 256, kStepsMax = 24;

// The parts of two vectors, in pairs of which the first one's are the low halves.
struct PairsOfParts {
  [[gnu::always_inline]] inline PairsOfParts(Vector a, Vector b) {
    const __m512i top = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    const __m512i half = _mm512_set1_epi32(0x8000);
    DJINN_UNROLL
    for (int i = 0; i < kSplitParts - 1; ++i) {
      // To nearest: the rest has either sign, and so have the products that are left out.
      const __m512i low = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(a), half), top);
      const __m512i high = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(b), half), top);
      of[i] = _mm512_or_si512(_mm512_srli_epi32(low, 16), high);
      a = _mm512_sub_ps(a, _mm512_castsi512_ps(low));
      b = _mm512_sub_ps(b, _mm512_castsi512_ps(high));
    }
    // What is left has 8 bits.
    of[kSplitParts - 1] = _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(a), 16),
                                          _mm512_and_si512(_mm512_castps_si512(b), top));
  }
  __m512i of[kSplitParts];
};

inline __mmask16 mask_of(int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffff : count <= 0 ? 0 : (1U << count) - 1);
}

void split_row(const void* x, int64_t inputs, void* to) {
  const float* const from = static_cast<const float*>(x);
  char* part = static_cast<char*>(to);
  for (int64_t k = 0; k < inputs; k += kSplitInputs) {
    const int64_t left = inputs - k;
    const PairsOfParts pairs(_mm512_maskz_loadu_ps(mask_of(left), from + k),
                             _mm512_maskz_loadu_ps(mask_of(left - kLanes), from + k + kLanes));
    DJINN_UNROLL
    for (int i = 0; i < kSplitParts; ++i, part += kTileRowBytes) {
      _mm512_storeu_si512(part, pairs.of[i]);
    }
  }
}

// Of 16 rows of 16 numbers, the columns.
[[gnu::always_inline]] inline void load_columns(const float* from, int64_t stride,
                                                Vector (&column)[kTileRows]) {
  Vector row[kTileRows];
  DJINN_UNROLL
  for (int i = 0; i < kTileRows; ++i) row[i] = _mm512_loadu_ps(from + i * stride);
  DJINN_UNROLL
  for (int i = 0; i < kTileRows; i += 2) {
    column[i] = _mm512_unpacklo_ps(row[i], row[i + 1]);
    column[i + 1] = _mm512_unpackhi_ps(row[i], row[i + 1]);
  }
  // row[4 i + c] becomes, of each fourth of four rows, the column c.
  DJINN_UNROLL
  for (int i = 0; i < kTileRows; i += 4) {
    DJINN_UNROLL
    for (int j = 0; j < 2; ++j) {
      const __m512d a = _mm512_castps_pd(column[i + j]), b = _mm512_castps_pd(column[i + j + 2]);
      row[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      row[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  DJINN_UNROLL
  for (int c = 0; c < 4; ++c) {
    const Vector even = _mm512_shuffle_f32x4(row[c], row[4 + c], 0x88);
    const Vector odd = _mm512_shuffle_f32x4(row[c], row[4 + c], 0xdd);
    const Vector next_even = _mm512_shuffle_f32x4(row[8 + c], row[12 + c], 0x88);
    const Vector next_odd = _mm512_shuffle_f32x4(row[8 + c], row[12 + c], 0xdd);
    column[c] = _mm512_shuffle_f32x4(even, next_even, 0x88);
    column[4 + c] = _mm512_shuffle_f32x4(odd, next_odd, 0x88);
    column[8 + c] = _mm512_shuffle_f32x4(even, next_even, 0xdd);
    column[12 + c] = _mm512_shuffle_f32x4(odd, next_odd, 0xdd);
  }
}

// --- how weights lie

// The parts of 16 outputs' and 32 inputs' weights, a tile of each part.
inline void put_parts(const PairsOfParts& pairs, int row, char* tiles) {
  DJINN_UNROLL
  for (int i = 0; i < kSplitParts; ++i) {
    _mm512_store_si512(tiles + i * kPartTileBytes + row * kTileRowBytes, pairs.of[i]);
  }
}

struct SplitWeights {
  static const float* at(const Linear& call, int64_t n, int64_t k) {
    return weights_of<float>(call, n) + k;
  }
  static void split(const float* from, int64_t stride, char* tiles) {
    Vector low[kTileRows], high[kTileRows];
    load_columns(from, stride, low);
    load_columns(from + kLanes, stride, high);
    DJINN_UNROLL
    for (int i = 0; i < kTileRows; ++i) put_parts(PairsOfParts(low[i], high[i]), i, tiles);
  }
  // Of the outputs [n, n + outputs), at most 16, the weights of input k.
  static Vector weights_of_input(const Linear& call, int64_t n, int64_t outputs, int64_t k) {
    float of[kLanes] = {};
    for (int64_t i = 0; i < outputs; ++i) of[i] = *at(call, n + i, k);
    return _mm512_loadu_ps(of);
  }
};

// The same of fewer outputs or inputs, and zeros.
void split_some(const float* from, int64_t stride, int64_t outputs, int64_t inputs, char* tiles) {
  float some[kTileInputs][kTileInputs] = {};
  const auto bytes = static_cast<size_t>(inputs) * sizeof(float);
  for (int64_t i = 0; i < outputs; ++i) memcpy(some[i], from + i * stride, bytes);
  SplitWeights::split(some[0], kTileInputs, tiles);
}

// Weights that are read next, fetched a few lines at a time, in the order of memory. Without it
// products of cold weights took 1.3 to 1.5 times as long.
struct Ahead {
  void fetch(int64_t lines) {
    for (; lines > 0 && rows > 0; --lines) {
      __builtin_prefetch(row + done_bytes, 0, kSecondCache);
      done_bytes += kLineBytes;
      if (done_bytes < row_bytes) continue;
      done_bytes = 0;
      row += stride_bytes;
      --rows;
    }
  }
  const char* row = nullptr;
  int64_t row_bytes = 0, stride_bytes = 0, rows = 0, done_bytes = 0;
};

// --- products

// The rows [first, first + count) of x, which lie at even distances, and the outputs [begin, end).
struct SplitBlock {
  SplitBlock(const Linear& linear, int64_t first, int64_t count, int64_t from, int64_t to)
      : call(linear), rows(linear.row + first), row_count(count), begin(from), end(to) {
    if (count > 1) x_stride = x_of(1) - x_of(0);
  }

  void compute() {
    configure_tiles();
    const int64_t steps = (call.inputs + kTileInputs - 1) / kTileInputs;
    const int64_t parts = (steps + kStepsMax - 1) / kStepsMax;
    const int64_t at_once = (steps + parts - 1) / parts * kTileInputs;
    fetch_at_once(begin, at_once);
    for (input_begin = 0; input_begin < call.inputs; input_begin = input_end) {
      input_end = smaller(input_begin + at_once, call.inputs);
      for (int64_t n = begin; n < end; n += kPanelOutputs) {
        const int64_t next = smaller(end, n + kPanelOutputs);
        ahead = next < end ? ahead_of(next, input_begin, input_end)
                           : ahead_of(begin, input_end, input_end + at_once);
        compute_panel(n, next);
      }
    }
    _tile_release();
  }

  // Tiles 0 to 3: sums, of two tiles of rows and two of outputs; 4 and 5: x; 6 and 7: weights.
  // Releasing them is for others, as Tiles says.
  void configure_tiles() const {
    TileShapes shapes;
    const auto tile_rows = static_cast<int>(smaller(row_count, kTileRows));
    DJINN_UNROLL
    for (int tile = 0; tile < 8; ++tile) {
      shapes.set(tile, tile < 6 ? tile_rows : kTileRows, kTileRowBytes);
    }
    settle_memory();
    _tile_loadconfig(&shapes);
  }

  [[nodiscard]] Ahead ahead_of(int64_t n, int64_t from, int64_t to) const {
    Ahead it;
    if (from >= call.inputs) return it;
    it.row = reinterpret_cast<const char*>(SplitWeights::at(call, n, from));
    it.rows = smaller(end - n, kPanelOutputs);
    it.row_bytes = (smaller(to, call.inputs) - from) * 4;
    it.stride_bytes = call.weight_stride * 4;
    return it;
  }
  // Nobody has fetched what is computed first.
  void fetch_at_once(int64_t n, int64_t at_once) const {
    Ahead first = ahead_of(n, 0, at_once);
    first.fetch(kPanelOutputs * at_once / (kLineBytes / 4));
  }

  [[nodiscard]] const char* x_of(int64_t row) const {
    return static_cast<const char*>(rows[row].x);
  }

  // Of outputs up to a panel's.
  void compute_panel(int64_t n, int64_t before) {
    const int64_t outputs = smaller(kPanelOutputs, before - n);
    split_panel(n, outputs);
    const int64_t pairs = (row_count + 2 * kTileRows - 1) / (2 * kTileRows);
    // As many lines for each step as a step has, so that all are fetched when they are wanted.
    const int64_t lines = kPanelOutputs * kTileInputs / (kLineBytes / 4) / pairs + 1;
    // The last tiles may begin before the end of those before them: the sums are the same.
    const int64_t last = row_count > kTileRows ? row_count - kTileRows : 0;
    for (int64_t row = 0; row < row_count; row += 2 * kTileRows) {
      const int64_t first = smaller(row, last), second = smaller(row + kTileRows, last);
      multiply(first, second, lines);
      finish(sums[0], first, row, n, outputs);
      finish(sums[1], second, row + kTileRows, n, outputs);
    }
  }

  void split_panel(int64_t n, int64_t outputs) {
    char* tiles = weights;
    for (int64_t k = input_begin; k < input_end; k += kTileInputs) {
      for (int64_t i = 0; i < kPanelOutputs;
           i += kTileRows, tiles += kSplitParts * kPartTileBytes) {
        const float* const from = SplitWeights::at(call, n + i, k);
        const int64_t some = i < outputs ? smaller(outputs - i, kTileRows) : 0;
        const int64_t inputs = smaller(input_end - k, kTileInputs);
        if (some == kTileRows && inputs == kTileInputs) {
          SplitWeights::split(from, call.weight_stride, tiles);
        } else {
          split_some(from, call.weight_stride, some, inputs, tiles);
        }
      }
    }
    settle_memory();
  }

  // Of the tiles of rows that begin with those. Four sums are added to in turn, since each waits
  // longer for the one before than a product takes.
  void multiply(int64_t first, int64_t second, int64_t lines) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const int64_t offset = input_begin / kTileInputs * kSplitParts * kTileRowBytes;
    const char *a = x_of(first) + offset, *b = x_of(second) + offset, *tiles = weights;
    for (int64_t k = input_begin; k < input_end; k += kTileInputs) {
      ahead.fetch(lines);
      load_x(a, b, 0);
      load_weights(tiles, 2);
      add_products();
      load_weights(tiles, 1);
      add_products();
      load_x(a, b, 1);
      add_products();
      load_weights(tiles, 0);
      add_products();
      load_x(a, b, 0);
      add_products();
      load_x(a, b, 2);
      add_products();
      a += kSplitParts * kTileRowBytes;
      b += kSplitParts * kTileRowBytes;
      tiles += 2 * kSplitParts * kPartTileBytes;
    }
    _tile_stored(0, sums[0][0], kPanelOutputs * 4);
    _tile_stored(1, sums[0][0] + kTileRows, kPanelOutputs * 4);
    _tile_stored(2, sums[1][0], kPanelOutputs * 4);
    _tile_stored(3, sums[1][0] + kTileRows, kPanelOutputs * 4);
    settle_memory();
  }
  [[gnu::always_inline]] inline void load_x(const char* a, const char* b, int part) const {
    _tile_loadd(4, a + part * kTileRowBytes, x_stride);
    _tile_loadd(5, b + part * kTileRowBytes, x_stride);
  }
  [[gnu::always_inline]] static inline void load_weights(const char* tiles, int part) {
    _tile_loadd(6, tiles + part * kPartTileBytes, kTileRowBytes);
    _tile_loadd(7, tiles + (kSplitParts + part) * kPartTileBytes, kTileRowBytes);
  }
  [[gnu::always_inline]] static inline void add_products() {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }

  using Sums = float[kTileRows][kPanelOutputs];

  // Of the rows from `from` on, of a tile that begins with the row `first`.
  void finish(const Sums& tile, int64_t first, int64_t from, int64_t n, int64_t outputs) const {
    const int64_t to = smaller(row_count, first + kTileRows);
    for (int64_t row = from; row < to; ++row) {
      const float* const sum = tile[row - first];
      for (int64_t i = 0; i < outputs; i += kLanes) {
        finish_sums(rows[row], _mm512_load_ps(sum + i), n + i, smaller(outputs - i, kLanes));
      }
    }
  }

  void finish_sums(const LinearRow& row, Vector sum, int64_t n, int64_t outputs) const {
    float* const y = static_cast<float*>(row.y) + n;
    const __mmask16 mask = mask_of(outputs);
    if (input_begin > 0) sum = Level::add(_mm512_maskz_loadu_ps(mask, y), sum);
    if (input_end == call.inputs) {
      __mmask16 doubtful = static_cast<__mmask16>(mask & doubtful_of(sum));
      if (doubtful != 0 && is_zero(row)) doubtful = static_cast<__mmask16>(mask & not_finite(sum));
      if (doubtful != 0) [[unlikely]] {
        sum = _mm512_mask_mov_ps(sum, doubtful, summed_again(row, n, outputs));
      }
      if (call.bias != nullptr) {
        sum = Level::add(sum, load_part(static_cast<const float*>(call.bias) + n, outputs));
      }
    }
    _mm512_mask_storeu_ps(y, mask, sum);
  }
  // As integers, which are in the order of the numbers.
  static __m512i magnitude_of(Vector sum) {
    return _mm512_and_si512(_mm512_castps_si512(sum), _mm512_set1_epi32(0x7fffffff));
  }
  // Those that are not finite, or below 2^-60.
  static __mmask16 doubtful_of(Vector sum) {
    constexpr int kBias = 127, kAllOnes = 255, kMantissaBits = 23;
    const __m512i least = _mm512_set1_epi32((kBias - 60) << kMantissaBits);
    const __m512i range = _mm512_set1_epi32((kAllOnes - kBias + 60) << kMantissaBits);
    return _mm512_cmpge_epu32_mask(_mm512_sub_epi32(magnitude_of(sum), least), range);
  }
  static __mmask16 not_finite(Vector sum) {
    return _mm512_cmpge_epu32_mask(magnitude_of(sum), _mm512_set1_epi32(0x7f800000));
  }
  // Padding often is: its sums are zero, and right.
  [[gnu::noinline]] bool is_zero(const LinearRow& row) const {
    const float* const x = static_cast<const float*>(row.given);
    __mmask16 any = 0;
    for (int64_t k = 0; k < call.inputs && any == 0; k += kLanes) {
      const Vector part = _mm512_maskz_loadu_ps(mask_of(call.inputs - k), x + k);
      any = _mm512_cmp_ps_mask(part, Level::zero(), _CMP_NEQ_UQ);
    }
    return any == 0;
  }
  [[gnu::noinline]] Vector summed_again(const LinearRow& row, int64_t n, int64_t outputs) const {
    const float* const x = static_cast<const float*>(row.given);
    Vector sum = Level::zero();
    for (int64_t k = 0; k < call.inputs; ++k) {
      sum = Level::fma(Level::broadcast(x[k]), SplitWeights::weights_of_input(call, n, outputs, k),
                       sum);
    }
    return sum;
  }

  const Linear& call;
  const LinearRow* const rows;
  const int64_t row_count, begin, end;
  int64_t x_stride = kTileRowBytes, input_begin = 0, input_end = 0;
  Ahead ahead;
  alignas(64) Sums sums[2];
  alignas(64) char weights[kStepsMax * 2 * kSplitParts * kPartTileBytes];
};

// Of those that begin with `first`, up to kSplitRowsAtOnce, how many lie at even distances.
inline int64_t even_rows(const Linear& call, int64_t first) {
  const auto x = [&](int64_t row) { return static_cast<const char*>(call.row[row].x); };
  const int64_t left = call.rows - first, blocks = (left + kSplitRowsAtOnce - 1) / kSplitRowsAtOnce;
  const int64_t most = (left + blocks - 1) / blocks;
  int64_t count = smaller(most, 2);
  while (count < most && x(first + count) - x(first + count - 1) == x(first + 1) - x(first)) {
    ++count;
  }
  return count;
}

void split_products(const Linear& call, int64_t begin, int64_t end) {
  for (int64_t first = 0, count = 0; first < call.rows; first += count) {
    count = even_rows(call, first);
    SplitBlock(call, first, count, begin, end).compute();
  }
}

constexpr SplitLinearKernels kSplitOfThisLevel = {&split_row, &split_products};

}  // namespace
}  // namespace djinn::kernels
