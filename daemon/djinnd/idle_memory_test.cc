// SPDX-License-Identifier: Apache-2.0

// What sessions' refs took and take no more, and what runs have left of a lane's heap: djinnd as a
// process, with a worker without kernels.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "daemon/djinnd/testing/as_nobody.h"
#include "daemon/djinnd/testing/contested_memory.h"
#include "daemon/djinnd/testing/programs.h"

namespace djinn::daemon {
namespace {

using testing::eventually;
using testing::TestClient;
using testing::want_refs;

using testing::kMiB;
constexpr uint64_t kLarge = 20 * kMiB;
// What they make the worker do when it is to trim, fake_worker.cc says.
constexpr uint32_t kDiesTwice = 102;
constexpr uint32_t kHangs = 200;
constexpr uint32_t kFloods = 201;
constexpr uint32_t kRepeats = 202;

struct IdleMemoryHost : testing::ContestedMemory {
  using ContestedMemory::ContestedMemory;
  [[nodiscard]] uint64_t sessions_bytes() { return pool().reserved_bytes; }
  [[nodiscard]] bool has_killed_a_worker() {
    const auto list = observer.ask<ipc::EventList>(ipc::FollowEvents{0, false});
    return std::ranges::any_of(
        list.events, [](const auto& event) { return event.kind == ipc::EventKind::kWorkerKilled; });
  }
};

ErrorCode release(TestClient& client, uint32_t nth) {
  client.submit_release(nth);
  return client.completion();
}

// A worker that misbehaves so when it is to trim is killed, and who waits is served by the next.
void expect_replaced(IdleMemoryHost& host, uint32_t misbehaves) {
  ASSERT_EQ(want_refs(host.client, 2 * kLarge), ErrorCode::kOk);
  ASSERT_EQ(release(host.client, 1), ErrorCode::kOk);
  host.client.let_workers_die(misbehaves);
  host.other.submit_write(2 * kLarge);
  ASSERT_TRUE(eventually([&] { return host.has_killed_a_worker(); }));
  host.client.let_workers_die(0);
  EXPECT_EQ(host.other.completion(), ErrorCode::kOk);
}

TEST(IdleMemory, what_refs_take_no_more_is_anothers_who_asks) {
  IdleMemoryHost host;
  const uint64_t before = host.sessions_bytes();
  ASSERT_EQ(want_refs(host.client, 2 * kLarge), ErrorCode::kOk);
  EXPECT_EQ(host.pool().evictable_bytes, 0u);
  EXPECT_EQ(want_refs(host.other, 2 * kLarge), ErrorCode::kOutOfMemory) << "it is in use";
  ASSERT_EQ(release(host.client, 1), ErrorCode::kOk);
  EXPECT_EQ(host.sessions_bytes(), before + 2 * kLarge) << "for whoever uses it again";
  EXPECT_EQ(host.pool().cached_bytes, 2 * kLarge);
  EXPECT_EQ(host.pool().evictable_bytes, 2 * kLarge);
  EXPECT_EQ(want_refs(host.other, 2 * kLarge), ErrorCode::kOk);
  EXPECT_EQ(host.sessions_bytes(), before + 2 * kLarge);
  EXPECT_EQ(want_refs(host.client, 2 * kLarge), ErrorCode::kOutOfMemory);
  ASSERT_EQ(release(host.other, 2), ErrorCode::kOk);
  EXPECT_EQ(want_refs(host.client, 2 * kLarge), ErrorCode::kOk);
}

TEST(IdleMemory, what_lies_between_refs_goes_and_they_stay) {
  IdleMemoryHost host;
  for (const uint64_t bytes : {kMiB, kLarge, kMiB, kLarge}) {
    ASSERT_EQ(want_refs(host.client, bytes), ErrorCode::kOk);
  }
  ASSERT_EQ(release(host.client, 2), ErrorCode::kOk);
  ASSERT_EQ(release(host.client, 4), ErrorCode::kOk);
  EXPECT_EQ(want_refs(host.other, 2 * kLarge), ErrorCode::kOk);
  EXPECT_EQ(want_refs(host.client, 2 * kLarge), ErrorCode::kOutOfMemory);
  EXPECT_EQ(release(host.client, 1), ErrorCode::kOk);
  EXPECT_EQ(release(host.client, 3), ErrorCode::kOk);
}

TEST(IdleMemory, a_quota_has_room_for_what_refs_take_no_more) {
  IdleMemoryHost host({"--session-quota", std::to_string(32 * kMiB)});
  const uint64_t before = host.sessions_bytes();
  ASSERT_EQ(want_refs(host.client, kLarge), ErrorCode::kOk);
  ASSERT_EQ(release(host.client, 1), ErrorCode::kOk);
  const ipc::SequenceGeometry group{1, 10, 8, 64, DType::kFloat32, 256, 2};
  const auto made = host.client.ask<ipc::SequenceMade>(ipc::MakeSequence{group});
  host.client.submit_reorder(made.sequence);
  EXPECT_EQ(host.client.completion(), ErrorCode::kOk);
  // What is granted ahead may or may not have come: the page of the group's tokens.
  const uint64_t more = host.sessions_bytes() - before;
  EXPECT_GE(more, kLarge) << "the group has all at once";
  EXPECT_LE(more, kLarge + 4096) << "and refs nothing";
}

TEST(IdleMemory, a_session_has_what_it_needs_in_one_piece_of_what_it_has_in_others) {
  IdleMemoryHost host;
  for (const uint64_t bytes : {kLarge, kMiB, kLarge, kMiB}) {
    ASSERT_EQ(want_refs(host.client, bytes), ErrorCode::kOk);
  }
  ASSERT_EQ(release(host.client, 1), ErrorCode::kOk);
  EXPECT_EQ(want_refs(host.client, kLarge + kMiB), ErrorCode::kOk) << "behind the others";
  EXPECT_EQ(want_refs(host.client, kLarge), ErrorCode::kOutOfMemory);
}

TEST(IdleMemory, who_runs_nothing_for_a_while_gives_it_back_where_memory_gets_short) {
  IdleMemoryHost host({"--spill-after", "100ms"});
  const uint64_t before = host.sessions_bytes();
  ASSERT_EQ(want_refs(host.client, 50 * kMiB), ErrorCode::kOk) << "over four fifths, with the rest";
  ASSERT_EQ(release(host.client, 1), ErrorCode::kOk);
  EXPECT_TRUE(eventually([&] { return host.sessions_bytes() == before; }));
}

TEST(IdleMemory, a_heap_is_kept_for_the_next_run_and_is_anothers_who_asks) {
  IdleMemoryHost host;
  const auto lanes = [&] { return host.pool(ipc::MemoryPool::kLanes); };
  const auto run = [&](TestClient& client) {
    client.submit_graph(testing::graph_of("fake::take_heap", {2 * kLarge}));
    return client.completion();
  };
  ASSERT_EQ(run(host.client), ErrorCode::kOk);
  EXPECT_EQ(lanes().reserved_bytes, 2 * kLarge);
  EXPECT_EQ(lanes().cached_bytes, 2 * kLarge);
  EXPECT_EQ(lanes().evictable_bytes, 2 * kLarge);
  EXPECT_EQ(host.pool().cached_bytes, 0u) << "of the heap nothing is counted twice";
  EXPECT_EQ(want_refs(host.other, 2 * kLarge), ErrorCode::kOk);
  EXPECT_EQ(lanes().reserved_bytes, 0u);
  EXPECT_EQ(run(host.client), ErrorCode::kOutOfMemory) << "refs in use do not give way";
  ASSERT_EQ(release(host.other, 1), ErrorCode::kOk);
  EXPECT_EQ(run(host.client), ErrorCode::kOk);
  EXPECT_EQ(lanes().cached_bytes, 2 * kLarge);
}

TEST(IdleMemory, a_heap_of_two_sessions_is_counted_once_and_goes_with_the_last) {
  IdleMemoryHost host;
  const auto lanes = [&] { return host.pool(ipc::MemoryPool::kLanes); };
  for (TestClient* client : {&host.client, &host.other}) {
    client->submit_graph(testing::graph_of("fake::take_heap", {kLarge}));
    ASSERT_EQ(client->completion(), ErrorCode::kOk);
  }
  EXPECT_EQ(lanes().cached_bytes, kLarge);
  host.client.disconnect();
  host.other.disconnect();
  EXPECT_TRUE(eventually([&] { return lanes().reserved_bytes == 0; }));
}

TEST(IdleMemory, who_runs_nothing_for_a_while_leaves_its_heap_where_memory_gets_short) {
  IdleMemoryHost host({"--spill-after", "100ms"});
  const auto lanes = [&] { return host.pool(ipc::MemoryPool::kLanes); };
  host.client.submit_graph(testing::graph_of("fake::take_heap", {60 * kMiB}));
  ASSERT_EQ(host.client.completion(), ErrorCode::kOk);
  EXPECT_TRUE(eventually([&] { return lanes().reserved_bytes == 0; }));
}

// Between its sessions a user keeps the worker, with its slab.
struct LeftOverHost {
  explicit LeftOverHost(std::vector<std::string> more = {})
      : daemon(
            [&] {
              more.insert(more.begin(), {"--memory", "64MiB"});
              return more;
            }(),
            {"--socket-group", "root"}),
        observer(daemon) {
    std::filesystem::permissions(daemon.directory(), std::filesystem::perms::all);
    observer.greet(true);
  }
  ipc::MemoryReport lanes() {
    const auto list = observer.ask<ipc::MemoryList>(ipc::ListMemory{});
    return *std::ranges::find(list.pools, ipc::MemoryPool::kLanes, &ipc::MemoryReport::pool);
  }
  // In a session of its own: what a graph of another user's ends with.
  [[nodiscard]] bool nobody_runs(const std::string& op, uint64_t number = 0,
                                 uint64_t staging_bytes = 1 << 16) const {
    return testing::as_nobody([&] {
             TestClient nobody(daemon);
             nobody.greet(false, staging_bytes);
             nobody.submit_graph(testing::graph_of(op, {number}));
             return nobody.completion() == ErrorCode::kOk ? 0 : 1;
           }) == 0;
  }

