// SPDX-License-Identifier: Apache-2.0

#include "ipc/socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "ipc/test_messages.h"
#include "kernel/base/thread_state_for_tests.h"

namespace djinn::ipc {
namespace {

using testing::send_raw;

size_t open_descriptors() {
  size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(directory)) count += entry->d_name[0] != '.';
  ::closedir(directory);
  return count;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

Fd make_pipe_end() {
  int ends[2] = {};
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[1]);
  return Fd(ends[0]);
}

ino_t inode_of(int fd) {
  struct stat status {};
  EXPECT_EQ(::fstat(fd, &status), 0);
  return status.st_ino;
}

class Socket : public ::testing::Test {
 protected:
  void SetUp() override {
    auto pair = make_socket_pair();
    ASSERT_TRUE(pair);
    pair_ = *std::move(pair);
  }
  int left() const { return pair_.left.get(); }
  int right() const { return pair_.right.get(); }

  SocketPair pair_;
};

TEST_F(Socket, messages_arrive_whole_and_in_order) {
  ASSERT_TRUE(send_datagram(left(), bytes_of("first")));
  ASSERT_TRUE(send_datagram(left(), bytes_of("second message")));
  EXPECT_EQ(receive_datagram(right()).value()->bytes, bytes_of("first"));
  EXPECT_EQ(receive_datagram(right()).value()->bytes, bytes_of("second message"));
}

TEST_F(Socket, descriptors_arrive_in_order_and_close_on_exec) {
  const Fd first = make_pipe_end(), second = make_pipe_end();
  const int fds[] = {first.get(), second.get()};
  ASSERT_TRUE(send_datagram(left(), bytes_of("two"), fds));
  const auto datagram = receive_datagram(right());
  ASSERT_TRUE(datagram && *datagram);
  const std::vector<Fd>& got = (*datagram)->fds;
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(inode_of(got[0].get()), inode_of(first.get()));
  EXPECT_EQ(inode_of(got[1].get()), inode_of(second.get()));
  for (const Fd& fd : got) EXPECT_EQ(::fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(Socket, the_largest_message_with_the_most_descriptors_arrives) {
  const Fd pipe = make_pipe_end();
  const std::vector<int> fds(limits::kControlDescriptors, pipe.get());
  const std::vector<std::byte> bytes(limits::kControlMessageBytes, std::byte{7});
  ASSERT_TRUE(send_datagram(left(), bytes, fds));
  const auto datagram = receive_datagram(right());
  ASSERT_TRUE(datagram && *datagram);
  EXPECT_EQ((*datagram)->bytes, bytes);
  EXPECT_EQ((*datagram)->fds.size(), limits::kControlDescriptors);
}

TEST_F(Socket, nothing_waiting_is_nothing_and_not_an_error) {
  const auto datagram = receive_datagram(right());
  ASSERT_TRUE(datagram);
  EXPECT_FALSE(*datagram);
}

TEST_F(Socket, nothing_blocks_even_on_a_blocking_socket) {
  ASSERT_EQ(::fcntl(right(), F_SETFL, 0), 0);
  ASSERT_EQ(::fcntl(left(), F_SETFL, 0), 0);
  EXPECT_FALSE(receive_datagram(right()).value());
  Status sent;
  while (sent) sent = send_datagram(left(), std::vector<std::byte>(32 * 1024));
  EXPECT_EQ(sent.error().code, ErrorCode::kBusy);
}

TEST_F(Socket, a_full_socket_takes_messages_again_once_it_is_read) {
  Status sent;
  while (sent) sent = send_datagram(left(), std::vector<std::byte>(32 * 1024));
  EXPECT_EQ(sent.error().code, ErrorCode::kBusy);
  while (receive_datagram(right()).value()) continue;
  EXPECT_TRUE(send_datagram(left(), bytes_of("again")));
}

TEST_F(Socket, the_end_is_disconnected_after_what_was_sent_before) {
  ASSERT_TRUE(send_datagram(left(), bytes_of("last words")));
  pair_.left.reset();
  EXPECT_EQ(receive_datagram(right()).value()->bytes, bytes_of("last words"));
  EXPECT_EQ(receive_datagram(right()).error().code, ErrorCode::kDisconnected);
  EXPECT_EQ(send_datagram(right(), bytes_of("hello?")).error().code, ErrorCode::kDisconnected);
}

TEST_F(Socket, a_sender_does_not_send_what_a_receiver_refuses) {
  const std::vector<std::byte> large(limits::kControlMessageBytes + 1);
  const std::vector<int> many(limits::kControlDescriptors + 1, 0);
  EXPECT_EQ(send_datagram(left(), large).error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(send_datagram(left(), bytes_of("x"), many).error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(send_datagram(left(), {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(receive_datagram(right()).value());
}

TEST_F(Socket, a_truncated_message_leaks_no_descriptor) {
  const Fd pipe = make_pipe_end();
  const std::vector<int> fds(5, pipe.get());
  const size_t before = open_descriptors();
  ASSERT_GT(send_raw(left(), std::vector<std::byte>(limits::kControlMessageBytes + 1), fds), 0);
  EXPECT_EQ(receive_datagram(right()).error().code, ErrorCode::kProtocolViolation);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(Socket, too_many_descriptors_leak_none) {
  const Fd pipe = make_pipe_end();
  const size_t before = open_descriptors();
  for (const size_t count : {limits::kControlDescriptors + 1, 253u}) {
    ASSERT_GT(send_raw(left(), bytes_of("x"), std::vector<int>(count, pipe.get())), 0);
    EXPECT_EQ(receive_datagram(right()).error().code, ErrorCode::kProtocolViolation);
    EXPECT_EQ(open_descriptors(), before);
  }
}

TEST_F(Socket, an_empty_message_with_descriptors_leaks_none) {
  const Fd pipe = make_pipe_end();
  const size_t before = open_descriptors();
  ASSERT_EQ(send_raw(left(), {}, std::vector<int>(3, pipe.get())), 0);
  EXPECT_EQ(receive_datagram(right()).error().code, ErrorCode::kDisconnected);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(Socket, a_dropped_datagram_closes_its_descriptors) {
  const Fd pipe = make_pipe_end();
  const size_t before = open_descriptors();
  const int fds[] = {pipe.get()};
  ASSERT_TRUE(send_datagram(left(), bytes_of("x"), fds));
  { ASSERT_EQ(receive_datagram(right()).value()->fds.size(), 1u); }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(Socket, a_peer_is_known_by_what_the_kernel_recorded) {
  const auto peer = peer_of(left());
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_EQ(peer->uid, ::geteuid());
  EXPECT_NE(std::find(peer->groups.begin(), peer->groups.end(), ::getegid()), peer->groups.end());
}

// --- connecting

class Connecting : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(directory_.data()), nullptr); }
  void TearDown() override {
    ::unlink(path().c_str());
    ::rmdir(directory_.c_str());
  }
  std::string path() const { return directory_ + "/socket"; }
  Fd bound() const {
    Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path().data(), path().size());
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }

  std::string directory_ = ::testing::TempDir() + "djinn-socket-XXXXXX";
};

TEST_F(Connecting, a_connection_carries_messages) {
  const Fd listener = bound();
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  const auto client = connect_unix(path());
  ASSERT_TRUE(client) << client.error().message;
  const Fd server(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(send_datagram(client->get(), bytes_of("hello")));
  EXPECT_EQ(receive_datagram(server.get()).value()->bytes, bytes_of("hello"));
}

TEST_F(Connecting, nobody_there_is_not_found) {
  EXPECT_EQ(connect_unix(path()).error().code, ErrorCode::kNotFound);
  const Fd socket = bound();  // bound, but nobody listens
  EXPECT_EQ(connect_unix(path()).error().code, ErrorCode::kNotFound);
}

TEST_F(Connecting, a_full_queue_is_busy) {
  const Fd listener = bound();
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  std::vector<Fd> queued;
  for (;;) {
    auto client = connect_unix(path());
    if (!client) {
      EXPECT_EQ(client.error().code, ErrorCode::kBusy);
      break;
    }
    queued.push_back(*std::move(client));
    ASSERT_LT(queued.size(), 10u);
  }
}

TEST_F(Connecting, who_waits_for_a_full_queue_is_taken_once_there_is_room) {
  const Fd listener = bound();
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  std::vector<Fd> queued;
  for (auto one = connect_unix(path()); one; one = connect_unix(path())) {
    queued.push_back(*std::move(one));
  }
  const Fd socket = *make_unix_socket();
  EXPECT_EQ(connect_unix(socket, path(), 1).error().code, ErrorCode::kBusy);
  std::atomic<pid_t> waiting{0};
  Status connected = Error{ErrorCode::kInternal, ""};
  std::thread client([&] {
    waiting = ::gettid();
    connected = connect_unix(socket, path(), 60'000);
  });
  while (waiting == 0 || state_of(waiting) != 'S') std::this_thread::yield();
  const Fd first(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  client.join();
  ASSERT_TRUE(connected) << connected.error().message;
  EXPECT_NE(::fcntl(socket.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(Connecting, a_path_that_does_not_fit_an_address_is_refused) {
  EXPECT_EQ(connect_unix("").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(connect_unix(std::string(108, 'x')).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(connect_unix(std::string("/tmp/a\0b", 8)).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace djinn::ipc
