// SPDX-License-Identifier: Apache-2.0

// Memory for refs on a device whose extents have no parts, and are made late. No worker is told:
// there is none.
#include "daemon/djinnd/sessions/ref_grants.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/djinnd/memory/host_extents.h"
#include "daemon/djinnd/sessions/lane_steps.h"
#include "daemon/djinnd/sessions/spill.h"
#include "daemon/djinnd/testing/no_workers.h"
#include "daemon/djinnd/testing/own_extents.h"
#include "daemon/djinnd/testing/run_until.h"
#include "daemon/djinnd/workers/lane_memory.h"
#include "ipc/limits.h"
#include "kernel/base/owned_state_for_tests.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kWindowBytes = 64 * kPageBytes;
constexpr SessionId kAsking{5};
constexpr DeviceId kChunked{DeviceKind::kFake, 0};

class RefGrantsTest : public ::testing::Test, private LateChunks {
 protected:
  RefGrantsTest() {
    auto fresh = std::make_unique<Session>();
    fresh->id = kAsking;
    fresh->device = kChunked;
    fresh->memory.ref_bytes_max = kWindowBytes;
    fresh->memory.state = *pal::make_memfd("state", kPageBytes);
    fresh->attached = true;
    StateForTests::set(fresh->phase, SessionPhase::kLive);
    sessions_.add(std::move(fresh));
  }

  Session& session() { return *sessions_.find(kAsking); }
  // Of its worker.
  void ask(uint64_t number, std::vector<ipc::MemoryRange> places, bool or_less = false) {
    ipc::GrantRequest request;
    request.request = number;
    request.kind = ipc::GrantKind::kRefs;
    request.session = kAsking;
    for (const ipc::MemoryRange& place : places) request.bytes += place.bytes;
    request.or_less = or_less;
    request.places = std::move(places);
    grants_.on_request(session().worker(), request);
  }
  bool give_back(ipc::MemoryRange chunk) {
    ipc::GrantReturn event;
    event.kind = ipc::GrantKind::kRefs;
    event.session = kAsking;
    event.bytes = chunk.bytes;
    event.offset = chunk.offset;
    return grants_.on_return(session().worker(), event);
  }
  // As Sessions do when the worker has died, and the next one takes the session in.
  void next_worker() {
    RefGrants::worker_died(session());
    ++session().attachment;
  }
  void free_all() {
    bool done = false;
    work_.close({}, [&] { done = true; });
    testing::run_until(loop_, "all is freed", [&] { return done; });
  }
  void expect_held(uint64_t pages) {
    EXPECT_EQ(session().ref_bytes_granted, pages * kPageBytes);
    EXPECT_EQ(memory_.granted_bytes(), pages * kPageBytes);
    EXPECT_EQ(session().ref_bytes_coming, 0u);
    EXPECT_EQ(session().memory.chunk_bytes() + session().ref_bytes_freeing, pages * kPageBytes);
  }

  static constexpr ipc::MemoryRange kFirst{0, 4 * kPageBytes};
  static constexpr ipc::MemoryRange kSecond{8 * kPageBytes, 2 * kPageBytes};

  Loop loop_;
  const SystemClock clock_;
  const Quotas quotas_;
  WorkQueue work_{loop_, "memory"};
  HostExtents host_{work_, false};
  testing::OwnExtents extents_{host_};
  const Devices devices_{std::array{DeviceMemory{kHostDevice, kWindowBytes, extents_},
                                    DeviceMemory{kChunked, kWindowBytes / 2, extents_}},
                         kWindowBytes, quotas_};
  Memory& memory_ = devices_.of(kChunked);
  SessionTable sessions_;
  const LaneSteps lane_steps_{clock_, sessions_};
  uint64_t freed_late_ = 0;

 private:
  void freed_late(SessionId, uint64_t bytes) override { freed_late_ += bytes; }

  testing::NoWorkers workers_{loop_, clock_};
  const Deaths deaths_{clock_, workers_.domains, sessions_};
  const Spill spill_{clock_,      devices_, workers_.domains, sessions_,
                     lane_steps_, deaths_,  {"", 0, 0}};
  const LaneMemory lanes_{devices_, workers_.domains, workers_.refusals,
                          [](WorkerKey, const Error&) {}};
  IdleMemory idle_memory_{workers_.domains, lanes_, sessions_, lane_steps_, spill_};

 protected:
  RefGrants grants_{devices_, workers_.domains, workers_.refusals, sessions_, idle_memory_, *this};
};

