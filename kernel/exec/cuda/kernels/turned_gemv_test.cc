// SPDX-License-Identifier: Apache-2.0

// The kernels of a TurnedGemv on the emulator: against the same sum in double, and against
// themselves, with other rows beside and in the other order.
#include "kernel/exec/cuda/kernels/turned_gemv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernel/exec/cuda/kernels/kernels_for_tests.h"

namespace djinn::cuda {
namespace {

using emulator::Order;

struct TurnedShape {
  int64_t inputs, outputs;
};
// Fewer inputs than slots, and a number of them that no slot fills; a vector of outputs, a block
// and a part of one, GPT-2's.
constexpr TurnedShape kTurnedShapes[] = {{5, 8}, {33, 72}, {64, 192}, {768, 64}};

class TurnedProblem {
 public:
  TurnedProblem(Element element, TurnedShape shape)
      : element_(element),
        shape_(shape),
        x_(element, kGemvRows, shape.inputs),
        weight_(element, shape.inputs, shape.outputs),
        bias_(element, 1, shape.outputs) {
    std::mt19937 random(static_cast<uint32_t>(shape.inputs));
    x_.fill(random);
    weight_.fill(random, 0.1f);
    bias_.fill(random);
  }

  TurnedGemv call(int64_t begin, int64_t end, Array& y) {
    TurnedGemv call;
    call.weight = weight_.at(0, 0);
    call.bias = bias_.at(0, 0);
    call.x = x_.at(begin, 0);
    call.y = y.at(0, 0);
    call.weight_stride = weight_.stride();
    call.x_stride = x_.stride();
    call.y_stride = y.stride();
    call.inputs = shape_.inputs;
    call.outputs = shape_.outputs;
    call.rows = static_cast<int32_t>(end - begin);
    return call;
  }
  Array run(int64_t begin, int64_t end, Order order = Order::kAscending) {
    Array y(element_, end - begin, shape_.outputs);
    launch(call(begin, end, y), order, element_);
    return y;
  }
  void expect_exact(const Array& found) const {
    for (int64_t m = 0; m < kGemvRows; ++m) {
      for (int64_t n = 0; n < shape_.outputs; ++n) {
        double sum = bias_.get(0, n), size = std::abs(sum);
        for (int64_t k = 0; k < shape_.inputs; ++k) {
          const double product = x_.get(m, k) * weight_.get(k, n);
          sum += product;
          size += std::abs(product);
        }
        const double bound = size * 2e-6 + std::abs(sum) * ulp_of(element_);
        ASSERT_NEAR(found.get(m, n), sum, bound) << "row " << m << ", output " << n;
      }
    }
  }

 private:
  Element element_;
  TurnedShape shape_;
  Array x_, weight_, bias_;
};

class TurnedGemvTest : public ::testing::TestWithParam<Element> {};

TEST_P(TurnedGemvTest, is_the_sum_over_its_inputs) {
  for (const TurnedShape& shape : kTurnedShapes) {
    TurnedProblem problem(GetParam(), shape);
    problem.expect_exact(problem.run(0, kGemvRows));
  }
}

// The row contract.
TEST_P(TurnedGemvTest, a_row_is_the_same_alone_and_among_others) {
  for (const TurnedShape& shape : kTurnedShapes) {
    TurnedProblem problem(GetParam(), shape);
    const Array all = problem.run(0, kGemvRows);
    EXPECT_EQ(problem.run(0, kGemvRows, Order::kDescending), all);
    for (int64_t m = 0; m < kGemvRows; ++m) EXPECT_EQ(problem.run(m, m + 1).row(0), all.row(m));
    const Array three = problem.run(2, 5);
    for (int64_t m = 0; m < 3; ++m) EXPECT_EQ(three.row(m), all.row(m + 2));
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, TurnedGemvTest, ::testing::ValuesIn(kAllElements),
                         [](const auto& of) { return name_of(of.param); });

TEST(TurnedGemvLaunch, what_no_kernel_takes_is_refused) {
  TurnedProblem problem(Element::kBFloat16, kTurnedShapes[1]);
  Array y(Element::kBFloat16, kGemvRows, kTurnedShapes[1].outputs);
  const TurnedGemv good = problem.call(0, kGemvRows, y);
  ASSERT_TRUE(launch_of(good, Element::kBFloat16).ok());
  const auto refusal = [&](const auto& spoil) {
    TurnedGemv call = good;
    spoil(call);
    const Result<Launch> found = launch_of(call, Element::kBFloat16);
    return found.ok() ? "" : found.error().message;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal([](TurnedGemv& call) { call.rows = 9; }), HasSubstr("9 rows"));
  EXPECT_THAT(refusal([](TurnedGemv& call) { call.outputs = 12; }), HasSubstr("multiple of 8"));
  EXPECT_THAT(refusal([](TurnedGemv& call) { ++call.weight_stride; }), HasSubstr("16 bytes"));
  EXPECT_THAT(refusal([](TurnedGemv& call) { call.x = nullptr; }), HasSubstr("missing"));
}

}  // namespace
}  // namespace djinn::cuda
