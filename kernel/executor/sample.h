// SPDX-License-Identifier: Apache-2.0

// Sampling one token from one row of logits. Randomness has no hidden state: a draw is a function
// of (seed, offset), Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC'11).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernel/base/result.h"

namespace djinn::exec {

struct SamplingRule {
  bool greedy = true;  // argmax, the lowest id on ties; the fields below but the penalty unused
  float temperature = 1.0f;         // > 0
  uint32_t top_k = 0;               // 0: off
  float top_p = 1.0f;               // (0, 1]; 1: off
  float min_p = 0.0f;               // [0, 1); 0: off
  float repetition_penalty = 1.0f;  // > 0; 1: off
  uint64_t seed = 0;
};

// Errors: kInvalidArgument with the field's name and range.
Status check(const SamplingRule& rule);

// Processors apply in transformers' order (generation/utils.py, _get_logits_processor of 5.17):
// repetition penalty over history, temperature, top-k, top-p, min-p, softmax, draw. logits is
// scratch and is overwritten. Greedy is torch.argmax, also of a row without one finite logit. From
// such a row, or one with NaN, nothing can be drawn: kInvalidArgument.
Result<int32_t> sample(std::span<float> logits, std::span<const int32_t> history,
                       const SamplingRule& rule, uint64_t offset);

// The block function: ten rounds.
std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The block at (seed, offset).
std::array<uint32_t, 4> philox_block(uint64_t seed, uint64_t offset);

// Uniform in [0, 1) with 24 bits, the highest of the block's first word.
float philox_uniform(uint64_t seed, uint64_t offset);

// The index in whose share of [0, 1) uniform falls; weights are not negative and need not sum to 1.
// The last possible one against rounding.
int64_t invert(std::span<const float> weights, float uniform);
int64_t invert(std::span<const double> weights, float uniform);

}  // namespace djinn::exec
