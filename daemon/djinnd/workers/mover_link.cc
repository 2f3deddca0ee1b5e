// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/mover_link.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "ipc/codec/mover_codec.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kAnswerMs = 60'000;
// A mover that copies through one thread, on a slow host, with others beside it.
constexpr uint64_t kSlowestBytesPerMs = 100'000;

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

struct Expected {
  bool operator()(const ipc::CreateExtent&) const { return is<ipc::OrderDone>(); }
  bool operator()(const ipc::ZeroExtent&) const { return is<ipc::OrderDone>(); }
  bool operator()(const ipc::UploadExtent&) const { return is<ipc::OrderDone>(); }
  bool operator()(const ipc::ChecksumExtent&) const { return is<ipc::Checksummed>(); }
  bool operator()(const ipc::MeasureDevice&) const { return is<ipc::DeviceMeasured>(); }

  template <typename Kind>
  [[nodiscard]] bool is() const {
    return std::holds_alternative<Kind>(answer);
  }
  const decltype(ipc::MoverEvent::body)& answer;
};

uint64_t bytes_of(const MoverLink::Body& body) {
  return std::visit(
      [](const auto& order) -> uint64_t {
        if constexpr (requires { order.bytes; }) return order.bytes;
        return 0;
      },
      body);
}

}  // namespace

MoverLink::MoverLink(const ChildHost& host, DeviceId device, std::string program,
                     Listener& listener)
    : host_(host),
      device_(device),
      program_(std::move(program)),
      listener_(listener),
      silence_(host.loop, [this] {
        const uint64_t seconds = patience_ms_ / 1000;
        kill();
        listener_.mover_silent(seconds);
      }) {
  DJINN_ASSERT(device.kind == DeviceKind::kCuda);
}

Status MoverLink::start() {
  DJINN_ASSERT(child_ == nullptr && answered_ == nullptr);
  is_ready_ = is_silenced_ = false;
  DJINN_TRY(child_, ChildProcess::start(host_, program_of(program_, device_), traffic_));
  child_->listen(
      {[this](ipc::Datagram& message) { heard(message); }, [this] { ended(); }, SentFds::kExtents});
  wait(kAnswerMs);
  return {};
}

void MoverLink::wait(uint64_t ms) {
  patience_ms_ = ms;
  silence_.start_once(ms);
}

void MoverLink::order(Body body, const std::vector<int>& fds, Answered answered) {
  DJINN_ASSERT(is_idle() && answered != nullptr);
  number_ = number_ == UINT32_MAX ? 1 : number_ + 1;
  body_ = std::move(body);
  answered_ = std::move(answered);
  wait(kAnswerMs + bytes_of(body_) / kSlowestBytesPerMs);
  child_->send(ipc::encode(ipc::MoverOrder{number_, body_}), fds);
}

void MoverLink::kill() {
  is_silenced_ = true;
  answered_ = nullptr;
  silence_.stop();
  if (child_ != nullptr) child_->kill();
}

void MoverLink::heard(ipc::Datagram& message) {
  if (is_silenced_) return;
  auto event = ipc::decode_mover_event(message.bytes);
  if (!event) return misbehaved("said what cannot be understood");
  if (!is_ready_) return take_word(event.value(), !message.fds.empty());
  take_answer(event.value(), message.fds);
}

void MoverLink::take_word(const ipc::MoverEvent& event, bool has_descriptors) {
  const auto* const ready = std::get_if<ipc::MoverReady>(&event.body);
  const auto* const failed = std::get_if<ipc::OrderFailed>(&event.body);
  const bool is_word = ready != nullptr || failed != nullptr;
  if (event.number != 0 || has_descriptors || !is_word)
    return misbehaved("said what it was not asked");
  silence_.stop();
  if (failed != nullptr) return listener_.mover_refused({failed->code, failed->message});
  if (!is_granularity(ready->granularity_bytes)) {
    return misbehaved(fmt::format("has granules of {} bytes", ready->granularity_bytes));
  }
  is_ready_ = true;
  listener_.mover_ready(*ready);
}

void MoverLink::take_answer(ipc::MoverEvent& event, std::vector<Fd>& fds) {
  const auto* const failed = std::get_if<ipc::OrderFailed>(&event.body);
  const auto* const create = std::get_if<ipc::CreateExtent>(&body_);
  const size_t descriptors = create != nullptr && failed == nullptr ? 1 : 0;
  const bool is_answer = answered_ != nullptr && event.number == number_ &&
                         fds.size() == descriptors &&
                         (failed != nullptr || std::visit(Expected{event.body}, body_));
  if (!is_answer) return misbehaved("said what it was not asked");
  if (descriptors == 1 && !is_extent_of_gpu(fds.front(), create->bytes)) {
    return misbehaved("made an extent of another size than was ordered");
  }
  silence_.stop();
  const Answered answered = std::exchange(answered_, nullptr);
  if (failed != nullptr) return answered(Error{failed->code, failed->message});
  answered(MoverAnswer{std::move(event.body), descriptors == 1 ? std::move(fds.front()) : Fd()});
}

void MoverLink::misbehaved(const std::string& how) {
  kill();
  listener_.mover_misbehaved(how);
}

void MoverLink::ended() {
  const MoverEnd end{child_->how_it_ended(), child_->refused_our_build()};
  host_.loop.dispose(std::move(child_));
  is_ready_ = false;
  answered_ = nullptr;
  silence_.stop();
  listener_.mover_ended(end);
}

}  // namespace djinn::daemon
