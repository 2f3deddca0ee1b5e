// SPDX-License-Identifier: Apache-2.0

#include <ATen/ops/add.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/view_as_real.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kernel/exec/allow_list.h"
#include "kernel/exec/attention_for_tests.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/streaming_copy.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/srg/text.h"

namespace djinn::exec {
namespace {

using ::testing::HasSubstr;

TEST(Executor, a_linear_gives_the_bytes_of_the_same_call_of_at) {
  const at::Tensor weight = noise({48, 32}, 1);
  const at::Tensor bias = noise({48}, 2);
  const at::Tensor input = noise({5, 32}, 3);
  GraphBuilder b;
  const srg::Expr rows = b.symbol("rows", 1, 64);
  const auto x = b.input("x", DType::kFloat32, {rows, 32});
  const auto w = b.weight("w", DType::kFloat32, {48, 32});
  const auto c = b.weight("b", DType::kFloat32, {48});
  b.output(b.call("aten::linear", {arg(x), arg(w), arg("bias", c)}));
  World world({{"w", weight}, {"b", bias}});
  EXPECT_TRUE(world.admit(b.graph));
  EXPECT_EQ(world.program->outputs()[0].sizes, (std::vector<srg::Expr>{rows, 48}));
  ASSERT_TRUE(world.run({5}, {input}));
  EXPECT_TRUE(same_bytes(world.output(0), at::linear(input, weight, bias)));
}

TEST(Executor, an_encoder_layer_gives_the_bytes_of_the_same_calls_of_at) {
  std::map<std::string, at::Tensor> w{
      {"words", noise({100, 32}, 1)}, {"positions", noise({64, 32}, 2)},
      {"gain", noise({32}, 3)},       {"shift", noise({32}, 4)},
      {"up", noise({128, 32}, 5)},    {"down", noise({32, 128}, 6)},
      {"up_bias", noise({128}, 7)}};
  GraphBuilder b;
  const srg::Expr batch = b.symbol("batch", 1, 4);
  const srg::Expr tokens = b.symbol("tokens", 1, 64);
  const auto ids = b.input("ids", DType::kInt64, {batch, tokens});
  const auto mask = b.input("mask", DType::kInt64, {batch, tokens});
  const auto words =
      b.call("aten::embedding", {arg(b.weight("words", DType::kFloat32, {100, 32})), arg(ids)});
  // A weight narrowed by a symbol is bound at each run.
  const auto positions = b.weight("positions", DType::kFloat32, {1, tokens, 32});
  const auto sum = b.call("aten::add.Tensor", {arg(words), arg(positions)});
  const auto gain = b.weight("gain", DType::kFloat32, {32});
  const auto shift = b.weight("shift", DType::kFloat32, {32});
  const auto x = b.call("aten::layer_norm",
                        {arg(sum), integers({32}), arg(gain), arg(shift), arg("eps", 1e-12)});
  const auto split = b.call("aten::view", {arg(x), integers({batch, tokens, 4, 8})});
  const auto heads = b.call("aten::transpose.int", {arg(split), integer(1), integer(2)});
  const auto attends = b.call("aten::ne.Scalar", {arg(mask), integer(0)});
  const auto wide = b.call("aten::reshape", {arg(attends), integers({batch, 1, 1, tokens})});
  const auto out = b.call("aten::scaled_dot_product_attention",
                          {arg(heads), arg(heads), arg(heads), arg("attn_mask", wide)});
  const auto rows = b.call("aten::transpose.int", {arg(out), integer(1), integer(2)});
  const auto flat = b.call("aten::reshape", {arg(rows), integers({batch, tokens, 32})});
  const auto up =
      b.call("aten::linear", {arg(flat), arg(b.weight("up", DType::kFloat32, {128, 32})),
                              arg(b.weight("up_bias", DType::kFloat32, {128}))});
  const auto gelu = b.call("aten::gelu", {arg(up)});
  const auto down =
      b.call("aten::linear", {arg(gelu), arg(b.weight("down", DType::kFloat32, {32, 128}))});
  b.output(b.call("aten::add.Tensor", {arg(down), arg(x)}));
  b.output(b.call("aten::mean.dim", {arg(down), integers({1})}));

  World world(w);
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  EXPECT_EQ(world.program->outputs()[0].sizes, (std::vector<srg::Expr>{batch, tokens, 32}));
  EXPECT_EQ(world.program->outputs()[1].sizes, (std::vector<srg::Expr>{batch, 32}));
  const at::Tensor id_tensor = int64s({2, 3}, {5, 99, 0, 7, 8, 9});
  const at::Tensor mask_tensor = int64s({2, 3}, {1, 1, 0, 1, 1, 1});
  ASSERT_EQ(message_of(world.run({2, 3}, {id_tensor, mask_tensor})), "");

  const at::Tensor added =
      at::add(at::embedding(w["words"], id_tensor), w["positions"].narrow(0, 0, 3).unsqueeze(0));
  const at::Tensor normed = at::layer_norm(added, {32}, w["gain"], w["shift"], 1e-12);
  const at::Tensor split4 = normed.view({2, 3, 4, 8}).transpose(1, 2);
  const at::Tensor seen = at::scaled_dot_product_attention(split4, split4, split4,
                                                           mask_tensor.ne(0).reshape({2, 1, 1, 3}));
  const at::Tensor expected = at::linear(
      at::gelu(at::linear(seen.transpose(1, 2).reshape({2, 3, 32}), w["up"], w["up_bias"])),
      w["down"]);
  EXPECT_TRUE(same_bytes(world.output(0), at::add(expected, normed)));
  EXPECT_TRUE(same_bytes(world.output(1), expected.mean({1})));
}

TEST(Executor, attention_on_appended_buffers_gives_the_bytes_of_direct_calls) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const AttentionShape shape{.capacity = 64, .type = type};
    const auto weights = attention_weights(shape);
    World world(weights);
    ASSERT_EQ(message_of(world.admit(attention_graph(shape))), "");
    const auto zeros = [&] {
      return at::zeros({1, shape.kv_heads, shape.capacity, shape.dim},
                       at::TensorOptions().dtype(type));
    };
    const at::Tensor keys = zeros(), values = zeros(), keys2 = zeros(), values2 = zeros();
    for (int64_t past = 0, tokens = 5; past + tokens <= shape.capacity;
         past += tokens, tokens = 1) {
      const at::Tensor x = noise({1, tokens, shape.hidden()}, 50 + past, type);
      ASSERT_EQ(message_of(world.run({tokens, past}, {x, keys, values}, true)), "");
      const at::Tensor expected = direct_attention(shape, weights, x, keys2, values2, past);
      ASSERT_TRUE(same_bytes(world.output(0), expected)) << past;
    }
    EXPECT_TRUE(same_bytes(keys, keys2));
  }
}

