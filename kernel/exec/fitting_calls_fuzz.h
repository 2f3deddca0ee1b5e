// SPDX-License-Identifier: Apache-2.0

// Calls whose arguments fit one another, of every guarded operator and of those that chance hardly
// ever finds one for: convolutions, gradients, attention, recurrent networks. hostile_call_fuzz.h
// spoils them.
#pragma once

#include <optional>
#include <string_view>

#include "kernel/srg/graph.h"

namespace djinn::exec {

// A graph of one node; nothing for an operator that has none here.
[[nodiscard]] std::optional<srg::Graph> fitting_call(std::string_view op);

}  // namespace djinn::exec
