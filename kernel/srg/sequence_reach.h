// SPDX-License-Identifier: Apache-2.0

// How far a graph reaches into the buffers of its sequence group, [rows, heads, capacity, dim].
// Memory is there for the tokens of the run and those before it; slots behind them have none, and
// to touch one would take memory that nobody granted.
#pragma once

#include "kernel/srg/graph.h"

namespace djinn::srg {

// Whether every read is known to stay in [0, past + tokens), whatever the symbols are, as long as
// buffers have the group's strides, which their binder looks at. That is so if a buffer is used by
// djinn::kv_append, as its first argument, and by aten::slice.Tensor and aten::narrow along the
// tokens, which end there; and no operator takes storages apart. Where appends go is looked at as
// they run. Precondition: the graph is verified. Pure.
[[nodiscard]] bool stays_in_tokens(const Graph& graph);

}  // namespace djinn::srg
