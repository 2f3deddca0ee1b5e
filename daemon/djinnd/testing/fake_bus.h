// SPDX-License-Identifier: Apache-2.0

// FakeBus: a message bus in the test's own process, with one guest at a time, and only what a bus
// says itself. It stands where DBUS_SYSTEM_BUS_ADDRESS points.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-bus.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/djinnd/loop/loop.h"
#include "kernel/base/fd.h"

namespace djinn::daemon::testing {

class FakeBus {
 public:
  // What RequestName is answered; org.freedesktop.DBus says what the numbers mean.
  uint32_t name_outcome = 1;
  // Functions that answer other calls, by member; the rest is never answered.
  std::map<std::string, std::function<int(sd_bus_message*)>> answers;
  // Calls that came, by their members.
  std::vector<std::string> called;

  explicit FakeBus(Loop& loop)
      : loop_(loop), poll_(loop, listening_.get(), [this] { accept_one(); }) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // An abstract address: the kernel chooses it.
    EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)),
              0);
    EXPECT_EQ(::listen(listening_.get(), 8), 0);
    socklen_t length = sizeof address;
    EXPECT_EQ(::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    const size_t name = length - offsetof(sockaddr_un, sun_path) - 1;
    address_ = "unix:abstract=" + std::string(address.sun_path + 1, name);
    ::setenv("DBUS_SYSTEM_BUS_ADDRESS", address_.c_str(), 1);
    poll_.watch_readable();
  }
  ~FakeBus() {
    close_guest();
    ::unsetenv("DBUS_SYSTEM_BUS_ADDRESS");
  }

  // Ends the guest's connection.
  void close_guest() {
    guest_poll_.reset();
    ::sd_bus_close_unref(std::exchange(guest_, nullptr));
  }
  // Sends what action makes to the guest, in as many pieces as it takes.
  void send(const std::function<int(sd_bus*)>& action) {
    ASSERT_NE(guest_, nullptr);
    EXPECT_GE(action(guest_), 0);
    guest_poll_->watch_both();
  }
  // The guest's messages are read no more.
  void stop_reading() { guest_poll_.reset(); }

  size_t times_called(const std::string& member) const {
    return static_cast<size_t>(std::count(called.begin(), called.end(), member));
  }

 private:
  void accept_one() {
    close_guest();
    const int fd = ::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    sd_id128_t id{};
    ::sd_id128_randomize(&id);
    EXPECT_GE(::sd_bus_new(&guest_), 0);
    EXPECT_GE(::sd_bus_set_fd(guest_, fd, fd), 0);
    EXPECT_GE(::sd_bus_set_server(guest_, 1, id), 0);
    EXPECT_GE(::sd_bus_add_filter(guest_, nullptr, &FakeBus::heard, this), 0);
    EXPECT_GE(::sd_bus_start(guest_), 0);
    guest_poll_ = std::make_unique<Poll>(loop_, fd, [this] { process(); });
    guest_poll_->watch_readable();
    process();
  }

  void process() {
    while (guest_ != nullptr && ::sd_bus_process(guest_, nullptr) > 0) {
    }
  }

  static int heard(sd_bus_message* message, void* self, sd_bus_error*) {
    FakeBus& bus = *static_cast<FakeBus*>(self);
    const char* const member = ::sd_bus_message_get_member(message);
    if (member == nullptr) return 0;
    bus.called.emplace_back(member);
    if (bus.called.back() == "Hello") return ::sd_bus_reply_method_return(message, "s", ":1.1");
    if (bus.called.back() == "RequestName") {
      return ::sd_bus_reply_method_return(message, "u", bus.name_outcome);
    }
    const auto found = bus.answers.find(member);
    return found != bus.answers.end() ? found->second(message) : 1;
  }

  Loop& loop_;
  Fd listening_{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  Poll poll_;
  std::string address_;
  sd_bus* guest_ = nullptr;
  std::unique_ptr<Poll> guest_poll_;
};

}  // namespace djinn::daemon::testing
