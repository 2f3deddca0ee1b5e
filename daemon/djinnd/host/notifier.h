// SPDX-License-Identifier: Apache-2.0

// Notifier: what djinnd tells systemd (sd_notify(3)), in order, by a thread of its own: systemd may
// be slow to hear, and its socket has room for a few messages only.
//
//   word   what is as true a moment later, or told again soon; lost when systemd hears nothing
//   store  descriptors that systemd keeps for the next djinnd; a message of it is never lost
//
// Without systemd none of it does anything.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/djinnd/loop/background.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class Notifier {
 public:
  // Messages that wait for systemd: as many as it keeps descriptors fit.
  static constexpr size_t kBacklogMax = 16 * 1024;

  Notifier();

  // Fields of sd_notify(3).
  void say(std::string message);
  void say_word(std::string message);
  // Has systemd keep the descriptor; it may be closed after this. Errors: kSystem and its kin, when
  // it cannot be kept open until systemd has it.
  // kNo: also where it is readable at its other end's wish, as a GPU's memory is; else systemd lets
  // go of it then.
  enum class Polled : uint8_t { kYes, kNo };
  [[nodiscard]] Status give(const std::string& name, const Fd& fd, Polled polled = Polled::kYes);
  void take_out(const std::string& name);
  // Whether so many can be given: what waits for systemd holds its memory, and must end somewhere.
  [[nodiscard]] bool has_room(size_t descriptors) const;

  // Names of what was given, but could not be sent, since this was asked last.
  [[nodiscard]] std::vector<std::string> take_unsent();

  [[nodiscard]] uint64_t words_lost() const { return thread_.lost(); }

 private:
  struct Unsent {
    std::mutex mutex;
    std::vector<std::string> names;
  };

  bool is_heard_;
  std::shared_ptr<Unsent> unsent_ = std::make_shared<Unsent>();
  Background thread_;
};

}  // namespace djinn::daemon
