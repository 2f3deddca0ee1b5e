// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/channel.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <utility>

#include "daemon/djinnd/testing/run_until.h"
#include "ipc/limits.h"
#include "kernel/base/clock.h"
#include "kernel/base/clock_for_tests.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kPatienceMs = 20;
constexpr uint64_t kDeadlineMs = 60'000;
constexpr size_t kAnswers = 64;  // more than a socket holds
constexpr std::array<std::byte, limits::kControlMessageBytes> kAnswer{};

// A channel to a client that reads nothing, until it ends.
class ChannelTest : public ::testing::Test {
 protected:
  ChannelTest() {
    channel_.take_turns(turns_, Owner::of_user(::geteuid()), kPatienceMs);
    for (size_t i = 0; i < kAnswers; ++i) channel_.send(kAnswer);
  }
  void send(std::span<const int> fds = {}) {
    EXPECT_TRUE(ipc::send_datagram(client_.get(), std::as_bytes(std::span("more")), fds).ok());
  }
  void run() {
    deadline_.start_once(kDeadlineMs);
    loop_.run();
  }

  SystemClock clock_;
  Loop loop_;
  Turns turns_{clock_};
  Check turn_{loop_, [this] { turns_.take(); }};
  Timer deadline_{loop_, [this] { loop_.stop(); }};
  Traffic traffic_;
  ipc::SocketPair ends_ = *ipc::make_socket_pair();
  Fd client_ = std::move(ends_.left);
  std::optional<ErrorCode> ended_;
  Channel channel_{loop_, std::move(ends_.right), kAnswers, traffic_,
                   Channel::Events{[](const ipc::Datagram&) {},
                                   [this](const Error& error) {
                                     ended_ = error.code;
                                     loop_.stop();
                                   }}};
};

TEST_F(ChannelTest, a_client_that_reads_nothing_and_sends_its_own_end_is_not_there_for_ever) {
  send({{client_.get()}});
  client_.reset();
  run();
  EXPECT_EQ(ended_, ErrorCode::kQueueFull);
}

TEST_F(ChannelTest, a_client_that_reads_nothing_may_stand_still) {
  Timer patience_is_over(loop_, [this] { loop_.stop(); });
  patience_is_over.start_once(5 * kPatienceMs);
  run();
  EXPECT_FALSE(ended_.has_value());
}

TEST(PassedChannel, is_heard_in_the_other_users_turns_and_closed_as_theirs) {
  constexpr Owner kFirst = Owner::of_user(1);
  constexpr Owner kOther = Owner::of_principal(1);
  Loop loop;
  ClockByHand clock;
  const Share share;
  Turns turns(clock, share);
  const Check turn(loop, [&] { turns.take(); });
  Traffic traffic;
  ipc::SocketPair ends = *ipc::make_socket_pair();
  int heard = 0, closed_by_first = 0, closed_by_other = 0;
  std::optional<Channel> channel;
  const auto hear = [&](const ipc::Datagram&) {
    if (++heard > 1) return;
    channel->pass_to(kOther, [&](Fd) { ++closed_by_other; });
    clock.now_ns += 2 * share.saved_ns;  // the first user rests from now on
  };
  channel.emplace(loop, std::move(ends.right), kAnswers, traffic,
                  Channel::Events{hear, [](const Error&) {}}, [&](Fd) { ++closed_by_first; });
  channel->take_turns(turns, kFirst);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(ipc::send_datagram(ends.left.get(), std::as_bytes(std::span("more"))).ok());
  }
  testing::run_until(loop, "all is heard", [&] { return heard == 3; });
  channel.reset();
  EXPECT_EQ(closed_by_first, 0);
  EXPECT_EQ(closed_by_other, 1);
}

}  // namespace
}  // namespace djinn::daemon
