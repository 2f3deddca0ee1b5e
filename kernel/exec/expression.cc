#include "kernel/exec/expression.h"

#include "kernel/base/checked.h"

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

std::optional<srg::Expr> fit_affine(std::span<const std::vector<int64_t>> points,
                                    std::span<const srg::SymbolIndex> varied,
                                    std::span<const int64_t> values) {
  srg::Expr expr(values[0]);
  for (size_t i = 0; i < varied.size(); ++i) {
    const srg::SymbolIndex symbol = varied[i];
    const int64_t run = points[1 + i][symbol] - points[0][symbol];
    const int64_t rise = values[1 + i] - values[0];
    if (rise % run != 0) return std::nullopt;
    const int64_t slope = rise / run;
    const auto shift = checked_mul(slope, points[0][symbol]);
    if (!shift || __builtin_sub_overflow(expr.constant, *shift, &expr.constant)) {
      return std::nullopt;
    }
    if (slope != 0) expr.terms.push_back({symbol, slope});
  }
  for (size_t i = 0; i < points.size(); ++i) {
    const auto value = evaluate(expr, points[i]);
    if (!value || *value != values[i]) return std::nullopt;
  }
  return expr;
}

}  // namespace djinn::exec
