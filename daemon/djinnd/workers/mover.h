// SPDX-License-Identifier: Apache-2.0

// Mover: a GPU as djinnd knows it: the process that works on its memory (daemon/mover), what that
// last said of the device, and why the device cannot be used, if so.
//
//   starting   a mover opens the device, and then checks it; or the next one is about to
//   ready      what was uploaded came back, and what was zeroed is zero
//   failed     the device cannot be used, as far as the reason goes
//   lost       NVML told a fault that only a reset ends
//
// A mover that ends is started again, at once, then later each time until one has been ready for a
// minute; one that said why there is no device, or was not to be trusted, after half a minute. The
// check begins anew then: what it orders may be done twice.
//
// invariant: a lost device stays lost, and has no mover, as long as djinnd runs. NVML tells a fault
// once, so the next mover would not hear of it, and a check of one granule finds nothing.
//
// A mover is not trusted: who says what it was not asked, or sends what it should not, is killed,
// and so is who does not answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/workers/child_process.h"
#include "daemon/djinnd/workers/recovery.h"
#include "ipc/messages.h"
#include "ipc/mover_messages.h"
#include "kernel/base/device_id.h"

namespace djinn::daemon {

// When the next mover starts. Pure.
class MoverRestarts {
 public:
  enum class End : uint8_t {
    kEarly,    // it died, or its context did, less than a minute after it was ready
    kSettled,  // later
    kRefused,  // it said that there is no device, or was not to be trusted
    kLost,     // its device is
  };
  // In milliseconds; nothing: never.
  [[nodiscard]] std::optional<uint64_t> wait_after(End end);

 private:
  static constexpr uint64_t kRefusedMs = 30'000;

  BackOff back_off_;
};

class Mover {
 public:
  // device: a GPU. program: of its movers. host and events outlive this.
  Mover(const ChildHost& host, Events& events, DeviceId device, std::string program);

  void start();
  // Asks how much memory is free and whether the device is well, if nothing else is asked now.
  void measure();

  [[nodiscard]] DeviceId device() const { return device_; }
  [[nodiscard]] ipc::DeviceReport report() const;
  // Why no session can be there.
  [[nodiscard]] Error refusal() const;

 private:
  using State = ipc::DeviceState;
  // What is uploaded at a check, and the sums that are right.
  struct Sample {
    Fd memfd;
    ChecksumKey key{};
    Checksum filled{};
    Checksum zero{};
  };
  // In the order of the check.
  enum class Step : uint8_t { kCreate, kUpload, kCheckFilled, kZero, kCheckZero, kMeasure, kIdle };

  static constexpr uint64_t kAnswerMs = 60'000;
  static constexpr uint64_t kMeasureEveryMs = 10'000;
  static constexpr uint64_t kSettledMs = 60'000;
  static constexpr uint32_t kDeathsMax = 3;

  [[nodiscard]] static Result<Sample> make_sample(uint64_t bytes);
  void start_mover();
  void start_next(MoverRestarts::End last);
  [[nodiscard]] MoverRestarts::End end() const;
  [[nodiscard]] std::string why_not_started(const Error& error) const;
  void heard(ipc::Datagram& message);
  void take(const ipc::MoverEvent& event, std::vector<Fd>& fds);
  void take_failure(const ipc::OrderFailed& failed);
  void take_ready(const ipc::MoverReady& ready);
  void take_measure(const ipc::DeviceMeasured& measured);
  [[nodiscard]] bool is_answer(const ipc::MoverEvent& event, size_t descriptors) const;
  void begin_check(Result<Sample> sample);
  void order(Step step);
  [[nodiscard]] decltype(ipc::MoverOrder::body) order_of(Step step) const;
  void check_sum(const Checksum& sum);
  void next_step();
  void end_check();
  void drop_check();
  void waited_in_vain();
  void misbehaved(std::string_view how);
  void give_up(State state, const std::string& reason);
  void ended();
  void tell_ending(const std::string& how);
  void forget_life();
  void enter(State state, const std::string& reason);

  const ChildHost host_;
  // Makes what is uploaded, and frees it and what movers made. Its own, because the driver may hold
  // up a close for as long as it likes, and nobody else's memory is to wait for that.
  WorkQueue work_;
  Events& events_;
  const DeviceId device_;
  const std::string program_;
  Traffic traffic_;
  State state_ = State::kStarting;
  std::string reason_;
  std::string told_bad_;  // why it cannot be used, as events say; empty: they say no such thing
  std::unique_ptr<ChildProcess> child_;
  uint64_t life_ = 0;  // which child this is
  std::optional<ipc::MoverReady> ready_;
  ipc::DeviceMeasured measured_;
  std::optional<Sample> sample_;  // while it is checked
  Fd extent_;                     // likewise
  Step step_ = Step::kIdle;
  uint32_t number_ = 0;   // of the last order
  bool refused_ = false;  // nothing this child says counts any more
  bool sticky_ = false;   // it refused with what ends with its process
  bool checked_ = false;  // the device answered this child as it should
  bool settled_ = false;  // and a minute went by
  uint32_t deaths_ = 0;   // in a row, of children that had not been ready
  std::string last_ending_;
  MoverRestarts restarts_;
  Timer start_timer_;
  Timer answer_timer_;
  Timer measure_timer_;
  Timer settled_timer_;
};

// All GPUs that the configuration names.
class Movers {
 public:
  Movers(const ChildHost& host, Events& events, const std::vector<DeviceId>& devices,
         const std::string& program);

  void start();
  // Null where that names none of them.
  [[nodiscard]] const Mover* find(std::string_view device) const;
  // Of each, in the order of the configuration; the numbers of the next call are fresh.
  [[nodiscard]] std::vector<ipc::DeviceReport> reports();

 private:
  std::vector<std::unique_ptr<Mover>> all_;
};

}  // namespace djinn::daemon
