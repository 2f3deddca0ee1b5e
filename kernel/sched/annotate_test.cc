// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/annotate.h"

#include <gtest/gtest.h>

#include <map>

#include "kernel/sched/cost.h"
#include "kernel/sched/operators.h"
#include "kernel/srg/builder.h"
#include "kernel/srg/limits.h"
#include "kernel/srg/test_graphs.h"
#include "kernel/srg/text.h"
#include "kernel/srg/verify.h"

namespace djinn::sched {
namespace {

namespace graphs = srg::testing;
using srg::Annotation;
using srg::Graph;
using srg::Modality;
using srg::Node;
using srg::parse_text;
using srg::Phase;
using srg::Residency;
using srg::ValueRef;
using srg::verify;

Graph annotated(Graph graph) {
  annotate(graph);
  EXPECT_TRUE(verify(graph).ok()) << verify(graph).error().message;
  return graph;
}

Graph annotated_text(std::string_view body) {
  auto graph = parse_text("srg 1 \"t\"\n" + std::string(body));
  EXPECT_TRUE(graph.ok()) << (graph ? "" : graph.error().message);
  return annotated(*std::move(graph));
}

// How many nodes have each role.
std::map<std::string, int> roles(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Node& node : graph.nodes) ++counts[node.annotation.role];
  return counts;
}

const Node& node_of(const Graph& graph, std::string_view op) {
  for (const Node& node : graph.nodes) {
    if (node.op == op) return node;
  }
  ADD_FAILURE() << "no " << op;
  return graph.nodes.front();
}

const Node& node_with_weight(const Graph& graph, std::string_view weight) {
  for (const Node& node : graph.nodes) {
    const auto* ref =
        node.arguments.size() < 2 ? nullptr : std::get_if<ValueRef>(&node.arguments[1].value);
    if (ref != nullptr && graph.values[ref->id].name == weight) return node;
  }
  ADD_FAILURE() << "no " << weight;
  return graph.nodes.front();
}

TEST(Annotate, finds_the_parts_of_an_encoder_layer) {
  const Graph graph = annotated(graphs::bert_like());
  const auto found = roles(graph);
  EXPECT_EQ(found.at("attention"), 5);  // q, k, v, the product, the output
  EXPECT_EQ(found.at("mlp"), 3);
  EXPECT_EQ(found.at("norm"), 3);
  EXPECT_EQ(found.at("embedding"), 1);
  EXPECT_EQ(found.count("lm_head"), 0u);
  for (const char* name : {"query.weight", "key.weight", "value.weight", "output.weight"}) {
    EXPECT_EQ(node_with_weight(graph, name).annotation.role, "attention") << name;
  }
  EXPECT_EQ(classify(graph), Workload::kTextEncoder);
  for (const Node& node : graph.nodes) {
    EXPECT_EQ(node.annotation.phase, Phase::kForward);
    EXPECT_EQ(node.annotation.modality, Modality::kText);
  }
}

TEST(Annotate, finds_the_parts_of_a_decoder_layer) {
  const Graph graph = annotated(graphs::llama_like(512));
  const auto found = roles(graph);
  EXPECT_EQ(found.at("attention"), 5);
  EXPECT_EQ(found.at("kv_append"), 2);
  EXPECT_EQ(found.at("mlp"), 5);  // gate, up, down, silu, mul
  EXPECT_EQ(found.at("norm"), 2);
  EXPECT_EQ(found.at("lm_head"), 1);
  EXPECT_EQ(node_with_weight(graph, "o.weight").annotation.role, "attention");
  EXPECT_EQ(node_of(graph, "djinn::kv_append").annotation.residency, Residency::kState);
  EXPECT_EQ(node_with_weight(graph, "lm_head.weight").annotation.residency, Residency::kOutput);
  EXPECT_EQ(node_of(graph, "aten::silu").annotation.residency, Residency::kActivation);
}

TEST(Annotate, tells_prefill_from_decode_by_the_range_of_tokens) {
  EXPECT_EQ(classify(annotated(graphs::llama_like(512))), Workload::kPrefill);
  EXPECT_EQ(classify(annotated(graphs::llama_like(1))), Workload::kDecode);
}

TEST(Cost, decode_waits_for_memory_and_prefill_for_arithmetic) {
  const double decode = cost_at(graphs::llama_like(1), {{1, 1, 1024, 2048}}).total.intensity();
  const double prefill = cost_at(graphs::llama_like(512), {{1, 512, 0, 2048}}).total.intensity();
  EXPECT_LT(decode, 5.0);
  EXPECT_GT(prefill, 10 * decode);
}

TEST(Annotate, costs_follow_the_formulas_at_the_upper_bounds) {
  const Graph graph = annotated(graphs::bert_like());
  const uint64_t rows = 8 * 512;
  const Annotation& query = node_with_weight(graph, "query.weight").annotation;
  EXPECT_EQ(query.flops, 2 * rows * 384 * 384 + rows * 384);
  EXPECT_EQ(query.bytes, 4 * (2 * rows * 384 + 384 * 384 + 384));
  const Annotation& attention = node_of(graph, "aten::scaled_dot_product_attention").annotation;
  EXPECT_EQ(attention.flops, uint64_t{4} * 8 * 12 * 512 * 512 * 32);
  EXPECT_EQ(attention.bytes, 4 * 4 * rows * 384);
  const Annotation& embedding = node_of(graph, "aten::embedding").annotation;
  EXPECT_EQ(embedding.flops, 0u);
  EXPECT_EQ(embedding.bytes, 2 * 4 * rows * 384 + 8 * rows);
  EXPECT_EQ(node_of(graph, "aten::gelu").annotation.flops, rows * 1536);
  EXPECT_EQ(node_of(graph, "aten::layer_norm").annotation.flops, kNormFlopsPerElement * rows * 384);
  EXPECT_EQ(node_of(graph, "aten::view").annotation.bytes, 0u);
}

TEST(Annotate, attention_over_a_cache_counts_what_is_there_and_not_the_capacity) {
  const Graph graph = annotated(graphs::llama_like(1));
  EXPECT_EQ(node_of(graph, "aten::scaled_dot_product_attention").annotation.flops,
            uint64_t{4} * 4 * 8 * 1 * 1025 * 32);
}

TEST(Annotate, a_client_keeps_its_word) {
  Graph graph = graphs::bert_like();
  Annotation said;
  said.role = "mine";
  said.phase = Phase::kPrefill;
  said.residency = Residency::kState;
  said.modality = Modality::kTabular;
  said.flops = 7;
  for (Node& node : graph.nodes) node.annotation = said;
  for (srg::Value& value : graph.values) value.criticality = 3;
  const Graph before = graph;
  annotate(graph);
  EXPECT_EQ(graph, before);
}

TEST(Annotate, annotating_twice_changes_nothing) {
  for (Graph graph : {graphs::bert_like(), graphs::llama_like(512)}) {
    const Graph once = annotated(graph);
    EXPECT_EQ(annotated(once), once);
  }
}

TEST(Annotate, finds_attention_and_norms_that_are_spelled_out) {
  const Graph graph = annotated_text(R"(
input %x : float32[16, 64]
weight %w : float32[64, 64]
%2 = aten::pow.Tensor_Scalar(%x, 2)
%3 = aten::mean.dim(%2, [-1], true)
%4 = aten::add.Tensor(%3, 1e-05)
%5 = aten::rsqrt(%4)
%n = aten::mul.Tensor(%x, %5)
%q = aten::linear(%n, %w, none)
%t = aten::transpose.int(%q, 0, 1)
%s = aten::matmul(%q, %t)
%d = aten::div.Tensor(%s, 8.0)
%p = aten::softmax.int(%d, -1)
%o = aten::matmul(%p, %q)
%z = aten::linear(%o, %w, none)
output %z
)");
  EXPECT_EQ(roles(graph).at("norm"), 5);
  EXPECT_EQ(roles(graph).at("attention"), 6);
  EXPECT_EQ(node_of(graph, "aten::matmul").annotation.flops, 2u * 16 * 16 * 64);
}

TEST(Annotate, a_layer_that_keeps_a_state_instead_of_keys_and_values_is_a_recurrence) {
  const Graph graph = annotated_text(
      "symbol tokens 1..1 tokens\n"
      "symbol past 0..63 past\n"
      "input %ids \"ids\" : int64[1, 1] role token_ids\n"
      "weight %table \"table\" : float32[32, 8]\n"
      "weight %scale \"scale\" : float32[8]\n"
      "weight %in \"in\" : float32[8, 8]\n"
      "weight %decay \"decay\" : float32[8]\n"
      "weight %out \"out\" : float32[8, 8]\n"
      "input %state \"state\" : float32[1, 1, 8]\n"
      "%x = aten::embedding(%table, %ids, -1, false, false)\n"
      "%n = aten::rms_norm(%x, [8], %scale, 1e-06)\n"
      "%i = aten::linear(%n, %in, none)\n"
      "%kept = aten::mul.Tensor(%state, %decay)\n"
      "%next = aten::add.Tensor(%kept, %i, alpha=1)\n"
      "%w = aten::copy_(%state, %next, false)\n"
      "%gate = aten::silu(%next)\n"
      "%o = aten::linear(%gate, %out, none)\n"
      "%y = aten::add.Tensor(%x, %o, alpha=1)\n"
      "output %y\n");
  EXPECT_EQ(roles(graph), (std::map<std::string, int>{
                              {"embedding", 1}, {"norm", 1}, {"recurrence", 6}, {"residual", 1}}));
  for (const Node& node : graph.nodes) {
    EXPECT_EQ(node.annotation.phase, Phase::kDecode) << "it has no sequence";
    EXPECT_EQ(node.annotation.residency == Residency::kState, node.op == "aten::copy_");
  }
}

TEST(Annotate, what_is_looked_up_for_a_distance_is_of_the_mask) {
  const Graph graph = annotated_text(
      "input %q \"q\" : float32[2, 4, 8]\n"
      "input %k \"k\" : float32[2, 8, 4]\n"
      "input %v \"v\" : float32[2, 4, 8]\n"
      "weight %table \"table\" : float32[32, 4]\n"
      "input %far \"far\" : int64[2, 4]\n"
      "%steps = aten::abs(%far)\n"
      "%bias = aten::embedding(%table, %steps, -1, false, false)\n"
      "%scores = aten::baddbmm(%bias, %q, %k, beta=1, alpha=1)\n"
      "%p = aten::_softmax(%scores, -1, false)\n"
      "%y = aten::bmm(%p, %v)\n"
      "output %y\n");
  EXPECT_EQ(roles(graph), (std::map<std::string, int>{{"attention", 3}, {"mask", 2}}));
}

TEST(Annotate, names_vision_fusion_and_training) {
  const std::string vision = R"(
input %image : float32[1, 3, 224, 224]
weight %kernel : float32[64, 3, 16, 16]
%patches : float32[1, 64, 14, 14] = aten::conv2d(%image, %kernel, none)
)";
  const Graph image = annotated_text(vision);
  EXPECT_EQ(classify(image), Workload::kVision);
  EXPECT_EQ(image.nodes[0].annotation.role, "embedding");
  EXPECT_EQ(image.nodes[0].annotation.flops, uint64_t{2} * 64 * 14 * 14 * 3 * 16 * 16);
  const Graph both = annotated_text(vision + R"(
input %ids : int64[1, 14]
weight %table : float32[100, 14]
%words = aten::embedding(%table, %ids)
%sum = aten::add.Tensor(%patches, %words)
)");
  EXPECT_EQ(both.nodes[0].annotation.phase, Phase::kVisionEncoding);
  EXPECT_EQ(both.nodes[2].annotation.modality, Modality::kFusion);
  EXPECT_EQ(both.nodes[2].annotation.phase, Phase::kMultimodalFusion);
  EXPECT_EQ(classify(both), Workload::kMultimodal);
  const Graph training = annotated_text(vision + "%g = aten::gelu_backward(%patches, %patches)\n");
  EXPECT_EQ(classify(training), Workload::kTraining);
  EXPECT_EQ(training.nodes[1].annotation.residency, Residency::kGradient);
  EXPECT_EQ(classify(annotated(Graph{})), Workload::kUnknown);
}

