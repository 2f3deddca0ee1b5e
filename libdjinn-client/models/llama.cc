// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/llama.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ipc/limits.h"
#include "kernel/srg/builder.h"
#include "libdjinn-client/models/weights.h"

namespace djinn::client {
namespace {

using srg::Expr;
using srg::GraphBuilder;
using srg::Tensor;

bool is_decode(LlamaPhase phase) {
  return phase == LlamaPhase::kDecode || phase == LlamaPhase::kDecodeMasked;
}
bool is_masked(LlamaPhase phase) {
  return phase == LlamaPhase::kPrefillMasked || phase == LlamaPhase::kDecodeMasked;
}

// Holds what the parts of one call of build_llama() share.
struct Llama {
  const LlamaConfig& config;
  const LlamaProgram& program;
  GraphBuilder g;
  Expr batch, tokens, past, capacity, keys;
  std::optional<Tensor> mask{};
  Tensor cos{}, sin{};

  Tensor weight(const std::string& name, srg::Sizes sizes) {
    return g.weight(name, config.dtype, std::move(sizes));
  }
  Tensor linear(const std::string& name, Tensor x, int64_t out, int64_t in, bool bias) {
    std::optional<Tensor> b;
    if (bias) b = weight(name + ".bias", {out});
    return g.op("aten::linear", {x, weight(name + ".weight", {out, in}), b});
  }
  Tensor to(Tensor x, DType dtype) { return g.op("aten::to.dtype", {x, dtype}); }
  // The same between float32 and the model's dtype, as passes look for it.
  Tensor cast(Tensor x, DType dtype) {
    if (config.dtype == DType::kFloat32) return x;
    return g.op("aten::_to_copy", {x}, {{"dtype", dtype}});
  }
  // Passes ask for a dtype and sizes that something says.
  Tensor claimed(Tensor x, int64_t width) {
    g.claim(x, config.dtype, {batch, tokens, width});
    return x;
  }
  Tensor mul(Tensor a, Tensor b) { return g.op("aten::mul.Tensor", {a, b}); }
  Tensor add(Tensor a, Tensor b) { return g.op("aten::add.Tensor", {a, b}); }

  // Computes weight * (x / rms(x)); the quotient is in float32, and rounded to the model's dtype
  // first.
  Tensor rms_norm(const std::string& name, Tensor x) {
    const auto scope = g.role("norm");
    const Tensor wide = cast(x, DType::kFloat32);
    const Tensor squares = g.op("aten::pow.Tensor_Scalar", {wide, 2});
    const Tensor variance = g.op("aten::mean.dim", {squares, srg::ints({-1}), true});
    const Tensor scale =
        g.op("aten::rsqrt", {g.op("aten::add.Tensor", {variance, config.rms_norm_eps})});
    return mul(weight(name + ".weight", {config.hidden}), cast(mul(wide, scale), config.dtype));
  }

  // Computes cos and sin of position * theta^(-2i / head_dim) in float32, rounded to the model's
  // dtype.
  void rotary(Tensor positions) {
    const auto scope = g.role("rope");
    const Tensor steps =
        to(g.op("aten::arange.start_step", {0, config.head_dim, 2}), DType::kFloat32);
    const Tensor exponents = g.op("aten::div.Scalar", {steps, config.head_dim});
    const Tensor powers = g.op("aten::pow.Scalar", {config.rope_theta, exponents});
    const Tensor frequencies = g.op("aten::reciprocal", {powers});
    const Tensor column = g.op("aten::view", {frequencies, srg::ints({1, config.head_dim / 2, 1})});
    const Tensor spread = g.op("aten::expand", {column, srg::ints({batch, -1, 1})});
    const Tensor row = to(g.op("aten::unsqueeze", {positions, 1}), DType::kFloat32);
    const Tensor angles = g.op("aten::transpose.int", {g.op("aten::matmul", {spread, row}), 1, 2});
    const Tensor both = g.op("aten::cat", {srg::tensors({angles, angles}), -1});
    cos = g.op("aten::unsqueeze", {to(g.op("aten::cos", {both}), config.dtype), 1});
    sin = g.op("aten::unsqueeze", {to(g.op("aten::sin", {both}), config.dtype), 1});
  }

  // Gives elements [first, first + width) of each head, as [batch, heads, tokens, width].
  Tensor view_of(Tensor projected, int64_t heads, int64_t first, int64_t width) {
    const int64_t row = heads * config.head_dim;
    return g.op("aten::as_strided", {projected, srg::ints({batch, heads, tokens, width}),
                                     srg::ints({tokens * row, config.head_dim, row, 1}), first});
  }

  Tensor project(const std::string& name, Tensor x, int64_t heads) {
    const int64_t width = heads * config.head_dim;
    return claimed(linear(name, x, width, config.hidden, config.attention_bias), width);
  }

