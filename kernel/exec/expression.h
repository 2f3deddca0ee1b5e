// SPDX-License-Identifier: Apache-2.0

// Evaluating affine expressions, with every overflow seen.
#pragma once

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

}  // namespace djinn::exec
