// SPDX-License-Identifier: Apache-2.0

#include "ipc/codec/srg_codec.h"

#include <capnp/message.h>
#include <gtest/gtest.h>

#include <cstring>

#include "ipc/codec/srg.capnp.h"
#include "ipc/limits.h"
#include "kernel/base/random.h"
#include "kernel/srg/limits.h"
#include "kernel/srg/test_graphs.h"
#include "kernel/srg/text.h"

namespace djinn::ipc {
namespace {

using Bytes = std::vector<std::byte>;

srg::LoadPlan plan() {
  srg::LoadPlan plan;
  srg::Piece piece{3, "model.layers.0.q", {{0, 128, 64}, {1, 0, 1ull << 40}}, true};
  plan.destinations.push_back(
      {"qkv", DType::kBFloat16, {192, 64}, 1, {piece, {0, "other", {}, false}}});
  plan.destinations.push_back({"scalar", DType::kFloat32, {}, 0, {}});
  plan.destinations.back().form = srg::WeightForm::kInt8;
  plan.aliases.push_back({"lm_head", "qkv"});
  plan.matrices = srg::WeightForm::kInt8;
  return plan;
}

srg::ModelManifest manifest() {
  srg::ModelManifest manifest;
  manifest.extent_bytes = {1ull << 33, 4096};
  manifest.tensors.push_back({"a", DType::kFloat32, {2, 3}, 1, 64, 24});
  manifest.tensors.push_back({"b", DType::kBool, {}, 0, 1ull << 32, 1});
  return manifest;
}

TEST(GraphCodec, every_graph_decodes_to_what_was_encoded) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const srg::Graph graph = srg::testing::RandomGraph(seed).make();
    const auto again = decode_graph(encode(graph));
    ASSERT_TRUE(again.ok()) << again.error().message;
    ASSERT_EQ(*again, graph);
    ASSERT_EQ(srg::print_text(*again), srg::print_text(graph));
  }
  EXPECT_EQ(*decode_graph(encode(srg::Graph{})), srg::Graph{});
}

TEST(GraphCodec, equal_graphs_give_equal_bytes_and_others_do_not) {
  const srg::Graph graph = srg::testing::llama_like(512);
  const Bytes bytes = encode(graph);
  EXPECT_EQ(encode(*decode_graph(bytes)), bytes);
  EXPECT_EQ(encode(*srg::parse_text(srg::print_text(graph))), bytes);
  EXPECT_NE(encode(srg::testing::llama_like(511)), bytes);
}

TEST(GraphCodec, the_bytes_are_capnprotos_canonical_form) {
  const Bytes bytes = encode(srg::testing::bert_like());
  std::vector<capnp::word> words(bytes.size() / sizeof(capnp::word));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  const kj::ArrayPtr<const capnp::word> segment(words.data(), words.size());
  capnp::SegmentArrayMessageReader reader(kj::arrayPtr(&segment, 1));
  EXPECT_TRUE(reader.isCanonical());
}

TEST(GraphCodec, lists_whose_items_have_no_bytes_decode_too) {
  srg::GraphBuilder g("zeros");
  g.op_n(0, "aten::f", {srg::ints(srg::Sizes(4096))});
  for (int i = 0; i < 100; ++i) g.op_n(0, "aten::f", {srg::ints(srg::Sizes(8))});
  const srg::Graph graph = *std::move(g).finish();
  const auto again = decode_graph(encode(graph));
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(*again, graph);
}

TEST(GraphCodec, unaligned_bytes_decode_alike) {
  const srg::Graph graph = srg::testing::bert_like();
  const Bytes bytes = encode(graph);
  Bytes shifted(bytes.size() + 1);
  std::memcpy(shifted.data() + 1, bytes.data(), bytes.size());
  EXPECT_EQ(*decode_graph(std::span(shifted).subspan(1)), graph);
}

TEST(GraphCodec, a_graph_at_the_limit_of_nodes_fits_its_limit_of_bytes) {
  srg::GraphBuilder g("many");
  srg::Tensor x = g.input("x", DType::kFloat32, {8, 384});
  for (uint32_t i = 0; i < srg::limits::kNodes; ++i) x = g.op("aten::relu", {x});
  const srg::Graph graph = *std::move(g).finish();
  const Bytes bytes = encode(graph);
  EXPECT_LE(bytes.size(), limits::kGraphBytes);
  const auto again = decode_graph(bytes);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(*again, graph);
}

