// SPDX-License-Identifier: Apache-2.0

// Sinks: scores beside those of the keys that have no value, so that weights sum up to less than 1.
// Graphs spell them out in two ways,
//
//   c = cat(s, sinks); w = softmax(c - max(c)) but for the last; out = w @ v           GPT-OSS
//   out = (softmax(s) @ v) * sigmoid(logsumexp(s) - sinks)                             Granite
//
// which are one, since exp(sink) is added to what all weights are divided by.
#pragma once

#include <optional>
#include <vector>

#include "kernel/srg/rewrite/draft.h"

namespace djinn::srg {

struct Sinks {
  ValueId value = 0;              // [rows, heads, tokens, 1], or broadcast and without the last
  ValueId scores = 0;             // of the keys
  bool has_other_reader = false;  // of the scores, which is one of the nodes
  std::vector<NodeIndex> nodes;   // which go with the attention; the last may be what it ends with
};

// Of what a softmax takes: the scores of keys and one more, the last.
[[nodiscard]] std::optional<Sinks> sinks_among(const Draft& draft, ValueId joined);
// Of what weights and values give, where it is multiplied for that; the last node does so.
[[nodiscard]] std::optional<Sinks> sinks_behind(const Draft& draft, ValueId mixed);
// Whether a view shows all of another value but the last in its last dimension, in order.
[[nodiscard]] std::optional<ValueId> seen_but_for_the_last(const Draft& draft, ValueId value);

}  // namespace djinn::srg
