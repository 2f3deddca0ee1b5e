// SPDX-License-Identifier: Apache-2.0

// Graphs for tests: a layer of BERT, a layer of Llama, and random ones with everything in them.
#pragma once

#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "kernel/base/random.h"
#include "kernel/srg/builder.h"

namespace djinn::srg::testing {

struct LinearWeights {
  std::string name;
  int64_t out = 0;
  int64_t in = 0;
};

inline Tensor linear(GraphBuilder& g, Tensor x, const LinearWeights& shape, bool bias) {
  const Tensor w = g.weight(shape.name + ".weight", DType::kFloat32, {shape.out, shape.in});
  std::optional<Tensor> b;
  if (bias) b = g.weight(shape.name + ".bias", DType::kFloat32, {shape.out});
  return g.op("aten::linear", {x, w, b});
}

inline Tensor bert_norm(GraphBuilder& g, Tensor x, const std::string& name) {
  const Tensor w = g.weight(name + ".weight", DType::kFloat32, {384});
  const Tensor b = g.weight(name + ".bias", DType::kFloat32, {384});
  return g.op("aten::layer_norm", {x, ints({384}), w, b, 1e-12});
}

// One encoder layer at hidden size 384, 12 heads, batch 1..8, tokens 1..512.
inline Graph bert_like() {
  GraphBuilder g("bert-like");
  const Expr batch = g.symbol("batch", 1, 8, SymbolRole::kBatch);
  const Expr tokens = g.symbol("tokens", 1, 512, SymbolRole::kTokens);
  const Tensor ids = g.input("input_ids", DType::kInt64, {batch, tokens}, InputRole::kTokenIds);
  const Tensor table = g.weight("embeddings.word", DType::kFloat32, {30522, 384});
  Tensor x = g.op("aten::embedding", {table, ids});
  x = bert_norm(g, x, "embeddings.norm");
  const auto layer = g.module("encoder.layer.0");
  const auto heads = [&](Tensor t) {
    const Tensor split = g.op("aten::view", {t, ints({batch, tokens, 12, 32})});
    return g.op("aten::transpose.int", {split, 1, 2});
  };
  const Tensor q = heads(linear(g, x, {"query", 384, 384}, true));
  const Tensor k = heads(linear(g, x, {"key", 384, 384}, true));
  const Tensor v = heads(linear(g, x, {"value", 384, 384}, true));
  const Tensor attended = g.op("aten::scaled_dot_product_attention", {q, k, v}, {{"scale", 0.125}});
  const Tensor joined = g.op(
      "aten::reshape", {g.op("aten::transpose.int", {attended, 1, 2}), ints({batch, tokens, 384})});
  const Tensor projected = linear(g, joined, {"output", 384, 384}, true);
  x = bert_norm(g, g.op("aten::add.Tensor", {projected, x}), "attention.norm");
  const Tensor wide = g.op("aten::gelu", {linear(g, x, {"intermediate", 1536, 384}, true)});
  const Tensor narrow = linear(g, wide, {"mlp.output", 384, 1536}, true);
  x = bert_norm(g, g.op("aten::add.Tensor", {narrow, x}), "mlp.norm");
  g.output("hidden", x);
  return *std::move(g).finish();
}

// One decoder layer at hidden size 256, 8 heads, 2 K and V heads; tokens up to tokens_max a call.
inline Graph llama_like(int64_t tokens_max) {
  GraphBuilder g("llama-like");
  const Expr batch = g.symbol("batch", 1, 4, SymbolRole::kBatch);
  const Expr tokens = g.symbol("tokens", 1, tokens_max, SymbolRole::kTokens);
  const Expr past = g.symbol("past", 0, 1024, SymbolRole::kPast);
  const Expr capacity = g.symbol("capacity", 1, 2048, SymbolRole::kCapacity);
  const Tensor ids = g.input("input_ids", DType::kInt64, {batch, tokens}, InputRole::kTokenIds);
  const Tensor mask =
      g.input("mask", DType::kBool, {batch, 1, tokens, past + tokens}, InputRole::kAttentionMask);
  const Tensor norm = g.weight("norm.weight", DType::kFloat32, {256});
  Tensor x = g.op("aten::embedding", {g.weight("embed", DType::kFloat32, {258, 256}), ids});
  const Tensor normed = g.op("aten::rms_norm", {x, ints({256}), norm, 1e-5});
  const auto heads = [&](Tensor t, int64_t count) {
    const Tensor split = g.op("aten::view", {t, ints({batch, tokens, count, 32})});
    return g.op("aten::transpose.int", {split, 1, 2});
  };
  const auto cached = [&](Tensor t, SequencePart part) {
    const Tensor buffer = g.sequence(0, part, DType::kFloat32, {batch, 2, capacity, 32});
    g.op_n(0, "djinn::kv_append", {buffer, t, past});
    return g.op("aten::slice.Tensor", {buffer, 2, 0, past + tokens, 1});
  };
  const Tensor q = heads(linear(g, normed, {"q", 256, 256}, false), 8);
  const Tensor k = cached(heads(linear(g, normed, {"k", 64, 256}, false), 2), SequencePart::kKey);
  const Tensor v = cached(heads(linear(g, normed, {"v", 64, 256}, false), 2), SequencePart::kValue);
  const Tensor attended =
      g.op("aten::scaled_dot_product_attention", {q, k, v, mask}, {{"enable_gqa", true}});
  const Tensor joined = g.op(
      "aten::reshape", {g.op("aten::transpose.int", {attended, 1, 2}), ints({batch, tokens, 256})});
  x = g.op("aten::add.Tensor", {x, linear(g, joined, {"o", 256, 256}, false)});
  const Tensor again = g.op("aten::rms_norm", {x, ints({256}), norm, 1e-5});
  const Tensor gate = g.op("aten::silu", {linear(g, again, {"gate", 1024, 256}, false)});
  const Tensor gated = g.op("aten::mul.Tensor", {gate, linear(g, again, {"up", 1024, 256}, false)});
  x = g.op("aten::add.Tensor", {x, linear(g, gated, {"down", 256, 1024}, false)});
  g.output("logits", linear(g, x, {"lm_head", 258, 256}, false));
  return *std::move(g).finish();
}

// A graph that verify() passes, with every field and every kind of argument now and then.
class RandomGraph {
 public:
  explicit RandomGraph(uint64_t seed) : random_(seed), g_(text()) {}

