// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/bert.h"

#include <algorithm>
#include <cmath>

#include "kernel/srg/builder.h"
#include "libdjinn-client/models/weights.h"

namespace djinn::client {
namespace {

using srg::Expr;
using srg::GraphBuilder;
using srg::Tensor;

// Holds what the parts of one call of build_bert() share.
struct Bert {
  const BertConfig& config;
  GraphBuilder g;
  Expr batch;
  Expr tokens;

  Tensor weight(const std::string& name, srg::Sizes sizes) {
    return g.weight(config.prefix + name, config.dtype, std::move(sizes));
  }
  Tensor linear(const std::string& name, Tensor x, int64_t out, int64_t in) {
    return g.op("aten::linear",
                {x, weight(name + ".weight", {out, in}), weight(name + ".bias", {out})});
  }
  Tensor layer_norm(const std::string& name, Tensor x) {
    const int64_t hidden = config.hidden;
    return g.op("aten::layer_norm", {x, srg::ints({hidden}), weight(name + ".weight", {hidden}),
                                     weight(name + ".bias", {hidden}), config.layer_norm_eps});
  }
  Tensor table(const std::string& name, int64_t rows, Tensor ids) {
    return g.op("aten::embedding",
                {weight("embeddings." + name + ".weight", {rows, config.hidden}), ids});
  }

  Tensor embeddings(Tensor ids, Tensor types) {
    const auto scope = g.role("embedding");
    const Tensor words = table("word_embeddings", config.vocabulary, ids);
    Tensor sum = g.op("aten::add.Tensor",
                      {words, table("token_type_embeddings", config.token_types, types)});
    const Tensor positions = g.op("aten::unsqueeze", {g.op("aten::arange", {tokens}), 0});
    sum =
        g.op("aten::add.Tensor", {sum, table("position_embeddings", config.positions, positions)});
    return layer_norm("embeddings.LayerNorm", sum);
  }

  Tensor heads_of(const std::string& name, Tensor x) {
    const int64_t hidden = config.hidden;
    const Tensor projected = linear(name, x, hidden, hidden);
    const Tensor split = g.op(
        "aten::view", {projected, srg::ints({batch, tokens, config.heads, hidden / config.heads})});
    return g.op("aten::transpose.int", {split, 1, 2});
  }

  Tensor attention(const std::string& layer, Tensor x, std::optional<Tensor> mask) {
    const auto scope = g.role("attention");
    const std::string self = layer + ".attention.self.";
    const double scale = std::pow(static_cast<double>(config.hidden / config.heads), -0.5);
    const Tensor q = heads_of(self + "query", x);
    const Tensor k = heads_of(self + "key", x);
    const Tensor v = heads_of(self + "value", x);
    const Tensor mixed =
        g.op("aten::scaled_dot_product_attention", {q, k, v, mask, 0.0, false}, {{"scale", scale}});
    const Tensor rows = g.op("aten::contiguous", {g.op("aten::transpose.int", {mixed, 1, 2})});
    const Tensor joined = g.op("aten::reshape", {rows, srg::ints({batch, tokens, config.hidden})});
    const std::string output = layer + ".attention.output.";
    const Tensor dense = linear(output + "dense", joined, config.hidden, config.hidden);
    return layer_norm(output + "LayerNorm", g.op("aten::add.Tensor", {dense, x}));
  }

  Tensor mlp(const std::string& layer, Tensor x) {
    const auto scope = g.role("mlp");
    const Tensor wide =
        linear(layer + ".intermediate.dense", x, config.intermediate, config.hidden);
    const Tensor narrow = linear(layer + ".output.dense", g.op("aten::gelu", {wide}), config.hidden,
                                 config.intermediate);
    return layer_norm(layer + ".output.LayerNorm", g.op("aten::add.Tensor", {narrow, x}));
  }

