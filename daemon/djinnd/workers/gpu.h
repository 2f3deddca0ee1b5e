// SPDX-License-Identifier: Apache-2.0

// Gpu: a GPU as djinnd knows it: what its mover last said of it, why it cannot be used, if so, and
// the orders that wait for a mover.
//
//   starting   a mover opens the device, and then it is checked; or the next one is about to
//   ready      what was uploaded came back, and what was zeroed is zero
//   failed     the device cannot be used, as far as the reason goes
//   lost       NVML told a fault that only a reset ends
//
// A mover that ends is started again, at once, then later each time until one has been ready for a
// minute or has carried out an order; one that said why there is no device, or was not to be
// trusted, after half a minute. The check begins anew then.
//
// Orders of others outlive movers: one that was not answered is given to the next, for what an
// order does may be done twice. They fail when the device does, and one that ends a mover again and
// again fails by itself.
//
// invariant: a lost device stays lost, and has no mover, as long as djinnd runs. NVML tells a fault
// once, so the next mover would not hear of it, and a check of one granule finds nothing.
// invariant: a mover is used only where it is confined, and its device is the one that the first
// mover had, by its UUID and its size.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/workers/child_process.h"
#include "daemon/djinnd/workers/device_check.h"
#include "daemon/djinnd/workers/mover_link.h"
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
    kSettled,  // later, or it had carried out an order
    kRefused,  // it said that there is no device, or was not to be trusted
    kLost,     // its device is
  };
  // In milliseconds; nothing: never.
  [[nodiscard]] std::optional<uint64_t> wait_after(End end);

 private:
  static constexpr uint64_t kRefusedMs = 30'000;

  BackOff back_off_;
};

// What is wrong with using a device whose mover says so; empty: nothing. first: what was said of it
// the first time, if it was. Pure.
[[nodiscard]] std::string fault_of(const ipc::MoverReady& ready,
                                   const std::optional<ipc::MoverReady>& first);

class Gpu final : private MoverLink::Listener {
 public:
  using Answered = MoverLink::Answered;
  using OrderId = uint64_t;
  static constexpr uint32_t kOrderDeathsMax = 5;

  // device: a GPU. program: of its movers. nodes: the directory of the driver's. host and events
  // outlive this.
  Gpu(const ChildHost& host, Events& events, DeviceId device, std::string program,
      std::string nodes);

  void start();
  // Asks how much memory is free and whether the device is well, if nothing else is asked now.
  void measure();
  // Hears once how many bytes the device has.
  void on_capacity(std::function<void(uint64_t bytes)> told) { on_capacity_ = std::move(told); }

  void on_lost(std::function<void()> told) { on_lost_ = std::move(told); }
  // A descriptor of the device's node, while which is open the driver keeps the device: djinnd's,
  // from when a mover has said which node that is. told: hears when there is one.
  void on_anchor(std::function<void(const Fd& node)> told) { on_anchor_ = std::move(told); }
  // A predecessor's.
  void take_anchor(Fd node) { anchor_ = std::move(node); }

  // Has a mover do it, after what was ordered before. fds: as the order says; they stay valid until
  // it was answered or cancelled. answered: called later, on the loop. Errors: the mover's, of this
  // order; kDeviceLost where the device cannot be used, or movers end whenever they try.
  OrderId order(MoverLink::Body body, std::vector<int> fds, Answered answered);
  // Nobody wants it done any more. Whether no mover has it: then nobody hears of it. Else its
  // answer still comes, and no other mover gets it.
  bool cancel(OrderId order);
  // Its thread may wait for the driver, and so nobody else's does: frees the device's extents.
  [[nodiscard]] WorkQueue& work() { return work_; }

  [[nodiscard]] DeviceId device() const { return device_; }
  // As NVIDIA's tools write it; empty before a mover has said it.
  [[nodiscard]] std::string uuid() const { return first_ ? first_->uuid : std::string(); }
  // Of extents; 2 MiB before a mover has said otherwise.
  [[nodiscard]] uint64_t granularity_bytes() const;
  [[nodiscard]] bool is_ready() const { return state_ == State::kReady; }
  // Whether orders are carried out, or wait for the next mover, who is likely to be ready soon.
  [[nodiscard]] bool takes_orders() const { return is_ready() || (first_ && hopeful_); }
  // Without what is granted there.
  [[nodiscard]] ipc::DeviceReport report() const;
  // Why nothing can be put there now, and no session can be there; of one that takes no orders, or
  // that is lost.
  [[nodiscard]] Error not_ready() const;