  Graph make() {
    const uint64_t symbols = 1 + random_.below(3);
    for (uint64_t i = 0; i < symbols; ++i) {
      symbols_.push_back(g_.symbol("s" + std::to_string(i), 1, 100,
                                   static_cast<SymbolRole>(i == 0 ? random_.below(5) : 0)));
    }
    values_.push_back(g_.input("in", DType::kFloat32, {symbols_[0], 3}));
    const uint64_t steps = random_.below(20);
    for (uint64_t i = 0; i < steps; ++i) step(static_cast<uint32_t>(i));
    g_.output(values_.back());
    return *std::move(g_).finish();
  }

 private:
  // Letters, signs, escapes and bytes beyond ASCII, but no control characters.
  std::string text() {
    static constexpr std::string_view kPieces[] = {"a",  "Z9", ".",        " ",
                                                   "\"", "\\", "\xc3\xa4", "%"};
    std::string out = "t";
    for (uint64_t n = random_.below(6); n > 0; --n) out += kPieces[random_.below(8)];
    return out;
  }

  Expr expr() {
    Expr sum(static_cast<int64_t>(random_.below(9)) - 4);
    if (random_.below(8) == 0) sum = Expr(random_.below(2) == 0 ? INT64_MIN : INT64_MAX);
    if (sum.constant > 4 || sum.constant < -4) return sum;
    for (uint64_t n = random_.below(3); n > 0; --n) {
      const Expr& symbol = symbols_[random_.below(symbols_.size())];
      sum = sum + symbol * (static_cast<int64_t>(random_.below(7)) - 3);
    }
    return sum;
  }

