// Evaluating affine expressions, with every overflow seen.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kernel/base/result.h"
#include "kernel/srg/expr.h"
#include "kernel/srg/graph.h"

namespace djinn::exec {

// srg::evaluate for a list, into out. Error: kOutOfRange.
Status evaluate(std::span<const srg::Expr> exprs, std::span<const int64_t> symbols,
                std::vector<int64_t>& out);

[[nodiscard]] Error overflow_error();

// The affine function through value(point) at all points, or nothing if there is none with integer
// coefficients. points[0] is the base; points[1 + i] differs from it only in symbol varied[i]; the
// rest are checks.
[[nodiscard]] std::optional<srg::Expr> fit_affine(std::span<const std::vector<int64_t>> points,
                                                  std::span<const srg::SymbolIndex> varied,
                                                  std::span<const int64_t> values);

}  // namespace djinn::exec
