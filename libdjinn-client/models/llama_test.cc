// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/llama.h"

#include <gtest/gtest.h>

#include "libdjinn-client/models/test_configs.h"

namespace djinn::client {
namespace {

using testing::calls_of;
using testing::config_of;
using testing::manifest_of;

constexpr const char* kLlamaBase =
    R"("model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100)";
constexpr const char* kTable = "model.embed_tokens.weight";
constexpr LlamaPhase kPhases[] = {LlamaPhase::kPrefill, LlamaPhase::kPrefillMasked,
                                  LlamaPhase::kDecode, LlamaPhase::kDecodeMasked};

Result<LlamaConfig> llama_of(const std::string& changes = "", DType dtype = DType::kFloat32) {
  return LlamaConfig::from(config_of(kLlamaBase, changes),
                           manifest_of({kTable, "lm_head.weight"}, dtype));
}

srg::Graph graph_of(const LlamaConfig& config, const LlamaProgram& program) {
  auto graph = build_llama(config, program);
  EXPECT_TRUE(graph) << graph.error().message;
  return graph ? *std::move(graph) : srg::Graph();
}

size_t buffers_of(const srg::Graph& graph) {
  return static_cast<size_t>(
      std::ranges::count(graph.storages, srg::StorageKind::kSequence, &srg::Storage::kind));
}

TEST(LlamaConfig, takes_what_config_json_leaves_out_from_transformers_defaults) {
  const auto config = llama_of();
  ASSERT_TRUE(config);
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_dim, 8);
  EXPECT_EQ(config->positions, 2048);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_EQ(config->rope_theta, 10000.0);
  EXPECT_FALSE(config->attention_bias);
}

TEST(LlamaConfig, reads_the_rotary_base_in_its_old_and_its_new_place) {
  EXPECT_EQ(llama_of(R"("rope_theta": 500000.0)")->rope_theta, 500000.0);
  EXPECT_EQ(
      llama_of(R"("rope_parameters": {"rope_type": "default", "rope_theta": 5e5})")->rope_theta,
      500000.0);
  EXPECT_EQ(llama_of(R"("rope_scaling": {"type": "default", "rope_theta": 5e5},
                        "rope_parameters": {"rope_theta": 7.0})")
                ->rope_theta,
            500000.0);
  EXPECT_EQ(llama_of(R"("rope_theta": 5e5, "rope_scaling": {}, "rope_parameters": {})")->rope_theta,
            500000.0);
}

TEST(LlamaConfig, a_dtype_in_its_new_place_counts_more_than_in_its_old_one) {
  EXPECT_TRUE(llama_of(R"("dtype": "bfloat16", "torch_dtype": "float32")", DType::kBFloat16));
  EXPECT_FALSE(llama_of(R"("dtype": "float32", "torch_dtype": "bfloat16")", DType::kBFloat16));
}

TEST(LlamaConfig, the_head_is_tied_when_it_has_no_weight_of_its_own_and_is_said_to_be) {
  const std::string says_so = R"("tie_word_embeddings": true)";
  EXPECT_FALSE(llama_of(says_so)->tied);
  const auto untold = LlamaConfig::from(config_of(kLlamaBase), manifest_of({kTable}));
  ASSERT_FALSE(untold);
  EXPECT_NE(untold.error().message.find("tie_word_embeddings"), std::string::npos);
  const auto tied = LlamaConfig::from(config_of(kLlamaBase, says_so), manifest_of({kTable}));
  ASSERT_TRUE(tied);
  EXPECT_TRUE(tied->tied);
  const auto weights = testing::weights_of(graph_of(*tied, {}));
  EXPECT_FALSE(weights.contains("lm_head.weight"));
  EXPECT_TRUE(weights.contains(kTable));
}

TEST(LlamaConfig, what_is_not_built_exactly_is_unsupported) {
  for (const char* const change :
       {R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})",
        R"("rope_scaling": {"type": "linear", "factor": 2.0})",
        R"("rope_parameters": {"type": "linear", "factor": 2.0})",
        R"("rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "dynamic"})",
        R"("dtype": "bfloat16")", R"("torch_dtype": "float16")",
        R"("rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0})"}) {
    const auto refused = llama_of(change);
    ASSERT_FALSE(refused) << change;
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported) << change;
  }
}

