// SPDX-License-Identifier: Apache-2.0

// AttendRows: what an Attend reads of its rows in the memory of the device, made there from a
// layer's keys and values as a graph has them, so that a launch brings it along.
#pragma once

#include <stdint.h>

#include "kernel/exec/cuda/kernels/attend.h"

namespace djinn::cuda {

// Row m of the Attend is token (begin + m) % tokens of row (begin + m) / tokens of a graph's query,
// [rows, heads, tokens, width], over keys and values [rows, cache heads, keys, width]. It sees all
// keys or, causal, those up to its own number; of these, with a mask, the ones whose byte is not 0,
// and its first is the first of these: so what lies before that changes nothing.
struct AttendRows {
  const void* key = nullptr;
  const void* value = nullptr;
  const uint8_t* mask = nullptr;    // [rows, tokens, keys], or none
  CacheRow* cache = nullptr;        // [count]
  const uint8_t** masks = nullptr;  // [count]; with a mask
  int32_t* lengths = nullptr;       // [count]
  int32_t* firsts = nullptr;        // [count]
  int64_t row_bytes = 0;            // between rows of keys, and so of values
  int64_t head_stride = 0;          // elements
  int64_t mask_row = 0;             // bytes between neighbours
  int64_t mask_token = 0;
  int64_t mask_key = 0;
  int64_t begin = 0;
  int64_t tokens = 0;
  int32_t count = 0;
  int32_t keys = 0;
  bool causal = false;
};

}  // namespace djinn::cuda
