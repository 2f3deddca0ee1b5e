// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/affine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/srg/expr.h"

namespace djinn::srg {
namespace {

using Wide = __int128;

// Computes sum += a * b; gives false on overflow.
bool accumulate(Wide& sum, Wide a, Wide b) {
  Wide product = 0;
  return !__builtin_mul_overflow(a, b, &product) && !__builtin_add_overflow(sum, product, &sum);
}

std::optional<int64_t> narrow(Wide value) {
  if (value < std::numeric_limits<int64_t>::min() || value > std::numeric_limits<int64_t>::max()) {
    return std::nullopt;
  }
  return static_cast<int64_t>(value);
}

// Gives the greatest common divisor, which is not negative. Precondition: neither is the least
// Wide.
Wide gcd(Wide a, Wide b) {
  while (b != 0) a = std::exchange(b, a % b);
  return a < 0 ? -a : a;
}

// A row means: left * coefficients == right * rises. A rise is what a value gains from the first
// point to a support.
struct Row {
  std::vector<Wide> left;   // one a varied symbol
  std::vector<Wide> right;  // one a support
  size_t pivot = 0;         // of left: not zero here, zero in every other row
};

void divide_by_gcd(Row& row) {
  Wide divisor = 0;
  for (const Wide item : row.left) divisor = gcd(item, divisor);
  for (const Wide item : row.right) divisor = gcd(item, divisor);
  if (divisor <= 1) return;
  for (Wide& item : row.left) item /= divisor;
  for (Wide& item : row.right) item /= divisor;
}

// Computes item = item * keep - other * take; gives false on overflow. The least Wide counts as an
// overflow, so that every item can be negated.
bool combine(Wide& item, Wide keep, Wide other, Wide take) {
  Wide sum = 0;
  if (!accumulate(sum, item, keep) || !accumulate(sum, other, -take)) return false;
  item = sum;
  return sum != std::numeric_limits<Wide>::min();
}

// Makes row.left[pivot.pivot] zero; gives false on overflow.
bool eliminate(Row& row, const Row& pivot) {
  const Wide common = gcd(row.left[pivot.pivot], pivot.left[pivot.pivot]);
  const Wide keep = pivot.left[pivot.pivot] / common;
  const Wide take = row.left[pivot.pivot] / common;
  if (take == 0) return true;
  for (size_t i = 0; i < row.left.size(); ++i) {
    if (!combine(row.left[i], keep, pivot.left[i], take)) return false;
  }
  for (size_t i = 0; i < row.right.size(); ++i) {
    if (!combine(row.right[i], keep, pivot.right[i], take)) return false;
  }
  divide_by_gcd(row);
  return true;
}

// Holds rows in reduced form. It eliminates as Gauss and Jordan did, without fractions, and divides
// each row by its greatest common divisor, so that points that vary one symbol each give no large
// numbers.
class System {
 public:
  explicit System(std::vector<SymbolIndex> varied) : varied_(std::move(varied)) {}

  // Takes point as a support unless it depends on earlier ones. Gives false on overflow.
  bool add(std::span<const int64_t> first, std::span<const int64_t> point, size_t index) {
    if (is_full()) return true;
    Row row;
    for (const SymbolIndex symbol : varied_)
      row.left.push_back(Wide{point[symbol]} - first[symbol]);
    row.right.resize(varied_.size());
    row.right[rows_.size()] = 1;
    for (const Row& pivot : rows_) {
      if (!eliminate(row, pivot)) return false;
    }
    const auto nonzero = [](Wide item) { return item != 0; };
    const auto found = std::find_if(row.left.begin(), row.left.end(), nonzero);
    if (found == row.left.end()) return true;
    row.pivot = static_cast<size_t>(found - row.left.begin());
    supports_.push_back(index);
    return insert(std::move(row));
  }

  [[nodiscard]] bool is_full() const { return rows_.size() == varied_.size(); }
  [[nodiscard]] const std::vector<SymbolIndex>& varied() const { return varied_; }
  [[nodiscard]] const std::vector<size_t>& supports() const { return supports_; }
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }

  // Gives the first varied symbol that no row determines. Precondition: !is_full().
  [[nodiscard]] size_t free_column() const {
    for (size_t column = 0;; ++column) {
      DJINN_ASSERT(column < varied_.size());
      const auto owns = [column](const Row& row) { return row.pivot == column; };
      if (std::none_of(rows_.begin(), rows_.end(), owns)) return column;
    }
  }

 private:
  bool insert(Row row) {
    for (Row& earlier : rows_) {
      if (!eliminate(earlier, row)) return false;
    }
    rows_.push_back(std::move(row));
    return true;
  }

