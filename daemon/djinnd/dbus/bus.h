// SPDX-License-Identifier: Apache-2.0

// Bus: a connection to a message bus (D-Bus), driven by the loop. Nothing here blocks.
//
//   absent -> opening     a connection is made, and asks for its name
//   opening -> serving    the name is ours
//   any -> absent         the bus is not there, is gone, does not read, or gives the name to nobody
//                         of us; it is tried again, after a pause that doubles
//
// A host without a bus is no fault: one line in the log, and djinnd does without.
//
// sd-bus sends on the bus's socket, and hears what BusFrames lets pass.
//
// invariant: what waits for an answer is forgotten with the connection, uncalled.
#pragma once

#include <systemd/sd-bus.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "daemon/djinnd/host/bus_kind.h"
#include "daemon/djinnd/loop/loop.h"
#include "kernel/base/clock.h"
#include "kernel/base/owned_state.h"

namespace djinn::daemon {

struct DropMessage {
  void operator()(sd_bus_message* message) const { ::sd_bus_message_unref(message); }
};
using Message = std::unique_ptr<sd_bus_message, DropMessage>;

enum class BusPhase : uint8_t { kAbsent, kOpening, kServing };
[[nodiscard]] bool may_follow(BusPhase from, BusPhase to);

class Bus {
 public:
  struct Hooks {
    // A connection is new: export objects on it. Negative errno: it is given up.
    std::function<int(sd_bus*)> opened;
    std::function<void()> lost;
  };
  using Answered = std::function<void(sd_bus_message*)>;

  Bus(Loop& loop, const Clock& clock, BusKind kind, std::string name, Hooks hooks);
  ~Bus();

  // Tries to connect. Nothing, for kNone.
  void start();
  // Gives the connection up for good.
  void stop();
  [[nodiscard]] bool serving() const { return phase_ == BusPhase::kServing; }

  // Runs action on the connection, if there is one, and has the loop see to what it left to send.
  // A negative errno of action is the end of the connection.
  void use(const std::function<int(sd_bus*)>& action);
  // Sends a method call that `make` makes; answered gets the answer or the error, a timeout
  // included.
  void call(const std::function<int(sd_bus*, sd_bus_message**)>& make, uint64_t timeout_ms,
            Answered answered);
  // The rule for the signal that a connection has left; a unique name is given once only.
  [[nodiscard]] static std::string rule_for_leaving(const std::string& name);
  // Asks the bus for the name, and calls gone if nobody has it. So a caller is noticed who left
  // before the bus had the rule that would tell. Without a clear answer of the bus gone is not
  // called.
  void ask_whether_gone(const std::string& name, std::function<void()> gone);

 private:
  struct Connection;
  struct Waiting {
    Bus* bus;
    uint64_t number;
    Answered answered;
    sd_bus_slot* slot = nullptr;
    ~Waiting() { ::sd_bus_slot_unref(slot); }
  };

  void open();
  int ask_for_name(sd_bus* raw);
  void named(sd_bus_message* answer);
  void process();
  void watch();
  void lose(const std::string& why);
  void tell(const std::string& text);
  static int heard(sd_bus_message* answer, void* waiting, sd_bus_error* error);

  Loop& loop_;
  const Clock& clock_;
  BusKind kind_;
  std::string name_;
  Hooks hooks_;
  OwnedState<BusPhase, Bus> phase_;
  std::unique_ptr<Connection> connection_;
  std::map<uint64_t, std::unique_ptr<Waiting>> waiting_;
  uint64_t calls_ = 0;
  Timer retry_;
  uint64_t pause_ms_;
  std::string told_;
};

}  // namespace djinn::daemon
