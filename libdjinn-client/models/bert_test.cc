// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/bert.h"

#include <gtest/gtest.h>

#include "libdjinn-client/models/test_configs.h"

namespace djinn::client {
namespace {

using testing::calls_of;
using testing::config_of;
using testing::manifest_of;

constexpr const char* kBertBase =
    R"("model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100,
    "max_position_embeddings": 40)";
constexpr const char* kWords = "embeddings.word_embeddings.weight";

Result<BertConfig> bert_of(const std::string& changes = "", DType dtype = DType::kFloat32) {
  return BertConfig::from(config_of(kBertBase, changes), manifest_of({kWords}, dtype));
}

TEST(BertConfig, takes_what_config_json_leaves_out_from_transformers_defaults) {
  const auto config = bert_of();
  ASSERT_TRUE(config);
  EXPECT_EQ(config->hidden, 32);
  EXPECT_EQ(config->token_types, 2);
  EXPECT_EQ(config->layer_norm_eps, 1e-12);
  EXPECT_EQ(config->prefix, "");
}

TEST(BertConfig, dtype_and_prefix_are_those_of_the_weights) {
  const auto config = BertConfig::from(
      config_of(kBertBase), manifest_of({std::string("bert.") + kWords}, DType::kBFloat16));
  ASSERT_TRUE(config);
  EXPECT_EQ(config->prefix, "bert.");
  EXPECT_EQ(config->dtype, DType::kBFloat16);
  const auto graph = build_bert(*config, false, 4);
  ASSERT_TRUE(graph);
  for (const std::string& name : testing::weights_of(*graph)) {
    EXPECT_TRUE(name.starts_with("bert.")) << name;
  }
}

TEST(BertConfig, what_is_not_built_exactly_is_unsupported) {
  EXPECT_EQ(bert_of("", DType::kFloat64).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(bert_of(R"("torch_dtype": "float16")").error().code, ErrorCode::kUnsupported);
}

TEST(BertConfig, numbers_that_contradict_one_another_are_malformed) {
  for (const char* const change :
       {R"("num_attention_heads": 5)", R"("num_attention_heads": 0)", R"("hidden_size": "32")",
        R"("num_hidden_layers": -1)", R"("hidden_size": 0)", R"("max_position_embeddings": -1)",
        R"("type_vocab_size": 0)", R"("vocab_size": 0)"}) {
    const auto refused = bert_of(change);
    ASSERT_FALSE(refused) << change;
    EXPECT_EQ(refused.error().code, ErrorCode::kMalformed) << change;
  }
  EXPECT_EQ(BertConfig::from(config_of(R"("x": 1)"), manifest_of({kWords})).error().code,
            ErrorCode::kNotFound);
}

TEST(BertConfig, weights_without_a_word_table_are_no_bert) {
  const auto refused = BertConfig::from(config_of(kBertBase), manifest_of({"wte.weight"}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNotFound);
}

TEST(BuildBert, every_configuration_gives_a_sound_graph) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const char* const change :
         {R"("num_hidden_layers": 0)", R"("num_hidden_layers": 1)", R"("num_hidden_layers": 24)",
          R"("num_attention_heads": 1)", R"("num_attention_heads": 32)", R"("type_vocab_size": 1)",
          R"("vocab_size": 30522, "max_position_embeddings": 512)"}) {
      for (const bool masked : {false, true}) {
        SCOPED_TRACE(change);
        const auto config = bert_of(change, dtype);
        ASSERT_TRUE(config);
        const auto graph = build_bert(*config, masked, 256);
        ASSERT_TRUE(graph) << graph.error().message;
        testing::expect_sound(*graph);
      }
    }
  }
}

TEST(BuildBert, a_mask_is_an_input_only_where_something_is_masked) {
  const auto config = bert_of();
  const auto plain = build_bert(*config, false, 4);
  const auto masked = build_bert(*config, true, 4);
  ASSERT_TRUE(plain && masked);
  EXPECT_EQ(testing::inputs_of(*plain), (std::vector<std::string>{"input_ids", "token_type_ids"}));
  EXPECT_EQ(
      testing::inputs_of(*masked),
      (std::vector<std::string>{"input_ids", "token_type_ids", "attention_mask", "token_weights"}));
  EXPECT_EQ(testing::outputs_of(*masked),
            (std::vector<std::string>{"last_hidden_state", "sentence_embedding"}));
  EXPECT_EQ(testing::weights_of(*plain), testing::weights_of(*masked));
}

TEST(BuildBert, a_layer_is_one_attention_and_sixteen_weights) {
  const auto graph = build_bert(*bert_of(), false, 4);
  ASSERT_TRUE(graph);
  EXPECT_EQ(calls_of(*graph, "aten::scaled_dot_product_attention"), 2u);
  EXPECT_EQ(calls_of(*graph, "aten::linear"), 12u);
  EXPECT_EQ(testing::weights_of(*graph).size(), 5u + 2u * 16u);
}

}  // namespace
}  // namespace djinn::client
