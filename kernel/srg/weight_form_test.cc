// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/weight_form.h"

#include <gtest/gtest.h>

#include <functional>

namespace djinn::srg {
namespace {

Destination matrix() {
  return {"a#1",
          DType::kBFloat16,
          {6, 8},
          0,
          {{0, "q.weight", {}, false}, {1, "k.weight", {{0, 0, 2}}, false}}};
}

TEST(WeightForm, whole_rows_of_weights_are_matrices) {
  EXPECT_TRUE(is_matrix(matrix()));
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    Destination other = matrix();
    other.dtype = dtype;
    EXPECT_TRUE(is_matrix(other));
  }
}

TEST(WeightForm, what_int8_cannot_be_or_a_router_reads_is_none) {
  const std::function<void(Destination&)> changes[] = {
      [](Destination& one) { one.dtype = DType::kFloat64; },
      [](Destination& one) { one.sizes = {48}; },
      [](Destination& one) {
        one.sizes = {0, 8};
      },
      [](Destination& one) { one.sizes[1] = kInt8ColumnsMax + 1; },
      [](Destination& one) { one.concat_dimension = 1; },
      [](Destination& one) { one.pieces[1].transpose = true; },
      [](Destination& one) { one.pieces[1].tensor = "table"; },
      [](Destination& one) { one.pieces[0].tensor = "mlp.gate.weight"; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    Destination one = matrix();
    changes[i](one);
    EXPECT_FALSE(is_matrix(one)) << i;
  }
}

TEST(WeightForm, a_plan_has_its_matrices_in_the_form_and_one_of_nothing_the_files) {
  LoadPlan plan;
  EXPECT_EQ(in_form(plan, WeightForm::kInt8).matrices, WeightForm::kInt8);
  plan.destinations = {matrix(), matrix()};
  plan.destinations[1].sizes = {48};
  const LoadPlan formed = in_form(plan, WeightForm::kInt8);
  EXPECT_EQ(formed.matrices, WeightForm::kPlain) << "it says of files that are taken whole";
  EXPECT_EQ(formed.destinations[0].form, WeightForm::kInt8);
  EXPECT_EQ(formed.destinations[1], plan.destinations[1]);
}

}  // namespace
}  // namespace djinn::srg
