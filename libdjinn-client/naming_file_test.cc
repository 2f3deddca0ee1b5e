// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/naming_file.h"

#include <gtest/gtest.h>

#include <vector>

#include "ipc/file_number.h"

namespace djinn::client {
namespace {

TEST(NamingFile, the_number_that_djinnd_tells_becomes_the_name_of_the_file) {
  const std::vector<std::string> paths{"/models/a", "/models/b"};
  const Error told{ErrorCode::kMalformed, ipc::with_file_number(1, 2, "It is cut short.")};
  EXPECT_EQ(naming_file(told, paths).message, "/models/b: It is cut short.");
  EXPECT_EQ(naming_file(told, paths).code, ErrorCode::kMalformed);
  const Error other{ErrorCode::kBusy, "Try again."};
  EXPECT_EQ(naming_file(other, paths).message, "Try again.");
}

}  // namespace
}  // namespace djinn::client
