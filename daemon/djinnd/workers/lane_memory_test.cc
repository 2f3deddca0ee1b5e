// SPDX-License-Identifier: Apache-2.0

// The books of a lane's memory, with a source that makes no slab, or makes it late. No worker is
// told: there is none.
#include "daemon/djinnd/workers/lane_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "daemon/djinnd/testing/no_workers.h"
#include "daemon/djinnd/testing/two_devices.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr uint64_t kDevice = 16 * kBytes;
constexpr Owner kAnn = Owner::of_user(1000);
constexpr WorkerKey kWorker{kAnn, kHostDevice};
constexpr WorkerKey kOther{kAnn, {DeviceKind::kCuda, 0}};

class LaneMemoryTest : public ::testing::Test {
 protected:
  static ipc::GrantRequest request(ipc::GrantKind kind, uint64_t bytes) {
    ipc::GrantRequest asked;
    asked.request = 7;
    asked.kind = kind;
    asked.bytes = bytes;
    return asked;
  }
  void ask_for_slab(uint64_t bytes) {
    lanes_.on_grant_request(kWorker, request(ipc::GrantKind::kSlab, bytes));
  }
  bool give_back_slab(uint64_t bytes) {
    return lanes_.on_grant_return(kWorker, {ipc::GrantKind::kSlab, {}, {}, bytes});
  }
  void expect_held(uint64_t bytes) {
    EXPECT_EQ(memory_.granted_bytes(), bytes);
    EXPECT_EQ(memory_.held_by_user(kAnn), bytes);
    EXPECT_TRUE(memory_.check().ok());
  }

  Loop loop_;
  const SystemClock clock_;
  testing::TwoDevices two_{loop_, kOther.device, kDevice};
  testing::OwnExtents& extents_ = two_.of_host;
  testing::OwnExtents& others_ = two_.of_other;
  const Devices& devices_ = two_.devices;
  Memory& memory_ = devices_.first();
  testing::NoWorkers workers_{loop_, clock_};
  std::vector<WorkerKey> ended_;
  LaneMemory lanes_{devices_, workers_.domains, workers_.refusals,
                    [this](WorkerKey key, const Error& why) {
                      EXPECT_EQ(why.code, ErrorCode::kOutOfMemory);
                      ended_.push_back(key);
                    }};
};

TEST_F(LaneMemoryTest, a_slab_takes_the_place_of_the_one_before) {
  ask_for_slab(kBytes);
  expect_held(kBytes);
  ask_for_slab(3 * kBytes);
  expect_held(3 * kBytes);
}

TEST_F(LaneMemoryTest, a_slab_that_cannot_be_made_costs_nothing_and_the_former_one_stays) {
  ask_for_slab(kBytes);
  extents_.fail_at(1);
  ask_for_slab(3 * kBytes);
  expect_held(kBytes);
  ask_for_slab(3 * kBytes);
  expect_held(3 * kBytes);
}

TEST_F(LaneMemoryTest, a_slab_of_a_dead_worker_is_no_later_workers) {
  for (const uint64_t fault : {0, 1}) {
    extents_.fail_at(fault);
    extents_.hold();
    ask_for_slab(kBytes);
    expect_held(kBytes);
    lanes_.worker_died(kWorker);
    expect_held(0);
    ask_for_slab(2 * kBytes);
    ASSERT_EQ(extents_.untold(), 2u);
    extents_.tell_all();
    expect_held(2 * kBytes);
    lanes_.worker_died(kWorker);
    expect_held(0);
  }
}

TEST_F(LaneMemoryTest, a_worker_that_gives_back_what_it_has_not_got_yet_gets_no_slab) {
  for (const uint64_t fault : {0, 1}) {
    extents_.fail_at(fault);
    extents_.hold();
    ask_for_slab(kBytes);
    EXPECT_TRUE(give_back_slab(kBytes));
    extents_.tell_all();
    expect_held(0);
    EXPECT_FALSE(give_back_slab(1));
  }
}

TEST_F(LaneMemoryTest, a_slab_is_made_and_freed_by_the_source_of_its_device) {
  extents_.hold();
  for (const bool dies : {false, true}) {
    others_.hold();
    lanes_.on_grant_request(kOther, request(ipc::GrantKind::kSlab, kBytes));
    EXPECT_EQ(others_.untold(), 1u);
    EXPECT_EQ(extents_.untold(), 0u);
    if (dies) lanes_.worker_died(kOther);
    others_.tell_all();
    EXPECT_EQ(others_.held(), 0u) << "the worker alone has it, or nobody where it came too late";
  }
}

