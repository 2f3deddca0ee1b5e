// SPDX-License-Identifier: Apache-2.0

// Attention that is no causal prompt's,
//
//   aten::scaled_dot_product_attention(q, k, v, mask or none, 0.0, false, scale=, enable_gqa=)
//
// with a scale or without, becomes djinn::attend(q, k, v, mask, scale, enable_gqa), which computes
// those whose mask is bool, or none, by our own kernels, and all else as before.
#include <algorithm>
#include <optional>
#include <string_view>

#include "kernel/srg/operands.h"
#include "kernel/srg/rewrite/match.h"
#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {
namespace {

// Gives why the node stays as it is, or nothing.
std::string_view why_not(const Node& node) {
  const ArgumentValue* const scale = argument_named(node, "scale");
  const size_t count = scale == nullptr ? 7 : 8;
  if (node.arguments.size() != count || node.outputs.size() != 1) return "it has other arguments";
  for (const size_t position : {0, 1, 2}) {
    if (!value_at(node, position)) return "it has other arguments";
  }
  const ArgumentValue* const causal = argument_at(node, 5);
  const ArgumentValue* const grouped = argument_named(node, "enable_gqa");
  if (number_at(node, 4) != 0.0) return "it drops out weights";
  if (causal == nullptr || *causal != ArgumentValue(false)) return "it is a prompt's";
  if (grouped == nullptr || !std::holds_alternative<bool>(*grouped)) {
    return "it has other arguments";
  }
  return {};
}

bool is_product(std::string_view op) {
  return op == "aten::matmul" || op == "aten::bmm";
}

// One that took a reader's place reads something else, and may even make the value.
bool still_reads(const Draft& draft, NodeIndex reader, ValueId value) {
  bool reads = false;
  for_each_operand(draft.node(reader), [&](ValueId id) { reads = reads || id == value; });
  return draft.is_there(reader) && reads;
}

// Tells whether the node is a softmax by which something is multiplied, as views of it, or in
// another dtype. Routers of experts have softmaxes, too.
bool is_composed(const Draft& draft, const Node& softmax) {
  if (softmax.op != "aten::_softmax" || softmax.outputs.size() != 1) return false;
  ValueId value = softmax.outputs[0];
  while (draft.uses(value) == 1) {
    const auto reader = std::ranges::find_if(
        draft.readers(value), [&](NodeIndex index) { return still_reads(draft, index, value); });
    if (reader == draft.readers(value).end()) return false;
    const Node& next = draft.node(*reader);
    if (is_product(next.op)) return true;
    const bool passes_on = next.op == "aten::as_strided" || next.op == "aten::_to_copy";
    if (!passes_on || next.outputs.size() != 1) return false;
    value = next.outputs[0];
  }
  return false;
}

}  // namespace

PassReport rewrite_attention(Draft& draft) {
  PassReport report{"attend", 0, {}};
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    const Node& node = draft.node(i);
    if (draft.is_there(i) && is_composed(draft, node)) {
      report.leave("it is composed of products and a softmax");
    }
    if (!draft.is_there(i) || node.op != "aten::scaled_dot_product_attention") continue;
    if (const std::string_view reason = why_not(node); !reason.empty()) {
      report.leave(reason);
      continue;
    }
    const ArgumentValue* const scale = argument_named(node, "scale");
    draft.replace(i, {"djinn::attend",
                      {node.arguments[0],
                       node.arguments[1],
                       node.arguments[2],
                       node.arguments[3],
                       {"", scale == nullptr ? ArgumentValue(None{}) : *scale},
                       {"", *argument_named(node, "enable_gqa")}},
                      node.outputs,
                      {}});
    ++report.fired;
  }
  return report;
}

}  // namespace djinn::srg