TEST(Annotate, a_graph_that_ends_in_an_image_decodes_it) {
  const Graph graph = annotated_text(R"(
input %latent : float32[1, 4, 8, 8]
weight %up : float32[4, 8, 2, 2]
weight %last : float32[3, 8, 3, 3]
%wide : float32[1, 8, 16, 16] = aten::conv_transpose2d(%latent, %up, none, [2, 2])
%bent : float32[1, 8, 16, 16] = aten::silu(%wide)
%made : float32[1, 3, 14, 14] = aten::conv2d(%bent, %last, none)
%image : float32[1, 3, 14, 14] = aten::tanh(%made)
output %image
)");
  for (const Node& node : graph.nodes) {
    EXPECT_EQ(node.annotation.phase, Phase::kVisionDecoding) << node.op;
  }
}

TEST(Annotate, an_edge_beside_the_longest_path_is_less_critical) {
  const Graph graph = annotated_text(R"(
input %x : float32[64, 64]
weight %w : float32[64, 64]
%once : float32[64, 64] = aten::linear(%x, %w, none)
%twice : float32[64, 64] = aten::linear(%once, %w, none)
%beside : float32[64, 64] = aten::neg(%x)
%sum : float32[64, 64] = aten::add.Tensor(%twice, %beside)
output %sum
)");
  const auto criticality = [&](size_t node) {
    return graph.values[graph.nodes[node].outputs[0]].criticality;
  };
  EXPECT_EQ(criticality(0), 255);
  EXPECT_EQ(criticality(1), 255);
  EXPECT_EQ(criticality(3), 255);
  EXPECT_LT(criticality(2), 200);
  EXPECT_GT(criticality(2), 0);
}

