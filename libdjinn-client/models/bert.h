// SPDX-License-Identifier: Apache-2.0

// The BERT builder: transformers' BertModel as an SRG, operator by operator in its order, so that
// the encoder's output has its bits.
//
//   inputs   input_ids int64 [batch, tokens]; token_type_ids likewise; attention_mask bool
//            [batch, 1, tokens, tokens] and token_weights [batch, tokens] in the model's dtype,
//            both only where masked
//   outputs  last_hidden_state [batch, tokens, hidden]
//            sentence_embedding [batch, hidden]: the mean over the tokens that count, of length 1
//
// transformers drops a mask that hides nothing, and the kernel without a mask has other bits: hence
// two programs.
#pragma once

#include "kernel/srg/graph.h"
#include "kernel/srg/load_plan.h"
#include "libdjinn-client/models/directory.h"

namespace djinn::client {

struct BertConfig {
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t intermediate = 0;
  int64_t vocabulary = 0;
  int64_t positions = 0;
  int64_t token_types = 0;
  double layer_norm_eps = 0;
  DType dtype = DType::kFloat32;
  std::string prefix;  // of tensor names: "" or "bert."

  // config has passed check_keys(). Errors: kUnsupported (dtype), kNotFound, kMalformed.
  static Result<BertConfig> from(const ModelConfig& config, const srg::ModelManifest& manifest);
};

// rows_max: upper bound of the batch symbol.
Result<srg::Graph> build_bert(const BertConfig& config, bool masked, int64_t rows_max);

}  // namespace djinn::client
