// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/device_id.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace djinn {
namespace {

TEST(DeviceId, the_host_is_known_by_the_name_that_users_write) {
  EXPECT_EQ(text_of(kHostDevice), "cpu:0");
}

TEST(DeviceId, devices_of_a_kind_are_told_apart_by_their_number) {
  constexpr DeviceId kSecond{DeviceKind::kCpu, 1};
  EXPECT_NE(kSecond, kHostDevice);
  EXPECT_EQ(text_of(kSecond), "cpu:1");
}

TEST(DeviceId, a_number_is_no_device) {
  static_assert(!std::is_convertible_v<uint32_t, DeviceId>);
  static_assert(!std::is_convertible_v<DeviceId, uint32_t>);
}

TEST(DeviceId, is_read_as_it_is_written_and_in_no_other_way) {
  for (const DeviceId device : {kHostDevice, DeviceId{DeviceKind::kFake, UINT32_MAX}}) {
    EXPECT_EQ(device_from(text_of(device)), device);
  }
  for (const char* text : {"", "cpu", "cpu:", ":0", "cpu:00", "cpu:-1", "cpu:0 ", "cpu:4294967296",
                           "gpu:0", "cpu:0:0"}) {
    EXPECT_FALSE(device_from(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace djinn
