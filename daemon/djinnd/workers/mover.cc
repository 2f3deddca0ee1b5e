// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/mover.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "ipc/codec/control_codec.h"
#include "ipc/codec/mover_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/random.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

// No device has granules outside of these; they are 2 MiB.
constexpr uint64_t kGranularityMin = 4096, kGranularityMax = uint64_t{4} << 20;

bool is_granularity(uint64_t bytes) {
  const bool is_power = (bytes & (bytes - 1)) == 0;
  return is_power && bytes >= kGranularityMin && bytes <= kGranularityMax;
}

// Its tables of kernels' code are not ours, and the numbers of devices are the same for everybody:
// variables that hide some of them, or lead to a server that does, are left out.
ChildProgram program_of(const std::string& path, DeviceId device) {
  return {.path = path,
          .arguments = {"--device", std::to_string(device.index)},
          .environment = {"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_CACHE_DISABLE=1"},
          .withheld = {"CUDA_VISIBLE_DEVICES", "CUDA_MPS_"}};
}

// What to do stands at the end of a reason, so of one that is too long the middle is left out.
std::string with_both_ends(const std::string& reason) {
  constexpr std::string_view kGap = " ... ";
  constexpr size_t kEnd = limits::kNameBytes / 2;
  constexpr size_t kBeginning = limits::kNameBytes - kEnd - kGap.size();
  if (reason.size() <= limits::kNameBytes) return ipc::showable_name(reason);
  return fmt::format("{}{}{}", ipc::showable_name(reason.substr(0, kBeginning)), kGap,
                     ipc::showable_name(reason.substr(reason.size() - kEnd)));
}

