// SPDX-License-Identifier: Apache-2.0

// The kernel of a checksum on the emulator, against the processor's.
#include <gtest/gtest.h>

#include <random>
#include <span>
#include <vector>

#include "kernel/exec/cuda/kernels/checksum_work.h"
#include "kernel/exec/cuda/kernels/kernels_for_tests.h"

namespace djinn::cuda {
namespace {

constexpr ChecksumKey kKey{0xfedc'ba98'7654'3210, 0x0fff'ffff'ffff'fffe};

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937 random(static_cast<uint32_t>(count));
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Checksum on_the_device(std::span<const std::byte> bytes, uint32_t multiprocessors,
                       emulator::Order order, const ChecksumKey& key = kKey) {
  std::vector<uint64_t> parts(size_t{checksum_parts(bytes.size(), multiprocessors)} * kChecksumKeys,
                              ~uint64_t{0});
  const Result<ChecksumWork> work =
      checksum_work(bytes.data(), bytes.size(), key, parts.data(), multiprocessors);
  EXPECT_TRUE(work.ok());
  emulate(work->launch, work->call, order);
  return checksum_of(parts, bytes.size(), key);
}

Checksum on_the_processor(std::span<const std::byte> bytes, const ChecksumKey& key = kKey) {
  KeyedChecksum sum(key);
  sum.add(bytes);
  return sum.value();
}

// One vector, less than a block, tails of blocks and grids, several rounds.
TEST(ChecksumTest, is_the_one_of_the_processor) {
  for (const size_t bytes : {16, 160, 4096, 4112, 100'000, 262'144 + 48}) {
    const std::vector<std::byte> memory = random_bytes(bytes);
    for (const uint32_t multiprocessors : {1u, 2u, 132u}) {
      for (const emulator::Order order : kOrders) {
        EXPECT_EQ(on_the_device(memory, multiprocessors, order), on_the_processor(memory))
            << bytes << " bytes, " << multiprocessors << " multiprocessors";
      }
    }
  }
}

// Numbers are greatest where all bits are set, and keys where they are the prime, or beyond.
TEST(ChecksumTest, no_number_of_it_overflows) {
  const std::vector<std::byte> memory(100'000, std::byte{0xff});
  constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
  for (const uint64_t key : {kPrime - 1, kPrime, kPrime + 1, ~uint64_t{0}, uint64_t{0}}) {
    EXPECT_EQ(on_the_device(memory, 1, emulator::Order::kAscending, {key, 1}),
              on_the_processor(memory, {key, 1}));
  }
}

TEST(ChecksumTest, each_bit_counts) {
  std::vector<std::byte> memory = random_bytes(8192);
  const Checksum before = on_the_device(memory, 1, emulator::Order::kAscending);
  for (const size_t at : {0, 15, 4096, 8191}) {
    memory[at] ^= std::byte{1};
    const Checksum after = on_the_device(memory, 1, emulator::Order::kAscending);
    EXPECT_NE(after[0], before[0]);
    EXPECT_NE(after[1], before[1]);
    memory[at] ^= std::byte{1};
  }
}

TEST(ChecksumTest, memory_that_is_no_multiple_of_16_bytes_is_refused) {
  const std::vector<std::byte> memory = random_bytes(64);
  uint64_t parts[2];
  EXPECT_FALSE(checksum_work(memory.data() + 4, 32, kKey, parts, 1).ok());
  EXPECT_FALSE(checksum_work(memory.data(), 40, kKey, parts, 1).ok());
  EXPECT_FALSE(checksum_work(memory.data(), 0, kKey, parts, 1).ok());
  EXPECT_FALSE(checksum_work(nullptr, 32, kKey, parts, 1).ok());
  EXPECT_FALSE(checksum_work(memory.data(), 32, kKey, nullptr, 1).ok());
}

}  // namespace
}  // namespace djinn::cuda
