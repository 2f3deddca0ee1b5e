// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <utility>

namespace djinn {
namespace {

// A disk's quota is as full as a disk: what is refused for want of room may be tried elsewhere.
TEST(Error, a_failed_system_call_has_the_code_of_what_it_lacked) {
  constexpr std::pair<int, ErrorCode> kCodes[] = {
      {ENOMEM, ErrorCode::kOutOfMemory},     {ENOSPC, ErrorCode::kOutOfMemory},
      {EDQUOT, ErrorCode::kOutOfMemory},     {EMFILE, ErrorCode::kLimitExceeded},
      {ENFILE, ErrorCode::kLimitExceeded},   {EACCES, ErrorCode::kPermissionDenied},
      {EPERM, ErrorCode::kPermissionDenied}, {EIO, ErrorCode::kIo},
      {EBADF, ErrorCode::kSystem},
  };
  for (const auto& [number, code] : kCodes) {
    const Error error = system_error("open the file", number);
    EXPECT_EQ(error.code, code) << error.message;
    EXPECT_TRUE(error.message.starts_with("open the file: ")) << error.message;
  }
}

}  // namespace
}  // namespace djinn