std::string with_next_step(const ipc::OrderFailed& failed) {
  switch (failed.code) {
    case ErrorCode::kDeviceLost:
      return failed.message + ". Its mover is started again.";
    case ErrorCode::kOutOfMemory:
      return failed.message + ". Free memory of the GPU: nvidia-smi lists who has it.";
    default:
      return failed.message;
  }
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

Mover::Mover(const ChildHost& host, Events& events, DeviceId device, std::string program)
    : host_(host),
      work_(host.loop, "gpu"),
      events_(events),
      device_(device),
      program_(std::move(program)),
      start_timer_(host.loop, [this] { start_mover(); }),
      answer_timer_(host.loop, [this] { waited_in_vain(); }),
      measure_timer_(host.loop, [this] { measure(); }),
      settled_timer_(host.loop, [this] { settled_ = true; }) {
  DJINN_ASSERT(device.kind == DeviceKind::kCuda);
}

void Mover::start() {
  start_mover();
}

void Mover::start_mover() {
  DJINN_ASSERT(child_ == nullptr);
  ++life_;
  refused_ = sticky_ = checked_ = settled_ = false;
  auto started = ChildProcess::start(host_, program_of(program_, device_), traffic_);
  if (!started) {
    enter(State::kFailed, why_not_started(started.error()));
    return start_next(MoverRestarts::End::kRefused);
  }
  child_ = *std::move(started);
  child_->listen(
      {[this](ipc::Datagram& message) { heard(message); }, [this] { ended(); }, SentFds::kExtents});
  answer_timer_.start_once(kAnswerMs);
}

void Mover::start_next(MoverRestarts::End last) {
  const auto wait_ms = restarts_.wait_after(last);
  if (wait_ms) start_timer_.start_once(*wait_ms);
}

std::string Mover::why_not_started(const Error& error) const {
  const bool is_missing = ::access(program_.c_str(), F_OK) != 0 && errno == ENOENT;
  return fmt::format("{} does not start ({}). {}, or leave {} out.", program_, error.message,
                     is_missing ? "Install the package djinn-cuda" : "Mend that", text_of(device_));
}

// --- what it says

void Mover::heard(ipc::Datagram& message) {
  if (refused_) return;
  const auto event = ipc::decode_mover_event(message.bytes);
  if (!event) return misbehaved("said what cannot be understood");
  if (!is_answer(*event, message.fds.size())) return misbehaved("said what it was not asked");
  answer_timer_.stop();
  take(*event, message.fds);
}

// What a ready mover says answers its last order; what one says that is not yet, tells of the
// device.
bool Mover::is_answer(const ipc::MoverEvent& event, size_t descriptors) const {
  const bool has_failed = std::holds_alternative<ipc::OrderFailed>(event.body);
  const size_t expected = step_ == Step::kCreate && !has_failed ? 1 : 0;
  if (descriptors != expected) return false;
  if (!ready_) {
    return event.number == 0 && (has_failed || std::holds_alternative<ipc::MoverReady>(event.body));
  }
  if (step_ == Step::kIdle || event.number != number_) return false;
  if (has_failed) return true;
  switch (step_) {
    case Step::kCheckFilled:
    case Step::kCheckZero:
      return std::holds_alternative<ipc::Checksummed>(event.body);
    case Step::kMeasure:
      return std::holds_alternative<ipc::DeviceMeasured>(event.body);
    default:
      return std::holds_alternative<ipc::OrderDone>(event.body);
  }
}

void Mover::take(const ipc::MoverEvent& event, std::vector<Fd>& fds) {
  if (const auto* failed = std::get_if<ipc::OrderFailed>(&event.body)) {
    return take_failure(*failed);
  }
  if (const auto* ready = std::get_if<ipc::MoverReady>(&event.body)) return take_ready(*ready);
  if (const auto* sum = std::get_if<ipc::Checksummed>(&event.body)) return check_sum(sum->sum);
  if (const auto* measured = std::get_if<ipc::DeviceMeasured>(&event.body)) {
    return take_measure(*measured);
  }
  if (step_ == Step::kCreate) extent_ = std::move(fds.front());
  next_step();
}

// A code that the driver repeats for ever it repeats to one process: the next one begins anew.
// Whether the process has ended by itself when we kill it decides nothing.
void Mover::take_failure(const ipc::OrderFailed& failed) {
  sticky_ = failed.code == ErrorCode::kDeviceLost;
  give_up(State::kFailed, with_next_step(failed));
}

void Mover::take_ready(const ipc::MoverReady& ready) {
  if (!is_granularity(ready.granularity_bytes)) {
    return misbehaved(fmt::format("has granules of {} bytes", ready.granularity_bytes));
  }
  ready_ = ready;
  answer_timer_.start_once(kAnswerMs);
  work_.run([bytes = ready.granularity_bytes] { return make_sample(bytes); },
            [this, life = life_](Result<Sample> sample) {
              if (life == life_ && ready_ && !refused_) return begin_check(std::move(sample));
              if (sample) work_.close(std::move(sample->memfd));
            });
}

void Mover::take_measure(const ipc::DeviceMeasured& measured) {
  if (measured.free_bytes > measured.total_bytes ||
      measured.total_bytes > limits::kWorkerAddressBytes) {
    return misbehaved("tells of more memory than there can be");
  }
  measured_ = measured;
  if (measured.xid != 0) {
    return give_up(State::kLost,
                   fmt::format("The driver told the fault Xid {}. Reset the GPU ('nvidia-smi "
                               "--gpu-reset', as root) or restart the machine, and then djinnd.",
                               measured.xid));
  }
  next_step();
}

// --- the check

// Any bytes would do that are not what memory may hold by itself. A mover that knew the key before
// it is told could keep a sum in place of the bytes.
Result<Mover::Sample> Mover::make_sample(uint64_t bytes) {
  std::array<uint64_t, 3> secret{};
  if (::getrandom(secret.data(), sizeof secret, 0) != sizeof secret) {
    return system_error("draw the key of a checksum", errno);
  }
  const ChecksumKey key{secret[0], secret[1]};
  std::vector<std::byte> content(bytes);
  KeyedChecksum zero(key), filled(key);
  zero.add(content);
  Random random(secret[2]);
  std::ranges::generate(content, [&] { return static_cast<std::byte>(random.next()); });
  filled.add(content);
  DJINN_TRY(Fd memfd, pal::make_sealed_memfd("djinn-check", content));
  return Sample{std::move(memfd), key, filled.value(), zero.value()};
}

void Mover::begin_check(Result<Sample> sample) {
  if (!sample) return give_up(State::kFailed, sample.error().message);
  sample_ = *std::move(sample);
  order(Step::kCreate);
}

decltype(ipc::MoverOrder::body) Mover::order_of(Step step) const {
  const uint64_t bytes = ready_->granularity_bytes;
  switch (step) {
    case Step::kCreate:
      return ipc::CreateExtent{bytes};
    case Step::kUpload:
      return ipc::UploadExtent{bytes, {{0, 0, bytes}}};
    case Step::kCheckFilled:
    case Step::kCheckZero:
      return ipc::ChecksumExtent{bytes, sample_->key};
    case Step::kZero:
      return ipc::ZeroExtent{bytes};
    default:
      return ipc::MeasureDevice{};
  }
}

void Mover::order(Step step) {
  step_ = step;
  number_ = number_ == UINT32_MAX ? 1 : number_ + 1;
  std::vector<int> fds;
  if (step == Step::kUpload) fds.push_back(sample_->memfd.get());
  if (step != Step::kCreate && step != Step::kMeasure) fds.push_back(extent_.get());
  answer_timer_.start_once(kAnswerMs);
  child_->send(ipc::encode(ipc::MoverOrder{number_, order_of(step)}), fds);
}

void Mover::check_sum(const Checksum& sum) {
  const bool is_filled = step_ == Step::kCheckFilled;
  if (sum == (is_filled ? sample_->filled : sample_->zero)) return next_step();
  give_up(State::kFailed,
          fmt::format("{} Look for Xids in the kernel's log, and reset the GPU.",
                      is_filled ? "What is copied to its memory comes back as other bytes."
                                : "Its memory is not zero where it was zeroed."));
}

void Mover::next_step() {
  if (step_ == Step::kMeasure) return end_check();
  order(static_cast<Step>(static_cast<uint8_t>(step_) + 1));
}

// Of a device that was ready already, this was a measure alone.
void Mover::end_check() {
  step_ = Step::kIdle;
  drop_check();
  if (!std::exchange(checked_, true)) settled_timer_.start_once(kSettledMs);
  measure_timer_.start_once(kMeasureEveryMs);
  enter(State::kReady, "");
}

void Mover::drop_check() {
  if (sample_) work_.close(std::move(sample_->memfd));
  sample_.reset();
  work_.close(std::move(extent_));
}

void Mover::measure() {
  if (state_ == State::kReady && ready_ && step_ == Step::kIdle) order(Step::kMeasure);
}

// --- its end

void Mover::waited_in_vain() {
  const bool waits_for_us = ready_ && step_ == Step::kIdle;
  give_up(State::kFailed, fmt::format("{} for {} s. Look for Xids in the kernel's log.",
                                      waits_for_us ? "The driver did not free what its mover had"
                                                   : "Its mover did not answer",
                                      kAnswerMs / 1000));
}

void Mover::misbehaved(std::string_view how) {
  give_up(State::kFailed, fmt::format("Its mover {}, and was ended.", how));
}

// The end of the process is heard of later, and then the next one is started.
void Mover::give_up(State state, const std::string& reason) {
  refused_ = true;
  answer_timer_.stop();
  enter(state, reason);
  if (child_ != nullptr) child_->kill();
}

void Mover::ended() {
  const std::string how = child_->how_it_ended();
  const bool is_other_build = child_->refused_our_build();
  host_.loop.dispose(std::move(child_));
  tell_ending(how);
  forget_life();
  start_next(end());
  if (refused_) return;
  deaths_ = checked_ ? 0 : deaths_ + 1;
  if (is_other_build) {
    enter(State::kFailed, "djinnd was upgraded and has not been restarted. Restart it.");
  } else if (checked_) {
    enter(State::kStarting, "Its mover ended, and is started again.");
  } else if (deaths_ >= kDeathsMax) {
    enter(State::kFailed,
          fmt::format("Its mover ended {} before it was ready, {} times in a row or more. The "
                      "journal may say why.",
                      how, kDeathsMax));
  }
}

MoverRestarts::End Mover::end() const {
  if (state_ == State::kLost) return MoverRestarts::End::kLost;
  if (refused_ && !sticky_) return MoverRestarts::End::kRefused;
  return settled_ ? MoverRestarts::End::kSettled : MoverRestarts::End::kEarly;
}

// Who restarts again and again for one reason is told of once.
void Mover::tell_ending(const std::string& how) {
  if (std::exchange(last_ending_, how) == how && !settled_) return;
  log("the mover of {} ended {}", text_of(device_), how);
}

// What was of the child that ended.
void Mover::forget_life() {
  ready_.reset();
  step_ = Step::kIdle;
  drop_check();
  answer_timer_.stop();
  measure_timer_.stop();
  settled_timer_.stop();
}

void Mover::enter(State state, const std::string& reason) {
  DJINN_ASSERT(state_ != State::kLost);
  state_ = state;
  reason_ = with_both_ends(reason);
  const bool is_bad = state == State::kFailed || state == State::kLost;
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
}

// --- what is told of it

ipc::DeviceReport Mover::report() const {
  ipc::DeviceReport report;
  report.device = text_of(device_);
  report.state = state_;
  report.reason = reason_;
  if (!ready_) return report;
  report.name = ready_->name;
  report.driver = ready_->driver;
  report.total_bytes = measured_.total_bytes;
  report.used_bytes = measured_.total_bytes - measured_.free_bytes;
  return report;
}

Error Mover::refusal() const {
  const std::string name = text_of(device_);
  switch (state_) {
    case State::kReady:
      return {ErrorCode::kUnsupported,
              fmt::format("{} is ready, but this djinnd has no worker for GPUs: its memory can be "
                          "looked after, and nothing can be computed on it. Name cpu:0, or none.",
                          name)};
    case State::kStarting:
      return {ErrorCode::kUnsupported,
              fmt::format("{} is being looked at, and this djinnd has no worker for GPUs. Name "
                          "cpu:0, or none.",
                          name)};
    case State::kFailed:
    case State::kLost:
      return {ErrorCode::kDeviceLost,
              fmt::format("{} {}: {}", name, state_ == State::kLost ? "is lost" : "cannot be used",
                          reason_)};
  }
  return {ErrorCode::kInternal, "The device has an unknown state."};
}

Movers::Movers(const ChildHost& host, Events& events, const std::vector<DeviceId>& devices,
               const std::string& program) {
  for (const DeviceId device : devices) {
    all_.push_back(std::make_unique<Mover>(host, events, device, program));
  }
}

void Movers::start() {
  for (const auto& mover : all_) mover->start();
}

const Mover* Movers::find(std::string_view device) const {
  const auto wanted = device_from(device);
  const auto found =
      std::ranges::find_if(all_, [&](const auto& mover) { return mover->device() == wanted; });
  return found == all_.end() ? nullptr : found->get();
}

std::vector<ipc::DeviceReport> Movers::reports() {
  std::vector<ipc::DeviceReport> reports;
  for (const auto& mover : all_) {
    reports.push_back(mover->report());
    mover->measure();
  }
  return reports;
}

}  // namespace djinn::daemon
