// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/abi/widen.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace djinn {
namespace {

TEST(Widen, every_half_is_the_float_that_the_compiler_makes_of_it) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
    const float expected = static_cast<float>(half);
    const float made = half_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(made)) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(made), std::bit_cast<uint32_t>(expected)) << bits;
    }
  }
}

TEST(Widen, a_bfloat16_is_the_upper_half_of_a_float) {
  const std::array<uint16_t, 3> narrow{0x3f80, 0xc000, 0x0001};
  std::array<float, 3> wide{};
  widen(DType::kBFloat16, std::as_bytes(std::span(narrow)), wide.data());
  EXPECT_EQ(wide[0], 1.0f);
  EXPECT_EQ(wide[1], -2.0f);
  EXPECT_EQ(std::bit_cast<uint32_t>(wide[2]), 0x00010000u);
}

}  // namespace
}  // namespace djinn
