// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/allowed.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernel/srg/verify.h"

namespace djinn::srg {
namespace {

TEST(Allowed, names_are_sorted_once_each_and_well_formed) {
  const auto names = allowed_operators();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  for (const std::string_view name : names) {
    EXPECT_TRUE(is_operator_name(name)) << name;
    EXPECT_TRUE(is_allowed(name)) << name;
  }
}

TEST(Allowed, nothing_else_is) {
  for (const char* name :
       {"", "aten::relu.out", "aten::rel", "aten::relu ", "aten::empty.memory_format", "aten::set_",
        "aten::resize_", "aten::from_file", "aten::transpose_", "aten::bernoulli_.float",
        "aten::_reshape_alias", "zzz::zzz"}) {
    EXPECT_FALSE(is_allowed(name)) << name;
  }
}

TEST(Allowed, what_is_on_a_gpu_is_on_the_host_too_and_believes_no_index) {
  const auto names = allowed_on_gpu();
  EXPECT_TRUE(std::ranges::is_sorted(names));
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  for (const std::string_view name : names) {
    EXPECT_TRUE(is_allowed(name)) << name;
    EXPECT_TRUE(is_allowed_on_gpu(name)) << name;
  }
  // The host's guards read these ones' indices.
  for (const char* name : {"aten::_grouped_mm", "aten::max_unpool2d", "aten::nll_loss_forward",
                           "aten::max_pool2d_with_indices_backward", "aten::relu.out", ""}) {
    EXPECT_FALSE(is_allowed_on_gpu(name)) << name;
  }
}

// A node cannot name an output that it writes: clients call the functional form.
TEST(Allowed, no_form_with_out_is) {
  for (const std::string_view name : allowed_operators()) {
    EXPECT_FALSE(name.ends_with(".out") || name.ends_with("_out")) << name;
  }
}

}  // namespace
}  // namespace djinn::srg
