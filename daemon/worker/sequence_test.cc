// SPDX-License-Identifier: Apache-2.0

// A pager that answers nobody but this test: its words to djinnd are read here, and what djinnd
// would say comes from here.
#include "daemon/worker/sequence.h"

#include <sys/stat.h>

#include <future>

#include "daemon/worker/djinnd_for_tests.h"
#include "kernel/pal/faulty_pal.h"
#include "kernel/pal/host_pal.h"
#include "kernel/pal/memfd.h"

namespace djinn::worker {
namespace {

constexpr SessionId kSession{7};
constexpr uint64_t kCapacity = 4096;
constexpr ipc::SequenceGeometry kGeometry{1, 1, 2, 8, DType::kFloat32, kCapacity};

class PagerTest : public DjinndTest {
 protected:
  struct Group {
    std::shared_ptr<Sequence> sequence;
    Fd memfd;

    [[nodiscard]] bool has_pages() const {
      struct stat info {};
      return ::fstat(memfd.get(), &info) == 0 && info.st_blocks > 0;
    }
  };

  // file: where it lies if it is spilled, then with all that was granted.
  Group group(uint32_t index, uint64_t granted = 0, Fd file = Fd()) {
    const auto layout = gc::SequenceLayout::make(1, 1, 2, 8, sizeof(float), kCapacity);
    auto memfd = pal::make_memfd("sequence", layout->file_bytes(), pal::Seals::kShared);
    auto sequence = Sequence::map(kSession, {index, 1}, kGeometry, *memfd->duplicate(), granted,
                                  std::move(file), pal_);
    EXPECT_TRUE(sequence);
    return {*sequence, *std::move(memfd)};
  }
  // What a step that needs so many slots of the group is told.
  std::optional<ErrorCode> ensured(const std::shared_ptr<Sequence>& sequence, uint64_t tokens) {
    return code_of(pager_->ensure(sequence, tokens));
  }
  // Until the group is there with so many slots, or for the first error. Grants are given at once.
  Outcome<void> bring(const Group& group, uint64_t tokens) {
    for (;;) {
      Outcome<void> ensured = pager_->ensure(group.sequence, tokens);
      if (!ensured.is_pending()) return ensured;
      wait_for_moves();
      if (!nothing_is_said()) hear_and_answer();
      wait_for_moves();
    }
  }
  // As djinnd: a request is granted, and a group that is on disk loses its memory.
  void hear_and_answer() {
    const auto event = ipc::decode_worker_event(djinnd_.receive()->bytes);
    if (const auto* request = std::get_if<ipc::GrantRequest>(&event->body)) answer(*request);
  }
  // Moves the group to disk as djinnd has it done.
  void spill(const Group& group) {
    pager_->spill(group.sequence, nameless_file());
    wait_for_moves();
    const auto told = heard<ipc::SequenceSpilled>();
    ASSERT_EQ(told.code, ErrorCode::kOk);
    ASSERT_TRUE(pal::decommit(group.memfd, 0, group.sequence->layout().file_bytes()));
    ASSERT_FALSE(group.has_pages());
  }

  // Returns when all that was begun with dropped groups has ended.
  void wait_for_moves() {
    std::promise<void> done;
    pager_->after_moves([&] { done.set_value(); });
    done.get_future().wait();
  }

