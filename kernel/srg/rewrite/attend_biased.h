// SPDX-License-Identifier: Apache-2.0

// Attention that a graph spells out,
//
//   s = q @ k turned                    matmul, bmm, or baddbmm with zeros or a bias before it
//   s = s * number, s / number, s + bias, where(seen, s, number), maximum(s, the least number)
//   w = softmax(s, -1)
//   out = w @ v                         matmul or bmm
//
// each step perhaps in another dtype, or with rows and heads as one dimension, and perhaps with
// sinks (attend_sinks.h). It becomes djinn::attend_biased, which reads keys and values where a copy
// of them was made from.
#pragma once

#include <string_view>
#include <variant>
#include <vector>

#include "kernel/srg/rewrite/draft.h"

namespace djinn::srg {

struct SpelledAttention {
  std::vector<NodeIndex> nodes;  // which all go
  NodeIndex last = 0;            // of them, in whose place the other is
  Node made;
};

// Whether the node is a softmax by which something is multiplied, as views of it, or in another
// dtype. Routers of experts have softmaxes, too.
[[nodiscard]] bool is_spelled_attention(const Draft& draft, NodeIndex softmax);
// What is to be made of such; or why it stays as it is.
[[nodiscard]] std::variant<SpelledAttention, std::string_view> spelled_attention(const Draft& draft,
                                                                                 NodeIndex softmax);

}  // namespace djinn::srg