  testing::TestDaemon daemon;
  TestClient observer;
};

TEST(IdleMemory, what_the_worker_of_a_user_without_sessions_has_is_anothers_who_asks) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  LeftOverHost host;
  ASSERT_TRUE(host.nobody_runs("fake::take_slab", 2 * kLarge));
  TestClient client(host.daemon);
  client.greet();
  ASSERT_TRUE(eventually([&] { return host.lanes().evictable_bytes == 2 * kLarge; }));
  EXPECT_EQ(host.lanes().cached_bytes, 2 * kLarge);
  EXPECT_EQ(want_refs(client, 2 * kLarge), ErrorCode::kOk);
  EXPECT_EQ(host.lanes().reserved_bytes, 0u);
  EXPECT_TRUE(host.nobody_runs("fake::nothing")) << "by the next worker";
}

// Its memory may be what a session of the same user waits for.
TEST(IdleMemory, who_comes_while_their_worker_ends_is_served_by_the_next) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  LeftOverHost host;
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(host.nobody_runs("fake::take_slab", 2 * kLarge));
    TestClient client(host.daemon);
    client.greet();
    client.submit_write(2 * kLarge);
    EXPECT_TRUE(host.nobody_runs("fake::nothing"));
    const ErrorCode wrote = client.completion();  // the other was faster, perhaps
    EXPECT_TRUE(wrote == ErrorCode::kOk || wrote == ErrorCode::kOutOfMemory) << name_of(wrote);
    client.disconnect();
    ASSERT_TRUE(eventually([&] {
      const auto status = host.observer.ask<ipc::StatusReport>(ipc::GetStatus{});
      return status.memory_sessions_bytes == 0;
    }));
  }
}

