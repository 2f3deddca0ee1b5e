// SPDX-License-Identifier: Apache-2.0

// Programs whose numerics are fast: near PyTorch's results, each row as it is alone, and exact
// where nothing of ours fits.
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "kernel/base/random.h"
#include "kernel/exec/allow_list.h"
#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/guarded_memory_fuzz.h"
#include "kernel/exec/own_operators.h"
#include "kernel/srg/rewrite/draft.h"

namespace djinn::exec {
namespace {

using ::testing::HasSubstr;

// x [rows, inputs] times a weight, as nn.Linear has it or turned as GPT-2 has it.
srg::Graph product(srg::Numerics numerics, DType dtype, bool turned, int64_t inputs,
                   int64_t outputs) {
  GraphBuilder b;
  const srg::Expr rows = b.symbol("rows", 1, 64);
  const auto x = b.input("x", dtype, {rows, inputs});
  const auto c = b.weight("b", dtype, {outputs});
  if (turned) {
    const auto w = b.weight("w", dtype, {inputs, outputs});
    b.output(b.call("aten::addmm", {arg(c), arg(x), arg(w)}));
  } else {
    const auto w = b.weight("w", dtype, {outputs, inputs});
    b.output(b.call("aten::linear", {arg(x), arg(w), arg(c)}));
  }
  b.graph.numerics = numerics;
  return b.graph;
}

struct LinearForm {
  at::ScalarType type;
  bool turned;
};

class Fast : public ::testing::TestWithParam<LinearForm> {
 protected:
  static constexpr int64_t kInputs = 600, kOutputs = 300;
  Fast()
      : weight_(noise(GetParam().turned ? std::vector<int64_t>{kInputs, kOutputs}
                                        : std::vector<int64_t>{kOutputs, kInputs},
                      1, GetParam().type)),
        bias_(noise({kOutputs}, 2, GetParam().type)),
        world_({{"w", weight_}, {"b", bias_}}) {}

  srg::Graph graph(srg::Numerics numerics) const {
    return product(numerics, from_torch(GetParam().type), GetParam().turned, kInputs, kOutputs);
  }
  at::Tensor run(const at::Tensor& x) {
    EXPECT_EQ(message_of(world_.run({x.size(0)}, {x})), "");
    return world_.output(0);
  }
  at::Tensor direct(const at::Tensor& x, at::ScalarType type) const {
    const at::Tensor w = weight_.to(type), b = bias_.to(type);
    return GetParam().turned ? at::addmm(b, x.to(type), w) : at::linear(x.to(type), w, b);
  }

