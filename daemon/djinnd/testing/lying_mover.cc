// SPDX-License-Identifier: Apache-2.0

// A mover of which somebody took hold: it says what DJINN_LIE names, and else what an honest one
// would whose device has a few bytes. One of:
//
//   garbage       no message                    unasked   an answer to no order
//   ready-twice   again what was said first     flood     the same a hundred thousand times
//   granules      of three bytes                huge-granules   of 8 MiB
//   early-extent  a descriptor with the first word
//   no-extent     none with the extent          two-extents     one too many
//   file          an extent that is a file      pipe            one that is a pipe
//   wrong-number  an answer to another order    wrong-kind      to another kind of order
//   wrong-sum     bytes that nobody wrote       more-free       memory than there is
//   name          what would steer a terminal   endless         a refusal of half a message's
//                                                               length
//   dies          it ends without a word        silent          it says nothing
//   changes       a lost context, each time in other words
//   unconfined    without a filter              no-landlock     without Landlock
//   other-uuid    in each life another one, and it ends after the check
//   large-extent  of more bytes than ordered    growing-extent  of which nobody knows how many it
//                                               will have
//   dies-uploading  whenever more than the check's granule is uploaded
//   stops-summing   before it tells a sum of more than the check's granule; SIGCONT has it go on
//
// Only --channel-fd of its arguments counts. It refuses variables that number devices anew.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/child/channel.h"
#include "ipc/build_identity.h"
#include "ipc/codec/control_wire.h"
#include "ipc/codec/mover_codec.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kGranule = 4096;
constexpr uint64_t kBytes = uint64_t{64} << 20;  // that the device has

class LyingMover {
 public:
  LyingMover(Fd socket, std::string_view lie) : channel_(std::move(socket)), lie_(lie) {}

  int run() {
    if (lies("dies")) return 11;
    greet();
    for (;;) {
      auto datagram = channel_.receive();
      if (!datagram) return 0;
      const auto order = ipc::decode_mover_order(datagram->bytes);
      if (!order) return 1;
      answer(*order, datagram->fds);
    }
  }

 private:
  bool lies(std::string_view lie) const { return lie_ == lie; }

  void say(uint32_t number, decltype(ipc::MoverEvent::body) body, const std::vector<Fd>& fds = {}) {
    std::vector<int> numbers;
    for (const Fd& fd : fds) numbers.push_back(fd.get());
    (void)channel_.send(ipc::encode(ipc::MoverEvent{number, std::move(body)}), numbers);
  }