// x [n, 8] through one operator.
srg::Graph one_call(std::string op, std::vector<srg::Argument> more, size_t results = 1) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {b.symbol("n", 1, 16), 8});
  more.insert(more.begin(), arg(x));
  for (const auto ref : b.call_many(std::move(op), std::move(more), results)) b.output(ref);
  return std::move(b.graph);
}

TEST(Admission, refuses_what_the_allow_list_does_not_have) {
  World world({});
  for (const char* op : {"aten::empty_like", "aten::rand_like", "aten::resize_", "aten::set_", "x",
                         "aten::relu.out", "prim::device"}) {
    EXPECT_EQ(code_of(world.admit(one_call(op, {}))), ErrorCode::kUnsupported) << op;
  }
}

TEST(Admission, refuses_arguments_that_the_schema_does_not_take) {
  World world({});
  const auto code = [&](std::string op, std::vector<srg::Argument> more) {
    return code_of(world.admit(one_call(std::move(op), std::move(more))));
  };
  const auto text = [](std::string value) { return srg::Argument{"", std::move(value)}; };
  EXPECT_EQ(code("aten::relu", {integer(1)}), ErrorCode::kInvalidArgument);      // one too many
  EXPECT_EQ(code("aten::unsqueeze", {}), ErrorCode::kInvalidArgument);           // missing
  EXPECT_EQ(code("aten::unsqueeze", {arg(1.5)}), ErrorCode::kInvalidArgument);   // not an int
  EXPECT_EQ(code("aten::unsqueeze", {arg(true)}), ErrorCode::kInvalidArgument);  // nor a bool
  EXPECT_EQ(code("aten::unsqueeze", {arg("dim", srg::None{})}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("aten::unsqueeze", {integer(0), arg("dim", srg::Expr(0))}),
            ErrorCode::kInvalidArgument);  // twice
  EXPECT_EQ(code("aten::unsqueeze", {arg("axis", srg::Expr(0))}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("aten::softmax.int", {integer(1), text("float32")}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("aten::zeros_like", {arg("device", std::string("cuda:0"))}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("aten::zeros_like", {arg("pin_memory", true)}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("aten::add_.Tensor", {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("aten::unsqueeze", {integer(7)}), ErrorCode::kOutOfRange);  // by its rule
}

TEST(Admission, takes_what_pythons_parser_takes) {
  World world({});
  const at::Tensor x = noise({3, 8}, 1);
  const auto run = [&](std::string op, std::vector<srg::Argument> more) {
    EXPECT_EQ(message_of(world.admit(one_call(op, std::move(more)))), "") << op;
    EXPECT_EQ(message_of(world.run({3}, {x})), "") << op;
    return world.output(0);
  };
  EXPECT_TRUE(
      same_bytes(run("aten::mul.Tensor", {arg(2.5)}), x.mul(2.5)));  // a number for a Tensor
  EXPECT_TRUE(same_bytes(run("aten::add.Tensor", {integer(1)}), x.add(1)));
  EXPECT_TRUE(
      same_bytes(run("aten::sum.dim_IntList", {integer(1)}), x.sum(1)));  // one int for int[1]
  EXPECT_TRUE(same_bytes(run("aten::leaky_relu", {integer(1)}), x));      // an int for a Scalar
  EXPECT_EQ(run("aten::to.dtype", {arg(DType::kFloat16)}).scalar_type(), at::kHalf);
  EXPECT_EQ(run("aten::zeros_like", {arg("device", std::string("cpu"))}).sizes(), x.sizes());
}

// Tensor?[] is a list of optional tensors: x[:, ids].
TEST(Admission, takes_empty_entries_where_the_schema_does) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {3, 8});
  const auto ids = b.input("ids", DType::kInt64, {2});
  const srg::ValueList indices{{std::nullopt, ids.id}};
  const auto y = b.call("aten::index.Tensor", {arg(x), arg(indices)});
  b.graph.values[y.id].dtype = DType::kFloat32;
  b.graph.values[y.id].claims_sizes = true;
  b.graph.values[y.id].sizes = {3, 2};
  b.output(y);
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const at::Tensor input = noise({3, 8}, 1);
  const at::Tensor chosen = int64s({2}, {7, 0});
  ASSERT_EQ(message_of(world.run({}, {input, chosen})), "");
  EXPECT_TRUE(same_bytes(world.output(0), input.index_select(1, chosen)));
  EXPECT_EQ(code_of(world.run({}, {input, int64s({2}, {8, 0})})), ErrorCode::kOutOfRange);
  GraphBuilder c;
  const auto z = c.input("x", DType::kFloat32, {3, 8});
  c.output(c.call("aten::cat", {arg(srg::ValueList{{z.id, std::nullopt}})}));
  EXPECT_EQ(code_of(world.admit(c.graph)), ErrorCode::kInvalidArgument);
}

// A chain of nodes with symbols, which admission looks at at several points.
srg::Graph chain_of(int nodes, int symbols) {
  GraphBuilder b;
  srg::ValueRef x = b.input("x", DType::kFloat32, {4});
  for (int i = 0; i < symbols; ++i) {
    b.input("i" + std::to_string(i), DType::kFloat32, {b.symbol("s" + std::to_string(i), 1, 9)});
  }
  for (int i = 0; i < nodes; ++i) x = b.call("aten::neg", {arg(x)});
  b.output(x);
  return std::move(b.graph);
}

TEST(Admission, what_takes_too_many_looks_at_its_operators_is_refused_before_the_first) {
  World world({});
  uint64_t asked = 0;
  AdmissionLimits limits{.activation_bytes_max = UINT64_MAX, .evaluations_max = 5 * 8};
  limits.go_on = [&asked] {
    ++asked;
    return Status();
  };
  const auto admit = [&](int nodes, int symbols) {
    return executor().admit(chain_of(nodes, symbols), world.weights, limits);
  };
  EXPECT_TRUE(admit(5, 4)) << "4 symbols are looked at at 8 points";
  EXPECT_TRUE(admit(40, 0)) << "at one";
  asked = 0;
  const auto refused = admit(6, 4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kLimitExceeded);
  EXPECT_NE(refused.error().message.find("48"), std::string::npos) << refused.error().message;
  EXPECT_EQ(asked, 6u) << "to make the steps, and no more";
}

TEST(Admission, ends_between_two_nodes_when_it_is_not_to_go_on) {
  World world({});
  for (const int symbols : {0, 2}) {
    int left = 12;
    AdmissionLimits limits{.activation_bytes_max = UINT64_MAX};
    limits.go_on = [&left]() -> Status {
      if (--left > 0) return {};
      return Error{ErrorCode::kCancelled, "Enough."};
    };
    const auto ended = executor().admit(chain_of(10, symbols), world.weights, limits);
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code, ErrorCode::kCancelled);
    EXPECT_EQ(left, 0);
  }
}

TEST(Admission, finds_affine_sizes_in_the_symbols) {
  GraphBuilder b;
  const srg::Expr n = b.symbol("n", 1, 100);
  const srg::Expr m = b.symbol("m", 0, 50);
  const auto x = b.input("x", DType::kFloat32, {n, 8});
  const auto y = b.input("y", DType::kFloat32, {m, 8});
  const auto both = b.call("aten::cat", {arg(srg::ValueList{{x.id, y.id, x.id}}), integer(0)});
  b.output(b.call("aten::slice.Tensor", {arg(both), integer(0), integer(1)}));
  b.output(b.call("aten::arange", {arg(n * 3 + m)}));
  b.output(b.call("aten::eq.Tensor", {arg(both), arg(both)}));
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const auto outputs = world.program->outputs();
  EXPECT_EQ(outputs[0].sizes, (std::vector<srg::Expr>{n * 2 + m - 1, 8}));
  EXPECT_EQ(outputs[1].sizes, (std::vector<srg::Expr>{n * 3 + m}));
  EXPECT_EQ(outputs[1].dtype, DType::kInt64);
  EXPECT_EQ(outputs[2].dtype, DType::kBool);
}

TEST(Admission, only_the_last_node_may_leave_its_shape_open) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {b.symbol("n", 1, 16), 2});
  const auto found = b.call("aten::nonzero", {arg(x)});
  b.output(found);
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  EXPECT_FALSE(world.program->outputs()[0].sizes_known);
  const at::Tensor input = at::zeros({4, 2});
  input.mutable_data_ptr<float>()[5] = 1;
  ASSERT_EQ(message_of(world.run({4}, {input})), "");
  EXPECT_TRUE(same_bytes(world.output(0), int64s({1, 2}, {2, 1})));

  b.call("aten::unsqueeze", {arg(found), integer(0)});
  EXPECT_EQ(code_of(world.admit(b.graph)), ErrorCode::kUnsupported);
}

TEST(Admission, holds_the_graph_to_its_claims) {
  srg::Graph graph = one_call("aten::relu", {});
  World world({});
  graph.values[1].dtype = DType::kFloat64;
  EXPECT_EQ(code_of(world.admit(graph)), ErrorCode::kShapeMismatch);
  graph.values[1].name.clear();
  EXPECT_THAT(message_of(world.admit(graph)), HasSubstr("value without a name is float32"));
  graph.values[1].dtype = DType::kFloat32;
  graph.values[1].claims_sizes = true;
  graph.values[1].sizes = {srg::symbol_expr(0), 9};
  EXPECT_EQ(code_of(world.admit(graph)), ErrorCode::kShapeMismatch);
  graph.values[1].sizes = {srg::symbol_expr(0), 8};
  EXPECT_EQ(message_of(world.admit(graph)), "");

  // No shape rule: the run is what checks.
  graph = one_call("aten::nonzero", {});
  graph.values[1].dtype = DType::kInt64;
  graph.values[1].claims_sizes = true;
  graph.values[1].sizes = {1, 2};
  ASSERT_EQ(message_of(world.admit(graph)), "");
  EXPECT_EQ(code_of(world.run({1}, {at::full({1, 8}, 1)})), ErrorCode::kShapeMismatch);
}

TEST(Admission, refuses_more_activations_than_the_limit) {
  World world({});
  const srg::Graph graph = one_call("aten::relu", {});
  EXPECT_EQ(code_of(world.admit(graph, 16 * 8 * 4 - 1)), ErrorCode::kQuotaExceeded);
  ASSERT_EQ(code_of(world.admit(graph, 16 * 8 * 4)), ErrorCode::kOk);
  EXPECT_EQ(world.program->activation_bytes_estimate(), 16u * 8 * 4);
}

TEST(Admission, a_graph_must_not_write_a_weight) {
  World world({{"w", noise({8}, 1)}});
  for (const bool through_a_view : {false, true}) {
    GraphBuilder b;
    auto w = b.weight("w", DType::kFloat32, {8});
    if (through_a_view) w = b.call("aten::view", {arg(w), integers({2, 4})});
    b.output(b.call("aten::zero_", {arg(w)}));
    EXPECT_EQ(code_of(world.admit(b.graph)), ErrorCode::kPermissionDenied);
  }
  GraphBuilder b;
  b.output(b.call("aten::relu", {arg(b.weight("missing", DType::kFloat32, {8}))}));
  EXPECT_EQ(code_of(world.admit(b.graph)), ErrorCode::kNotFound);
  GraphBuilder c;
  c.output(c.call("aten::relu", {arg(c.weight("w", DType::kFloat32, {9}))}));
  EXPECT_EQ(code_of(world.admit(c.graph)), ErrorCode::kOutOfRange);
}

TEST(Admission, a_declared_weight_has_the_dtype_and_sizes_that_the_model_has) {
  World world({{"w", noise({6, 4}, 1)}});
  const auto admit = [&](const std::string& declared) {
    const auto graph = srg::parse_text("srg 1 \"weights\"\nsymbol n 1..6\n" + declared +
                                       "\n%y = aten::relu(%w)\noutput %y\n");
    EXPECT_TRUE(graph.ok()) << (graph.ok() ? "" : graph.error().message);
    return world.admit(*graph);
  };
  EXPECT_EQ(message_of(admit("weight %w : float32[6, 4]")), "");
  for (const char* const other : {"float16[6, 4]", "float32[4, 6]", "int64[6, 2]", "float32[3, 4]",
                                  "float32[24]", "float32[n, 4]"}) {
    const auto refused = admit(std::string("weight %w : ") + other);
    EXPECT_EQ(code_of(refused), ErrorCode::kShapeMismatch) << other;
    EXPECT_EQ(message_of(refused),
              std::string("The weight w is float32[6, 4], and the graph says ") + other + ".");
  }
  for (const char* const view : {"float16[6, 4]", "float32[4, 6]", "float32[n, 4]"}) {
    EXPECT_EQ(message_of(admit(std::string("storage weight \"w\"\nview %w of $0 : ") + view)), "")
        << view;
  }
}

TEST(Admission, weights_without_a_model_are_told_as_that) {
  World world({});
  GraphBuilder b;
  b.output(b.call("aten::relu", {arg(b.weight("w", DType::kFloat32, {8}))}));
  EXPECT_EQ(message_of(world.admit(b.graph)), "The graph names weights, and no model was given.");
}

TEST(Executor, in_place_writes_reach_the_bound_bytes_and_are_announced) {
  GraphBuilder b;
  const srg::Expr n = b.symbol("n", 1, 7);
  const auto x = b.input("x", DType::kFloat32, {8, 4});
  const auto rows = b.call("aten::slice.Tensor", {arg(x), integer(0), integer(1), arg(n + 1)});
  b.output(b.call("aten::add_.Tensor", {arg(rows), integer(1)}));
  b.output(x);
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const auto ranges = world.program->written_ranges(std::vector<int64_t>{3});
  ASSERT_TRUE(ranges);
  ASSERT_EQ(ranges->size(), 1u);
  EXPECT_EQ((*ranges)[0].offset, 16u);
  EXPECT_EQ((*ranges)[0].bytes, 48u);

  const at::Tensor bytes = at::zeros({8, 4});
  EXPECT_EQ(code_of(world.run({3}, {bytes}, false)), ErrorCode::kPermissionDenied);
  ASSERT_EQ(message_of(world.run({3}, {bytes}, true)), "");
  const at::Tensor expected = at::zeros({8, 4});
  expected.narrow(0, 1, 3).fill_(1);
  EXPECT_TRUE(same_bytes(bytes, expected));
  EXPECT_EQ(world.lane->outputs()[0].aliases, 0u);
  EXPECT_EQ(world.lane->outputs()[0].storage,
            static_cast<const std::byte*>(bytes.const_data_ptr()));
  EXPECT_EQ(world.lane->outputs()[0].storage_offset, 4u);
  EXPECT_EQ(world.lane->outputs()[1].aliases, 0u);
}

TEST(Executor, a_run_tells_which_operator_begins_and_that_none_is_left) {
  GraphBuilder b;
  auto x = b.input("x", DType::kFloat32, {4});
  for (const char* op : {"aten::relu", "aten::neg", "aten::relu"}) x = b.call(op, {arg(x)});
  b.output(x);
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  std::vector<std::string> beats;
  bool goes_on = true;
  world.lane->set_pulse([&](std::string_view op) {
    beats.emplace_back(op);
    return goes_on || op != "aten::neg";
  });
  ASSERT_EQ(message_of(world.run({}, {at::zeros({4})})), "");
  EXPECT_EQ(beats, (std::vector<std::string>{"aten::relu", "aten::neg", "aten::relu", ""}));
  // It ends before an operator, and the next run is as if nothing were.
  goes_on = false;
  beats.clear();
  EXPECT_EQ(world.run({}, {at::zeros({4})}).error().code, ErrorCode::kCancelled);
  EXPECT_EQ(beats, (std::vector<std::string>{"aten::relu", "aten::neg", ""}));
  goes_on = true;
  EXPECT_EQ(message_of(world.run({}, {at::zeros({4})})), "");
}

TEST(Executor, two_values_of_one_storage_see_each_others_writes) {
  GraphBuilder b;
  const auto storage = b.storage(srg::StorageKind::kInput, "x");
  const auto flat = b.on_storage(storage, DType::kFloat32, {4});
  const auto square = b.on_storage(storage, DType::kFloat32, {2, 2}, {1, 2});
  b.call("aten::fill_.Scalar", {arg(flat), arg(3.0)});
  b.output(b.call("aten::clone", {arg(square)}));
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  ASSERT_EQ(message_of(world.run({}, {at::zeros({4})}, true)), "");
  EXPECT_TRUE(same_bytes(world.output(0), at::full({2, 2}, 3.0f)));
}

TEST(Executor, refuses_bindings_that_do_not_fit) {
  World world({});
  ASSERT_EQ(message_of(world.admit(one_call("aten::relu", {}))), "");
  const at::Tensor x = noise({4, 8}, 1);
  EXPECT_EQ(code_of(world.run({5}, {x})), ErrorCode::kOutOfRange);   // one row too few
  EXPECT_EQ(code_of(world.run({17}, {x})), ErrorCode::kOutOfRange);  // symbol above its range
  EXPECT_EQ(code_of(world.run({}, {x})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(world.run({1}, {at::Tensor()})), ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of(world.lane->run(*world.program, {std::vector<int64_t>{1}, {}})),
            ErrorCode::kInvalidArgument);
  StorageBinding crooked = World::binding_of(x, false);
  crooked.data = crooked.data + 1;
  --crooked.bytes;
  EXPECT_EQ(code_of(world.lane->run(*world.program, {std::vector<int64_t>{1}, {&crooked, 1}})),
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(world.lane->outputs().empty());
}

TEST(Executor, an_index_out_of_range_is_an_error_that_names_the_node) {
  GraphBuilder b;
  const auto ids = b.input("ids", DType::kInt64, {b.symbol("n", 1, 8)});
  b.output(b.call("aten::embedding", {arg(b.weight("w", DType::kFloat32, {10, 4})), arg(ids)}));
  b.graph.nodes[0].annotation.module_path = "embeddings.word";
  World world({{"w", noise({10, 4}, 1)}});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  for (const int64_t wild : {int64_t{10}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    const Outcome<void> status = world.run({2}, {int64s({2}, {0, wild})});
    EXPECT_EQ(code_of(status), ErrorCode::kOutOfRange);
    EXPECT_THAT(message_of(status), HasSubstr("aten::embedding at embeddings.word: "));
  }
}

TEST(Executor, a_view_beyond_its_storage_is_refused) {
  World world({});
  const auto code = [&](int64_t stride) {
    const Status admitted =
        world.admit(one_call("aten::as_strided", {integers({4}), integers({stride}), integer(0)}));
    return code_of(admitted ? world.run({1}, {noise({1, 8}, 1)}) : admitted);
  };
  EXPECT_EQ(code(2), ErrorCode::kOk);
  EXPECT_NE(code(3), ErrorCode::kOk);
  EXPECT_NE(code(INT64_MAX / 2), ErrorCode::kOk);
}

TEST(Executor, kv_append_refuses_what_does_not_fit) {
  const AttentionShape shape{.capacity = 8};
  World world(attention_weights(shape));
  ASSERT_EQ(message_of(world.admit(attention_graph(shape))), "");
  const at::Tensor buffer = at::zeros({1, shape.kv_heads, 8, shape.dim});
  const at::Tensor x = noise({1, 4, shape.hidden()}, 1);
  EXPECT_EQ(code_of(world.run({4, 4}, {x, buffer, buffer}, true)), ErrorCode::kOk);
  EXPECT_NE(code_of(world.run({4, 5}, {x, buffer, buffer}, true)), ErrorCode::kOk);
  EXPECT_EQ(code_of(world.run({4, 4}, {x, buffer, buffer}, false)), ErrorCode::kPermissionDenied);
  EXPECT_TRUE(world.program->written_ranges(std::vector<int64_t>{3, 2})->empty());
}

TEST(Executor, a_run_appends_its_own_tokens_and_no_others) {
  const AttentionShape shape{.capacity = 8};
  World world(attention_weights(shape));
  ASSERT_EQ(message_of(world.admit(attention_graph(shape))), "");
  EXPECT_FALSE(world.program->reaches_capacity());
  const at::Tensor buffer = at::zeros({1, shape.kv_heads, 8, shape.dim});
  const std::vector<at::Tensor> tensors{noise({1, 2, shape.hidden()}, 1), buffer, buffer};
  EXPECT_EQ(code_of(world.run_at(4, 6, {2, 4}, tensors)), ErrorCode::kOk);
  EXPECT_EQ(code_of(world.run_at(5, 7, {2, 4}, tensors)), ErrorCode::kOutOfRange) << "committed";
  EXPECT_EQ(code_of(world.run_at(4, 5, {2, 4}, tensors)), ErrorCode::kOutOfRange) << "not there";
}

TEST(Executor, lists_of_results_are_spread_over_the_outputs) {
  World world({});
  ASSERT_EQ(message_of(world.admit(one_call("aten::chunk", {integer(2), integer(1)}, 2))), "");
  const at::Tensor x = noise({3, 8}, 1);
  ASSERT_EQ(message_of(world.run({3}, {x})), "");
  EXPECT_TRUE(same_bytes(world.output(1), x.narrow(1, 4, 4)));
  EXPECT_NE(code_of(world.admit(one_call("aten::chunk", {integer(2), integer(1)}, 3))),
            ErrorCode::kOk);
}

TEST(Errors, texts_hold_no_paths_addresses_or_backtraces) {
  EXPECT_EQ(presentable("bad shape at 0x7ffe12 in /src/x.cpp\nframe #0"),
            "bad shape at ... in ...");
  EXPECT_EQ(presentable("x INTERNAL ASSERT FAILED at \"/a/b.cpp\":3"), "an internal check failed");
  EXPECT_LE(presentable(std::string(5000, 'x')).size(), 400u);
}

TEST(AllowList, every_entry_exists_in_this_build_of_libtorch) {
  World world({});
  for (const std::string_view name : allowed_operators()) {
    const auto found = resolve_operator(name);
    ASSERT_TRUE(found) << name;
    for (const c10::Argument& result : (*found)->handle.schema().returns()) {
      const bool tensor = result.type()->isSubtypeOf(*c10::TensorType::get());
      EXPECT_TRUE(tensor || (*found)->list_output) << name;
    }
  }
}

// Complex numbers cross as any others do.
TEST(Executor, complex_numbers_are_computed_with) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kComplex128, {3});
  b.output(b.call("aten::mul.Tensor", {arg(x), arg(x)}));
  b.output(b.call("aten::_to_copy", {arg(x), arg("dtype", DType::kComplex64)}));
  b.output(b.call("aten::view_as_real", {arg(x)}));
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const at::Tensor input = at::complex(noise({3}, 1, at::kDouble), noise({3}, 2, at::kDouble));
  ASSERT_EQ(message_of(world.run({}, {input})), "");
  EXPECT_TRUE(same_bytes(world.output(0), input.mul(input)));
  EXPECT_TRUE(same_bytes(world.output(1), input.to(at::kComplexFloat)));
  EXPECT_TRUE(same_bytes(world.output(2), at::view_as_real(input)));
}

TEST(CopyPastCaches, gives_every_byte_wherever_it_begins_and_ends) {
  std::vector<std::byte> from((3 << 20) + 7);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  for (const size_t at : {size_t{0}, size_t{1}, size_t{16}, from.size() - 3}) {
    const auto part = std::span(from).subspan(at);
    std::vector<std::byte> to(part.size() + 1, std::byte{9});
    const DeviceCopy copy{part.data(), to.data(), part.size()};
    copy_past_caches({&copy, 1});
    EXPECT_TRUE(std::ranges::equal(part, std::span(to).first(part.size()))) << at;
    EXPECT_EQ(to.back(), std::byte{9});
  }
}

TEST(CopyPastCaches, gives_all_ranges_whatever_their_sizes) {
  std::vector<std::byte> from(4 << 20);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  std::vector<std::byte> to(from.size(), std::byte{9});
  std::vector<DeviceCopy> copies;
  size_t at = 0;
  for (const size_t bytes : {5u, 0u, 1u << 20, 64u, (2u << 20) + 1, 300u << 10}) {
    copies.push_back({from.data() + at, to.data() + at, bytes});
    at += bytes;
  }
  copy_past_caches(copies);
  EXPECT_TRUE(std::equal(from.begin(), from.begin() + static_cast<ptrdiff_t>(at), to.begin()));
  EXPECT_EQ(to[at], std::byte{9});
  copy_past_caches({});
}

}  // namespace
}  // namespace djinn::exec