  // Computes sum(hidden * weights) / clamp(sum(weights), 1e-9), scaled to length 1: the mean
  // pooling and normalisation of sentence-transformers.
  Tensor pooled(Tensor hidden, std::optional<Tensor> weights) {
    const auto scope = g.role("pooling");
    Tensor mean{};
    if (weights) {
      const Tensor spread = g.op("aten::unsqueeze", {*weights, -1});
      const Tensor sum = g.op("aten::sum.dim_IntList",
                              {g.op("aten::mul.Tensor", {hidden, spread}), srg::ints({1})});
      const Tensor count = g.op("aten::sum.dim_IntList", {spread, srg::ints({1})});
      mean = g.op("aten::div.Tensor", {sum, g.op("aten::clamp", {count, 1e-9})});
    } else {
      const Tensor sum = g.op("aten::sum.dim_IntList", {hidden, srg::ints({1})});
      mean = g.op("aten::div.Scalar", {sum, tokens});
    }
    const Tensor norm = g.op("aten::linalg_vector_norm", {mean, 2.0, srg::ints({1}), true});
    return g.op("aten::div.Tensor", {mean, g.op("aten::clamp", {norm, 1e-12})});
  }
};

bool has_tensor(const srg::ModelManifest& manifest, const std::string& name) {
  return std::ranges::any_of(manifest.tensors,
                             [&](const auto& entry) { return entry.name == name; });
}

Status check_known(DType dtype) {
  const bool known =
      dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
  if (known) return {};
  return Error{ErrorCode::kUnsupported,
               "The bert builder knows float32, bfloat16 and float16, not " +
                   std::string(name_of(dtype)) + "."};
}

}  // namespace

Result<BertConfig> BertConfig::from(const ModelConfig& config, const srg::ModelManifest& manifest) {
  BertConfig out;
  DJINN_TRY(out.hidden, config.count("hidden_size"));
  DJINN_TRY(out.layers, config.integer("num_hidden_layers"));
  DJINN_TRY(out.heads, config.count("num_attention_heads"));
  DJINN_TRY(out.intermediate, config.count("intermediate_size"));
  DJINN_TRY(out.vocabulary, config.count("vocab_size"));
  DJINN_TRY(out.positions, config.count("max_position_embeddings"));
  DJINN_TRY(out.token_types, config.count_or("type_vocab_size", 2));
  DJINN_TRY(out.layer_norm_eps, config.number_or("layer_norm_eps", 1e-12));
  if (out.layer_norm_eps < 0) {
    return Error{ErrorCode::kMalformed, "layer_norm_eps of config.json is below 0."};
  }
  if (out.hidden % out.heads != 0) {
    return Error{ErrorCode::kMalformed, "hidden_size is not a multiple of num_attention_heads."};
  }
  const std::string words = "embeddings.word_embeddings.weight";
  out.prefix = has_tensor(manifest, words) ? "" : "bert.";
  if (!has_tensor(manifest, out.prefix + words)) {
    return Error{ErrorCode::kNotFound, "The model has no " + words + ": is it a BERT?"};
  }
  for (const srg::TensorEntry& entry : manifest.tensors) {
    if (entry.name == out.prefix + words) out.dtype = entry.dtype;
  }
  DJINN_CHECK(check_known(out.dtype));
  DJINN_CHECK(check_dtype(config, out.dtype));
  return out;
}

Result<srg::Graph> build_bert(const BertConfig& config, bool masked, int64_t rows_max) {
  Bert bert{config, GraphBuilder(masked ? "bert.masked" : "bert"), {}, {}};
  GraphBuilder& g = bert.g;
  bert.batch = g.symbol("batch", 1, rows_max, srg::SymbolRole::kBatch);
  bert.tokens = g.symbol("tokens", 1, config.positions, srg::SymbolRole::kTokens);
  const srg::Sizes grid{bert.batch, bert.tokens};
  const Tensor ids = g.input("input_ids", DType::kInt64, grid, srg::InputRole::kTokenIds);
  const Tensor types = g.input("token_type_ids", DType::kInt64, grid);
  std::optional<Tensor> mask, weights;
  if (masked) {
    mask = g.input("attention_mask", DType::kBool, {bert.batch, 1, bert.tokens, bert.tokens});
    weights = g.input("token_weights", config.dtype, grid);
  }
  Tensor x = bert.embeddings(ids, types);
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = "encoder.layer." + std::to_string(i);
    const auto scope = g.module(layer);
    x = bert.mlp(layer, bert.attention(layer, x, mask));
  }
  g.output("last_hidden_state", x);
  g.output("sentence_embedding", bert.pooled(x, weights));
  return std::move(g).finish();
}

}  // namespace djinn::client