  std::vector<SymbolIndex> varied_;
  std::vector<size_t> supports_;
  std::vector<Row> rows_;
};

void negate(Wide& divisor, std::vector<Wide>& weights) {
  divisor = -divisor;
  for (Wide& weight : weights) weight = -weight;
}

std::vector<SymbolIndex> varied_of(std::span<const Symbol> symbols) {
  std::vector<SymbolIndex> varied;
  for (SymbolIndex i = 0; i < symbols.size(); ++i) {
    if (symbols[i].min < symbols[i].max) varied.push_back(i);
  }
  return varied;
}

Status check_points(std::span<const std::vector<int64_t>> points, size_t symbols) {
  if (points.empty()) {
    return Error{ErrorCode::kInvalidArgument, "There is no point to fit an expression to."};
  }
  for (const std::vector<int64_t>& point : points) {
    if (point.size() == symbols) continue;
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("A point has {} values; there are {} symbols.", point.size(), symbols)};
  }
  return {};
}

Error too_large() {
  return {ErrorCode::kOutOfRange,
          "The points are too large to solve exactly. Use smaller ones, or let each differ from "
          "the first in one symbol."};
}

Error undetermined(const System& system, std::span<const Symbol> symbols,
                   std::span<const int64_t> first) {
  const size_t column = system.free_column();
  const SymbolIndex symbol = system.varied()[column];
  std::vector<std::string_view> companions;
  for (const Row& row : system.rows()) {
    if (row.left[column] != 0) companions.push_back(symbols[system.varied()[row.pivot]].name);
  }
  const std::string& name = symbols[symbol].name;
  if (companions.empty()) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("{} is {} at every point, so nothing tells what depends on it. Add a point "
                        "with another {}, or give it a range of one value.",
                        name, first[symbol], name)};
  }
  return {ErrorCode::kInvalidArgument,
          fmt::format("The points do not tell {} from {}: they change together. Add a point where "
                      "only one of them does.",
                      name, fmt::join(companions, ", "))};
}

}  // namespace

Result<AffineFit> AffineFit::make(std::vector<std::vector<int64_t>> points,
                                  std::span<const Symbol> symbols) {
  DJINN_CHECK(check_points(points, symbols.size()));
  System solved(varied_of(symbols));
  for (size_t i = 1; i < points.size(); ++i) {
    if (!solved.add(points[0], points[i], i)) return too_large();
  }
  if (!solved.is_full()) return undetermined(solved, symbols, points[0]);
  AffineFit fit;
  fit.points_ = std::move(points);
  fit.supports_ = solved.supports();
  for (const Row& row : solved.rows()) {
    // The divisor is positive, because the least Wide has no quotient by -1.
    Equation equation{solved.varied()[row.pivot], row.left[row.pivot], row.right};
    if (equation.divisor < 0) negate(equation.divisor, equation.weights);
    fit.equations_.push_back(std::move(equation));
  }
  std::sort(fit.equations_.begin(), fit.equations_.end(),
            [](const Equation& a, const Equation& b) { return a.symbol < b.symbol; });
  return fit;
}

std::optional<int64_t> AffineFit::solve(const Equation& equation,
                                        std::span<const int64_t> values) const {
  Wide sum = 0;
  for (size_t i = 0; i < supports_.size(); ++i) {
    const Wide rise = Wide{values[supports_[i]]} - values[0];
    if (!accumulate(sum, equation.weights[i], rise)) return std::nullopt;
  }
  if (sum % equation.divisor != 0) return std::nullopt;
  return narrow(sum / equation.divisor);
}

std::optional<Expr> AffineFit::candidate(std::span<const int64_t> values) const {
  Expr expr;
  Wide constant = values[0];
  for (const Equation& equation : equations_) {
    const auto coefficient = solve(equation, values);
    if (!coefficient) return std::nullopt;
    if (*coefficient == 0) continue;
    expr.terms.push_back({equation.symbol, *coefficient});
    if (!accumulate(constant, -Wide{*coefficient}, points_[0][equation.symbol])) {
      return std::nullopt;
    }
  }
  const auto narrowed = narrow(constant);
  if (!narrowed) return std::nullopt;
  expr.constant = *narrowed;
  return expr;
}

std::optional<Expr> AffineFit::through(std::span<const int64_t> values) const {
  DJINN_ASSERT(values.size() == points_.size());
  // Most integers of a graph are the same everywhere.
  const auto differs = [&](int64_t value) { return value != values[0]; };
  if (std::none_of(values.begin(), values.end(), differs)) return Expr(values[0]);
  auto expr = candidate(values);
  for (size_t i = 0; i < points_.size() && expr; ++i) {
    const auto value = evaluate(*expr, points_[i]);
    if (!value || *value != values[i]) return std::nullopt;
  }
  return expr;
}

}  // namespace djinn::srg