  at::Tensor weight_, bias_;
  World world_;
};

TEST_P(Fast, is_as_near_to_the_exact_sum_as_pytorch_is) {
  ASSERT_TRUE(world_.admit(graph(srg::Numerics::kFast)));
  EXPECT_EQ(world_.program->fast_nodes(), 1u);
  for (const int64_t rows : {1, 4, 13, 32, 40}) {
    const at::Tensor x = noise({rows, kInputs}, 3, GetParam().type);
    const at::Tensor exact = direct(x, at::kDouble);
    EXPECT_LE(distance(run(x), exact), 1.5 * distance(direct(x, GetParam().type), exact))
        << rows << " rows";
  }
}

TEST_P(Fast, a_row_is_the_same_alone_and_among_others) {
  ASSERT_TRUE(world_.admit(graph(srg::Numerics::kFast)));
  const at::Tensor x = noise({20, kInputs}, 4, GetParam().type);
  const at::Tensor together = run(x);
  for (int64_t row = 0; row < x.size(0); ++row) {
    const at::Tensor alone = run(x.narrow(0, row, 1).clone());
    ASSERT_TRUE(same_bytes(alone, together.narrow(0, row, 1))) << row;
  }
}

TEST_P(Fast, a_row_has_its_bits_among_many_and_with_any_number_of_threads) {
  ASSERT_TRUE(world_.admit(graph(srg::Numerics::kFast)));
  const at::Tensor x = noise({64, kInputs}, 11, GetParam().type);
  const at::Tensor exact = direct(x, at::kDouble), together = run(x);
  EXPECT_LE(distance(together, exact), 1.5 * distance(direct(x, GetParam().type), exact));
  for (const int threads : {1, 3}) {
    World world({{"w", weight_}, {"b", bias_}}, false, threads);
    ASSERT_TRUE(world.admit(graph(srg::Numerics::kFast)));
    for (const int64_t rows : {1, 8, 32, 33, 40, 64}) {
      ASSERT_EQ(message_of(world.run({rows}, {x.narrow(0, 0, rows).clone()})), "");
      ASSERT_TRUE(same_bytes(world.output(0), together.narrow(0, 0, rows)))
          << rows << " rows, " << threads << " threads";
    }
  }
}

TEST_P(Fast, what_says_exact_has_pytorchs_bits) {
  const at::Tensor x = noise({2, kInputs}, 5, GetParam().type);
  ASSERT_TRUE(world_.admit(graph(srg::Numerics::kExact)));
  EXPECT_EQ(world_.program->fast_nodes(), 0u);
  EXPECT_TRUE(same_bytes(run(x), direct(x, GetParam().type)));
}

// Products of one value are one call, and each gives what it gives by itself.
TEST_P(Fast, products_of_one_value_are_what_each_is_alone) {
  const at::ScalarType type = GetParam().type;
  const DType dtype = from_torch(type);
  World world({{"w0", noise({300, kInputs}, 6, type)},
               {"w1", noise({7, kInputs}, 7, type)},
               {"w2", noise({40, kInputs}, 8, type)},
               {"b", bias_}});
  const auto products = [&](const std::vector<int>& which) {
    GraphBuilder b;
    const srg::Expr rows = b.symbol("rows", 1, 64);
    const auto x = b.input("x", dtype, {rows, kInputs});
    const auto c = b.weight("b", dtype, {kOutputs});
    constexpr std::array<int64_t, 3> kWidths = {300, 7, 40};
    for (const int i : which) {
      const auto w = b.weight("w" + std::to_string(i), dtype, {kWidths.at(i), kInputs});
      b.output(i == 0 ? b.call("aten::linear", {arg(x), arg(w), arg(c)})
                      : b.call("aten::linear", {arg(x), arg(w)}));
    }
    b.graph.numerics = srg::Numerics::kFast;
    return b.graph;
  };
  for (const int64_t rows : {1, 5, 32, 40}) {
    const at::Tensor x = noise({rows, kInputs}, 9, type);
    std::vector<at::Tensor> alone;
    for (const int i : {0, 1, 2}) {
      ASSERT_EQ(message_of(world.admit(products({i}))), "");
      ASSERT_EQ(message_of(world.run({rows}, {x})), "");
      alone.push_back(world.output(0));
    }
    ASSERT_EQ(message_of(world.admit(products({0, 1, 2}))), "");
    EXPECT_EQ(world.program->fast_nodes(), 1u);
    ASSERT_EQ(message_of(world.run({rows}, {x})), "");
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE(same_bytes(world.output(i), alone[i])) << i << " of " << rows << " rows";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, Fast,
    ::testing::Values(LinearForm{at::kFloat, false}, LinearForm{at::kFloat, true},
                      LinearForm{at::kBFloat16, false}, LinearForm{at::kBFloat16, true},
                      LinearForm{at::kHalf, false}),
    [](const ::testing::TestParamInfo<LinearForm>& form) {
      return std::string(c10::toString(form.param.type)) + (form.param.turned ? "Turned" : "");
    });

srg::ExprList list(const std::vector<int64_t>& numbers) {
  return {{numbers.begin(), numbers.end()}};
}

// Rows that lie at no even distances, or one over the other: what they are is computed, whoever
// computes it.
TEST(FastInputs, may_lie_as_they_like) {
  constexpr int64_t kWidth = 40;
  const at::Tensor weight = noise({24, kWidth}, 1);
  World world({{"w", weight}});
  const at::Tensor x = noise({3, kWidth}, 2);
  const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> views = {
      {{3, 4, kWidth}, {kWidth, 0, 1}},        // expanded in the middle
      {{4, 3, kWidth}, {0, kWidth, 1}},        // expanded outside
      {{2, 2, 2, kWidth}, {kWidth, 0, 0, 1}},  // twice
      {{2, 3, kWidth}, {0, 0, 1}},             // everywhere
      {{5, kWidth}, {7, 1}},                   // one over the other
  };
  for (const auto& [sizes, strides] : views) {
    GraphBuilder b;
    const auto in = b.input("x", DType::kFloat32, {3, kWidth});
    const auto w = b.weight("w", DType::kFloat32, {24, kWidth});
    const auto view = b.call("aten::as_strided",
                             {arg(in), arg(list(sizes)), arg(list(strides)), arg(srg::Expr(0))});
    b.output(b.call("aten::linear", {arg(view), arg(w)}));
    b.graph.numerics = srg::Numerics::kFast;
    ASSERT_EQ(message_of(world.admit(b.graph)), "");
    ASSERT_EQ(world.program->fast_nodes(), 1u);
    ASSERT_EQ(message_of(world.run({}, {x})), "");
    const at::Tensor expected = at::linear(x.as_strided(sizes, strides), weight);
    EXPECT_LE(distance(world.output(0), expected), 1e-4);
  }
}

TEST(FastInputs, a_row_is_the_same_however_it_lies) {
  const at::Tensor weight = noise({24, 200}, 1), bias = noise({1}, 2);
  World world({{"w", weight}, {"b", bias}});
  const at::Tensor rows = noise({6, 200}, 3), across = rows.t().contiguous();
  std::vector<at::Tensor> found;
  for (const bool turned : {false, true}) {
    GraphBuilder b;
    const auto w = b.weight("w", DType::kFloat32, {24, 200});
    const auto c = b.weight("b", DType::kFloat32, {1});
    auto x =
        turned ? b.input("x", DType::kFloat32, {200, 6}) : b.input("x", DType::kFloat32, {6, 200});
    if (turned) x = b.call("aten::t", {arg(x)});
    const auto t = b.call("aten::t", {arg(w)});
    b.output(b.call("aten::addmm", {arg(c), arg(x), arg(t)}));
    b.graph.numerics = srg::Numerics::kFast;
    ASSERT_EQ(message_of(world.admit(b.graph)), "");
    ASSERT_EQ(message_of(world.run({}, {{}, {}, turned ? across : rows})), "");
    found.push_back(world.output(0));
  }
  EXPECT_TRUE(same_bytes(found[0], found[1]));
  for (int64_t row = 0; row < rows.size(0); ++row) {
    GraphBuilder b;
    const auto x = b.input("x", DType::kFloat32, {1, 200});
    const auto t = b.call("aten::t", {arg(b.weight("w", DType::kFloat32, {24, 200}))});
    const auto c = b.weight("b", DType::kFloat32, {1});
    b.output(b.call("aten::addmm", {arg(c), arg(x), arg(t)}));
    b.graph.numerics = srg::Numerics::kFast;
    ASSERT_EQ(message_of(world.admit(b.graph)), "");
    ASSERT_EQ(message_of(world.run({}, {rows.narrow(0, row, 1).clone()})), "");
    EXPECT_TRUE(same_bytes(world.output(0), found[0].narrow(0, row, 1))) << row;
  }
}

// A product of random views of 64 floats and of 96: many do not fit.
class RandomProduct {
 public:
  explicit RandomProduct(uint64_t seed) : random_(seed) {
    inputs_ = 1 + static_cast<int64_t>(random_.below(9));
    outputs_ = 1 + static_cast<int64_t>(random_.below(9));
    turned_ = random_.below(2) == 0;
    has_bias_ = random_.below(2) == 0;
    for (uint64_t rank = 1 + random_.below(3); rank > 0; --rank) x_sizes_.push_back(small());
    x_sizes_.push_back(usually(inputs_));
    for (size_t i = 0; i + 1 < x_sizes_.size(); ++i) x_strides_.push_back(random_.below(12));
    x_strides_.push_back(random_.below(4) == 0 ? random_.below(4) : 1);
    w_sizes_ = {turned_ ? inputs_ : outputs_, turned_ ? outputs_ : inputs_};
    w_strides_ = {static_cast<int64_t>(random_.below(11)), 1};
    if (random_.below(3) == 0) std::swap(w_strides_[0], w_strides_[1]);
    offset_ = static_cast<int64_t>(random_.below(8));
    bias_ = usually(outputs_);
  }

  [[nodiscard]] srg::Graph graph(srg::Numerics numerics) const {
    GraphBuilder b;
    const auto all = b.input("x", DType::kFloat32, {64});
    const auto x = b.call("aten::as_strided",
                          {arg(all), arg(list(x_sizes_)), arg(list(x_strides_)), integer(offset_)});
    const auto storage = b.storage(srg::StorageKind::kWeight, "w");
    const auto w =
        b.on_storage(storage, DType::kFloat32, list(w_sizes_).items, list(w_strides_).items);
    b.graph.values.back().offset = offset_;
    const auto c = b.on_storage(storage, DType::kFloat32, {bias_});
    const auto y = !turned_    ? has_bias_ ? b.call("aten::linear", {arg(x), arg(w), arg(c)})
                                           : b.call("aten::linear", {arg(x), arg(w)})
                      : has_bias_ ? b.call("aten::addmm", {arg(c), arg(x), arg(w)})
                               : b.call("aten::matmul", {arg(x), arg(w)});
    b.output(y);
    int64_t elements = outputs_;
    for (size_t i = 0; i + 1 < x_sizes_.size(); ++i) elements *= x_sizes_[i];
    // Where they lie.
    b.output(b.call("aten::as_strided",
                    {arg(y), arg(list({elements})), arg(list({1})), arg(srg::Expr(0))}));
    b.graph.numerics = numerics;
    return b.graph;
  }

 private:
  int64_t small() { return static_cast<int64_t>(random_.below(4)); }
  int64_t usually(int64_t size) { return random_.below(8) == 0 ? small() : size; }

  Random random_;
  int64_t inputs_, outputs_, offset_, bias_;
  bool turned_, has_bias_;
  std::vector<int64_t> x_sizes_, x_strides_, w_sizes_, w_strides_;
};

TEST(FastInputs, fail_as_exact_ones_do_or_are_near_and_nothing_beyond_them_is_read) {
  GuardedMemory memory(1 << 20);
  const auto guarded = [&](int64_t floats, uint64_t seed) {
    const at::Tensor values = noise({floats}, seed);
    const std::span<std::byte> block = memory.place(values.nbytes(), alignof(float));
    std::memcpy(block.data(), values.const_data_ptr(), values.nbytes());
    return at::from_blob(block.data(), {floats}, at::kFloat);
  };
  const at::Tensor x = guarded(64, 1);
  World world({{"w", guarded(96, 2)}});
  size_t computed = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const RandomProduct product(seed);
    const Status exact = world.admit(product.graph(srg::Numerics::kExact));
    Outcome<void> ran = exact ? world.run({}, {x}) : exact.error();
    std::vector<at::Tensor> expected;
    for (size_t i = 0; ran && i < 2; ++i) expected.push_back(world.output(i));
    const Status fast = world.admit(product.graph(srg::Numerics::kFast));
    ASSERT_EQ(message_of(fast), message_of(exact)) << seed;
    if (!fast) continue;
    ASSERT_EQ(code_of(world.run({}, {x})), code_of(ran)) << seed;
    if (!ran) continue;
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_EQ(world.output(i).sizes(), expected[i].sizes()) << seed;
      ASSERT_LE(distance(world.output(i), expected[i]), 1e-4) << seed;
    }
    computed += world.program->fast_nodes();
  }
  EXPECT_GE(computed, 100u);
}

// What a pass takes together binds nothing, whatever the graph says of what is inside.
TEST(FastInputs, that_nodes_inside_view_are_not_bound) {
  GraphBuilder b;
  const srg::Expr rows = b.symbol("rows", 0, 4);
  const auto x = b.input("x", DType::kFloat32, {rows, 8});
  const auto cos = b.input("cos", DType::kFloat32, {1, 8});
  const auto view = [&](int64_t width, int64_t offset) {
    const auto made = b.call("aten::as_strided", {arg(x), arg(srg::ExprList{{rows, width}}),
                                                  arg(list({8, 1})), integer(offset)});
    b.graph.values[made.id].storage = 0;
    b.graph.values[made.id].dtype = DType::kFloat32;
    return made;
  };
  const auto all = view(8, 0), second = view(4, 4), first = view(4, 0);
  const auto negated = b.call("aten::neg", {arg(second)});
  const auto turned =
      b.call("aten::cat", {arg(srg::ValueList{{negated.id, first.id}}), integer(-1)});
  const auto plain = b.call("aten::mul.Tensor", {arg(all), arg(cos)});
  const auto other = b.call("aten::mul.Tensor", {arg(turned), arg(cos)});
  b.output(b.call("aten::add.Tensor", {arg(plain), arg(other)}));
  World world({});
  for (const srg::Numerics numerics : {srg::Numerics::kExact, srg::Numerics::kFastOnly}) {
    b.graph.numerics = numerics;
    ASSERT_EQ(message_of(world.admit(b.graph)), "");
    for (const int64_t some : {0, 3}) {
      EXPECT_EQ(message_of(world.run({some}, {noise({some, 8}, 1), noise({1, 8}, 2)})), "");
    }
  }
}

TEST(FastOnly, a_graph_without_a_fast_form_is_refused_with_the_reasons) {
  World world({});
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {4, 8});
  const auto w = b.input("w", DType::kFloat32, {8, 8});
  b.output(b.call("aten::mm", {arg(x), arg(w)}));
  b.graph.numerics = srg::Numerics::kFast;
  ASSERT_TRUE(world.admit(b.graph));
  EXPECT_EQ(world.program->fast_nodes(), 0u);
  b.graph.numerics = srg::Numerics::kFastOnly;
  const Status refused = world.admit(b.graph);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("linear: its weight is computed"));
}

