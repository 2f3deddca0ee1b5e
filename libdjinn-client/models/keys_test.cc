// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/keys.h"

#include <gtest/gtest.h>

#include "libdjinn-client/models/test_configs.h"

namespace djinn::client {
namespace {

using Keys = std::vector<std::string>;

Result<Keys> check(Builder builder, const std::string& members) {
  return check_keys(builder, testing::config_of(members));
}

struct Case {
  Builder builder;
  const char* key;
  const char* value;
};

TEST(CheckKeys, a_value_that_is_not_computed_is_refused_by_its_key) {
  const Case cases[] = {
      {Builder::kLlama, "hidden_act", R"("gelu")"},
      {Builder::kLlama, "hidden_act", "1"},
      {Builder::kLlama, "sliding_window", "4096"},
      {Builder::kLlama, "attention_chunk_size", "8192"},
      {Builder::kLlama, "layer_types", R"(["full_attention", "sliding_attention"])"},
      {Builder::kLlama, "num_kv_shared_layers", "1"},
      {Builder::kLlama, "is_causal", "false"},
      {Builder::kLlama, "quantization_config", "{}"},
      {Builder::kLlama, "quantization_config", R"({"quant_method": "gptq"})"},
      {Builder::kLlama, "per_layer_config", R"({"0": {"rms_norm_eps": 1.0}})"},
      {Builder::kLlama, "attn_implementation", R"("eager")"},
      {Builder::kLlama, "output_attentions", "true"},
      {Builder::kLlama, "is_encoder_decoder", "true"},
      {Builder::kLlama, "transformers_weights", R"("other.safetensors")"},
      {Builder::kLlama, "text_config", "{}"},
      {Builder::kBert, "hidden_act", R"("gelu_new")"},
      {Builder::kBert, "position_embedding_type", R"("relative_key")"},
      {Builder::kBert, "is_causal", "true"},
      {Builder::kBert, "is_decoder", "true"},
      {Builder::kBert, "add_cross_attention", "true"},
      {Builder::kBert, "chunk_size_feed_forward", "4"},
      {Builder::kBert, "quantization_config", R"({"quant_method": "bitsandbytes"})"},
  };
  for (const auto& [builder, key, value] : cases) {
    const std::string member = "\"" + std::string(key) + "\": " + value;
    const auto refused = check(builder, member);
    ASSERT_FALSE(refused) << member;
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported) << member;
    EXPECT_NE(refused.error().message.find("'" + std::string(key) + "' of config.json"),
              std::string::npos)
        << refused.error().message;
  }
}

TEST(CheckKeys, a_value_that_is_computed_or_changes_nothing_is_passed) {
  const Case cases[] = {
      {Builder::kLlama, "hidden_act", R"("silu")"},
      {Builder::kLlama, "sliding_window", "null"},
      {Builder::kLlama, "quantization_config", "null"},
      {Builder::kLlama, "layer_types", R"(["full_attention", "full_attention"])"},
      {Builder::kLlama, "num_kv_shared_layers", "0"},
      {Builder::kLlama, "per_layer_config", "{}"},
      {Builder::kLlama, "attn_implementation", R"("sdpa")"},
      {Builder::kLlama, "pretraining_tp", "4"},
      {Builder::kLlama, "attention_dropout", "0.5"},
      {Builder::kLlama, "is_decoder", "true"},
      {Builder::kLlama, "chunk_size_feed_forward", "4"},
      {Builder::kLlama, "temperature", "0.5"},
      {Builder::kBert, "hidden_act", R"("gelu")"},
      {Builder::kBert, "chunk_size_feed_forward", "0"},
      {Builder::kBert, "pad_token_id", "7"},
      {Builder::kBert, "hidden_dropout_prob", "0.9"},
  };
  for (const auto& [builder, key, value] : cases) {
    const std::string member = "\"" + std::string(key) + "\": " + value;
    const auto unknown = check(builder, member);
    ASSERT_TRUE(unknown) << unknown.error().message;
    EXPECT_TRUE(unknown->empty()) << member;
  }
}

TEST(CheckKeys, an_unknown_key_is_told_with_its_place_and_one_of_the_other_builder_is_unknown) {
  EXPECT_EQ(*check(Builder::kLlama, R"("zeta": 1, "alpha": {"x": 1}, "layer_norm_eps": 1e-5,
      "rope_parameters": {"rope_theta": 1.0, "factor": 2.0})"),
            (Keys{"alpha", "layer_norm_eps", "rope_parameters.factor", "zeta"}));
  EXPECT_EQ(*check(Builder::kBert, R"("sliding_window": 4, "rope_theta": 1.0)"),
            (Keys{"rope_theta", "sliding_window"}));
}

TEST(CheckKeys, a_refusal_of_a_hostile_value_is_short_and_printable) {
  const std::string value = "\\u001b[31m" + std::string(100'000, 'x') + "\xc3\xa9";
  const auto refused = check(Builder::kLlama, "\"hidden_act\": \"" + value + "\"");
  ASSERT_FALSE(refused);
  EXPECT_LT(refused.error().message.size(), 400u);
  for (const char byte : refused.error().message) EXPECT_TRUE(byte >= ' ' && byte <= '~');
}

TEST(TellUnknown, names_some_keys_and_counts_the_others_and_says_nothing_of_none) {
  EXPECT_EQ(tell_unknown({}), "");
  const std::string few = tell_unknown({"alpha", "a\x1b[31m"});
  EXPECT_NE(few.find("\"alpha\""), std::string::npos);
  EXPECT_EQ(few.find('\x1b'), std::string::npos);
  const std::string many = tell_unknown(Keys(20, "k"));
  EXPECT_NE(many.find("and 12 more"), std::string::npos);
}

}  // namespace
}  // namespace djinn::client
