// SPDX-License-Identifier: Apache-2.0

// A decoder's layer as captures have it, over keys and values that are inputs here: all passes
// fire, the result is as near to float64's as the exact one's is, and rows are as they are alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernel/exec/cpu_executor.h"
#include "kernel/exec/layer_for_tests.h"
#include "kernel/exec/program.h"

namespace djinn::exec {
namespace {

at::Tensor run(World& world, at::ScalarType type, int64_t begin, int64_t rows,
               srg::Numerics numerics) {
  EXPECT_EQ(message_of(world.admit(layer_graph(type, rows, numerics))), "");
  EXPECT_EQ(message_of(world.run({}, layer_inputs(type, begin, rows))), "");
  return world.output(0);
}

class FastLayer : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(FastLayer, every_pass_fires) {
  World world(layer_weights(GetParam()));
  ASSERT_EQ(message_of(world.admit(layer_graph(GetParam(), 2, srg::Numerics::kFast))), "");
  const auto& program = dynamic_cast<const CpuProgram&>(*world.program);
  for (const srg::PassReport& pass : program.admitted().passes) {
    const bool may_rest = pass.name == "casts" && GetParam() == at::kFloat;
    EXPECT_TRUE(pass.fired > 0 || may_rest) << pass.name;
    EXPECT_TRUE(pass.reasons.empty()) << pass.name << ": " << pass.reasons.begin()->first;
  }
}

TEST_P(FastLayer, is_as_near_to_the_double_as_pytorch_is) {
  World world(layer_weights(GetParam()));
  const at::Tensor exact = run(world, GetParam(), 0, 5, srg::Numerics::kExact);
  const at::Tensor fast = run(world, GetParam(), 0, 5, srg::Numerics::kFast);
  std::map<std::string, at::Tensor> doubles = layer_weights(GetParam());
  for (auto& [name, tensor] : doubles) tensor = tensor.to(at::kDouble);
  World precise(doubles);
  ASSERT_EQ(message_of(precise.admit(layer_graph(at::kDouble, 5, srg::Numerics::kExact))), "");
  std::vector<at::Tensor> given = layer_inputs(GetParam(), 0, 5);
  for (at::Tensor& one : given) {
    if (one.scalar_type() != at::kBool) one = one.to(at::kDouble);
  }
  ASSERT_EQ(message_of(precise.run({}, given)), "");
  const at::Tensor wanted = precise.output(0);
  EXPECT_GT(distance(fast, exact), 0) << "nothing of it is ours";
  EXPECT_LE(distance(fast, wanted), 1.5 * distance(exact, wanted));
}

// The row contract.
TEST_P(FastLayer, a_row_is_the_same_alone_and_among_others) {
  World world(layer_weights(GetParam()));
  const at::Tensor together = run(world, GetParam(), 0, 5, srg::Numerics::kFast);
  for (int64_t row = 0; row < 5; ++row) {
    const at::Tensor alone = run(world, GetParam(), row, 1, srg::Numerics::kFast);
    EXPECT_TRUE(same_bytes(alone, together.narrow(0, row, 1))) << row;
  }
}

// The runs of five rows, each by itself, of a program that a run of each has planned.
class Rows {
 public:
  static constexpr size_t kCount = 5;

  explicit Rows(at::ScalarType type) : world(layer_weights(type), true) {
    EXPECT_EQ(message_of(world.admit(layer_graph(type, 1, srg::Numerics::kFast))), "");
    for (size_t row = 0; row < kCount; ++row) {
      given_.push_back(layer_inputs(type, static_cast<int64_t>(row), 1));
      for (const at::Tensor& one : given_.back()) {
        bindings_[row].push_back(World::binding_of(one, false));
      }
      bindings_[row].resize(world.program->graph().storages.size());
      EXPECT_EQ(message_of(world.run({}, given_.back())), "");
      alone.push_back(world.output(0));
    }
  }

  // As many runs as there are rows, in any order, with an owner each.
  std::vector<RunTogether> together(const std::vector<size_t>& rows) const {
    std::vector<RunTogether> runs;
    for (const size_t row : rows) {
      runs.push_back({{{}, bindings_[row]}, {row + 1, UINT64_MAX}, nullptr});
    }
    return runs;
  }

