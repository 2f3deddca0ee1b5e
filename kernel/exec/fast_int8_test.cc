// SPDX-License-Identifier: Apache-2.0

// Programs of models whose matrices are int8: near what the widened matrices give, each row as it
// is alone; and refused where something else reads such a matrix, or where they are to be exact.
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/base/int8_rows.h"
#include "kernel/exec/executor_for_tests.h"

namespace djinn::exec {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A matrix in int8, and what it is widened to.
struct Int8Weight {
  explicit Int8Weight(const at::Tensor& given)
      : widened(at::zeros(given.sizes(), at::kFloat)),
        bytes(at::zeros({given.size(0), int8_row_bytes(given.size(1))}, at::kByte)) {
    const at::Tensor values = given.to(at::kFloat).contiguous();
    const int64_t columns = given.size(1);
    for (int64_t row = 0; row < given.size(0); ++row) {
      for (int64_t begin = 0; begin < columns; begin += kInt8Block) {
        make_block(values.const_data_ptr<float>() + row * columns + begin,
                   std::min<int64_t>(kInt8Block, columns - begin), row, begin);
      }
    }
  }

  void make_block(const float* values, int64_t count, int64_t row, int64_t begin) {
    const int64_t columns = widened.size(1);
    auto* const to = bytes.mutable_data_ptr<uint8_t>() + row * bytes.size(1);
    constexpr float kScale = 0.0078125f;  // of values below one; exact in bfloat16
    const uint16_t scale_bits = 0x3c00;   // its bits
    for (int64_t i = 0; i < count; ++i) {
      const auto nearest = static_cast<int8_t>(std::lround(std::min(values[i] / kScale, 127.0f)));
      std::memcpy(to + begin + i, &nearest, 1);
      widened.mutable_data_ptr<float>()[row * columns + begin + i] = nearest * kScale;
    }
    std::memcpy(to + int8_scales_offset(columns) + begin / kInt8Block * 2, &scale_bits, 2);
  }

  [[nodiscard]] Weight weight(std::string name, at::ScalarType type) const {
    return {std::move(name), from_torch(type), widened.sizes().vec(),
            static_cast<const std::byte*>(bytes.const_data_ptr()), srg::WeightForm::kInt8};
  }

  at::Tensor widened, bytes;
};

srg::ValueRef view_of_w(GraphBuilder& b, srg::ValueRef w, const std::string& how) {
  constexpr int64_t kRows = 300, kColumns = 600;
  if (how == "t") return b.call("aten::t", {arg(w)});
  const bool is_part = how == "part";
  const srg::ExprList half{{kRows / 2, kColumns}}, turned{{kColumns, kRows}};
  const srg::ExprList in_order{{kColumns, 1}}, across{{1, kColumns}};
  return b.call("aten::as_strided", {arg(w), arg(is_part ? half : turned),
                                     arg(is_part ? in_order : across), integer(0)});
}

class FastInt8 : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static constexpr int64_t kInputs = 600, kOutputs = 300, kVocabulary = 90;

  FastInt8()
      : w_(noise({kOutputs, kInputs}, 1)),
        turned_(noise({kInputs, kOutputs}, 2)),
        other_(noise({40, kInputs}, 3)),
        table_(noise({kVocabulary, kInputs}, 4)),
        bias_(noise({kOutputs}, 5, GetParam())),
        world_({}) {
    world_.weights = table();
  }

  WeightTable table() const {
    return WeightTable(
        {w_.weight("w", GetParam()),
         turned_.weight("turned", GetParam()),
         other_.weight("other", GetParam()),
         table_.weight("table", GetParam()),
         {"b", dtype(), {kOutputs}, static_cast<const std::byte*>(bias_.const_data_ptr())}});
  }

  static DType dtype() { return from_torch(GetParam()); }
  static srg::Numerics fast() { return srg::Numerics::kFast; }

