// SPDX-License-Identifier: Apache-2.0

// The kernels of a Norm on the emulator, against the same in double and against themselves.
#include "kernel/exec/cuda/kernels/norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "kernel/exec/cuda/kernels/kernels_for_tests.h"

namespace djinn::cuda {
namespace {

using emulator::Order;

constexpr int64_t kNormRows = 5;

struct NormForm {
  int64_t width;
  bool centred, has_weight, has_bias;
  float weight_offset = 0;
};

// Tails of a warp and of a block; the widths of MiniLM, Qwen2.5-0.5B, GPT-2-XL and Llama-3.1-8B.
constexpr NormForm kNormForms[] = {{8, false, true, false},      {264, true, true, true},
                                   {384, true, true, true},      {896, false, true, false},
                                   {1600, true, false, false},   {2056, false, false, true},
                                   {4096, false, true, false, 1}};

class NormRows {
 public:
  NormRows(Element element, const NormForm& form)
      : form_(form),
        x_(element, kNormRows, form.width),
        weight_(element, 1, form.width),
        bias_(element, 1, form.width) {
    std::mt19937 random(static_cast<uint32_t>(form.width));
    for (Array* const one : {&x_, &weight_, &bias_}) one->fill(random);
  }

  Norm call(int64_t begin, int64_t end, Array& y) {
    Norm call;
    call.x = x_.at(begin, 0);
    call.y = y.at(0, 0);
    if (form_.has_weight) call.weight = weight_.at(0, 0);
    if (form_.has_bias) call.bias = bias_.at(0, 0);
    call.x_stride = x_.stride();
    call.y_stride = y.stride();
    call.width = form_.width;
    call.rows = end - begin;
    call.epsilon = 1e-5f;
    call.weight_offset = form_.weight_offset;
    call.centred = form_.centred;
    return call;
  }

  Array run(int64_t begin, int64_t end, Order order = Order::kAscending) {
    Array y(x_.element(), end - begin, form_.width);
    launch(call(begin, end, y), order, x_.element());
    return y;
  }

  [[nodiscard]] std::vector<double> exact(int64_t row) const {
    double mean = 0, squares = 0;
    for (int64_t k = 0; form_.centred && k < form_.width; ++k) mean += x_.get(row, k);
    mean /= static_cast<double>(form_.width);
    for (int64_t k = 0; k < form_.width; ++k) squares += std::pow(x_.get(row, k) - mean, 2);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(form_.width) + 1e-5f);
    std::vector<double> values;
    for (int64_t k = 0; k < form_.width; ++k) {
      const double factor = form_.has_weight ? weight_.get(0, k) + double{form_.weight_offset} : 1;
      const double bias = form_.has_bias ? bias_.get(0, k) : 0;
      values.push_back((x_.get(row, k) - mean) * scale * factor + bias);
    }
    return values;
  }

  Array& x() { return x_; }

 private:
  NormForm form_;
  Array x_, weight_, bias_;
};

class NormTest : public ::testing::TestWithParam<Element> {};

TEST_P(NormTest, is_the_norm_rounded_once) {
  for (const NormForm& form : kNormForms) {
    NormRows rows(GetParam(), form);
    const Array found = rows.run(0, kNormRows);
    for (int64_t m = 0; m < kNormRows; ++m) {
      const std::vector<double> values = rows.exact(m);
      for (int64_t k = 0; k < form.width; ++k) {
        const double exact = values[static_cast<size_t>(k)];
        ASSERT_NEAR(found.get(m, k), exact, std::abs(exact) * (ulp_of(GetParam()) + 4e-7) + 1e-6)
            << "row " << m << ", element " << k << " of " << form.width;
      }
    }
  }
}

// The row contract; what lies between rows is not written.
TEST_P(NormTest, a_row_is_the_same_alone_in_either_order_of_threads) {
  for (const NormForm& form : kNormForms) {
    NormRows rows(GetParam(), form);
    const Array all = rows.run(0, kNormRows);
    EXPECT_EQ(rows.run(0, kNormRows, Order::kDescending), all);
    for (int64_t m = 0; m < kNormRows; ++m) EXPECT_EQ(rows.run(m, m + 1).row(0), all.row(m));
  }
}

TEST_P(NormTest, rows_may_be_written_where_they_are) {
  NormRows rows(GetParam(), kNormForms[1]);
  const Array expected = rows.run(0, kNormRows);
  const Norm call = rows.call(0, kNormRows, rows.x());
  launch(call, Order::kDescending, GetParam());
  EXPECT_EQ(rows.x(), expected);
}

INSTANTIATE_TEST_SUITE_P(Elements, NormTest, ::testing::ValuesIn(kAllElements),
                         [](const auto& of) { return name_of(of.param); });

TEST(NormLaunch, what_no_kernel_takes_is_refused) {
  NormRows rows(Element::kFloat16, kNormForms[1]);
  Array y(Element::kFloat16, kNormRows, 264);
  const Norm good = rows.call(0, kNormRows, y);
  ASSERT_TRUE(launch_of(good, Element::kFloat16).ok());
  const auto refusal = [&](const std::function<void(Norm&)>& spoil) {
    Norm call = good;
    spoil(call);
    const Result<Launch> found = launch_of(call, Element::kFloat16);
    return found.ok() ? "" : found.error().message;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal([](Norm& call) { call.rows = 0; }), HasSubstr("0 rows"));
  EXPECT_THAT(refusal([](Norm& call) { call.width = 260; }), HasSubstr("multiple of 8"));
  EXPECT_THAT(refusal([](Norm& call) { call.y = nullptr; }), HasSubstr("y is missing"));
  EXPECT_THAT(refusal([](Norm& call) { call.y_stride = 265; }), HasSubstr("16 bytes"));
  EXPECT_THAT(
      refusal([](Norm& call) { call.weight = static_cast<const std::byte*>(call.weight) + 2; }),
      HasSubstr("16 bytes"));
}

}  // namespace
}  // namespace djinn::cuda
