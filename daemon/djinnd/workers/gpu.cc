// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kUsualGranuleBytes = uint64_t{2} << 20;

// What to do stands at the end of a reason, so of one that is too long the middle is left out.
std::string with_both_ends(const std::string& reason) {
  constexpr std::string_view kGap = " ... ";
  constexpr size_t kEnd = limits::kNameBytes / 2;
  constexpr size_t kBeginning = limits::kNameBytes - kEnd - kGap.size();
  if (reason.size() <= limits::kNameBytes) return ipc::showable_name(reason);
  return fmt::format("{}{}{}", ipc::showable_name(reason.substr(0, kBeginning)), kGap,
                     ipc::showable_name(reason.substr(reason.size() - kEnd)));
}

std::string with_next_step(const Error& why) {
  switch (why.code) {
    case ErrorCode::kDeviceLost:
      return why.message + ". Its mover is started again.";
    case ErrorCode::kOutOfMemory:
      return why.message + ". Free memory of the GPU: nvidia-smi lists who has it.";
    default:
      return why.message;
  }
}

Result<Fd> open_node(const std::string& path) {
  Fd node(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!node.valid() || ::fstat(node.get(), &info) != 0) return system_error("open " + path, errno);
  if (S_ISCHR(info.st_mode)) return node;
  return Error{ErrorCode::kInvalidArgument, path + " is no node of a device"};
}

}  // namespace

std::optional<uint64_t> MoverRestarts::wait_after(End end) {
  switch (end) {
    case End::kEarly:
    case End::kSettled:
      return back_off_.after_death(end == End::kSettled);
    case End::kRefused:
      return kRefusedMs;
    case End::kLost:
      break;
  }
  return std::nullopt;
}

std::string fault_of(const ipc::MoverReady& ready, const std::optional<ipc::MoverReady>& first) {
  if (!ready.seccomp) {
    return "Its mover is not confined by a filter of system calls, and is not used. Run djinnd on "
           "a kernel with seccomp.";
  }
  // The filter lets a mover open paths; which, only Landlock says.
  if (ready.landlock_abi == 0) {
    return "Its mover is not confined by Landlock, and is not used. Name landlock in the kernel's "
           "option lsm=, or run a kernel that has it.";
  }
  if (first && first->uuid != ready.uuid) {
    return fmt::format("Another GPU has its number now: {}, and not {}. Restart djinnd.",
                       ready.uuid, first->uuid);
  }
  return "";
}

Gpu::Gpu(const ChildHost& host, Events& events, DeviceId device, std::string program,
         std::string nodes)
    : host_(host),
      work_(host.loop, "gpu"),
      events_(events),
      device_(device),
      program_(std::move(program)),
      nodes_(std::move(nodes)),
      link_(host, device, program_, *this),
      check_(host.loop, link_, work_),
      start_timer_(host.loop, [this] { start_mover(); }),
      measure_timer_(host.loop, [this] { measure(); }),
      settled_timer_(host.loop, [this] { settled_ = true; }) {}

void Gpu::start() {
  start_mover();
}

void Gpu::start_mover() {
  DJINN_ASSERT(!has_mover_ && !given_);
  refused_ = sticky_ = checked_ = settled_ = false;
  const Status started = link_.start();
  if (!started) {
    refused_ = true;
    enter(State::kFailed, why_not_started(started.error()));
    return start_next(MoverRestarts::End::kRefused);
  }
  has_mover_ = true;
}

void Gpu::start_next(MoverRestarts::End last) {
  const auto wait_ms = restarts_.wait_after(last);
  if (wait_ms) start_timer_.start_once(*wait_ms);
}

std::string Gpu::why_not_started(const Error& error) const {
  const bool is_missing = ::access(program_.c_str(), F_OK) != 0 && errno == ENOENT;
  return fmt::format("{} does not start ({}). {}, or leave {} out.", program_, error.message,
                     is_missing ? "Install the package djinn-cuda" : "Mend that", text_of(device_));
}

