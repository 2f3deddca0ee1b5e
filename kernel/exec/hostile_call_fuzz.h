// SPDX-License-Identifier: Apache-2.0

// Hostile calls of one operator, for operators_fuzz.cc, made by its schema: sizes of 0 and huge
// ones, dimensions out of range, lists of a wrong length, other dtypes, NaN and INT64_MIN, inputs
// that overlap, are expanded or shared, numbers that name no member of an enumeration. Most of a
// call's arguments fit one another, or its kernel would not be reached. Some have so many elements
// that kernels share them among threads.
//
//   Call      a graph of one node, and the bytes of its inputs
//   Lineage   the seeds that a call is made of: the first makes it, 0 one that fits if there is one
//             (fitting_calls_fuzz.h); each other changes one thing
//
// The same operator and lineage make the same call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernel/exec/allow_list.h"
#include "kernel/srg/graph.h"

namespace djinn::exec {

using Lineage = std::vector<uint64_t>;

struct Call {
  srg::Graph graph;
  std::vector<std::vector<std::byte>> inputs;  // one for each storage of the graph
};

// Precondition: lineage is not empty.
[[nodiscard]] Call make_call(std::string_view op, const Operator& resolved, const Lineage& lineage);

}  // namespace djinn::exec
