// SPDX-License-Identifier: Apache-2.0

// Groups whose extents cannot be made, or are made late. No worker is told: there is none.
#include "daemon/djinnd/sessions/sequences.h"

#include <gtest/gtest.h>

#include <vector>

#include "daemon/djinnd/testing/no_workers.h"
#include "daemon/djinnd/testing/run_until.h"
#include "daemon/djinnd/testing/two_devices.h"
#include "ipc/limits.h"
#include "kernel/base/owned_state_for_tests.h"
#include "kernel/pal/process_state.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kDeviceBytes = 1 << 20;
constexpr SessionId kSession{5};
constexpr DeviceId kOther{DeviceKind::kFake, 0};
constexpr ipc::SequenceGeometry kGeometry{1, 1, 1, 64, DType::kFloat32, 16};
// It could grow to more than a third of what a session's groups may, and less than a half.
constexpr ipc::SequenceGeometry kLarge{32, 12, 1, 64, DType::kFloat32, limits::kSequenceTokens};

class SequencesTest : public ::testing::Test, private Replies {
 protected:
  SequencesTest() {
    auto fresh = std::make_unique<Session>();
    fresh->id = kSession;
    StateForTests::set(fresh->phase, SessionPhase::kLive);
    sessions_.add(std::move(fresh));
    free_all();  // the queues have their threads
  }

  Session& session() { return *sessions_.find(kSession); }
  void make_group(uint32_t number, const ipc::SequenceGeometry& geometry = kGeometry) {
    sequences_.make(session(), number, geometry);
  }
  void free_all() {
    int done = 0;
    two_.work.close({}, [&] { ++done; });
    file_work_.close({}, [&] { ++done; });
    testing::run_until(loop_, "all is freed", [&] { return done == 2; });
  }
  void expect_refused(uint32_t number, ErrorCode code) {
    ASSERT_EQ(replies_.size(), 1u);
    EXPECT_EQ(replies_[0].number, number);
    const auto* const failed = std::get_if<ipc::Failed>(&replies_[0].body);
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(failed->code, code);
    replies_.clear();
  }

  Loop loop_;
  const SystemClock clock_;
  testing::TwoDevices two_{loop_, kOther, kDeviceBytes};
  testing::OwnExtents& extents_ = two_.of_host;
  testing::OwnExtents& others_ = two_.of_other;
  Memory& memory_ = two_.devices.first();
  WorkQueue file_work_{loop_, "files"};
  SessionTable sessions_;
  const LaneSteps lane_steps_{clock_, sessions_};
  std::vector<ipc::DaemonReply> replies_;

 private:
  void reply(const Waiter&, ipc::DaemonReply reply, std::span<const int>) override {
    replies_.push_back(std::move(reply));
  }
  void owe(const Waiter&, std::function<ipc::DaemonReply()>) override {}

  testing::NoWorkers workers_{loop_, clock_};
  const Deaths deaths_{clock_, workers_.domains, sessions_};

 protected:
  Sequences sequences_{clock_,
                       two_.devices,
                       workers_.domains,
                       workers_.events,
                       workers_.refusals,
                       *this,
                       file_work_,
                       sessions_,
                       lane_steps_,
                       deaths_,
                       {"/nowhere", 0, kDeviceBytes}};
};

TEST_F(SequencesTest, a_group_whose_extent_cannot_be_made_is_refused_and_takes_no_slot) {
  const pal::ProcessState before = pal::read_process_state();
  extents_.fail_at(1);
  make_group(7);
  expect_refused(7, ErrorCode::kOutOfMemory);
  EXPECT_EQ(session().sequences.size(), 0u);
  EXPECT_EQ(memory_.granted_bytes(), 0u);
  EXPECT_EQ(pal::read_process_state(), before);
  make_group(8);
  EXPECT_EQ(session().sequences.size(), 1u);
  EXPECT_TRUE(replies_.empty()) << "the worker has not taken it in";
}

