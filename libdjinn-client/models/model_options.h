// SPDX-License-Identifier: Apache-2.0

// ModelOptions: how a model is to be loaded and computed, as whoever opens it says.
#pragma once

#include <optional>
#include <string_view>

#include "kernel/base/result.h"
#include "kernel/srg/graph.h"
#include "kernel/srg/load_plan.h"

namespace djinn::client {

struct ModelOptions {
  // Of its programs; none: djinnd's lane.numerics, and fast where matrices are int8.
  std::optional<srg::Numerics> numerics;
  srg::WeightForm matrices = srg::WeightForm::kPlain;  // a model of its own for each form
};

// "exact", "fast" or "fast-only". Errors: kInvalidArgument, with what there is.
Result<srg::Numerics> numerics_named(std::string_view name);
// "int8". Errors: kInvalidArgument, with what there is.
Result<srg::WeightForm> weights_named(std::string_view name);

// The numerics of programs; configured: djinnd's. Only fast kernels compute with weights in int8.
// Errors: kUnsupported for int8 in exact numerics that were asked for.
Result<srg::Numerics> numerics_of(const ModelOptions& options, srg::Numerics configured);

// The plan to open a model with, of the one that it has, or none; none: the files' tensors as they
// are.
std::optional<srg::LoadPlan> plan_of(const srg::LoadPlan* plan, srg::WeightForm matrices);

}  // namespace djinn::client
