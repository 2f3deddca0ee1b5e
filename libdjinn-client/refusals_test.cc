// SPDX-License-Identifier: Apache-2.0

// Whatever a client had of staging and refs for a submission that was refused, or for a run that
// failed, is free again.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "libdjinn-client/testing/fake_daemon.h"
#include "libdjinn-client/transfer.h"

namespace djinn::client {
namespace {

using testing::FakeDaemon;

constexpr uint64_t kStagingBytes = 1 << 18;
constexpr int kRefusals = 10'000;

class Refusals : public ::testing::Test {
 protected:
  void SetUp() override {
    ConnectOptions options;
    options.host = daemon_.host();
    options.staging_bytes = kStagingBytes;
    auto connected = Client::connect(options);
    ASSERT_TRUE(connected) << connected.error().message;
    client_ = *std::move(connected);
  }
  [[nodiscard]] bool slab_is_free() { return client_->allocate_staging(kStagingBytes).ok(); }

  FakeDaemon daemon_;
  std::unique_ptr<Client> client_;
  const std::vector<std::byte> over_ = std::vector<std::byte>(limits::kBindingTableBytes + 1);
};

TEST_F(Refusals, a_submission_that_is_refused_gives_back_what_it_leased) {
  for (int i = 0; i < kRefusals; ++i) {
    const auto range = client_->allocate_staging(1000);
    ASSERT_TRUE(range) << "after " << i << ": " << range.error().message;
    const auto refused = client_->submit({}, over_, {*range});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kLimitExceeded);
  }
  EXPECT_TRUE(slab_is_free());
}

// There is room for what the caller leased, and none for the block.
TEST_F(Refusals, a_submission_without_room_for_its_block_gives_back_what_it_leased) {
  for (int i = 0; i < kRefusals; ++i) {
    const auto range = client_->allocate_staging(kStagingBytes - 64);
    ASSERT_TRUE(range) << "after " << i << ": " << range.error().message;
    const auto refused = client_->submit({}, std::vector<std::byte>(65), {*range});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kQueueFull);
  }
  EXPECT_TRUE(slab_is_free());
}

}  // namespace
}  // namespace djinn::client
