// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/lease.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "libdjinn-client/client.h"
#include "libdjinn-client/testing/connected.h"

namespace djinn::client {
namespace {

constexpr uint64_t kStagingBytes = 1 << 16;

class Lease : public testing::Connected<kStagingBytes> {
 protected:
  [[nodiscard]] bool slab_is_free() { return client_->allocate_staging(kStagingBytes).ok(); }
  // A run that may have made any ref that there is.
  void run_one() {
    const auto run = client_->submit({}, std::vector<std::byte>(8));
    ASSERT_TRUE(run);
    EXPECT_TRUE(client_->wait(*run));
  }
};

TEST_F(Lease, of_staging_is_given_back_once_however_often_it_moves) {
  StagingLease first = *client_->allocate_staging(kStagingBytes / 2);
  StagingLease second = std::move(first);
  EXPECT_FALSE(slab_is_free());
  StagingLease third = *client_->allocate_staging(kStagingBytes / 2);
  third = std::move(second);
  EXPECT_TRUE(client_->allocate_staging(kStagingBytes / 2)) << "what third was of";
  EXPECT_FALSE(slab_is_free());
  third = {};
  EXPECT_TRUE(slab_is_free());
}

TEST_F(Lease, of_a_program_may_end_on_any_thread_after_its_client_and_in_a_child) {
  const auto define = [this](uint64_t model) {
    return std::move(client_->lease_program(srg::Graph(), ModelId{model})->lease);
  };
  ProgramLease first = define(1), second = define(2), third = define(3);
  std::thread([taken = std::move(first)] {}).join();
  const pid_t child = ::fork();
  if (child == 0) {
    second = {};
    ::_exit(0);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  run_one();
  EXPECT_TRUE(testing::eventually([&] { return daemon_.dropped() == std::vector<uint64_t>{1}; }));
  client_.reset();
  third = {};
}

TEST_F(Lease, of_staging_that_a_run_reads_is_given_back_with_its_completion) {
  daemon_.set_stuck(true);
  const auto run =
      client_->submit({}, std::vector<std::byte>(8),
                      {.read = list_of(*client_->allocate_staging(kStagingBytes - 64))});
  ASSERT_TRUE(run);
  daemon_.set_stuck(false);
  EXPECT_TRUE(slab_is_free()) << "it waits for the run";
}

TEST_F(Lease, of_staging_that_a_run_writes_comes_with_its_outcome) {
  {
    const auto run = client_->submit({}, std::vector<std::byte>(8),
                                     {.written = list_of(*client_->allocate_staging(100))});
    ASSERT_TRUE(run);
    const auto outcome = client_->wait(*run);
    ASSERT_TRUE(outcome);
    ASSERT_EQ(outcome->written.size(), 1u);
    EXPECT_EQ(outcome->written.front().bytes().size(), 100u);
    EXPECT_FALSE(slab_is_free());
  }
  EXPECT_TRUE(slab_is_free());
}

TEST_F(Lease, may_die_on_another_thread) {
  StagingLease range = *client_->allocate_staging(kStagingBytes);
  RefLease ref = *client_->new_ref();
  const uint32_t slot = ref.ref().index;
  std::thread([range = std::move(range), ref = std::move(ref)] {}).join();
  EXPECT_TRUE(slab_is_free());
  EXPECT_EQ((*client_->new_ref()).ref().index, slot);
}

TEST_F(Lease, may_outlive_its_client) {
  StagingLease range = *client_->allocate_staging(100);
  RefLease ref = *client_->new_ref();
  run_one();
  client_.reset();
}

TEST_F(Lease, of_a_ref_that_no_submission_can_have_named_is_free_at_once) {
  run_one();
  const RefHandle first = (*client_->new_ref()).ref();
  const RefHandle second = (*client_->new_ref()).ref();
  EXPECT_EQ(second, (RefHandle{first.index, first.generation + 1}));
  run_one();
  EXPECT_EQ(daemon_.runs(), 2u);
}

TEST_F(Lease, of_another_ref_is_released_before_its_slot_is_used_again) {
  RefHandle dropped;
  {
    const RefLease ref = *client_->new_ref();
    dropped = ref.ref();
    run_one();
  }
  EXPECT_NE((*client_->new_ref()).ref().index, dropped.index);
  run_one();
  EXPECT_EQ(daemon_.runs(), 3u) << "and a release";
  EXPECT_EQ((*client_->new_ref()).ref(), (RefHandle{dropped.index, dropped.generation + 1}));
}

TEST_F(Lease, of_a_ref_that_was_detached_is_its_holder_s_to_give_back) {
  RefLease ref = *client_->new_ref();
  const RefHandle handle = std::move(ref).detach();
  run_one();
  EXPECT_NE((*client_->new_ref()).ref().index, handle.index);
  client_->forget_ref(handle);
  EXPECT_EQ((*client_->new_ref()).ref().index, handle.index);
}

// The parent's leases are copied with its memory: the child has none of what they are of.
TEST_F(Lease, in_the_child_of_a_fork_gives_nothing_back) {
  auto range = std::make_unique<StagingLease>(*client_->allocate_staging(100));
  auto ref = std::make_unique<RefLease>(*client_->new_ref());
  run_one();
  const pid_t child = ::fork();
  if (child == 0) {
    range.reset();
    ref.reset();
    const bool refused = client_->submit({}, {}).error().code == ErrorCode::kDisconnected &&
                         client_->stage({}).error().code == ErrorCode::kDisconnected &&
                         client_->new_ref().error().code == ErrorCode::kDisconnected;
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  run_one();
  EXPECT_EQ(daemon_.runs(), 2u);
  range.reset();
  EXPECT_TRUE(slab_is_free());
}

}  // namespace
}  // namespace djinn::client
