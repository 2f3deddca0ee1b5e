// SPDX-License-Identifier: Apache-2.0

// BusIntake: reads a message bus's socket in front of sd-bus, which has one end of a socket pair to
// hear what BusFrames lets pass. Nothing blocks.
#pragma once

#include <systemd/sd-bus.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/djinnd/dbus/bus_frames.h"
#include "daemon/djinnd/host/bus_kind.h"
#include "kernel/base/fd.h"

namespace djinn::daemon {

class BusIntake {
 public:
  // What is read of the bus at a time, before others get their turn.
  static constexpr size_t kReadBytes = size_t{64} << 10;

  // to: leads to sd-bus; passed: what sd-bus reads.
  BusIntake(Fd bus, Fd to, Fd passed)
      : bus_(std::move(bus)), to_(std::move(to)), passed_(std::move(passed)) {}

  // To be watched for bytes: the bus's socket, and what sd-bus has not read.
  [[nodiscard]] int bus() const { return bus_.get(); }
  [[nodiscard]] int passed() const { return passed_.get(); }
  // Reads some bytes and passes on what goes on; where sd-bus had no room for all of that, the rest
  // of it first. A negative errno is the end of the connection.
  int pass_on();

 private:
  Fd bus_;
  Fd to_;
  Fd passed_;
  BusFrames frames_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kReadBytes);
  std::vector<std::byte> passing_;
};

// Connects to the bus of that kind, where sd_bus_open_system() and sd_bus_open_user() look; of
// addresses it knows unix:path= and unix:abstract=. raw sends on that socket. Errors: a negative
// errno.
int connect_bus(BusKind kind, sd_bus* raw, std::unique_ptr<BusIntake>& intake);

}  // namespace djinn::daemon
