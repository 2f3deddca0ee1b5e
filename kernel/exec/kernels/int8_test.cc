// SPDX-License-Identifier: Apache-2.0

// Products with weights in int8: each level that this machine has, against the same sum in double,
// and against itself: with other rows beside, and with the outputs shared out otherwise.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "kernel/base/int8_rows.h"
#include "kernel/exec/kernels/linear_cases_for_tests.h"

namespace djinn::kernels {
namespace {

// Weights as a loader makes them.
struct Int8Matrix {
  Int8Matrix(int64_t row_count, int64_t column_count)
      : rows(row_count),
        columns(column_count),
        bytes(static_cast<size_t>(rows * int8_row_bytes(columns))) {}
  void fill(std::mt19937& random) {
    std::uniform_int_distribution<int> value(-kInt8Most, kInt8Most);
    std::uniform_real_distribution<float> scale(0.001f, 0.02f);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) set(r, c, value(random));
      for (int64_t c = 0; c < columns; c += kInt8Block) set_scale(r, c, scale(random));
    }
  }
  std::byte* row(int64_t r) {
    return bytes.data() + static_cast<size_t>(r * int8_row_bytes(columns));
  }
  void set(int64_t r, int64_t c, int value) { put(row(r) + c, static_cast<int8_t>(value)); }
  void set_scale(int64_t r, int64_t c, float scale) {
    store(Element::kBFloat16, row(r) + int8_scales_offset(columns) + c / kInt8Block * 2, scale);
  }
  double scale(int64_t r, int64_t c) {
    return load(Element::kBFloat16, row(r) + int8_scales_offset(columns) + c / kInt8Block * 2);
  }
  double get(int64_t r, int64_t c) { return got<int8_t>(row(r) + c) * scale(r, c); }

  int64_t rows, columns;
  std::vector<std::byte> bytes;
};

// What a level makes of rows.
struct Quantised {
  Quantised(IsaLevel level, Matrix& x)
      : inputs(x.columns), row_bytes(static_cast<size_t>(quantised_bytes(x.columns))) {
    bytes.resize(static_cast<size_t>(x.rows) * row_bytes, std::byte{0xaa});
    for (int64_t r = 0; r < x.rows; ++r) {
      kernels_of(level).linear.int8.quantise[static_cast<size_t>(x.element)](x.at(r, 0), inputs,
                                                                             row(r));
    }
  }
  std::byte* row(int64_t r) { return bytes.data() + static_cast<size_t>(r) * row_bytes; }
  int value(int64_t r, int64_t c) { return got<int8_t>(row(r) + c); }
  float scale(int64_t r, int64_t c) {
    return got<float>(row(r) + quantised_scales(inputs) + c / kInt8Block * 4);
  }

  int64_t inputs;
  size_t row_bytes;
  std::vector<std::byte> bytes;
};

struct Int8Case {
  Int8Case(Element kind, bool outputs_are_first, int64_t rows, int64_t inputs, int64_t outputs)
      : element(kind),
        outputs_first(outputs_are_first),
        x(kind, rows, inputs),
        w(outputs_are_first ? outputs : inputs, outputs_are_first ? inputs : outputs),
        bias(kind, 1, outputs) {
    std::mt19937 random(static_cast<uint32_t>(rows * 1000 + inputs + outputs));
    for (Matrix* one : {&x, &bias}) one->fill(random);
    w.fill(random);
  }

  // As linear_test.cc has it.
  Matrix run(IsaLevel level, int64_t begin, int64_t end, std::vector<int64_t> cuts = {}) {
    return run(kernels_of(level).linear, Quantised(level, x), begin, end, std::move(cuts));
  }
  Matrix run(const LinearKernels& linear, Quantised of_x, int64_t begin, int64_t end,
             std::vector<int64_t> cuts = {}) {
    const int64_t outputs = bias.columns;
    Matrix y(element, end - begin, outputs);
    const int64_t chunks = chunks_of(x.columns), padded = padded_outputs(outputs);
    std::vector<float> parts(static_cast<size_t>(chunks * (end - begin) * padded), NAN);
    std::vector<LinearRow> rows;
    for (int64_t r = 0; r < end - begin; ++r) {
      const void* const given = outputs_first ? of_x.row(begin + r) : x.at(begin + r, 0);
      rows.push_back({given, y.at(r, 0), parts.data() + r * chunks * padded, padded});
    }
    const std::vector<float> wide = packs ? wide_rows(x, begin, end) : std::vector<float>();
    for (size_t r = 0; packs && r < rows.size(); ++r) {
      rows[r].x = wide.data() + r * static_cast<size_t>(x.columns);
    }
    std::vector<float> scratch(static_cast<size_t>(packed_floats(x.columns)), NAN);
    Linear call;
    call.row = rows.data();
    call.rows = end - begin;
    call.weight = w.row(0);
    call.weight_stride = int8_row_bytes(w.columns);
    call.bias = bias.at(0, 0);
    call.inputs = x.columns;
    call.outputs = outputs;
    call.scratch = scratch.data();
    const auto number = static_cast<size_t>(element);
    for (int64_t chunk = chunks; !outputs_first && !packs && chunk > 0; --chunk) {
      linear.int8.inputs_first[number](call, chunk - 1, chunk);
    }
    const LinearKernel kernel = outputs_first ? linear.int8.outputs_first[number]
                                : packs       ? linear.int8.packed[number]
                                              : linear.sum_chunks[number];
    share_out(kernel, call, std::move(cuts));
    return y;
  }

