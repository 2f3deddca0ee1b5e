// SPDX-License-Identifier: Apache-2.0

// Attention that is no causal prompt's,
//
//   aten::scaled_dot_product_attention(q, k, v, mask or none, 0.0, false, scale=, enable_gqa=)
//
// with a scale or without, becomes djinn::attend(q, k, v, mask, scale, enable_gqa); what is spelled
// out becomes djinn::attend_biased (attend_biased.h). For a GPU a causal prompt's does, too, with
// `true` behind, and what is spelled out stays: nobody else computes a row of a prompt there as if
// it were alone.
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "kernel/srg/rewrite/attend_biased.h"
#include "kernel/srg/rewrite/match.h"
#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {
namespace {

// Gives why the node stays as it is, or nothing.
std::string_view why_not(const Node& node, Target target) {
  const ArgumentValue* const scale = argument_named(node, "scale");
  const size_t count = scale == nullptr ? 7 : 8;
  if (node.arguments.size() != count || node.outputs.size() != 1) return "it has other arguments";
  for (const size_t position : {0, 1, 2}) {
    if (!value_at(node, position)) return "it has other arguments";
  }
  const ArgumentValue* const causal = argument_at(node, 5);
  const ArgumentValue* const grouped = argument_named(node, "enable_gqa");
  if (number_at(node, 4) != 0.0) return "it drops out weights";
  if (causal == nullptr || !std::holds_alternative<bool>(*causal)) return "it has other arguments";
  if (target == Target::kHost && std::get<bool>(*causal)) return "it is a prompt's";
  if (grouped == nullptr || !std::holds_alternative<bool>(*grouped)) {
    return "it has other arguments";
  }
  return {};
}

void fuse_spelled(Draft& draft, PassReport& report, NodeIndex softmax) {
  auto found = spelled_attention(draft, softmax);
  if (const auto* const reason = std::get_if<std::string_view>(&found)) {
    report.leave(*reason);
    return;
  }
  auto& it = std::get<SpelledAttention>(found);
  draft.fuse(it.nodes, it.last, std::move(it.made));
  ++report.fired;
}

}  // namespace

PassReport rewrite_attention(Draft& draft) {
  PassReport report{"attend", 0, {}};
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    const Node& node = draft.node(i);
    if (!draft.is_there(i)) continue;
    if (is_spelled_attention(draft, i)) {
      if (draft.target() == Target::kGpu) {
        report.leave("it is spelled out, and a GPU has no kernel for that");
        continue;
      }
      fuse_spelled(draft, report, i);
      continue;
    }
    if (node.op != "aten::scaled_dot_product_attention") continue;
    if (const std::string_view reason = why_not(node, draft.target()); !reason.empty()) {
      report.leave(reason);
      continue;
    }
    const ArgumentValue* const scale = argument_named(node, "scale");
    Node made{"djinn::attend",
              {node.arguments[0],
               node.arguments[1],
               node.arguments[2],
               node.arguments[3],
               {"", scale == nullptr ? ArgumentValue(None{}) : *scale},
               {"", *argument_named(node, "enable_gqa")}},
              node.outputs,
              {}};
    const bool is_causal = std::get<bool>(*argument_at(node, 5));
    if (is_causal) made.arguments.push_back({"", is_causal});
    draft.replace(i, std::move(made));
    ++report.fired;
  }
  return report;
}

}  // namespace djinn::srg
