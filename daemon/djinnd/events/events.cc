// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/events/events.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {

std::string_view name_of(EvictReason reason) {
  constexpr std::array<std::string_view, kEvictReasons> kNames = {"requested", "expired",
                                                                  "pressure", "table-full"};
  return kNames[static_cast<size_t>(reason)];
}

Event device_event(DeviceId device, EventKind kind, std::string text) {
  Event event{kind, std::move(text)};
  event.device = device;
  return event;
}

std::string text_of(const Event& event) {
  std::string text = event.text;
  if (!event.by.empty()) text += ", by " + event.by;
  if (!event.path.empty()) text += ", from " + event.path;
  if (!event.sentence.empty()) text += ": " + event.sentence;
  return text;
}

bool seen_by(const Event& event, const Caller& caller) {
  return !event.owner || caller.may_steer(*event.owner);
}

std::string Events::user_text(Owner user) const {
  const std::string name = names_ ? names_(user) : std::to_string(user.number());
  return (user.is_principal() ? "principal " : "user ") + name;
}

void Events::emit(Event event) {
  DJINN_ASSERT(event.number == 0);
  DJINN_ASSERT(recent_.empty() || recent_.back().number == last_);
  event.number = ++last_;
  event.wall_ns = clock_.wall_ns();
  if (names_ && event.owner && event.owner->is_principal()) event.principal = names_(*event.owner);
  recent_.push_back(std::move(event));
  if (recent_.size() > kRecent) recent_.pop_front();
  for (const Listener& listener : listeners_) listener(recent_.back());
}

void Events::emit_limited(Event event) {
  constexpr uint64_t kEachNs = 1'000'000'000;
  DJINN_ASSERT(event.owner.has_value());
  const uint64_t now_ns = clock_.monotonic_ns();
  std::erase_if(limited_, [&](const auto& entry) {
    return entry.second.even_ns <= now_ns && entry.second.left_out == 0;
  });
  Limited& limited = limited_[*event.owner];
  const uint64_t even_ns = std::max(limited.even_ns, now_ns) + kEachNs;
  if (even_ns > now_ns + kLimitedAtOnce * kEachNs) {
    ++limited.left_out;
    return;
  }
  limited.even_ns = even_ns;
  DJINN_ASSERT(limited.even_ns - now_ns <= kLimitedAtOnce * kEachNs);
  if (const uint64_t left_out = std::exchange(limited.left_out, 0); left_out > 0) {
    event.text += fmt::format(" (and {} more events of this user were not logged)", left_out);
  }
  emit(std::move(event));
}

}  // namespace djinn::daemon