  // The halves are views of what x is one of: passes join them to a rotation by that.
  Tensor rotated(const std::string& name, Tensor x, int64_t heads) {
    const Tensor projected = project(name, x, heads);
    const int64_t half = config.head_dim / 2;
    const Tensor whole = view_of(projected, heads, 0, config.head_dim);
    const Tensor low = view_of(projected, heads, 0, half);
    const Tensor high = view_of(projected, heads, half, half);
    const Tensor turned = g.op("aten::cat", {srg::tensors({g.op("aten::neg", {high}), low}), -1});
    return add(mul(whole, cos), mul(turned, sin));
  }

  // Appends to one buffer of the group, and gives what the buffer holds then.
  Tensor append(uint32_t layer, srg::SequencePart part, Tensor added) {
    const Tensor buffer =
        g.sequence(layer, part, config.dtype, {batch, config.kv_heads, capacity, config.head_dim});
    const Tensor grown = g.op("djinn::kv_append", {buffer, added, past});
    return g.op("aten::slice.Tensor", {grown, 2, 0, keys, 1});
  }

  Tensor attention(const std::string& layer, uint32_t index, Tensor x) {
    const auto scope = g.role("attention");
    const std::string self = layer + ".self_attn.";
    const Tensor q = rotated(self + "q_proj", x, config.heads);
    const Tensor k = rotated(self + "k_proj", x, config.kv_heads);
    const Tensor v =
        view_of(project(self + "v_proj", x, config.kv_heads), config.kv_heads, 0, config.head_dim);
    const Tensor all_k = append(index, srg::SequencePart::kKey, k);
    const Tensor all_v = append(index, srg::SequencePart::kValue, v);
    const bool causal = program.phase == LlamaPhase::kPrefill;
    const double scale = std::pow(static_cast<double>(config.head_dim), -0.5);
    const Tensor mixed =
        g.op("aten::scaled_dot_product_attention", {q, all_k, all_v, mask, 0.0, causal},
             {{"scale", scale}, {"enable_gqa", config.heads != config.kv_heads}});
    const Tensor rows = g.op("aten::contiguous", {g.op("aten::transpose.int", {mixed, 1, 2})});
    const int64_t width = config.heads * config.head_dim;
    const Tensor joined = g.op("aten::reshape", {rows, srg::ints({batch, tokens, width})});
    return linear(self + "o_proj", joined, config.hidden, width, config.attention_bias);
  }

  Tensor mlp(const std::string& layer, Tensor x) {
    const auto scope = g.role("mlp");
    const std::string mlp = layer + ".mlp.";
    const Tensor gate =
        linear(mlp + "gate_proj", x, config.intermediate, config.hidden, config.mlp_bias);
    const Tensor up =
        linear(mlp + "up_proj", x, config.intermediate, config.hidden, config.mlp_bias);
    return linear(mlp + "down_proj", mul(g.op("aten::silu", {gate}), up), config.hidden,
                  config.intermediate, config.mlp_bias);
  }

  Tensor layer(uint32_t index, Tensor x) {
    const std::string name = "model.layers." + std::to_string(index);
    const auto scope = g.module(name);
    x = claimed(add(x, attention(name, index, rms_norm(name + ".input_layernorm", x))),
                config.hidden);
    return claimed(add(x, mlp(name, rms_norm(name + ".post_attention_layernorm", x))),
                   config.hidden);
  }

