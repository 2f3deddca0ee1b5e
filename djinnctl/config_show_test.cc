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

TEST(ConfigShow, what_is_in_force_and_not_written_any_more_is_shown) {
  ipc::StatusReport report;
  report.settings = {{"memory.limit", "1GiB", false}, {"user.ann.memory_quota", "8GiB", true}};
  std::vector<ShownSetting> settings{{"memory.limit", "2GiB", "a:1"}, {"lane.threads", "1", ""}};
  compare_with(report, settings);
  ASSERT_EQ(settings.size(), 3u);
  EXPECT_TRUE(settings[0].is_pending());
  EXPECT_FALSE(settings[0].reloads);
  EXPECT_FALSE(settings[1].in_force.has_value());
  EXPECT_EQ(settings[2].key, "user.ann.memory_quota");
  EXPECT_EQ(settings[2].value, "");
  EXPECT_TRUE(settings[2].is_pending());
  EXPECT_TRUE(settings[2].reloads);
}

TEST(ConfigShow, who_is_no_administrator_is_not_told_what_sections_have_in_force) {
  std::vector<ShownSetting> settings{{"user.ann.memory_quota", "8GiB", "a:1"},
                                     {"lane.threads", "1", ""}};
  ipc::StatusReport report;
  compare_with(report, settings);
  EXPECT_TRUE(settings[0].is_hidden);
  EXPECT_FALSE(settings[1].is_hidden);
  settings[0].is_hidden = false;
  report.users.resize(1);
  compare_with(report, settings);
  EXPECT_FALSE(settings[0].is_hidden) << "pending";
}

TEST(ConfigShow, a_section_that_is_written_and_not_in_force_is_pending_for_administrators) {
  std::vector<ShownSetting> settings{{"user.ann.memory_quota", "8GiB", "a:1"},
                                     {"user.bob.memory_quota", "8GiB", "a:3"}};
  ipc::StatusReport report;
  report.settings = {{"user.bob.memory_quota", "8GiB", true}};
  report.quota.pinned_max_bytes = UINT64_MAX;  // an administrator, where nobody has anything
  compare_with(report, settings);
  EXPECT_TRUE(settings[0].is_pending());
  EXPECT_TRUE(settings[0].reloads);
  EXPECT_FALSE(settings[0].is_hidden);
  EXPECT_FALSE(settings[1].is_pending());
}

TEST(ConfigShow, refuses_what_it_does_not_know) {
  EXPECT_EQ(parse_shown_config("memory.limit: 3\n").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(parse_shown_config("memory.limit = 3\n").error().code, ErrorCode::kMalformed);
  EXPECT_TRUE(parse_shown_config("").ok());
}

}  // namespace
}  // namespace djinn::ctl