TEST(IdleMemory, a_users_own_left_over_worker_gives_way_to_their_quota) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: only the service reads a configuration";
  char root[] = "/tmp/djinnd-config-XXXXXX";
  ASSERT_NE(::mkdtemp(root), nullptr);
  testing::write_config(root, "[user.nobody]\nmemory_quota = \"48MiB\"\n");
  {
    LeftOverHost host({"--root", root});
    ASSERT_TRUE(host.nobody_runs("fake::take_slab", 2 * kLarge));
    ASSERT_TRUE(eventually([&] { return host.lanes().evictable_bytes == 2 * kLarge; }));
    EXPECT_TRUE(host.nobody_runs("fake::nothing", 0, 12 * kMiB));
  }
  std::filesystem::remove_all(root);
}

TEST(IdleMemory, the_slab_of_a_session_is_not_anothers) {
  IdleMemoryHost host;
  const auto lanes = [&] { return host.pool(ipc::MemoryPool::kLanes); };
  host.client.submit_graph(testing::graph_of("fake::take_slab", {2 * kLarge}));
  ASSERT_EQ(host.client.completion(), ErrorCode::kOk);
  EXPECT_EQ(lanes().evictable_bytes, 0u);
  EXPECT_EQ(want_refs(host.other, 2 * kLarge), ErrorCode::kOutOfMemory);
  EXPECT_EQ(lanes().reserved_bytes, 2 * kLarge);
}