  Tensor logits(Tensor x) {
    const auto scope = g.role("lm_head");
    if (!program.all_logits && !is_decode(program.phase)) {
      x = g.op("aten::slice.Tensor", {x, 1, -1, std::numeric_limits<int64_t>::max(), 1});
    }
    const std::string table = config.tied ? "model.embed_tokens.weight" : "lm_head.weight";
    return g.op("aten::linear", {x, weight(table, {config.vocabulary, config.hidden}), srg::none});
  }
};

// Gives the base of the angles. transformers takes rope_scaling, the older name, if it is given.
Result<double> rope_theta_of(const ModelConfig& config) {
  for (const char* const key : {"rope_parameters", "rope_scaling"}) {
    if (!config.has(key)) continue;  // as objects have not
    return Error{ErrorCode::kMalformed, std::string(key) + " of config.json is not an object."};
  }
  const std::string place =
      config.has_members("rope_scaling") ? "rope_scaling." : "rope_parameters.";
  DJINN_TRY(const std::string old_type, config.text_or(place + "type", "default"));
  DJINN_TRY(const std::string type, config.text_or(place + "rope_type", old_type));
  if (type != "default") {
    return Error{ErrorCode::kUnsupported,
                 "'" + place + "rope_type' of config.json is '" + type +
                     "', and the llama builder computes only plain rotary positions, 'default'. "
                     "Run this model from PyTorch: import djinn.torch, then load it with "
                     "transformers."};
  }
  DJINN_TRY(const double old_place, config.number_or("rope_theta", 10000.0));
  DJINN_TRY(const double theta, config.number_or(place + "rope_theta", old_place));
  if (!(theta > 0)) {
    return Error{ErrorCode::kMalformed, "rope_theta of config.json is not above 0."};
  }
  return theta;
}

// Tells whether the token table serves as the head. transformers ties only what has no weight of
// its own.
Result<bool> is_tied(const ModelConfig& config, const srg::ModelManifest& manifest) {
  if (find_tensor(manifest, "lm_head.weight") != nullptr) return false;
  DJINN_TRY(const bool tied, config.flag_or("tie_word_embeddings", false));
  if (tied) return true;
  return Error{ErrorCode::kNotFound,
               "The files have no lm_head.weight, and config.json does not say "
               "\"tie_word_embeddings\": true. Use the config.json that the weights were saved "
               "with."};
}

}  // namespace

Result<LlamaConfig> LlamaConfig::from(const ModelConfig& config,
                                      const srg::ModelManifest& manifest) {
  LlamaConfig out;
  DJINN_TRY(out.hidden, config.count("hidden_size"));
  DJINN_TRY(out.layers, config.count("num_hidden_layers"));
  DJINN_TRY(out.heads, config.count("num_attention_heads"));
  DJINN_TRY(out.intermediate, config.count("intermediate_size"));
  DJINN_TRY(out.vocabulary, config.count("vocab_size"));
  DJINN_TRY(out.positions, config.count_or("max_position_embeddings", 2048));
  DJINN_TRY(out.kv_heads, config.count_or("num_key_value_heads", out.heads));
  if (out.heads % out.kv_heads != 0) {
    return Error{ErrorCode::kMalformed,
                 "num_attention_heads is not a multiple of num_key_value_heads."};
  }
  DJINN_TRY(out.head_dim, config.count_or("head_dim", out.hidden / out.heads));
  if (out.head_dim == 0 || out.head_dim % 2 != 0) {
    return Error{ErrorCode::kMalformed,
                 "head_dim is odd or zero, and rotary positions need pairs."};
  }
  DJINN_TRY(out.rms_norm_eps, config.number_or("rms_norm_eps", 1e-6));
  if (out.rms_norm_eps < 0) {
    return Error{ErrorCode::kMalformed, "rms_norm_eps of config.json is below 0."};
  }
  DJINN_TRY(out.rope_theta, rope_theta_of(config));
  DJINN_TRY(out.attention_bias, config.flag_or("attention_bias", false));
  DJINN_TRY(out.mlp_bias, config.flag_or("mlp_bias", false));
  const srg::TensorEntry* const table = find_tensor(manifest, "model.embed_tokens.weight");
  if (table == nullptr) {
    return Error{ErrorCode::kNotFound,
                 "The model has no model.embed_tokens.weight: is it a Llama?"};
  }
  out.dtype = table->dtype;
  DJINN_CHECK(check_dtype(config, out.dtype));
  DJINN_TRY(out.tied, is_tied(config, manifest));
  return out;
}

ipc::SequenceGeometry LlamaConfig::geometry(uint32_t rows, uint64_t tokens) const {
  ipc::SequenceGeometry out;
  out.rows = rows;
  out.layers = static_cast<uint32_t>(layers);
  out.kv_heads = static_cast<uint32_t>(kv_heads);
  out.head_dim = static_cast<uint32_t>(head_dim);
  out.dtype = dtype;
  out.capacity = tokens;
  return out;
}

Result<srg::Graph> build_llama(const LlamaConfig& config, const LlamaProgram& program) {
  const bool decode = is_decode(program.phase);
  Llama llama{config, program, GraphBuilder(decode ? "llama.decode" : "llama.prefill"), {}, {}, {},
              {},     {}};
  GraphBuilder& g = llama.g;
  const int64_t longest = config.positions;
  const bool empty = program.phase == LlamaPhase::kPrefill;
  llama.batch = g.symbol("batch", 1, limits::kRows, srg::SymbolRole::kBatch);
  llama.tokens = decode ? g.symbol("tokens", 1, 1, srg::SymbolRole::kTokens)
                        : g.symbol("tokens", 1, longest, srg::SymbolRole::kTokens);
  llama.past = g.symbol("past", 0, empty ? 0 : longest, srg::SymbolRole::kPast);
  llama.capacity = g.symbol("capacity", 1, static_cast<int64_t>(limits::kSequenceTokens),
                            srg::SymbolRole::kCapacity);
  llama.keys = srg::add(llama.past, llama.tokens);
  const auto phase = g.phase(decode ? srg::Phase::kDecode : srg::Phase::kPrefill);
  const srg::Sizes grid{llama.batch, llama.tokens};
  const Tensor ids = g.input("input_ids", DType::kInt64, grid, srg::InputRole::kTokenIds);
  const Tensor positions = g.input("position_ids", DType::kInt64, grid, srg::InputRole::kPositions);
  if (is_masked(program.phase)) {
    llama.mask = g.input("attention_mask", DType::kBool, {llama.batch, 1, llama.tokens, llama.keys},
                         srg::InputRole::kAttentionMask);
  }
  const Tensor table =
      llama.weight("model.embed_tokens.weight", {config.vocabulary, config.hidden});
  Tensor x = llama.claimed(g.op("aten::embedding", {table, ids}), config.hidden);
  llama.rotary(positions);
  for (int64_t i = 0; i < config.layers; ++i) x = llama.layer(static_cast<uint32_t>(i), x);
  g.output("logits", llama.logits(llama.rms_norm("model.norm", x)));
  return std::move(g).finish();
}

}  // namespace djinn::client