TEST(Annotate, any_verified_graph_is_annotated_without_harm) {
  static constexpr const char* kOps[] = {
      "aten::linear",        "aten::matmul",      "aten::softmax.int", "aten::rsqrt",
      "aten::mean.dim",      "aten::view",        "aten::permute",     "aten::slice.Tensor",
      "aten::silu",          "aten::embedding",   "aten::conv2d",      "aten::unsqueeze",
      "aten::transpose.int", "aten::add_.Tensor", "djinn::kv_append",  "djinn::attention"};
  Random random(5);
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Graph graph = graphs::RandomGraph(seed).make();
    for (Node& node : graph.nodes) node.op = kOps[random.below(16)];
    annotate(graph);
    ASSERT_TRUE(verify(graph).ok());
    (void)classify(graph);
  }
}

// Walks are no recursions, and none that begins at every node goes far: else a graph as long as may
// be would take a worker's stack, or its time.
TEST(Annotate, once_the_longest_chains_are_annotated) {
  constexpr int kNodes = 60'000;
  const std::vector<std::vector<const char*>> chains = {
      {"aten::softmax.int", "aten::mul.Tensor"}, {"aten::_to_copy"}, {"aten::rsqrt"},
      {"aten::mul.Tensor", "aten::cos"},         {"aten::silu"},     {"aten::cat"}};
  for (const auto& chain : chains) {
    srg::GraphBuilder g("long");
    const srg::Tensor weight = g.weight("w", DType::kFloat32, {4, 4});
    srg::Tensor x = g.op("aten::matmul", {g.input("x", DType::kFloat32, {4, 4}), weight});
    for (int i = 0; i < kNodes; ++i) {
      const std::string_view op = chain[static_cast<size_t>(i) % chain.size()];
      x = op == "aten::mul.Tensor" ? g.op("aten::mul.Tensor", {x, weight})
                                   : g.op(std::string(op), {x});
    }
    for (int i = 0; i < 100; ++i) {
      g.output("y" + std::to_string(i), g.op("aten::scaled_dot_product_attention", {x, x, x}));
    }
    Graph graph = *std::move(g).finish();
    annotate(graph);
    EXPECT_EQ(graph.nodes.back().annotation.role, "attention") << chain[0];
  }
}

