// SPDX-License-Identifier: Apache-2.0

// Which tensors of a model are its matrices, and so can be int8, by what a load plan says of them.
#pragma once

#include <vector>

#include "kernel/srg/load_plan.h"

namespace djinn::srg {

// By storage of a graph, of those that are weights; or empty: all are plain.
using WeightForms = std::vector<WeightForm>;

inline constexpr uint64_t kInt8ColumnsMax = uint64_t{1} << 20;  // a row is read at once

// float32, bfloat16 or float16.
[[nodiscard]] bool is_of_small_floats(DType dtype);

// Two dimensions, of small floats, whose rows are whole rows of files, of tensors that are named
// ".weight" at their end, but not ".gate.weight" as routers' are, which choose experts.
[[nodiscard]] bool is_matrix(const Destination& destination);

// The plan with all of its matrices in that form. Of one without destinations they are the files'.
[[nodiscard]] LoadPlan in_form(LoadPlan plan, WeightForm matrices);

}  // namespace djinn::srg
