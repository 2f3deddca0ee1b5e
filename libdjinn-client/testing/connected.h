// SPDX-License-Identifier: Apache-2.0

// Connected: a test's session with a daemon that completes every run without looking at it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "libdjinn-client/client.h"
#include "libdjinn-client/testing/fake_daemon.h"

namespace djinn::client::testing {

template <uint64_t kStagingBytes>
class Connected : public ::testing::Test {
 protected:
  void SetUp() override {
    ConnectOptions options;
    options.host = daemon_.host();
    options.staging_bytes = kStagingBytes;
    auto connected = Client::connect(options);
    ASSERT_TRUE(connected) << connected.error().message;
    client_ = *std::move(connected);
  }

  FakeDaemon daemon_;
  std::unique_ptr<Client> client_;
};

}  // namespace djinn::client::testing
