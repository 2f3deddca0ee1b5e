// SPDX-License-Identifier: Apache-2.0

// ModelOptions: how a model is to be loaded and computed, as whoever opens it says.
#pragma once

#include <optional>
#include <string_view>

#include "kernel/base/result.h"
#include "kernel/srg/graph.h"
#include "kernel/srg/load_plan.h"
#include "libdjinn-client/client.h"

namespace djinn::client {

struct ModelOptions {
  // Of its programs; none: as its user has said of the model (djinnctl load --numerics), or else
  // djinnd's lane.numerics, and fast where matrices are int8.
  std::optional<srg::Numerics> numerics;
  srg::WeightForm matrices = srg::WeightForm::kPlain;  // a model of its own for each form
};

// "exact", "fast" or "fast-only". Errors: kInvalidArgument, with what there is.
Result<srg::Numerics> numerics_named(std::string_view name);
// "int8". Errors: kInvalidArgument, with what there is.
Result<srg::WeightForm> weights_named(std::string_view name);

// Whether the options agree; to be asked before anything is read. Only fast kernels compute with
// weights in int8. Errors: kUnsupported for int8 in exact numerics.
Status check_options(const ModelOptions& options);

// The numerics of programs of a model that was opened with these options. One that its user wants
// exact, and whose weights are int8, is closed. Errors: as check_options()'s; djinnd's.
Result<srg::Numerics> numerics_of(Client& client, const OpenedModel& model,
                                  const ModelOptions& options);

// The plan to open a model with, of the one that it has, or none; none: the files' tensors as they
// are.
std::optional<srg::LoadPlan> plan_of(const srg::LoadPlan* plan, srg::WeightForm matrices);

}  // namespace djinn::client
