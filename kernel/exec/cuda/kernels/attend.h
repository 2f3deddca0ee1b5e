// SPDX-License-Identifier: Apache-2.0

// Attend: the queries of a token step over the keys and values of their rows. The tokens that a row
// sees are split, so that one long row has the whole device; what each split found is combined.
#pragma once

#include <stdint.h>

#include "kernel/exec/cuda/kernels/element.h"
#include "kernel/exec/cuda/kernels/rope.h"

namespace djinn::cuda {

inline constexpr int32_t kAttendThreads = 128;
inline constexpr int32_t kSplitTokens = 128;  // one for each thread
inline constexpr int32_t kHeadWidthMax = 512;
inline constexpr int32_t kHeadsAtOnce = 8;  // queries that share a reading of keys and values
inline constexpr int32_t kPartExtra = 4;    // floats of a part behind its sums

// Floats of the scratch memory that a call takes.
[[nodiscard]] constexpr int64_t attend_parts(int64_t rows, int64_t heads, int64_t splits,
                                             int64_t width) {
  return rows * heads * splits * (width + kPartExtra);
}

// Bytes of shared memory of a block of so many heads: for each a float for each token, two for each
// warp and the query; and for each thread 32 bytes of sums.
[[nodiscard]] constexpr int64_t attend_shared_bytes(int64_t heads, int64_t width) {
  return 4 * heads * (kSplitTokens + 2 * (kAttendThreads / kWarp) + width) + 32 * kAttendThreads;
}

// out[m, h] = sum over tokens j of softmax_j(scale * (query[m, h] . key[j])) * value[j]
//
// for the tokens j of row m in [firsts[m], lengths[m] + appended), with the keys and values of head
// h / (heads / cache_heads), but for those that its mask hides; zeros where there is none. Sums are
// float32.
//
// Splits are counted from the first token that the row sees, so what lies before it, as padding
// does, changes nothing. In a split a score is summed over the elements in order; a value over its
// tokens, each of some threads every so-manieth, and then over these threads in order (attend.cu);
// splits are combined in order (Milakov and Gimelshein, 2018).
struct Attend {
  const void* query = nullptr;            // [rows, heads, width], at a multiple of 16 bytes
  void* out = nullptr;                    // [rows, heads, width]
  const CacheRow* cache = nullptr;        // [rows], of the device; all at multiples of 16 bytes
  const int32_t* lengths = nullptr;       // [rows], of the device
  const int32_t* firsts = nullptr;        // [rows], of the device; none: zeros
  const uint8_t* const* masks = nullptr;  // [rows], of the device, each a byte a token, 0: hidden;
                                          // none: nothing is
  float* parts = nullptr;                 // attend_parts() floats, at a multiple of 16 bytes
  int64_t query_stride = 0;               // elements between rows, a multiple of 16 bytes
  int64_t out_stride = 0;
  int64_t mask_step = 0;  // bytes between tokens of a mask
  int32_t rows = 0;
  int32_t heads = 0;  // a multiple of cache_heads
  int32_t cache_heads = 0;
  int32_t width = 0;     // a multiple of 16 bytes, at most kHeadWidthMax
  int32_t splits = 0;    // of the row that sees most tokens, at least
  int32_t appended = 0;  // tokens that the cache has beyond `lengths`: 0 or 1
  float scale = 1;
};

}  // namespace djinn::cuda
