// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/mover.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "ipc/codec/control_codec.h"
#include "ipc/codec/mover_codec.h"
#include "kernel/base/assert.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

// No device has granules outside of these.
constexpr uint64_t kGranularityMin = 4096, kGranularityMax = uint64_t{64} << 20;

bool is_granularity(uint64_t bytes) {
  const bool is_power = (bytes & (bytes - 1)) == 0;
  return is_power && bytes >= kGranularityMin && bytes <= kGranularityMax;
}

// Its tables of kernels' code are not ours, and the numbers of devices are the same for everybody.
ChildProgram program_of(const std::string& path, DeviceId device) {
  return {path,
          {"--device", std::to_string(device.index)},
          {"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_CACHE_DISABLE=1"}};
}

}  // namespace

Mover::Mover(const ChildHost& host, WorkQueue& work, Events& events, DeviceId device,
             std::string program, uint64_t seed)
    : host_(host),
      work_(work),
      events_(events),
      device_(device),
      program_(std::move(program)),
      random_(seed),
      start_timer_(host.loop, [this] { start_mover(); }),
      answer_timer_(host.loop, [this] { waited_in_vain(); }),
      measure_timer_(host.loop, [this] { measure(); }) {
  DJINN_ASSERT(device.kind == DeviceKind::kCuda);
}

void Mover::start() {
  start_mover();
}

void Mover::start_mover() {
  DJINN_ASSERT(child_ == nullptr);
  ++life_;
  refused_ = checked_ = false;
  auto started = ChildProcess::start(host_, program_of(program_, device_), traffic_);
  if (!started) {
    enter(State::kFailed,
          fmt::format("{} does not start ({}). Install the package djinn-cuda, or leave {} out.",
                      program_, started.error().message, text_of(device_)));
    return start_timer_.start_once(kRetryRefusedMs);
  }
  child_ = *std::move(started);
  child_->listen(
      {[this](ipc::Datagram& message) { heard(message); }, [this] { ended(); }, SentFds::kExtents});
  answer_timer_.start_once(kAnswerMs);
}

// --- what it says
// ---------------------------------------------------------------------------------

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
    refused_ = true;
    const bool is_lost = state_ == State::kReady && failed->code == ErrorCode::kDeviceLost;
    return give_up(is_lost ? State::kLost : State::kFailed, failed->message);
  }
  if (const auto* ready = std::get_if<ipc::MoverReady>(&event.body)) return take_ready(*ready);
  if (const auto* sum = std::get_if<ipc::Checksummed>(&event.body)) return check_sum(sum->sum);
  if (const auto* measured = std::get_if<ipc::DeviceMeasured>(&event.body)) {
    return take_measure(*measured);
  }
  if (step_ == Step::kCreate) extent_ = std::move(fds.front());
  next_step();
}

void Mover::take_ready(const ipc::MoverReady& ready) {
  if (!is_granularity(ready.granularity_bytes)) {
    return misbehaved(fmt::format("has granules of {} bytes", ready.granularity_bytes));
  }
  ready_ = ready;
  const ChecksumKey key{random_.next(), random_.next()};
  work_.run([bytes = ready.granularity_bytes, key] { return make_sample(bytes, key); },
            [this, life = life_](Result<Sample> sample) {
              if (life == life_ && ready_) begin_check(std::move(sample));
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
                   fmt::format("The driver told the fault Xid {}: the GPU needs a reset, or the "
                               "machine a restart.",
                               measured.xid));
  }
  next_step();
}

// --- the check
// ------------------------------------------------------------------------------------

// Any bytes would do that are not what memory may hold by itself.
Result<Mover::Sample> Mover::make_sample(uint64_t bytes, const ChecksumKey& key) {
  std::vector<std::byte> content(bytes);
  KeyedChecksum zero(key), filled(key);
  zero.add(content);
  Random random(key[0]);
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
  give_up(State::kFailed, is_filled ? "What is copied to its memory comes back as other bytes."
                                    : "Its memory is not zero where it was zeroed.");
}

void Mover::next_step() {
  if (step_ == Step::kMeasure) return end_check();
  order(static_cast<Step>(static_cast<uint8_t>(step_) + 1));
}

// Of a device that was ready already, this was a measure alone.
void Mover::end_check() {
  step_ = Step::kIdle;
  sample_.reset();
  if (extent_.valid()) work_.close(std::move(extent_));
  checked_ = true;
  measure_timer_.start_once(kMeasureEveryMs);
  enter(State::kReady, "");
}

void Mover::measure() {
  if (state_ == State::kReady && ready_ && step_ == Step::kIdle) order(Step::kMeasure);
}

// --- its end
// --------------------------------------------------------------------------------------

void Mover::waited_in_vain() {
  give_up(State::kFailed, fmt::format("Its mover did not answer for {} s.", kAnswerMs / 1000));
}

void Mover::misbehaved(std::string_view how) {
  give_up(State::kFailed, fmt::format("Its mover {}, and was ended.", how));
}

// The end of the process is heard of later, and then the next one is started.
void Mover::give_up(State state, std::string reason) {
  refused_ = true;
  enter(state, std::move(reason));
  if (child_ != nullptr) child_->kill();
}

void Mover::ended() {
  const std::string how = child_->how_it_ended();
  const bool is_lost = child_->lost_its_device();
  const bool is_other_build = child_->refused_our_build();
  host_.loop.dispose(std::move(child_));
  forget_life();
  log("the mover of {} ended {}", text_of(device_), how);
  // What a driver answers for ever it answers to one process.
  if (refused_ && !is_lost) return start_timer_.start_once(kRetryRefusedMs);
  deaths_ = checked_ ? 0 : deaths_ + 1;
  start_timer_.start_once(back_off_.after_death(checked_));
  if (refused_) return;
  if (is_other_build) {
    enter(State::kFailed, "djinnd was upgraded and has not been restarted. Restart it.");
  } else if (checked_) {
    enter(State::kStarting, "Its mover ended, and is started again.");
  } else if (deaths_ >= kDeathsMax) {
    enter(State::kFailed,
          fmt::format("Its mover ended {} before it was ready, {} times in a row.", how, deaths_));
  }
}

// What was of the child that ended.
void Mover::forget_life() {
  ready_.reset();
  step_ = Step::kIdle;
  sample_.reset();
  if (extent_.valid()) work_.close(std::move(extent_));
  answer_timer_.stop();
  measure_timer_.stop();
}

void Mover::enter(State state, std::string reason) {
  const bool is_bad = state == State::kFailed || state == State::kLost;
  const bool is_news = is_bad && (state != state_ || reason != reason_);
  state_ = state;
  reason_ = ipc::showable_name(reason);
  if (is_news && !std::exchange(told_bad_, true)) {
    events_.emit(
        device_event(device_, EventKind::kDeviceLost,
                     fmt::format("device {} {}: {}", text_of(device_),
                                 state == State::kLost ? "is lost" : "cannot be used", reason_)));
  }
  if (state == State::kReady && std::exchange(told_bad_, false)) {
    events_.emit(device_event(device_, EventKind::kDeviceBack,
                              fmt::format("device {} is back", text_of(device_))));
  }
}

// --- what is told of it
// ---------------------------------------------------------------------------

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
      return {ErrorCode::kBusy,
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

Movers::Movers(const ChildHost& host, WorkQueue& work, Events& events,
               const std::vector<DeviceId>& devices, const std::string& program, uint64_t seed) {
  for (const DeviceId device : devices) {
    all_.push_back(
        std::make_unique<Mover>(host, work, events, device, program, seed + device.index));
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