TEST(LlamaConfig, numbers_that_contradict_one_another_are_malformed) {
  for (const char* const change :
       {R"("num_key_value_heads": 3)", R"("num_key_value_heads": 0)", R"("num_attention_heads": 0)",
        R"("head_dim": 7)", R"("hidden_size": 0.5)", R"("hidden_size": 0)",
        R"("max_position_embeddings": -1)", R"("max_position_embeddings": 0)", R"("vocab_size": 0)",
        R"("intermediate_size": 0)", R"("num_key_value_heads": -4)", R"("head_dim": -8)",
        R"("rope_theta": 0)"}) {
    const auto refused = llama_of(change);
    ASSERT_FALSE(refused) << change;
    EXPECT_EQ(refused.error().code, ErrorCode::kMalformed) << change;
  }
}

TEST(LlamaConfig, weights_without_a_token_table_are_no_llama) {
  const auto refused = LlamaConfig::from(config_of(kLlamaBase), manifest_of({"wte.weight"}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNotFound);
}

TEST(LlamaConfig, a_sequence_group_has_the_kv_heads_and_not_the_query_heads) {
  const auto config = llama_of(R"("num_key_value_heads": 2, "head_dim": 16)", DType::kBFloat16);
  ASSERT_TRUE(config);
  const ipc::SequenceGeometry expected{3, 2, 2, 16, DType::kBFloat16, 77};
  EXPECT_EQ(config->geometry(3, 77), expected);
}

TEST(BuildLlama, every_configuration_and_phase_gives_a_sound_graph) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const char* const change :
         {R"("num_hidden_layers": 1)", R"("num_hidden_layers": 32)", R"("num_key_value_heads": 1)",
          R"("num_key_value_heads": 2)", R"("head_dim": 2)", R"("head_dim": 128)",
          R"("attention_bias": true, "mlp_bias": true)",
          R"("max_position_embeddings": 131072, "rope_theta": 500000.0)"}) {
      const auto config = llama_of(change, dtype);
      ASSERT_TRUE(config) << change;
      for (const LlamaPhase phase : kPhases) {
        SCOPED_TRACE(change);
        testing::expect_sound(graph_of(*config, {phase, false}));
        testing::expect_sound(graph_of(*config, {phase, true}));
      }
    }
  }
}

TEST(BuildLlama, each_layer_appends_once_to_its_own_keys_and_values) {
  for (const LlamaPhase phase : kPhases) {
    const srg::Graph graph = graph_of(*llama_of(), {phase, false});
    EXPECT_EQ(buffers_of(graph), 4u);
    EXPECT_EQ(calls_of(graph, "djinn::kv_append"), 4u);
    EXPECT_EQ(calls_of(graph, "aten::scaled_dot_product_attention"), 2u);
  }
}

TEST(BuildLlama, all_variants_bind_the_same_weights) {
  const auto config = llama_of();
  const auto expected = testing::weights_of(graph_of(*config, {LlamaPhase::kDecode, false}));
  EXPECT_EQ(expected.size(), 3u + 2u * 9u);
  for (const LlamaPhase phase : kPhases) {
    EXPECT_EQ(testing::weights_of(graph_of(*config, {phase, true})), expected);
  }
}

TEST(BuildLlama, a_mask_is_an_input_only_where_something_is_masked) {
  for (const LlamaPhase phase : kPhases) {
    const auto inputs = testing::inputs_of(graph_of(*llama_of(), {phase, false}));
    const bool masked = phase == LlamaPhase::kPrefillMasked || phase == LlamaPhase::kDecodeMasked;
    EXPECT_EQ(inputs.size(), masked ? 3u : 2u);
  }
}

TEST(BuildLlama, biases_are_weights_only_where_the_configuration_has_them) {
  const auto names = testing::weights_of(graph_of(*llama_of(R"("attention_bias": true)"), {}));
  EXPECT_TRUE(names.contains("model.layers.1.self_attn.o_proj.bias"));
  EXPECT_FALSE(names.contains("model.layers.1.mlp.up_proj.bias"));
}

}  // namespace
}  // namespace djinn::client
