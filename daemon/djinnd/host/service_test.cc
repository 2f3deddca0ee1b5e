// SPDX-License-Identifier: Apache-2.0

// Against a socket that stands for systemd's: NOTIFY_SOCKET and the watchdog's variables.
#include "daemon/djinnd/host/service.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "daemon/djinnd/testing/run_until.h"

namespace djinn::daemon {
namespace {

class ServiceTest : public ::testing::Test, public Service::Subject {
 protected:
  ServiceTest() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // An abstract address: the kernel chooses it.
    EXPECT_EQ(::bind(systemd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)),
              0);
    socklen_t length = sizeof address;
    EXPECT_EQ(::getsockname(systemd_.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    const size_t name = length - offsetof(sockaddr_un, sun_path) - 1;
    ::setenv("NOTIFY_SOCKET", ("@" + std::string(address.sun_path + 1, name)).c_str(), 1);
  }
  ~ServiceTest() override {
    for (const char* const name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
      ::unsetenv(name);
    }
  }

  // Runs the loop until systemd was told something that begins so, and gives it all.
  std::string told(const std::string& beginning) {
    std::string found;
    Poll poll(loop_, systemd_.get(), [&] {
      std::array<char, 1024> text{};
      const ssize_t length = ::recv(systemd_.get(), text.data(), text.size(), MSG_DONTWAIT);
      if (length <= 0) return;
      const std::string message(text.data(), static_cast<size_t>(length));
      if (message.rfind(beginning, 0) != 0) return;
      found = message;
      loop_.stop();
    });
    poll.watch_readable();
    loop_.run();
    return found;
  }

  std::unique_ptr<Service> service() {
    return std::make_unique<Service>(loop_, clock_, *(notifier_ = std::make_unique<Notifier>()),
                                     *this);
  }

  bool is_healthy() override { return ++checks_ < 3; }
  Service::StatusLine describe() const override {
    return {"state " + std::to_string(++lines_), lines_ < 3};
  }

  Fd systemd_{::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  Loop loop_;
  const SystemClock clock_;
  std::unique_ptr<Notifier> notifier_;
  int checks_ = 0;
  mutable int lines_ = 0;
};

TEST_F(ServiceTest, is_ready_with_its_state_and_ends_with_a_word) {
  const auto one = service();
  one->ready();
  EXPECT_EQ(told("READY=1"), "READY=1\nSTATUS=state 1");
  one->stopping();
  EXPECT_EQ(told("STOPPING=1"), "STOPPING=1\nSTATUS=Stopping");
  EXPECT_EQ(checks_, 0);  // nobody watches
}

TEST_F(ServiceTest, tells_changes_once_and_progress_until_it_ends) {
  const auto one = service();
  one->changed();
  one->changed();
  EXPECT_EQ(told("STATUS="), "STATUS=state 1");
  EXPECT_EQ(told("STATUS="), "STATUS=state 2");
  EXPECT_EQ(told("STATUS="), "STATUS=state 3");
}

TEST_F(ServiceTest, answers_the_watchdog_from_the_loop_as_long_as_the_check_passes) {
  ::setenv("WATCHDOG_USEC", "30000", 1);
  ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
  const auto one = service();
  one->ready();
  EXPECT_EQ(told("WATCHDOG=1"), "WATCHDOG=1");
  EXPECT_EQ(told("WATCHDOG=1"), "WATCHDOG=1");
  testing::run_until(loop_, "it is checked again and again", [this] { return checks_ > 5; });
  std::array<char, 64> text{};
  EXPECT_LT(::recv(systemd_.get(), text.data(), text.size(), MSG_DONTWAIT), 0);
}

TEST(ActivationFds, is_nothing_without_systemd) {
  const auto passed = take_activation_fds();
  ASSERT_TRUE(passed.ok());
  EXPECT_FALSE(passed.value().socket.has_value());
  EXPECT_TRUE(passed.value().kept.empty());
}

}  // namespace
}  // namespace djinn::daemon
