// SPDX-License-Identifier: Apache-2.0

// What happens while the memory of a spilled group is being freed: the queue that does it is held
// up, and there is no worker but what the test says in its name.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <future>
#include <vector>

#include "daemon/djinnd/memory/host_extents.h"
#include "daemon/djinnd/sessions/sequences.h"
#include "daemon/djinnd/testing/fake_reclaim.h"
#include "daemon/djinnd/testing/no_workers.h"
#include "daemon/djinnd/testing/run_until.h"
#include "kernel/base/owned_state_for_tests.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr uint64_t kDevice = 16 * kBytes;

class SpillFreeingTest : public ::testing::Test, private Replies {
 protected:
  SpillFreeingTest() {
    auto fresh = std::make_unique<Session>();
    fresh->id = kSession;
    fresh->domain = kWorker.owner;
    fresh->memory.state = *pal::make_memfd("state", kBytes, pal::Seals::kShared);
    sessions_.add(std::move(fresh));
    SequenceGroup& made = **session().sequences.make({});
    handle_ = made.handle;
    StateForTests::enter(made.phase, GroupPhase::kLive);
    made.extent = *pal::make_memfd("group", kBytes, pal::Seals::kShared);
    EXPECT_TRUE(pal::commit_ahead(made.extent, 0, kBytes));
    sequences_.on_grant_request(kWorker, request(1));
    EXPECT_EQ(made.granted_bytes(), kBytes);
    memory_work_.run(
        [free = held_up_.get_future().share()] {
          free.wait();
          return true;
        },
        [](bool) {});
  }
  ~SpillFreeingTest() override { let_go(); }

  // The worker has written the group.
  bool spill() {
    StateForTests::enter(group().place, GroupPlace::kSpilling);
    group().spill_file = *pal::make_memfd("file", kBytes, pal::Seals::kShared);
    const ipc::SequenceSpilled said{kSession, handle_, kBytes, ErrorCode::kOk, {}};
    return sequences_.on_sequence_spilled(kWorker, said);
  }
  // Frees what waits for it, and runs the loop until that is done.
  void free_all() {
    let_go();
    bool done = false;
    memory_work_.close({}, [&] { done = true; });
    testing::run_until(loop_, "all is freed", [&] { return done; });
  }
  void let_go() {
    if (!std::exchange(let_go_, true)) held_up_.set_value();
  }

