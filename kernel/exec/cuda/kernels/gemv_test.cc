// SPDX-License-Identifier: Apache-2.0

// The kernels of a Gemv on the emulator: against the same sum in double, and against themselves,
// with other rows beside, on other devices and in the other order.
#include "kernel/exec/cuda/kernels/gemv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "kernel/exec/cuda/kernels/kernels_for_tests.h"

namespace djinn::cuda {
namespace {

using emulator::Order;

struct GemvShape {
  int64_t inputs = 0;
  std::vector<int64_t> outputs;  // of each weight
  bool gated = false;
  Activation activation = Activation::kNone;
  bool has_residual = false;
  bool y_is_float32 = false;
};

double activated_exactly(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return x * std::erfc(-x / std::sqrt(2.0)) / 2;
    case Activation::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return std::max(x, 0.0);
  }
  return NAN;
}

// A call of kGemvRows rows, of which any may be computed.
class GemvProblem {
 public:
  GemvProblem(Element element, GemvShape shape)
      : element_(element),
        shape_(std::move(shape)),
        x_(element, kGemvRows, shape_.inputs),
        residual_(element, kGemvRows, shape_.outputs[0]) {
    std::mt19937 random(static_cast<uint32_t>(shape_.inputs * 31 + shape_.outputs[0]));
    x_.fill(random);
    residual_.fill(random);
    for (const int64_t outputs : shape_.outputs) {
      weights_.emplace_back(element, outputs, shape_.inputs, 0).fill(random, 0.1f);
      biases_.emplace_back(element, 1, outputs).fill(random);
    }
  }

  // Of the rows [begin, end): what each weight gives.
  std::vector<Array> run(int64_t begin, int64_t end, uint32_t multiprocessors = 132,
                         Order order = Order::kAscending) {
    std::vector<Array> found;
    const Element of_y = shape_.y_is_float32 ? Element::kFloat32 : element_;
    for (const int64_t outputs : shape_.outputs) found.emplace_back(of_y, end - begin, outputs);
    launch(call(begin, end, found), order, element_, multiprocessors);
    return found;
  }

  Gemv call(int64_t begin, int64_t end, std::vector<Array>& y) {
    Gemv call;
    for (size_t i = 0; i < y.size(); ++i) {
      // One without a bias, where there are several.
      const void* const bias = i == 1 && !shape_.gated ? nullptr : biases_[i].at(0, 0);
      call.weights[i] = {weights_[i].at(0, 0), bias, y[i].at(0, 0), y[i].stride(),
                         shape_.outputs[i]};
    }
    call.x = x_.at(begin, 0);
    call.x_stride = x_.stride();
    if (shape_.has_residual) call.residual = residual_.at(begin, 0);
    call.residual_stride = residual_.stride();
    call.inputs = shape_.inputs;
    call.rows = static_cast<int32_t>(end - begin);
    call.count = static_cast<int32_t>(y.size());
    call.activation = shape_.activation;
    call.gated = shape_.gated;
    call.y_is_float32 = shape_.y_is_float32;
    return call;
  }

  // The result, and by how much float32 may miss it.
  [[nodiscard]] std::pair<double, double> exact(size_t weight, int64_t row, int64_t output) const {
    auto [value, error] = sum(weight, row, output);
    value = activated_exactly(shape_.activation, value);
    if (shape_.gated) {
      const auto [factor, its_error] = sum(1, row, output);
      error = 1.2 * error * std::abs(factor) + std::abs(value) * its_error;
      value *= factor;
    }
    error = 1.2 * error + 4e-7 * std::abs(value);
    if (shape_.has_residual) value += residual_.get(row, output);
    const Element of_y = shape_.y_is_float32 ? Element::kFloat32 : element_;
    return {value, error + std::abs(value) * ulp_of(of_y) + 1e-6};
  }

  [[nodiscard]] const GemvShape& shape() const { return shape_; }
  // Where something is computed.
  [[nodiscard]] size_t results() const { return shape_.gated ? 1 : shape_.outputs.size(); }

