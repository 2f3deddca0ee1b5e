// SPDX-License-Identifier: Apache-2.0

// Descriptors whose close waits: alone, and sent to a djinnd that runs as a process.
#include "daemon/djinnd/loop/deferred_close.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <condition_variable>
#include <set>

#include "daemon/djinnd/testing/no_threads.h"
#include "daemon/djinnd/testing/test_daemon.h"
#include "ipc/limits.h"
#include "ipc/test_messages.h"

namespace djinn::daemon {
namespace {

using testing::eventually;
using testing::TestClient;
using testing::TestDaemon;

constexpr Owner kUser = Owner::of_user(1);
constexpr Owner kNeighbour = Owner::of_user(2);

Fd some_file() {
  return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) != -1;
}

// A file system that answers when it is told to.
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { open(); }

  Closer::Close close() {
    return [state = state_](Fd fd) {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return !state->hanging.contains(fd.get()); });
    };
  }
  void hang(const Fd& fd) {
    const std::lock_guard lock(state_->mutex);
    state_->hanging.insert(fd.get());
  }
  void open() {
    const std::lock_guard lock(state_->mutex);
    state_->hanging.clear();
    state_->changed.notify_all();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::set<int> hanging;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Gives its number.
int close_one_that_hangs(DeferredClose& deferred_close, Gate& gate) {
  Fd hangs = some_file();
  const int number = hangs.get();
  gate.hang(hangs);
  deferred_close.of(kUser)->close(std::move(hangs));
  return number;
}

TEST(DeferredClose, the_last_holder_has_it_closed) {
  DeferredClose deferred_close;
  SharedFd first = deferred_close.of(kUser)->own(some_file());
  SharedFd second = first;
  const int number = first->get();
  first.reset();
  EXPECT_EQ(deferred_close.waiting(), 0u);
  EXPECT_TRUE(is_open(number));
  second.reset();
  EXPECT_TRUE(eventually([&] { return deferred_close.waiting() == 0; }));
  EXPECT_FALSE(is_open(number));
}

TEST(DeferredClose, own_nothing_where_there_is_none) {
  DeferredClose deferred_close;
  EXPECT_EQ(deferred_close.of(kUser)->own(Fd()), nullptr);
  deferred_close.of(kUser)->close(Fd());
  EXPECT_EQ(deferred_close.waiting(), 0u);
}

TEST(DeferredClose, one_that_hangs_holds_up_its_user_alone) {
  Gate gate;
  DeferredClose deferred_close(gate.close());
  close_one_that_hangs(deferred_close, gate);
  Fd behind = some_file();
  const int number = behind.get();
  deferred_close.of(kUser)->close(std::move(behind));
  Fd of_neighbour = some_file();
  const int number_of_neighbour = of_neighbour.get();
  deferred_close.of(kNeighbour)->close(std::move(of_neighbour));
  EXPECT_TRUE(eventually([&] { return !is_open(number_of_neighbour); }));
  EXPECT_EQ(deferred_close.of(kUser)->waiting(), 2u);
  EXPECT_TRUE(is_open(number));
  gate.open();
  EXPECT_TRUE(eventually([&] { return deferred_close.waiting() == 0; }));
  EXPECT_FALSE(is_open(number));
}

TEST(DeferredClose, who_had_no_thread_gets_one_when_somebody_comes) {
  DeferredClose deferred_close;
  Fd left = some_file();
  const int number = left.get();
  {
    const testing::NoThreads none;
    deferred_close.of(kUser)->close(std::move(left));
    deferred_close.of(kNeighbour);
  }
  EXPECT_TRUE(is_open(number));
  deferred_close.of(kNeighbour);
  EXPECT_TRUE(eventually([&] { return deferred_close.waiting() == 0; }));
  EXPECT_FALSE(is_open(number));
}

TEST(DeferredClose, remember_a_user_whose_descriptor_hangs) {
  Gate gate;
  DeferredClose deferred_close(gate.close());
  close_one_that_hangs(deferred_close, gate);
  EXPECT_EQ(deferred_close.of(kNeighbour)->waiting(), 0u);  // looks for who can be forgotten
  EXPECT_EQ(deferred_close.of(kUser)->waiting(), 1u);
}

TEST(DeferredClose, leave_behind_what_hangs) {
  Gate gate;
  int number = -1;
  {
    DeferredClose deferred_close(gate.close());
    number = close_one_that_hangs(deferred_close, gate);
  }
  EXPECT_TRUE(is_open(number));
  gate.open();
  EXPECT_TRUE(eventually([&] { return !is_open(number); }));
}

// --- djinnd

// A TCP socket whose last close waits for the peer to take what was sent: as a file whose file
// system does not answer, but within reach of every user.
class LingeringSocket {
 public:
  LingeringSocket() {
    const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(listener.get(), any, length), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), any, &length), 0);
    socket_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket_.get(), any, length), 0);
    peer_ = Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const linger patience{1, 60};  // seconds: longer than any test
    EXPECT_EQ(::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &patience, sizeof patience), 0);
    const std::vector<char> bytes(1 << 16);
    while (::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
  }
  [[nodiscard]] int fd() const { return socket_.get(); }
  // The other holders have it alone now.
  void let_go() { socket_.reset(); }
  void answer() { peer_.reset(); }

 private:
  Fd socket_;
  Fd peer_;
};