  // x [rows, kInputs], and what `make` makes of it.
  template <typename Make>
  srg::Graph graph(const Make& make, srg::Numerics numerics = fast()) {
    GraphBuilder b;
    const srg::Expr rows = b.symbol("rows", 1, 64);
    const auto x = b.input("x", dtype(), {rows, kInputs});
    b.output(make(b, x));
    b.graph.numerics = numerics;
    return b.graph;
  }
  static srg::ValueRef weight(GraphBuilder& b, const std::string& name) {
    const std::map<std::string, std::vector<srg::Expr>> sizes{{"w", {kOutputs, kInputs}},
                                                              {"turned", {kInputs, kOutputs}},
                                                              {"other", {40, kInputs}},
                                                              {"table", {kVocabulary, kInputs}},
                                                              {"b", {kOutputs}}};
    return b.weight(name, dtype(), sizes.at(name));
  }
  srg::Graph linear() {
    return graph([](GraphBuilder& b, srg::ValueRef x) {
      return b.call("aten::linear", {arg(x), arg(weight(b, "w")), arg(weight(b, "b"))});
    });
  }
  srg::Graph addmm() {
    return graph([](GraphBuilder& b, srg::ValueRef x) {
      return b.call("aten::addmm", {arg(weight(b, "b")), arg(x), arg(weight(b, "turned"))});
    });
  }

  at::Tensor run(const at::Tensor& x) {
    EXPECT_EQ(message_of(world_.run({x.size(0)}, {x})), "");
    return world_.output(0);
  }
  // How far off, of the size of what it should be.
  static double error(const at::Tensor& found, const at::Tensor& expected) {
    return distance(found, expected) / distance(expected, at::zeros(expected.sizes(), at::kDouble));
  }
  // Of the dtype, and of rows that are made int8.
  static double rounding() { return GetParam() == at::kBFloat16 ? 4e-3 : 5e-4; }
  static constexpr double kOfInt8Rows = 1e-2;

  Int8Weight w_, turned_, other_, table_;
  at::Tensor bias_;
  World world_;
};

TEST_P(FastInt8, products_are_near_those_with_the_widened_matrix) {
  for (const bool turned : {false, true}) {
    ASSERT_EQ(message_of(world_.admit(turned ? addmm() : linear())), "");
    EXPECT_EQ(world_.program->fast_nodes(), 1u);
    for (const int64_t rows : {1, 4, 13, 32, 40}) {
      const at::Tensor x = noise({rows, kInputs}, 6, GetParam());
      const at::Tensor wide = x.to(at::kDouble);
      const at::Tensor expected = (turned ? at::matmul(wide, turned_.widened.to(at::kDouble))
                                          : at::linear(wide, w_.widened.to(at::kDouble))) +
                                  bias_.to(at::kDouble);
      // Where inputs are first, rows are not made int8.
      EXPECT_LE(error(run(x), expected), turned ? rounding() : kOfInt8Rows) << rows;
    }
  }
}

TEST_P(FastInt8, a_row_is_the_same_alone_and_among_others) {
  for (const bool turned : {false, true}) {
    ASSERT_EQ(message_of(world_.admit(turned ? addmm() : linear())), "");
    const at::Tensor x = noise({turned ? 32 : 50, kInputs}, 7, GetParam());
    const at::Tensor together = run(x);
    for (int64_t row = 0; row < x.size(0); ++row) {
      const at::Tensor alone = run(x.narrow(0, row, 1).clone());
      ASSERT_TRUE(same_bytes(alone, together.narrow(0, row, 1))) << row;
    }
  }
}

TEST_P(FastInt8, however_the_graph_turns_the_matrix_the_product_is_the_same) {
  const at::Tensor x = noise({3, kInputs}, 8, GetParam());
  const auto product = [&](const std::string& how) {
    EXPECT_EQ(message_of(world_.admit(graph([&](GraphBuilder& b, srg::ValueRef input) {
                return b.call("aten::matmul", {arg(input), arg(view_of_w(b, weight(b, "w"), how))});
              }))),
              "");
    return run(x);
  };
  ASSERT_EQ(message_of(world_.admit(graph([](GraphBuilder& b, srg::ValueRef input) {
              return b.call("aten::linear", {arg(input), arg(weight(b, "w"))});
            }))),
            "");
  const at::Tensor plain = run(x);
  EXPECT_TRUE(same_bytes(product("t"), plain));
  EXPECT_TRUE(same_bytes(product("as_strided"), plain));
  ASSERT_EQ(message_of(world_.admit(graph([](GraphBuilder& b, srg::ValueRef input) {
              const auto storage = b.storage(srg::StorageKind::kWeight, "w");
              const auto bound = b.on_storage(storage, dtype(), {kInputs, kOutputs}, {1, kInputs});
              return b.call("aten::mm", {arg(input), arg(bound)});
            }))),
            "");
  EXPECT_TRUE(same_bytes(run(x), plain));
}