  void expect_as_alone(size_t run, size_t row) const {
    const OutputView& view = world.lane->outputs_of(run)[0];
    at::Tensor tensor = at::zeros(view.sizes, alone[row].scalar_type());
    const std::span<std::byte> bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()),
                                     tensor.nbytes());
    ASSERT_TRUE(copy_elements(view, bytes).ok());
    EXPECT_TRUE(same_bytes(tensor, alone[row])) << row;
  }

  World world;
  std::vector<at::Tensor> alone;

 private:
  std::vector<std::vector<at::Tensor>> given_;
  std::array<std::vector<StorageBinding>, kCount> bindings_;
};

TEST_P(FastLayer, runs_together_have_the_bytes_that_each_has_alone) {
  Rows rows(GetParam());
  const std::vector<std::vector<size_t>> orders = {
      {0, 1}, {0, 1, 2, 3, 4}, {4, 2, 0}, {1, 3}, {3, 1, 2, 0, 4}};
  uint64_t runs = 0;
  for (const std::vector<size_t>& order : orders) {
    const std::vector<bool> done =
        rows.world.lane->run_together(*rows.world.program, rows.together(order));
    runs += order.size();
    EXPECT_EQ(done, std::vector<bool>(order.size(), true));
    for (size_t i = 0; i < order.size(); ++i) rows.expect_as_alone(i, order[i]);
  }
  EXPECT_EQ(rows.world.lane->stats().runs_together, runs);
  EXPECT_EQ(rows.world.lane->stats().plan_misses, 0u);
}

TEST_P(FastLayer, of_runs_together_one_that_is_given_up_ends_alone) {
  Rows rows(GetParam());
  const size_t steps = dynamic_cast<const CpuProgram&>(*rows.world.program).admitted().steps.size();
  for (size_t last = 0; last < steps; ++last) {
    std::vector<RunTogether> runs = rows.together({0, 1, 2});
    size_t begun = 0;
    runs[1].pulse = [&](std::string_view) { return begun++ < last; };
    EXPECT_EQ(rows.world.lane->run_together(*rows.world.program, runs),
              (std::vector<bool>{true, false, true}));
    rows.expect_as_alone(0, 0);
    rows.expect_as_alone(2, 2);
  }
  EXPECT_EQ(message_of(rows.world.run({}, layer_inputs(GetParam(), 1, 1))), "");
  EXPECT_TRUE(same_bytes(rows.world.output(0), rows.alone[1]));
}

TEST_P(FastLayer, what_may_not_have_its_places_is_left_to_run_alone) {
  Rows rows(GetParam());
  std::vector<RunTogether> runs = rows.together({0, 1, 2});
  runs[2].owner.bytes_max = 64;
  EXPECT_EQ(rows.world.lane->run_together(*rows.world.program, runs),
            (std::vector<bool>{true, true, false}));
  runs[1].owner.bytes_max = 64;
  EXPECT_EQ(rows.world.lane->run_together(*rows.world.program, runs), std::vector<bool>(3, false))
      << "one alone is not together";
}

TEST_P(FastLayer,
       without_a_larger_slab_as_many_run_together_as_it_holds_in_turns_and_it_is_not_asked_again) {
  Rows rows(GetParam());
  std::vector<size_t> many;
  for (size_t i = 0; i < 500; ++i) many.push_back(i % Rows::kCount);
  size_t asked = 0;
  rows.world.slab.refuse = [&] { ++asked; };
  for (size_t again = 0; again < 2; ++again) {
    const std::vector<bool> done =
        rows.world.lane->run_together(*rows.world.program, rows.together(many));
    const auto count = static_cast<size_t>(std::ranges::count(done, true));
    EXPECT_GT(count, 1u);
    EXPECT_LT(count, many.size());
    for (size_t i = again * count; i < (again + 1) * count; ++i) {
      EXPECT_TRUE(done[i]) << "the first ones, then those behind";
      rows.expect_as_alone(i, many[i]);
    }
  }
  EXPECT_EQ(asked, 1u);
}

TEST_P(FastLayer, what_has_no_plan_is_left_to_run_alone) {
  World planned(layer_weights(GetParam()), true);
  ASSERT_EQ(message_of(planned.admit(layer_graph(GetParam(), 1, srg::Numerics::kFast))), "");
  Rows rows(GetParam());
  EXPECT_EQ(planned.lane->run_together(*planned.program, rows.together({0, 1})),
            std::vector<bool>(2, false));
}

INSTANTIATE_TEST_SUITE_P(Types, FastLayer, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& type) { return std::string(c10::toString(type.param)); });

}  // namespace
}  // namespace djinn::exec
