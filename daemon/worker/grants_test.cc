// SPDX-License-Identifier: Apache-2.0

// Questions of the lane about memory, and answers that come when nobody waits any more.
#include "daemon/worker/grants.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "ipc/codec/control_codec.h"

namespace djinn::worker {
namespace {

constexpr SessionId kSession{7};
constexpr uint64_t kBytes = 4096;

class GrantsTest : public ::testing::Test {
 protected:
  // What a step that needs the memory is told; kOk: it has it.
  ErrorCode taken(uint64_t bytes = kBytes) {
    const auto answer = grants_.take(ipc::GrantKind::kRefs, kSession, bytes);
    return answer ? ErrorCode::kOk : answer.error().code;
  }
  void give_up() { grants_.forget(ipc::GrantKind::kRefs, kSession); }
  ipc::GrantRequest asked() {
    pollfd entry{djinnd_.socket().get(), POLLIN, 0};
    if (::poll(&entry, 1, 20'000) != 1) {
      ADD_FAILURE() << "nothing is asked for";
      return {};
    }
    const auto message = djinnd_.receive();
    return std::get<ipc::GrantRequest>(ipc::decode_worker_event(message->bytes)->body);
  }
  [[nodiscard]] bool nothing_is_said() {
    pollfd entry{djinnd_.socket().get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 0;
  }
  void answer(const ipc::GrantRequest& request, ErrorCode code = ErrorCode::kOk) {
    grants_.deliver(ipc::GrantAnswer{request.request, code, {}});
  }

  ipc::SocketPair pair_ = *ipc::make_socket_pair();
  child::Channel worker_{std::move(pair_.left)};
  child::Channel djinnd_{std::move(pair_.right)};
  Outbox outbox_{worker_};
  Waits waits_{[] {}};
  Grants grants_{outbox_, waits_};
};

TEST_F(GrantsTest, a_refusal_is_told_to_the_step_that_asked) {
  EXPECT_EQ(taken(), ErrorCode::kPending);
  answer(asked(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(taken(), ErrorCode::kOutOfMemory);
}

TEST_F(GrantsTest, a_step_after_one_that_was_given_up_is_not_told_of_that) {
  EXPECT_EQ(taken(), ErrorCode::kPending);
  const ipc::GrantRequest first = asked();
  give_up();
  EXPECT_EQ(taken(), ErrorCode::kPending) << "the answer is still on its way";
  EXPECT_TRUE(nothing_is_said());
  answer(first, ErrorCode::kCancelled);
  EXPECT_EQ(taken(), ErrorCode::kPending) << "it asks for itself";
  answer(asked());
  EXPECT_EQ(taken(), ErrorCode::kOk);
}

TEST_F(GrantsTest, a_step_takes_up_what_one_that_was_given_up_is_granted) {
  EXPECT_EQ(taken(), ErrorCode::kPending);
  const ipc::GrantRequest first = asked();
  give_up();
  EXPECT_EQ(taken(), ErrorCode::kPending);
  answer(first);
  EXPECT_EQ(taken(), ErrorCode::kOk);
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(GrantsTest, what_nobody_takes_up_is_given_back) {
  EXPECT_EQ(taken(), ErrorCode::kPending);
  const ipc::GrantRequest first = asked();
  give_up();
  answer(first);
  const auto said = ipc::decode_worker_event(djinnd_.receive()->bytes);
  EXPECT_EQ(std::get<ipc::GrantReturn>(said->body).bytes, kBytes);
}

}  // namespace
}  // namespace djinn::worker
