// SPDX-License-Identifier: Apache-2.0

// Draw: a token for each row from its logits: the likeliest, or one drawn at (seed, offset).
#pragma once

#include <stdint.h>

#include "kernel/exec/cuda/kernels/element.h"

namespace djinn::cuda {

inline constexpr int32_t kDrawThreads = 1024;
inline constexpr int32_t kDrawTokensMax = 1 << 18 | 1 << 16;  // of a vocabulary
inline constexpr int32_t kNoToken = -1;

// Bytes of shared memory of a block: bins of a byte, a number for each warp, and a bit a token.
[[nodiscard]] constexpr int64_t draw_shared_bytes(int64_t tokens) {
  return 8 * (256 + kDrawThreads / kWarp) + (tokens + 31) / 32 * 4;
}

// How a row's token is chosen, in the memory of the device. As kernel/executor's SamplingRule.
struct DrawRule {
  uint64_t seed = 0;
  uint64_t offset = 0;           // of the row's first token; that of a token is its place more
  float temperature = 1;         // > 0
  float top_p = 1;               // (0, 1]; 1: off
  float min_p = 0;               // [0, 1); 0: off
  float repetition_penalty = 1;  // > 0; 1: off
  uint32_t top_k = 0;            // 0: off
  uint32_t greedy = 1;           // the greatest logit, the first of equals; but for the penalty
                                 // the fields above are unused, and NaN is the greatest
};

// drawn[m] = a token of row m, or kNoToken where one is to be drawn and a logit is NaN or infinite,
// or none is finite.
//
// In transformers' order: the penalty once for each token of the history, the temperature, top-k,
// top-p, min-p, softmax; then the token in whose share of the sum the uniform number falls, of 24
// bits, by Philox 4x32-10 (Salmon et al., 2011) at (seed, offset + lengths[m]). Of equal logits at
// top-p's end all stay, of which transformers keeps those that it sorted last. Likelihoods are
// counted in multiples of 2^-40 of the greatest, as integers, so their sums have no order.
struct Draw {
  const float* logits = nullptr;     // [rows, tokens]
  const DrawRule* rules = nullptr;   // [rows], of the device
  const int32_t* history = nullptr;  // [rows, ...], of the device; may be none without a penalty
  const int32_t* lengths = nullptr;  // [rows], of the device: tokens of the history
  int32_t* drawn = nullptr;          // [rows]
  int64_t logits_stride = 0;         // elements between rows
  int64_t history_stride = 0;
  int32_t rows = 0;
  int32_t tokens = 0;  // at most kDrawTokensMax
};

}  // namespace djinn::cuda
