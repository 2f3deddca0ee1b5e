// SPDX-License-Identifier: Apache-2.0

// MoverLink: the process that works on a GPU's memory (daemon/mover), and djinnd's channel to it.
// It starts one, after whose end it may start the next, and gives it one order at a time.
//
//   word     what a mover says first: that it is ready, or why there is no device
//   answer   what it says after that, once to each order
//
// A mover is not trusted. Who says what it was not asked, sends what it should not, or does not
// answer, is told of and killed, and nothing more of it is heard. An extent that comes as a memfd
// has the size that was ordered, and keeps it: so what djinnd holds of a mover is no more than what
// it ordered. Of one that comes as memory of the driver's only its kind can be told.
//
// invariant: an answer goes to whoever gave the order, once, or never where the mover is killed or
// ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/workers/child_process.h"
#include "ipc/mover_messages.h"
#include "kernel/base/device_id.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

struct MoverAnswer {
  decltype(ipc::MoverEvent::body) body;  // of the kind that the order has
  Fd extent{};                           // of CreateExtent
};

struct MoverEnd {
  std::string how;      // for people
  bool is_other_build;  // it is of another build than djinnd
};

class MoverLink {
 public:
  using Body = decltype(ipc::MoverOrder::body);
  // Errors: as the mover says; kDeviceLost where it ends by itself now.
  using Answered = std::function<void(Result<MoverAnswer>)>;

  // Of one mover either of the first two is called, and the last, once.
  class Listener {
   public:
    virtual void mover_ready(const ipc::MoverReady& ready) = 0;
    // There is no device that it could work on.
    virtual void mover_refused(const Error& why) = 0;
    // It was not to be trusted, and is killed.
    virtual void mover_misbehaved(const std::string& how) = 0;
    // It did not answer within so many seconds, and is killed.
    virtual void mover_silent(uint64_t seconds) = 0;
    virtual void mover_ended(const MoverEnd& end) = 0;

   protected:
    ~Listener() = default;
  };

  // device: whose movers these are. program: of them. host and listener outlive this.
  MoverLink(const ChildHost& host, DeviceId device, std::string program, Listener& listener);

  // There is none. Errors: those of ChildProcess::start().
  Status start();
  // Of a ready mover that has none. fds: stay the caller's.
  void order(Body body, const std::vector<int>& fds, Answered answered);
  // Nothing that it says counts any more. mover_ended() follows where there is one.
  void kill();

  // Said that it is ready, and was not killed.
  [[nodiscard]] bool is_ready() const { return is_ready_ && !is_silenced_; }
  [[nodiscard]] bool is_idle() const { return is_ready() && answered_ == nullptr; }

 private:
  void heard(ipc::Datagram& message);
  void take_word(const ipc::MoverEvent& event, bool has_descriptors);
  void take_answer(ipc::MoverEvent& event, std::vector<Fd>& fds);
  void misbehaved(const std::string& how);
  void wait(uint64_t ms);
  void ended();

  const ChildHost host_;
  const DeviceId device_;
  const std::string program_;
  Listener& listener_;
  Traffic traffic_;
  std::unique_ptr<ChildProcess> child_;
  bool is_ready_ = false;
  bool is_silenced_ = false;
  uint32_t number_ = 0;  // of the last order
  Body body_;            // of the order that waits
  Answered answered_;    // null: none waits
  uint64_t patience_ms_ = 0;
  Timer silence_;
};

}  // namespace djinn::daemon
