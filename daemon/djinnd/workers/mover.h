// SPDX-License-Identifier: Apache-2.0

// Mover: a GPU as djinnd knows it: the process that works on its memory (daemon/mover), what that
// last said of the device, and why the device cannot be used, if so.
//
//   starting   a mover opens the device, and then checks it; or the next one is about to
//   ready      what was uploaded came back, and what was zeroed is zero
//   failed     the device cannot be used, as far as the reason goes
//   lost       it could be used, and the driver or NVML says that it is broken
//
// A mover that ends is started again, at once where it had been ready, then later each time; one
// that said why there is no device, or was not to be trusted, after half a minute. The check begins
// anew then: what it orders may be done twice.
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
#include "kernel/base/random.h"

namespace djinn::daemon {

class Mover {
 public:
  // device: a GPU. program: of its movers. work: makes what is uploaded, and frees what they made;
  // outlives this, as host and events do.
  Mover(const ChildHost& host, WorkQueue& work, Events& events, DeviceId device,
        std::string program, uint64_t seed);

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
  static constexpr uint64_t kRetryRefusedMs = 30'000;
  static constexpr uint32_t kDeathsMax = 3;

  [[nodiscard]] static Result<Sample> make_sample(uint64_t bytes, const ChecksumKey& key);
  void start_mover();
  void heard(ipc::Datagram& message);
  void take(const ipc::MoverEvent& event, std::vector<Fd>& fds);
  void take_ready(const ipc::MoverReady& ready);
  void take_measure(const ipc::DeviceMeasured& measured);
  [[nodiscard]] bool is_answer(const ipc::MoverEvent& event, size_t descriptors) const;
  void begin_check(Result<Sample> sample);
  void order(Step step);
  [[nodiscard]] decltype(ipc::MoverOrder::body) order_of(Step step) const;
  void check_sum(const Checksum& sum);
  void next_step();
  void end_check();
  void waited_in_vain();
  void misbehaved(std::string_view how);
  void give_up(State state, std::string reason);
  void ended();
  void forget_life();
  void enter(State state, std::string reason);

  const ChildHost host_;
  WorkQueue& work_;
  Events& events_;
  const DeviceId device_;
  const std::string program_;
  Random random_;
  Traffic traffic_;
  State state_ = State::kStarting;
  std::string reason_;
  bool told_bad_ = false;  // events say that it cannot be used
  std::unique_ptr<ChildProcess> child_;
  uint64_t life_ = 0;  // which child this is
  std::optional<ipc::MoverReady> ready_;
  ipc::DeviceMeasured measured_;
  std::optional<Sample> sample_;  // while it is checked
  Fd extent_;                     // likewise
  Step step_ = Step::kIdle;
  uint32_t number_ = 0;   // of the last order
  bool refused_ = false;  // nothing this child says counts any more
  bool checked_ = false;  // the device answered this child as it should
  uint32_t deaths_ = 0;   // in a row, of children that had not been ready
  BackOff back_off_;
  Timer start_timer_;
  Timer answer_timer_;
  Timer measure_timer_;
};

// All GPUs that the configuration names.
class Movers {
 public:
  Movers(const ChildHost& host, WorkQueue& work, Events& events,
         const std::vector<DeviceId>& devices, const std::string& program, uint64_t seed);

  void start();
  // Null where that names none of them.
  [[nodiscard]] const Mover* find(std::string_view device) const;
  // Of each, in the order of the configuration; the numbers of the next call are fresh.
  [[nodiscard]] std::vector<ipc::DeviceReport> reports();

 private:
  std::vector<std::unique_ptr<Mover>> all_;
};

}  // namespace djinn::daemon
