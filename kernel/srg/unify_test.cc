// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/unify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernel/srg/test_graphs.h"
#include "kernel/srg/text.h"
#include "kernel/srg/verify.h"

namespace djinn::srg {
namespace {

using ::testing::HasSubstr;

using Points = std::vector<std::vector<int64_t>>;

// Graphs at points, and the recordings that refer to them.
struct World {
  std::vector<Graph> graphs;
  std::vector<Recording> recordings;

  World(const Graph& graph, const Points& points) {
    for (const auto& point : points) graphs.push_back(*substitute(graph, point));
    for (size_t i = 0; i < points.size(); ++i) recordings.push_back({&graphs[i], points[i]});
  }
  World(const World&) = delete;
};

std::vector<int64_t> random_point(Random& random, std::span<const Symbol> symbols) {
  std::vector<int64_t> point;
  for (const Symbol& symbol : symbols) {
    const auto width = static_cast<uint64_t>(symbol.max - symbol.min);
    point.push_back(symbol.min + static_cast<int64_t>(random.below(width + 1)));
  }
  return point;
}

Points random_points(Random& random, std::span<const Symbol> symbols, size_t count) {
  Points points(count);
  for (auto& point : points) point = random_point(random, symbols);
  return points;
}

TEST(Unify, a_random_graph_comes_back_from_its_values_at_random_points) {
  Random random(1);
  int unified = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Graph graph = testing::RandomGraph(seed).make();
    const size_t points = graph.symbols.size() + 1 + random.below(3);
    const World world(graph, random_points(random, graph.symbols, points));
    const auto again = unify(world.recordings, graph.symbols);
    if (!again) {  // the points fell on a line
      ASSERT_EQ(again.error().code, ErrorCode::kInvalidArgument) << again.error().message;
      continue;
    }
    ASSERT_EQ(*again, graph) << "seed " << seed << "\n" << print_text(graph);
    ASSERT_EQ(print_text(*again), print_text(graph));  // tells -0.0 from 0.0, which == does not
    ++unified;
  }
  EXPECT_GT(unified, 900);
}

TEST(Unify, the_models_come_back_and_hold_at_points_that_were_not_recorded) {
  Random random(2);
  for (const Graph& graph : {testing::bert_like(), testing::llama_like(512)}) {
    const World world(graph, random_points(random, graph.symbols, 7));
    const auto again = unify(world.recordings, graph.symbols);
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(*again, graph);
    const auto fresh = random_point(random, graph.symbols);
    EXPECT_EQ(*substitute(*again, fresh), *substitute(graph, fresh));
  }
}

TEST(Unify, what_is_substituted_is_a_verified_graph_without_symbols) {
  Random random(3);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Graph graph = testing::RandomGraph(seed).make();
    const auto fixed = substitute(graph, random_point(random, graph.symbols));
    ASSERT_TRUE(fixed.ok()) << fixed.error().message;
    EXPECT_TRUE(fixed->symbols.empty());
    const auto status = verify(*fixed);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.error().message;
  }
}

