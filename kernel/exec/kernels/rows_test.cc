// SPDX-License-Identifier: Apache-2.0

// Each level that this machine has, against the formula in double, and against itself: a row alone
// and among others.
#include "kernel/exec/kernels/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernel/exec/kernels/kernels.h"
#include "kernel/exec/kernels/matrix_for_tests.h"

namespace djinn::kernels {
namespace {

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh};

class RowsTest : public ::testing::TestWithParam<Element> {
 protected:
  [[nodiscard]] Matrix filled(int64_t rows, int64_t columns, float scale = 1) const {
    std::mt19937 random(static_cast<uint32_t>(rows * 131 + columns));
    Matrix made(GetParam(), rows, columns);
    made.fill(random, scale);
    return made;
  }
  // Half a step of the element type, and some of float32's.
  [[nodiscard]] double bound(double value) const {
    return std::abs(value) * (ulp_of(GetParam()) + std::ldexp(8.0, -24)) + 1e-7;
  }
  [[nodiscard]] size_t number() const { return static_cast<size_t>(GetParam()); }
};

Matrix normed(IsaLevel level, Matrix& x, Matrix& weight, float offset, int64_t begin, int64_t end) {
  Matrix y(x.element, x.rows, x.columns);
  RmsNorm call;
  call.x = x.at(0, 0);
  call.x_stride = x.stride();
  call.weight = weight.at(0, 0);
  call.weight_offset = offset;
  call.epsilon = 1e-6f;
  call.y = y.at(0, 0);
  call.y_stride = y.stride();
  call.width = x.columns;
  kernels_of(level).rows.rms_norm[static_cast<size_t>(x.element)](call, begin, end);
  return y;
}

TEST_P(RowsTest, rms_norm_is_the_formula_rounded_once) {
  for (const int64_t width : {1, 3, 64, 100, 896, 1111}) {
    Matrix x = filled(3, width), weight = filled(1, width);
    for (const IsaLevel level : levels()) {
      for (const float offset : {0.0f, 1.0f}) {
        Matrix y = normed(level, x, weight, offset, 0, 3);
        for (int64_t r = 0; r < 3; ++r) {
          double squares = 0;
          for (int64_t k = 0; k < width; ++k) squares += double(x.get(r, k)) * x.get(r, k);
          for (int64_t k = 0; k < width; ++k) {
            const double exact = x.get(r, k) / std::sqrt(squares / double(width) + 1e-6f) *
                                 (double(weight.get(0, k)) + offset);
            ASSERT_NEAR(y.get(r, k), exact, bound(exact)) << name_of(level) << ", width " << width;
          }
        }
      }
    }
  }
}

struct LayerNormed {
  Matrix& x;
  Matrix& weight;  // the first row; the second is the bias
  bool has_weight = true, has_bias = true;

