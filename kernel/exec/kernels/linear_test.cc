// SPDX-License-Identifier: Apache-2.0

// Each level that this machine has, against the same sum in double, and against itself: with other
// rows beside, and with the outputs shared out otherwise.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "kernel/exec/kernels/linear_cases_for_tests.h"

namespace djinn::kernels {
namespace {

struct Case {
  Case(Element kind, bool outputs_are_first, int64_t rows, int64_t inputs, int64_t outputs)
      : element(kind),
        outputs_first(outputs_are_first),
        x(kind, rows, inputs),
        w(kind, outputs_are_first ? outputs : inputs, outputs_are_first ? inputs : outputs),
        bias(kind, 1, outputs) {
    std::mt19937 random(static_cast<uint32_t>(rows * 1000 + inputs + outputs));
    for (Matrix* one : {&x, &w, &bias}) one->fill(random);
  }

  // begin, end: of the rows of x. cuts: where the outputs are shared out. The chunks of inputs are
  // shared out, too, and the last of them comes first.
  Matrix run(IsaLevel level, int64_t begin, int64_t end, std::vector<int64_t> cuts = {}) {
    const int64_t outputs = bias.columns;
    Matrix y(element, end - begin, outputs);
    const int64_t chunks = chunks_of(x.columns), padded = padded_outputs(outputs);
    std::vector<float> parts(static_cast<size_t>(chunks * (end - begin) * padded), NAN);
    std::vector<LinearRow> rows;
    for (int64_t r = 0; r < end - begin; ++r) {
      rows.push_back({x.at(begin + r, 0), y.at(r, 0), parts.data() + r * chunks * padded, padded});
    }
    const std::vector<float> wide = packs ? wide_rows(x, begin, end) : std::vector<float>();
    for (size_t r = 0; packs && r < rows.size(); ++r) {
      rows[r].x = wide.data() + r * static_cast<size_t>(x.columns);
    }
    Linear call = linear_of(*this, rows);
    const LinearKernels& kernels = kernels_of(level).linear;
    const auto number = static_cast<size_t>(element);
    for (int64_t chunk = chunks; !outputs_first && !packs && chunk > 0; --chunk) {
      kernels.inputs_first[number](call, chunk - 1, chunk);
    }
    std::vector<float> scratch(static_cast<size_t>(packed_floats(x.columns)), NAN);
    call.scratch = scratch.data();
    const LinearKernel kernel = outputs_first ? kernels.outputs_first[number]
                                : packs       ? kernels.packed[number]
                                              : kernels.sum_chunks[number];
    share_out(kernel, call, std::move(cuts));
    return y;
  }

  // The sum, and the sum of the magnitudes, which rounding errors go with.
  std::pair<double, double> exact(int64_t row, int64_t output) {
    double sum = bias.get(0, output), magnitude = std::abs(sum);
    for (int64_t k = 0; k < x.columns; ++k) {
      const double weight = outputs_first ? w.get(output, k) : w.get(k, output);
      const double term = x.get(row, k) * weight;
      sum += term;
      magnitude += std::abs(term);
    }
    return {sum, magnitude};
  }

  Element element;
  bool outputs_first, packs = false;
  Matrix x, w, bias;
};

class LinearTest : public ::testing::TestWithParam<Form> {};

TEST_P(LinearTest, is_the_sum_rounded_once) {
  const auto [element, outputs_first] = GetParam();
  for (const int64_t inputs : {1, 7, 64, 250, 896, 2500}) {
    for (const int64_t outputs : {int64_t{1}, int64_t{5}, int64_t{130}, kTileOutputsMax + 44}) {
      if (outputs > kTileOutputsMax && inputs > 64) continue;  // others tell of these
      Case it(element, outputs_first, 9, inputs, outputs);
      std::vector<Matrix> of_levels;
      for (const IsaLevel level : levels()) of_levels.push_back(it.run(level, 0, 9));
      for (int64_t r = 0; r < 9; ++r) {
        for (int64_t n = 0; n < outputs; ++n) {
          const auto [sum, magnitude] = it.exact(r, n);
          const double bound = std::abs(sum) * ulp_of(element) +
                               magnitude * std::ldexp(4.0 * std::sqrt(double(inputs)), -24);
          for (const IsaLevel level : levels()) {
            ASSERT_NEAR(of_levels[static_cast<size_t>(level)].get(r, n), sum, bound)
                << name_of(level) << ", row " << r << ", output " << n << " of " << inputs;
          }
        }
      }
    }
  }
}

// The row contract.
TEST_P(LinearTest, a_row_is_the_same_alone_and_among_others_however_the_outputs_are_shared) {
  const auto [element, outputs_first] = GetParam();
  for (const int64_t inputs : {33, 500, 3100}) {
    Case it(element, outputs_first, 32, inputs, 150);
    expect_rows_as_they_are_among_others(it, {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 31});
  }
}

// The row contract, for a prompt's row and a token's.
TEST_P(LinearTest, packed_weights_give_the_bits_of_few_rows) {
  const auto [element, outputs_first] = GetParam();
  if (outputs_first) return;
  for (const int64_t inputs : {1, 40, 64, 333, 3100}) {
    Case it(element, false, 43, inputs, 150);
    for (const IsaLevel level : levels()) {
      it.packs = false;
      const auto few = it.run(level, 0, 43).bytes;
      it.packs = true;
      EXPECT_EQ(it.run(level, 0, 43, {32, 64, 139}).bytes, few)
          << name_of(level) << ", " << inputs << " inputs";
    }
  }
}

TEST_P(LinearTest, writes_nothing_but_its_outputs) {
  const auto [element, outputs_first] = GetParam();
  Case it(element, outputs_first, 3, 40, 70);
  expect_gaps_untouched(it);
}

INSTANTIATE_TEST_SUITE_P(Forms, LinearTest,
                         ::testing::Combine(::testing::ValuesIn(kAllElements), ::testing::Bool()),
                         form_name);

}  // namespace
}  // namespace djinn::kernels
