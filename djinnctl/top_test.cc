// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/top.h"

#include <gtest/gtest.h>

#include "djinnctl/text.h"
#include "kernel/base/clock.h"

namespace djinn::ctl {
namespace {

ipc::SessionReport session(uint64_t id, uint64_t bytes, uint64_t steps, const char* owner) {
  ipc::SessionReport report;
  report.session = SessionId{id};
  report.client_name = "a-program-with-a-long-name";
  report.owner = owner;
  report.granted_bytes = bytes;
  report.steps = steps;
  report.started_wall_ns = kNsPerSecond;
  return report;
}

TopSample sample(uint64_t wall_ns, uint64_t steps, uint64_t tokens) {
  TopSample out;
  out.wall_ns = wall_ns;
  out.status.memory_total_bytes = 400;
  out.status.memory_granted_bytes = 100;
  ipc::WorkerReport worker;
  worker.tokens = tokens;
  out.status.workers = {worker};
  out.sessions = {session(1, 10, steps, "zoe"), session(2, 20, 0, "ann")};
  return out;
}

size_t place_of(const std::string& text, const char* what) {
  return text.find(what);
}

TEST(Top, rates_are_those_since_the_view_before) {
  const TopSample before = sample(10 * kNsPerSecond, 5, 100);
  const std::string text =
      top_frame(sample(12 * kNsPerSecond, 9, 150), &before, TopSort::kRate, {.columns_max = 80});
  EXPECT_NE(text.find("25.0 tokens/s"), std::string::npos) << text;
  EXPECT_NE(text.find(" 2.0 "), std::string::npos) << text;
  EXPECT_NE(text.find("[#####               ]"), std::string::npos) << text;
}

TEST(Top, the_first_view_knows_no_rates) {
  const std::string text =
      top_frame(sample(10 * kNsPerSecond, 5, 100), nullptr, TopSort::kRate, {});
  EXPECT_NE(text.find("work   - tokens/s"), std::string::npos) << text;
  EXPECT_EQ(text.find("0.0"), std::string::npos) << text;
  EXPECT_NE(text.find("a-program-with-a-long-name"), std::string::npos) << text;
}

TEST(Top, sessions_come_in_the_order_that_was_asked_for) {
  const TopSample before = sample(10 * kNsPerSecond, 5, 0);
  const TopSample now = sample(12 * kNsPerSecond, 9, 0);
  const auto first = [&](TopSort sort) {
    const std::string text = top_frame(now, &before, sort, {.columns_max = 80});
    return place_of(text, "000000000001") < place_of(text, "000000000002") ? 1 : 2;
  };
  EXPECT_EQ(first(TopSort::kMemory), 2);
  EXPECT_EQ(first(TopSort::kRate), 1);
  EXPECT_EQ(first(TopSort::kUser), 2);
}

TEST(Top, no_line_is_wider_than_the_screen) {
  for (const size_t columns : {20u, 80u}) {
    const std::string frame =
        top_frame(sample(kNsPerSecond, 0, 0), nullptr, TopSort::kAge, {.columns_max = columns});
    std::string_view text = frame;
    while (!text.empty()) {
      EXPECT_LE(width_of(text.substr(0, text.find('\n'))), columns) << text;
      text.remove_prefix(text.find('\n') + 1);
    }
  }
}

TEST(Top, figures_are_whole_on_80_columns) {
  TopSample now = sample(kNsPerSecond, 0, 0);
  for (ipc::SessionReport& one : now.sessions) {
    one.owner = "a-user-with-a-long-name";
    one.state = ipc::SessionState::kDraining;
    one.wait = ipc::SessionWait::kMemory;
    one.started_wall_ns = 0;
    one.pid = 1'234'567;
    one.granted_bytes = uint64_t{1000} << 20;
    one.shared_bytes = uint64_t{1001} << 30;
  }
  const std::string text = top_frame(now, nullptr, TopSort::kAge, {.columns_max = 80});
  EXPECT_NE(text.find("  1000 MiB  1001 GiB\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  draining  memory  "), std::string::npos) << text;
  EXPECT_NE(text.find("  1234567  "), std::string::npos) << text;
}

TEST(Top, the_orders_go_round) {
  TopSort sort = TopSort::kMemory;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(top_sort_named(name_of(sort)), sort);
    sort = next(sort);
  }
  EXPECT_EQ(sort, TopSort::kMemory);
  EXPECT_FALSE(top_sort_named("colour").has_value());
}

TEST(Text, cut_halves_no_character) {
  EXPECT_EQ(cut("abc", 2), "ab");
  EXPECT_EQ(cut("a\xc3\xa9z", 2), "a\xc3\xa9");
  EXPECT_EQ(cut("a\xc3\xa9z", 9), "a\xc3\xa9z");
}

TEST(Text, times_to_stay) {
  EXPECT_EQ(stay_ms_of("10m"), 600'000u);
  EXPECT_EQ(stay_ms_of("0"), 0u);
  EXPECT_EQ(stay_ms_of("forever"), ipc::kKeepForever);
  for (const char* wrong : {"", "m", "30", "for ever"}) {
    EXPECT_FALSE(stay_ms_of(wrong).has_value()) << wrong;
  }
}

TEST(Text, times_to_wait_are_within_their_bounds) {
  for (const char* right : {"0.1", "100ms", "7", "1 min", "1h", "3600"}) {
    EXPECT_EQ(wait_fault(right, "100ms", "1h"), "") << right;
  }
  for (const char* wrong : {"", "0", "99ms", "0.09", "61m", "3601", "forever", "soon"}) {
    EXPECT_EQ(
        wait_fault(wrong, "100ms", "1h"),
        "'" + std::string(wrong) + "' is no time from 100ms to 1h, like 10 (seconds), 10s or 5m.");
  }
}

}  // namespace
}  // namespace djinn::ctl