 private:
  using State = ipc::DeviceState;
  struct Order {
    OrderId id;
    MoverLink::Body body;
    std::vector<int> fds;
    Answered answered;
    uint32_t deaths = 0;  // of movers that had it
    bool is_cancelled = false;
  };

  static constexpr uint64_t kMeasureEveryMs = 10'000;
  static constexpr uint64_t kSettledMs = 60'000;
  static constexpr uint32_t kDeathsMax = 3;

  // --- a mover's life
  void start_mover();
  void start_next(MoverRestarts::End last);
  [[nodiscard]] MoverRestarts::End end() const;
  [[nodiscard]] std::string why_not_started(const Error& error) const;
  void mover_ready(const ipc::MoverReady& ready) override;
  void checked(const Status& status);
  void open_anchor();
  void has_anchor(Result<Fd> node);
  void mover_refused(const Error& why) override;
  void mover_misbehaved(const std::string& how) override;
  void mover_silent(uint64_t seconds) override;
  void mover_ended(const MoverEnd& end) override;
  void note_death(const MoverEnd& end);
  void give_up(State state, const std::string& reason);
  void tell_ending(const std::string& how);
  void enter(State state, const std::string& reason);

  // --- what it is asked
  void go_on();
  void ask_measure();
  void take_measure(const ipc::DeviceMeasured& measured);
  void give_next();
  void take_answer(Result<MoverAnswer> answer);
  void mover_dropped_order();
  void refuse_orders();

  const ChildHost host_;
  // Its own, because the driver may hold up a close for as long as it likes, and nobody else's
  // memory is to wait for that.
  WorkQueue work_;
  Events& events_;
  const DeviceId device_;
  const std::string program_;
  const std::string nodes_;
  MoverLink link_;
  DeviceCheck check_;
  State state_ = State::kStarting;
  std::string reason_;
  std::string told_bad_;  // why it cannot be used, as events say; empty: they say no such thing
  std::function<void(uint64_t)> on_capacity_;
  std::function<void()> on_lost_;
  std::function<void(const Fd&)> on_anchor_;
  Fd anchor_;
  bool lack_told_ = false;                // that there is none
  std::optional<ipc::MoverReady> first_;  // what the first mover that was used said
  std::optional<ipc::MoverReady> ready_;  // what this one said
  ipc::DeviceMeasured measured_;
  bool has_mover_ = false;
  bool refused_ = false;  // nothing this mover says counts any more
  bool sticky_ = false;   // it refused with what ends with its process
  bool hopeful_ = true;   // a mover is ready, or the next is likely to be: orders may wait
  bool checked_ = false;  // the device answered this mover as it should
  bool settled_ = false;  // and a minute went by, or it did what it was told
  bool wants_measure_ = false;
  bool measured_last_ = false;
  uint32_t deaths_ = 0;  // in a row, of movers that had not been ready
  std::string last_ending_;
  std::deque<Order> orders_;
  std::optional<Order> given_;  // to the mover
  OrderId last_order_ = 0;
  uint64_t uploaded_bytes_ = 0;
  MoverRestarts restarts_;
  Timer start_timer_;
  Timer measure_timer_;
  Timer settled_timer_;
};

// All GPUs that the configuration names.
class Gpus {
 public:
  // program: of movers. worker: of what computes there.
  Gpus(const ChildHost& host, Events& events, const std::vector<DeviceId>& devices,
       const std::string& program, std::string worker, const std::string& nodes);

  void start();
  // Null where that names none of them.
  [[nodiscard]] Gpu* find(std::string_view device) const;
  [[nodiscard]] Gpu* find(DeviceId device) const;
  // In the order of the configuration.
  [[nodiscard]] const std::vector<std::unique_ptr<Gpu>>& all() const { return all_; }
  // Whether a session can be there. Errors: those of Gpu::not_ready(); kUnsupported without a
  // program for workers.
  [[nodiscard]] Status check_usable(const Gpu& gpu) const;

 private:
  std::string worker_;
  std::vector<std::unique_ptr<Gpu>> all_;
};

}  // namespace djinn::daemon
