// SPDX-License-Identifier: Apache-2.0

#include "ipc/bell.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace djinn::ipc {
namespace {

bool is_readable(const Fd& fd) {
  pollfd entry{fd.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

void make_blocking(const Fd& fd) {
  ASSERT_EQ(::fcntl(fd.get(), F_SETFL, 0), 0);
}

struct Watched {
  Fd epoll{::epoll_create1(EPOLL_CLOEXEC)};
  Fd bell = *make_submission_bell();
  Watched() { EXPECT_TRUE(watch_submission_bell(epoll, bell, 7)); }

  // Takes them.
  [[nodiscard]] int events() const {
    std::array<epoll_event, 8> events;
    const int count = ::epoll_wait(epoll.get(), events.data(), events.size(), 0);
    for (int i = 0; i < count; ++i) EXPECT_EQ(events[static_cast<size_t>(i)].data.u64, 7u);
    return count;
  }
};

TEST(SubmissionBell, each_ring_is_an_event_though_nobody_reads_the_bell) {
  const Watched watched;
  EXPECT_EQ(watched.events(), 0);
  for (int i = 0; i < 3; ++i) {
    ring_submission_bell(watched.bell);
    EXPECT_EQ(watched.events(), 1);
    EXPECT_EQ(watched.events(), 0);
  }
}

TEST(SubmissionBell, what_was_rung_before_the_watch_is_an_event) {
  const Fd bell = *make_submission_bell();
  ring_submission_bell(bell);
  const Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  ASSERT_TRUE(watch_submission_bell(epoll, bell, 7));
  EXPECT_TRUE(is_readable(epoll));
}

TEST(SubmissionBell, one_that_a_client_made_blocking_and_filled_stops_no_watcher) {
  const Watched watched;
  make_blocking(watched.bell);
  const uint64_t full = UINT64_MAX - 1;
  ASSERT_EQ(::write(watched.bell.get(), &full, sizeof full), ssize_t{sizeof full});
  EXPECT_EQ(watched.events(), 1);
  EXPECT_EQ(watched.events(), 0);
}

TEST(SubmissionBell, a_watch_ends_although_a_client_keeps_the_bell) {
  Watched watched;
  const Fd of_client(::fcntl(watched.bell.get(), F_DUPFD_CLOEXEC, 0));
  unwatch_submission_bell(watched.epoll, watched.bell);
  watched.bell.reset();
  ring_submission_bell(of_client);
  EXPECT_EQ(watched.events(), 0);
}

TEST(CompletionBell, rings_wake_the_listener_until_they_are_taken) {
  const CompletionBell bell = *make_completion_bell();
  EXPECT_FALSE(is_readable(bell.listener));
  for (int i = 0; i < 3; ++i) {
    ring_completion_bell(bell.bell);
    ring_completion_bell(bell.bell);
    EXPECT_TRUE(is_readable(bell.listener));
    take_rings(bell.listener);
    EXPECT_FALSE(is_readable(bell.listener));
  }
}

TEST(CompletionBell, a_listener_that_takes_no_ring_and_clears_o_nonblock_stops_no_ringer) {
  const CompletionBell bell = *make_completion_bell();
  make_blocking(bell.listener);
  EXPECT_NE(::fcntl(bell.bell.get(), F_GETFL) & O_NONBLOCK, 0) << "the flags are not shared";
  for (int i = 0; i < 100'000; ++i) ring_completion_bell(bell.bell);
  EXPECT_TRUE(is_readable(bell.listener));
}

TEST(CompletionBell, nothing_comes_through_the_listener) {
  const CompletionBell bell = *make_completion_bell();
  EXPECT_EQ(::send(bell.listener.get(), "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(CompletionBell, a_ring_for_a_client_that_is_gone_is_no_signal) {
  CompletionBell bell = *make_completion_bell();
  bell.listener.reset();
  ring_completion_bell(bell.bell);  // SIGPIPE would end this process
}

}  // namespace
}  // namespace djinn::ipc