  Matrix operator()(IsaLevel level, int64_t begin, int64_t end) const {
    Matrix y(x.element, x.rows, x.columns);
    LayerNorm call;
    call.x = x.at(0, 0);
    call.x_stride = x.stride();
    call.weight = has_weight ? weight.at(0, 0) : nullptr;
    call.bias = has_bias ? weight.at(1, 0) : nullptr;
    call.epsilon = 1e-5f;
    call.y = y.at(0, 0);
    call.y_stride = y.stride();
    call.width = x.columns;
    kernels_of(level).rows.layer_norm[static_cast<size_t>(x.element)](call, begin, end);
    return y;
  }
  // The numbers of a row.
  [[nodiscard]] std::vector<double> exact(int64_t r) const {
    const auto width = double(x.columns);
    double mean = 0, variance = 0;
    for (int64_t k = 0; k < x.columns; ++k) mean += x.get(r, k) / width;
    for (int64_t k = 0; k < x.columns; ++k) variance += std::pow(x.get(r, k) - mean, 2) / width;
    std::vector<double> row;
    for (int64_t k = 0; k < x.columns; ++k) {
      double value = (x.get(r, k) - mean) / std::sqrt(variance + 1e-5f);
      if (has_weight) value *= weight.get(0, k);
      if (has_bias) value += weight.get(1, k);
      row.push_back(value);
    }
    return row;
  }
};

TEST_P(RowsTest, rms_norm_without_a_weight_has_the_bits_of_ones) {
  Matrix x = filled(1, 333), ones(GetParam(), 1, 333);
  for (int64_t k = 0; k < 333; ++k) store(GetParam(), ones.at(0, k), 1);
  for (const IsaLevel level : levels()) {
    Matrix with = normed(level, x, ones, 0, 0, 1), without(GetParam(), 1, 333);
    RmsNorm call;
    call.x = x.at(0, 0);
    call.epsilon = 1e-6f;
    call.y = without.at(0, 0);
    call.width = 333;
    kernels_of(level).rows.rms_norm[number()](call, 0, 1);
    EXPECT_EQ(with.bytes, without.bytes) << name_of(level);
  }
}

TEST_P(RowsTest, layer_norm_is_the_formula_rounded_once) {
  for (const int64_t width : {1, 3, 64, 100, 384, 1111}) {
    Matrix x = filled(3, width), weight = filled(2, width);
    for (const bool has_weight : {false, true}) {
      const LayerNormed call{x, weight, has_weight, has_weight};
      for (const IsaLevel level : levels()) {
        Matrix y = call(level, 0, 3);
        for (int64_t r = 0; r < 3; ++r) {
          const std::vector<double> exact = call.exact(r);
          for (int64_t k = 0; k < width; ++k) {
            const double value = exact[static_cast<size_t>(k)];
            ASSERT_NEAR(y.get(r, k), value, bound(value) + 1e-6)
                << name_of(level) << ", width " << width;
          }
        }
      }
    }
  }
}

// Rows whose numbers are far from zero and near each other lose what a sum of squares would lose.
TEST_P(RowsTest, layer_norm_subtracts_the_mean_before_it_squares) {
  Matrix x(GetParam(), 1, 64), weight = filled(2, 64);
  for (int64_t k = 0; k < 64; ++k) store(GetParam(), x.at(0, k), float(1000 + (k % 2) * 8));
  const LayerNormed call{x, weight, false, false};
  for (const IsaLevel level : levels()) {
    Matrix y = call(level, 0, 1);
    for (int64_t k = 0; k < 64; ++k)
      ASSERT_NEAR(y.get(0, k), k % 2 == 0 ? -1 : 1, 1e-5) << name_of(level);
  }
}

// The row contract.
TEST_P(RowsTest, a_row_of_a_layer_norm_is_the_same_alone_and_among_others) {
  Matrix x = filled(5, 333), weight = filled(2, 333);
  const LayerNormed call{x, weight};
  for (const IsaLevel level : levels()) {
    Matrix together = call(level, 0, 5);
    for (int64_t r = 0; r < 5; ++r) {
      Matrix alone = call(level, r, r + 1);
      EXPECT_EQ(std::memcmp(alone.at(r, 0), together.at(r, 0), 333 * bytes_of(GetParam())), 0);
      for (int64_t gap = 0; gap < kGap; ++gap) EXPECT_EQ(together.get(r, 333 + gap), 0.0f);
    }
  }
}

// The row contract.
TEST_P(RowsTest, a_row_is_the_same_alone_and_among_others) {
  Matrix x = filled(5, 333), weight = filled(1, 333);
  for (const IsaLevel level : levels()) {
    Matrix together = normed(level, x, weight, 0, 0, 5);
    for (int64_t r = 0; r < 5; ++r) {
      Matrix alone = normed(level, x, weight, 0, r, r + 1);
      EXPECT_EQ(std::memcmp(alone.at(r, 0), together.at(r, 0), 333 * bytes_of(GetParam())), 0);
      for (int64_t gap = 0; gap < kGap; ++gap) EXPECT_EQ(together.get(r, 333 + gap), 0.0f);
    }
  }
}

double activated(Activation activation, double x) {
  if (activation == Activation::kSilu) return x / (1 + std::exp(-x));
  if (activation == Activation::kGelu) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST_P(RowsTest, a_gate_is_the_formula_rounded_once_wherever_it_is_cut) {
  constexpr int64_t kCount = 1003;
  Matrix x = filled(1, kCount, 4), factor = filled(1, kCount + 1);
  for (const Activation activation : kActivations) {
    for (const bool has_factor : {false, true}) {
      for (const IsaLevel level : levels()) {
        Matrix y(GetParam(), 1, kCount), cut(GetParam(), 1, kCount);
        Gate call{activation, x.at(0, 0), has_factor ? factor.at(0, 0) : nullptr, y.at(0, 0)};
        const GateKernel kernel = kernels_of(level).rows.gate[number()];
        kernel(call, 0, kCount);
        call.y = cut.at(0, 0);
        kernel(call, 501, kCount);
        kernel(call, 0, 501);
        EXPECT_EQ(cut.bytes, y.bytes);
        for (int64_t k = 0; k < kCount; ++k) {
          double exact = activated(activation, x.get(0, k));
          if (has_factor) exact *= factor.get(0, k);
          ASSERT_NEAR(y.get(0, k), exact, bound(exact) + 4e-7)
              << name_of(level) << " of " << x.get(0, k);
        }
        EXPECT_EQ(y.get(0, kCount), 0.0f);
      }
    }
  }
}

TEST_P(RowsTest, what_is_no_number_stays_none_and_large_ones_do_not_overflow) {
  Matrix x(GetParam(), 1, 20);
  const float given[] = {NAN, 60000, -60000, 200, -200, 0, -0.0f, INFINITY};
  for (int64_t k = 0; k < 20; ++k) store(GetParam(), x.at(0, k), given[k % 8]);
  for (const Activation activation : kActivations) {
    for (const IsaLevel level : levels()) {
      Matrix y(GetParam(), 1, 20);
      kernels_of(level).rows.gate[number()]({activation, x.at(0, 0), nullptr, y.at(0, 0)}, 0, 20);
      for (int64_t k = 0; k < 20; ++k) {
        const double from = x.get(0, k), to = y.get(0, k);
        if (std::isnan(from)) {
          EXPECT_TRUE(std::isnan(to)) << name_of(level) << " at " << k;
        } else {
          EXPECT_EQ(to, from > 0 ? from : 0) << name_of(level) << " of " << from;
        }
      }
    }
  }
}

TEST_P(RowsTest, rope_turns_pairs_of_the_two_halves_or_of_neighbours) {
  for (const int64_t width : {2, 10, 64, 128, 250}) {
    Matrix x = filled(1, width), cos = filled(2, width), sin = filled(3, width);
    const auto turned = [&](bool interleaved, int64_t k) -> double {
      if (interleaved) return k % 2 == 0 ? -x.get(0, k + 1) : x.get(0, k - 1);
      return k < width / 2 ? -x.get(0, k + width / 2) : x.get(0, k - width / 2);
    };
    for (const bool interleaved : {false, true}) {
      for (const IsaLevel level : levels()) {
        Matrix y(GetParam(), 1, width);
        kernels_of(level).rows.rope[number()](
            {x.at(0, 0), cos.at(1, 0), sin.at(2, 0), y.at(0, 0), width, interleaved});
        for (int64_t k = 0; k < width; ++k) {
          const double one = double(x.get(0, k)) * cos.get(1, k);
          const double other = turned(interleaved, k) * sin.get(2, k);
          ASSERT_NEAR(y.get(0, k), one + other,
                      bound(one + other) + (std::abs(one) + std::abs(other)) * std::ldexp(1.0, -23))
              << name_of(level) << ", width " << width;
        }
        EXPECT_EQ(y.get(0, width), 0.0f);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, RowsTest, ::testing::ValuesIn(kAllElements),
                         [](const auto& one) { return name_of(one.param); });

}  // namespace
}  // namespace djinn::kernels
