// SPDX-License-Identifier: Apache-2.0

// The Llama builder: transformers' LlamaForCausalLM as SRGs on a sequence group, operator by
// operator in its order, so that logits have its bits.
//
//   inputs   input_ids, position_ids int64 [batch, tokens]; attention_mask bool [batch, 1, tokens,
//            past + tokens] where masked. All three have roles: a generation binds them by itself
//   state    K and V of each layer, [batch, kv_heads, capacity, head_dim]
//   output   logits [batch, 1, vocabulary] of the last token, or [batch, tokens, vocabulary]
//
// transformers passes no mask where nothing is padded, and other bits come of it; a prefill without
// mask is causal by flag and needs an empty group. Hence the variants.
#pragma once

#include "ipc/messages.h"
#include "kernel/srg/graph.h"
#include "kernel/srg/load_plan.h"
#include "libdjinn-client/models/directory.h"

namespace djinn::client {

struct LlamaConfig {
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate = 0;
  int64_t vocabulary = 0;
  int64_t positions = 0;
  double rms_norm_eps = 0;
  double rope_theta = 0;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tied = false;  // no lm_head.weight: the embedding serves
  DType dtype = DType::kFloat32;

  // config has passed check_keys(). Errors: kUnsupported (rope scaling, dtype), kNotFound,
  // kMalformed.
  static Result<LlamaConfig> from(const ModelConfig& config, const srg::ModelManifest& manifest);

  // The geometry of a sequence group of this model.
  [[nodiscard]] ipc::SequenceGeometry geometry(uint32_t rows, uint64_t capacity) const;
};

enum class LlamaPhase : uint8_t {
  kPrefill,        // many tokens into an empty group, nothing padded
  kPrefillMasked,  // many tokens, padded or behind others
  kDecode,         // one token a row
  kDecodeMasked,   // one token a row, padded
};

struct LlamaProgram {
  LlamaPhase phase = LlamaPhase::kDecode;
  bool all_logits = false;  // of every token, not of the last only
};

Result<srg::Graph> build_llama(const LlamaConfig& config, const LlamaProgram& program);

}  // namespace djinn::client