TEST(Annotate, a_shape_has_no_more_dimensions_than_a_tensor_may) {
  srg::GraphBuilder g("deep");
  srg::Tensor x = g.input("x", DType::kFloat32, {2});
  constexpr size_t kDepth = 2 * srg::limits::kRank;
  for (size_t i = 0; i < kDepth; ++i) x = g.op("aten::unsqueeze", {x, srg::Expr(0)});
  g.output("y", x);
  const Graph graph = *std::move(g).finish();
  for (const auto& shape : shapes_at(graph, {})) {
    EXPECT_LE(shape ? shape->sizes.size() : 0, srg::limits::kRank);
  }
}

// At these symbols, and not at the upper bounds.
TEST(Cost, follows_the_symbols) {
  const Graph graph = graphs::llama_like(512);
  const auto attention = [&](int64_t tokens, int64_t past) {
    const GraphCost cost = cost_at(graph, std::vector<int64_t>{2, tokens, past, 2048});
    EXPECT_EQ(cost.unknown, 0u);
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (family_of(graph.nodes[i].op) == Family::kAttention) return cost.nodes[i]->flops;
    }
    return uint64_t{0};
  };
  EXPECT_EQ(attention(1, 7), uint64_t{4} * 2 * 8 * 1 * 8 * 32);
  EXPECT_EQ(attention(16, 0), uint64_t{4} * 2 * 8 * 16 * 16 * 32);
}

TEST(Cost, what_a_view_repeats_is_read_once) {
  auto graph = parse_text(R"(srg 1 "t"
input %x : float32[8]
%wide = aten::as_strided(%x, [16, 8], [0, 1], 0)
%y : float32[16, 8] = aten::neg(%wide)
%z : float32[128] = aten::zeros([128], dtype=float32)
%view = aten::as_strided(%z, [16, 8], [8, 1], 0)
%same = aten::copy_(%view, %y, false)
%more = aten::add_.Tensor(%view, %wide, alpha=1)
output %z
)");
  ASSERT_TRUE(graph.ok());
  const GraphCost cost = cost_at(*graph, {});
  EXPECT_EQ(cost.nodes[0], (Cost{}));
  EXPECT_EQ(cost.nodes[1], (Cost{128, 32, 512}));
  EXPECT_EQ(cost.nodes[2], (Cost{0, 0, 512}));
  EXPECT_EQ(cost.nodes[4], (Cost{0, 512, 512}));
  EXPECT_EQ(cost.nodes[5], (Cost{128, 512 + 32, 512}));
}

