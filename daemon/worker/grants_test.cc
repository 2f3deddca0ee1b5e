// SPDX-License-Identifier: Apache-2.0

// Questions of the lane about memory, and answers that come when nobody waits any more.
#include "daemon/worker/grants.h"

#include <utility>
#include <vector>

#include "daemon/worker/djinnd_for_tests.h"
#include "kernel/pal/memfd.h"

namespace djinn::worker {
namespace {

constexpr SessionId kSession{7};
constexpr uint64_t kBytes = 4096;

class GrantsTest : public DjinndTest {
 protected:
  // What a step that needs the memory is told; kOk: it has it.
  std::optional<ErrorCode> taken(uint64_t bytes = kBytes) {
    const auto answer = grants_.take(ipc::GrantKind::kRefs, kSession, bytes);
    return code_of(answer);
  }
  void give_up() { grants_.forget(ipc::GrantKind::kRefs, kSession); }
  ipc::GrantRequest asked() { return heard<ipc::GrantRequest>(); }
};

TEST_F(GrantsTest, a_refusal_is_told_to_the_step_that_asked) {
  EXPECT_EQ(taken(), kPending);
  answer(asked(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(taken(), ErrorCode::kOutOfMemory);
}

TEST_F(GrantsTest, a_step_after_one_that_was_given_up_is_not_told_of_that) {
  EXPECT_EQ(taken(), kPending);
  const ipc::GrantRequest first = asked();
  give_up();
  EXPECT_EQ(taken(), kPending) << "the answer is still on its way";
  EXPECT_TRUE(nothing_is_said());
  answer(first, ErrorCode::kCancelled);
  EXPECT_EQ(taken(), kPending) << "it asks for itself";
  answer(asked());
  EXPECT_EQ(taken(), ErrorCode::kOk);
}

TEST_F(GrantsTest, what_is_needed_is_not_refused_because_a_wish_was) {
  const auto wish = [this] {
    return code_of(grants_.take(ipc::GrantKind::kRefs, kSession, kBytes, vmu::Amount::kMore));
  };
  EXPECT_EQ(wish(), kPending);
  answer(asked(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(taken(2 * kBytes), kPending) << "others may give way for it";
  const ipc::GrantRequest needed = asked();
  EXPECT_FALSE(needed.or_less);
  EXPECT_EQ(needed.bytes, 2 * kBytes);
  answer(needed, ErrorCode::kOutOfMemory);
  EXPECT_EQ(wish(), kPending) << "less may be there";
  answer(asked(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(wish(), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(GrantsTest, a_step_takes_up_what_one_that_was_given_up_is_granted) {
  EXPECT_EQ(taken(), kPending);
  const ipc::GrantRequest first = asked();
  give_up();
  EXPECT_EQ(taken(), kPending);
  answer(first);
  EXPECT_EQ(taken(), ErrorCode::kOk);
  EXPECT_TRUE(nothing_is_said());
}

// Of a device whose extents have no parts.
class ChunkGrantsTest : public GrantsTest {
 protected:
  static inline const std::vector<ipc::MemoryRange> kPlaces{{0, kBytes}, {2 * kBytes, kBytes}};

  Outcome<Grants::Answer> take(std::vector<ipc::MemoryRange> places = kPlaces) {
    return grants_.take(ipc::GrantKind::kRefs, kSession, 2 * kBytes, vmu::Amount::kNeeded,
                        std::move(places));
  }
  void give(const ipc::GrantRequest& request) {
    std::vector<Fd> memory;
    for (size_t i = 0; i < request.places.size(); ++i) {
      memory.push_back(*pal::make_memfd("chunk", kBytes, pal::Seals::kSize));
    }
    grants_.deliver(ipc::GiveMemory{request.request, request.bytes}, std::move(memory));
  }
};

TEST_F(ChunkGrantsTest, an_extent_comes_for_each_place_that_was_asked_for) {
  EXPECT_EQ(code_of(take()), kPending);
  const ipc::GrantRequest request = asked();
  EXPECT_EQ(request.places, kPlaces);
  give(request);
  const auto answer = take({{4 * kBytes, 2 * kBytes}});  // a later step, which takes those up
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->places, kPlaces);
  EXPECT_EQ(answer->memory.size(), 2u);
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(ChunkGrantsTest, those_that_nobody_takes_up_go_back_one_by_one) {
  EXPECT_EQ(code_of(take()), kPending);
  const ipc::GrantRequest request = asked();
  give_up();
  give(request);
  for (const ipc::MemoryRange& place : kPlaces) {
    const auto returned = heard<ipc::GrantReturn>();
    EXPECT_EQ(returned.session, kSession);
    EXPECT_EQ((ipc::MemoryRange{returned.offset, returned.bytes}), place);
  }
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(GrantsTest, what_nobody_takes_up_is_given_back) {
  EXPECT_EQ(taken(), kPending);
  const ipc::GrantRequest first = asked();
  give_up();
  answer(first);
  EXPECT_EQ(heard<ipc::GrantReturn>().bytes, kBytes);
}

TEST_F(GrantsTest, sessions_and_kinds_of_memory_have_a_question_each) {
  EXPECT_EQ(taken(), kPending);
  EXPECT_FALSE(grants_.take(ipc::GrantKind::kRefs, SessionId{8}, kBytes));
  EXPECT_FALSE(grants_.take(ipc::GrantKind::kHeap, {}, kBytes));
  const ipc::GrantRequest first = asked();
  const ipc::GrantRequest second = asked();
  EXPECT_EQ(first.session, kSession);
  EXPECT_EQ(second.session, SessionId{8});
  EXPECT_EQ(asked().kind, ipc::GrantKind::kHeap);
  answer(second);
  EXPECT_EQ(taken(), kPending);
  answer(first);
  EXPECT_EQ(taken(), ErrorCode::kOk);
}

TEST_F(GrantsTest, what_a_group_is_granted_is_told_once_to_who_asked) {
  std::vector<ErrorCode> told;
  grants_.ask(kSession, {1, 1}, kBytes, [&](const Status& status) {
    told.push_back(status ? ErrorCode::kOk : status.error().code);
  });
  const ipc::GrantRequest request = asked();
  EXPECT_EQ(request.sequence, (SequenceHandle{1, 1}));
  answer(request, ErrorCode::kQuotaExceeded);
  answer(request);
  EXPECT_EQ(told, std::vector{ErrorCode::kQuotaExceeded});
}

TEST_F(GrantsTest, nobody_is_asked_any_more_when_djinnd_is_gone) {
  grants_.close();
  EXPECT_EQ(taken(), ErrorCode::kDisconnected);
  grants_.ask(kSession, {1, 1}, kBytes, [](const Status&) { ADD_FAILURE() << "nobody answers"; });
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(GrantsTest, an_answer_to_what_nobody_asked_is_no_grant) {
  answer(ipc::GrantRequest{77, ipc::GrantKind::kRefs, kSession, {}, kBytes, false, {}});
  EXPECT_EQ(taken(), kPending);
}

}  // namespace
}  // namespace djinn::worker