TEST(Unify, substitution_refuses_points_that_are_none_of_the_graph) {
  const Graph graph = testing::bert_like();
  EXPECT_EQ(substitute(graph, std::vector<int64_t>{1}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(substitute(graph, std::vector<int64_t>{0, 1}).error().code, ErrorCode::kOutOfRange);
  EXPECT_EQ(substitute(graph, std::vector<int64_t>{1, 513}).error().code, ErrorCode::kOutOfRange);
}

// Values 0 and 2 view x, 1 is w; node 0 makes 3, node 1 makes 4, node 2 makes nothing.
Graph good_graph() {
  GraphBuilder g("good");
  const Expr tokens = g.symbol("tokens", 1, 512, SymbolRole::kTokens);
  const Expr past = g.symbol("past", 0, 1024, SymbolRole::kPast);
  const Tensor x = g.input("x", DType::kFloat32, {tokens, 8});
  const Tensor w = g.weight("w", DType::kFloat32, {8, 8});
  const Tensor window = g.view(x, DType::kFloat32, {tokens, 4}, {8, 1}, past);
  const auto layer = g.module("model.layers.0");
  const Tensor y = g.op("aten::linear", {x, w, none}, {{"scale", 0.5}});
  g.claim(y, DType::kFloat32, {tokens, 8});
  const Tensor z = g.op("aten::slice.Tensor", {y, 1, 0, past + tokens, 1});
  g.op_n(0, "aten::some",
         {ints({tokens, past, 3}), tensors({y, window}), DoubleList{{1.0, 2.0}},
          BoolList{{true, false}}, "text", true, DType::kInt8, -0.0});
  g.output("z", z);
  return *std::move(g).finish();
}

const Points kPoints = {{4, 0}, {7, 0}, {4, 9}, {1, 30}};

Argument& argument(Graph& graph, size_t node, size_t index) {
  return graph.nodes[node].arguments[index];
}
template <typename T>
T& argument_as(Graph& graph, size_t node, size_t index) {
  return std::get<T>(argument(graph, node, index).value);
}

struct Difference {
  const char* message;
  void (*damage)(Graph&);  // of recording 2
};

void PrintTo(const Difference& row, std::ostream* out) {
  *out << row.message;
}

class UnifyMismatch : public ::testing::TestWithParam<Difference> {};

TEST_P(UnifyMismatch, recordings_that_differ_are_refused_and_the_first_place_is_named) {
  World world(good_graph(), kPoints);
  ASSERT_EQ(*unify(world.recordings, good_graph().symbols), good_graph());
  GetParam().damage(world.graphs[2]);
  const auto result = unify(world.recordings, good_graph().symbols);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kShapeMismatch);
  EXPECT_THAT(result.error().message, HasSubstr(GetParam().message));
}

constexpr Difference kNumbers[] = {
    {"Node 1, aten::slice.Tensor at model.layers.0: argument 3 is 4, 7, 12, 31 and "
     "no affine function of tokens, past with integer coefficients.",
     [](Graph& g) { argument_as<Expr>(g, 1, 3) = 12; }},
    {"Node 2, aten::some at model.layers.0: argument 0[1] is 0, 0, 8, 30 and no",
     [](Graph& g) { argument_as<ExprList>(g, 2, 0).items[1] = 8; }},
    {"Value 0, a view of \"x\": sizes[0] is 4, 7, 5, 1 and no affine",
     [](Graph& g) { g.values[0].sizes[0] = 5; }},
    {"Value 2, a view of \"x\": strides[1] is 1, 1, 2, 1 and no affine",
     [](Graph& g) { g.values[2].strides[1] = 2; }},
    {"Value 2, a view of \"x\": offset is 0, 0, 10, 30 and no affine",
     [](Graph& g) { g.values[2].offset = 10; }},
    {"Node 0, aten::linear at model.layers.0: result 0: sizes[1] is 8, 8, 9, 8 and",
     [](Graph& g) { g.values[3].sizes[1] = 9; }},
    {"argument 3 is no number in recording 2",
     [](Graph& g) { argument_as<Expr>(g, 1, 3) = symbol_expr(0); }}};

INSTANTIATE_TEST_SUITE_P(Numbers, UnifyMismatch, ::testing::ValuesIn(kNumbers));

constexpr Difference kOperators[] = {
    {"Node 0, aten::linear at model.layers.0 in recording 0 is Node 0, aten::mm at "
     "model.layers.0 in recording 2.",
     [](Graph& g) { g.nodes[0].op = "aten::mm"; }},
    {"Node 1, aten::slice.Tensor at model.layers.0 in recording 0 is Node 1, "
     "aten::slice.Tensor at model.layers.1 in recording 2",
     [](Graph& g) { g.nodes[1].annotation.module_path = "model.layers.1"; }},
    {"Node 2, aten::some at model.layers.0 is the first of 1 nodes that only "
     "recording 0 has",
     [](Graph& g) { g.nodes.pop_back(); }},
    {"Node 3, aten::some at model.layers.0 is the first of 2 nodes that only "
     "recording 2 has",
     [](Graph& g) { g.nodes.resize(5, Node(g.nodes[2])); }},
    {"The graph's name is \"good\" in recording 0 and \"bad\" in recording 2",
     [](Graph& g) { g.name = "bad"; }},
    {"The list of outputs has 1 items in recording 0 and 2 in recording 2",
     [](Graph& g) { g.outputs.push_back(0); }},
    {"The list of outputs[0] is 4 in recording 0 and 3 in recording 2",
     [](Graph& g) { g.outputs[0] = 3; }}};

INSTANTIATE_TEST_SUITE_P(Operators, UnifyMismatch, ::testing::ValuesIn(kOperators));

constexpr Difference kArguments[] = {
    {"Node 0, aten::linear at model.layers.0 has 4 arguments in recording 0 and 3",
     [](Graph& g) { g.nodes[0].arguments.pop_back(); }},
    {"Node 1, aten::slice.Tensor at model.layers.0: argument 3 is an integer in "
     "recording 0 and none in recording 2",
     [](Graph& g) { argument(g, 1, 3).value = None{}; }},
    {"argument scale's name is \"scale\" in recording 0 and \"by\" in recording 2",
     [](Graph& g) { argument(g, 0, 3).name = "by"; }},
    {"argument 1 is value 1 in recording 0 and value 2 in recording 2",
     [](Graph& g) { argument_as<ValueRef>(g, 0, 1).id = 2; }},
    {"argument 0 has 3 items in recording 0 and 2 in recording 2",
     [](Graph& g) { argument_as<ExprList>(g, 2, 0).items.pop_back(); }},
    {"argument 1[1] is value 2 in recording 0 and none in recording 2",
     [](Graph& g) { argument_as<ValueList>(g, 2, 1).ids[1] = std::nullopt; }},
    {"argument scale is 0.5 in recording 0 and 0.25 in recording 2; only integers "
     "are fitted, so a double that depends on a size must be computed by operators",
     [](Graph& g) { argument_as<double>(g, 0, 3) = 0.25; }},
    {"argument 7 is -0 in recording 0 and 0 in recording 2; only integers",
     [](Graph& g) { argument_as<double>(g, 2, 7) = 0.0; }},
    {"argument 2[1] is 2 in recording 0 and nan in recording 2; only integers",
     [](Graph& g) {
       argument_as<DoubleList>(g, 2, 2).items[1] = std::numeric_limits<double>::quiet_NaN();
     }},
    {"argument 2 has 2 items in recording 0 and 0 in recording 2",
     [](Graph& g) { argument_as<DoubleList>(g, 2, 2).items.clear(); }},
    {"argument 3[0] is true in recording 0 and false in recording 2",
     [](Graph& g) { argument_as<BoolList>(g, 2, 3).items[0] = false; }},
    {"argument 4 is \"text\" in recording 0 and \"other\" in recording 2",
     [](Graph& g) { argument_as<std::string>(g, 2, 4) = "other"; }},
    {"argument 5 is true in recording 0 and false in recording 2",
     [](Graph& g) { argument_as<bool>(g, 2, 5) = false; }},
    {"argument 6 is int8 in recording 0 and int16 in recording 2",
     [](Graph& g) { argument_as<DType>(g, 2, 6) = DType::kInt16; }},
    {"its list of results has 1 items in recording 0 and 0 in recording 2",
     [](Graph& g) { g.nodes[1].outputs.clear(); }},
    {"Node 1, aten::slice.Tensor at model.layers.0: its list of results[0] is 4 in",
     [](Graph& g) { g.nodes[1].outputs[0] = 900; }}};

INSTANTIATE_TEST_SUITE_P(Arguments, UnifyMismatch, ::testing::ValuesIn(kArguments));

constexpr Difference kAnnotations[] = {
    {"its role is \"\" in recording 0 and \"mlp\" in recording 2",
     [](Graph& g) { g.nodes[0].annotation.role = "mlp"; }},
    {"its phase is unknown in recording 0 and decode in recording 2",
     [](Graph& g) { g.nodes[0].annotation.phase = Phase::kDecode; }},
    {"its residency is unknown in recording 0 and state in recording 2",
     [](Graph& g) { g.nodes[0].annotation.residency = Residency::kState; }},
    {"its modality is unknown in recording 0 and text in recording 2",
     [](Graph& g) { g.nodes[0].annotation.modality = Modality::kText; }},
    {"its colocation group is 0 in recording 0 and 3 in recording 2",
     [](Graph& g) { g.nodes[0].annotation.colocation_group = 3; }},
    {"its priority is 0 in recording 0 and -1 in recording 2",
     [](Graph& g) { g.nodes[0].annotation.priority = -1; }}};

INSTANTIATE_TEST_SUITE_P(Annotations, UnifyMismatch, ::testing::ValuesIn(kAnnotations));

constexpr Difference kValues[] = {
    {"Storage 0 is an input in recording 0 and a weight in recording 2",
     [](Graph& g) { g.storages[0].kind = StorageKind::kWeight; }},
    {"Storage 1: its name is \"w\" in recording 0 and \"v\" in recording 2",
     [](Graph& g) { g.storages[1].name = "v"; }},
    {"Storage 0: its role is user in recording 0 and token_ids in recording 2",
     [](Graph& g) { g.storages[0].role = InputRole::kTokenIds; }},
    {"Storage 0: its layer is 0 in recording 0 and 7 in recording 2",
     [](Graph& g) { g.storages[0].layer = 7; }},
    {"Storage 0: its part is key in recording 0 and value in recording 2",
     [](Graph& g) { g.storages[0].part = SequencePart::kValue; }},
    {"The graph has 2 storages in recording 0 and 3 in recording 2",
     [](Graph& g) { g.storages.emplace_back(); }},
    {"The graph has 5 values in recording 0 and 4 in recording 2",
     [](Graph& g) { g.values.pop_back(); }},
    {"Value 0, a view of \"x\": its dtype is float32 in recording 0 and bfloat16 in",
     [](Graph& g) { g.values[0].dtype = DType::kBFloat16; }},
    {"Value 0, a view of \"x\" has 2 sizes in recording 0 and 3 in recording 2",
     [](Graph& g) { g.values[0].sizes.emplace_back(1); }},
    {"Value 2, a view of \"x\" has 2 strides in recording 0 and 0 in recording 2",
     [](Graph& g) { g.values[2].strides.clear(); }},
    {"Value 2, a view of \"x\": its storage is 0 in recording 0 and 1 in recording 2",
     [](Graph& g) { g.values[2].storage = 1; }},
    {"Node 1, aten::slice.Tensor at model.layers.0: result 0: its name is \"z\" in",
     [](Graph& g) { g.values[4].name = "zz"; }},
    {"result 0: that its sizes are claimed is true in recording 0 and false in",
     [](Graph& g) { g.values[3].claims_sizes = false; }},
    {"result 0: its criticality is 0 in recording 0 and 9 in recording 2",
     [](Graph& g) { g.values[3].criticality = 9; }}};

INSTANTIATE_TEST_SUITE_P(Values, UnifyMismatch, ::testing::ValuesIn(kValues));

TEST(Unify, a_symbol_of_one_value_is_a_constant) {
  Graph graph = good_graph();
  World world(graph, {{4, 9}, {6, 9}});
  graph.symbols[1].min = graph.symbols[1].max = 9;
  auto unified = unify(world.recordings, graph.symbols);
  ASSERT_TRUE(unified.ok()) << unified.error().message;
  EXPECT_EQ(unified->symbols, graph.symbols);
  EXPECT_EQ(argument_as<Expr>(*unified, 1, 3), symbol_expr(0) + 9);
}

TEST(Unify, numbers_that_differ_with_nothing_to_depend_on_say_so) {
  std::vector<Symbol> symbols = good_graph().symbols;
  World world(good_graph(), {{4, 9}, {4, 9}});
  symbols[0].min = symbols[0].max = 4;
  symbols[1].min = symbols[1].max = 9;
  argument_as<Expr>(world.graphs[1], 1, 3) = 14;
  const auto result = unify(world.recordings, symbols);
  EXPECT_EQ(result.error().code, ErrorCode::kShapeMismatch);
  EXPECT_THAT(result.error().message,
              HasSubstr("argument 3 is 13, 14 and there is no symbol on which it could depend"));
}

TEST(Unify, costs_that_differ_are_not_known) {
  World world(good_graph(), kPoints);
  for (size_t i = 0; i < kPoints.size(); ++i) {
    world.graphs[i].nodes[0].annotation.flops = 100 + i;
    world.graphs[i].nodes[0].annotation.bytes = 50;
  }
  const auto unified = unify(world.recordings, good_graph().symbols);
  ASSERT_TRUE(unified.ok());
  EXPECT_EQ(unified->nodes[0].annotation.flops, 0u);
  EXPECT_EQ(unified->nodes[0].annotation.bytes, 50u);
}

struct Refusal {
  const char* message;
  ErrorCode code;
  void (*damage)(World&, std::vector<Symbol>&);
};

void PrintTo(const Refusal& row, std::ostream* out) {
  *out << row.message;
}

class UnifyRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(UnifyRefusal, what_cannot_be_unified_is_refused_with_its_code) {
  World world(good_graph(), kPoints);
  std::vector<Symbol> symbols = good_graph().symbols;
  GetParam().damage(world, symbols);
  const auto result = unify(world.recordings, symbols);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, GetParam().code) << result.error().message;
  EXPECT_THAT(result.error().message, HasSubstr(GetParam().message));
}