TEST_P(FastInt8, a_linear_of_three_dimensions_may_turn_a_matrix_whose_inputs_are_first) {
  GraphBuilder b;
  const srg::Expr rows = b.symbol("rows", 1, 64);
  const auto x = b.input("x", dtype(), {2, rows, kInputs});
  const auto w = b.call("aten::t", {arg(weight(b, "turned"))});
  b.output(b.call("aten::linear", {arg(x), arg(w), arg(weight(b, "b"))}));
  b.graph.numerics = fast();
  ASSERT_EQ(message_of(world_.admit(b.graph)), "");
  const at::Tensor given = noise({2, 3, kInputs}, 9, GetParam());
  ASSERT_EQ(message_of(world_.run({3}, {given})), "");
  const at::Tensor expected =
      at::matmul(given.to(at::kDouble), turned_.widened.to(at::kDouble)) + bias_.to(at::kDouble);
  EXPECT_LE(error(world_.output(0), expected), rounding());
}

TEST_P(FastInt8, products_of_one_value_are_what_each_is_alone) {
  const auto one = [&](const std::string& name) {
    return graph([&](GraphBuilder& b, srg::ValueRef x) {
      return b.call("aten::linear", {arg(x), arg(weight(b, name))});
    });
  };
  for (const int64_t rows : {1, 40}) {
    const at::Tensor x = noise({rows, kInputs}, 9, GetParam());
    std::vector<at::Tensor> alone;
    for (const char* const name : {"w", "other", "table"}) {
      ASSERT_EQ(message_of(world_.admit(one(name))), "");
      alone.push_back(run(x));
    }
    ASSERT_EQ(message_of(world_.admit(graph([](GraphBuilder& b, srg::ValueRef input) {
                for (const char* const name : {"w", "other"}) {
                  b.output(b.call("aten::linear", {arg(input), arg(weight(b, name))}));
                }
                return b.call("aten::linear", {arg(input), arg(weight(b, "table"))});
              }))),
              "");
    EXPECT_EQ(world_.program->fast_nodes(), 1u);
    run(x);
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE(same_bytes(world_.output(i), alone[i])) << i << " of " << rows << " rows";
    }
  }
}

TEST_P(FastInt8, runs_together_have_the_bytes_that_each_has_alone) {
  for (const bool turned : {false, true}) {
    World world({}, true);
    world.weights = table();
    GraphBuilder b;
    const auto x = b.input("x", dtype(), {1, kInputs});
    b.output(turned ? b.call("aten::mm", {arg(x), arg(weight(b, "turned"))})
                    : b.call("aten::linear", {arg(x), arg(weight(b, "w"))}));
    b.graph.numerics = fast();
    ASSERT_EQ(message_of(world.admit(b.graph)), "");
    std::vector<at::Tensor> given, alone;
    std::vector<std::vector<StorageBinding>> bindings(3);
    std::vector<RunTogether> runs;
    for (size_t row = 0; row < bindings.size(); ++row) {
      given.push_back(noise({1, kInputs}, 10 + row, GetParam()));
      ASSERT_EQ(message_of(world.run({}, {given[row]})), "");
      alone.push_back(world.output(0));
      bindings[row] = {World::binding_of(given[row], false), {}};
      runs.push_back({{{}, bindings[row]}, {row + 1, UINT64_MAX}, nullptr});
    }
    ASSERT_EQ(world.lane->run_together(*world.program, runs), std::vector<bool>(3, true));
    for (size_t row = 0; row < runs.size(); ++row) {
      at::Tensor found = at::zeros({1, kOutputs}, GetParam());
      const std::span<std::byte> bytes(static_cast<std::byte*>(found.mutable_data_ptr()),
                                       found.nbytes());
      ASSERT_TRUE(copy_elements(world.lane->outputs_of(row)[0], bytes).ok());
      EXPECT_TRUE(same_bytes(found, alone[row])) << row;
    }
  }
}

