#include "daemon/djinnd/service.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/log.h"

namespace djinn::daemon {
namespace {

// A look may be late, and one may be missed.
constexpr uint64_t kLooksPerInterval = 3;
// Changes that come together are told together.
constexpr uint64_t kTellAfterMs = 100;
constexpr uint64_t kProgressEveryMs = 1000;
constexpr uint64_t kMicrosecondsPerMs = 1000;

// A message that nobody reads is no error: systemd is not there, or does not care.
void say(const std::string& message) {
  ::sd_notify(0, message.c_str());
}

uint64_t look_every_ms() {
  uint64_t interval_us = 0;
  if (::sd_watchdog_enabled(0, &interval_us) <= 0) return 0;
  return std::max<uint64_t>(1, interval_us / kMicrosecondsPerMs / kLooksPerInterval);
}

}  // namespace

Service::Service(Loop& loop, std::function<Status()> check, std::function<Line()> describe)
    : check_(std::move(check)),
      describe_(std::move(describe)),
      look_every_ms_(look_every_ms()),
      watch_(loop, [this] { look(); }),
      tell_(loop, [this] { tell(); }) {}

void Service::ready() {
  say("READY=1\nSTATUS=" + describe_().text);
  if (look_every_ms_ > 0 && !watch_.active()) look();
}

void Service::reloading() {
  say("RELOADING=1");
}

void Service::changed() {
  if (!tell_.active()) tell_.start_once(kTellAfterMs);
}

void Service::tell() {
  const Line line = describe_();
  say("STATUS=" + line.text);
  if (line.progresses) tell_.start_once(kProgressEveryMs);
}

void Service::stopping() {
  watch_.stop();
  tell_.stop();
  say("STOPPING=1\nSTATUS=Stopping");
}

void Service::look() {
  const Status healthy = check_();
  if (healthy) {
    say("WATCHDOG=1");
  } else {
    log("the watchdog is not answered: {}", healthy.error().message);
  }
  watch_.start_once(look_every_ms_);
}

Result<std::optional<Fd>> take_activated_socket() {
  const int count = ::sd_listen_fds(1);
  if (count <= 0) return std::optional<Fd>();
  Fd socket(SD_LISTEN_FDS_START);
  if (count > 1 || ::sd_is_socket(socket.get(), AF_UNIX, SOCK_SEQPACKET, 1) <= 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "systemd passed other sockets than one listening Unix socket of "
                 "ListenSequentialPacket=. Compare djinnd.socket with the installed one."};
  }
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return system_error("prepare the activated socket", errno);
  }
  return std::optional<Fd>(std::move(socket));
}

}  // namespace djinn::daemon