  double number() {
    static constexpr double kSpecial[] = {0.0,
                                          -0.0,
                                          1.0,
                                          0.1,
                                          -1e300,
                                          5e-324,
                                          std::numeric_limits<double>::infinity(),
                                          -std::numeric_limits<double>::infinity()};
    if (random_.below(2) == 0) return kSpecial[random_.below(8)];
    // Any finite bits: the exponent's top bit is cleared.
    return std::bit_cast<double>(random_.next() & ~(uint64_t{1} << 62));
  }

  Tensor value() { return values_[random_.below(values_.size())]; }

  Arg argument() {
    const uint64_t n = random_.below(3);
    switch (random_.below(11)) {
      case 0:
        return none;
      case 1:
        return value();
      case 2: {
        ValueList list;
        for (uint64_t i = 0; i < n; ++i) {
          list.ids.push_back(random_.below(2) == 0 ? std::nullopt
                                                   : std::optional<ValueId>(value().id));
        }
        return list;
      }
      case 3:
        return expr();
      case 4:
        return ints(n == 0 ? Sizes{} : Sizes{expr(), expr()});
      case 5:
        return number();
      case 6:
        return DoubleList{std::vector<double>(n, number())};
      case 7:
        return random_.below(2) == 0;
      case 8:
        return BoolList{std::vector<bool>(n, random_.below(2) == 0)};
      case 9:
        return text() + "\n\t\x01";
      default:
        return static_cast<DType>(1 + random_.below(17));
    }
  }

  void step(uint32_t i) {
    const std::string unique = std::to_string(i) + text();
    switch (random_.below(6)) {
      case 0:
        values_.push_back(g_.weight(unique, DType::kBFloat16, {symbols_[0] * 2, 4}));
        return;
      case 1:
        values_.push_back(
            g_.view(values_[0], DType::kInt32, {symbols_[0], 2}, {1, 5}, symbols_.back() + 7));
        return;
      case 2:
        values_.push_back(g_.sequence(i, static_cast<SequencePart>(random_.below(2)),
                                      DType::kFloat32, {1, 2, symbols_[0], 8}));
        return;
      default:
        node(unique);
        return;
    }
  }

  void node(const std::string& unique) {
    std::vector<Arg> positional;
    for (uint64_t n = random_.below(4); n > 0; --n) positional.push_back(argument());
    std::vector<NamedArg> named;
    if (random_.below(2) == 0) named.push_back({"values", argument()});
    if (random_.below(2) == 0) named.push_back({"alpha", argument()});
    const auto module = g_.module(text());
    const auto made =
        g_.op_n(static_cast<uint32_t>(random_.below(4)), "aten::op.some", positional, named);
    for (const Tensor tensor : made) values_.push_back(tensor);
    if (!made.empty() && random_.below(2) == 0) g_.name(made.back(), unique);
    if (!made.empty() && random_.below(2) == 0) claim(made.front());
    if (!made.empty()) g_.criticality(made.back(), static_cast<uint8_t>(random_.below(256)));
    annotate(g_.annotation());
  }

  // Sizes, and, of whole layouts, strides, which must not be negative.
  void claim(Tensor tensor) {
    const DType dtype = random_.below(2) == 0 ? DType::kFloat16 : DType::kInvalid;
    if (random_.below(2) == 0) return g_.claim(tensor, dtype, {expr()});
    g_.claim(tensor, dtype, {symbols_[0], 3}, {Expr(1), symbols_.back() + 100});
  }

  void annotate(Annotation& note) {
    if (random_.below(2) == 0) note.module_path.clear();
    if (random_.below(2) == 0) return;
    note.role = text();
    note.phase = static_cast<Phase>(random_.below(5));
    note.residency = static_cast<Residency>(random_.below(6));
    note.modality = static_cast<Modality>(random_.below(6));
    note.flops = random_.next();
    note.bytes = random_.next();
    note.colocation_group = static_cast<uint32_t>(random_.next());
    note.priority = static_cast<int32_t>(random_.next());
  }

  Random random_;
  GraphBuilder g_;
  std::vector<Expr> symbols_;
  std::vector<Tensor> values_;
};

}  // namespace djinn::srg::testing
