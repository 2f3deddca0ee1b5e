// SPDX-License-Identifier: Apache-2.0

// The passes, each in a file of its own. They change the graph's nodes and count what they did.
#pragma once

#include "kernel/srg/rewrite/rewrite.h"

namespace djinn::srg {

// Products with a constant matrix become djinn::linear_rows(input, weight, bias, turned).
[[nodiscard]] PassReport rewrite_linear(Graph& graph);

}  // namespace djinn::srg
