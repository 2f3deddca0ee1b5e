// SPDX-License-Identifier: Apache-2.0

// Attend: a query of one row, head and token over the keys and values of its row, as they lie in
// the buffers of a sequence group. Heads of queries that share keys go together.
//
// invariant (the row contract): what a query gets depends on the keys that it sees, in order, and
// on the instruction level alone: keys before the first that it sees, as padding has them, change
// nothing, and neither do other heads, tokens and rows.
#pragma once

#include <stdint.h>

#include "kernel/exec/kernels/element.h"

namespace djinn::kernels {

inline constexpr int64_t kHeadWidthMax = 512;

// out = sum over j of softmax_j(scale * (query . key[j]) + bias[j]) * value[j], for the keys j that
// the mask lets through; zeros where it lets none through, or all scores are -inf. Elements of a
// vector are dense; strides are elements. Sums are float32, in blocks whose greatest score is known
// (Milakov and Gimelshein, 2018).
struct Attend {
  const void* query = nullptr;  // [heads, width]
  int64_t query_stride = 0;
  const void* key = nullptr;  // [keys, width]
  int64_t key_stride = 0;
  const void* value = nullptr;  // [keys, width]
  int64_t value_stride = 0;
  const uint8_t* mask = nullptr;  // [keys], 0: not seen; or none: all are seen
  int64_t mask_stride = 0;
  void* out = nullptr;  // [heads, width]
  int64_t out_stride = 0;
  int64_t heads = 0;  // that share keys and values
  int64_t keys = 0;
  int64_t width = 0;  // at most kHeadWidthMax
  float scale = 1;
};
using AttendKernel = void (*)(const Attend& call);

// Many tokens of one row and head at once: the same function of each, with other bits than above.
// So a token of a prompt has one's bits or the other's, by how many the call has, padding included.
// All scores of a token are kept until their greatest is known.
struct AttendTokens {
  const void* query = nullptr;  // [tokens, width]
  int64_t query_stride = 0;
  const void* key = nullptr;  // [keys, width]
  int64_t key_stride = 0;
  const void* value = nullptr;  // [keys, width]
  int64_t value_stride = 0;
  const uint8_t* mask = nullptr;  // [tokens, keys], those of a token side by side; or none
  int64_t mask_stride = 0;        // between tokens
  void* out = nullptr;            // [tokens, width]
  int64_t out_stride = 0;
  int64_t tokens = 0;  // at least 1
  int64_t keys = 0;
  int64_t width = 0;  // at most kHeadWidthMax
  float scale = 1;
  float* scratch = nullptr;  // attend_scratch(keys, width)
};
using AttendTokensKernel = void (*)(const AttendTokens& call);

// Keys and elements of a vector are taken in multiples of as many, or fewer.
inline constexpr int64_t kAttendColumns = 32;
constexpr int64_t in_attend_columns(int64_t count) {
  return (count + kAttendColumns - 1) / kAttendColumns * kAttendColumns;
}
// Tokens for which keys and values are read once,
inline constexpr int64_t kAttendTokens = 32;
// and as many of those, or of weights, at a time as stay in the first cache.
inline constexpr int64_t kAttendKeys = 128;

// How many floats that takes.
constexpr int64_t attend_scratch(int64_t keys, int64_t width) {
  const int64_t all_width = in_attend_columns(width);
  return in_attend_columns(keys) * kAttendTokens + (kAttendKeys + 2 * kAttendTokens) * all_width;
}

struct AttendKernels {
  AttendKernel attend[kElements];  // by Element
  AttendTokensKernel tokens[kElements];
};

}  // namespace djinn::kernels