TEST(PlanCodec, plans_and_manifests_decode_to_what_was_encoded) {
  EXPECT_EQ(*decode_load_plan(encode(plan())), plan());
  EXPECT_EQ(*decode_load_plan(encode(srg::LoadPlan{})), srg::LoadPlan{});
  EXPECT_EQ(*decode_manifest(encode(manifest())), manifest());
  EXPECT_EQ(*decode_manifest(encode(srg::ModelManifest{})), srg::ModelManifest{});
}

// --- hostile bytes

template <typename Build>
Bytes message(Build build) {
  capnp::MallocMessageBuilder builder;
  build(builder.initRoot<wire::Graph>());
  const auto words = capnp::canonicalize(builder.getRoot<wire::Graph>().asReader());
  const auto bytes = words.asBytes();
  Bytes out(bytes.size());
  std::memcpy(out.data(), bytes.begin(), bytes.size());
  return out;
}

Bytes words(std::vector<uint64_t> numbers) {
  Bytes out(numbers.size() * 8);
  std::memcpy(out.data(), numbers.data(), out.size());
  return out;
}

struct BadBytes {
  const char* what;
  ErrorCode code;
  Bytes bytes;
};

void PrintTo(const BadBytes& bad, std::ostream* out) {
  *out << bad.what;
}

class MalformedGraph : public ::testing::TestWithParam<BadBytes> {};

TEST_P(MalformedGraph, is_refused_with_its_code) {
  const auto graph = decode_graph(GetParam().bytes);
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code, GetParam().code) << graph.error().message;
}

// Pointers: low bits 0 struct, 1 list, 2 far, 3 capability (https://capnproto.org/encoding.html).
INSTANTIATE_TEST_SUITE_P(
    Table, MalformedGraph,
    ::testing::Values(
        BadBytes{"nothing", ErrorCode::kMalformed, {}},
        BadBytes{"half a word", ErrorCode::kMalformed, Bytes(12)},
        BadBytes{"struct beyond the end", ErrorCode::kMalformed, words({uint64_t{6} << 48})},
        BadBytes{"root is a list", ErrorCode::kMalformed, words({1})},
        BadBytes{"root is a far pointer to another segment", ErrorCode::kMalformed,
                 words({2 | uint64_t{1} << 32})},
        BadBytes{"root is a capability", ErrorCode::kMalformed, words({3})},
        BadBytes{"list of zero-sized elements, 2^29 of them", ErrorCode::kLimitExceeded,
                 words({uint64_t{2} << 48, 0, 1 | uint64_t{0x1fffffff} << 35})},
        BadBytes{"symbol role 200", ErrorCode::kMalformed,
                 message([](auto g) { g.initSymbols(1)[0].setRole(200); })},
        BadBytes{"storage kind 3", ErrorCode::kMalformed,
                 message([](auto g) { g.initStorages(1)[0].setKind(3); })},
        BadBytes{"dtype 18", ErrorCode::kMalformed,
                 message([](auto g) { g.initValues(1)[0].setDtype(18); })},
        BadBytes{"phase 8", ErrorCode::kMalformed,
                 message([](auto g) { g.initNodes(1)[0].initAnnotation().setPhase(8); })},
        BadBytes{"too many symbols", ErrorCode::kLimitExceeded,
                 message([](auto g) { g.initSymbols(srg::limits::kSymbols + 1); })},
        BadBytes{"too many dimensions", ErrorCode::kLimitExceeded,
                 message([](auto g) { g.initValues(1)[0].initSizes(srg::limits::kRank + 1); })},
        BadBytes{"too many nodes", ErrorCode::kLimitExceeded,
                 message([](auto g) { g.initNodes(srg::limits::kNodes + 1); })},
        BadBytes{"too many bytes", ErrorCode::kLimitExceeded, Bytes(limits::kGraphBytes + 8)}));

TEST(GraphCodec, every_truncation_and_thousands_of_damages_end_in_a_graph_or_an_error) {
  const Bytes bytes = encode(srg::testing::llama_like(8));
  for (size_t length = 0; length < bytes.size(); length += 8) {
    const auto graph = decode_graph(std::span(bytes).first(length));
    if (!graph) {
      ASSERT_EQ(graph.error().code, ErrorCode::kMalformed) << length;
    }
  }
  Random random(7);
  for (int round = 0; round < 5000; ++round) {
    Bytes damaged = bytes;
    for (int n = 0; n < 4; ++n) {
      damaged[random.below(damaged.size())] = static_cast<std::byte>(random.below(256));
    }
    const auto graph = decode_graph(damaged);
    if (!graph) {
      const ErrorCode code = graph.error().code;
      ASSERT_TRUE(code == ErrorCode::kMalformed || code == ErrorCode::kLimitExceeded);
    }
  }
}

