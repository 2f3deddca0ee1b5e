// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/dtypes.h"

#include <gtest/gtest.h>

namespace djinn::ctl {
namespace {

srg::TensorEntry tensor(DType dtype, uint64_t offset, uint64_t bytes) {
  return {"", dtype, {}, 0, offset, bytes};
}

TEST(DTypes, are_told_with_their_bytes_the_largest_first) {
  const srg::ModelManifest manifest{{},
                                    {tensor(DType::kInt64, 0, 8), tensor(DType::kFloat16, 64, 100),
                                     tensor(DType::kFloat16, 192, 20)}};
  const std::vector<DTypeUse> uses = dtypes_of(manifest);
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_EQ(uses[0].dtype, DType::kFloat16);
  EXPECT_EQ(uses[0].tensors, 2u);
  EXPECT_EQ(uses[0].bytes, 120u);
  EXPECT_EQ(uses[1].dtype, DType::kInt64);
  EXPECT_EQ(uses[1].bytes, 8u);
  EXPECT_TRUE(dtypes_of({}).empty());
}

TEST(DTypes, tied_weights_count_once_and_empty_tensors_share_no_bytes) {
  const srg::ModelManifest manifest{{},
                                    {tensor(DType::kInt8, 64, 9), tensor(DType::kInt8, 64, 9),
                                     tensor(DType::kInt8, 128, 0), tensor(DType::kInt8, 128, 0)}};
  ASSERT_EQ(dtypes_of(manifest).size(), 1u);
  EXPECT_EQ(dtypes_of(manifest)[0].tensors, 3u);
  EXPECT_EQ(dtypes_of(manifest)[0].bytes, 9u);
}

TEST(DTypes, matrices_that_a_loader_made_int8_are_that) {
  srg::ModelManifest manifest{{}, {tensor(DType::kBFloat16, 0, 8), tensor(DType::kInt8, 64, 9)}};
  manifest.tensors[0].form = srg::WeightForm::kInt8;
  ASSERT_EQ(dtypes_of(manifest).size(), 1u);
  EXPECT_EQ(dtypes_of(manifest)[0].dtype, DType::kInt8);
  EXPECT_EQ(dtypes_of(manifest)[0].bytes, 17u);
}

}  // namespace
}  // namespace djinn::ctl
