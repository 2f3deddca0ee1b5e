// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/host/service.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/host/fd_store.h"
#include "kernel/base/assert.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {
namespace {

// One look may be late and one may be missed, and the watchdog is still fed in time.
constexpr uint64_t kLooksPerInterval = 3;
static_assert(kLooksPerInterval > 2);
// Changes within this time are told to systemd together.
constexpr uint64_t kTellAfterMs = 100;
constexpr uint64_t kProgressEveryMs = 1000;
constexpr uint64_t kNsPerMicrosecond = 1000;

uint64_t watchdog_interval_ns() {
  uint64_t interval_us = 0;
  return ::sd_watchdog_enabled(0, &interval_us) > 0 ? interval_us * kNsPerMicrosecond : 0;
}

uint64_t look_every_ns(uint64_t interval_ns) {
  if (interval_ns == 0) return 0;
  return std::max(kNsPerMs, interval_ns / kLooksPerInterval);
}

// This is FileDescriptorName= of djinnd-metrics.socket.
constexpr std::string_view kMetricsName = "metrics";
// And this of one whose unit comes with djinn-gate.
constexpr std::string_view kGatesName = "gate";

// Tells whether the socket is of that kind and listens. If so, it is made non-blocking.
bool make_ready(const Fd& socket, int family, int type) {
  if (::sd_is_socket(socket.get(), family, type, 1) <= 0) return false;
  const int flags = ::fcntl(socket.get(), F_GETFL);
  return flags >= 0 && ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace

Service::Service(Loop& loop, const Clock& clock, Notifier& notifier, Subject& subject)
    : clock_(clock),
      notifier_(notifier),
      subject_(subject),
      watchdog_{watchdog_interval_ns()},
      look_every_ns_(look_every_ns(watchdog_.interval_ns)),
      watch_(loop, [this] { look(); }),
      tell_(loop, [this] { tell(); }) {}

void Service::ready() {
  notifier_.say("READY=1\nSTATUS=" + subject_.describe().text);
  if (look_every_ns_ == 0 || watch_.active()) return;
  due_ns_ = clock_.monotonic_ns();
  look();
}

void Service::reloading() {
  notifier_.say("RELOADING=1");
}

void Service::extend_timeout(uint64_t ms) {
  notifier_.say("EXTEND_TIMEOUT_USEC=" + std::to_string(ms * kNsPerMs / kNsPerMicrosecond));
}

void Service::changed() {
  if (!tell_.active()) tell_.start_once(kTellAfterMs);
}

void Service::tell() {
  const StatusLine line = subject_.describe();
  notifier_.say_word("STATUS=" + line.text);
  if (line.progresses) tell_.start_once(kProgressEveryMs);
}

void Service::stopping() {
  watch_.stop();
  tell_.stop();
  notifier_.say("STOPPING=1\nSTATUS=Stopping");
}

void Service::look() {
  DJINN_ASSERT(look_every_ns_ > 0);
  const uint64_t now_ns = clock_.monotonic_ns();
  watchdog_.lag_ns = now_ns - std::min(now_ns, due_ns_);
  if (subject_.is_healthy()) {
    notifier_.say_word("WATCHDOG=1");
    ++watchdog_.answers;
  }
  due_ns_ = clock_.monotonic_ns() + look_every_ns_;
  watch_.start_once(look_every_ns_ / kNsPerMs);
}

Result<ActivationFds> take_activation_fds() {
  char** names = nullptr;
  const int count = ::sd_listen_fds_with_names(1, &names);
  ActivationFds passed;
  bool serves = true;
  for (int i = 0; i < count; ++i) {
    Fd fd(SD_LISTEN_FDS_START + i);
    ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
    const std::string name(names[i]);
    ::free(names[i]);
    if (is_kept(name)) {
      passed.kept[name] = std::move(fd);
    } else if (name == kMetricsName) {
      serves = serves && make_ready(fd, AF_UNSPEC, SOCK_STREAM);
      passed.metrics.push_back(std::move(fd));
    } else {
      std::optional<Fd>& socket = name == kGatesName ? passed.gates : passed.socket;
      serves = serves && !socket && make_ready(fd, AF_UNIX, SOCK_SEQPACKET);
      socket = std::move(fd);
    }
  }
  ::free(names);
  if (serves) return passed;
  return Error{ErrorCode::kInvalidArgument,
               "systemd passed other sockets than one listening Unix socket of "
               "ListenSequentialPacket=, another one named \"gate\", and of ListenStream= those "
               "named \"metrics\". Compare djinnd.socket and djinnd-metrics.socket with the "
               "installed ones."};
}

}  // namespace djinn::daemon
