// SPDX-License-Identifier: Apache-2.0

// This is the real worker with an executor that has no kernels, for djinnd's tests. A graph says by
// its operators what goes wrong in a step (kernel/executor/fake_executor_for_tests.h).
//
// A relay stands between it and djinnd, and does what no graph can make the worker do. It acts on
// the first byte of a model, on the number with which a session's staging begins, and on the tokens
// a row of a sequence group:
//
//   model filled with 'r'      The relay refuses it, and the worker does not hear of it.
//   model filled with 'd'      The worker dies.
//   staging 1 to 9             When the session is attached, the number becomes one less, and the
//                              worker dies.
//   staging 101 to 109         The same happens when the session's refs are to be trimmed.
//   staging 200                The worker does not hear that the refs are to be trimmed.
//   staging 201                It does not hear that either, and the relay asks for memory more
//                              often than it may. When it is told so, the number becomes 0.
//   staging 202                The same, but the relay asks twice under one number.
//   group of 13 tokens a row   The worker dies when the group is to be spilled.
//   group of 14 tokens a row   The worker does not hear that the group is to be spilled.
//   group of 15 tokens a row   The relay answers that the group cannot be written.
//   --sends memory, file       A descriptor of this kind comes with the worker's first message.
#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/child/channel.h"
#include "daemon/worker/worker.h"
#include "ipc/build_identity.h"
#include "ipc/codec/control_codec.h"
#include "ipc/session_memory.h"
#include "kernel/executor/fake_executor_for_tests.h"
#include "kernel/pal/chunk_pal.h"
#include "kernel/pal/host_pal.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint32_t kDeathsMax = 9;
constexpr uint32_t kTrimDies = 100;  // and how often
constexpr uint32_t kTrimHangs = 200;
constexpr uint32_t kTrimFloods = 201;
constexpr uint32_t kTrimRepeats = 202;
constexpr uint64_t kAsksOfFlood = 1100;
constexpr uint64_t kFirstAsk = uint64_t{1} << 40;
constexpr uint64_t kAskedBytes = 30 << 20;
constexpr uint64_t kSpillDies = 13;
constexpr uint64_t kSpillHangs = 14;
constexpr uint64_t kSpillFails = 15;

// Carries messages between djinnd and the worker, on a thread for each direction. When one of the
// two is gone, the process ends.
class Relay {
 public:
  // If `sent` is valid, it goes to djinnd with the worker's first message.
  Relay(Fd djinnd, Fd worker, Fd sent)
      : djinnd_(std::move(djinnd)),
        worker_(std::move(worker)),
        sent_(std::move(sent)),
        commands_([this] { carry_commands(); }),
        events_([this] { carry_events(); }) {}

 private:
  void carry_commands() {
    for (;;) {
      auto message = djinnd_.receive();
      if (!message) ::_exit(0);
      const auto command = ipc::decode_worker_command(message->bytes);
      if (!command) ::_exit(3);
      const bool passes =
          std::visit([&](const auto& body) { return look(body, message->fds); }, command->body);
      if (passes && !send(worker_, *message)) ::_exit(0);
    }
  }
  void carry_events() {
    for (;;) {
      auto message = worker_.receive();
      if (!message) ::_exit(0);
      if (sent_.valid()) message->fds.push_back(std::move(sent_));
      if (!send(djinnd_, *message)) ::_exit(0);
    }
  }
  static bool send(child::Channel& to, const ipc::Datagram& message) {
    std::vector<int> fds;
    for (const Fd& fd : message.fds) fds.push_back(fd.get());
    return to.send(message.bytes, fds).ok();
  }
  // Gives the number with which the session's staging begins.
  uint32_t& number_of(SessionId session) {
    const auto staging = memory_.at(session).bytes().subspan(ipc::SessionLayout::kStagingOffset);
    return *reinterpret_cast<uint32_t*>(staging.data());
  }
  void answer(const ipc::WorkerEvent& event) {
    if (!djinnd_.send(ipc::encode(event))) ::_exit(0);
  }

