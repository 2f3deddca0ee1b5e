// SPDX-License-Identifier: Apache-2.0

// A stack of boxed arguments as the arguments of a graph's node.
#pragma once

#include <vector>

#include "kernel/srg/graph.h"
#include "python/device/torch_headers.h"

namespace djinn::device {

// Tensors of the device become ValueRefs numbered in the order of tensors_of() (recipe.h), wrapped
// numbers become numbers. Devices, generators and pinning are left out. Throws NotImplementedError
// for what a graph cannot express.
std::vector<srg::Argument> to_arguments(const c10::FunctionSchema& schema,
                                        const std::vector<c10::IValue>& stack);

}  // namespace djinn::device
