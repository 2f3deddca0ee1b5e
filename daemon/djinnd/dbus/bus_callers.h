// SPDX-License-Identifier: Apache-2.0

// Callers on D-Bus: who sent a message, as the bus says, and what polkit allows them. Both are
// asked asynchronously; Authority judges as it does for the socket.
//
//   sender    a connection's unique name, ":1.42", which a bus gives once only: so what is known of
//             one stays true
//   action    what polkit is asked for; packaging/dbus/org.djinn.policy lists them
//   question  one that polkit has not answered. It is withdrawn when its time is up or its caller
//             has left the bus: else a user would go on being asked for a password in vain
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/djinnd/access/authority.h"
#include "daemon/djinnd/dbus/bus.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

// Whether polkit may ask the user for a password.
enum class Prompt : uint8_t { kNever, kAllowed };

class BusCallers {
 public:
  // Messages of one sender that wait until it is known who that is.
  static constexpr size_t kWaitingMax = 16;
  // Senders that are remembered; then all are forgotten.
  static constexpr size_t kKnownMax = 256;

  using Known = std::function<void(const Result<Caller>&)>;

  struct Timeouts {
    uint64_t polkit_ms = 5000;
    uint64_t prompt_ms = 120'000;  // to find the administrator's password
  };
  BusCallers(Bus& bus, const Authority& authority, Timeouts timeouts);
  BusCallers(Bus& bus, const Authority& authority) : BusCallers(bus, authority, Timeouts{}) {}

  // Errors: kQueueFull when too many messages of that sender wait, kPermissionDenied when the bus
  // does not know who it is.
  void identify(const std::string& sender, Known known);
  // No polkit, or no answer: not allowed.
  void ask_polkit(const std::string& sender, const std::string& action, Prompt prompt,
                  std::function<void(bool)> allowed);
  // The connection is gone, and its senders' names with it.
  void forget();

 private:
  struct Question {
    BusCallers* callers;
    std::string id;                // polkit's cancellation id
    sd_bus_slot* watch = nullptr;  // of the caller's leaving
    ~Question() { ::sd_bus_slot_unref(watch); }
  };

  void credentials_came(const std::string& sender, sd_bus_message* answer);
  int watch_for_leaving(sd_bus* bus, const std::string& sender, Question& question);
  void withdraw(const std::string& id);
  static int caller_left(sd_bus_message* signal, void* question, sd_bus_error* error);

  Bus& bus_;
  const Authority& authority_;
  const Timeouts timeouts_;
  std::map<uint64_t, std::unique_ptr<Question>> questions_;
  uint64_t asked_ = 0;
  std::map<std::string, Caller> known_;
  std::map<std::string, std::vector<Known>> waiting_;
};

}  // namespace djinn::daemon
