// SPDX-License-Identifier: Apache-2.0

// Which groups count as coming while nobody can move them, because their worker is dead and the
// next one does not have them yet.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>

#include "daemon/djinnd/memory/host_extents.h"
#include "daemon/djinnd/sessions/sequences.h"
#include "daemon/djinnd/testing/no_workers.h"
#include "kernel/base/clock_for_tests.h"
#include "kernel/base/owned_state_for_tests.h"
#include "kernel/gc/session_state.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

// A session with a group. Its worker is dead; the next one is waited for, and does not come.
class SpillSuccessorTest : public ::testing::Test, private Replies {
 protected:
  SpillSuccessorTest() {
    auto fresh = std::make_unique<Session>();
    fresh->id = kSession;
    fresh->domain = kWorker.owner;
    StateForTests::set(fresh->phase, SessionPhase::kLive);
    fresh->memory.state = *pal::make_memfd("state", gc::state_bytes(kGeometry), pal::Seals::kSize);
    state_ =
        *pal::map_shared(fresh->memory.state, gc::state_bytes(kGeometry), pal::Access::kReadWrite);
    EXPECT_TRUE(gc::SessionState::format(state_.bytes(), kGeometry));
    session_ = fresh.get();
    sessions_.add(std::move(fresh));
    SequenceGroup& group = **session_->sequences.make({});
    StateForTests::set(group.phase, GroupPhase::kLive);
    ipc::GrantRequest asked;
    asked.session = kSession;
    asked.sequence = group.handle;
    asked.kind = ipc::GrantKind::kSequence;
    asked.bytes = kGroupBytes;
    sequences_.on_grant_request(kWorker, asked);
    EXPECT_EQ(group.granted_bytes(), kGroupBytes);
    EXPECT_TRUE(workers_.domains.need(kWorker, [](WorkerKey) { return true; }).ok());
  }

  [[nodiscard]] uint64_t soon() const {
    EXPECT_EQ(sequences_.spill().evictable_bytes(kHostDevice), 0u) << "there is no worker";
    return sequences_.spill().evictable_soon_bytes(kHostDevice);
  }

  static constexpr uint64_t kGroupBytes = 1 << 20;
  static constexpr gc::StateGeometry kGeometry{16, 4};
  static constexpr WorkerKey kWorker{Owner::of_user(1000), kHostDevice};
  static constexpr SessionId kSession{5};

  Loop loop_;
  ClockByHand clock_;
  const Quotas quotas_;
  WorkQueue work_{loop_, "work"};
  HostExtents extents_{work_};
  const Devices devices_{std::array{DeviceMemory{kHostDevice, 16 * kGroupBytes, extents_}},
                         16 * kGroupBytes, quotas_};
  SessionTable sessions_;
  Session* session_ = nullptr;
  pal::Mapping state_;
  const LaneSteps lane_steps_{clock_, sessions_};
  testing::NoWorkers workers_{loop_, clock_};
  Deaths deaths_{clock_, workers_.domains, sessions_};
  Sequences sequences_{
      clock_, devices_,  workers_.domains, workers_.events, workers_.refusals,           *this,
      work_,  sessions_, lane_steps_,      deaths_,         {"/nowhere", 0, kGroupBytes}};

 private:
  void reply(const Waiter&, ipc::DaemonReply, std::span<const int>) override {}
  void owe(const Waiter&, std::function<ipc::DaemonReply()>) override {}
};

TEST_F(SpillSuccessorTest, a_group_of_a_dead_worker_is_to_come_until_it_is_late) {
  EXPECT_EQ(soon(), kGroupBytes);
  clock_.now_ns += Deaths::kSuccessorMs * kNsPerMs - 1;
  EXPECT_EQ(soon(), kGroupBytes);
  clock_.now_ns += 1;
  EXPECT_EQ(soon(), 0u);
}

TEST_F(SpillSuccessorTest, so_is_one_whose_session_has_not_been_told_of_the_death_yet) {
  session_->attached = true;
  clock_.now_ns += Deaths::kSuccessorMs * kNsPerMs;  // since the death before
  EXPECT_EQ(soon(), kGroupBytes);
}

TEST_F(SpillSuccessorTest, nothing_comes_of_a_worker_that_is_not_restarted) {
  workers_.domains.find(kWorker)->retire();
  EXPECT_EQ(soon(), 0u);
}

TEST_F(SpillSuccessorTest, nothing_comes_of_a_session_that_is_held_back_for_its_own_deaths) {
  session_->quarantine.note_death(false, clock_.now_ns);
  EXPECT_EQ(soon(), kGroupBytes) << "a first death holds nobody back";
  session_->quarantine.note_death(false, clock_.now_ns);
  EXPECT_EQ(soon(), 0u);
}

TEST_F(SpillSuccessorTest, nothing_comes_of_a_newcomer_whose_users_others_end_workers) {
  deaths_.note_shared(kWorker);
  deaths_.note_shared(kWorker);
  EXPECT_EQ(soon(), 0u);
}

TEST_F(SpillSuccessorTest, nothing_comes_of_a_session_that_has_work) {
  gc::FaultPoints faults;
  auto state = *gc::SessionState::open(state_.bytes(), kGeometry, faults);
  state.begin();
  EXPECT_EQ(soon(), 0u);
}

TEST_F(SpillSuccessorTest, nothing_comes_for_which_the_disk_has_no_room) {
  sequences_.spill().set_limit(kGroupBytes - 1);
  EXPECT_EQ(soon(), 0u);
}

}  // namespace
}  // namespace djinn::daemon
