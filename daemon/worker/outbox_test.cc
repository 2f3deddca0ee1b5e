// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/outbox.h"

#include <sys/socket.h>

#include <map>
#include <thread>

#include "daemon/worker/djinnd_for_tests.h"

namespace djinn::worker {
namespace {

class OutboxTest : public DjinndTest {};

TEST_F(OutboxTest, what_threads_say_arrives_whole_and_in_the_order_of_each) {
  constexpr uint64_t kThreads = 4;
  constexpr uint32_t kEach = 500;  // more than the socket holds: who speaks waits for djinnd
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (uint32_t i = 1; i <= kEach; ++i) {
        outbox_.send({ipc::SequenceDropped{SessionId{t}, SequenceHandle{i, 1}}});
      }
    });
  }
  std::map<SessionId, uint32_t> last;
  for (uint64_t i = 0; i < kThreads * kEach; ++i) {
    const auto said = heard<ipc::SequenceDropped>();
    ASSERT_EQ(said.sequence.index, ++last[said.session]);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(OutboxTest, what_is_said_to_a_djinnd_that_is_gone_is_lost) {
  ::shutdown(djinnd_.socket().get(), SHUT_RDWR);
  for (int i = 0; i < 1000; ++i) outbox_.send({ipc::LaneAwake{}});
}

}  // namespace
}  // namespace djinn::worker
