// SPDX-License-Identifier: Apache-2.0

// From the arguments of an SRG node to a stack template, by the operator's schema. Strict: an
// argument has the type that the schema names, but for what PyTorch's own parser takes (an int for
// a float, a number for a Tensor, one int for a sized list).
#pragma once

#include "kernel/base/result.h"
#include "kernel/exec/program.h"

namespace djinn::exec {

// Fills op's stack, patches and written values. device: the program's. Errors: kInvalidArgument,
// naming operator and argument.
Status bind_arguments(c10::Device device, const srg::Node& node, Step& step);

// The stack for one call: the template with the patches applied; moves last uses out of the frame.
// Error: kOutOfRange.
Status fill_stack(const Step& step, Frame& frame, std::vector<c10::IValue>& stack);

}  // namespace djinn::exec
