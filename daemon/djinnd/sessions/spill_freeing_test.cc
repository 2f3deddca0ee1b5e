// SPDX-License-Identifier: Apache-2.0

// What happens while the memory of a spilled group is being freed: the queue that does it is held
// up, and there is no worker but what the test says in its name.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <future>
#include <vector>

#include "daemon/djinnd/sessions/spill.h"
#include "daemon/djinnd/testing/run_until.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr uint64_t kDevice = 16 * kBytes;

class SpillFreeingTest : public ::testing::Test, private WorkerSupervisor::Owner {
 protected:
  SpillFreeingTest() {
    sessions_[kSession] = std::make_unique<Session>();
    session().id = kSession;
    SequenceGroup& made = **session().sequences.make({});
    handle_ = made.handle;
    made.phase = GroupPhase::kLive;
    made.memfd = *pal::make_memfd("group", kBytes, pal::Seals::kShared);
    EXPECT_TRUE(pal::commit_ahead(made.memfd, 0, kBytes));
    memory_.request(holder(), kBytes, [&](const Status& granted) { EXPECT_TRUE(granted.ok()); });
    made.granted_bytes = kBytes;
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
    group().place = GroupPlace::kSpilling;
    group().spill_file = *pal::make_memfd("file", kBytes, pal::Seals::kShared);
    return spill_.hear(session(), group(), {kSession, handle_, kBytes, ErrorCode::kOk, {}});
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
  Session& session() { return *sessions_.at(kSession); }
  SequenceGroup& group() { return *session().sequences.lookup(handle_); }
  uint64_t committed_bytes() {
    struct stat info {};
    EXPECT_EQ(::fstat(group().memfd.get(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  }
  static Memory::Holder holder() { return Memory::of_session(kSession); }

  static constexpr SessionId kSession{5};
  SequenceHandle handle_;
  std::vector<uint64_t> granted_;  // numbers of requests that came again
  Loop loop_;
  const SystemClock clock_;
  Memory memory_{kDevice, kDevice};
  std::map<SessionId, std::unique_ptr<Session>> sessions_;

 private:
  void worker_ready(DomainId) override {}
  void worker_said(DomainId, const ipc::WorkerEvent&) override {}
  bool worker_died(DomainId, const WorkerDeath&) override { return false; }

  std::promise<void> held_up_;
  bool let_go_ = false;
  Events events_{clock_};
  Traffic traffic_;
  Spawner spawner_;
  Stragglers stragglers_{loop_};
  Closers closers_;
  SparePool spares_{{loop_, spawner_, closers_, stragglers_},
                    {"worker", ErrorCode::kWorkerLost, 0, {}, {}, traffic_}};
  Domains domains_{{loop_, clock_, spares_, *this, events_}, 0};
  WorkQueue memory_work_{loop_, "memory"};
  WorkQueue file_work_{loop_, "files"};

 protected:
  Spill spill_{
      {clock_, memory_, domains_, events_, memory_work_, file_work_, sessions_,
       [this](DomainId, const ipc::GrantRequest& asked) { granted_.push_back(asked.request); }},
      {"/nowhere", 0, kDevice}};
};

TEST_F(SpillFreeingTest, memory_counts_until_it_is_free_and_is_known_to_be_coming) {
  ASSERT_TRUE(spill());
  EXPECT_EQ(memory_.granted_bytes(), kBytes);
  EXPECT_EQ(group().leaving_bytes(), kBytes);
  EXPECT_EQ(spill_.spilled_bytes(), kBytes);
  group().phase = GroupPhase::kDropping;
  EXPECT_EQ(group().leaving_bytes(), kBytes) << "once, and not twice";
  free_all();
  EXPECT_EQ(memory_.granted_bytes(), 0u);
  EXPECT_EQ(group().leaving_bytes(), 0u);
  EXPECT_EQ(committed_bytes(), 0u);
}

TEST_F(SpillFreeingTest, who_wants_the_group_back_waits_until_its_memory_is_free) {
  EXPECT_FALSE(Spill::put_off(group(), request(7))) << "nothing is being freed";
  ASSERT_TRUE(spill());
  EXPECT_TRUE(Spill::put_off(group(), request(7)));
  EXPECT_TRUE(Spill::put_off(group(), request(8)));
  EXPECT_TRUE(granted_.empty());
  free_all();
  EXPECT_EQ(granted_, (std::vector<uint64_t>{7, 8}));
  EXPECT_FALSE(Spill::put_off(group(), request(9)));
}

// It needs no memory to be back, and holds none of what is still being freed.
TEST_F(SpillFreeingTest, a_group_without_tokens_may_be_back_before_its_memory_is_free) {
  ASSERT_TRUE(spill());
  spill_.restored(session(), group());
  EXPECT_EQ(group().place, GroupPlace::kMemory);
  EXPECT_EQ(group().held_bytes(), 0u);
  EXPECT_TRUE(Spill::put_off(group(), request(7)));
  spill_.worker_died(session(), group());
  free_all();
  EXPECT_EQ(memory_.granted_bytes(), 0u);
  EXPECT_TRUE(granted_.empty());
}

TEST_F(SpillFreeingTest, memory_that_cannot_be_freed_counts_and_who_waits_for_it_is_told) {
  Status told;
  bool answered = false;
  memory_.set_evictor([&](uint64_t) { return group().leaving_bytes() > 0; });
  group().memfd = *pal::make_memfd("sealed", kBytes, pal::Seals::kWrite);
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
  EXPECT_TRUE(Spill::put_off(group(), request(7)));
  spill_.worker_died(session(), group());
  free_all();
  EXPECT_TRUE(granted_.empty());
  EXPECT_EQ(memory_.granted_bytes(), 0u);
  EXPECT_TRUE(memory_.check().ok());
}

TEST_F(SpillFreeingTest, what_was_granted_for_the_return_is_freed_when_the_worker_dies) {
  ASSERT_TRUE(spill());
  free_all();
  memory_.request(holder(), kBytes, [](const Status& granted) { EXPECT_TRUE(granted.ok()); });
  group().granted_bytes = kBytes;
  ASSERT_TRUE(pal::commit_ahead(group().memfd, 0, kBytes));
  spill_.worker_died(session(), group());
  EXPECT_EQ(group().leaving_bytes(), kBytes);
  free_all();
  EXPECT_EQ(memory_.granted_bytes(), 0u);
  EXPECT_EQ(committed_bytes(), 0u);
}

TEST_F(SpillFreeingTest, a_session_that_ends_meanwhile_keeps_its_books) {
  ASSERT_TRUE(spill());
  sessions_.clear();
  memory_.release_all(holder());
  free_all();
  EXPECT_EQ(memory_.granted_bytes(), 0u);
  EXPECT_TRUE(memory_.check().ok());
}

}  // namespace
}  // namespace djinn::daemon
