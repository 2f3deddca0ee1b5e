// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/keyed_checksum.h"

#include <cstring>

#include "kernel/base/assert.h"

namespace djinn {
namespace {

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

// Gives value modulo the prime, but for 0, which may also be the prime itself.
constexpr uint64_t folded(uint64_t value) {
  return (value & kPrime) + (value >> 61);
}

// Below 2^61 + 2^32, so that the product of two stays below 2^123.
constexpr uint64_t times_plus(uint64_t sum, uint64_t key, uint32_t word) {
  const auto product = static_cast<unsigned __int128>(sum) * key;
  const auto low = static_cast<uint64_t>(product) & kPrime;
  const auto high = static_cast<uint64_t>(product >> 61);
  return folded(low + high) + word;
}

constexpr uint64_t canonical(uint64_t value) {
  const uint64_t once = folded(value);
  return once >= kPrime ? once - kPrime : once;
}

}  // namespace

KeyedChecksum::KeyedChecksum(const ChecksumKey& key) noexcept
    : key_{canonical(key[0]), canonical(key[1])} {}

void KeyedChecksum::add(std::span<const std::byte> bytes) noexcept {
  DJINN_ASSERT(bytes.size() % sizeof(uint32_t) == 0);
  uint64_t first = sum_[0], second = sum_[1];
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint32_t)) {
    uint32_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    first = times_plus(first, key_[0], word);
    second = times_plus(second, key_[1], word);
  }
  sum_ = {first, second};
}

Checksum KeyedChecksum::value() const noexcept {
  return {canonical(sum_[0]), canonical(sum_[1])};
}

}  // namespace djinn
