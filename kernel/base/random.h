// SPDX-License-Identifier: Apache-2.0

// Random: a seeded stream for ids, jitter, samples of files (kernel/load) and tests. It is not for
// secrets, and not for drawing tokens (that is kernel/executor's Philox, by seed and offset).
#pragma once

#include <cstdint>

namespace djinn {

// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed) noexcept : state_(seed) {}

  [[nodiscard]] uint64_t next() noexcept {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound); bound > 0. The bias of the multiply-shift is below 2^-32 for bounds
  // under 2^32.
  [[nodiscard]] uint64_t below(uint64_t bound) noexcept {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }

 private:
  uint64_t state_;
};

}  // namespace djinn