TEST(FastOnly, a_graph_of_whose_products_with_weights_one_stays_is_refused) {
  World world({{"w", noise({4, 8}, 1)}, {"other", noise({4, 8}, 1, at::kDouble)}});
  const auto graph = [](bool has_other) {
    GraphBuilder b;
    const auto x = b.input("x", DType::kFloat32, {2, 8});
    const auto w = b.weight("w", DType::kFloat32, {4, 8});
    b.output(b.call("aten::linear", {arg(x), arg(w)}));
    if (has_other) {
      const auto y = b.input("y", DType::kFloat64, {2, 8});
      const auto other = b.weight("other", DType::kFloat64, {4, 8});
      b.output(b.call("aten::linear", {arg(y), arg(other)}));
    }
    b.graph.numerics = srg::Numerics::kFastOnly;
    return b.graph;
  };
  EXPECT_EQ(message_of(world.admit(graph(false))), "");
  const Status refused = world.admit(graph(true));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("products with its weights have no fast form"));
  EXPECT_THAT(refused.error().message, HasSubstr("linear: its dtype has no kernel (1 nodes)"));
}

TEST(Rewriting, knows_by_their_names_which_operators_write_an_argument) {
  register_operators();
  for (const std::string_view name : allowed_operators()) {
    const auto op = resolve_operator(name);
    if (!op) continue;  // not of this LibTorch
    const auto& arguments = (*op)->handle.schema().arguments();
    const bool writes = std::any_of(arguments.begin(), arguments.end(), [](const auto& argument) {
      return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    });
    EXPECT_EQ(srg::writes_an_argument(name), writes) << name;
  }
}

TEST(InternalOperators, are_no_clients) {
  World world({});
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {4, 8});
  const auto w = b.input("w", DType::kFloat32, {8, 8});
  b.output(b.call("djinn::linear_rows", {arg(x), arg(w), {"", srg::None{}}, {"", true}}));
  b.graph.numerics = srg::Numerics::kFast;
  EXPECT_EQ(world.admit(b.graph).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace djinn::exec
