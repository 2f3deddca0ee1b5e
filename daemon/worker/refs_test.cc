// SPDX-License-Identifier: Apache-2.0

// The life of refs, step by step, and what another worker finds of them.
#include "daemon/worker/refs.h"

#include <algorithm>

#include "daemon/worker/session_for_tests.h"

namespace djinn::worker {
namespace {

constexpr RefHandle kFirst{1, 1};
constexpr uint64_t kBytes = 4096;

class RefsTest : public SessionTest {
 protected:
  RefsTest() {
    // All that it may have, so that no step waits.
    submit_first_part({50, 1}, kRefBytes);
    EXPECT_EQ(finish(), ErrorCode::kOk);
    EXPECT_EQ(release({50, 1}), ErrorCode::kOk);
  }
  Refs& refs() { return session_->refs(); }
  gc::SessionState& state() { return session_->state(); }
  void commit() {
    state().commit();
    refs().end_step(Refs::End::kCommitted);
  }
  void roll_back() {
    ASSERT_TRUE(state().roll_back(refs().extent()));
    refs().end_step(Refs::End::kRolledBack);
  }
  // A step that makes it, filled with one byte.
  void make(RefHandle handle, uint64_t bytes = kBytes, std::byte fill = std::byte{7}) {
    state().begin();
    ASSERT_TRUE(refs().check_free(state(), handle));
    const auto storage = refs().allocate(bytes);
    ASSERT_TRUE(storage) << storage.error().message;
    std::fill_n(storage->data.on_host(), bytes, fill);
    refs().stage_new(state(), handle, *storage);
    commit();
  }
  void let_go(RefHandle handle) {
    state().begin();
    ASSERT_TRUE(refs().stage_release(state(), handle));
    commit();
  }
  ErrorCode found(RefHandle handle) { return code_of(refs().find(state(), handle)); }
  ErrorCode is_free(RefHandle handle) { return code_of(refs().check_free(state(), handle)); }
  // Whether there is room for so much in one piece.
  bool has_room(uint64_t bytes) {
    state().begin();
    const bool found = refs().allocate(bytes).ok();
    roll_back();
    return found;
  }
};

TEST_F(RefsTest, a_ref_is_found_from_its_commit_to_its_release) {
  EXPECT_EQ(found(kFirst), ErrorCode::kNotFound);
  make(kFirst);
  ASSERT_EQ(found(kFirst), ErrorCode::kOk);
  EXPECT_EQ(refs().find(state(), kFirst)->bytes, kBytes);
  EXPECT_EQ(refs().find(state(), kFirst)->data.on_host()[kBytes - 1], std::byte{7});
  EXPECT_EQ(is_free(kFirst), ErrorCode::kInvalidArgument);
  state().begin();
  ASSERT_TRUE(refs().stage_release(state(), kFirst));
  commit();
  EXPECT_EQ(found(kFirst), ErrorCode::kNotFound);
}

TEST_F(RefsTest, a_slot_takes_newer_generations_alone) {
  make({1, 5});
  EXPECT_EQ(found({1, 4}), ErrorCode::kStaleHandle);
  EXPECT_EQ(found({1, 6}), ErrorCode::kNotFound) << "it is still to come";
  state().begin();
  ASSERT_TRUE(refs().stage_release(state(), {1, 5}));
  commit();
  EXPECT_EQ(is_free({1, 5}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(is_free({1, 6}), ErrorCode::kOk);
  EXPECT_EQ(is_free({kGeometry.refs_max, 1}), ErrorCode::kOutOfRange);
  EXPECT_EQ(is_free({1, 0}), ErrorCode::kOutOfRange) << "no handle";
  EXPECT_EQ(found({kGeometry.refs_max, 1}), ErrorCode::kNotFound);
}

TEST_F(RefsTest, what_a_step_that_is_rolled_back_has_allocated_is_free_again) {
  for (int times = 0; times < 100; ++times) {
    state().begin();
    const auto storage = refs().allocate(kRefBytes / 2);
    ASSERT_TRUE(storage);
    refs().stage_new(state(), kFirst, *storage);
    roll_back();
    ASSERT_EQ(found(kFirst), ErrorCode::kNotFound);
  }
  EXPECT_TRUE(has_room(kRefBytes));
}

TEST_F(RefsTest, what_a_step_releases_is_nobody_elses_before_its_commit) {
  make(kFirst, kRefBytes / 2 + 1);
  state().begin();
  ASSERT_TRUE(refs().stage_release(state(), kFirst));
  EXPECT_FALSE(refs().allocate(kRefBytes / 2)) << "it may still be rolled back";
  roll_back();
  EXPECT_EQ(found(kFirst), ErrorCode::kOk);
  EXPECT_EQ(refs().find(state(), kFirst)->data.on_host()[0], std::byte{7});
  state().begin();
  ASSERT_TRUE(refs().stage_release(state(), kFirst));
  commit();
  EXPECT_TRUE(has_room(kRefBytes));
}

TEST_F(RefsTest, a_poisoned_ref_has_no_bytes_and_says_why) {
  make(kFirst, kRefBytes);
  state().begin();
  refs().stage_poison(state(), kFirst, ErrorCode::kCancelled);
  commit();
  const auto poisoned = refs().find(state(), kFirst);
  ASSERT_FALSE(poisoned);
  EXPECT_EQ(code_of(poisoned), ErrorCode::kPoisoned);
  EXPECT_NE(poisoned.error().message.find(name_of(ErrorCode::kCancelled)), std::string::npos);
  EXPECT_TRUE(has_room(kRefBytes));
  state().begin();
  EXPECT_TRUE(refs().stage_release(state(), kFirst));
  commit();
}

TEST_F(RefsTest, a_partial_ref_is_found_by_its_next_part_alone) {
  state().begin();
  const auto storage = refs().allocate(kBytes);
  ASSERT_TRUE(storage);
  refs().stage_partial(state(), kFirst, *storage, 100);
  commit();
  EXPECT_EQ(found(kFirst), ErrorCode::kBusy);
  EXPECT_TRUE(refs().find_partial(state(), kFirst, kBytes));
  EXPECT_FALSE(refs().find_partial(state(), kFirst, kBytes + 1));
  EXPECT_TRUE(Refs::check_next_part(state(), kFirst, 100));
  EXPECT_FALSE(Refs::check_next_part(state(), kFirst, 101));
  attach();
  EXPECT_TRUE(refs().find_partial(state(), kFirst, kBytes)) << "by another worker, too";
  EXPECT_FALSE(has_room(kRefBytes)) << "it has its place";
  state().begin();
  EXPECT_TRUE(refs().stage_release(state(), kFirst));
  commit();
  EXPECT_TRUE(has_room(kRefBytes));
}

TEST_F(RefsTest, a_place_that_no_output_took_is_free_after_the_step_and_a_taken_one_is_a_ref) {
  state().begin();
  ASSERT_TRUE(refs().prepare(state(), {}, {kBytes, 0, kBytes}, *lane_));
  EXPECT_EQ(refs().place_of(0).bytes, kBytes);
  EXPECT_EQ(refs().place_of(1).bytes, 0u) << "only the run will tell";
  EXPECT_EQ(refs().place_of(3).bytes, 0u) << "there is no such output";
  const Refs::Storage taken = refs().take_place(2);
  EXPECT_EQ(refs().place_of(2).bytes, 0u);
  refs().stage_new(state(), kFirst, taken);
  commit();
  EXPECT_EQ(found(kFirst), ErrorCode::kOk);
  EXPECT_FALSE(has_room(kRefBytes));
  EXPECT_TRUE(has_room(kRefBytes - 2 * kBytes)) << "behind it";
}

TEST_F(RefsTest, bytes_that_a_step_overwrites_come_back_with_its_rollback_and_with_a_death) {
  make(kFirst);
  const Refs::Storage storage = *refs().find(state(), kFirst);
  const std::vector<Refs::Written> written{{storage.offset, kBytes}};
  for (const bool dies : {false, true}) {
    state().begin();
    ASSERT_TRUE(refs().prepare(state(), written, {}, *lane_));
    std::fill_n(refs().find(state(), kFirst)->data.on_host(), kBytes, std::byte{9});
    if (dies) {
      attach();
    } else {
      roll_back();
    }
    EXPECT_EQ(refs().find(state(), kFirst)->data.on_host()[kBytes / 2], std::byte{7}) << dies;
    EXPECT_TRUE(has_room(kRefBytes - kBytes)) << "what was saved takes no room";
  }
}

TEST_F(RefsTest, what_was_never_allocated_reads_as_zeros_and_so_does_what_was_released) {
  make(kFirst);
  state().begin();
  ASSERT_TRUE(refs().stage_release(state(), kFirst));
  commit();
  state().begin();
  const auto storage = refs().allocate(kRefBytes);
  ASSERT_TRUE(storage);
  EXPECT_TRUE(std::all_of(storage->data.on_host(), storage->data.on_host() + kRefBytes,
                          [](std::byte b) { return b == std::byte{0}; }));
  roll_back();
}

TEST_F(RefsTest, what_there_will_never_be_is_the_quotas_to_refuse) {
  state().begin();
  EXPECT_EQ(code_of(refs().allocate(kRefBytes + 1)), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(code_of(refs().allocate(UINT64_MAX)), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(code_of(refs().prepare(state(), {}, {UINT64_MAX, UINT64_MAX}, *lane_)),
            ErrorCode::kQuotaExceeded);
  roll_back();
  EXPECT_TRUE(has_room(kRefBytes));
}

TEST_F(RefsTest, what_no_ref_takes_stays_granted_until_it_is_trimmed) {
  make(kFirst, kRefBytes / 2);
  make({2, 1}, kRefBytes / 4);
  let_go(kFirst);
  EXPECT_EQ(granted_bytes_[ipc::GrantKind::kRefs], kRefBytes);
  session_->tell_idle_refs();
  EXPECT_EQ(gc::read_progress(state_head())->idle_ref_bytes, 3 * kRefBytes / 4);
  session_->trim_refs();
  grant_all();
  EXPECT_EQ(granted_bytes_[ipc::GrantKind::kRefs], kRefBytes / 4) << "a gap, and what lies behind";
  EXPECT_EQ(gc::read_progress(state_head())->idle_ref_bytes, 0u);
  EXPECT_EQ(refs().find(state(), {2, 1})->data.on_host()[kRefBytes / 4 - 1], std::byte{7});
  EXPECT_FALSE(has_room(kRefBytes / 2)) << "it is asked for again";
  grant_all();
  EXPECT_TRUE(has_room(kRefBytes / 2));
  EXPECT_EQ(granted_bytes_[ipc::GrantKind::kRefs], 3 * kRefBytes / 4);
}

TEST_F(RefsTest, who_dies_when_it_has_trimmed_leaves_all_refs_and_what_djinnd_counts) {
  make(kFirst, kRefBytes / 2);
  make({2, 1}, kRefBytes / 4);
  let_go(kFirst);
  for (const bool is_heard : {false, true}) {
    const uint64_t before = granted_bytes_[ipc::GrantKind::kRefs];
    session_->trim_refs();
    grant_all();
    if (!is_heard) granted_bytes_[ipc::GrantKind::kRefs] = before;
    attach();
    grant_all();
    EXPECT_EQ(refs().find(state(), {2, 1})->data.on_host()[kRefBytes / 4 - 1], std::byte{7});
    EXPECT_EQ(refs().idle_bytes() + kRefBytes / 4, granted_bytes_[ipc::GrantKind::kRefs]);
  }
  EXPECT_EQ(refs().idle_bytes(), 0u);
  let_go({2, 1});
  session_->trim_refs();
  grant_all();
  EXPECT_EQ(granted_bytes_[ipc::GrantKind::kRefs], 0u);
}

TEST_F(RefsTest, a_worker_refuses_a_table_that_says_what_cannot_be) {
  make(kFirst);
  state().begin();
  const Refs::Storage storage = *refs().find(state(), kFirst);
  refs().stage_new(state(), {2, 1}, storage);  // on the bytes of another
  state().commit();
  auto extent = pal_->import_extent(*refs_.duplicate(), kRefBytes, pal::Seals::kSize);
  const auto opened = Refs::open(kSession, vmu::WindowMemory::whole(*std::move(extent), kRefBytes),
                                 state(), *pal_, grants_);
  ASSERT_FALSE(opened);
  EXPECT_EQ(code_of(opened), ErrorCode::kMalformed);
  refs().end_step(Refs::End::kCommitted);
}

}  // namespace
}  // namespace djinn::worker
