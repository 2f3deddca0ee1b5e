// SPDX-License-Identifier: Apache-2.0

#include "kernel/executor/output.h"

#include <gtest/gtest.h>

#include <vector>

namespace djinn::exec {
namespace {

TEST(CopyElements, reads_only_elements_and_only_inside_the_storage) {
  const std::vector<float> data{0, 1, 2, 3, 4, 5, 6, 7};
  OutputView view;
  view.dtype = DType::kFloat32;
  view.sizes = {2, 3};
  view.strides = {1, 2};
  view.storage_offset = 1;
  view.storage = reinterpret_cast<const std::byte*>(data.data());
  view.storage_bytes = 7 * sizeof(float);
  std::vector<float> out(6);
  EXPECT_TRUE(copy_elements(view, std::as_writable_bytes(std::span(out))));
  EXPECT_EQ(out, (std::vector<float>{1, 3, 5, 2, 4, 6}));
  EXPECT_FALSE(copy_elements(view, std::as_writable_bytes(std::span(out).first(5))));
  view.storage_bytes -= 1;
  EXPECT_FALSE(copy_elements(view, std::as_writable_bytes(std::span(out))));
}

}  // namespace
}  // namespace djinn::exec