// --- what it says

void Gpu::mover_ready(const ipc::MoverReady& ready) {
  const std::string fault = fault_of(ready, first_);
  if (!fault.empty()) return give_up(State::kFailed, fault);
  ready_ = ready;
  check_.begin(ready.granularity_bytes, [this](const Status& status) { checked(status); });
}

void Gpu::checked(const Status& status) {
  if (!status) return mover_refused(status.error());
  open_anchor();
  ask_measure();
}

// By the thread, because the driver may keep who opens its node waiting.
void Gpu::open_anchor() {
  if (anchor_.valid()) return has_anchor(std::move(anchor_));
  if (!ready_->minor) return has_anchor(Error{ErrorCode::kNotFound, "NVML does not say its node"});
  work_.run([path = fmt::format("{}/nvidia{}", nodes_, *ready_->minor)] { return open_node(path); },
            [this](Result<Fd> node) { has_anchor(std::move(node)); });
}

void Gpu::has_anchor(Result<Fd> node) {
  if (node) {
    anchor_ = *std::move(node);
    if (on_anchor_) on_anchor_(anchor_);
  } else if (!std::exchange(lack_told_, true)) {
    log("copies on {} do not outlive djinnd: {}", text_of(device_), node.error().message);
  }
}

// A code that the driver repeats for ever it repeats to one process: the next one begins anew.
// Whether the process has ended by itself when we kill it decides nothing.
void Gpu::mover_refused(const Error& why) {
  sticky_ = why.code == ErrorCode::kDeviceLost;
  give_up(State::kFailed, with_next_step(why));
}

void Gpu::mover_misbehaved(const std::string& how) {
  give_up(State::kFailed, fmt::format("Its mover {}, and was ended.", how));
}

void Gpu::mover_silent(uint64_t seconds) {
  give_up(State::kFailed,
          fmt::format("Its mover did not answer for {} s. Look for Xids in the kernel's log.",
                      seconds));
}

// The end of the process is heard of later, and then the next one is started.
void Gpu::give_up(State state, const std::string& reason) {
  refused_ = true;
  enter(state, reason);
  link_.kill();
  check_.drop();
}

// --- its end

void Gpu::mover_ended(const MoverEnd& ending) {
  has_mover_ = false;
  tell_ending(ending.how);
  ready_.reset();
  check_.drop();
  measure_timer_.stop();
  settled_timer_.stop();
  start_next(end());
  deaths_ = checked_ ? 0 : deaths_ + 1;
  if (!refused_) {
    note_death(ending);
  } else if (sticky_ && deaths_ >= kDeathsMax) {
    sticky_ = false;  // the next one will fare no better
    enter(state_, reason_);
  }
  mover_dropped_order();
}

void Gpu::note_death(const MoverEnd& ending) {
  if (ending.is_other_build) {
    enter(State::kFailed, "djinnd was upgraded and has not been restarted. Restart it.");
  } else if (checked_) {
    enter(State::kStarting, "Its mover ended, and is started again.");
  } else if (deaths_ >= kDeathsMax) {
    enter(State::kFailed,
          fmt::format("Its mover ended {} before it was ready, {} times in a row or more. The "
                      "journal may say why.",
                      ending.how, kDeathsMax));
  }
}

MoverRestarts::End Gpu::end() const {
  if (state_ == State::kLost) return MoverRestarts::End::kLost;
  if (refused_ && !sticky_) return MoverRestarts::End::kRefused;
  return settled_ ? MoverRestarts::End::kSettled : MoverRestarts::End::kEarly;
}

// Who restarts again and again for one reason is told of once.
void Gpu::tell_ending(const std::string& how) {
  if (std::exchange(last_ending_, how) == how && !settled_) return;
  log("the mover of {} ended {}", text_of(device_), how);
}

