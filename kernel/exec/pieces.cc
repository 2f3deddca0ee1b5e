// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/pieces.h"

#include <algorithm>

#include "kernel/base/assert.h"

namespace djinn::exec {
namespace {

bool is_moving(const srg::Symbol& symbol) {
  const bool has_one_value = symbol.min == symbol.max;
  return !has_one_value && symbol.role != srg::SymbolRole::kBatch &&
         symbol.role != srg::SymbolRole::kTokens;
}

// What moving symbols reach, step by step.
class Reach {
 public:
  explicit Reach(const AdmittedGraph& program)
      : program_(program), reached_(program.graph.values.size(), false) {
    for (const srg::ValueId id : program.bound) reached_[id] = is_claimed_moving(value(id));
  }

  // Whether they reach the step. Steps are asked for in their order.
  bool reach(const Step& step) {
    const auto moves = [&](const Patch& patch) { return reaches(patch); };
    const bool is_reached = std::ranges::any_of(step.patches, moves) ||
                            std::ranges::any_of(step.outputs, [&](srg::ValueId id) {
                              return is_claimed_moving(value(id));
                            });
    // Where a step that is reached makes a tensor of claimed sizes, those are no symbol's.
    for (const srg::ValueId id : step.outputs) {
      reached_[id] = is_reached && (is_claimed_moving(value(id)) || !value(id).claims_sizes);
    }
    return is_reached;
  }

 private:
  [[nodiscard]] const srg::Value& value(srg::ValueId id) const { return program_.graph.values[id]; }
  [[nodiscard]] bool is_moving_in(const srg::Expr& expr) const {
    return std::ranges::any_of(expr.terms, [&](const srg::Term& term) {
      return is_moving(program_.graph.symbols[term.symbol]);
    });
  }
  [[nodiscard]] bool are_moving_in(const std::vector<srg::Expr>& exprs) const {
    return std::ranges::any_of(exprs, [&](const srg::Expr& expr) { return is_moving_in(expr); });
  }
  [[nodiscard]] bool is_claimed_moving(const srg::Value& of) const {
    return are_moving_in(of.sizes) || are_moving_in(of.strides) || is_moving_in(of.offset);
  }
  [[nodiscard]] bool reaches(const Patch& patch) const {
    if (patch.kind == PatchKind::kValue) return reached_[patch.value];
    return are_moving_in(patch.exprs) ||
           std::ranges::any_of(patch.values, [&](const std::optional<srg::ValueId>& id) {
             return id && reached_[*id];
           });
  }

  const AdmittedGraph& program_;
  std::vector<bool> reached_;  // by value
};

bool is_left_out(const AdmittedGraph& program, const Step& step) {
  const srg::Node& node = program.graph.nodes[step.node];
  const bool leaves = std::ranges::any_of(
      step.layouts, [](const Layout& layout) { return layout.leaves.has_value(); });
  return leaves || step.op->is_kv_append || node.op == "aten::scaled_dot_product_attention";
}

}  // namespace

Pieces pieces_of(const AdmittedGraph& program) {
  Pieces pieces;
  pieces.ends.assign(program.steps.size() + 1, 0);
  Reach moving(program);
  size_t begin = 0;
  for (size_t at = 0; at < program.steps.size(); ++at) {
    const Step& step = program.steps[at];
    const bool is_cut = moving.reach(step) || is_left_out(program, step);
    if (is_cut) begin = at + 1;
    if (!is_cut) pieces.ends[begin] = at + 1;
  }
  for (srg::SymbolIndex i = 0; i < program.graph.symbols.size(); ++i) {
    if (!is_moving(program.graph.symbols[i])) pieces.fixed_symbols.push_back(i);
  }
  return pieces;
}

void take_out(Pieces& pieces, size_t begin, size_t step) {
  const size_t end = pieces.ends[begin];
  DJINN_ASSERT(begin <= step && step < end);
  pieces.ends[begin] = step > begin ? step : 0;
  if (step + 1 < end) pieces.ends[step + 1] = end;
}

std::vector<srg::ValueId> values_into(std::span<const Step> steps) {
  std::vector<srg::ValueId> used, made;
  for (const Step& step : steps) {
    for (const Patch& patch : step.patches) {
      if (patch.kind == PatchKind::kValue) used.push_back(patch.value);
      for (const auto& id : patch.values) {
        if (id) used.push_back(*id);
      }
    }
    made.insert(made.end(), step.outputs.begin(), step.outputs.end());
  }
  std::ranges::sort(used);
  std::ranges::sort(made);
  used.erase(std::unique(used.begin(), used.end()), used.end());
  std::vector<srg::ValueId> into;
  std::ranges::set_difference(used, made, std::back_inserter(into));
  return into;
}

}  // namespace djinn::exec