  // The sum of what the level multiplies, and the sum of the magnitudes.
  std::pair<double, double> exact(Quantised& of_x, int64_t row, int64_t output) {
    double sum = bias.get(0, output), magnitude = std::abs(sum);
    for (int64_t k = 0; k < x.columns; ++k) {
      const double factor =
          outputs_first ? of_x.value(row, k) * double(of_x.scale(row, k)) : x.get(row, k);
      const double term = factor * (outputs_first ? w.get(output, k) : w.get(k, output));
      sum += term;
      magnitude += std::abs(term);
    }
    return {sum, magnitude};
  }

  Element element;
  bool outputs_first, packs = false;
  Matrix x;
  Int8Matrix w;
  Matrix bias;
};

class Int8Linear : public ::testing::TestWithParam<Form> {};

TEST_P(Int8Linear, is_the_sum_of_integers_times_scales_rounded_once) {
  const auto [element, outputs_first] = GetParam();
  for (const int64_t inputs : {1, 7, 64, 250, 896, 2500}) {
    for (const int64_t outputs : {1, 5, 130}) {
      Int8Case it(element, outputs_first, 6, inputs, outputs);
      for (const IsaLevel level : levels()) {
        Matrix y = it.run(level, 0, 6);
        Quantised of_x(level, it.x);
        for (int64_t r = 0; r < 6; ++r) {
          for (int64_t n = 0; n < outputs; ++n) {
            const auto [sum, magnitude] = it.exact(of_x, r, n);
            const double bound = std::abs(sum) * ulp_of(element) +
                                 magnitude * std::ldexp(3 + 4.0 * std::sqrt(double(inputs)), -24);
            ASSERT_NEAR(y.get(r, n), sum, bound)
                << name_of(level) << ", row " << r << ", output " << n << " of " << inputs;
          }
        }
      }
    }
  }
}

// The row contract.
TEST_P(Int8Linear, a_row_is_the_same_alone_and_among_others_however_the_outputs_are_shared) {
  const auto [element, outputs_first] = GetParam();
  for (const int64_t inputs : {33, 1100}) {
    Int8Case it(element, outputs_first, 32, inputs, 150);
    expect_rows_as_they_are_among_others(it, {1, 2, 3, 4, 5, 8, 31});
  }
}

TEST_P(Int8Linear, packed_weights_give_the_bits_of_few_rows) {
  const auto [element, outputs_first] = GetParam();
  if (outputs_first) return;
  for (const int64_t inputs : {1, 40, 333}) {
    Int8Case it(element, false, 43, inputs, 150);
    for (const IsaLevel level : levels()) {
      it.packs = false;
      const auto few = it.run(level, 0, 43).bytes;
      it.packs = true;
      EXPECT_EQ(it.run(level, 0, 43, {64, 128}).bytes, few)
          << name_of(level) << ", " << inputs << " inputs";
    }
  }
}

TEST_P(Int8Linear, writes_nothing_but_its_outputs) {
  const auto [element, outputs_first] = GetParam();
  Int8Case it(element, outputs_first, 3, 40, 70);
  expect_gaps_untouched(it);
}

#if defined(__x86_64__)
// So which machine of a level computes is not seen in what it gives.
TEST_P(Int8Linear, dot_products_give_the_bits_of_the_level_without_them) {
  const auto [element, outputs_first] = GetParam();
  for (const auto& [level, kernels] :
       {std::pair(IsaLevel::kAvx2, &kKernelsAvx2), std::pair(IsaLevel::kAvx512, &kKernelsAvx512)}) {
    if (!has_int8_dots(level)) continue;
    for (const int64_t inputs : {1, 33, 100, 1100}) {
      for (const bool packs : {false, true}) {
        Int8Case it(element, outputs_first, 7, inputs, 150);
        it.packs = packs && !outputs_first;
        const Quantised of_x(level, it.x);
        EXPECT_EQ(it.run(level, 0, 7).bytes, it.run(kernels->linear, of_x, 0, 7).bytes)
            << name_of(level) << ", " << inputs << " inputs";
      }
    }
  }
}
#endif

