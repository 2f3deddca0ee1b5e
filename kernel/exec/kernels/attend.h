// SPDX-License-Identifier: Apache-2.0

// Attend: queries of one row over its keys and values, as they lie in the buffers of a sequence
// group: those of one token, by heads that share keys, or those of one head, by tokens.
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
// are seen; zeros where none is, or all scores are -inf. A sink is a score in the softmax that has
// no value. Elements of a vector are dense; strides are elements. Sums are float32.
struct Attend {
  const void* query = nullptr;  // [queries, width]
  int64_t query_stride = 0;
  bool query_is_float32 = false;  // whatever keys, values and results are
  const void* key = nullptr;      // [keys, width]
  int64_t key_stride = 0;
  const void* value = nullptr;  // [keys, width]
  int64_t value_stride = 0;
  bool values_are_finite = false;  // asked for by `tokens`: AttendKernels::are_finite
  const uint8_t* mask = nullptr;   // [queries, keys], 0: not seen; or none: all are seen
  int64_t mask_stride = 0;         // between queries
  int64_t mask_step = 0;           // between keys
  const float* bias = nullptr;     // [queries, keys], -inf: not seen; or none
  int64_t bias_stride = 0;         // between queries; keys are side by side
  const float* sinks = nullptr;    // [queries]; or none
  int64_t sink_stride = 0;
  void* out = nullptr;  // [queries, width]
  int64_t out_stride = 0;
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t width = 0;  // at most kHeadWidthMax
  float scale = 1;
  float* scratch = nullptr;  // asked for by `tokens`: attend_scratch(keys, width)
};
using AttendKernel = void (*)(const Attend& call);

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
  // Heads of a token, which see the same keys: mask and bias are of the first query. In blocks of
  // keys whose greatest score is known (Milakov and Gimelshein, 2018).
  AttendKernel heads[kElements];  // by Element
  // Tokens of a head: the same function of each, with other bits than above. So a token of a prompt
  // has one's bits or the other's, by how many the call has, padding included. All scores of a
  // token are kept until their greatest is known; mask_step is 1.
  AttendKernel tokens[kElements];
  // Whether no value of the call is infinite or no number. What the tokens do not see counts for
  // nothing either way, and takes longer to leave out where one is.
  bool (*are_finite[kElements])(const Attend& call);
};

}  // namespace djinn::kernels
