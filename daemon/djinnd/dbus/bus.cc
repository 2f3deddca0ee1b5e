// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/dbus/bus.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "daemon/djinnd/dbus/bus_intake.h"
#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

struct CloseBus {
  void operator()(sd_bus* bus) const { ::sd_bus_close_unref(bus); }
};
using OwnedBus = std::unique_ptr<sd_bus, CloseBus>;

namespace {

// A bus that leaves this many messages unread counts as lost.
constexpr uint64_t kUnreadMax = 1024;
constexpr uint64_t kPauseMsMin = 1000;
constexpr uint64_t kPauseMsMax = 60'000;
static_assert(kPauseMsMin <= kPauseMsMax);
constexpr uint64_t kNameTimeoutMs = 25'000;
constexpr uint64_t kOwnerTimeoutMs = 25'000;
// These are answers of org.freedesktop.DBus.RequestName.
constexpr uint32_t kPrimaryOwner = 1;
constexpr uint32_t kAlreadyOwner = 4;

struct Opened {
  OwnedBus bus;
  std::unique_ptr<BusIntake> intake;
};

// Begins the handshake, which goes on in sd_bus_process(). No message may bring a descriptor:
// sd_bus_open_system() would accept them, and the loop must not close them (deferred_close.h).
int open_bus(BusKind kind, Opened& opened) {
  sd_bus* raw = nullptr;
  int failed = ::sd_bus_new(&raw);
  opened.bus.reset(raw);
  if (failed >= 0) failed = connect_bus(kind, raw, opened.intake);
  if (failed >= 0) failed = ::sd_bus_set_bus_client(raw, 1);
  if (failed >= 0) failed = ::sd_bus_negotiate_fds(raw, 0);
  if (failed >= 0) failed = ::sd_bus_set_trusted(raw, kind == BusKind::kUser ? 1 : 0);
  if (failed >= 0) failed = ::sd_bus_start(raw);
  return failed;
}

// Tells whether NameHasOwner has answered that nobody owns the name.
bool is_gone(sd_bus_message* answer) {
  int owned = 1;
  const bool read = ::sd_bus_message_is_method_error(answer, nullptr) <= 0 &&
                    ::sd_bus_message_read(answer, "b", &owned) > 0;
  return read && owned == 0;
}

}  // namespace

bool may_follow(BusPhase from, BusPhase to) {
  using enum BusPhase;
  static constexpr auto kLegal = std::to_array<Transition<BusPhase>>({
      {kAbsent, kAbsent},
      {kAbsent, kOpening},
      {kOpening, kAbsent},
      {kOpening, kServing},
      {kServing, kAbsent},
  });
  return is_listed(kLegal, from, to);
}

// The order of the members matters: the descriptor stops being watched before it is closed.
struct Bus::Connection {
  Connection(Loop& loop, Opened opened, Bus& owner)
      : bus(std::move(opened.bus)),
        intake(std::move(opened.intake)),
        poll(loop, intake->bus(), [&owner] { owner.process(); }),
        passed(loop, intake->passed(), [&owner] { owner.process(); }),
        timer(loop, [&owner] { owner.process(); }) {}

  void pause() {
    poll.pause();
    passed.pause();
    timer.stop();
  }

  OwnedBus bus;
  std::unique_ptr<BusIntake> intake;
  Poll poll;
  Poll passed;
  Timer timer;
  int watched = -1;  // what sd-bus waits for; nothing yet
};

Bus::Bus(Loop& loop, const Clock& clock, BusKind kind, std::string name, Hooks hooks)
    : loop_(loop),
      clock_(clock),
      kind_(kind),
      name_(std::move(name)),
      hooks_(std::move(hooks)),
      retry_(loop, [this] { open(); }),
      pause_ms_(kPauseMsMin) {
  DJINN_ASSERT(!name_.empty() && hooks_.opened != nullptr && hooks_.lost != nullptr);
}

Bus::~Bus() = default;

void Bus::start() {
  if (kind_ != BusKind::kNone) open();
}

void Bus::stop() {
  kind_ = BusKind::kNone;
  retry_.stop();
  waiting_.clear();
  phase_.enter(BusPhase::kAbsent);
  if (connection_) connection_->pause();
  loop_.dispose(std::move(connection_));
}

void Bus::open() {
  DJINN_ASSERT(phase_ == BusPhase::kAbsent && connection_ == nullptr);
  Opened opened;
  int failed = open_bus(kind_, opened);
  if (failed >= 0) failed = hooks_.opened(opened.bus.get());
  if (failed >= 0) failed = ask_for_name(opened.bus.get());
  if (failed < 0) return lose(::strerror(-failed));
  phase_.enter(BusPhase::kOpening);
  connection_ = std::make_unique<Connection>(loop_, std::move(opened), *this);
  connection_->passed.watch_readable();
  watch();
}

int Bus::ask_for_name(sd_bus* raw) {
  return ::sd_bus_request_name_async(
      raw, nullptr, name_.c_str(), 0,
      [](sd_bus_message* answer, void* self, sd_bus_error*) {
        static_cast<Bus*>(self)->named(answer);
        return 1;
      },
      this);
}

