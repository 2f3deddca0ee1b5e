// SPDX-License-Identifier: Apache-2.0

// Shapes of a graph without symbols, as a recorder sends by the thousand: where a node's results
// are fresh and claim dtype, sizes and strides, the claim is the shape, and the run holds the
// kernel to it (layout.h). Only nodes that claim less, and views, are asked on meta.
//
// invariant: every value has the storage that its schema says: a fresh result one of its own, a
// view that of its argument. A kernel that shares a storage unsaid is parted from it at the run.
#pragma once

#include <functional>

#include "kernel/base/result.h"
#include "kernel/exec/inference.h"

namespace djinn::exec {

// Errors: as infer_shapes.
Result<Sample> infer_from_claims(AdmittedGraph& program, const std::function<Status()>& go_on);

}  // namespace djinn::exec
