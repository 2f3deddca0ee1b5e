// SPDX-License-Identifier: Apache-2.0

// The values that a node reads.
#pragma once

#include <variant>

#include "kernel/srg/graph.h"

namespace djinn::srg {

// Calls visit(ValueId) for each argument, or entry of one, that names a value; in order.
template <typename Visit>
void for_each_operand(const Node& node, const Visit& visit) {
  for (const Argument& argument : node.arguments) {
    if (const auto* ref = std::get_if<ValueRef>(&argument.value)) visit(ref->id);
    const auto* const list = std::get_if<ValueList>(&argument.value);
    if (list == nullptr) continue;
    for (const auto& id : list->ids) {
      if (id) visit(*id);
    }
  }
}

}  // namespace djinn::srg