  [[nodiscard]] ipc::GrantRequest request(uint64_t number) const {
    ipc::GrantRequest asked;
    asked.request = number;
    asked.session = kSession;
    asked.sequence = handle_;
    asked.kind = ipc::GrantKind::kSequence;
    asked.bytes = kBytes;
    return asked;
  }
  Session& session() { return *sessions_.find(kSession); }
  SequenceGroup& group() { return *session().sequences.lookup(handle_); }
  uint64_t committed_bytes() {
    struct stat info {};
    EXPECT_EQ(::fstat(group().extent.get(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  }
  static Memory::Holder holder() { return Memory::of_session(kSession); }

  static constexpr SessionId kSession{5};
  static constexpr WorkerKey kWorker{Owner::of_user(0), kHostDevice};
  SequenceHandle handle_;
  Loop loop_;
  const SystemClock clock_;
  const Quotas quotas_;
  WorkQueue memory_work_{loop_, "memory"};
  HostExtents extents_{memory_work_};
  const Devices devices_{std::array{DeviceMemory{kHostDevice, kDevice, extents_}}, kDevice,
                         quotas_};
  Memory& memory_ = devices_.first();
  SessionTable sessions_;
  const LaneSteps lane_steps_{clock_, sessions_};

 private:
  void reply(const Waiter&, ipc::DaemonReply, std::span<const int>) override {}
  void owe(const Waiter&, std::function<ipc::DaemonReply()>) override {}

  std::promise<void> held_up_;
  bool let_go_ = false;
  testing::NoWorkers workers_{loop_, clock_};
  WorkQueue file_work_{loop_, "files"};
  const Deaths deaths_{clock_, workers_.domains, sessions_};

 protected:
  Sequences sequences_{
      clock_,     devices_,  workers_.domains, workers_.events, workers_.refusals,       *this,
      file_work_, sessions_, lane_steps_,      deaths_,         {"/nowhere", 0, kDevice}};
};

TEST_F(SpillFreeingTest, memory_counts_until_it_is_free_and_is_known_to_be_coming) {
  ASSERT_TRUE(spill());
  EXPECT_EQ(memory_.granted_bytes(), kBytes);
  EXPECT_EQ(group().leaving_bytes(), kBytes);
  EXPECT_EQ(sequences_.spill().spilled_bytes(), kBytes);
  StateForTests::enter(group().phase, GroupPhase::kDropping);
  EXPECT_EQ(group().leaving_bytes(), kBytes) << "once, and not twice";
  free_all();
  EXPECT_EQ(memory_.granted_bytes(), 0u);
  EXPECT_EQ(group().leaving_bytes(), 0u);
  EXPECT_EQ(committed_bytes(), 0u);
}

TEST_F(SpillFreeingTest, who_wants_the_group_back_waits_until_its_memory_is_free) {
  ASSERT_TRUE(spill());
  sequences_.on_grant_request(kWorker, request(7));
  sequences_.on_grant_request(kWorker, request(8));
  EXPECT_EQ(group().asks.size(), 2u);
  EXPECT_EQ(memory_.granted_bytes(), kBytes) << "what is being freed";
  free_all();
  EXPECT_TRUE(group().asks.empty());
  EXPECT_EQ(group().granted_bytes(), 2 * kBytes);
  sequences_.on_grant_request(kWorker, request(9));
  EXPECT_EQ(group().granted_bytes(), 3 * kBytes) << "nothing is being freed";
}

// It needs no memory to be back, and holds none of what is still being freed.
TEST_F(SpillFreeingTest, a_group_without_tokens_may_be_back_before_its_memory_is_free) {
  ASSERT_TRUE(spill());
  sequences_.on_sequence_restored(kWorker, ipc::SequenceRestored{kSession, handle_});
  EXPECT_TRUE(group().place == GroupPlace::kMemory);
  EXPECT_EQ(group().held_bytes(), 0u);
  sequences_.on_grant_request(kWorker, request(7));
  EXPECT_EQ(group().asks.size(), 1u);
  sequences_.worker_died(session(), {});
  free_all();
  EXPECT_EQ(memory_.granted_bytes(), 0u);
  EXPECT_TRUE(group().asks.empty());
}

TEST_F(SpillFreeingTest, memory_that_cannot_be_freed_counts_and_who_waits_for_it_is_told) {
  Status told;
  bool answered = false;
  testing::FakeReclaim reclaim;
  reclaim.has_room = [&](uint64_t) { return group().leaving_bytes() > 0; };
  memory_.set_reclaim(reclaim);
  group().extent = *pal::make_memfd("sealed", kBytes, pal::Seals::kWrite);
  ASSERT_TRUE(spill());
  memory_.request(Memory::of_session(SessionId{6}), kDevice, [&](const Status& status) {
    answered = true;
    told = status;
  });
  EXPECT_FALSE(answered) << "it may come free";
  free_all();
  ASSERT_TRUE(answered);
  EXPECT_EQ(told.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(memory_.granted_bytes(), kBytes);
  EXPECT_EQ(group().leaving_bytes(), 0u);
}

TEST_F(SpillFreeingTest, what_a_dead_worker_asked_for_is_forgotten_and_nothing_is_freed_twice) {
  ASSERT_TRUE(spill());
  sequences_.on_grant_request(kWorker, request(7));
  EXPECT_EQ(group().asks.size(), 1u);
  sequences_.worker_died(session(), {});
  free_all();
  EXPECT_TRUE(group().asks.empty());
  EXPECT_EQ(memory_.granted_bytes(), 0u);
  EXPECT_TRUE(memory_.check().ok());
}

TEST_F(SpillFreeingTest, what_was_granted_for_the_return_is_freed_when_the_worker_dies) {
  ASSERT_TRUE(spill());
  free_all();
  sequences_.on_grant_request(kWorker, request(7));
  EXPECT_EQ(group().granted_bytes(), kBytes);
  ASSERT_TRUE(pal::commit_ahead(group().extent, 0, kBytes));
  sequences_.worker_died(session(), {});
  EXPECT_EQ(group().leaving_bytes(), kBytes);
  free_all();
  EXPECT_EQ(memory_.granted_bytes(), 0u);
  EXPECT_EQ(committed_bytes(), 0u);
}

TEST_F(SpillFreeingTest, a_session_that_ends_meanwhile_keeps_its_books) {
  ASSERT_TRUE(spill());
  sessions_.erase(kSession);
  memory_.release_all(holder());
  free_all();
  EXPECT_EQ(memory_.granted_bytes(), 0u);
  EXPECT_TRUE(memory_.check().ok());
}

}  // namespace
}  // namespace djinn::daemon