TEST_F(SequencesTest, extents_that_come_late_are_groups_in_the_order_of_the_requests) {
  extents_.hold();
  make_group(7);
  make_group(8);
  EXPECT_EQ(session().sequences.size(), 0u);
  extents_.tell_all();
  ASSERT_EQ(session().sequences.size(), 2u);
  EXPECT_EQ(session().sequences.all().at(0).waiter.number, 7u);
  EXPECT_EQ(session().sequences.all().at(1).waiter.number, 8u);
}

TEST_F(SequencesTest, an_extent_of_a_session_that_has_left_is_freed) {
  const pal::ProcessState before = pal::read_process_state();
  for (const bool is_gone : {false, true}) {
    extents_.hold();
    make_group(7);
    if (is_gone) {
      sessions_.erase(kSession);
    } else {
      StateForTests::set(session().phase, SessionPhase::kLeaving);
    }
    extents_.tell_all();
    free_all();
    EXPECT_EQ(pal::read_process_state(), before);
    EXPECT_TRUE(replies_.empty()) << "nobody is there to be told";
    EXPECT_EQ(memory_.granted_bytes(), 0u);
  }
}

TEST_F(SequencesTest, a_group_is_made_and_freed_by_the_source_of_its_device) {
  session().device = kOther;
  make_group(7);
  EXPECT_EQ(others_.held(), 1u);
  SequenceGroup& group = session().sequences.all().at(0);
  StateForTests::set(group.phase, GroupPhase::kLive);
  sequences_.drop(session(), 8, group.handle);
  free_all();
  EXPECT_EQ(others_.held(), 0u);
  session().device = kHostDevice;
  make_group(8);
  EXPECT_EQ(extents_.held(), 1u);
  EXPECT_EQ(others_.held(), 0u);
}

TEST_F(SequencesTest, one_that_comes_late_is_freed_by_the_source_of_its_device) {
  session().device = kOther;
  others_.hold();
  make_group(7);
  sessions_.erase(kSession);
  others_.tell_all();
  EXPECT_EQ(others_.held(), 0u);
}

TEST_F(SequencesTest, an_extent_for_which_there_is_no_slot_is_freed) {
  for (uint32_t i = 0; i < limits::kSequences; ++i) make_group(i + 1);
  free_all();
  const pal::ProcessState before = pal::read_process_state();
  make_group(100);
  expect_refused(100, ErrorCode::kLimitExceeded);
  free_all();
  EXPECT_EQ(pal::read_process_state(), before);
}

TEST_F(SequencesTest, the_groups_of_a_session_have_a_limit_of_addresses_together) {
  make_group(1, kLarge);
  make_group(2, kLarge);
  EXPECT_EQ(session().sequences.size(), 2u);
  make_group(3, kLarge);
  expect_refused(3, ErrorCode::kLimitExceeded);
  EXPECT_EQ(session().sequences.size(), 2u);
  ipc::SequenceGeometry too_large = kLarge;
  too_large.layers = limits::kLayers;
  make_group(4, too_large);
  expect_refused(4, ErrorCode::kLimitExceeded);
  make_group(5);
  EXPECT_EQ(session().sequences.size(), 3u) << "a small one fits beside them";
}

TEST_F(SequencesTest, groups_that_are_asked_for_at_once_have_that_limit_too) {
  const pal::ProcessState before = pal::read_process_state();
  extents_.hold();
  for (uint32_t number = 1; number <= 3; ++number) make_group(number, kLarge);
  EXPECT_TRUE(replies_.empty());
  extents_.tell_all();
  expect_refused(3, ErrorCode::kLimitExceeded);
  EXPECT_EQ(session().sequences.size(), 2u);
  for (auto& [index, group] : session().sequences.all()) group.extent = Fd();
  free_all();
  EXPECT_EQ(pal::read_process_state(), before) << "the third's extent is gone";
}

}  // namespace
}  // namespace djinn::daemon
