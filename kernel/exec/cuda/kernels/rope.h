// SPDX-License-Identifier: Apache-2.0

// CacheRow, RopeAppend: where the keys and values of a row lie, and what a token step does to them:
// queries and keys are turned by the token's position, keys and values are appended.
#pragma once

#include <stdint.h>

#include "kernel/exec/cuda/kernels/element.h"

namespace djinn::cuda {

inline constexpr int32_t kRopeThreads = 128;

// The keys and values that a layer has of one row, in the memory of the device, so that a captured
// graph meets what moved or grew since. Elements of a token are dense, tokens follow each other.
struct CacheRow {
  void* key = nullptr;      // [heads, capacity, width]
  void* value = nullptr;    // [heads, capacity, width]
  int64_t head_stride = 0;  // elements between heads: capacity * width
};

// Of each query and key, with p = positions[m] and w = rotary / 2, two elements a, b become
//
//   a * cos[p, i] - b * sin[p, i],   b * cos[p, i] + a * sin[p, i]
//
// where a and b are elements i and i + w or, interleaved, 2 i and 2 i + 1 (Su et al., 2021); the
// elements behind `rotary` stay. Then key and value are copied to place lengths[m] of their heads.
// query_out may be query. Elements are of one type but for cos and sin.
//
// Precondition: lengths[m] is below the row's capacity, positions[m] below what cos and sin have.
struct RopeAppend {
  const void* query = nullptr;         // [rows, heads, width]
  const void* key = nullptr;           // [rows, cache_heads, width]
  const void* value = nullptr;         // [rows, cache_heads, width]
  void* query_out = nullptr;           // [rows, heads, width]
  const float* cos = nullptr;          // [positions, rotary / 2]; none: nothing is turned
  const float* sin = nullptr;          // likewise
  const CacheRow* cache = nullptr;     // [rows], of the device
  const int32_t* lengths = nullptr;    // [rows], tokens that the cache has
  const int32_t* positions = nullptr;  // [rows], or none: the lengths
  int64_t query_stride = 0;            // elements between rows
  int64_t key_stride = 0;
  int64_t value_stride = 0;
  int64_t query_out_stride = 0;
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t cache_heads = 0;
  int32_t width = 0;
  int32_t rotary = 0;  // even, at most width
  bool interleaved = false;
};

}  // namespace djinn::cuda
