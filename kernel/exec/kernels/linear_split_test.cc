// SPDX-License-Identifier: Apache-2.0

// Products of float32 as parts of bf16, of each level that has them: against the same sum in
// double and in float32, and against themselves, however rows, outputs and weights lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernel/exec/kernels/linear_cases_for_tests.h"

namespace djinn::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

const SplitLinearKernels& split_of(IsaLevel level) {
  return kernels_of(level).linear.split;
}

std::vector<IsaLevel> levels_that_split() {
  std::vector<IsaLevel> found;
  for (const IsaLevel level : levels()) {
    if (split_of(level).split != nullptr) found.push_back(level);
  }
  return found;
}

struct SplitCase {
  SplitCase(int64_t rows, int64_t inputs, int64_t outputs)
      : x(Element::kFloat32, rows, inputs),
        w(Element::kFloat32, outputs, inputs),
        bias(Element::kFloat32, 1, outputs) {
    std::mt19937 random(static_cast<uint32_t>(rows * 1000 + inputs + outputs));
    for (Matrix* one : {&x, &w, &bias}) one->fill(random);
  }

  std::byte* weight_at(int64_t output, int64_t input) { return w.at(output, input); }
  float weight(int64_t output, int64_t input) {
    return load(Element::kFloat32, weight_at(output, input));
  }
  void put_weight(int64_t output, int64_t input, float value) {
    store(Element::kFloat32, weight_at(output, input), value);
  }
  void put_x(int64_t row, int64_t input, float value) {
    store(Element::kFloat32, x.at(row, input), value);
  }

  // As a Case of LinearTest's. distances: of a split row and the next, in turn, in bytes beside
  // what it takes.
  Matrix run(IsaLevel level, int64_t begin, int64_t end, std::vector<int64_t> cuts = {},
             std::vector<int64_t> distances = {0}) {
    Matrix y(Element::kFloat32, end - begin, bias.columns);
    const SplitLinearKernels& kernels = split_of(level);
    const int64_t row_bytes = split_bytes(x.columns);
    const int64_t most = *std::ranges::max_element(distances);
    std::vector<std::byte> split(static_cast<size_t>((end - begin) * (row_bytes + most)));
    std::vector<LinearRow> rows;
    std::byte* at = split.data();
    for (int64_t r = 0; r < end - begin; ++r) {
      kernels.split(x.at(begin + r, 0), x.columns, at);
      rows.push_back({at, y.at(r, 0), nullptr, 0, x.at(begin + r, 0)});
      at += row_bytes + distances[static_cast<size_t>(r) % distances.size()];
    }
    const Linear call = linear_of(*this, rows);
    share_out(kernels.outputs_first, call, std::move(cuts));
    return y;
  }

  double exact(int64_t row, int64_t output) {
    double sum = bias.get(0, output);
    for (int64_t k = 0; k < x.columns; ++k) sum += double{x.get(row, k)} * weight(output, k);
    return sum;
  }
  // One after the other, as libraries add up some hundreds of products.
  float in_float32(int64_t row, int64_t output) {
    float sum = 0;
    for (int64_t k = 0; k < x.columns; ++k) sum = std::fma(x.get(row, k), weight(output, k), sum);
    return sum + bias.get(0, output);
  }

  static constexpr Element element = Element::kFloat32;
  static constexpr bool outputs_first = true;
  Matrix x, w, bias;
};

class LinearSplitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (levels_that_split().empty()) GTEST_SKIP() << "this machine has no level that splits";
  }
};

TEST_F(LinearSplitTest, errs_no_more_than_float32_does) {
  for (const int64_t inputs : {1, 7, 64, 250, 896, 2500}) {
    constexpr int64_t kRows = 40, kOutputs = 70;
    SplitCase it(kRows, inputs, kOutputs);
    for (const IsaLevel level : levels_that_split()) {
      Matrix y = it.run(level, 0, kRows);
      double ours = 0, of_float32 = 0, most = 0, most_of_float32 = 0;
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t n = 0; n < kOutputs; ++n) {
          const double exact = it.exact(r, n), error = std::abs(y.get(r, n) - exact);
          const double other = std::abs(it.in_float32(r, n) - exact);
          ours += error * error;
          of_float32 += other * other;
          most = std::max(most, error);
          most_of_float32 = std::max(most_of_float32, other);
        }
      }
      EXPECT_LE(std::sqrt(ours), 1.5 * std::sqrt(of_float32)) << inputs << " inputs";
      EXPECT_LE(most, 1.5 * most_of_float32) << inputs << " inputs";
    }
  }
}

