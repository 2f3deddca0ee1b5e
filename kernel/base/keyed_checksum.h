// SPDX-License-Identifier: Apache-2.0

// A checksum of memory that somebody might have written who should not have: who does not know the
// key cannot tell which bytes have the same. It is a polynomial over 2^61 - 1 whose coefficients
// are 1 and then the 32-bit words, at the two words of the key: two memories of n words that differ
// have one checksum for at most (n / 2^61)^2 of all keys. The powers of the key let a device take
// parts of the memory in any order.
//
// It hides nothing, and a key that was told proves nothing any more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace djinn {

using ChecksumKey = std::array<uint64_t, 2>;  // drawn from all words; of each 61 bits count
using Checksum = std::array<uint64_t, 2>;

class KeyedChecksum {
 public:
  explicit KeyedChecksum(const ChecksumKey& key) noexcept;

  // The next bytes, whole words of four in the host's order.
  void add(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] Checksum value() const noexcept;

 private:
  ChecksumKey key_;
  Checksum sum_{1, 1};
};

}  // namespace djinn