void Gpu::enter(State state, const std::string& reason) {
  DJINN_ASSERT(state_ != State::kLost);
  state_ = state;
  reason_ = with_both_ends(reason);
  const bool is_bad = state == State::kFailed || state == State::kLost;
  hopeful_ = !is_bad || sticky_;
  const std::string bad =
      fmt::format("device {} {}: {}", text_of(device_),
                  state == State::kLost ? "is lost" : "cannot be used", reason_);
  if (is_bad && std::exchange(told_bad_, bad) != bad) {
    events_.emit(device_event(device_, EventKind::kDeviceLost, bad));
  }
  if (state == State::kReady && !std::exchange(told_bad_, "").empty()) {
    events_.emit(device_event(device_, EventKind::kDeviceBack,
                              fmt::format("device {} is back", text_of(device_))));
  }
  if (hopeful_) return;
  // Deferred, because who is refused may order something else.
  host_.loop.defer([this] {
    refuse_orders();
    if (state_ != State::kLost) return;
    work_.close(std::move(anchor_));  // else it could not be reset
    if (on_lost_) on_lost_();
  });
}

// --- what it is asked

void Gpu::measure() {
  wants_measure_ = true;
  go_on();
}

// The next thing, if there is one and the mover has nothing to do. Whoever asks again and again how
// the device is keeps nobody's order waiting.
void Gpu::go_on() {
  if (!checked_ || !link_.is_idle()) return;
  const bool measures = wants_measure_ && (orders_.empty() || !measured_last_);
  measures ? ask_measure() : give_next();
}

void Gpu::ask_measure() {
  wants_measure_ = false;
  measured_last_ = true;
  link_.order(ipc::MeasureDevice{}, {}, [this](Result<MoverAnswer> answer) {
    if (!answer) return mover_refused(answer.error());
    take_measure(std::get<ipc::DeviceMeasured>(answer->body));
  });
}

void Gpu::take_measure(const ipc::DeviceMeasured& measured) {
  if (measured.free_bytes > measured.total_bytes ||
      measured.total_bytes > limits::kWorkerAddressBytes) {
    link_.kill();
    return mover_misbehaved("tells of more memory than there can be");
  }
  if (measured.xid != 0) {
    return give_up(State::kLost,
                   fmt::format("The driver told the fault Xid {}. Reset the GPU ('nvidia-smi "
                               "--gpu-reset', as root) or restart the machine, and then djinnd.",
                               measured.xid));
  }
  const uint64_t before = std::exchange(measured_, measured).total_bytes;
  if (before != 0 && before != measured.total_bytes) {
    measured_.total_bytes = before;
    return give_up(State::kFailed,
                   "It has another size than before, as after a change of its "
                   "mode. Restart djinnd.");
  }
  if (!first_) first_ = ready_;
  if (!std::exchange(checked_, true)) settled_timer_.start_once(kSettledMs);
  measure_timer_.start_once(kMeasureEveryMs);
  if (state_ != State::kReady) enter(State::kReady, "");
  if (before == 0 && on_capacity_) on_capacity_(measured.total_bytes);
  go_on();
}

Gpu::OrderId Gpu::order(MoverLink::Body body, std::vector<int> fds, Answered answered) {
  DJINN_ASSERT(answered != nullptr);
  orders_.push_back({++last_order_, std::move(body), std::move(fds), std::move(answered)});
  host_.loop.defer([this] {
    refuse_orders();
    go_on();
  });
  return last_order_;
}

bool Gpu::cancel(OrderId order) {
  if (given_ && given_->id == order) given_->is_cancelled = true;
  return std::erase_if(orders_, [order](const Order& one) { return one.id == order; }) > 0;
}

void Gpu::give_next() {
  if (orders_.empty()) return;
  DJINN_ASSERT(!given_);
  measured_last_ = false;
  given_ = std::move(orders_.front());
  orders_.pop_front();
  link_.order(given_->body, given_->fds,
              [this](Result<MoverAnswer> answer) { take_answer(std::move(answer)); });
}