constexpr auto kInvalid = ErrorCode::kInvalidArgument;
constexpr auto kRange = ErrorCode::kOutOfRange;

constexpr Refusal kRefusals[] = {
    {"There is no recording", kInvalid, [](World& w, auto&) { w.recordings.clear(); }},
    {"Recording 1: The point has 1 values; there are 2 symbols", kInvalid,
     [](World& w, auto&) { w.recordings[1].point.pop_back(); }},
    {"Recording 2: past is 1025; its range is 0..1024", kRange,
     [](World& w, auto&) { w.recordings[2].point[1] = 1025; }},
    {"Recording 0: tokens is 4; its range is 5..512", kRange,
     [](World&, auto& symbols) { symbols[0].min = 5; }},
    {"Recording 1: Its graph has symbols", kInvalid,
     [](World& w, auto& symbols) { w.graphs[1].symbols = symbols; }},
    {"past is 0 at every point", kInvalid, [](World& w, auto&) { w.recordings.resize(2); }},
    {"The points do not tell past from tokens", kInvalid,
     [](World& w, auto&) {
       w.recordings.resize(2);
       w.recordings[1] = {&w.graphs[2], {9, 9}};
     }},
    {"Recording 0: ", ErrorCode::kOutOfRange,
     [](World& w, auto&) {
       for (Graph& graph : w.graphs) graph.values[0].storage = 99;
     }},
    {"The unified graph: Two symbols are named", ErrorCode::kAlreadyExists,
     [](World&, auto& symbols) { symbols[1].name = "tokens"; }},
    {"The unified graph: Value 0 has a size of -", kRange, [](World& w, auto&) {
       for (size_t i = 0; i < 4; ++i) w.graphs[i].values[0].sizes[0] = 100 - kPoints[i][1];
     }}};

INSTANTIATE_TEST_SUITE_P(All, UnifyRefusal, ::testing::ValuesIn(kRefusals));

}  // namespace
}  // namespace djinn::srg