// As a language model has it whose embedding is its head.
TEST_P(FastInt8, one_matrix_is_looked_up_and_multiplied_with) {
  GraphBuilder b;
  const srg::Expr tokens = b.symbol("tokens", 1, 64);
  const auto ids = b.input("ids", DType::kInt64, {tokens});
  const auto table = weight(b, "table");
  const auto rows = b.call("aten::embedding", {arg(table), arg(ids)});
  b.output(rows);
  b.output(b.call("aten::linear", {arg(rows), arg(table)}));
  b.graph.numerics = srg::Numerics::kFastOnly;
  ASSERT_EQ(message_of(world_.admit(b.graph)), "");
  const at::Tensor wanted = int64s({4}, {7, 0, kVocabulary - 1, 7});
  ASSERT_EQ(message_of(world_.run({4}, {wanted})), "");
  const at::Tensor expected = at::embedding(table_.widened, wanted);
  EXPECT_TRUE(same_bytes(world_.output(0), expected.to(GetParam())));
  EXPECT_LE(error(world_.output(1), at::linear(expected, table_.widened)), kOfInt8Rows);

  for (const int64_t bad : {int64_t{-1}, kVocabulary, INT64_MIN}) {
    EXPECT_THAT(message_of(world_.run({1}, {int64s({1}, {bad})})), HasSubstr("of 90 rows"));
  }
}

TEST_P(FastInt8, exact_numerics_are_refused_and_say_what_to_ask_for) {
  const Status refused = world_.admit(graph(
      [](GraphBuilder& b, srg::ValueRef x) {
        return b.call("aten::linear", {arg(x), arg(weight(b, "w"))});
      },
      srg::Numerics::kExact));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr("int8"), HasSubstr("numerics fast")));
}

TEST_P(FastInt8, who_reads_a_matrix_otherwise_is_named) {
  const auto refused = [&](const auto& make) {
    const Status status = world_.admit(graph(make));
    EXPECT_EQ(status.ok() ? ErrorCode::kOk : status.error().code, ErrorCode::kUnsupported);
    return status ? std::string() : status.error().message;
  };
  EXPECT_THAT(refused([](GraphBuilder& b, srg::ValueRef x) {
                const auto w = weight(b, "w");
                return b.call("aten::linear", {arg(x), arg(b.call("aten::neg", {arg(w)}))});
              }),
              HasSubstr("Node 0, aten::neg, reads the weight w, which is int8."));
  EXPECT_THAT(refused([](GraphBuilder& b, srg::ValueRef x) {
                return b.call("aten::linear", {arg(x), arg(view_of_w(b, weight(b, "w"), "part"))});
              }),
              HasSubstr("Node 1, aten::linear, reads the weight w"));
  EXPECT_THAT(refused([](GraphBuilder& b, srg::ValueRef x) {
                const auto alias = b.call("aten::alias", {arg(weight(b, "other"))});
                return b.call("aten::linear", {arg(x), arg(alias)});
              }),
              HasSubstr("aten::alias, reads the weight other"));
  EXPECT_THAT(refused([](GraphBuilder& b, srg::ValueRef) { return weight(b, "w"); }),
              HasSubstr("An output of the graph is the weight w"));
}

// Of a computed bias the graph says no sizes: they are inferred.
TEST_P(FastInt8, a_bias_of_two_dimensions_is_refused_where_the_program_is_defined) {
  const auto defined = [&](const char* product, const char* name, const srg::ExprList& sizes) {
    GraphBuilder b;
    const auto x = b.input("x", dtype(), {4, kInputs});
    const auto given = b.input("given", dtype(), sizes.items);
    const auto bias = b.call("aten::neg", {arg(given)});
    const bool is_linear = std::string_view(product) == "aten::linear";
    const auto w = arg(weight(b, name));
    b.output(is_linear ? b.call(product, {arg(x), w, arg(bias)})
                       : b.call(product, {arg(bias), arg(x), w}));
    b.graph.numerics = fast();
    return world_.admit(b.graph);
  };
  EXPECT_EQ(message_of(defined("aten::linear", "w", {{kOutputs}})), "");
  EXPECT_EQ(message_of(defined("aten::addmm", "turned", {{kOutputs}})), "");
  const Status refused = defined("aten::addmm", "turned", {{4, kOutputs}});
  EXPECT_EQ(code_of(refused), ErrorCode::kUnsupported);
  EXPECT_THAT(message_of(refused), AllOf(HasSubstr("a bias of 2 dimensions"),
                                         HasSubstr("the weight turned, which is int8"),
                                         HasSubstr("Add it in a node of its own")));
}

