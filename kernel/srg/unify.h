// SPDX-License-Identifier: Apache-2.0

// One graph from several recordings of the same code at different sizes, and back.
//
//   Recording   a graph without symbols: sizes, strides, offsets and integer arguments are numbers
//   point       the values that the symbols had when it was recorded
//
// Recordings unify when they are the same but for these numbers, and each number is an affine
// function of the symbols with integer coefficients; a view whose strides are not is said by its
// sizes, if these are (sized_views.h). The points must determine these functions
// (affine.h); recordings beyond that many check them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/base/result.h"
#include "kernel/srg/graph.h"

namespace djinn::srg {

struct Recording {
  const Graph* graph = nullptr;
  std::vector<int64_t> point;  // one value a symbol, within its range
};

// The verified graph over symbols that gives each recording's graph at its point. A symbol with
// min == max occurs in no expression of it. Costs of nodes (flops, bytes) that differ become 0, not
// known: they would hold at one point only.
// Errors: kInvalidArgument if there is no recording, if one has symbols or another number of
// values, or if the points do not determine; kOutOfRange if a value is outside its symbol's range
// or the points are too large to solve; kShapeMismatch if the recordings differ in anything but
// their numbers, or a number is no affine function: the message names the first such place;
// verify's errors for a recording, and for a graph that cannot hold over the whole of its symbols'
// ranges.
Result<Graph> unify(std::span<const Recording> recordings, std::vector<Symbol> symbols);

// The graph without symbols that graph is at point, one value a symbol. Annotations stay as they
// are. Precondition: verify() passed graph. Errors: kInvalidArgument for another number of values,
// kOutOfRange for a value outside its symbol's range.
Result<Graph> substitute(const Graph& graph, std::span<const int64_t> point);

}  // namespace djinn::srg
