// SPDX-License-Identifier: Apache-2.0

// A growing attention layer in SRG, as the llama builder writes it: kv_append into the sequence's
// buffers, one attention over narrowed views of them. And the same by direct calls.
#pragma once

#include "kernel/exec/executor_for_tests.h"

namespace djinn::exec {

struct AttentionShape {
  int64_t batch = 1;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t dim = 16;
  int64_t capacity = 1024;
  at::ScalarType type = at::kFloat;

  [[nodiscard]] int64_t hidden() const { return heads * dim; }
  [[nodiscard]] int64_t kv_hidden() const { return kv_heads * dim; }
};

inline std::map<std::string, at::Tensor> attention_weights(const AttentionShape& shape) {
  return {{"q", noise({shape.hidden(), shape.hidden()}, 1, shape.type)},
          {"k", noise({shape.kv_hidden(), shape.hidden()}, 2, shape.type)},
          {"v", noise({shape.kv_hidden(), shape.hidden()}, 3, shape.type)},
          {"o", noise({shape.hidden(), shape.hidden()}, 4, shape.type)}};
}

// Symbols tokens, past. Storages: x, keys, values, then the weights.
inline srg::Graph attention_graph(const AttentionShape& shape) {
  GraphBuilder b;
  const DType dtype = from_torch(shape.type);
  const srg::Expr tokens = b.symbol("tokens", 1, shape.capacity, srg::SymbolRole::kTokens);
  const srg::Expr past = b.symbol("past", 0, shape.capacity - 1, srg::SymbolRole::kPast);
  const srg::Expr total = tokens + past;
  const auto x = b.input("x", dtype, {shape.batch, tokens, shape.hidden()});
  const std::vector<srg::Expr> full{shape.batch, shape.kv_heads, shape.capacity, shape.dim};
  const std::vector<srg::Expr> used{shape.batch, shape.kv_heads, total, shape.dim};
  const std::vector<srg::Expr> strides{shape.kv_heads * shape.capacity * shape.dim,
                                       shape.capacity * shape.dim, shape.dim, 1};
  const auto project = [&](const char* name, int64_t heads) {
    const auto w = b.weight(name, dtype, {heads * shape.dim, shape.hidden()});
    const auto y = b.call("aten::linear", {arg(x), arg(w)});
    const auto split =
        b.call("aten::view", {arg(y), integers({shape.batch, tokens, heads, shape.dim})});
    return b.call("aten::transpose.int", {arg(split), integer(1), integer(2)});
  };
  const auto keys = b.storage(srg::StorageKind::kSequence, "keys");
  const auto values = b.storage(srg::StorageKind::kSequence, "values");
  const auto q = project("q", shape.heads);
  for (const auto& [name, buffer] : {std::pair("k", keys), std::pair("v", values)}) {
    b.call("djinn::kv_append",
           {arg(b.on_storage(buffer, dtype, full)), arg(project(name, shape.kv_heads)), arg(past)});
  }
  const auto out =
      b.call("aten::scaled_dot_product_attention",
             {arg(q), arg(b.on_storage(keys, dtype, used, strides)),
              arg(b.on_storage(values, dtype, used, strides)), arg("enable_gqa", true)});
  const auto rows = b.call("aten::transpose.int", {arg(out), integer(1), integer(2)});
  const auto flat =
      b.call("aten::reshape", {arg(rows), integers({shape.batch, tokens, shape.hidden()})});
  b.output(b.call("aten::linear",
                  {arg(flat), arg(b.weight("o", dtype, {shape.hidden(), shape.hidden()}))}));
  return std::move(b.graph);
}

// Storage order of attention_graph: x, keys, values, q, k, v, o.
inline at::Tensor direct_attention(const AttentionShape& shape,
                                   const std::map<std::string, at::Tensor>& weights,
                                   const at::Tensor& x, at::Tensor keys, at::Tensor values,
                                   int64_t past) {
  const int64_t tokens = x.size(1);
  const auto project = [&](const char* name, int64_t heads) {
    return at::linear(x, weights.at(name))
        .view({shape.batch, tokens, heads, shape.dim})
        .transpose(1, 2);
  };
  keys.narrow(2, past, tokens).copy_(project("k", shape.kv_heads));
  values.narrow(2, past, tokens).copy_(project("v", shape.kv_heads));
  const at::Tensor out = at::scaled_dot_product_attention(
      project("q", shape.heads), keys.narrow(2, 0, past + tokens),
      values.narrow(2, 0, past + tokens), {}, 0.0, false, std::nullopt, true);
  return at::linear(out.transpose(1, 2).reshape({shape.batch, tokens, shape.hidden()}),
                    weights.at("o"));
}

}  // namespace djinn::exec
