// SPDX-License-Identifier: Apache-2.0

// Subscribers on D-Bus: connections that asked for djinnd's signals. Each gets those of what its
// user may see, addressed to it alone, so that nobody hears of what is others'.
//
// invariant: who leaves the bus is a subscriber no more, and hears nothing by another's name: a bus
// gives a unique name once only.
// Asynchronous throughout: sd_bus_track(3) would block.
#pragma once

#include <sys/types.h>
#include <systemd/sd-bus.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "daemon/djinnd/access/authority.h"
#include "daemon/djinnd/dbus/bus.h"
#include "daemon/djinnd/events/events.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class BusSubscribers {
 public:
  // A signal is sent to each, and what the bus leaves unread has a limit (bus.cc).
  static constexpr size_t kSubscribersMax = 128;
  static constexpr size_t kPerUserMax = 16;

  explicit BusSubscribers(Bus& bus) : bus_(bus) {}

  // Again is no more than once. Errors: kLimitExceeded.
  Status add(const std::string& sender, const Caller& caller);
  void remove(const std::string& sender) { subscribers_.erase(sender); }
  // Sends what `append` makes of a fresh signal to each who may see the event.
  void tell(const Event& event, const char* path, const char* interface, const char* member,
            const std::function<int(sd_bus_message*)>& append);
  // The connection is gone, and its names with it.
  void forget() { subscribers_.clear(); }

  [[nodiscard]] size_t size() const { return subscribers_.size(); }

 private:
  struct Subscriber {
    BusSubscribers* owner;
    std::string name;
    Caller caller;
    sd_bus_slot* slot = nullptr;  // hears when the name is gone
    ~Subscriber() { ::sd_bus_slot_unref(slot); }
  };
  static int left(sd_bus_message* message, void* subscriber, sd_bus_error* error);
  static int installed(sd_bus_message* answer, void* subscriber, sd_bus_error* error);

  Bus& bus_;
  std::map<std::string, std::unique_ptr<Subscriber>> subscribers_;
};

}  // namespace djinn::daemon
