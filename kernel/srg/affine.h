// SPDX-License-Identifier: Apache-2.0

// AffineFit: the affine function with integer coefficients that has given values at given points.
//
//   point      a value for every symbol
//   varied     a symbol with min < max; the others are constants and occur in no function
//   determine  with k varied symbols, k + 1 points that lie in no common plane of fewer dimensions.
//              Then at most one affine function has given values there; further points check it
//
// The system is solved once, in exact 128-bit arithmetic, so that fitting a graph's thousands of
// integers costs a few multiplications each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernel/base/result.h"
#include "kernel/srg/graph.h"

namespace djinn::srg {

class AffineFit {
 public:
  // Errors: kInvalidArgument, naming a symbol, if the points do not determine, or if one has not
  // one value a symbol; kOutOfRange if they are too large to be solved exactly. Points that differ
  // from the first in one symbol each are never too large.
  static Result<AffineFit> make(std::vector<std::vector<int64_t>> points,
                                std::span<const Symbol> symbols);

  // values[i] is the value at points[i]. Nothing if no affine function with integer coefficients
  // has these values, or if one overflows on the way to them.
  [[nodiscard]] std::optional<Expr> through(std::span<const int64_t> values) const;

 private:
  // divisor * coefficient of symbol == sum of weights[i] * (value at supports_[i] - value at the
  // first point)
  struct Equation {
    SymbolIndex symbol = 0;
    __int128 divisor = 1;
    std::vector<__int128> weights;
  };

  AffineFit() = default;
  [[nodiscard]] std::optional<int64_t> solve(const Equation& equation,
                                             std::span<const int64_t> values) const;
  [[nodiscard]] std::optional<Expr> candidate(std::span<const int64_t> values) const;

  std::vector<std::vector<int64_t>> points_;
  std::vector<size_t> supports_;     // points that, with the first, determine
  std::vector<Equation> equations_;  // one a varied symbol, ascending
};

}  // namespace djinn::srg