  std::unique_ptr<pal::HostPal> host_ = *pal::HostPal::make();
  pal::FaultyPal pal_{*host_};
  std::unique_ptr<SequencePager> pager_ = std::make_unique<SequencePager>(grants_, outbox_, waits_);
};

TEST_F(PagerTest, a_grant_that_is_long_in_coming_keeps_no_other_group_waiting) {
  const Group slow = group(0);
  const Group quick = group(1);
  EXPECT_EQ(ensured(slow.sequence, 10), kPending);
  const auto first = heard<ipc::GrantRequest>();
  EXPECT_EQ(ensured(quick.sequence, 10), kPending);
  const auto second = heard<ipc::GrantRequest>();
  EXPECT_EQ(second.sequence, quick.sequence->handle());
  answer(second);
  wait_for_moves();
  EXPECT_EQ(ensured(quick.sequence, 10), ErrorCode::kOk);
  EXPECT_EQ(ensured(slow.sequence, 10), kPending);
  answer(first);
  wait_for_moves();
  EXPECT_EQ(ensured(slow.sequence, 10), ErrorCode::kOk);
}

TEST_F(PagerTest, a_refused_growth_is_told_once_and_may_be_tried_again) {
  const Group one = group(0);
  EXPECT_EQ(ensured(one.sequence, 10), kPending);
  answer(heard<ipc::GrantRequest>(), ErrorCode::kOutOfMemory);
  wait_for_moves();
  EXPECT_EQ(ensured(one.sequence, 10), ErrorCode::kOutOfMemory);
  EXPECT_EQ(ensured(one.sequence, 10), kPending);
  answer(heard<ipc::GrantRequest>());
  wait_for_moves();
  EXPECT_EQ(ensured(one.sequence, 10), ErrorCode::kOk);
}

TEST_F(PagerTest, what_was_cancelled_is_asked_for_again_by_the_run_after_it) {
  const Group present = group(0);
  const Group on_disk = group(1, 64 << 10, nameless_file());
  for (const Group* one : {&present, &on_disk}) {
    EXPECT_EQ(ensured(one->sequence, 10), kPending);
    answer(heard<ipc::GrantRequest>(), ErrorCode::kCancelled);
    wait_for_moves();
    ASSERT_EQ(ensured(one->sequence, 10), kPending);
    wait_for_moves();
    ASSERT_FALSE(nothing_is_said());
    answer(heard<ipc::GrantRequest>());
    wait_for_moves();
  }
  EXPECT_EQ(ensured(present.sequence, 10), ErrorCode::kOk);
}

TEST_F(PagerTest, a_growth_ahead_of_need_that_was_refused_is_asked_for_again_in_need) {
  const Group one = group(0);
  ASSERT_TRUE(bring(one, 20));
  const uint64_t there = one.sequence->committed();
  EXPECT_EQ(ensured(one.sequence, there), ErrorCode::kOk);
  wait_for_moves();
  answer(heard<ipc::GrantRequest>(), ErrorCode::kOutOfMemory);
  wait_for_moves();
  EXPECT_EQ(ensured(one.sequence, there + 1), kPending) << "memory may be free by now";
  wait_for_moves();
  answer(heard<ipc::GrantRequest>(), ErrorCode::kOutOfMemory);
  wait_for_moves();
  EXPECT_FALSE(pager_->ensure(one.sequence, there + 1)) << "this one was needed";
}

TEST_F(PagerTest, a_growth_that_is_refused_when_its_group_has_left_is_forgotten) {
  const Group one = group(0);
  ASSERT_TRUE(bring(one, 20));
  EXPECT_EQ(ensured(one.sequence, one.sequence->committed()), ErrorCode::kOk);
  wait_for_moves();
  const auto growth = heard<ipc::GrantRequest>();
  spill(one);
  answer(growth, ErrorCode::kOutOfMemory);
  wait_for_moves();
  EXPECT_TRUE(bring(one, 20));
}

TEST_F(PagerTest, a_dropped_group_gets_no_page_however_late_its_grant_comes) {
  const Group one = group(0);
  EXPECT_EQ(ensured(one.sequence, 10), kPending);
  const auto request = heard<ipc::GrantRequest>();
  one.sequence->drop();
  wait_for_moves();  // although nobody has answered
  answer(request);
  wait_for_moves();
  EXPECT_FALSE(one.has_pages());
  EXPECT_EQ(one.sequence->committed(), 0u);
}

TEST_F(PagerTest, a_group_that_is_dropped_on_its_way_back_stays_on_disk) {
  const Group one = group(0, 64 << 10, nameless_file());
  EXPECT_EQ(ensured(one.sequence, 1), kPending);
  const auto request = heard<ipc::GrantRequest>();
  one.sequence->drop();
  wait_for_moves();
  answer(request);
  wait_for_moves();
  EXPECT_FALSE(one.has_pages());
  EXPECT_TRUE(nothing_is_said());
}

std::vector<float> values_of(const Sequence& sequence) {
  const auto* first = reinterpret_cast<const float*>(sequence.key(0, 0).on_host());
  return {first, first + 100};
}

TEST_F(PagerTest, what_came_back_from_disk_has_the_same_bits_whatever_call_failed) {
  uint64_t failures = 0;
  for (uint64_t n = 1;; ++n) {
    const Group one = group(0);
    ASSERT_TRUE(bring(one, 20));
    auto* const first = reinterpret_cast<float*>(one.sequence->key(0, 0).on_host());
    for (int i = 0; i < 100; ++i) first[i] = static_cast<float>(i) / 3;
    const std::vector<float> before = values_of(*one.sequence);
    spill(one);
    pal_.fail_call(n, {ErrorCode::kOutOfMemory, "A test made this call fail."});
    const Outcome<void> back = bring(one, 20);
    const bool failed = pal_.calls() >= n;
    pal_.disarm();
    failures += failed ? 1 : 0;
    EXPECT_EQ(back.ok(), !failed);
    EXPECT_EQ(failed ? back.error().code : ErrorCode::kOutOfMemory, ErrorCode::kOutOfMemory);
    ASSERT_TRUE(bring(one, 20)) << "it may be asked for again";
    EXPECT_EQ(values_of(*one.sequence), before);
    one.sequence->drop();
    wait_for_moves();
    while (!nothing_is_said()) hear_and_answer();
    if (!failed) break;
  }
  EXPECT_GE(failures, 2u) << "its pages are committed, and made";
}

}  // namespace
}  // namespace djinn::worker
