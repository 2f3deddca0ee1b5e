// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/departed.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <vector>

#include "daemon/djinnd/testing/inode_holder.h"
#include "daemon/djinnd/testing/test_daemon.h"

namespace djinn::daemon {
namespace {

using testing::eventually;
using testing::TestClient;
using testing::TestDaemon;

constexpr uint64_t kStaging = 8u << 20;

uint64_t pages_of(const Fd& memory) {
  struct stat info {};
  EXPECT_EQ(::fstat(memory.get(), &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

struct DepartedHost {
  explicit DepartedHost(const std::vector<std::string>& options = {})
      : daemon(options), observer(daemon) {
    observer.greet(true);
    for (char& letter : content) letter = static_cast<char>('a' + (&letter - content.data()) % 26);
  }
  // A session with a full staging slab.
  SessionId fill(TestClient& client) const {
    const SessionId session = client.greet(false, kStaging).session;
    EXPECT_EQ(::pwrite(client.memory().get(), content.data(), content.size(), kOffset),
              static_cast<ssize_t>(content.size()));
    return session;
  }
  [[nodiscard]] bool has_content(const TestClient& client) const {
    std::string found(content.size(), '\0');
    EXPECT_EQ(::pread(client.memory().get(), found.data(), found.size(), kOffset),
              static_cast<ssize_t>(found.size()));
    return found == content;
  }
  uint64_t held() {
    return observer.ask<ipc::StatusReport>(ipc::GetStatus{}).memory_sessions_bytes;
  }
  static constexpr off_t kOffset = ipc::SessionLayout::kStagingOffset;
  TestDaemon daemon;
  TestClient observer;
  std::string content = std::string(kStaging, '\0');
};

// Hears why, and that djinnd says no more.
void expect_ended(TestClient& client, ErrorCode why) {
  const auto notice = client.receive();
  ASSERT_TRUE(notice.has_value());
  EXPECT_EQ(std::get<ipc::Failed>(notice->body).code, why);
  EXPECT_FALSE(client.receive().has_value());
}

TEST(Departed, what_a_client_keeps_of_its_session_is_freed_all_the_same) {
  DepartedHost host;
  TestClient client(host.daemon);
  host.fill(client);
  EXPECT_GE(pages_of(client.memory()), kStaging);
  EXPECT_GE(host.held(), kStaging);
  client.disconnect();
  EXPECT_TRUE(eventually([&] { return host.held() == 0; }));
  EXPECT_EQ(pages_of(client.memory()), 0u) << "it has the memory open and mapped still";
}

TEST(Departed, the_memory_of_a_session_that_was_ended_stays_and_counts_until_the_client_hangs_up) {
  DepartedHost host;
  TestClient client(host.daemon);
  const SessionId session = host.fill(client);
  const uint64_t held = host.held();
  host.observer.ask<ipc::Done>(ipc::TerminateSession{session});
  expect_ended(client, ErrorCode::kCancelled);
  EXPECT_TRUE(eventually([&] { return host.held() < held; })) << "what it does not share";
  EXPECT_TRUE(host.has_content(client)) << "it may have been about to look";
  EXPECT_GE(host.held(), kStaging);
  client.disconnect();
  EXPECT_TRUE(eventually([&] { return host.held() == 0; }));
  EXPECT_EQ(pages_of(client.memory()), 0u);
}

// Else its end stays open in what djinnd has not received, when the client is gone.
TEST(Departed, what_the_client_of_an_ended_session_sends_is_received_with_its_own_end_in_it) {
  DepartedHost host;
  TestClient before(host.daemon), after(host.daemon);
  host.fill(before);
  host.fill(after);
  const ipc::ClientRequest request{9, ipc::AddFiles{1}};
  before.send_bytes("no message");
  before.send(request, {before.socket()});
  after.send_bytes("no message");
  for (TestClient* client : {&before, &after}) expect_ended(*client, ErrorCode::kProtocolViolation);
  after.send(request, {after.socket()});
  for (TestClient* client : {&before, &after}) client->disconnect();
  EXPECT_TRUE(eventually([&] { return host.held() == 0; }));
}

TEST(Departed, sessions_that_were_ended_count_until_their_clients_hang_up) {
  const DepartedHost host;
  std::vector<TestClient> clients;
  for (uint32_t i = 0; i + 1 < limits::kSessionsPerUser; ++i) {  // and the observer
    clients.emplace_back(host.daemon).greet();
    clients.back().send_bytes("no message");
  }
  for (TestClient& client : clients) expect_ended(client, ErrorCode::kProtocolViolation);
  TestClient one_too_many(host.daemon);
  expect_ended(one_too_many, ErrorCode::kLimitExceeded);
  clients.pop_back();
  EXPECT_TRUE(eventually([&] {
    TestClient next(host.daemon);
    const ipc::Hello hello{ipc::kProtocolVersion, "test", 1 << 16, true};
    if (!next.try_send({1, hello}).ok()) return false;
    const auto reply = next.receive();
    return reply && std::holds_alternative<ipc::Welcome>(reply->body);
  }));
}

// Or a program that opens and closes in haste is refused for what it has closed.
TEST(Departed, newcomers_wait_for_sessions_of_their_user_that_are_on_their_way_out) {
  DepartedHost host({"--hang-timeout-ms", "3600000"});
  TestClient stays(host.daemon), next(host.daemon);
  stays.greet();
  const auto in_state = [&](ipc::SessionState state) {
    const auto list = host.observer.ask<ipc::SessionList>(ipc::ListSessions{});
    return std::ranges::count(list.sessions, state, &ipc::SessionReport::state);
  };
  const auto status = host.observer.ask<ipc::StatusReport>(ipc::GetStatus{});
  const auto worker = static_cast<pid_t>(status.workers.at(0).pid);
  ::kill(worker, SIGSTOP);  // it lets go of nobody
  for (int i = 0; i < 8; ++i) {
    TestClient hasty(host.daemon);
    hasty.greet();
    hasty.disconnect();
  }
  ASSERT_TRUE(eventually([&] { return in_state(ipc::SessionState::kDraining) == 8; }));
  next.send({1, ipc::Hello{ipc::kProtocolVersion, "test", 1 << 16}});
  ASSERT_TRUE(eventually([&] { return in_state(ipc::SessionState::kIdle) == 3; }));  // it is heard
  EXPECT_FALSE(next.has_reply());
  ::kill(worker, SIGCONT);
  const auto reply = next.receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_TRUE(std::holds_alternative<ipc::Welcome>(reply->body));
}

TEST(Departed, nobody_waits_for_memory_whose_client_lets_nobody_free_it) {
  DepartedHost host({"--memory", std::to_string(64u << 20)});
  TestClient hostile(host.daemon), neighbour(host.daemon);
  hostile.greet(false, 40u << 20);
  testing::InodeHolder holder(hostile.memory());
  if (!holder.has_begun()) GTEST_SKIP() << "NEEDS ROOT, to serve page faults of the kernel";
  ASSERT_TRUE(eventually([&] { return holder.holds(); }));
  hostile.disconnect();
  const ipc::Hello hello{ipc::kProtocolVersion, "test", 40u << 20};
  EXPECT_EQ(neighbour.ask<ipc::Failed>(hello).code, ErrorCode::kOutOfMemory);
  EXPECT_GE(host.held(), 40u << 20) << "its pages are there";
  holder.let_go();
  EXPECT_TRUE(eventually([&] { return host.held() == 0; }));
  neighbour.greet(false, 40u << 20);
}

}  // namespace
}  // namespace djinn::daemon
