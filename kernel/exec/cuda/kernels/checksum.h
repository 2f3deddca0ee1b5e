// SPDX-License-Identifier: Apache-2.0

// ChecksumParts: the keyed checksum of memory (kernel/base/keyed_checksum.h) where the memory is.
// Each block sums a part of the polynomial; who launched it adds them up.
#pragma once

#include <stdint.h>

#include "kernel/exec/cuda/kernels/element.h"

namespace djinn::cuda {

inline constexpr int32_t kChecksumThreads = 256;
inline constexpr int32_t kChecksumKeys = 2;
inline constexpr int32_t kChecksumSharedBytes = 8 * kChecksumKeys * (kChecksumThreads / kWarp);

// A key's powers, below 2^61 - 1: those of the words of a vector, and the one from a thread's
// vector to its next, which is the key to the power of 4 * kChecksumThreads * blocks.
struct ChecksumPowers {
  uint64_t of_word[4] = {};  // [i]: the key to the power of i
  uint64_t of_vector = 0;    // of 4
  uint64_t of_stride = 0;
};

// parts[b, i] is the sum, modulo 2^61 - 1 and below 2^62, of what the vectors of block b weigh by
// key i: those of its threads, every so-manieth. Vector j of n weighs the sum over its words w of
// w[i] * key^(3 - i), times key^(4 * (n - 1 - j)).
struct ChecksumParts {
  const void* memory = nullptr;  // at a multiple of 16 bytes
  uint64_t* parts = nullptr;     // [blocks, kChecksumKeys]
  int64_t vectors = 0;           // of 16 bytes
  ChecksumPowers powers[kChecksumKeys];
};

}  // namespace djinn::cuda
