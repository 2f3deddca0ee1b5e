// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/host/notifier.h"

#include <stdlib.h>
#include <systemd/sd-daemon.h>

#include <memory>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

// A failure is ignored: djinnd may run without systemd.
void send(const std::string& message) {
  ::sd_notify(0, message.c_str());
}

}  // namespace

Notifier::Notifier()
    : is_heard_(::getenv("NOTIFY_SOCKET") != nullptr), thread_("notifier", kBacklogMax) {}

void Notifier::say(std::string message) {
  if (!is_heard_) return;
  thread_.post_surely([message = std::move(message)] { send(message); });
}

void Notifier::say_word(std::string message) {
  if (!is_heard_) return;
  thread_.post([message = std::move(message)] { send(message); });
}

Status Notifier::give(const std::string& name, const Fd& fd, Polled polled) {
  DJINN_ASSERT(fd.valid() && name.find('\n') == name.npos);  // it would begin another field
  if (!is_heard_) return {};
  DJINN_TRY(Fd copy, fd.duplicate());
  const auto own = std::make_shared<const Fd>(std::move(copy));
  thread_.post_surely([name, own, polled, unsent = unsent_] {
    const std::string message =
        "FDSTORE=1\nFDNAME=" + name + (polled == Polled::kNo ? "\nFDPOLL=0" : "");
    const int number = own->get();
    const int sent = ::sd_pid_notify_with_fds(0, 0, message.c_str(), &number, 1);
    if (sent >= 0) return;
    log("systemd is not given {}: error {}", name, -sent);
    const std::lock_guard lock(unsent->mutex);
    unsent->names.push_back(name);
  });
  return {};
}

std::vector<std::string> Notifier::take_unsent() {
  const std::lock_guard lock(unsent_->mutex);
  return std::exchange(unsent_->names, {});
}

void Notifier::take_out(const std::string& name) {
  say("FDSTOREREMOVE=1\nFDNAME=" + name);
}

bool Notifier::has_room(size_t descriptors) const {
  return thread_.backlog() + descriptors <= kBacklogMax;
}

}  // namespace djinn::daemon