struct DeferredCloseHost {
  DeferredCloseHost() : observer(daemon) { observer.greet(true); }
  // Of a client that has gone.
  void make_one_hang(LingeringSocket& socket) {
    TestClient client(daemon);
    client.greet();
    ::kill(daemon.pid(), SIGSTOP);  // or its close might come before ours
    client.send({1000, ipc::AddFiles{1}}, {socket.fd()});
    socket.let_go();
    ::kill(daemon.pid(), SIGCONT);
    const auto reply = client.receive();
    EXPECT_TRUE(reply && std::holds_alternative<ipc::Failed>(reply->body)) << "it is no file";
  }
  uint32_t closing() {
    return observer.ask<ipc::StatusReport>(ipc::GetStatus{}).descriptors_closing;
  }
  TestDaemon daemon;
  TestClient observer;
};

TEST(DeferredClose, a_client_whose_file_does_not_close_holds_up_nobody) {
  DeferredCloseHost host;
  LingeringSocket socket;
  host.make_one_hang(socket);
  ASSERT_TRUE(eventually([&] { return host.closing() == 6; }))
      << "the file, the connection, and the bells and the memory of its session";
  TestClient another(host.daemon);
  another.greet();
  EXPECT_TRUE(another.ask<ipc::ModelList>(ipc::ListModels{}).models.empty());
  socket.answer();
  EXPECT_TRUE(eventually([&] { return host.closing() == 0; }));
}

TEST(DeferredClose, descriptors_that_a_message_may_not_bring_hold_up_nobody) {
  DeferredCloseHost host;
  const Fd file = some_file();
  for (const std::string_view bytes : {"too many", ""}) {
    LingeringSocket socket;
    std::vector<int> fds(bytes.empty() ? 0 : limits::kControlDescriptors, file.get());
    fds.push_back(socket.fd());
    ::kill(host.daemon.pid(), SIGSTOP);  // or its close might come before ours
    const auto sender = ipc::connect_unix(host.daemon.socket_path());
    EXPECT_EQ(ipc::testing::send_raw(sender->get(), std::as_bytes(std::span(bytes)), fds),
              static_cast<ssize_t>(bytes.size()));
    socket.let_go();
    ::kill(host.daemon.pid(), SIGCONT);
    ASSERT_TRUE(eventually([&] { return host.closing() > 0; })) << fds.size();
    if (!bytes.empty()) {
      Result<std::optional<ipc::Datagram>> notice = std::nullopt;
      ASSERT_TRUE(eventually([&] {
        notice = ipc::receive_datagram(sender->get());
        return notice.ok() && notice.value();
      })) << "who breaks a limit is told so";
      const auto reply = ipc::decode_daemon_reply(notice.value()->bytes);
      EXPECT_EQ(std::get<ipc::Failed>(reply->body).code, ErrorCode::kProtocolViolation);
    }
    TestClient another(host.daemon);
    another.greet();
    socket.answer();
    ASSERT_TRUE(eventually([&] { return host.closing() == 0; }));
  }
}

TEST(DeferredClose, a_user_with_too_many_files_that_do_not_close_adds_no_more) {
  DeferredCloseHost host;
  LingeringSocket socket;
  host.make_one_hang(socket);
  const Fd file = some_file();
  const std::vector<int> files(limits::kControlDescriptors, file.get());
  const auto add = [&](TestClient& client) {
    client.ask<ipc::Done>(ipc::AddFiles{limits::kControlDescriptors}, files);
  };
  for (uint32_t sent = 0; sent < limits::kClosingPerUser; sent += limits::kModelFiles) {
    TestClient client(host.daemon);
    client.greet(true);
    for (uint32_t i = 0; i < limits::kModelFiles; i += limits::kControlDescriptors) add(client);
  }
  ASSERT_TRUE(eventually([&] { return host.closing() > limits::kClosingPerUser; }));
  const auto is_refused = [](TestClient& client) {
    const auto reply = client.receive();
    const auto* failed = reply ? std::get_if<ipc::Failed>(&reply->body) : nullptr;
    return failed != nullptr && failed->code == ErrorCode::kLimitExceeded;
  };
  TestClient late(host.daemon);
  EXPECT_TRUE(is_refused(late));
  EXPECT_TRUE(host.observer.ask<ipc::ModelList>(ipc::ListModels{}).models.empty()) << "as ever";
  host.observer.send({1000, ipc::AddFiles{1}}, {file.get()});
  EXPECT_TRUE(is_refused(host.observer)) << "and its session ends";
  socket.answer();
  EXPECT_TRUE(eventually([&] {
    const auto again = ipc::connect_unix(host.daemon.socket_path());
    const auto hello =
        ipc::encode(ipc::ClientRequest{1, ipc::Hello{ipc::kProtocolVersion, "again", 0, true}});
    if (!ipc::send_datagram(again->get(), hello)) return false;  // it is refused already
    pollfd waiting{again->get(), POLLIN, 0};
    if (::poll(&waiting, 1, 1000) != 1) return false;
    const auto answer = ipc::receive_datagram(again->get());
    if (!answer || !*answer) return false;
    const auto reply = ipc::decode_daemon_reply((*answer)->bytes);
    return reply && std::holds_alternative<ipc::Welcome>(reply->body);
  }));
}

}  // namespace
}  // namespace djinn::daemon