void Bus::named(sd_bus_message* answer) {
  DJINN_ASSERT(phase_ == BusPhase::kOpening);
  if (::sd_bus_message_is_method_error(answer, nullptr) > 0) {
    return lose(::sd_bus_message_get_error(answer)->name);
  }
  uint32_t outcome = 0;
  const bool read = ::sd_bus_message_read(answer, "u", &outcome) > 0;
  if (!read || (outcome != kPrimaryOwner && outcome != kAlreadyOwner)) {
    return lose("another process has the name");
  }
  phase_.enter(BusPhase::kServing);
  pause_ms_ = kPauseMsMin;
  tell(fmt::format("{} is served on the {} bus", name_,
                   kind_ == BusKind::kSystem ? "system" : "user's"));
}

// Hears one message at most; others get their turn before the next.
void Bus::process() {
  if (const int failed = connection_->intake->pass_on(); failed < 0) {
    return lose(::strerror(-failed));
  }
  sd_bus* const raw = connection_->bus.get();
  const int done = ::sd_bus_process(raw, nullptr);
  if (!connection_) return;
  if (done < 0) return lose(::strerror(-done));
  if (::sd_bus_is_open(raw) <= 0) return lose("the connection ended");
  watch();
}

// This must be called after everything that may have changed what sd-bus waits for.
void Bus::watch() {
  DJINN_ASSERT(connection_ != nullptr);
  sd_bus* const raw = connection_->bus.get();
  const int events = ::sd_bus_get_events(raw);
  uint64_t until_us = 0;
  const int timed = ::sd_bus_get_timeout(raw, &until_us);
  if (events < 0 || timed < 0) return lose(::strerror(-std::min(events, timed)));
  if (events != connection_->watched) {
    connection_->watched = events;
    if ((events & POLLOUT) != 0) {
      connection_->poll.watch_both();
    } else {
      connection_->poll.watch_readable();
    }
  }
  if (until_us == UINT64_MAX) return connection_->timer.stop();
  const uint64_t now_us = clock_.monotonic_ns() / 1000;
  connection_->timer.start_once(until_us > now_us ? (until_us - now_us + 999) / 1000 : 0);
}

void Bus::lose(const std::string& why) {
  waiting_.clear();
  phase_.enter(BusPhase::kAbsent);
  if (connection_) connection_->pause();
  loop_.dispose(std::move(connection_));
  tell(fmt::format("{} is not on D-Bus: {}", name_, why));
  retry_.start_once(pause_ms_);
  pause_ms_ = std::min(2 * pause_ms_, kPauseMsMax);
  DJINN_ASSERT(pause_ms_ >= kPauseMsMin);
  hooks_.lost();
}

// The same failure in a row is logged once.
void Bus::tell(const std::string& text) {
  if (text == told_) return;
  told_ = text;
  log_line(text);
}

void Bus::use(const std::function<int(sd_bus*)>& action) {
  if (!connection_) return;
  sd_bus* const raw = connection_->bus.get();
  const int failed = action(raw);
  if (!connection_) return;
  if (failed < 0) return lose(::strerror(-failed));
  uint64_t unread = 0;
  if (::sd_bus_get_n_queued_write(raw, &unread) >= 0 && unread > kUnreadMax) {
    return lose("the bus reads nothing");
  }
  watch();
}

void Bus::call(const std::function<int(sd_bus*, sd_bus_message**)>& make, uint64_t timeout_ms,
               Answered answered) {
  DJINN_ASSERT(make != nullptr && answered != nullptr);
  use([&](sd_bus* raw) {
    sd_bus_message* made = nullptr;
    const int failed = make(raw, &made);
    const Message message(made);
    if (failed < 0) return failed;
    auto waiting = std::make_unique<Waiting>(Waiting{this, ++calls_, std::move(answered)});
    Waiting* const place = waiting.get();
    waiting_[place->number] = std::move(waiting);
    return ::sd_bus_call_async(raw, &place->slot, made, &Bus::heard, place, timeout_ms * 1000);
  });
}

std::string Bus::rule_for_leaving(const std::string& name) {
  return "type='signal',sender='org.freedesktop.DBus',path='/org/freedesktop/DBus',"
         "interface='org.freedesktop.DBus',member='NameOwnerChanged',arg2='',arg0='" +
         name + "'";
}

void Bus::ask_whether_gone(const std::string& name, std::function<void()> gone) {
  call(
      [&](sd_bus* bus, sd_bus_message** call) {
        const int failed = ::sd_bus_message_new_method_call(bus, call, "org.freedesktop.DBus",
                                                            "/org/freedesktop/DBus",
                                                            "org.freedesktop.DBus", "NameHasOwner");
        return failed < 0 ? failed : ::sd_bus_message_append(*call, "s", name.c_str());
      },
      kOwnerTimeoutMs,
      [gone = std::move(gone)](sd_bus_message* answer) {
        if (is_gone(answer)) gone();
      });
}

int Bus::heard(sd_bus_message* answer, void* waiting, sd_bus_error*) {
  Bus& self = *static_cast<Waiting*>(waiting)->bus;
  const auto entry = self.waiting_.extract(static_cast<Waiting*>(waiting)->number);
  DJINN_ASSERT(!entry.empty());
  entry.mapped()->answered(answer);
  return 1;
}

}  // namespace djinn::daemon