  // An honest writer cuts a message's text.
  static std::vector<std::byte> endless_refusal() {
    const std::string words(30'000, 'a');
    capnp::MallocMessageBuilder message;
    auto failed = message.initRoot<wire::MoverEvent>().initFailed();
    failed.setCode(static_cast<uint16_t>(ErrorCode::kSystem));
    failed.setMessage(words.c_str());
    return ipc::control::flatten(message);
  }

  static bool has_other_numbers() {
    return ::getenv("CUDA_VISIBLE_DEVICES") != nullptr ||
           ::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr;
  }

  static std::vector<Fd> memory(size_t count, uint64_t bytes = kGranule,
                                pal::Seals seals = pal::Seals::kShared) {
    std::vector<Fd> fds;
    while (fds.size() < count) fds.push_back(*pal::make_memfd("extent", bytes, seals));
    return fds;
  }

  void greet() {
    const std::array<std::byte, 24> noise{std::byte{255}, std::byte{1}};
    if (lies("garbage")) (void)channel_.send(noise);
    if (lies("unasked")) say(7, ipc::OrderDone{});
    if (lies("endless")) (void)channel_.send(endless_refusal());
    if (lies("silent")) return;
    if (lies("changes")) {
      const std::string words = "Life " + std::to_string(::getpid());
      return say(0, ipc::OrderFailed{ErrorCode::kDeviceLost, words});
    }
    if (has_other_numbers()) return say(0, ipc::OrderFailed{ErrorCode::kSystem, "other numbers"});
    ipc::MoverReady ready{6, true, "A GPU", "GPU-1", "580.1", kGranule};
    if (lies("unconfined")) ready.seccomp = false;
    if (lies("no-landlock")) ready.landlock_abi = 0;
    if (lies("other-uuid")) ready.uuid = "GPU-" + std::to_string(::getpid());
    if (lies("granules")) ready.granularity_bytes = 3;
    if (lies("huge-granules")) ready.granularity_bytes = uint64_t{8} << 20;
    if (lies("name")) ready.name = "\x1b[2J";
    say(0, ready, memory(lies("early-extent") ? 1 : 0));
    const int more = lies("flood") ? 100'000 : lies("ready-twice") ? 1 : 0;
    for (int i = 0; i < more; ++i) say(0, ready);
  }

  std::vector<Fd> extent(uint64_t bytes) const {
    std::vector<Fd> fds;
    std::array<int, 2> ends{};
    if (lies("no-extent")) return fds;
    if (lies("file")) {
      fds.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
    } else if (lies("pipe") && ::pipe2(ends.data(), O_CLOEXEC) == 0) {
      fds.emplace_back(ends[0]);
      ::close(ends[1]);
    } else {
      if (lies("large-extent")) return memory(1, bytes + 3 * kGranule);
      if (lies("growing-extent")) return memory(1, bytes, pal::Seals::kNone);
      // Sealed as the host's, for a worker of the tests. What is uploaded it keeps itself.
      return memory(lies("two-extents") ? 2 : 1, bytes, pal::Seals::kWrite);
    }
    return fds;
  }

  void answer(const ipc::MoverOrder& order, const std::vector<Fd>& fds) {
    const uint32_t number = order.number + (lies("wrong-number") ? 1 : 0);
    if (const auto* created = std::get_if<ipc::CreateExtent>(&order.body)) {
      content_.resize(created->bytes);
      return say(number, ipc::OrderDone{}, extent(created->bytes));
    }
    if (const auto* asked = std::get_if<ipc::ChecksumExtent>(&order.body)) {
      KeyedChecksum sum(asked->key);
      sum.add(content_);
      if (lies("stops-summing") && content_.size() > kGranule) ::raise(SIGSTOP);
      return say(number, ipc::Checksummed{lies("wrong-sum") ? Checksum{} : sum.value()});
    }
    if (std::holds_alternative<ipc::MeasureDevice>(order.body)) {
      say(number, ipc::DeviceMeasured{kBytes + (lies("more-free") ? 1 : 0), kBytes, 0});
      if (lies("other-uuid")) ::_exit(11);
      return;
    }
    if (lies("wrong-kind")) return say(number, ipc::DeviceMeasured{});
    const auto* const upload = std::get_if<ipc::UploadExtent>(&order.body);
    if (lies("dies-uploading") && upload != nullptr && upload->bytes > kGranule) ::_exit(11);
    const bool uploads = upload != nullptr;
    content_ = uploads ? *pal::read_memfd(fds[0], content_.size())
                       : std::vector<std::byte>(content_.size());
    say(number, ipc::OrderDone{});
  }

  child::Channel channel_;
  std::string_view lie_;
  std::vector<std::byte> content_;  // of the one extent
};

}  // namespace
}  // namespace djinn::daemon

int main(int argc, char** argv) {
  if (djinn::ipc::started_by_other_build(argc, argv)) return djinn::ipc::kOtherBuildStatus;
  ::signal(SIGPIPE, SIG_IGN);
  const char* const lie = ::getenv("DJINN_LIE");
  int fd = -1;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--channel-fd") fd = std::stoi(argv[i + 1]);
  }
  return djinn::daemon::LyingMover(djinn::Fd(fd), lie == nullptr ? "" : lie).run();
}
