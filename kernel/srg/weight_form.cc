// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/weight_form.h"

#include <algorithm>

namespace djinn::srg {

bool is_of_small_floats(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

bool is_matrix(const Destination& destination) {
  const bool has_shape = destination.sizes.size() == 2 && destination.sizes[0] > 0 &&
                         destination.sizes[1] > 0 && destination.sizes[1] <= kInt8ColumnsMax;
  const bool has_whole_rows = destination.pieces.size() == 1 || destination.concat_dimension == 0;
  const auto is_weight = [](const Piece& piece) {
    return !piece.transpose && piece.tensor.ends_with(".weight") &&
           !piece.tensor.ends_with(".gate.weight");
  };
  return has_shape && has_whole_rows && is_of_small_floats(destination.dtype) &&
         std::ranges::all_of(destination.pieces, is_weight);
}

LoadPlan in_form(LoadPlan plan, WeightForm matrices) {
  if (plan.destinations.empty()) plan.matrices = matrices;
  for (Destination& one : plan.destinations) {
    if (is_matrix(one)) one.form = matrices;
  }
  return plan;
}

}  // namespace djinn::srg
