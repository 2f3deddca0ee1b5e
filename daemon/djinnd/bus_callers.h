// Callers on D-Bus: who sent a message, as the bus says, and what polkit allows them. Both are
// asked asynchronously; Authority judges as it does for the socket.
//
//   sender    a connection's unique name, ":1.42", which a bus gives once only: so what is known of
//             one stays true
//   action    what polkit is asked for; packaging/dbus/org.djinn.policy lists them
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "daemon/djinnd/authority.h"
#include "daemon/djinnd/bus.h"
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

  BusCallers(Bus& bus, const Authority& authority) : bus_(bus), authority_(authority) {}

  // Errors: kQueueFull when too many messages of that sender wait, kPermissionDenied when the bus
  // does not know who it is.
  void identify(const std::string& sender, Known known);
  // No polkit, or no answer: not allowed.
  void ask_polkit(const std::string& sender, const std::string& action, Prompt prompt,
                  std::function<void(bool)> allowed);
  // The connection is gone, and its senders' names with it.
  void forget();

 private:
  void credentials_came(const std::string& sender, sd_bus_message* answer);

  Bus& bus_;
  const Authority& authority_;
  std::map<std::string, Caller> known_;
  std::map<std::string, std::vector<Known>> waiting_;
};

}  // namespace djinn::daemon
