// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/guards.h"

#include <algorithm>

#include "kernel/base/assert.h"

namespace djinn::exec {
namespace {

const std::vector<GuardRow>& sorted_rows() {
  static const std::vector<GuardRow> sorted = [] {
    std::vector<GuardRow> rows;
    for (const auto family :
         {attention_guards(), layers_guards(), losses_guards(), math_guards()}) {
      rows.insert(rows.end(), family.begin(), family.end());
    }
    std::ranges::sort(rows, {}, &GuardRow::op);
    DJINN_ASSERT(std::ranges::adjacent_find(rows, {}, &GuardRow::op) == rows.end());
    return rows;
  }();
  return sorted;
}

}  // namespace

std::vector<std::string_view> guarded_operators() {
  std::vector<std::string_view> names;
  for (const GuardRow& row : sorted_rows()) names.push_back(row.op);
  return names;
}

Guard guard_of(std::string_view op) {
  const std::vector<GuardRow>& rows = sorted_rows();
  const auto row = std::ranges::lower_bound(rows, op, {}, &GuardRow::op);
  return row != rows.end() && row->op == op ? row->guard : nullptr;
}

}  // namespace djinn::exec
