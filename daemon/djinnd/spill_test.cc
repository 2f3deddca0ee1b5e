// SPDX-License-Identifier: Apache-2.0

// Sequence groups that give way and come back: djinnd as a process, with a worker without kernels.
#include <algorithm>
#include <filesystem>

#include "daemon/djinnd/testing/contested_memory.h"
#include "kernel/gc/sequence_layout.h"

namespace djinn::daemon {
namespace {

using testing::eventually;
using testing::TestClient;
using testing::TestDaemon;
using testing::want_refs;

using testing::kMiB;
constexpr uint64_t kPage = 4096;
// Tokens a row; what they make the worker do, fake_worker.cc says.
constexpr uint64_t kDies = 13;
constexpr uint64_t kHangs = 14;
constexpr uint64_t kFails = 15;
// A group of so many is memory as soon as it is used: slots are committed ahead of need.
constexpr uint64_t kLarge = 256;

ipc::SequenceGeometry geometry(uint64_t tokens) {
  return {1, 10, 8, 64, DType::kFloat32, tokens, 2};
}
// What djinnd counts for a group.
uint64_t bytes_of(uint64_t tokens) {
  const ipc::SequenceGeometry g = geometry(tokens);
  return gc::SequenceLayout::make(g.banks * g.rows, g.layers, g.kv_heads, g.head_dim, sizeof(float),
                                  tokens)
      ->committed_bytes(tokens);
}

struct SpillHost : testing::ContestedMemory {
  using ContestedMemory::ContestedMemory;
  // With all its memory.
  SequenceHandle make_group(TestClient& of, uint64_t tokens) {
    const auto made = of.ask<ipc::SequenceMade>(ipc::MakeSequence{geometry(tokens)});
    of.submit_reorder(made.sequence);
    EXPECT_EQ(of.completion(), ErrorCode::kOk);
    return made.sequence;
  }
  uint64_t sessions_bytes() {
    return observer.ask<ipc::StatusReport>(ipc::GetStatus{}).memory_sessions_bytes;
  }
  uint32_t descriptors() { return observer.ask<ipc::StatusReport>(ipc::GetStatus{}).descriptors; }
  // When no child is to come, and nothing is being closed.
  uint32_t descriptors_at_rest() {
    ipc::StatusReport report;
    EXPECT_TRUE(eventually([&] {
      const bool quiet = daemon.children_are_settled();
      report = observer.ask<ipc::StatusReport>(ipc::GetStatus{});
      return quiet && report.descriptors_closing == 0 && daemon.children_are_settled();
    }));
    return report.descriptors;
  }
  // The last of them are closed by a thread, after what they were for is answered.
  bool descriptors_return_to(uint32_t count) {
    return eventually([&] { return descriptors() == count; });
  }
  uint64_t evictable_bytes() { return pool().evictable_bytes; }
  // Of the kind, so far.
  uint64_t told(ipc::EventKind kind) {
    uint64_t count = 0;
    const auto list = observer.ask<ipc::EventList>(ipc::FollowEvents{0, false});
    for (const auto& event : list.events) count += event.kind == kind ? 1 : 0;
    return count;
  }
};

ErrorCode use_group(TestClient& client, SequenceHandle group) {
  client.submit_reorder(group);
  return client.completion();
}

constexpr uint64_t kMore = 48 * kMiB;

TEST(Spill, an_idle_group_gives_way_and_comes_back_with_its_use) {
  SpillHost host;
  const uint64_t before = host.sessions_bytes();
  const uint32_t descriptors = host.descriptors_at_rest();
  const SequenceHandle group = host.make_group(host.client, kLarge);
  ASSERT_TRUE(eventually([&] { return host.evictable_bytes() == bytes_of(kLarge); }));
  EXPECT_EQ(want_refs(host.other, kMore), ErrorCode::kOk);
  EXPECT_EQ(host.told(ipc::EventKind::kSequenceSpilled), 1u);
  EXPECT_EQ(host.sessions_bytes(), before + kMore) << "its memory is free";
  EXPECT_EQ(use_group(host.client, group), ErrorCode::kOutOfMemory) << "refs never give way";
  host.other.disconnect();
  ASSERT_TRUE(eventually([&] { return host.sessions_bytes() < kMore; }));
  EXPECT_EQ(use_group(host.client, group), ErrorCode::kOk);
  EXPECT_EQ(host.told(ipc::EventKind::kSequenceRestored), 1u);
  EXPECT_EQ(host.evictable_bytes(), bytes_of(kLarge));
  host.client.disconnect();
  EXPECT_TRUE(eventually([&] { return host.sessions_bytes() == 0; }));
  EXPECT_TRUE(eventually([&] { return host.descriptors() < descriptors; }));
  EXPECT_TRUE(std::filesystem::is_empty(host.daemon.directory() + "/cache/djinn"));
}

TEST(Spill, a_group_that_cannot_be_written_stays) {
  SpillHost host;
  const uint64_t before = host.sessions_bytes();
  host.make_group(host.client, kFails);
  ASSERT_TRUE(eventually([&] { return host.evictable_bytes() == bytes_of(kFails); }));
  const uint32_t descriptors = host.descriptors_at_rest();
  const uint64_t free = 64 * kMiB - before - bytes_of(kFails);
  EXPECT_EQ(want_refs(host.other, free + kPage), ErrorCode::kOutOfMemory);
  EXPECT_EQ(host.told(ipc::EventKind::kSequenceSpilled), 0u);
  EXPECT_EQ(host.sessions_bytes(), before + bytes_of(kFails));
  EXPECT_EQ(host.evictable_bytes(), 0u) << "it is not tried again at once";
  EXPECT_TRUE(host.descriptors_return_to(descriptors));
}

TEST(Spill, a_worker_that_dies_of_it_loses_nothing) {
  SpillHost host;
  const uint64_t before = host.sessions_bytes();
  host.make_group(host.client, kDies);
  ASSERT_TRUE(eventually([&] { return host.evictable_bytes() == bytes_of(kDies); }));
  const uint64_t free = 64 * kMiB - before - bytes_of(kDies);
  // Its grant is asked for again by each worker, until nobody tries to spill.
  EXPECT_NE(want_refs(host.other, free + kPage), ErrorCode::kOk);
  EXPECT_EQ(host.sessions_bytes(), before + bytes_of(kDies));
  EXPECT_EQ(host.told(ipc::EventKind::kSequenceSpilled), 0u);
}

TEST(Spill, what_is_dropped_on_its_way_leaves_nothing) {
  SpillHost host;
  const uint64_t before = host.sessions_bytes();
  const uint32_t descriptors = host.descriptors_at_rest();
  const SequenceHandle group = host.make_group(host.client, kHangs);
  ASSERT_TRUE(eventually([&] { return host.evictable_bytes() == bytes_of(kHangs); }));
  host.other.submit_write(64 * kMiB - before);
  ASSERT_TRUE(eventually([&] { return host.evictable_bytes() == 0; })) << "it is on its way";
  host.client.ask<ipc::Done>(ipc::DropSequence{group});
  EXPECT_EQ(host.other.completion(), ErrorCode::kOk) << "who waited for it has its memory";
  EXPECT_EQ(host.sessions_bytes(), 64 * kMiB);
  EXPECT_TRUE(host.descriptors_return_to(descriptors));
}

TEST(Spill, what_is_on_disk_counts_against_its_quota_so_that_it_may_return) {
  const uint64_t quota = 30 * kMiB;
  SpillHost host({"--session-quota", std::to_string(quota)});
  TestClient third(host.daemon);
  third.greet();
  const uint64_t bytes = bytes_of(kLarge);  // two thirds of the quota
  const SequenceHandle group = host.make_group(host.client, kLarge);
  ASSERT_TRUE(eventually([&] { return host.evictable_bytes() == bytes; }));
  EXPECT_EQ(want_refs(host.other, 24 * kMiB), ErrorCode::kOk);
  EXPECT_EQ(want_refs(third, 24 * kMiB), ErrorCode::kOk);
  ASSERT_EQ(host.told(ipc::EventKind::kSequenceSpilled), 1u);
  EXPECT_EQ(want_refs(host.client, quota - bytes), ErrorCode::kQuotaExceeded);
  third.disconnect();
  ASSERT_TRUE(eventually([&] { return host.sessions_bytes() < 40 * kMiB; }));
  EXPECT_EQ(use_group(host.client, group), ErrorCode::kOk);
  EXPECT_EQ(want_refs(host.client, quota - bytes), ErrorCode::kQuotaExceeded)
      << "once, and not twice";
  EXPECT_EQ(want_refs(host.client, kMiB), ErrorCode::kOk);
}

TEST(Spill, what_an_ended_session_had_on_disk_counts_no_more_although_its_client_stays) {
  SpillHost host;
  host.make_group(host.client, kLarge);
  ASSERT_TRUE(eventually([&] { return host.evictable_bytes() == bytes_of(kLarge); }));
  EXPECT_EQ(want_refs(host.other, kMore), ErrorCode::kOk);
  ASSERT_EQ(host.told(ipc::EventKind::kSequenceSpilled), 1u);
  const auto users_bytes = [&] {
    return host.observer.ask<ipc::StatusReport>(ipc::GetStatus{}).quota.memory_bytes;
  };
  const uint64_t before = users_bytes();
  const auto sessions = host.observer.ask<ipc::SessionList>(ipc::ListSessions{}).sessions;
  const auto spilled = std::ranges::find(sessions, 1u, &ipc::SessionReport::sequences);
  ASSERT_NE(spilled, sessions.end());
  host.observer.ask<ipc::Done>(ipc::TerminateSession{spilled->session});
  EXPECT_TRUE(eventually([&] { return users_bytes() + bytes_of(kLarge) <= before; }));
  EXPECT_GT(users_bytes(), kMore) << "what the other has counts";
}

TEST(Spill, no_more_than_the_limit_goes_to_disk) {
  const uint64_t group = bytes_of(kLarge);
  for (const bool fits : {false, true}) {
    SpillHost host({"--spill-limit", std::to_string(fits ? group : group - 1)});
    const uint64_t before = host.sessions_bytes();
    host.make_group(host.client, kLarge);
    ASSERT_TRUE(eventually([&] { return host.sessions_bytes() == before + group; }));
    ASSERT_TRUE(eventually([&] { return host.evictable_bytes() == (fits ? group : 0); }));
    EXPECT_EQ(want_refs(host.other, kMore), fits ? ErrorCode::kOk : ErrorCode::kOutOfMemory);
    EXPECT_EQ(host.told(ipc::EventKind::kSequenceSpilled), fits ? 1u : 0u);
  }
}

TEST(Spill, without_a_directory_nothing_is_spilled) {
  SpillHost host({"--spill-directory", "/dev/null/none"});
  const uint64_t before = host.sessions_bytes();
  host.make_group(host.client, kLarge);
  ASSERT_TRUE(eventually([&] { return host.sessions_bytes() == before + bytes_of(kLarge); }));
  EXPECT_EQ(host.evictable_bytes(), 0u);
  EXPECT_EQ(want_refs(host.other, kMore), ErrorCode::kOutOfMemory);
  EXPECT_EQ(host.told(ipc::EventKind::kSequenceSpilled), 0u);
}

}  // namespace
}  // namespace djinn::daemon
