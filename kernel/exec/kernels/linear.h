// SPDX-License-Identifier: Apache-2.0

// Linear: rows times a matrix of weights. The few rows of a token step read the weights once for
// all of them, as they lie; more rows, a prompt's or an encoder's, read a tile of them that stays
// in the second cache.
//
// invariant (the row contract): what a row gets depends on that row, the weights, the bias and the
// instruction level alone: neither on the other rows, nor on how the outputs are shared out among
// threads. Each output is summed over K in one fixed order: one where the outputs are first, one
// where the inputs are, and one of rows that are split. (Of several that are no numbers, which one
// comes out may differ.)
#pragma once

#include <stdint.h>

#include "kernel/base/int8_rows.h"
#include "kernel/exec/kernels/element.h"

namespace djinn::kernels {

// One of them: where its numbers are, side by side. Rows may be of several runs.
struct LinearRow {
  const void* x = nullptr;      // [inputs]
  void* y = nullptr;            // [outputs]
  float* parts = nullptr;       // inputs first: [chunks_of(inputs), padded_outputs(outputs)]
  int64_t parts_stride = 0;     // of the chunks
  const void* given = nullptr;  // split: what x was made of
};

// y[n] = sum over k of x[k] * w[n, k], plus bias[n], for each row. All have one element type; sums
// are float32, rounded once. Strides are elements. Nothing overlaps; alignment is any.
struct Linear {
  const LinearRow* row = nullptr;  // [rows]
  int64_t rows = 0;
  const void* weight = nullptr;  // outputs first: [outputs, inputs]; else [inputs, outputs]
  int64_t weight_stride = 0;     // of its first dimension; the second's is 1
  const void* bias = nullptr;    // [outputs], or none
  int64_t inputs = 0;
  int64_t outputs = 0;
  int64_t weight_begin = 0;  // outputs first: the output that the first row of weights gives
  void* scratch = nullptr;   // packed: [packed_floats(inputs)], of the thread
};

// Where the inputs are first, memory is one stream for each thread if each reads whole rows of
// weights. So chunks of them are summed by themselves, into parts, and then the parts, in order.
inline constexpr int64_t kChunkInputs = 64;
[[nodiscard]] constexpr int64_t chunks_of(int64_t inputs) {
  return (inputs + kChunkInputs - 1) / kChunkInputs;
}
// A multiple of the elements of a cache line.
[[nodiscard]] constexpr int64_t padded_outputs(int64_t outputs) {
  return (outputs + 31) / 32 * 32;
}

// Outputs first, and bf16: a share of them is best a multiple of what a tile has (AMX).
inline constexpr int64_t kOutputsAtOnce = 16;
// How many at once a thread computes of a block of rows, which it packs for them. Of several rows a
// share of the outputs is best a multiple.
inline constexpr int64_t kTileOutputs = 64;
// At most, where rows are short enough to be packed whole.
inline constexpr int64_t kTileOutputsMax = 256;

// Inputs first, and many rows: LinearRow::x is float32, whatever y is, and a thread has the weights
// of so many outputs, or of a part of these, side by side.
inline constexpr int64_t kPackedOutputs = 64;
// What they take, in floats.
[[nodiscard]] constexpr int64_t packed_floats(int64_t inputs) {
  return kPackedOutputs * inputs;
}

// Computes a share of a call. Any thread; threads may share a call.
using LinearKernel = void (*)(const Linear& call, int64_t begin, int64_t end);

// --- weights in int8 (kernel/base/int8_rows.h)
//
// Where the outputs are first, integers are multiplied: the rows are made int8, too, each block of
// 32 with a scale of its own, by quantise(). The products of a block are summed exactly, and the
// sums of blocks, times both scales, in float32. Where the inputs are first, weights are widened
// and multiplied with the rows as they are. In a call weight_stride is bytes.

// What quantise() makes of a row: values and then, for each block, its scale, a float, as many as
// int8_scales(inputs), with zeros behind the last. In bytes, of which it begins at a multiple of
// kLineBytes:
[[nodiscard]] constexpr int64_t quantised_scales(int64_t inputs) {
  return int8_scales_offset(inputs);
}
[[nodiscard]] constexpr int64_t quantised_bytes(int64_t inputs) {
  return quantised_scales(inputs) + 4 * int8_scales(inputs);
}

// Of one row of `inputs` elements. A block that is not all finite gets a scale of NaN, and one
// whose largest magnitude is below 1e-30 zeros.
using QuantiseKernel = void (*)(const void* x, int64_t inputs, void* to);
// Widens one row of weights to `columns` elements.
using WidenKernel = void (*)(const void* row, int64_t columns, void* to);

struct Int8LinearKernels {                // by Element
  LinearKernel outputs_first[kElements];  // LinearRow::x is what quantise() made
  LinearKernel inputs_first[kElements];   // LinearKernels::sum_chunks is behind it
  LinearKernel packed[kElements];         // begin % kInt8Block == 0
  QuantiseKernel quantise[kElements];
  WidenKernel widen[kElements];
};

// --- float32 as parts of bf16
//
// Some levels multiply bf16 much faster than float32, of which each number is the sum of three. So
// rows of more tokens than a step has are split once, and weights, whose outputs are first, a few
// outputs at a time. Sums are as near to the exact ones as those of float32 are, but their order is
// another: it is for who calls to choose one for all rows of a kind.

inline constexpr int kSplitParts = 3;
inline constexpr int64_t kSplitInputs = 32;
// What a row takes: of each 32 inputs the parts, of 64 bytes each, in an odd number of these, so
// that rows do not meet in the ways of a cache.
[[nodiscard]] constexpr int64_t split_bytes(int64_t inputs) {
  constexpr int64_t kPartBytes = 2 * kSplitInputs;
  return ((inputs + kSplitInputs - 1) / kSplitInputs * kSplitParts | 1) * kPartBytes;
}

// Of one row of `inputs` float32.
using SplitKernel = void (*)(const void* x, int64_t inputs, void* to);

// LinearRow::x is what split() made. No scratch, and begin and end are any, but best multiples of
// kSplitOutputs. Where a level has none they are null.
struct SplitLinearKernels {
  SplitKernel split = nullptr;
  LinearKernel outputs_first = nullptr;
};
inline constexpr int64_t kSplitOutputs = 32;

struct LinearKernels {                    // by Element
  LinearKernel outputs_first[kElements];  // the outputs [begin, end)
  LinearKernel inputs_first[kElements];   // the parts of the chunks [begin, end)
  LinearKernel sum_chunks[kElements];     // behind that, the outputs [begin, end); begin % 16 == 0
  LinearKernel packed[kElements];         // the same bits, of many rows: the outputs [begin, end)
  Int8LinearKernels int8;
  SplitLinearKernels split;
};

}  // namespace djinn::kernels