 private:
  [[nodiscard]] std::pair<double, double> sum(size_t weight, int64_t row, int64_t output) const {
    double sum = 0, magnitude = 0;
    for (int64_t k = 0; k < shape_.inputs; ++k) {
      const double term = x_.get(row, k) * weights_[weight].get(output, k);
      sum += term;
      magnitude += std::abs(term);
    }
    if (weight != 1 || shape_.gated) sum += biases_[weight].get(0, output);
    return {sum, magnitude * std::ldexp(4, -24)};
  }

  Element element_;
  GemvShape shape_;
  Array x_, residual_;
  std::vector<Array> weights_, biases_;
};

// Tails everywhere: of vectors in a warp, of outputs in a group, of groups in a block; one weight,
// three of unlike sizes as of a model whose heads are grouped, and two that are gated.
std::vector<GemvShape> gemv_shapes() {
  return {{8, {1}},
          {896, {37}, false, Activation::kNone, true},
          {264, {24, 5, 3}},
          {1600, {2}, false, Activation::kGeluTanh},
          {520, {19}, false, Activation::kGelu, true},
          {1024, {9, 9}, true, Activation::kSilu},
          {2568, {3, 3}, true, Activation::kRelu, true},
          {136, {143}, false, Activation::kNone, false, true}};
}

class GemvTest : public ::testing::TestWithParam<Element> {};

TEST_P(GemvTest, is_the_sum_rounded_once) {
  for (const GemvShape& shape : gemv_shapes()) {
    GemvProblem problem(GetParam(), shape);
    const std::vector<Array> found = problem.run(0, kGemvRows);
    for (size_t i = 0; i < problem.results(); ++i) {
      for (int64_t m = 0; m < kGemvRows; ++m) {
        for (int64_t n = 0; n < shape.outputs[i]; ++n) {
          const auto [value, error] = problem.exact(i, m, n);
          ASSERT_NEAR(found[i].get(m, n), value, error)
              << "weight " << i << ", row " << m << ", output " << n << " of " << shape.inputs;
        }
      }
    }
  }
}

// The row contract; what a call does not compute, it does not write.
TEST_P(GemvTest, once_a_row_is_the_same_alone_and_among_others) {
  for (const GemvShape& shape : gemv_shapes()) {
    GemvProblem problem(GetParam(), shape);
    const std::vector<Array> all = problem.run(0, kGemvRows);
    for (int64_t rows = 1; rows < kGemvRows; ++rows) {
      const int64_t begin = kGemvRows - rows - (rows < 4 ? 1 : 0);
      const std::vector<Array> some = problem.run(begin, begin + rows);
      for (size_t i = 0; i < some.size(); ++i) {
        for (int64_t m = 0; m < rows; ++m) {
          ASSERT_EQ(some[i].row(m), all[i].row(begin + m))
              << "row " << begin + m << " among " << rows << ", " << shape.inputs << " inputs";
        }
      }
    }
  }
}

TEST_P(GemvTest, neither_the_device_nor_the_order_of_threads_changes_a_bit) {
  for (const GemvShape& shape : gemv_shapes()) {
    if (shape.inputs * shape.outputs[0] > 20'000) continue;  // the others have all tails
    GemvProblem problem(GetParam(), shape);
    const std::vector<Array> one = problem.run(0, 3, 132, Order::kDescending);
    for (const uint32_t multiprocessors : kMultiprocessors) {
      EXPECT_EQ(problem.run(0, 3, multiprocessors), one);
    }
  }
}

TEST_P(GemvTest, the_residual_may_be_where_the_outputs_go) {
  GemvProblem problem(GetParam(), {256, {21}, false, Activation::kNone, true});
  const std::vector<Array> expected = problem.run(0, 3);
  std::vector<Array> y{Array(GetParam(), 3, 21)};
  Gemv call = problem.call(0, 3, y);
  for (int64_t m = 0; m < 3; ++m) {
    std::memcpy(y[0].at(m, 0),
                static_cast<const std::byte*>(call.residual) +
                    m * call.residual_stride * bytes_of(GetParam()),
                static_cast<size_t>(21 * bytes_of(GetParam())));
  }
  call.residual = y[0].at(0, 0);
  call.residual_stride = y[0].stride();
  launch(call, Order::kAscending, GetParam(), 132u);
  EXPECT_EQ(y, expected);
}

// A number that is none stays in the row and in the output that have it.
TEST_P(GemvTest, infinities_reach_no_other_row_or_output) {
  GemvProblem problem(GetParam(), {264, {3}});
  std::vector<Array> y{Array(GetParam(), 2, 3)};
  Array x(GetParam(), 2, 264);
  Array weight(GetParam(), 3, 264, 0);
  for (int64_t k = 0; k < 264; ++k) {
    for (int64_t m = 0; m < 2; ++m) x.set(m, k, 1);
    for (int64_t n = 0; n < 3; ++n) weight.set(n, k, 1);
  }
  x.set(1, 263, INFINITY);
  weight.set(2, 0, -INFINITY);
  Gemv call = problem.call(0, 2, y);
  call.weights[0].weight = weight.at(0, 0);
  call.weights[0].bias = nullptr;
  call.x = x.at(0, 0);
  launch(call, Order::kAscending, GetParam(), 132u);
  EXPECT_EQ(y[0].get(0, 0), 264);
  EXPECT_EQ(y[0].get(0, 2), -INFINITY);
  EXPECT_EQ(y[0].get(1, 1), INFINITY);
  EXPECT_TRUE(std::isnan(y[0].get(1, 2)));
}

INSTANTIATE_TEST_SUITE_P(Elements, GemvTest, ::testing::ValuesIn(kAllElements),
                         [](const auto& of) { return name_of(of.param); });

TEST(GemvLaunch, what_no_kernel_takes_is_refused) {
  GemvProblem problem(Element::kBFloat16, {264, {24, 24}});
  std::vector<Array> y{Array(Element::kBFloat16, 8, 24), Array(Element::kBFloat16, 8, 24)};
  const Gemv good = problem.call(0, 8, y);
  ASSERT_TRUE(launch_of(good, Element::kBFloat16, 1).ok());
  const auto refusal = [&](const std::function<void(Gemv&)>& spoil) {
    Gemv call = good;
    spoil(call);
    const Result<Launch> found = launch_of(call, Element::kBFloat16, 1);
    return found.ok() ? "" : found.error().message;
  };
  using ::testing::HasSubstr;
  const auto askew = [](const void* address) { return static_cast<const std::byte*>(address) + 8; };
  EXPECT_THAT(refusal([](Gemv& call) { call.rows = 9; }), HasSubstr("9 rows"));
  EXPECT_THAT(refusal([](Gemv& call) { call.rows = 0; }), HasSubstr("0 rows"));
  EXPECT_THAT(refusal([](Gemv& call) { call.count = 4; }), HasSubstr("4 weights"));
  EXPECT_THAT(refusal([](Gemv& call) { call.inputs = 260; }), HasSubstr("260 inputs"));
  EXPECT_THAT(refusal([](Gemv& call) { call.x = nullptr; }), HasSubstr("x is missing"));
  EXPECT_THAT(refusal([&](Gemv& call) { call.x = askew(call.x); }), HasSubstr("16 bytes"));
  EXPECT_THAT(refusal([](Gemv& call) { call.x_stride = 265; }), HasSubstr("16 bytes"));
  EXPECT_THAT(refusal([&](Gemv& call) { call.weights[1].weight = askew(call.weights[1].weight); }),
              HasSubstr("16 bytes"));
  EXPECT_THAT(refusal([](Gemv& call) { call.weights[1].y = nullptr; }), HasSubstr("no place"));
  EXPECT_THAT(refusal([](Gemv& call) {
                call.gated = true;
                call.weights[1].outputs = 23;
              }),
              HasSubstr("as many outputs"));
  EXPECT_THAT(refusal([](Gemv& call) { call.residual = call.x; }), HasSubstr("residual"));
}

}  // namespace
}  // namespace djinn::cuda