// Where all scales are one, the sums are integers, and all levels have the same.
TEST(Int8Sums, of_integers_are_exact_at_each_level) {
  constexpr int64_t kInputs = 200, kOutputs = 9;
  Int8Case it(Element::kFloat32, true, 5, kInputs, kOutputs);
  std::mt19937 random(7);
  std::uniform_int_distribution<int> value(-kInt8Most, kInt8Most);
  for (int64_t k = 0; k < kInputs; ++k) {
    for (int64_t n = 0; n < kOutputs; ++n) {
      it.w.set(n, k, n == 0 ? kInt8Most : n == 1 ? -kInt8Most : value(random));
      it.w.set_scale(n, k, 1);
      store(Element::kFloat32, it.bias.at(0, n), 0);
    }
    for (int64_t r = 0; r < 5; ++r) {
      const bool is_most = r < 2 || k % kInt8Block == 0;
      const int x = is_most ? (r == 1 ? -kInt8Most : kInt8Most) : value(random);
      store(Element::kFloat32, it.x.at(r, k), static_cast<float>(x));
    }
  }
  for (const IsaLevel level : levels()) {
    Matrix y = it.run(level, 0, 5);
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t n = 0; n < kOutputs; ++n) {
        int64_t sum = 0;
        for (int64_t k = 0; k < kInputs; ++k) {
          sum += static_cast<int64_t>(it.x.get(r, k)) * static_cast<int64_t>(it.w.get(n, k));
        }
        EXPECT_EQ(static_cast<int64_t>(y.get(r, n)), sum) << name_of(level) << ", " << r << n;
      }
    }
  }
}

TEST(Int8Rows, are_quantised_a_block_at_a_time_to_the_nearest) {
  for (const Element element : kAllElements) {
    for (const int64_t inputs : {1, 31, 32, 100, 900}) {
      Matrix x(element, 2, inputs);
      std::mt19937 random(3);
      x.fill(random, 5);
      for (const IsaLevel level : levels()) {
        Quantised made(level, x);
        for (int64_t k = 0; k < inputs; ++k) {
          const double scale = made.scale(1, k);
          ASSERT_LE(std::abs(made.value(1, k) * scale - x.get(1, k)), scale * 0.50001)
              << name_of(level);
        }
        for (int64_t k = inputs; k < int8_scales_offset(inputs); ++k) {
          ASSERT_EQ(made.value(1, k), 0);
        }
      }
    }
  }
}

TEST(Int8Rows, a_block_that_is_not_finite_spoils_its_row_and_no_other) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    Int8Case it(Element::kFloat32, true, 3, 100, 5);
    store(Element::kFloat32, it.x.at(1, 40), bad);
    for (const IsaLevel level : levels()) {
      Matrix y = it.run(level, 0, 3);
      for (int64_t n = 0; n < 5; ++n) {
        EXPECT_TRUE(std::isfinite(y.get(0, n)) && std::isfinite(y.get(2, n))) << name_of(level);
        EXPECT_TRUE(std::isnan(y.get(1, n))) << name_of(level);
      }
    }
  }
}

TEST(Int8Rows, what_is_next_to_nothing_is_zero) {
  Int8Case it(Element::kFloat32, true, 1, 64, 3);
  for (int64_t k = 0; k < 64; ++k) store(Element::kFloat32, it.x.at(0, k), 1e-40f);
  for (const IsaLevel level : levels()) {
    Matrix y = it.run(level, 0, 1);
    for (int64_t n = 0; n < 3; ++n) EXPECT_EQ(y.get(0, n), it.bias.get(0, n)) << name_of(level);
  }
}

TEST(Int8Rows, of_weights_are_widened_to_the_nearest_element) {
  for (const Element element : kAllElements) {
    for (const int64_t columns : {1, 40, 900}) {
      Int8Matrix w(2, columns);
      std::mt19937 random(5);
      w.fill(random);
      for (const IsaLevel level : levels()) {
        Matrix wide(element, 1, columns);
        kernels_of(level).linear.int8.widen[static_cast<size_t>(element)](w.row(1), columns,
                                                                          wide.at(0, 0));
        for (int64_t c = 0; c < columns; ++c) {
          const double value = w.get(1, c);
          ASSERT_NEAR(wide.get(0, c), value, std::abs(value) * ulp_of(element)) << name_of(level);
        }
        EXPECT_EQ(wide.get(0, columns), 0.0f) << "it wrote behind its row";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, Int8Linear,
                         ::testing::Combine(::testing::ValuesIn(kAllElements), ::testing::Bool()),
                         form_name);

}  // namespace
}  // namespace djinn::kernels
