// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/expression.h"

namespace djinn::exec {

Error overflow_error() {
  return {ErrorCode::kOutOfRange,
          "An integer expression overflows at these symbol values. Narrow the symbols' ranges."};
}

Status evaluate(std::span<const srg::Expr> exprs, std::span<const int64_t> symbols,
                std::vector<int64_t>& out) {
  out.clear();
  for (const srg::Expr& expr : exprs) {
    DJINN_TRY(const int64_t value, evaluate(expr, symbols));
    out.push_back(value);
  }
  return {};
}

}  // namespace djinn::exec
