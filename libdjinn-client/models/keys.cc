// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/keys.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

namespace djinn::client {
namespace {

using Json = nlohmann::json;

// A key with null `values` is read by the builder, or changes nothing. Else `values` is a JSON list
// of the values that we compute; null stands for transformers' default, and is always computed. A
// list in the file is computed if each of its items is.
struct Key {
  std::string_view name;
  const char* values = nullptr;
};

// A key with this list is not computed, whatever its value is, unless that is null.
constexpr const char* kNever = "[]";

// transformers' PreTrainedConfig and its generic code read these, so both builders have them.
constexpr Key kCommon[] = {
    // The builders read these.
    {"model_type"},
    {"vocab_size"},
    {"hidden_size"},
    {"intermediate_size"},
    {"num_hidden_layers"},
    {"num_attention_heads"},
    {"max_position_embeddings"},
    {"dtype"},
    {"torch_dtype"},
    // These change the result.
    {"attn_implementation", R"(["sdpa"])"},
    {"_attn_implementation", R"(["sdpa"])"},
    {"output_attentions", "[false]"},  // true makes transformers take another attention
    {"is_encoder_decoder", "[false]"},
    {"per_layer_config", "[{}]"},
    {"quantization_config", kNever},
    {"compression_config", kNever},
    {"transformers_weights", kNever},  // names other files
    {"fusion_config", "[{}]"},
    {"text_config", kNever},  // where it is there, transformers reads it in place of the whole
    {"text_encoder", kNever},
    {"decoder", kNever},
    {"generator", kNever},
    {"pruned_heads", "[{}]"},
    // These say where the model comes from, and what it is called.
    {"architectures"},
    {"auto_map"},
    {"name_or_path"},
    {"_name_or_path"},
    {"_commit_hash"},
    {"transformers_version"},
    {"tokenizer_class"},
    {"processor_class"},
    {"model_max_length"},
    // These are of heads for tasks, which the builders leave out.
    {"id2label"},
    {"label2id"},
    {"num_labels"},
    {"problem_type"},
    {"finetuning_task"},
    {"task_specific_params"},
    {"classifier_dropout"},
    // These are about training, and its start.
    {"attention_dropout"},
    {"hidden_dropout"},
    {"hidden_dropout_prob"},
    {"attention_probs_dropout_prob"},
    {"initializer_range"},
    {"initializer_factor"},
    {"gradient_checkpointing"},
    {"loss_type"},
    // These say how transformers answers and where it computes. Without a cache its generate()
    // computes all tokens anew for each token; the builders always have one.
    {"return_dict"},
    {"use_return_dict"},
    {"output_hidden_states"},
    {"output_past"},
    {"use_cache"},
    {"torchscript"},
    {"use_bfloat16"},
    {"tf_legacy_loss"},
    {"distributed_config"},
    {"experts_implementation"},
    {"_attn_implementation_autoset"},
    {"_attn_implementation_internal"},
    {"_experts_implementation_internal"},
    {"tie_encoder_decoder"},
    {"cross_attention_hidden_size"},
    {"prefix"},
    // No forward looks at these tokens. A generation's caller names its end and its padding.
    {"bos_token_id"},
    {"eos_token_id"},
    {"pad_token_id"},
    {"sep_token_id"},
    {"cls_token_id"},
    {"mask_token_id"},
    {"unk_token_id"},
    {"decoder_start_token_id"},
    // These say how tokens are chosen. Older files say it here; a caller says it with each
    // generation.
    {"max_length"},
    {"max_new_tokens"},
    {"min_length"},
    {"min_new_tokens"},
    {"do_sample"},
    {"early_stopping"},
    {"num_beams"},
    {"num_beam_groups"},
    {"diversity_penalty"},
    {"temperature"},
    {"top_k"},
    {"top_p"},
    {"min_p"},
    {"typical_p"},
    {"repetition_penalty"},
    {"length_penalty"},
    {"no_repeat_ngram_size"},
    {"encoder_no_repeat_ngram_size"},
    {"encoder_repetition_penalty"},
    {"bad_words_ids"},
    {"num_return_sequences"},
    {"output_scores"},
    {"return_dict_in_generate"},
    {"forced_bos_token_id"},
    {"forced_eos_token_id"},
    {"remove_invalid_values"},
    {"exponential_decay_length_penalty"},
    {"suppress_tokens"},
    {"begin_suppress_tokens"},
    {"epsilon_cutoff"},
    {"eta_cutoff"},
    {"num_assistant_tokens"},
    {"num_assistant_tokens_schedule"},
    {"assistant_confidence_threshold"},
    {"assistant_lookbehind"},
    {"target_lookbehind"},
};

constexpr Key kLlama[] = {
    {"num_key_value_heads"},
    {"head_dim"},
    {"rms_norm_eps"},
    {"attention_bias"},
    {"mlp_bias"},
    {"tie_word_embeddings"},
    {"rope_parameters"},
    {"rope_scaling"},
    {"rope_theta"},
    {"hidden_act", R"(["silu"])"},
    {"is_causal", "[true]"},
    {"sliding_window", kNever},
    {"attention_chunk_size", kNever},
    {"layer_types", R"(["full_attention"])"},
    {"num_kv_shared_layers", "[0]"},
    {"pretraining_tp"},
    {"chunk_size_feed_forward"},
    {"is_decoder"},
    {"add_cross_attention"},
    {"partial_rotary_factor"},  // of other models: a Llama turns all of a head
    {"original_max_position_embeddings"},
};

constexpr Key kBert[] = {
    {"layer_norm_eps"},
    {"type_vocab_size"},
    {"hidden_act", R"(["gelu"])"},
    {"position_embedding_type", R"(["absolute"])"},
    {"is_causal", "[false]"},
    {"is_decoder", "[false]"},
    {"add_cross_attention", "[false]"},
    {"chunk_size_feed_forward", "[0]"},
    {"tie_word_embeddings"},  // of heads
    {"directionality"},
    {"pooler_fc_size"},
    {"pooler_num_attention_heads"},
    {"pooler_num_fc_layers"},
    {"pooler_size_per_head"},
    {"pooler_type"},
};

// These are members of rope_parameters, and of rope_scaling, its older name.
constexpr Key kRope[] = {{"rope_type"}, {"type"}, {"rope_theta"}, {"partial_rotary_factor"}};

const char* name_of(Builder builder) {
  return builder == Builder::kLlama ? "llama" : "bert";
}

const Key* find(std::span<const Key> keys, std::string_view name) {
  const auto found = std::ranges::find(keys, name, &Key::name);
  return found == keys.end() ? nullptr : &*found;
}

const Key* find(Builder builder, std::string_view name) {
  const Key* const own = builder == Builder::kLlama ? find(kLlama, name) : find(kBert, name);
  return own != nullptr ? own : find(kCommon, name);
}

bool is_computed(const Json& value, const Json& computed) {
  const auto is_one = [&](const Json& item) {
    return std::ranges::find(computed, item) != computed.end();
  };
  return value.is_null() || is_one(value) ||
         (value.is_array() && !computed.empty() && std::ranges::all_of(value, is_one));
}

// Gives JSON, which anybody may have written, as short and printable ASCII for an error or a note.
std::string text_of(const Json& value) {
  constexpr size_t kBytes = 64;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kBytes) text = text.substr(0, kBytes) + "...";
  return text;
}

Error refused(Builder builder, const Key& key, const Json& value) {
  std::string known;
  for (const Json& one : Json::parse(key.values)) known += (known.empty() ? "" : ", ") + one.dump();
  return {ErrorCode::kUnsupported,
          "'" + std::string(key.name) + "' of config.json is " + text_of(value) + ", and the " +
              name_of(builder) + " builder computes " +
              (known.empty() ? "no model that has it" : "only " + known) +
              ". Run this model from PyTorch: import djinn.torch, then load it with transformers."};
}

}  // namespace

Result<std::vector<std::string>> check_keys(Builder builder, const ModelConfig& config) {
  std::vector<std::string> unknown;
  for (const auto& [name, text] : config.members()) {
    const Json value = Json::parse(text);
    const Key* const key = find(builder, name);
    if (key == nullptr) {
      unknown.push_back(name);
    } else if (key->values != nullptr && !is_computed(value, Json::parse(key->values))) {
      return refused(builder, *key, value);
    } else if (value.is_object() && (name == "rope_parameters" || name == "rope_scaling")) {
      for (const auto& [inner, ignored] : value.items()) {
        if (find(kRope, inner) == nullptr) unknown.push_back(name + "." + inner);
      }
    }
  }
  return unknown;
}

std::string tell_unknown(const std::vector<std::string>& keys) {
  constexpr size_t kNamed = 8;
  if (keys.empty()) return "";
  std::string names;
  for (const std::string& key : std::span(keys).first(std::min(keys.size(), kNamed))) {
    names += (names.empty() ? "" : ", ") + text_of(key);
  }
  if (keys.size() > kNamed) names += ", and " + std::to_string(keys.size() - kNamed) + " more";
  return "config.json has keys that are passed over, since nothing is known of them: " + names +
         ".";
}

}  // namespace djinn::client
