// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/expr.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "kernel/base/checked.h"

namespace djinn::srg {
namespace {

constexpr SymbolIndex kPoison = UINT32_MAX;

Expr poison() {
  Expr expr;
  expr.terms.push_back({kPoison, 0});
  return expr;
}

bool is_poison(const Expr& expr) {
  return !expr.terms.empty() && expr.terms.back().symbol == kPoison;
}

// Appends the term (a + b) * symbol unless it is zero; gives false on overflow.
bool append_sum(std::vector<Term>& terms, SymbolIndex symbol, int64_t a, int64_t b) {
  const auto sum = checked_add(a, b);
  if (!sum) return false;
  if (*sum != 0) terms.push_back({symbol, *sum});
  return true;
}

// Merges two sorted lists of terms; gives false on overflow.
bool merge_terms(const std::vector<Term>& a, const std::vector<Term>& b, std::vector<Term>& out) {
  auto i = a.begin();
  auto j = b.begin();
  while (i != a.end() && j != b.end()) {
    if (i->symbol < j->symbol) {
      out.push_back(*i++);
    } else if (j->symbol < i->symbol) {
      out.push_back(*j++);
    } else {
      if (!append_sum(out, i->symbol, i->coefficient, j->coefficient)) return false;
      ++i, ++j;
    }
  }
  out.insert(out.end(), i, a.end());
  out.insert(out.end(), j, b.end());
  return true;
}

Error overflow_error() {
  return {ErrorCode::kOutOfRange,
          "An expression leaves the range of 64-bit integers. Use smaller sizes or symbol ranges."};
}

Error unbound_error(SymbolIndex symbol) {
  return {ErrorCode::kOutOfRange,
          fmt::format("An expression uses symbol {}, which does not exist.", symbol)};
}

// Computes sum += coefficient * value; gives false on overflow.
bool accumulate(int64_t& sum, int64_t coefficient, int64_t value) {
  const auto product = checked_mul(coefficient, value);
  const auto next = product ? checked_add(sum, *product) : std::nullopt;
  if (next) sum = *next;
  return next.has_value();
}

std::string symbol_name(SymbolIndex index, std::span<const Symbol> symbols) {
  return index < symbols.size() ? symbols[index].name : fmt::format("symbol_{}", index);
}

// Gives |value| without the overflow of -INT64_MIN.
uint64_t magnitude(int64_t value) {
  return value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

void append_signed(std::string& out, bool negative, std::string_view text) {
  if (out.empty()) {
    out += negative ? "-" : "";
  } else {
    out += negative ? " - " : " + ";
  }
  out += text;
}

}  // namespace

Expr symbol_expr(SymbolIndex symbol) {
  Expr expr;
  expr.terms.push_back({symbol, 1});
  return expr;
}

Expr add(const Expr& a, const Expr& b) {
  if (is_poison(a) || is_poison(b)) return poison();
  const auto constant = checked_add(a.constant, b.constant);
  Expr sum(constant.value_or(0));
  if (!constant || !merge_terms(a.terms, b.terms, sum.terms)) return poison();
  return sum;
}

Expr sub(const Expr& a, const Expr& b) {
  return add(a, mul(b, -1));
}

Expr mul(const Expr& a, int64_t factor) {
  if (is_poison(a)) return poison();
  if (factor == 0) return {};
  const auto constant = checked_mul(a.constant, factor);
  if (!constant) return poison();
  Expr product(*constant);
  for (const Term& term : a.terms) {
    const auto coefficient = checked_mul(term.coefficient, factor);
    if (!coefficient) return poison();
    product.terms.push_back({term.symbol, *coefficient});
  }
  return product;
}

bool is_canonical(const Expr& expr) {
  for (size_t i = 0; i < expr.terms.size(); ++i) {
    if (expr.terms[i].coefficient == 0) return false;
    if (i > 0 && expr.terms[i - 1].symbol >= expr.terms[i].symbol) return false;
  }
  return !is_poison(expr);
}

Result<int64_t> evaluate(const Expr& expr, std::span<const int64_t> symbols) {
  if (is_poison(expr)) return overflow_error();
  int64_t sum = expr.constant;
  for (const Term& term : expr.terms) {
    if (term.symbol >= symbols.size()) return unbound_error(term.symbol);
    if (!accumulate(sum, term.coefficient, symbols[term.symbol])) return overflow_error();
  }
  return sum;
}

Result<Bounds> bounds(const Expr& expr, std::span<const Symbol> symbols) {
  if (is_poison(expr)) return overflow_error();
  Bounds result{expr.constant, expr.constant};
  for (const Term& term : expr.terms) {
    if (term.symbol >= symbols.size()) return unbound_error(term.symbol);
    const Symbol& symbol = symbols[term.symbol];
    const bool rising = term.coefficient >= 0;
    if (!accumulate(result.min, term.coefficient, rising ? symbol.min : symbol.max) ||
        !accumulate(result.max, term.coefficient, rising ? symbol.max : symbol.min)) {
      return overflow_error();
    }
  }
  return result;
}

std::string text_of(const Expr& expr, std::span<const Symbol> symbols) {
  std::string out;
  for (const Term& term : expr.terms) {
    const uint64_t count = magnitude(term.coefficient);
    const std::string name = symbol_name(term.symbol, symbols);
    append_signed(out, term.coefficient < 0, count == 1 ? name : fmt::format("{}*{}", count, name));
  }
  if (out.empty() || expr.constant != 0) {
    append_signed(out, expr.constant < 0, fmt::format("{}", magnitude(expr.constant)));
  }
  return out;
}

}  // namespace djinn::srg
