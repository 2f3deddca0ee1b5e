// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/slab_content.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
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

}  // namespace
}  // namespace djinn::exec
