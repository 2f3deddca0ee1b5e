// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/keyed_checksum.h"

#include <gtest/gtest.h>

#include <vector>

namespace djinn {
namespace {

constexpr ChecksumKey kKey{0x0123'4567'89ab'cdef, 0xfedc'ba98'7654'3210};

Checksum sum_of(std::span<const uint32_t> words, const ChecksumKey& key = kKey) {
  KeyedChecksum sum(key);
  sum.add(std::as_bytes(words));
  return sum.value();
}

// The polynomial as it is written, with a division for each step.
uint64_t by_definition(std::span<const uint32_t> words, uint64_t key) {
  constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
  unsigned __int128 sum = 1;
  for (const uint32_t word : words) sum = (sum * (key % kPrime) + word) % kPrime;
  return static_cast<uint64_t>(sum);
}

TEST(keyed_checksum, is_the_polynomial_that_it_says) {
  const std::vector<uint32_t> words{1, 0, UINT32_MAX, 7, 0, 0, 0x8000'0000};
  constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
  for (const uint64_t key :
       {uint64_t{0}, uint64_t{1}, kPrime - 1, kPrime, kPrime + 1, UINT64_MAX, kKey[0], kKey[1]}) {
    for (size_t count = 0; count <= words.size(); ++count) {
      const std::span<const uint32_t> part(words.data(), count);
      EXPECT_EQ(sum_of(part, {key, ~key}),
                (Checksum{by_definition(part, key), by_definition(part, ~key)}))
          << key << " " << count;
    }
  }
}

TEST(keyed_checksum, every_bit_every_place_and_every_length_counts) {
  std::vector<uint32_t> words(64);
  const Checksum zero = sum_of(words);
  EXPECT_NE(sum_of({words.data(), 63}), zero);
  for (size_t i = 0; i < words.size(); ++i) {
    for (int bit = 0; bit < 32; ++bit) {
      words[i] ^= uint32_t{1} << bit;
      const Checksum changed = sum_of(words);
      EXPECT_NE(changed[0], zero[0]);
      EXPECT_NE(changed[1], zero[1]);
      words[i] = 0;
    }
  }
  words[3] = 9;
  const Checksum here = sum_of(words);
  std::swap(words[3], words[4]);
  EXPECT_NE(sum_of(words), here);
}

TEST(keyed_checksum, parts_in_turn_are_the_whole_and_another_key_is_another_sum) {
  const std::vector<uint32_t> words{5, 4, 3, 2, 1};
  KeyedChecksum sum(kKey);
  sum.add(std::as_bytes(std::span(words).first(2)));
  sum.add({});
  sum.add(std::as_bytes(std::span(words).last(3)));
  EXPECT_EQ(sum.value(), sum_of(words));
  EXPECT_NE(sum_of(words, {kKey[1], kKey[0]}), sum_of(words));
}

}  // namespace
}  // namespace djinn
