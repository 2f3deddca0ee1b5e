// SPDX-License-Identifier: Apache-2.0

// The kernels of a Turn and of a Gate on the emulator, against the same in double.
#include "kernel/exec/cuda/kernels/turn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernel/exec/cuda/kernels/kernels_for_tests.h"

namespace djinn::cuda {
namespace {

class TurnTest : public ::testing::TestWithParam<Element> {};

// [2, 3, 5, 34], tokens before heads, as projections give them; of cosines and sines, tokens alone.
TEST_P(TurnTest, each_vector_is_turned_by_its_token_s_angles) {
  constexpr int64_t kRows = 2, kHeads = 3, kTokens = 5;
  constexpr int32_t kWidth = 34;
  Array x(GetParam(), kRows * kTokens, kHeads * kWidth),
      y(GetParam(), kRows * kTokens, kHeads * kWidth);
  Array cos(GetParam(), kTokens, kWidth), sin(GetParam(), kTokens, kWidth);
  std::mt19937 random(3);
  for (Array* const one : {&x, &cos, &sin}) one->fill(random);
  for (const bool interleaved : {false, true}) {
    Turn call;
    call.x = x.at(0, 0);
    call.cos = cos.at(0, 0);
    call.sin = sin.at(0, 0);
    call.y = y.at(0, 0);
    call.x_steps = call.y_steps = {kTokens * x.stride(), kWidth, x.stride()};
    call.cos_steps = call.sin_steps = {0, 0, cos.stride()};
    call.rows = kRows;
    call.heads = kHeads;
    call.tokens = kTokens;
    call.width = kWidth;
    call.interleaved = interleaved;
    launch(call, emulator::Order::kAscending, GetParam());
    for (int64_t r = 0; r < kRows * kTokens; ++r) {
      for (int64_t c = 0; c < kHeads * kWidth; ++c) {
        const int64_t d = c % kWidth, half = kWidth / 2;
        const bool is_first = interleaved ? d % 2 == 0 : d < half;
        const int64_t other = c + (is_first ? 1 : -1) * (interleaved ? 1 : half);
        const double by = (is_first ? -1 : 1) * x.get(r, other) * sin.get(r % kTokens, d);
        const double exact = x.get(r, c) * cos.get(r % kTokens, d) + by;
        const double bound = std::abs(exact) * ulp_of(GetParam()) + std::abs(by) * 1e-7 + 1e-7;
        ASSERT_NEAR(y.get(r, c), exact, bound) << r << ", " << c;
      }
    }
  }
}

TEST_P(TurnTest, a_gate_is_rounded_once) {
  constexpr int64_t kCount = 300;
  Array x(GetParam(), 1, kCount), factor(GetParam(), 1, kCount), y(GetParam(), 1, kCount);
  std::mt19937 random(4);
  for (Array* const one : {&x, &factor}) one->fill(random, 3);
  for (const bool has_factor : {false, true}) {
    Gate call;
    call.x = x.at(0, 0);
    call.factor = has_factor ? factor.at(0, 0) : nullptr;
    call.y = y.at(0, 0);
    call.count = kCount;
    call.activation = Activation::kSilu;
    launch(call, emulator::Order::kAscending, GetParam());
    for (int64_t i = 0; i < kCount; ++i) {
      const double silu = x.get(0, i) / (1 + std::exp(-x.get(0, i)));
      const double exact = silu * (has_factor ? factor.get(0, i) : 1);
      const double bound = std::abs(exact) * (ulp_of(GetParam()) + 1e-6) + 1e-7;
      ASSERT_NEAR(y.get(0, i), exact, bound) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, TurnTest, ::testing::ValuesIn(kAllElements),
                         [](const auto& of) { return name_of(of.param); });

TEST(TurnLaunch, what_no_kernel_takes_is_refused) {
  using ::testing::HasSubstr;
  Turn turn;
  turn.rows = turn.heads = turn.tokens = 1;
  turn.width = 3;
  EXPECT_THAT(launch_of(turn, Element::kFloat32).error().message, HasSubstr("even"));
  turn.width = 4;
  EXPECT_THAT(launch_of(turn, Element::kFloat32).error().message, HasSubstr("missing"));
  EXPECT_THAT(launch_of(Gate(), Element::kFloat32).error().message, HasSubstr("0 elements"));
  AttendRows rows;
  EXPECT_THAT(launch_of(rows).error().message, HasSubstr("0 rows"));
  rows.count = 1;
  EXPECT_THAT(launch_of(rows).error().message, HasSubstr("0 tokens"));
}

}  // namespace
}  // namespace djinn::cuda