TEST_F(RefGrantsTest, an_extent_is_made_for_each_place) {
  ask(1, {kFirst, kSecond});
  ASSERT_EQ(session().memory.refs.size(), 2u);
  EXPECT_EQ(session().memory.refs.at(kSecond.offset).bytes, kSecond.bytes);
  expect_held(6);
  EXPECT_EQ(extents_.held(), 2u);
}

TEST_F(RefGrantsTest, places_that_cannot_be_are_refused_and_nothing_is_made) {
  ask(1, {kFirst});
  const std::vector<std::vector<ipc::MemoryRange>> wrong{
      {},
      {kFirst},
      {{3 * kPageBytes, 2 * kPageBytes}},
      {{kWindowBytes, kPageBytes}},
      {{UINT64_MAX - kPageBytes + 1, kPageBytes}},
      {{6 * kPageBytes + 1, kPageBytes}},
      {{6 * kPageBytes, 1}},
      {{6 * kPageBytes, kPageBytes}, {6 * kPageBytes, kPageBytes}},
  };
  for (const auto& places : wrong) ask(2, places);
  std::vector<ipc::MemoryRange> many;
  for (uint64_t i = 0; i < limits::kRefChunks; ++i) {
    many.push_back({kFirst.bytes + i * kPageBytes, kPageBytes});
  }
  ask(2, many);
  expect_held(4);
  EXPECT_EQ(extents_.held(), 1u);
}

TEST_F(RefGrantsTest, nobody_gives_way_for_more_than_is_needed) {
  ask(1, {{0, kWindowBytes / 2 + kPageBytes}}, true);
  expect_held(0);
  ask(2, {{0, kWindowBytes / 2}}, true);
  expect_held(32);
}

TEST_F(RefGrantsTest, one_place_is_given_once_however_late_its_extents_come) {
  extents_.hold();
  ask(1, {kFirst});
  ask(2, {kFirst});
  extents_.tell_all();
  ASSERT_EQ(session().memory.refs.size(), 1u);
  expect_held(8);  // until what was made in vain is free
  free_all();
  expect_held(4);
  EXPECT_EQ(extents_.held(), 1u);
}

TEST_F(RefGrantsTest, what_comes_after_a_workers_death_is_not_the_next_ones) {
  extents_.hold();
  ask(1, {kFirst});
  next_worker();
  ask(1, {kSecond});
  extents_.tell_all();
  ASSERT_EQ(session().memory.refs.size(), 1u);
  EXPECT_TRUE(session().memory.refs.contains(kSecond.offset));
  free_all();
  expect_held(2);
}

TEST_F(RefGrantsTest, an_extent_that_cannot_be_made_ends_the_grant) {
  extents_.fail_at(2);
  ask(1, {kFirst, kSecond});
  EXPECT_TRUE(session().memory.refs.empty());
  free_all();
  expect_held(0);
  EXPECT_EQ(extents_.held(), 0u);
}

TEST_F(RefGrantsTest, the_grant_of_a_chunk_ends_when_its_memory_is_free) {
  ask(1, {kFirst, kSecond});
  EXPECT_FALSE(give_back({kFirst.offset, kPageBytes})) << "a part";
  EXPECT_FALSE(give_back({kPageBytes, kPageBytes})) << "nobody's";
  EXPECT_TRUE(give_back(kFirst));
  EXPECT_FALSE(give_back(kFirst)) << "twice";
  expect_held(6);
  ask(2, {kFirst});  // waits until then
  EXPECT_EQ(session().memory.refs.size(), 1u);
  free_all();
  EXPECT_EQ(session().memory.refs.size(), 2u);
  expect_held(6);
}

TEST_F(RefGrantsTest, what_is_given_up_while_it_is_made_is_freed) {
  extents_.hold();
  ask(1, {kFirst});
  grants_.refuse_asks(session());
  extents_.tell_all();
  free_all();
  expect_held(0);
  EXPECT_EQ(extents_.held(), 0u);
}

TEST_F(RefGrantsTest, of_a_session_that_is_gone_the_account_hears_when_it_is_free) {
  ask(1, {kSecond});
  extents_.hold();
  ask(2, {kFirst});
  ASSERT_TRUE(give_back(kSecond));
  grants_.refuse_asks(session());
  sessions_.erase(kAsking);
  EXPECT_EQ(freed_late_, 0u);
  extents_.tell_all();
  free_all();
  EXPECT_EQ(freed_late_, kFirst.bytes + kSecond.bytes);
  EXPECT_EQ(extents_.held(), 0u);
}

}  // namespace
}  // namespace djinn::daemon