  // Handles a command of djinnd's. Gives false if the worker is not to hear of it.
  template <typename Body>
  bool look(const Body&, const std::vector<Fd>&) {
    return true;
  }
  bool look(const ipc::AttachSession& c, const std::vector<Fd>& fds) {
    memory_[c.session] = *pal::map_shared(fds[0], ipc::SessionLayout::bytes(c.staging_bytes),
                                          pal::Access::kReadWrite);
    uint32_t& deaths = number_of(c.session);
    if (deaths == 0 || deaths > kDeathsMax) return true;
    --deaths;
    ::_exit(10);
  }
  bool look(const ipc::TrimRefs& c, const std::vector<Fd>&) {
    uint32_t& number = number_of(c.session);
    if (number == kTrimHangs) return false;
    if (number == kTrimFloods || number == kTrimRepeats) {
      flooding_ = c.session;
      const uint64_t asks = number == kTrimFloods ? kAsksOfFlood : 2;
      for (uint64_t i = 0; i < asks; ++i) {
        const uint64_t ask = kFirstAsk + (number == kTrimFloods ? i : 0);
        answer({ipc::GrantRequest{ask, ipc::GrantKind::kHeap, {}, {}, kAskedBytes, false, {}}});
      }
      return false;
    }
    if (number <= kTrimDies || number > kTrimDies + kDeathsMax) return true;
    --number;
    ::_exit(9);
  }
  bool look(const ipc::GrantAnswer& c, const std::vector<Fd>&) {
    if (c.request < kFirstAsk) return true;
    if (c.code == ErrorCode::kLimitExceeded) number_of(flooding_) = 0;
    return false;
  }
  bool look(const ipc::AddModel& c, const std::vector<Fd>& fds) {
    if (fds.size() < 2) return true;
    const auto fill = static_cast<char>((*pal::read_memfd(fds[1], 1)).front());
    if (fill == 'd') ::_exit(11);
    if (fill != 'r') return true;
    answer({ipc::ModelAdded{c.model, ErrorCode::kMalformed, "The worker\x1b cannot."}});
    return false;
  }
  bool look(const ipc::AddSequence& c, const std::vector<Fd>&) {
    capacities_[{c.session, c.sequence.index}] = c.geometry.capacity;
    return true;
  }
  bool look(const ipc::SpillSequence& c, const std::vector<Fd>&) {
    const uint64_t capacity = capacities_[{c.session, c.sequence.index}];
    if (capacity == kSpillDies) ::_exit(8);
    if (capacity == kSpillFails) {
      answer({ipc::SequenceSpilled{c.session, c.sequence, 0, ErrorCode::kIo, "No disk."}});
    }
    return capacity != kSpillHangs && capacity != kSpillFails;
  }

  child::Channel djinnd_;
  child::Channel worker_;
  Fd sent_;
  std::map<SessionId, pal::Mapping> memory_;                       // shared with their clients
  std::map<std::pair<SessionId, uint32_t>, uint64_t> capacities_;  // of groups
  SessionId flooding_;
  std::thread commands_;
  std::thread events_;
};

Fd descriptor_to_send(std::string_view kind) {
  if (kind == "memory") return *pal::make_memfd("sent", 1);
  if (kind == "file") return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return {};
}

class FakeDevice final : public worker::Device {
 public:
  explicit FakeDevice(std::unique_ptr<pal::DevicePal> pal) : pal_(std::move(pal)) {}
  [[nodiscard]] pal::DevicePal& pal() override { return *pal_; }
  [[nodiscard]] exec::Executor& executor() override { return executor_; }

 private:
  std::unique_ptr<pal::DevicePal> pal_;
  exec::FakeExecutor executor_;
};

// Extents of a device other than the host have no parts.
Result<std::unique_ptr<worker::Device>> open(DeviceId device, worker::Grants&) {
  std::unique_ptr<pal::DevicePal> pal;
  if (device == kHostDevice) {
    DJINN_TRY(pal, pal::HostPal::make());
  } else {
    DJINN_TRY(pal, pal::ChunkPal::make(text_of(device), kPage));
  }
  return std::unique_ptr<worker::Device>(new FakeDevice(std::move(pal)));
}

// The worker gets the arguments except for --sends, and a channel to the relay.
int run(int argc, char** argv) {
  ipc::SocketPair pair = *ipc::make_socket_pair();
  std::string inner = std::to_string(pair.left.release());
  Fd djinnd;
  Fd sent;
  std::vector<char*> arguments{argv[0]};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--sends") {
      sent = descriptor_to_send(argv[i + 1]);
      continue;
    }
    if (name == "--channel-fd") djinnd = Fd(std::stoi(argv[i + 1]));
    arguments.insert(arguments.end(),
                     {argv[i], name == "--channel-fd" ? inner.data() : argv[i + 1]});
  }
  const Relay relay(std::move(djinnd), std::move(pair.right), std::move(sent));
  const int status = worker::run_worker(static_cast<int>(arguments.size()), arguments.data(),
                                        child::Role::kWorker, &open);
  ::_exit(status);
}

}  // namespace
}  // namespace djinn::daemon

int main(int argc, char** argv) {
  if (djinn::ipc::started_by_other_build(argc, argv)) return djinn::ipc::kOtherBuildStatus;
  return djinn::daemon::run(argc, argv);
}
