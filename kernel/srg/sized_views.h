// SPDX-License-Identifier: Apache-2.0

// Recordings whose views are said by sizes. A recorded view is an aten::as_strided, and a stride is
// the product of the sizes behind it: where two of these grow with the symbols, as those of scores
// of tokens by tokens do, it is no affine function of them, and the sizes are.
//
//   whole view   shows all of a contiguous tensor as a contiguous one of other sizes: aten::view
//   repeated     shows all of one, elements of it several times, and is only copied from: the same,
//                with each once, which copying repeats
//   part         is less of a contiguous tensor in one dimension: aten::slice.Tensor
//   row          memory that is made as a row of zeros, and seen as a whole view of it: then it is
//                made with these sizes
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kernel/srg/graph.h"

namespace djinn::srg {

// Whether the numbers, one of each graph, can be one expression.
using CanFit = std::function<bool(std::span<const int64_t>)>;

// The graphs with every view and row whose numbers do not fit said by its sizes, where all graphs
// can say it alike; nothing if there is none. Precondition: they are the same but for their
// numbers, of which all are constants, and the first is verified.
std::optional<std::vector<Graph>> with_sized_views(std::span<const Graph* const> graphs,
                                                   const CanFit& can_fit);

}  // namespace djinn::srg
