// SPDX-License-Identifier: Apache-2.0

// What programs of the models that this process has opened ask about them: which weights are in
// another form than elements one by one (kernel/srg/load_plan.h), with which djinnd's own kernels
// alone compute, and in which numerics the user has asked djinnd to compute them.
#pragma once

#include <cstdint>
#include <optional>

#include "kernel/srg/rewrite/rewrite.h"
#include "libdjinn-client/client.h"

namespace djinn::device {

// A model that this process's session has opened, which has ended those of the session before.
// Tells whether weights of it are in another form. Any thread.
bool note_opened(const client::OpenedModel& model);

// Those that the graph names, as rewrite() takes them; empty where it names none. Any thread.
srg::FormedWeights formed_weights_of(uint64_t model, const srg::Graph& graph);

// As djinnd had them when this process opened the model last; nothing: nobody has said any. Any
// thread.
std::optional<srg::Numerics> numerics_said_of(uint64_t model);

}  // namespace djinn::device
