// SPDX-License-Identifier: Apache-2.0

// djinn::grouped_rows: rows of groups, each group with a matrix of its own, as experts are, at each
// level that this machine has.
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/kernels/matrix_for_tests.h"
#include "kernel/exec/own_operators.h"

namespace djinn::exec {
namespace {

constexpr int64_t kGroups = 5, kGroupInputs = 150, kGroupOutputs = 90;

// At a level, of a type, and whether an expert's outputs lie side by side, or its inputs.
class Grouped : public ::testing::TestWithParam<std::tuple<IsaLevel, at::ScalarType, bool>> {
 protected:
  Grouped() {
    if (!is_allocator_installed()) initialise(2);
    register_operators();
    CpuExecutor().limit_isa(std::get<0>(GetParam()));
  }
  ~Grouped() override { CpuExecutor().limit_isa(kHighestIsa); }

  static at::ScalarType type() { return std::get<1>(GetParam()); }

  [[nodiscard]] static at::Tensor weights() {
    const bool outputs_dense = std::get<2>(GetParam());
    return outputs_dense ? noise({kGroups, kGroupInputs, kGroupOutputs}, 1, type())
                         : noise({kGroups, kGroupOutputs, kGroupInputs}, 1, type()).transpose(1, 2);
  }
  [[nodiscard]] static at::Tensor rows(int64_t count) {
    return noise({count, kGroupInputs}, 2, type());
  }
  static at::Tensor call(const at::Tensor& input, const at::Tensor& weights,
                         const std::optional<at::Tensor>& ends) {
    const c10::InferenceMode inference_mode;
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("djinn::grouped_rows", "");
    std::vector<c10::IValue> stack{input, weights, ends};
    op.callBoxed(&stack);
    return stack[0].toTensor();
  }
  static at::Tensor ends(const std::vector<int64_t>& numbers) {
    return int64s({static_cast<int64_t>(numbers.size())}, numbers).to(at::kInt);
  }
};

TEST_P(Grouped, each_row_is_what_it_is_alone_with_its_groups_matrix) {
  const at::Tensor w = weights();
  for (const std::vector<int64_t>& numbers :
       {std::vector<int64_t>{0, 3, 3, 10, 12}, {20, 21, 60, 60, 100}}) {
    const at::Tensor x = rows(numbers.back());
    const at::Tensor together = call(x, w, ends(numbers));
    ASSERT_EQ(together.sizes(), (std::vector<int64_t>{numbers.back(), kGroupOutputs}));
    std::vector<at::Tensor> exact, eager;
    int64_t row = 0;
    for (int64_t group = 0; group < kGroups; ++group) {
      const int64_t begin = row, end = numbers[static_cast<size_t>(group)];
      std::vector<int64_t> alone(kGroups, 0);
      std::fill(alone.begin() + group, alone.end(), 1);
      for (; row < end; ++row) {
        const at::Tensor one = x.narrow(0, row, 1).clone();
        EXPECT_TRUE(same_bytes(call(one, w, ends(alone)), together.narrow(0, row, 1))) << row;
      }
      const at::Tensor some = x.narrow(0, begin, end - begin);
      exact.push_back(at::matmul(some.to(at::kDouble), w[group].to(at::kDouble)));
      eager.push_back(at::matmul(some, w[group]));
    }
    EXPECT_LE(distance(together, at::cat(exact)), 1.5 * distance(at::cat(eager), at::cat(exact)));
  }
}

TEST_P(Grouped, groups_of_one_size_are_those_that_ends_say) {
  const at::Tensor x = rows(kGroups * 3), w = weights();
  const at::Tensor batch = call(x.view({kGroups, 3, kGroupInputs}), w, std::nullopt);
  EXPECT_TRUE(
      same_bytes(batch.view({kGroups * 3, kGroupOutputs}), call(x, w, ends({3, 6, 9, 12, 15}))));
}

TEST_P(Grouped, rows_may_lie_apart) {
  const at::Tensor wide = noise({7, 2 * kGroupInputs}, 3, type());
  const at::Tensor apart = wide.narrow(1, 0, kGroupInputs), turned = rows(7).t().contiguous().t();
  for (const at::Tensor& x : {apart, turned}) {
    EXPECT_TRUE(same_bytes(call(x, weights(), ends({1, 1, 4, 7, 7})),
                           call(x.contiguous(), weights(), ends({1, 1, 4, 7, 7}))));
  }
}

TEST_P(Grouped, ends_that_lie_are_refused) {
  for (const std::vector<int64_t>& numbers :
       {std::vector<int64_t>{0, 3, 2, 7, 7}, {-1, 3, 3, 7, 7}, {1, 2, 3, 4, 6}, {1, 2, 3, 4, 8}}) {
    EXPECT_THROW(call(rows(7), weights(), ends(numbers)), c10::Error);
  }
}

// What a client calls int8 is no weight of ours, whose rows have scales behind them.
TEST_P(Grouped, numbers_of_a_client_are_not_read_as_rows_of_int8) {
  const at::Tensor bytes =
      at::zeros({kGroups, kGroupInputs, 4096}, at::kChar).narrow(2, 0, kGroupOutputs);
  EXPECT_THROW(call(rows(7), bytes, ends({1, 2, 3, 4, 7})), c10::Error);
}

std::string name_of_grouped(const ::testing::TestParamInfo<Grouped::ParamType>& info) {
  std::string name(name_of(std::get<0>(info.param)));
  std::ranges::replace(name, '-', '_');
  name += "_" + std::string(name_of(from_torch(std::get<1>(info.param))));
  return name + (std::get<2>(info.param) ? "_outputs_dense" : "_inputs_dense");
}

INSTANTIATE_TEST_SUITE_P(Levels, Grouped,
                         ::testing::Combine(::testing::ValuesIn(kernels::levels()),
                                            ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                            ::testing::Bool()),
                         name_of_grouped);

}  // namespace
}  // namespace djinn::exec
