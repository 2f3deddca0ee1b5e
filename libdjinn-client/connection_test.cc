// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/connection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernel/base/clock.h"
#include "libdjinn-client/testing/fake_daemon.h"

namespace djinn::client {
namespace {

using testing::eventually;
using testing::FakeDaemon;

constexpr uint64_t kLong = 20'000;  // longer than any of these tests

ConnectOptions options_for(const FakeDaemon& daemon) {
  ConnectOptions options;
  options.host = daemon.host();
  options.staging_bytes = 1 << 16;
  return options;
}

Status run_one(Client& client) {
  DJINN_TRY(const Run run, client.submit(SubmissionTarget(), {}));
  DJINN_TRY(const Outcome outcome, client.wait(run));
  if (outcome.error != ErrorCode::kOk) return Error{outcome.error, outcome.message};
  return {};
}

ErrorCode code_of(const auto& result) {
  return result ? ErrorCode::kOk : result.error().code;
}

uint16_t number(ErrorCode code) {
  return static_cast<uint16_t>(code);
}

uint64_t now_ms() {
  return SystemClock().monotonic_ns() / kNsPerMs;
}

TEST(Backoff, pauses_grow_to_a_limit_and_differ_between_clients) {
  Backoff one(1);
  Backoff other(2);
  uint64_t most = 20;
  uint64_t different = 0;
  for (int i = 0; i < 12; ++i, most = std::min<uint64_t>(2 * most, 500)) {
    const uint64_t pause = one.next_ms();
    EXPECT_GE(pause, most / 2);
    EXPECT_LE(pause, most);
    different += pause != other.next_ms();
  }
  EXPECT_GT(different, 6u);
}

TEST(Connection, the_first_session_gets_one_attempt) {
  ConnectOptions options;
  options.host = "unix:/nonexistent/djinnd.sock";
  Connection connection(options, kLong);
  EXPECT_EQ(connection.session(), 0u);
  const uint64_t began = now_ms();
  EXPECT_EQ(code_of(connection.open()), ErrorCode::kNotFound);
  EXPECT_LT(now_ms() - began, kLong / 2);
  EXPECT_EQ(code_of(connection.check()), ErrorCode::kDisconnected);
  EXPECT_EQ(code_of(connection.of(uint64_t{1})), ErrorCode::kDisconnected);
}

TEST(Connection, what_opens_something_gets_a_new_session_and_old_handles_stay_gone) {
  FakeDaemon daemon;
  Connection connection(options_for(daemon), kLong);
  ASSERT_TRUE(connection.open());
  for (uint64_t session = 1; session < 4; ++session) {
    ASSERT_EQ(connection.session(), session);
    ASSERT_TRUE(connection.of(session));
    daemon.stop();
    EXPECT_EQ(code_of(run_one(**connection.of(session))), ErrorCode::kDisconnected);
    daemon.start();
    const auto gone = connection.of(session);
    ASSERT_EQ(code_of(gone), ErrorCode::kDisconnected);
    EXPECT_NE(gone.error().message.find("a session that is gone"), std::string::npos);
    EXPECT_NE(gone.error().message.find("djinnd was stopped or restarted"), std::string::npos);
    const auto client = connection.open();
    ASSERT_TRUE(client);
    EXPECT_TRUE(run_one(**client));
    EXPECT_EQ(code_of(connection.of(session)), ErrorCode::kDisconnected);
  }
  EXPECT_EQ(daemon.sessions_made(), 4u);
}

TEST(Connection, a_djinnd_that_does_not_answer_the_first_session_is_a_timeout) {
  FakeDaemon daemon;
  daemon.set_paused(true);
  ConnectOptions options = options_for(daemon);
  options.answer_ms = 1;  // a second is the least
  Connection connection(options);
  const auto made = connection.open();
  ASSERT_EQ(code_of(made), ErrorCode::kTimeout);
  EXPECT_NE(made.error().message.find("does not answer in time: it is stopped"), std::string::npos);
  daemon.set_paused(false);
  EXPECT_TRUE(connection.open());
}

TEST(Connection, a_session_that_lives_is_kept) {
  FakeDaemon daemon;
  Connection connection(options_for(daemon));
  Client* const client = *connection.open();
  EXPECT_EQ(*connection.open(), client);
  EXPECT_TRUE(connection.reconnect(kLong));
  EXPECT_EQ(*connection.of(connection.session()), client);
  EXPECT_EQ(daemon.sessions_made(), 1u);
}

TEST(Connection, opening_waits_until_djinnd_is_back) {
  FakeDaemon daemon;
  Connection connection(options_for(daemon), kLong);
  ASSERT_TRUE(connection.open());
  daemon.stop();
  std::atomic<bool> asked = false;
  std::thread restart([&] {
    EXPECT_TRUE(eventually([&] { return asked.load(); }));
    daemon.start();
  });
  // Asked during the first pause, so after an attempt that failed.
  const auto client = connection.open([&] {
    asked = true;
    return false;
  });
  restart.join();
  ASSERT_TRUE(client);
  EXPECT_TRUE(run_one(**client));
}

TEST(Connection, the_wait_is_bounded_and_counts_from_when_the_end_was_seen) {
  FakeDaemon daemon;
  constexpr uint64_t kWait = 300;
  Connection connection(options_for(daemon), kWait);
  ASSERT_TRUE(connection.open());
  daemon.stop();
  uint64_t began = now_ms();
  const auto first = connection.open();
  EXPECT_EQ(code_of(first), ErrorCode::kDisconnected);
  EXPECT_NE(first.error().message.find("No djinnd answers"), std::string::npos);
  EXPECT_GE(now_ms() - began, kWait - 1);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(code_of(connection.open()), ErrorCode::kDisconnected);
  EXPECT_LT(now_ms() - began, 100 * kWait) << "each later call makes one attempt";
  daemon.start();
  EXPECT_TRUE(connection.open());
}

TEST(Connection, reconnect_tells_what_the_last_attempt_met) {
  FakeDaemon daemon;
  Connection connection(options_for(daemon), std::nullopt);
  ASSERT_TRUE(connection.open());
  daemon.stop();
  EXPECT_EQ(code_of(connection.open()), ErrorCode::kDisconnected) << "it was told not to";
  EXPECT_EQ(code_of(connection.reconnect(0)), ErrorCode::kNotFound);
  daemon.start();
  daemon.refuse(number(ErrorCode::kBusy));
  EXPECT_EQ(code_of(connection.reconnect(100)), ErrorCode::kBusy);
  daemon.refuse(number(ErrorCode::kLimitExceeded));
  const uint64_t began = now_ms();
  EXPECT_EQ(code_of(connection.reconnect(kLong)), ErrorCode::kLimitExceeded);
  EXPECT_LT(now_ms() - began, kLong / 2) << "that does not pass, so nobody waits for it";
  daemon.refuse(std::nullopt);
  EXPECT_EQ(connection.session(), 1u);
  EXPECT_TRUE(connection.reconnect(0));
  EXPECT_EQ(connection.session(), 2u);
}

TEST(Connection, a_djinnd_that_does_not_answer_is_a_timeout) {
  FakeDaemon daemon;
  Connection connection(options_for(daemon), std::nullopt);
  ASSERT_TRUE(connection.open());
  daemon.stop();
  daemon.set_silent(true);
  daemon.start();
  EXPECT_EQ(code_of(connection.reconnect(0)), ErrorCode::kTimeout);
  daemon.set_silent(false);
  EXPECT_TRUE(connection.reconnect(kLong));
}

TEST(Connection, a_djinnd_that_begins_late_has_as_long_to_answer_as_one_that_was_waited_for) {
  constexpr uint64_t kWaitMs = 1200;  // longer than any attempt has at least
  FakeDaemon daemon;
  Connection connection(options_for(daemon), kWaitMs);
  ASSERT_TRUE(connection.open());
  daemon.stop();
  ASSERT_FALSE(connection.open()) << "and the wait is over";
  daemon.set_silent(true);
  daemon.start();
  const uint64_t began = now_ms();
  EXPECT_FALSE(connection.open());
  EXPECT_GE(now_ms() - began, kWaitMs);
  daemon.set_silent(false);
  EXPECT_TRUE(connection.open());
}

TEST(Connection, who_waits_can_give_up) {
  FakeDaemon daemon;
  Connection connection(options_for(daemon), kLong);
  ASSERT_TRUE(connection.open());
  daemon.stop();
  const uint64_t began = now_ms();
  EXPECT_EQ(code_of(connection.open([] { return true; })), ErrorCode::kCancelled);
  EXPECT_LT(now_ms() - began, kLong / 2);
  daemon.start();
  EXPECT_TRUE(connection.open());
}

TEST(Connection, an_administrators_last_word_is_told_to_what_was_in_flight_and_to_handles) {
  FakeDaemon daemon;
  Connection connection(options_for(daemon), kLong);
  Client* const client = *connection.open();
  daemon.set_stuck(true);
  std::thread administrator([&] {
    daemon.end_sessions(number(ErrorCode::kCancelled), "An administrator ended the session.");
  });
  EXPECT_EQ(code_of(run_one(*client)), ErrorCode::kDisconnected);
  administrator.join();
  daemon.set_stuck(false);
  const auto gone = connection.of(uint64_t{1});
  ASSERT_EQ(code_of(gone), ErrorCode::kDisconnected);
  EXPECT_NE(gone.error().message.find("An administrator ended"), std::string::npos);
  EXPECT_TRUE(run_one(**connection.open()));
}

TEST(Connection, an_administrators_last_word_that_nobody_met_is_told_once) {
  FakeDaemon daemon;
  Connection connection(options_for(daemon), kLong);
  ASSERT_TRUE(connection.open());
  daemon.end_sessions(number(ErrorCode::kCancelled), "An administrator ended the session.");
  const auto told = connection.open();
  ASSERT_EQ(code_of(told), ErrorCode::kDisconnected);
  EXPECT_EQ(told.error().message, "An administrator ended the session.");
  EXPECT_TRUE(run_one(**connection.open()));
}

TEST(Connection, a_ref_is_never_taken_for_one_of_another_session) {
  FakeDaemon daemon;
  Connection connection(options_for(daemon), kLong);
  std::vector<RefHandle> refs;
  for (uint64_t session = 1; session < 5; ++session) {
    Client* const client = *connection.open();
    for (const RefHandle ref : refs) {
      EXPECT_EQ(code_of(connection.of(ref)), ErrorCode::kDisconnected);
    }
    for (int i = 0; i < 3; ++i) {
      refs.push_back((*client->new_ref()).detach());
      EXPECT_EQ(*connection.of(refs.back()), client);
      if (i == 1) client->forget_ref(refs.back());  // the slot's next ref is of a later generation
    }
    daemon.stop();
    daemon.start();
  }
}

TEST(Client, a_ref_that_is_forgotten_twice_frees_its_slot_once) {
  FakeDaemon daemon;
  Connection connection(options_for(daemon));
  Client* const client = *connection.open();
  const RefHandle first = (*client->new_ref()).detach();
  for (int i = 0; i < 3; ++i) client->forget_ref(first);
  client->forget_ref({UINT32_MAX, 1});
  const RefHandle second = (*client->new_ref()).detach();
  client->forget_ref(first);  // its slot has another tenant by now
  const RefHandle third = (*client->new_ref()).detach();
  EXPECT_EQ(second.index, first.index);
  EXPECT_NE(third.index, second.index);
}

TEST(Connection, while_it_is_held_nobody_gets_its_client) {
  FakeDaemon daemon;
  Connection connection(options_for(daemon), kLong);
  Client* const client = *connection.open();
  {
    const Connection::Hold hold(connection);
    daemon.stop();
    daemon.start();
    EXPECT_EQ(code_of(connection.open()), ErrorCode::kBusy);
    EXPECT_EQ(code_of(connection.of(uint64_t{1})), ErrorCode::kBusy);
    EXPECT_EQ(code_of(connection.reconnect(0)), ErrorCode::kBusy);
    EXPECT_EQ(code_of(run_one(*client)), ErrorCode::kDisconnected) << "it is there still";
  }
  EXPECT_TRUE(connection.open());
}

// Its sockets and rings are the parent's: a child that used them would take the parent's answers.
TEST(Connection, the_child_of_a_fork_gets_a_session_of_its_own) {
  FakeDaemon daemon;
  Connection connection(options_for(daemon), kLong);
  Client* const client = *connection.open();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool gone = code_of(connection.of(uint64_t{1})) == ErrorCode::kDisconnected;
    const auto own = connection.open();
    const bool works = own && run_one(**own) && connection.session() == 2;
    ::_exit(gone && works ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*connection.of(uint64_t{1}), client);
  EXPECT_TRUE(run_one(*client));
}

TEST(Connection, a_child_does_not_keep_its_parents_lease) {
  FakeDaemon daemon;
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  pid_t child = -1;
  {
    Connection connection(options_for(daemon), kLong);
    ASSERT_TRUE(connection.open());
    child = ::fork();
    if (child == 0) {
      ::close(pipe[1]);
      char byte = 0;
      ::_exit(::read(pipe[0], &byte, 1) == 0 ? 0 : 1);  // uses nothing, and lives until it is told
    }
    EXPECT_EQ(daemon.sessions_open(), 1u);
    EXPECT_TRUE(connection.check());
  }
  EXPECT_TRUE(eventually([&] { return daemon.sessions_open() == 0; }));
  ::close(pipe[1]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(pipe[0]);
}

// The variables of a process while this lives.
class Environment {
 public:
  explicit Environment(const std::string& runtime_directory) {
    set("XDG_RUNTIME_DIR", runtime_directory.c_str());
    set("DJINN_HOST", nullptr);
  }
  ~Environment() {
    for (const auto& [name, value] : before_) put(name, value ? value->c_str() : nullptr);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  void set(const char* name, const char* value) {
    const char* const old = ::getenv(name);
    before_.emplace(name, old != nullptr ? std::optional<std::string>(old) : std::nullopt);
    put(name, value);
  }

 private:
  static void put(const std::string& name, const char* value) {
    value != nullptr ? ::setenv(name.c_str(), value, 1) : ::unsetenv(name.c_str());
  }
  std::map<std::string, std::optional<std::string>> before_;
};

TEST(Connection, another_djinnd_takes_no_ones_place_unless_it_is_named) {
  FakeDaemon mine;
  FakeDaemon other;
  for (const FakeDaemon* daemon : {&mine, &other}) {
    std::filesystem::create_symlink(daemon->directory(), daemon->directory() + "/djinn");
  }
  Environment environment(mine.directory());
  Connection connection({}, 0);
  ASSERT_TRUE(connection.open());
  mine.stop();
  environment.set("XDG_RUNTIME_DIR", other.directory().c_str());
  EXPECT_EQ(code_of(connection.reconnect(0)), ErrorCode::kNotFound);
  EXPECT_EQ(other.sessions_made(), 0u);
  environment.set("DJINN_HOST", other.host().c_str());
  EXPECT_TRUE(connection.open());
  EXPECT_EQ(other.sessions_made(), 1u);
}

TEST(Connection, many_clients_come_back_at_once) {
  FakeDaemon daemon;
  constexpr int kClients = 8;
  std::atomic<int> connected = 0;
  std::atomic<bool> restarted = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&] {
      Connection connection(options_for(daemon), kLong);
      EXPECT_TRUE(connection.open());
      ++connected;
      while (!restarted) {
        const auto client = connection.of(connection.session());
        if (client) [[maybe_unused]]
          const Status ran = run_one(**client);
      }
      const auto client = connection.open();
      ASSERT_TRUE(client);
      EXPECT_TRUE(run_one(**client));
    });
  }
  EXPECT_TRUE(eventually([&] { return connected == kClients; }));
  daemon.stop();
  daemon.start();
  restarted = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(daemon.sessions_made(), uint64_t{2 * kClients});
}

}  // namespace
}  // namespace djinn::client
