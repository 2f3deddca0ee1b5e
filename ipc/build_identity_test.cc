// SPDX-License-Identifier: Apache-2.0

#include "ipc/build_identity.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace djinn::ipc {
namespace {

bool refuses(const char* option, const char* value) {
  const std::array<const char*, 3> arguments{"djinn-worker", option, value};
  return started_by_other_build(arguments.size(), arguments.data());
}

TEST(BuildIdentity, is_a_version_and_a_digest) {
  EXPECT_TRUE(build_identity().starts_with(DJINN_VERSION "-"));
  EXPECT_GT(build_identity().size(), std::string_view(DJINN_VERSION "-").size() + 8);
}

TEST(BuildIdentity, a_child_takes_its_own_build_and_no_other) {
  const std::string ours(build_identity());
  EXPECT_FALSE(refuses("--build", ours.c_str()));
  EXPECT_TRUE(refuses("--build", (ours + "0").c_str()));
  EXPECT_TRUE(refuses("--build", ""));
}

// It is not djinnd that asks.
TEST(BuildIdentity, help_needs_none) {
  const std::array<const char*, 2> arguments{"djinn-worker", "--help"};
  EXPECT_FALSE(started_by_other_build(arguments.size(), arguments.data()));
}

}  // namespace
}  // namespace djinn::ipc
