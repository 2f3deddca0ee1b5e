// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/fingerprint.h"

#include <gtest/gtest.h>

#include <map>

#include "kernel/srg/test_graphs.h"
#include "kernel/srg/text.h"

namespace djinn::srg {
namespace {

TEST(Fingerprint, is_that_of_the_content_and_not_of_the_object) {
  std::map<Fingerprint, std::string> seen;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Graph graph = testing::RandomGraph(seed).make();
    const std::string text = print_text(graph);
    ASSERT_EQ(fingerprint_of(graph), fingerprint_of(*parse_text(text))) << "seed " << seed;
    const auto [known, fresh] = seen.emplace(fingerprint_of(graph), text);
    ASSERT_EQ(known->second, text) << "seed " << seed;
  }
  EXPECT_GT(seen.size(), 900u);
}

struct Change {
  const char* what;
  void (*make)(Graph&);
};

void PrintTo(const Change& change, std::ostream* out) {
  *out << change.what;
}

class FingerprintChange : public ::testing::TestWithParam<Change> {};

TEST_P(FingerprintChange, every_field_counts) {
  Graph graph = testing::llama_like(512);
  const Fingerprint before = fingerprint_of(graph);
  GetParam().make(graph);
  EXPECT_NE(fingerprint_of(graph), before);
}

ArgumentValue& argument(Graph& graph) {
  return graph.nodes[0].arguments[0].value;
}

// Two values where the argument stands: graphs that differ in nothing else.
void expect_apart(const ArgumentValue& a, const ArgumentValue& b) {
  Graph graph = testing::bert_like();
  argument(graph) = a;
  const Fingerprint first = fingerprint_of(graph);
  argument(graph) = b;
  EXPECT_NE(fingerprint_of(graph), first) << a.index() << " and " << b.index();
}

TEST(Fingerprint, arguments_that_look_alike_are_told_apart) {
  expect_apart(Expr(0), ValueRef{0});
  expect_apart(Expr(0), None{});
  expect_apart(Expr(1), true);
  expect_apart(Expr(1), 1.0);
  expect_apart(0.0, -0.0);
  expect_apart(true, false);
  expect_apart("int8", DType::kInt8);
  expect_apart(ValueList{{std::nullopt}}, ValueList{{0}});
  expect_apart(ValueList{}, ExprList{});
  expect_apart(ExprList{{1}}, Expr(1));
  expect_apart(ExprList{{1, 2}}, ExprList{{2, 1}});
  expect_apart(DoubleList{{1.0}}, 1.0);
  expect_apart(BoolList{{true, false}}, BoolList{{true}});
}

constexpr Change kChanges[] = {
    {"name", [](Graph& g) { g.name = "x"; }},
    {"symbol name", [](Graph& g) { g.symbols[0].name = "x"; }},
    {"symbol min", [](Graph& g) { ++g.symbols[0].min; }},
    {"symbol max", [](Graph& g) { ++g.symbols[0].max; }},
    {"symbol role", [](Graph& g) { g.symbols[0].role = SymbolRole::kPlain; }},
    {"one symbol more", [](Graph& g) { g.symbols.emplace_back(); }},
    {"storage kind", [](Graph& g) { g.storages[0].kind = StorageKind::kWeight; }},
    {"storage name", [](Graph& g) { g.storages[0].name += "x"; }},
    {"storage role", [](Graph& g) { g.storages[0].role = InputRole::kUser; }},
    {"storage layer", [](Graph& g) { ++g.storages[0].layer; }},
    {"storage part", [](Graph& g) { g.storages[0].part = SequencePart::kValue; }},
    {"storage declared", [](Graph& g) { g.storages[0].is_declared = true; }},
    {"value name", [](Graph& g) { g.values[0].name += "x"; }},
    {"value storage", [](Graph& g) { ++g.values[0].storage; }},
    {"value dtype", [](Graph& g) { g.values[0].dtype = DType::kInt32; }},
    {"value size", [](Graph& g) { g.values[0].sizes[0] = 2; }},
    {"value size's symbol", [](Graph& g) { ++g.values[0].sizes[0].terms[0].symbol; }},
    {"value size's factor", [](Graph& g) { ++g.values[0].sizes[0].terms[0].coefficient; }},
    {"sizes as strides", [](Graph& g) { g.values[0].sizes.swap(g.values[0].strides); }},
    {"value offset", [](Graph& g) { g.values[0].offset = 1; }},
    {"value claim", [](Graph& g) { g.values[0].claims_sizes ^= true; }},
    {"value criticality", [](Graph& g) { ++g.values[0].criticality; }},
    {"operator", [](Graph& g) { g.nodes[0].op = "aten::x"; }},
    {"argument name", [](Graph& g) { g.nodes[0].arguments[0].name = "x"; }},
    {"one argument less", [](Graph& g) { g.nodes[0].arguments.pop_back(); }},
    {"node outputs", [](Graph& g) { ++g.nodes[0].outputs[0]; }},
    {"order of nodes", [](Graph& g) { std::swap(g.nodes[0], g.nodes[1]); }},
    {"module path", [](Graph& g) { g.nodes[0].annotation.module_path += "x"; }},
    {"path as role",
     [](Graph& g) {
       g.nodes[0].annotation.role = "x";
       const Fingerprint role = fingerprint_of(g);
       std::swap(g.nodes[0].annotation.role, g.nodes[0].annotation.module_path);
       EXPECT_NE(fingerprint_of(g), role);
     }},
    {"phase", [](Graph& g) { g.nodes[0].annotation.phase = Phase::kDecode; }},
    {"residency", [](Graph& g) { g.nodes[0].annotation.residency = Residency::kState; }},
    {"modality", [](Graph& g) { g.nodes[0].annotation.modality = Modality::kText; }},
    {"flops", [](Graph& g) { ++g.nodes[0].annotation.flops; }},
    {"bytes", [](Graph& g) { ++g.nodes[0].annotation.bytes; }},
    {"colocation", [](Graph& g) { ++g.nodes[0].annotation.colocation_group; }},
    {"priority", [](Graph& g) { ++g.nodes[0].annotation.priority; }},
    {"outputs", [](Graph& g) { g.outputs.push_back(0); }},
    {"numerics", [](Graph& g) { g.numerics = Numerics::kFast; }}};

INSTANTIATE_TEST_SUITE_P(All, FingerprintChange, ::testing::ValuesIn(kChanges));

}  // namespace
}  // namespace djinn::srg
