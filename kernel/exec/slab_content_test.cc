// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/slab_content.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace djinn::exec {
namespace {

// Each byte of a slab names its writer, so what a run finds says whose it is.
TEST(SlabContentTest, a_run_finds_zeros_and_its_own_owners_bytes_whatever_ran_before) {
  constexpr uint64_t kBytes = 64;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](uint64_t bound) { return random() % bound; };
    std::vector<std::byte> slab(kBytes);
    SlabContent content;
    for (int run = 0; run < 300; ++run) {
      const auto owner = static_cast<uint8_t>(1 + draw(4));
      const uint64_t begin = draw(4) == 0 ? 0 : draw(kBytes),
                     end = begin + draw(kBytes - begin + 1);
      content.make_clean(slab, begin, end, owner);
      for (uint64_t i = begin; i < end; ++i) {
        ASSERT_TRUE(slab[i] == std::byte{0} || slab[i] == std::byte{owner})
            << "seed " << seed << ", run " << run << ", byte " << i;
      }
      for (uint64_t i = begin; i < end; ++i) {
        if (draw(3) != 0) slab[i] = std::byte{owner};
      }
    }
  }
}

TEST(SlabContentTest, an_owner_finds_its_own_bytes_again) {
  std::vector<std::byte> slab(32);
  SlabContent content;
  content.make_clean(slab, 0, 16, 1);
  std::ranges::fill(std::span(slab).first(16), std::byte{1});
  content.make_clean(slab, 16, 32, 2);
  content.make_clean(slab, 0, 16, 1);
  EXPECT_EQ(std::ranges::count(slab, std::byte{1}), 16);
  content.make_clean(slab, 8, 24, 1);
  EXPECT_EQ(std::ranges::count(slab, std::byte{1}), 16);
}

// Memory that its device alone may touch, as far as a slab asks.
class ElsewhereMemory final : public DeviceMemory {
 public:
  Outcome<void*> allocate(uint64_t) override { return Error{ErrorCode::kUnsupported, "a slab"}; }
  void release(void*) override {}
  void zero(void* memory, uint64_t bytes) override { zeroed.emplace_back(memory, bytes); }
  [[nodiscard]] uint64_t live_bytes() const override { return 0; }

  std::vector<std::pair<void*, uint64_t>> zeroed;
};

TEST(SlabContentTest, a_slab_of_a_device_is_cleaned_by_the_device) {
  const std::span<std::byte> slab(reinterpret_cast<std::byte*>(uintptr_t{4096}), 32);
  ElsewhereMemory memory;
  SlabContent content(&memory);
  content.make_clean(slab, 0, 16, 1);
  EXPECT_TRUE(memory.zeroed.empty()) << "it is of zeros";
  content.make_clean(slab, 8, 32, 2);
  const std::pair<void*, uint64_t> of_the_other(slab.data() + 8, 8);
  EXPECT_EQ(memory.zeroed, std::vector{of_the_other});
  content.forget();
  content.make_clean(slab, 0, 32, 3);
  EXPECT_EQ(memory.zeroed.size(), 1u) << "it is another one";
}

}  // namespace
}  // namespace djinn::exec