void Gpu::take_answer(Result<MoverAnswer> answered) {
  if (!answered && answered.error().code == ErrorCode::kDeviceLost) {
    return mover_refused(answered.error());
  }
  settled_ = true;  // it does what it is there for
  if (const auto* const upload = std::get_if<ipc::UploadExtent>(&given_->body);
      upload && answered) {
    for (const ipc::UploadRange& range : upload->ranges) uploaded_bytes_ += range.bytes;
  }
  const Order order = *std::exchange(given_, std::nullopt);
  order.answered(std::move(answered));
  go_on();
}

// The mover is gone that had it: it is the next one's first.
void Gpu::mover_dropped_order() {
  if (!given_) return;
  Order order = *std::exchange(given_, std::nullopt);
  if (!hopeful_) return order.answered(not_ready());
  if (order.is_cancelled) return order.answered(Error{ErrorCode::kCancelled, "It is given up."});
  if (++order.deaths < kOrderDeathsMax) return orders_.push_front(std::move(order));
  order.answered(
      Error{ErrorCode::kDeviceLost,
            fmt::format("The mover of {} ended {} times at the same order. Look for Xids in the "
                        "kernel's log.",
                        text_of(device_), kOrderDeathsMax)});
}

// Those that no mover has; whose mover has it hears when that is gone.
void Gpu::refuse_orders() {
  if (hopeful_) return;
  for (const Order& order : std::exchange(orders_, {})) order.answered(not_ready());
}

// --- what is told of it

uint64_t Gpu::granularity_bytes() const {
  return first_ ? first_->granularity_bytes : kUsualGranuleBytes;
}

ipc::DeviceReport Gpu::report() const {
  ipc::DeviceReport report;
  report.device = text_of(device_);
  report.state = state_;
  report.reason = reason_;
  if (!ready_) return report;
  report.name = ready_->name;
  report.driver = ready_->driver;
  report.hardware_bytes = measured_.total_bytes;
  report.hardware_free_bytes = measured_.free_bytes;
  report.uploaded_bytes = uploaded_bytes_;
  return report;
}

Error Gpu::not_ready() const {
  DJINN_ASSERT(!is_ready());
  const std::string name = text_of(device_);
  if (state_ == State::kStarting) {
    return {ErrorCode::kBusy, fmt::format("{} is being looked at. Repeat this in a moment.", name)};
  }
  return {ErrorCode::kDeviceLost,
          fmt::format("{} {}: {}", name, state_ == State::kLost ? "is lost" : "cannot be used",
                      reason_)};
}

Gpus::Gpus(const ChildHost& host, Events& events, const std::vector<DeviceId>& devices,
           const std::string& program, std::string worker, const std::string& nodes)
    : worker_(std::move(worker)) {
  for (const DeviceId device : devices) {
    all_.push_back(std::make_unique<Gpu>(host, events, device, program, nodes));
  }
}

Status Gpus::check_usable(const Gpu& gpu) const {
  if (!gpu.takes_orders()) return gpu.not_ready();
  if (::access(worker_.c_str(), X_OK) == 0) return {};
  return Error{
      ErrorCode::kUnsupported,
      fmt::format("{} is ready, but there is no worker for GPUs, so nothing can be computed there: "
                  "make the package djinn-torch-cuda ('./dev deb --cuda' in djinnd's source) and "
                  "install it with apt, or name cpu:0, or none.",
                  text_of(gpu.device()))};
}

void Gpus::start() {
  for (const auto& gpu : all_) gpu->start();
}

Gpu* Gpus::find(DeviceId device) const {
  const auto found =
      std::ranges::find_if(all_, [&](const auto& gpu) { return gpu->device() == device; });
  return found == all_.end() ? nullptr : found->get();
}

Gpu* Gpus::find(std::string_view device) const {
  const auto named = device_from(device);
  return named ? find(*named) : nullptr;
}

}  // namespace djinn::daemon