TEST(PlanCodec, damaged_plans_and_manifests_end_in_a_value_or_an_error) {
  Random random(8);
  for (int round = 0; round < 5000; ++round) {
    for (Bytes bytes : {encode(plan()), encode(manifest())}) {
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.below(256));
      (void)decode_load_plan(bytes).ok();
      (void)decode_manifest(bytes).ok();
    }
  }
}

// --- a message that is larger when it is read than its bytes are

constexpr uint64_t kNode = 4;  // pointers: op, arguments, outputs, annotation

// A graph of so many nodes without operators; the list's first word is the last.
std::vector<uint64_t> graph_of_nodes(uint64_t nodes) {
  std::vector<uint64_t> raw = {uint64_t{6} << 48, 0, 0, 0, 0, 0, 0};
  raw[5] = 1 | (1 << 2) | uint64_t{7} << 32 | (nodes * kNode) << 35;
  raw.push_back((nodes << 2) | kNode << 48);
  return raw;
}

// Nodes that all name one list of outputs, which follows them.
Bytes nodes_of_one_list(uint64_t nodes, uint64_t outputs) {
  std::vector<uint64_t> raw = graph_of_nodes(nodes);
  const uint64_t list = raw.size() + nodes * kNode;
  for (uint64_t i = 0; i < nodes; ++i) {
    const uint64_t at = raw.size() + 2;
    raw.insert(raw.end(), {0, 0, 1 | (list - at - 1) << 2 | uint64_t{4} << 32 | outputs << 35, 0});
  }
  raw.resize(raw.size() + outputs / 2);
  return words(raw);
}

TEST(GraphCodec, a_message_cannot_name_one_list_many_times) {
  for (const uint64_t nodes : {100u, 1000u, 4000u}) {  // the last would have 4 Mi items, the most
    const Bytes bytes = nodes_of_one_list(nodes, 1000);
    const auto graph = decode_graph(bytes);
    ASSERT_FALSE(graph.ok()) << bytes.size();
    EXPECT_EQ(graph.error().code, ErrorCode::kLimitExceeded) << graph.error().message;
    EXPECT_NE(graph.error().message.find("more than once"), std::string::npos);
  }
}

TEST(GraphCodec, a_message_cannot_have_many_more_empty_items_than_words) {
  srg::GraphBuilder g("zeros");
  for (int i = 0; i < 100; ++i) g.op_n(0, "aten::f", {srg::ints(srg::Sizes(4096))});
  const auto graph = decode_graph(encode(*std::move(g).finish()));
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code, ErrorCode::kLimitExceeded) << graph.error().message;
}

TEST(PlanCodec, a_plan_cannot_name_one_list_many_times) {
  constexpr uint64_t kCount = 4000;
  // Destinations of one data word and three pointers: name, sizes, pieces.
  std::vector<uint64_t> raw = {uint64_t{2} << 48, 0, 0};
  raw[1] = 1 | (1 << 2) | uint64_t{7} << 32 | (kCount * 4) << 35;
  raw.push_back((kCount << 2) | uint64_t{1} << 32 | uint64_t{3} << 48);
  const uint64_t name = raw.size() + kCount * 4;
  for (uint64_t i = 0; i < kCount; ++i) {
    const uint64_t at = raw.size() + 1;
    raw.insert(raw.end(), {0, 1 | (name - at - 1) << 2 | uint64_t{2} << 32 | 8192ull << 35, 0, 0});
  }
  raw.resize(raw.size() + 1024);  // a text of 8 KiB, which ends with a zero
  const auto plan = decode_load_plan(words(raw));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::kLimitExceeded) << plan.error().message;
}

TEST(LoadPlanDecoding, a_list_that_is_too_long_is_named_with_its_tensor) {
  srg::LoadPlan plan;
  plan.destinations.resize(1);
  plan.destinations[0].sizes.resize(srg::limits::kRank + 1);
  for (const auto& [name, shown] :
       {std::pair(std::string("wte\x1b"), std::string("wte?")),
        std::pair(std::string(500, 'w'), std::string(80, 'w') + "...")}) {
    plan.destinations[0].name = name;
    const auto decoded = decode_load_plan(encode(plan));
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code, ErrorCode::kLimitExceeded);
    EXPECT_EQ(decoded.error().message,
              "There are 9 sizes of " + shown + "; the limit is 8. Give fewer.");
  }
}

}  // namespace
}  // namespace djinn::ipc
