// SPDX-License-Identifier: Apache-2.0

// The structural verifier: what must hold of a graph before anything else reads it. It knows
// nothing of operators, schemas and shapes (kernel/exec checks those at admission). After it has
// passed a graph, every index in it leads somewhere, every name is printable and short, every
// expression is canonical and cannot overflow while its symbols stay in their ranges, and
//
//   * values are numbered in the order of their definition: a node's outputs ascend, and are
//   greater
//     than every value that it or an earlier node uses or makes;
//   * a value on a storage is defined by no node, a local value by exactly one;
//   * symbol names, weight names, input names, value names and (layer, part) of sequences are
//   unique;
//     roles of symbols and inputs other than the plain ones occur at most once;
//   * fields that their kind does not use are at their defaults, so equal programs are equal bytes.
//
// Codes:
//   kLimitExceeded    more of something than limits.h allows
//   kMalformed        numbering, definition before use, enumerations, canonical form, names that
//   are
//                     no names
//   kOutOfRange       an index that leads nowhere; a range that is empty, negative or overflows
//   kAlreadyExists    a name, a role, a sequence buffer or an output that occurs twice
//   kInvalidArgument  fields that contradict one another: strides without their sizes, a role on an
//                     input of another dtype
#pragma once

#include <string_view>

#include "kernel/base/result.h"
#include "kernel/srg/graph.h"

namespace djinn::srg {

// Any graph, hostile ones included; linear in its size.
Status verify(const Graph& graph);

// [A-Za-z_][A-Za-z0-9_]*
[[nodiscard]] bool is_identifier(std::string_view name);

// namespace::name or namespace::name.overload, of identifiers
[[nodiscard]] bool is_operator_name(std::string_view op);

// Words of the text form that no symbol may take: none, true, false, inf, nan and the dtypes.
[[nodiscard]] bool is_reserved_word(std::string_view name);

}  // namespace djinn::srg