// Where LibTorch has no kernel on meta, what the graph does not claim is told all the same.
TEST_P(FastInt8, a_norm_beside_a_product_needs_no_claim) {
  ASSERT_EQ(message_of(world_.admit(graph([](GraphBuilder& b, srg::ValueRef x) {
              b.output(b.call("aten::layer_norm",
                              {arg(x), arg(srg::ExprList{{kInputs}}), arg(srg::None{}),
                               arg(srg::None{}), arg(1e-5), arg(true)}));
              return b.call("aten::linear", {arg(x), arg(weight(b, "w"))});
            }))),
            "");
  EXPECT_EQ(world_.program->fast_nodes(), 2u);
  const at::Tensor x = noise({3, kInputs}, 11, GetParam());
  run(x);
  const at::Tensor wide = x.to(at::kDouble);
  EXPECT_LE(error(world_.output(0), at::layer_norm(wide, {kInputs})), rounding());
}

// Its strides are those of a matrix that is turned around, too.
TEST_P(FastInt8, a_matrix_of_one_column_is_read_as_it_lies) {
  const Int8Weight column(noise({5, 1}, 12));
  world_.weights = WeightTable({column.weight("column", GetParam())});
  for (const bool is_around : {false, true}) {
    GraphBuilder b;
    const auto x = b.input("x", dtype(), {4, 1});
    const auto storage = b.storage(srg::StorageKind::kWeight, "column");
    const std::vector<srg::Expr> in_order{5, 1}, around{1, 5};
    const auto w = b.on_storage(storage, dtype(), is_around ? around : in_order, {1, 1});
    b.output(b.call(is_around ? "aten::mm" : "aten::linear", {arg(x), arg(w)}));
    b.graph.numerics = fast();
    ASSERT_EQ(message_of(world_.admit(b.graph)), "");
    const at::Tensor given = noise({4, 1}, 13, GetParam());
    ASSERT_EQ(message_of(world_.run({}, {given})), "");
    const at::Tensor expected = at::linear(given.to(at::kDouble), column.widened.to(at::kDouble));
    EXPECT_LE(error(world_.output(0), expected), kOfInt8Rows);
  }
}

// The most memory that this process has had since this was asked last, in bytes (proc(5)).
uint64_t peak_bytes() {
  std::array<char, 8192> text{};
  const Fd status(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  EXPECT_GT(::read(status.get(), text.data(), text.size() - 1), 0);
  const char* const peak = ::strstr(text.data(), "VmHWM:");
  const Fd reset(::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC));
  EXPECT_EQ(::write(reset.get(), "5", 1), 1);
  return peak == nullptr ? 0 : ::strtoull(peak + sizeof "VmHWM:", nullptr, 10) * 1024;
}

// However small a row is: what tells where the rows are is no memory of the run's.
TEST(FastInt8Rows, a_product_of_many_rows_takes_what_its_result_has_and_little_more) {
  constexpr int64_t kRows = 6'000'000;
  const Int8Weight one(at::ones({1, 1}));
  World world({});
  world.weights = WeightTable({one.weight("w", at::kHalf)});
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat16, {1});
  const auto rows = b.call("aten::as_strided", {arg(x), arg(srg::ExprList{{kRows, 1}}),
                                                arg(srg::ExprList{{0, 1}}), integer(0)});
  const auto y = b.call("aten::mm", {arg(rows), arg(b.weight("w", DType::kFloat16, {1, 1}))});
  b.output(b.call("aten::amax", {arg(y)}));
  b.graph.numerics = srg::Numerics::kFast;
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  ASSERT_EQ(world.program->fast_nodes(), 1u);
  peak_bytes();
  const uint64_t before = peak_bytes();
  ASSERT_EQ(message_of(world.run({}, {at::ones({1}, at::kHalf)})), "");
  constexpr uint64_t kResult = kRows * 2;
  EXPECT_LE(peak_bytes() - before, 4 * kResult);
  EXPECT_EQ(world.output(0).item<float>(), one.widened.item<float>());
}

INSTANTIATE_TEST_SUITE_P(Of, FastInt8, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& type) {
                           return std::string(name_of(from_torch(type.param)));
                         });

}  // namespace
}  // namespace djinn::exec
