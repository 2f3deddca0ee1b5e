// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/metrics/metrics_text.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace djinn::daemon {
namespace {

std::vector<std::string> lines_of(const MetricsSnapshot& snapshot) {
  const std::string text = text_of(snapshot, {}, {}, snapshot.taken_ns);
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Of the series with that name and these labels, as they are written.
std::string value_of(const MetricsSnapshot& snapshot, const std::string& series) {
  for (const std::string& line : lines_of(snapshot)) {
    if (line.starts_with(series + " ")) return line.substr(series.size() + 1);
  }
  return "no such series";
}

TEST(MetricsTextTest, an_idle_djinnd_has_more_than_fifty_series_and_each_is_told_once) {
  std::set<std::string> series;
  size_t buckets = 0;
  for (const std::string& line : lines_of({})) {
    if (line.starts_with('#')) continue;
    EXPECT_TRUE(line.starts_with("djinn_")) << line;
    EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << line;
    buckets += line.find("_bucket{") != std::string::npos ? 1 : 0;
  }
  EXPECT_GE(series.size() - buckets, 50u);
}

TEST(MetricsTextTest, only_counters_end_in_total_and_all_do) {
  for (const std::string& line : lines_of({})) {
    if (!line.starts_with("# TYPE ")) continue;
    EXPECT_EQ(line.ends_with(" counter"), line.find("_total ") != std::string::npos) << line;
  }
}

TEST(MetricsTextTest, numbers_are_in_base_units_under_their_labels) {
  MetricsSnapshot shot;
  shot.taken_ns = 7;
  shot.sessions[static_cast<size_t>(ipc::SessionState::kLost)] = 3;
  DeviceSnapshot& device = shot.devices.emplace_back(DeviceSnapshot{kHostDevice});
  device.slab_bytes = 1 << 20;
  device.pools[1].mapped_bytes = 5;
  device.huge_bytes = 2 << 20;
  device.huge_pages = "advise";
  shot.evictions[static_cast<size_t>(EvictReason::kPressure)] = 4;
  shot.counts.submissions[static_cast<size_t>(ipc::Operation::kGenerate)] = 6;
  shot.loader_traffic.sent_bytes = 8;
  shot.groups[static_cast<size_t>(GroupPlace::kSpilled)] = 9;
  shot.events[static_cast<size_t>(ipc::EventKind::kSequenceRestored)] = 10;
  shot.restored_bytes = 11;
  shot.watchdog.lag_ns = 1'500'000;
  shot.stated_local_models = 12;
  EXPECT_EQ(value_of(shot, "djinn_sessions{state=\"lost\"}"), "3");
  EXPECT_EQ(value_of(shot, "djinn_stated_local_models"), "12");
  EXPECT_EQ(
      value_of(shot,
               "djinn_memory_granted_bytes{device=\"cpu:0\",kind=\"slab\",section=\"volatile\"}"),
      "1048576");
  EXPECT_EQ(value_of(shot, "djinn_memory_mapped_bytes{device=\"cpu:0\",pool=\"sessions\"}"), "5");
  EXPECT_EQ(value_of(shot, "djinn_model_huge_bytes{device=\"cpu:0\"}"), "2097152");
  EXPECT_EQ(value_of(shot, "djinn_huge_pages_info{device=\"cpu:0\",setting=\"advise\"}"), "1");
  EXPECT_EQ(value_of(shot, "djinn_model_evictions_total{reason=\"pressure\"}"), "4");
  EXPECT_EQ(value_of(shot, "djinn_submissions_total{operation=\"generate\"}"), "6");
  EXPECT_EQ(value_of(shot, "djinn_ipc_bytes_total{direction=\"sent\",peer=\"loader\"}"), "8");
  EXPECT_EQ(value_of(shot, "djinn_sequence_groups{place=\"disk\"}"), "9");
  EXPECT_EQ(value_of(shot, "djinn_sequence_restores_total"), "10");
  EXPECT_EQ(value_of(shot, "djinn_sequence_restored_bytes_total"), "11");
  EXPECT_EQ(std::stod(value_of(shot, "djinn_watchdog_lag_seconds")), 0.0015);
  EXPECT_EQ(value_of(shot, "djinn_events_total{kind=\"model-loaded\"}"), "0");
}

TEST(MetricsTextTest, a_histograms_buckets_hold_those_below_and_its_sum_is_seconds) {
  MetricsSnapshot shot;
  shot.counts.run.note(9'000);
  shot.counts.run.note(2'000'000'000);
  shot.counts.run.note(uint64_t{1'000'000'000'000});
  const std::string name = "djinn_run_duration_seconds";
  EXPECT_EQ(value_of(shot, name + "_bucket{le=\"1e-05\"}"), "1");
  EXPECT_EQ(value_of(shot, name + "_bucket{le=\"1\"}"), "1");
  EXPECT_EQ(value_of(shot, name + "_bucket{le=\"2.5\"}"), "2");
  EXPECT_EQ(value_of(shot, name + "_bucket{le=\"500\"}"), "2");
  EXPECT_EQ(value_of(shot, name + "_bucket{le=\"+Inf\"}"), "3");
  EXPECT_EQ(value_of(shot, name + "_count"), "3");
  EXPECT_EQ(std::stod(value_of(shot, name + "_sum")), 1002.000009);
}

TEST(MetricsTextTest, numbers_older_than_now_tell_their_age) {
  MetricsSnapshot shot;
  shot.taken_ns = 1'000'000'000;
  EXPECT_NE(text_of(shot, {}, {}, 3'500'000'000).find("djinn_metrics_age_seconds 2.5\n"),
            std::string::npos);
}

TEST(MetricsTextTest, what_proc_says_of_this_process_is_plausible) {
  const ProcessBasics basics = read_process_basics();
  EXPECT_GT(basics.resident_bytes, 1u << 20);
  EXPECT_GT(basics.virtual_bytes, basics.resident_bytes);
  EXPECT_GE(basics.threads, 1u);
  EXPECT_GE(basics.descriptors, 3u);
  EXPECT_GT(basics.descriptors_max, basics.descriptors);
}

}  // namespace
}  // namespace djinn::daemon