TEST(Cost, rows_of_experts_read_no_more_weights_than_there_are_rows) {
  auto graph = parse_text(R"(srg 1 "t"
input %x : float32[2, 64]
weight %w : float32[8, 64, 16]
input %ends : int32[8]
%y : float32[2, 16] = aten::_grouped_mm(%x, %w, %ends, none, none)
output %y
)");
  ASSERT_TRUE(graph.ok());
  const Cost cost = cost_at(*graph, {}).total;
  EXPECT_EQ(cost.flops, uint64_t{2} * 2 * 64 * 16);
  EXPECT_EQ(cost.read, 4 * (2 * 64 + 2 * 64 * 16 + 8));
}

TEST(Cost, weights_in_int8_are_read_with_their_scales_and_through_views_too) {
  auto graph = parse_text(R"(srg 1 "t"
input %ids : int64[3]
weight %table "table" : float32[100, 64]
weight %w "w" : bfloat16[32, 64]
weight %plain "plain" : float32[64, 8]
%x : float32[3, 64] = aten::embedding(%table, %ids, -1, false, false)
%y : float32[3, 32] = aten::linear(%x, %w)
%turned = aten::as_strided(%w, [64, 32], [1, 64], 0)
%z : float32[3, 32] = aten::mm(%x, %turned)
%p : float32[3, 8] = aten::mm(%x, %plain)
output %y
output %z
output %p
)");
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  srg::WeightForms forms(graph->storages.size(), srg::WeightForm::kPlain);
  for (size_t i = 0; i < forms.size(); ++i) {
    const std::string& name = graph->storages[i].name;
    if (name == "table" || name == "w") forms[i] = srg::WeightForm::kInt8;
  }
  const GraphCost plain = cost_at(*graph, {}), cost = cost_at(*graph, {}, forms);
  ASSERT_EQ(cost.unknown, 0u);
  constexpr uint64_t kIds = 3 * 8, kX = 4 * 3 * 64, kMatrix = 32 * 64;
  EXPECT_EQ(plain.nodes[0]->read, kIds + kX);
  EXPECT_EQ(cost.nodes[0]->read, kIds + 3 * (64 + 2 * 64 / 32)) << "the rows that are taken";
  EXPECT_EQ(plain.nodes[1]->read, kX + 2 * kMatrix);
  EXPECT_EQ(cost.nodes[1]->read, kX + kMatrix + kMatrix / 16);
  EXPECT_EQ(cost.nodes[3]->read, kX + kMatrix + kMatrix / 16) << "through a view";
  EXPECT_EQ(cost.nodes[4]->read, plain.nodes[4]->read);
  for (size_t i = 0; i < cost.nodes.size(); ++i) {
    EXPECT_EQ(cost.nodes[i]->flops, plain.nodes[i]->flops);
    EXPECT_EQ(cost.nodes[i]->written, plain.nodes[i]->written);
  }
}

TEST(Cost, sums_and_products_saturate) {
  const Shape huge{DType::kFloat32, {uint64_t{1} << 40, uint64_t{1} << 40}};
  EXPECT_EQ(byte_count(huge), UINT64_MAX);
  EXPECT_EQ(matmul_flops(huge, 8), UINT64_MAX);
  EXPECT_EQ((Cost{UINT64_MAX, 1, 2} + Cost{1, 1, 1}), (Cost{UINT64_MAX, 2, 3}));
  EXPECT_EQ((Cost{0, UINT64_MAX, 2}.bytes()), UINT64_MAX);
}

TEST(Operators, base_names_drop_overloads_and_the_sign_of_in_place_forms) {
  EXPECT_EQ(base_name("aten::add_.Tensor"), "aten::add");
  EXPECT_EQ(base_name("aten::linear"), "aten::linear");
  EXPECT_EQ(base_name("aten::__and__.Tensor"), "aten::__and__");
  EXPECT_EQ(family_of("aten::softmax.int"), Family::kSoftmax);
  EXPECT_EQ(family_of("aten::frobnicate"), Family::kOther);
}

}  // namespace
}  // namespace djinn::sched
