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
#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/program.h"
#include "kernel/srg/text.h"

namespace djinn::exec {
namespace {

std::string replaced(std::string text, const std::map<std::string, std::string>& words) {
  for (const auto& [word, by] : words) {
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
      text.replace(at, word.size(), by);
    }
  }
  return text;
}

// h = x in float32 and nn = n in D, as captures cast.
constexpr const char* kCastsIn =
    "%z = aten::zeros([ALL], dtype=float32)\n"
    "%h = aten::as_strided(%z, [ROWS, 1, 64], [64, 64, 1], 0)\n"
    "%c = aten::copy_(%h, %x, false)\n";
constexpr const char* kCastsOut =
    "%zz = aten::zeros([ALL], dtype=D)\n"
    "%nn = aten::as_strided(%zz, [ROWS, 1, 64], [64, 64, 1], 0)\n"
    "%cc = aten::copy_(%nn, %n, false)\n";
constexpr const char* kLayer =
    "input %x : D[ROWS, 1, 64]\n"
    "input %keys : D[ROWS, 2, 40, 16]\n"
    "input %values : D[ROWS, 2, 40, 16]\n"
    "input %mask : bool[ROWS, 1, 1, 40]\n"
    "input %cos : D[ROWS, 1, 1, 16]\n"
    "input %sin : D[ROWS, 1, 1, 16]\n"
    "weight %w \"norm\" : D[64]\n"
    "weight %wq \"q\" : D[64, 64]\n"
    "weight %bq \"qb\" : D[64]\n"
    "weight %wo \"o\" : D[64, 64]\n"
    "weight %wg \"gate\" : D[128, 64]\n"
    "weight %wu \"up\" : D[128, 64]\n"
    "weight %wd \"down\" : D[128, 64]\n"
    "CASTSIN"
    "%p = aten::pow.Tensor_Scalar(H, 2)\n"
    "%m = aten::mean.dim(%p, [-1], true)\n"
    "%a = aten::add.Tensor(%m, 1e-06, alpha=1)\n"
    "%r = aten::rsqrt(%a)\n"
    "%n : WIDE[ROWS, 1, 64] = aten::mul.Tensor(H, %r)\n"
    "CASTSOUT"
    "%norm = aten::mul.Tensor(%w, N)\n"
    "%q = aten::linear(%norm, %wq, %bq)\n"
    "%qh = aten::as_strided(%q, [ROWS, 4, 1, 16], [64, 16, 64, 1], 0)\n"
    "%qc = aten::mul.Tensor(%qh, %cos)\n"
    "%q2 = aten::as_strided(%q, [ROWS, 4, 1, 8], [64, 16, 64, 1], 8)\n"
    "%qn = aten::neg(%q2)\n"
    "%q1 = aten::as_strided(%q, [ROWS, 4, 1, 8], [64, 16, 64, 1], 0)\n"
    "%qt = aten::cat([%qn, %q1], -1)\n"
    "%qs = aten::mul.Tensor(%qt, %sin)\n"
    "%qr = aten::add.Tensor(%qc, %qs, alpha=1)\n"
    "%at = aten::scaled_dot_product_attention(%qr, %keys, %values, %mask, 0.0, false, scale=0.25, "
    "enable_gqa=true)\n"
    "%atf = aten::reshape(%at, [ROWS, 1, 64])\n"
    "%o = aten::linear(%atf, %wo)\n"
    "%mid = aten::add.Tensor(%x, %o, alpha=1)\n"
    "%g = aten::linear(%mid, %wg)\n"
    "%s = aten::silu(%g)\n"
    "%u = aten::linear(%mid, %wu)\n"
    "%gu = aten::mul.Tensor(%s, %u)\n"
    "%flat = aten::reshape(%gu, [ROWS, 128])\n"
    "%dn = aten::addmm(%bq, %flat, %wd, beta=1, alpha=1)\n"
    "%back = aten::reshape(%dn, [ROWS, 1, 64])\n"
    "%d = aten::add.Tensor(%mid, %back, alpha=1)\n"
    "output %d\n";

srg::Graph layer(at::ScalarType type, int64_t rows, srg::Numerics numerics) {
  const bool is_narrow = type == at::kBFloat16 || type == at::kHalf;
  const std::string dtype(name_of(from_torch(type)));
  std::string text = replaced(
      kLayer, {{"CASTSIN", is_narrow ? kCastsIn : ""}, {"CASTSOUT", is_narrow ? kCastsOut : ""}});
  text = replaced(
      text, {{"(H", is_narrow ? "(%h" : "(%x"}, {"%w, N)", is_narrow ? "%w, %nn)" : "%w, %n)"}});
  text = replaced(text, {{"WIDE", is_narrow ? "float32" : dtype},
                         {"ROWS", std::to_string(rows)},
                         {"ALL", std::to_string(rows * 64)},
                         {"D[", dtype + "["},
                         {"dtype=D", "dtype=" + dtype}});
  Result<srg::Graph> graph = srg::parse_text("srg 1 \"layer\"\n" + text);
  EXPECT_TRUE(graph.ok()) << graph.error().message;
  graph->numerics = numerics;
  return *std::move(graph);
}

std::map<std::string, at::Tensor> weights(at::ScalarType type) {
  std::map<std::string, at::Tensor> made;
  const std::vector<std::pair<const char*, std::vector<int64_t>>> all = {
      {"norm", {64}},      {"q", {64, 64}},   {"qb", {64}},       {"o", {64, 64}},
      {"gate", {128, 64}}, {"up", {128, 64}}, {"down", {128, 64}}};
  uint64_t seed = 1;
  for (const auto& [name, sizes] : all) made[name] = noise(sizes, seed++, type);
  return made;
}

// Rows [begin, begin + rows) of some.
std::vector<at::Tensor> inputs(at::ScalarType type, int64_t begin, int64_t rows) {
  constexpr int64_t kRows = 5;
  std::vector<at::Tensor> all = {
      noise({kRows, 1, 64}, 20, type),     noise({kRows, 2, 40, 16}, 21, type),
      noise({kRows, 2, 40, 16}, 22, type), at::zeros({kRows, 1, 1, 40}, at::kBool),
      noise({kRows, 1, 1, 16}, 23, type),  noise({kRows, 1, 1, 16}, 24, type)};
  bool* const mask = all[3].mutable_data_ptr<bool>();
  for (int64_t row = 0; row < kRows; ++row) {  // padding before, of another length in each row
    std::fill(mask + row * 40 + row * 3, mask + (row + 1) * 40, true);
  }
  for (at::Tensor& one : all) one = one.narrow(0, begin, rows).clone();
  return all;
}

at::Tensor run(World& world, at::ScalarType type, int64_t begin, int64_t rows,
               srg::Numerics numerics) {
  EXPECT_EQ(message_of(world.admit(layer(type, rows, numerics))), "");
  EXPECT_EQ(message_of(world.run({}, inputs(type, begin, rows))), "");
  return world.output(0);
}

class FastLayer : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(FastLayer, every_pass_fires) {
  World world(weights(GetParam()));
  ASSERT_EQ(message_of(world.admit(layer(GetParam(), 2, srg::Numerics::kFast))), "");
  const auto& program = dynamic_cast<const CpuProgram&>(*world.program);
  for (const srg::PassReport& pass : program.admitted().passes) {
    const bool may_rest = pass.name == "casts" && GetParam() == at::kFloat;
    EXPECT_TRUE(pass.fired > 0 || may_rest) << pass.name;
    EXPECT_TRUE(pass.reasons.empty()) << pass.name << ": " << pass.reasons.begin()->first;
  }
}

TEST_P(FastLayer, is_as_near_to_the_double_as_pytorch_is) {
  World world(weights(GetParam()));
  const at::Tensor exact = run(world, GetParam(), 0, 5, srg::Numerics::kExact);
  const at::Tensor fast = run(world, GetParam(), 0, 5, srg::Numerics::kFast);
  std::map<std::string, at::Tensor> doubles = weights(GetParam());
  for (auto& [name, tensor] : doubles) tensor = tensor.to(at::kDouble);
  World precise(doubles);
  ASSERT_EQ(message_of(precise.admit(layer(at::kDouble, 5, srg::Numerics::kExact))), "");
  std::vector<at::Tensor> given = inputs(GetParam(), 0, 5);
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
  World world(weights(GetParam()));
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

  explicit Rows(at::ScalarType type) : world(weights(type), true) {
    EXPECT_EQ(message_of(world.admit(layer(type, 1, srg::Numerics::kFast))), "");
    for (size_t row = 0; row < kCount; ++row) {
      given_.push_back(inputs(type, static_cast<int64_t>(row), 1));
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
  EXPECT_EQ(message_of(rows.world.run({}, inputs(GetParam(), 1, 1))), "");
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
  World planned(weights(GetParam()), true);
  ASSERT_EQ(message_of(planned.admit(layer(GetParam(), 1, srg::Numerics::kFast))), "");
  Rows rows(GetParam());
  EXPECT_EQ(planned.lane->run_together(*planned.program, rows.together({0, 1})),
            std::vector<bool>(2, false));
}

INSTANTIATE_TEST_SUITE_P(Types, FastLayer, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& type) { return std::string(c10::toString(type.param)); });

}  // namespace
}  // namespace djinn::exec
