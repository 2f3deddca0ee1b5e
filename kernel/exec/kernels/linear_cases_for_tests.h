// SPDX-License-Identifier: Apache-2.0

// What tests of products share, whatever form the weights have. A Case has element, outputs_first,
// x, w and bias; and run(level, begin, end, cuts) gives those rows' outputs, which are shared out
// at cuts.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "kernel/exec/kernels/kernels.h"
#include "kernel/exec/kernels/matrix_for_tests.h"

namespace djinn::kernels {

using Form = std::tuple<Element, bool>;  // the element type, and whether outputs are first

inline std::string form_name(const ::testing::TestParamInfo<Form>& info) {
  const auto [element, outputs_first] = info.param;
  return std::string(name_of(element)) + (outputs_first ? "_outputs_first" : "_inputs_first");
}

// The call for rows of the case's x.
template <typename Case>
Linear linear_of(Case& it, std::vector<LinearRow>& rows) {
  Linear call;
  call.row = rows.data();
  call.rows = static_cast<int64_t>(rows.size());
  call.weight = it.w.at(0, 0);
  call.weight_stride = it.w.stride();
  call.bias = it.bias.at(0, 0);
  call.inputs = it.x.columns;
  call.outputs = it.bias.columns;
  return call;
}

// Calls the kernel for the outputs up to each cut, and for the rest.
inline void share_out(LinearKernel kernel, const Linear& call, std::vector<int64_t> cuts) {
  cuts.push_back(call.outputs);
  int64_t from = 0;
  for (const int64_t cut : cuts) {
    kernel(call, from, cut);
    from = cut;
  }
}

// The row contract, for so many rows at once, of a case of 150 outputs.
template <typename Case>
void expect_rows_as_they_are_among_others(Case& it, const std::vector<int64_t>& rows_at_once) {
  constexpr int64_t kOutputs = 150;
  const int64_t all = it.x.rows;
  for (const IsaLevel level : levels()) {
    Matrix together = it.run(level, 0, all);
    ASSERT_EQ(together.columns, kOutputs);
    EXPECT_EQ(it.run(level, 0, all,
                     it.outputs_first ? std::vector<int64_t>{1, 3, 70, 137}
                                      : std::vector<int64_t>{16, 32, 80, 144})
                  .bytes,
              together.bytes);
    for (const int64_t rows : rows_at_once) {
      for (int64_t begin = 0; begin + rows <= all; begin += rows) {
        Matrix some = it.run(level, begin, begin + rows, {kOutputs / 32 * 16});
        for (int64_t r = 0; r < rows; ++r) {
          ASSERT_EQ(std::memcmp(some.at(r, 0), together.at(begin + r, 0),
                                static_cast<size_t>(kOutputs) * bytes_of(it.element)),
                    0)
              << name_of(level) << ", row " << begin + r << " of " << rows;
        }
      }
    }
  }
}

// What is behind each row stays.
template <typename Case>
void expect_gaps_untouched(Case& it) {
  for (const IsaLevel level : levels()) {
    Matrix y = it.run(level, 0, it.x.rows);
    for (int64_t r = 0; r < y.rows; ++r) {
      for (int64_t gap = 0; gap < kGap; ++gap) {
        EXPECT_EQ(y.get(r, y.columns + gap), 0.0f) << name_of(level);
      }
    }
  }
}

}  // namespace djinn::kernels
