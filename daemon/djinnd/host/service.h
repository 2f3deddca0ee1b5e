// SPDX-License-Identifier: Apache-2.0

// Service: what systemd and djinnd tell each other; without systemd all of it does nothing.
//
//   status             one line of what is going on, in `systemctl status`
//   activated socket   the one that systemd listens on for us, and keeps over our restarts
//   watchdog           systemd kills a djinnd whose loop stops, or whose books do not balance
//
// invariant: WATCHDOG=1 is said from the loop, after the check has passed, and never else.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/djinnd/host/notifier.h"
#include "daemon/djinnd/loop/loop.h"
#include "kernel/base/clock.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class Service {
 public:
  struct StatusLine {
    std::string text;
    bool progresses = false;  // and is to be told again soon
  };
  // Whose service it is; asked on the loop.
  class Subject {
   public:
    // Its own opinion, asked for a few times in each watchdog interval.
    virtual bool is_healthy() = 0;
    virtual StatusLine describe() const = 0;

   protected:
    ~Subject() = default;
  };
  Service(Loop& loop, const Clock& clock, Notifier& notifier, Subject& subject);

  // Clients may connect: what was started for us may go on.
  void ready();
  // The configuration is being read again; ready() ends it.
  void reloading();
  // The end, which systemd waits for, may take so long from now on.
  void extend_timeout(uint64_t ms);
  // What describe() says has changed.
  void changed();
  // The end has begun; systemd waits for it.
  void stopping();

  struct Watchdog {
    uint64_t interval_ns = 0;  // in which systemd must hear from us; 0: nobody watches
    uint64_t answers = 0;      // WATCHDOG=1 said
    uint64_t lag_ns = 0;       // by which the last look was late
  };
  [[nodiscard]] const Watchdog& watchdog() const { return watchdog_; }

 private:
  void look();
  void tell();

  const Clock& clock_;
  Notifier& notifier_;
  Subject& subject_;
  Watchdog watchdog_;
  uint64_t look_every_ns_ = 0;  // 0: nobody watches
  uint64_t due_ns_ = 0;         // the next look
  Timer watch_;
  Timer tell_;
};

struct ActivationFds {
  std::optional<Fd> socket;        // the listening one for clients
  std::optional<Fd> gates;         // and for djinn-gate
  std::vector<Fd> metrics;         // those for metrics
  std::map<std::string, Fd> kept;  // by name: what a predecessor left with systemd
};
// What systemd passed at the start. Errors: kInvalidArgument for sockets that djinnd could not
// serve.
Result<ActivationFds> take_activation_fds();

}  // namespace djinn::daemon
