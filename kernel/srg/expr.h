// SPDX-License-Identifier: Apache-2.0

// Arithmetic on Expr, the affine integer expressions of graph.h. Every function keeps the canonical
// form: terms sorted by symbol, each symbol once, no zero coefficient.
//
//   poison   the result of an overflow. It is no canonical expression, so verify.h and evaluate()
//            refuse it; every sum or product with it is poison again. So whoever builds a graph may
//            chain operators without checking each.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernel/base/result.h"
#include "kernel/srg/graph.h"

namespace djinn::srg {

// The least and the greatest value that an expression takes while its symbols stay in their ranges.
struct Bounds {
  int64_t min = 0;
  int64_t max = 0;
  friend bool operator==(const Bounds&, const Bounds&) = default;
};

[[nodiscard]] Expr symbol_expr(SymbolIndex symbol);
[[nodiscard]] Expr add(const Expr& a, const Expr& b);
[[nodiscard]] Expr sub(const Expr& a, const Expr& b);
[[nodiscard]] Expr mul(const Expr& a, int64_t factor);

[[nodiscard]] inline Expr operator+(const Expr& a, const Expr& b) {
  return add(a, b);
}
[[nodiscard]] inline Expr operator-(const Expr& a, const Expr& b) {
  return sub(a, b);
}
[[nodiscard]] inline Expr operator*(const Expr& a, int64_t factor) {
  return mul(a, factor);
}

[[nodiscard]] bool is_canonical(const Expr& expr);

// symbols[i] is the value of symbol i. Errors: kOutOfRange for a symbol that has no value, for an
// overflow of int64 and for poison.
Result<int64_t> evaluate(const Expr& expr, std::span<const int64_t> symbols);

// Exact: an affine expression takes its extremes at corners. Errors as evaluate(), where an
// overflow at any partial sum counts.
Result<Bounds> bounds(const Expr& expr, std::span<const Symbol> symbols);

// "2*tokens + past - 1". Symbols that do not exist print as "symbol_7".
[[nodiscard]] std::string text_of(const Expr& expr, std::span<const Symbol> symbols);

}  // namespace djinn::srg
