// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/sequence_reach.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernel/srg/builder.h"

namespace djinn::srg {
namespace {

struct Parts {
  GraphBuilder& g;
  Tensor buffer;
  Tensor fresh;
  Expr past, tokens, capacity;
};

// Of what a graph does with a buffer of its group.
Graph graph_of(const std::function<Tensor(Parts)>& use) {
  GraphBuilder g("test");
  const Expr tokens = g.symbol("tokens", 1, 64, SymbolRole::kTokens);
  const Expr past = g.symbol("past", 0, 64, SymbolRole::kPast);
  const Expr capacity = g.symbol("capacity", 1, 4096, SymbolRole::kCapacity);
  const Tensor buffer = g.sequence(0, SequencePart::kKey, DType::kFloat32, {1, 2, capacity, 8});
  const Tensor fresh = g.input("new", DType::kFloat32, {1, 2, tokens, 8});
  g.output("out", use({g, buffer, fresh, past, tokens, capacity}));
  return *std::move(g).finish();
}
bool stays(const std::function<Tensor(Parts)>& use) {
  return stays_in_tokens(graph_of(use));
}
Tensor slice(const Parts& p, Tensor of, const Expr& start, const Expr& end) {
  return p.g.op("aten::slice.Tensor", {of, 2, start, end, 1});
}

TEST(SequenceReach, what_attention_layers_do_stays_in_the_tokens) {
  EXPECT_TRUE(stays([](Parts p) {
    const Tensor grown = p.g.op("djinn::kv_append", {p.buffer, p.fresh, p.past});
    return p.g.op("aten::mul.Tensor", {slice(p, grown, 0, p.past + p.tokens), 2.0});
  }));
  EXPECT_TRUE(stays([](Parts p) { return slice(p, p.buffer, 0, p.past + 1); }));
  EXPECT_TRUE(stays([](Parts p) {
    return p.g.op("aten::narrow", {p.buffer, 2, 0, p.past + p.tokens});
  }));
  EXPECT_TRUE(stays([](Parts p) { return p.g.op("aten::relu", {p.fresh}); }));
}

TEST(SequenceReach, what_reads_slots_behind_them_is_seen) {
  const std::vector<std::function<Tensor(Parts)>> uses{
      [](Parts p) { return p.g.op("aten::sum", {p.buffer}); },
      [](Parts p) { return p.buffer; },
      [](Parts p) { return slice(p, p.buffer, 0, p.capacity); },
      [](Parts p) { return slice(p, p.buffer, 0, -1); },
      [](Parts p) { return slice(p, p.buffer, 0, p.past - 1); },
      [](Parts p) { return slice(p, p.buffer, 0, p.past + p.tokens + 1); },
      [](Parts p) { return slice(p, p.buffer, 0, p.past + p.past); },
      [](Parts p) {
        return p.g.op("aten::slice.Tensor", {p.buffer, 3, 0, p.tokens, 1});
      },
      [](Parts p) {
        return p.g.op("aten::narrow", {p.buffer, 2, 1, p.past + p.tokens});
      },
      [](Parts p) {
        return p.g.op("aten::transpose.int", {p.buffer, 1, 2});
      },
      [](Parts p) {
        return p.g.op("djinn::kv_append", {p.fresh, p.buffer, p.past});
      },
      [](Parts p) {
        return p.g.op("aten::sum", {p.g.op("djinn::kv_append", {p.buffer, p.fresh, p.past})});
      },
      [](Parts p) {
        return p.g.op("aten::as_strided",
                      {slice(p, p.buffer, 0, p.tokens), ints({4}), ints({1}), p.capacity});
      },
  };
  for (size_t i = 0; i < uses.size(); ++i) EXPECT_FALSE(stays(uses[i])) << i;
}

TEST(SequenceReach, a_buffer_of_another_shape_may_lie_anywhere) {
  Graph graph = graph_of([](Parts p) { return slice(p, p.buffer, 0, p.tokens); });
  ASSERT_TRUE(stays_in_tokens(graph));
  Value& buffer = *std::ranges::find_if(graph.values, [&](const Value& value) {
    return value.storage != kLocalStorage &&
           graph.storages[value.storage].kind == StorageKind::kSequence;
  });
  buffer.offset = 8;
  EXPECT_FALSE(stays_in_tokens(graph));
  buffer.offset = 0;
  ASSERT_TRUE(stays_in_tokens(graph));
  buffer.sizes.pop_back();
  EXPECT_FALSE(stays_in_tokens(graph));
}

}  // namespace
}  // namespace djinn::srg