TEST(IdleMemory, a_worker_that_serves_nobody_ends_where_nearly_all_is_granted) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  LeftOverHost host;
  ASSERT_TRUE(host.nobody_runs("fake::take_slab", 2 * kLarge));
  ASSERT_TRUE(eventually([&] { return host.lanes().evictable_bytes == 2 * kLarge; }));
  TestClient client(host.daemon);
  client.greet();
  EXPECT_EQ(want_refs(client, kLarge + kMiB), ErrorCode::kOk);
  EXPECT_TRUE(eventually([&] { return host.lanes().reserved_bytes == 0; }));
}

TEST(IdleMemory, a_worker_that_dies_when_it_is_asked_costs_no_memory) {
  IdleMemoryHost host;
  const uint64_t before = host.sessions_bytes();
  ASSERT_EQ(want_refs(host.client, 2 * kLarge), ErrorCode::kOk);
  ASSERT_EQ(release(host.client, 1), ErrorCode::kOk);
  host.client.let_workers_die(kDiesTwice);
  EXPECT_EQ(want_refs(host.other, 2 * kLarge), ErrorCode::kOk);
  EXPECT_EQ(host.sessions_bytes(), before + 2 * kLarge);
  host.client.disconnect();
  host.other.disconnect();
  EXPECT_TRUE(eventually([&] { return host.sessions_bytes() == 0; }));
}

// What djinnd asks it eight times a timeout must cost it next to nothing (OwnTime), in slow builds,
// too.
TEST(IdleMemory, a_worker_that_does_not_answer_is_replaced) {
  IdleMemoryHost host({"--hang-timeout", "1s"});
  expect_replaced(host, kHangs);
}

// While it does not give back what others wait for, they and it wait; so it could have djinnd go
// through ever more requests.
TEST(IdleMemory, of_a_worker_that_asks_without_end_so_many_requests_wait) {
  IdleMemoryHost host({"--hang-timeout", "60s"});
  ASSERT_EQ(want_refs(host.client, 2 * kLarge), ErrorCode::kOk);
  ASSERT_EQ(release(host.client, 1), ErrorCode::kOk);
  host.client.let_workers_die(kFloods);
  host.other.submit_write(2 * kLarge);
  EXPECT_TRUE(eventually([&] { return host.client.told_to_workers() == 0; }));
}

TEST(IdleMemory, a_worker_that_asks_twice_by_one_number_is_replaced) {
  IdleMemoryHost host({"--hang-timeout", "60s"});
  expect_replaced(host, kRepeats);
}

TEST(IdleMemory, a_client_that_leaves_meanwhile_is_no_loss) {
  IdleMemoryHost host({"--hang-timeout", "60s"});
  ASSERT_EQ(want_refs(host.client, 2 * kLarge), ErrorCode::kOk);
  ASSERT_EQ(release(host.client, 1), ErrorCode::kOk);
  host.client.let_workers_die(kHangs);
  host.other.submit_write(2 * kLarge);
  host.client.disconnect();
  EXPECT_EQ(host.other.completion(), ErrorCode::kOk);
  host.other.disconnect();
  EXPECT_TRUE(eventually([&] { return host.sessions_bytes() == 0; }));
}

}  // namespace
}  // namespace djinn::daemon