// The row contract.
TEST_F(LinearSplitTest, a_row_is_the_same_alone_and_among_others_however_the_outputs_are_shared) {
  for (const int64_t inputs : {33, 500, 3100}) {
    SplitCase it(70, inputs, 150);
    for (const IsaLevel level : levels_that_split()) {
      Matrix together = it.run(level, 0, 70);
      EXPECT_EQ(it.run(level, 0, 70, {1, 3, 70, 137}).bytes, together.bytes);
      EXPECT_EQ(it.run(level, 0, 70, {64}, {0, 64, 64, 640, 0}).bytes, together.bytes);
      for (const int64_t rows : {1, 2, 15, 16, 17, 31, 33, 47, 69}) {
        Matrix some = it.run(level, 70 - rows, 70, {32});
        for (int64_t r = 0; r < rows; ++r) {
          ASSERT_EQ(std::memcmp(some.at(r, 0), together.at(70 - rows + r, 0), 150 * sizeof(float)),
                    0)
              << inputs << " inputs, row " << r << " of " << rows;
        }
      }
    }
  }
}

TEST_F(LinearSplitTest, a_row_is_the_same_among_hundreds) {
  SplitCase it(600, 40, 33);
  for (const IsaLevel level : levels_that_split()) {
    Matrix together = it.run(level, 0, 600);
    for (const int64_t begin : {0, 200, 255, 256, 400, 570}) {
      Matrix some = it.run(level, begin, begin + 30);
      for (int64_t r = 0; r < 30; ++r) {
        ASSERT_EQ(std::memcmp(some.at(r, 0), together.at(begin + r, 0), 33 * sizeof(float)), 0);
      }
    }
  }
}

// What parts of bf16 cannot say: what is not finite or becomes so, and what is nearly nothing.
TEST_F(LinearSplitTest, what_has_no_parts_is_what_float32_makes_of_it) {
  constexpr int64_t kRows = 40, kInputs = 70, kOutputs = 40;
  const float nan_of_few_bits = std::bit_cast<float>(0x7f800001);
  const float pairs[][2] = {{kInfinity, 2},       {-kInfinity, 0}, {NAN, 1},
                            {nan_of_few_bits, 1}, {kLargest, 0.5}, {-kLargest, 1},
                            {kLargest, 2},        {3e38F, 3e38F},  {1e-40F, 1},
                            {1e-40F, 1e-40F},     {1e-30F, 1e-8F}, {1e-22F, 3e-21F},
                            {0, kInfinity},       {0, NAN},        {2, -kInfinity},
                            {1e-45F, kLargest},   {0, 0},          {1.5F, nan_of_few_bits}};
  constexpr int64_t kPairs = std::ssize(pairs);
  static_assert(kPairs < kRows && kPairs < kOutputs);
  SplitCase it(kRows, kInputs, kOutputs);
  // The row i and the output i meet in nothing but the pair's numbers; the bias is nothing.
  for (int64_t i = 0; i < kPairs; ++i) {
    for (int64_t k = 0; k < kInputs; ++k) {
      it.put_x(i, k, 0);
      it.put_weight(i, k, 0);
    }
    it.put_x(i, i, pairs[i][0]);
    it.put_weight(i, i, pairs[i][1]);
    store(Element::kFloat32, it.bias.at(0, i), 0);
  }
  for (const IsaLevel level : levels_that_split()) {
    Matrix y = it.run(level, 0, kRows);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t n = 0; n < kOutputs; ++n) {
        const float expected = it.in_float32(r, n), got = y.get(r, n);
        if (std::isfinite(expected)) {
          EXPECT_NEAR(got, expected, std::abs(expected) * 1e-5 + (r == n && r < kPairs ? 0 : 1e-4))
              << r << ", " << n;
        } else if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(got)) << r << ", " << n << ": " << got;
        } else {
          EXPECT_EQ(got, expected) << r << ", " << n;
        }
      }
    }
  }
}

TEST_F(LinearSplitTest, writes_nothing_but_its_outputs) {
  SplitCase it(35, 40, 70);
  for (const IsaLevel level : levels_that_split()) {
    Matrix y = it.run(level, 0, it.x.rows, {32, 37});
    for (int64_t r = 0; r < y.rows; ++r) {
      for (int64_t gap = 0; gap < kGap; ++gap) EXPECT_EQ(y.get(r, y.columns + gap), 0.0f);
    }
  }
}

}  // namespace
}  // namespace djinn::kernels