TEST_F(LaneMemoryTest, a_gpus_worker_tells_once_of_what_it_has_and_ends_where_there_is_less) {
  Memory& gpu = devices_.of(kOther.device);
  lanes_.on_grant_request(kOther, request(ipc::GrantKind::kHeap, 2 * kBytes));
  EXPECT_EQ(gpu.held_by_user(kAnn), 2 * kBytes);
  EXPECT_EQ(lanes_.bytes(kOther), 2 * kBytes);
  EXPECT_EQ(lanes_.heap_bytes(kOther), 0u) << "it does not come back before the worker ends";
  lanes_.on_grant_request(kOther, request(ipc::GrantKind::kHeap, kBytes));
  EXPECT_EQ(gpu.held_by_user(kAnn), 2 * kBytes);
  EXPECT_FALSE(lanes_.on_grant_return(kOther, {ipc::GrantKind::kHeap, {}, {}, kBytes}));
  lanes_.worker_died(kOther);
  EXPECT_EQ(gpu.granted_bytes(), 0u);
  EXPECT_TRUE(ended_.empty());
  lanes_.on_grant_request(kOther, request(ipc::GrantKind::kHeap, kDevice + kBytes));
  EXPECT_EQ(ended_, std::vector{kOther});
  EXPECT_EQ(gpu.granted_bytes(), 0u);
}

TEST_F(LaneMemoryTest, slab_and_heap_are_two_accounts) {
  ask_for_slab(kBytes);
  lanes_.on_grant_request(kWorker, request(ipc::GrantKind::kHeap, 2 * kBytes));
  expect_held(3 * kBytes);
  EXPECT_FALSE(give_back_slab(2 * kBytes));
  EXPECT_TRUE(give_back_slab(kBytes));
  expect_held(2 * kBytes);
  lanes_.worker_died(kWorker);
  expect_held(0);
}

TEST_F(LaneMemoryTest, a_heap_that_names_places_has_an_extent_for_each_or_nothing) {
  ipc::GrantRequest asked = request(ipc::GrantKind::kHeap, 3 * kBytes);
  asked.places = {{0, kBytes}, {5 * kBytes, 2 * kBytes}};
  lanes_.on_grant_request(kWorker, asked);
  expect_held(3 * kBytes);
  extents_.fail_at(2);
  lanes_.on_grant_request(kWorker, asked);
  expect_held(3 * kBytes);
  EXPECT_TRUE(lanes_.on_grant_return(kWorker, {ipc::GrantKind::kHeap, {}, {}, kBytes}));
  expect_held(2 * kBytes);
  lanes_.worker_died(kWorker);
  expect_held(0);
}

TEST_F(LaneMemoryTest, a_heap_of_a_worker_that_died_meanwhile_is_freed) {
  ipc::GrantRequest asked = request(ipc::GrantKind::kHeap, kBytes);
  asked.places = {{0, kBytes}};
  extents_.hold();
  lanes_.on_grant_request(kWorker, asked);
  lanes_.worker_died(kWorker);
  extents_.tell_all();
  expect_held(0);
}

TEST_F(LaneMemoryTest, places_that_are_not_what_is_asked_for_get_nothing) {
  const std::vector<ipc::MemoryRange> wrong[] = {
      {{0, kBytes}},
      {{0, 0}, {0, 2 * kBytes}},
      {{0, kBytes}, {kBytes, 2 * kBytes}},
      {{0, UINT64_MAX}, {0, 2 * kBytes + 1}},
      std::vector<ipc::MemoryRange>(2 * kBytes, {0, 1}),
  };
  for (const auto& places : wrong) {
    ipc::GrantRequest asked = request(ipc::GrantKind::kHeap, 2 * kBytes);
    asked.places = places;
    lanes_.on_grant_request(kWorker, asked);
    expect_held(0);
  }
  ipc::GrantRequest slab = request(ipc::GrantKind::kSlab, kBytes);
  slab.places = {{0, kBytes}};
  lanes_.on_grant_request(kWorker, slab);
  expect_held(0);
}

TEST_F(LaneMemoryTest, workers_of_one_user_on_two_devices_have_a_lane_each) {
  const Memory& other = devices_.of(kOther.device);
  ask_for_slab(kBytes);
  lanes_.on_grant_request(kOther, request(ipc::GrantKind::kSlab, 2 * kBytes));
  expect_held(kBytes);
  EXPECT_EQ(other.held_by_user(kAnn), 2 * kBytes);
  lanes_.worker_died(kWorker);
  expect_held(0);
  EXPECT_EQ(other.held_by_user(kAnn), 2 * kBytes);
  lanes_.worker_died(kOther);
  EXPECT_EQ(other.granted_bytes(), 0u);
}

}  // namespace
}  // namespace djinn::daemon
