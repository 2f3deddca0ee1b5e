// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>

#include "kernel/exec/guarded_memory_fuzz.h"

namespace djinn::exec {
namespace {

constexpr std::byte kPoison{0xc3};

class GuardedMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override { memory.reset(kPoison); }

  GuardedMemory memory{1 << 20};
};

TEST_F(GuardedMemoryTest, a_block_is_poisoned_and_aligned) {
  const std::span<std::byte> block = memory.place(100, 64);
  ASSERT_EQ(block.size(), 100u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % 64, 0u);
  EXPECT_EQ(std::count(block.begin(), block.end(), kPoison), 100);
}

TEST_F(GuardedMemoryTest, reading_beyond_a_block_ends_the_process) {
  const std::span<std::byte> block = memory.place(8, 8);
  volatile const std::byte* const beyond = block.data() + block.size();
  EXPECT_DEATH((void)*beyond, "");
}

TEST_F(GuardedMemoryTest, a_released_block_cannot_be_read) {
  GuardedSink sink(memory);
  auto* const block = static_cast<volatile std::byte*>(sink.allocate(64));
  block[0] = std::byte{1};
  sink.released(const_cast<std::byte*>(block));
  EXPECT_DEATH((void)block[0], "");
}

TEST_F(GuardedMemoryTest, a_byte_written_beside_a_block_is_seen) {
  const std::span<std::byte> block = memory.place(60, 64);
  std::fill(block.begin(), block.end(), std::byte{1});
  EXPECT_TRUE(memory.is_intact());
  block.data()[60] = std::byte{1};
  EXPECT_FALSE(memory.is_intact());
  memory.release(block.data());
  EXPECT_FALSE(memory.is_intact());
}

TEST_F(GuardedMemoryTest, blocks_lie_at_the_same_places_after_a_reset) {
  const std::byte* const first = memory.place(5000, 64).data();
  const std::byte* const second = memory.place(8, 8).data();
  memory.reset(std::byte{0});
  EXPECT_EQ(memory.place(5000, 64).data(), first);
  EXPECT_EQ(memory.place(8, 8).data(), second);
}

TEST_F(GuardedMemoryTest, what_has_no_room_is_refused) {
  EXPECT_TRUE(memory.place(2 << 20, 64).empty());
  GuardedSink sink(memory);
  EXPECT_THROW(sink.allocate(2 << 20), std::bad_alloc);
}

}  // namespace
}  // namespace djinn::exec
