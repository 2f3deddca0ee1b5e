// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/config_show.h"

#include <gtest/gtest.h>

namespace djinn::ctl {
namespace {

TEST(ConfigShow, tells_key_value_and_origin) {
  const auto settings = parse_shown_config(
      "lane.threads = all cores  # standard\n"
      "memory.limit = 50%  # /etc/djinn/a  # b = c.conf:3\n");
  ASSERT_TRUE(settings.ok());
  ASSERT_EQ(settings->size(), 2u);
  EXPECT_EQ(settings->at(0).key, "lane.threads");
  EXPECT_EQ(settings->at(0).value, "all cores");
  EXPECT_EQ(settings->at(0).origin, "");
  EXPECT_EQ(settings->at(1).value, "50%");
  EXPECT_EQ(settings->at(1).origin, "/etc/djinn/a  # b = c.conf:3");
}

TEST(ConfigShow, refuses_what_it_does_not_know) {
  EXPECT_EQ(parse_shown_config("memory.limit: 3\n").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(parse_shown_config("memory.limit = 3\n").error().code, ErrorCode::kMalformed);
  EXPECT_TRUE(parse_shown_config("").ok());
}

}  // namespace
}  // namespace djinn::ctl
