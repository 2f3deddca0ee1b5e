// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/transfer.h"

#include <gtest/gtest.h>

#include <vector>

#include "libdjinn-client/testing/connected.h"

namespace djinn::client {
namespace {

using testing::FakeDaemon;

constexpr uint64_t kStagingBytes = 1 << 16;
constexpr uint64_t kParts = 37;

class Transfer : public testing::Connected<kStagingBytes> {
 protected:
  // Whatever was in use is free again.
  void TearDown() override { EXPECT_TRUE(client_->allocate_staging(kStagingBytes)); }

  std::vector<std::byte> bytes_ = std::vector<std::byte>(kParts * kStagingBytes / 4 - 1);
};

TEST_F(Transfer, what_is_larger_than_staging_is_put_in_parts) {
  EXPECT_TRUE(put(*client_, bytes_));
  EXPECT_EQ(daemon_.runs(), kParts);
}

TEST_F(Transfer, what_has_no_bytes_is_put_in_one_run) {
  EXPECT_TRUE(put(*client_, {}));
  EXPECT_EQ(daemon_.runs(), 1u);
}

// There are no such bytes: whoever looked at one would crash.
TEST_F(Transfer, what_no_session_may_hold_is_refused_unread) {
  const std::span<const std::byte> nowhere(reinterpret_cast<const std::byte*>(64),
                                           FakeDaemon::kQuotaBytes * 2);
  const auto refused = put(*client_, nowhere);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kQuotaExceeded);
  EXPECT_NE(refused.error().message.find("A ref of 2.0 GiB is more than the 1.0 GiB that a"),
            std::string::npos);
  EXPECT_EQ(daemon_.runs(), 0u);
}

TEST_F(Transfer, what_is_larger_than_staging_is_read_in_parts) {
  ipc::ReadBlock view;
  view.ref = {0, 1};
  view.dtype = DType::kUInt8;
  view.sizes = {1, bytes_.size()};
  view.strides = {0, 1};
  EXPECT_TRUE(read(*client_, view, bytes_));
  EXPECT_GE(daemon_.runs(), kParts);
  EXPECT_LE(daemon_.runs(), kParts + 1);  // out begins in the middle of an aligned piece
}

TEST_F(Transfer, a_read_makes_do_with_what_others_leave_of_the_slab) {
  const auto others = client_->allocate_staging(kStagingBytes / 8 * 5);
  ASSERT_TRUE(others);
  ipc::ReadBlock view;
  view.ref = {0, 1};
  view.dtype = DType::kUInt8;
  view.sizes = {bytes_.size()};
  view.strides = {1};
  const Status got = read(*client_, view, bytes_);
  EXPECT_TRUE(got) << got.error().message;
  EXPECT_TRUE(put(*client_, bytes_));
}

TEST_F(Transfer, a_view_without_elements_needs_no_run) {
  EXPECT_TRUE(read(*client_, {}, {}));
  EXPECT_EQ(daemon_.runs(), 0u);
}

}  // namespace
}  // namespace djinn::client
