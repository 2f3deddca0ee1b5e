// SPDX-License-Identifier: Apache-2.0

// Which weights of the models that this process has opened are in another form than elements one by
// one (kernel/srg/load_plan.h): programs that read those compute with djinnd's own kernels.
#pragma once

#include <cstdint>

#include "kernel/srg/load_plan.h"
#include "kernel/srg/rewrite/rewrite.h"

namespace djinn::device {

// Of a model of this process's session, which has ended those of the one before. Tells whether
// there are any. Any thread.
bool note_forms(uint64_t model, const srg::ModelManifest& manifest);

// Those that the graph names, as rewrite() takes them; empty where it names none. Any thread.
srg::FormedWeights formed_weights_of(uint64_t model, const srg::Graph& graph);

}  // namespace djinn::device
