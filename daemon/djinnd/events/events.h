// SPDX-License-Identifier: Apache-2.0

// Events: what happens in djinnd, told once to all who want to know.
//
//   event      one thing that happened, with the ids, bytes and error that belong to it, and a
//              sentence for people
//   listener   the journal, D-Bus, metrics; called at once, in the order of its coming
//   recent     the latest ones, for who asks afterwards (`djinnctl events`)
//
// invariant: numbers rise by one with each event; recent events have no gap.
// Sentences carry ids, numbers and, where an event has an owner, their name, but never paths of
// users' files, names that clients chose, prompts or contents. What tells of the configuration is
// for administrators. A load has, beside its sentence, the path that its user gave, and what is
// refused what they were told: without control characters, for that user and administrators.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/djinnd/access/authority.h"
#include "ipc/event_kind.h"
#include "kernel/base/clock.h"
#include "kernel/base/device_id.h"
#include "kernel/base/error.h"
#include "kernel/base/ids.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

using ipc::EventKind;

// Why a model's bytes go; metrics count by it.
enum class EvictReason : uint8_t { kRequested, kExpired, kPressure, kTableFull };
inline constexpr uint8_t kEvictReasons = 4;
static_assert(kEvictReasons == static_cast<uint8_t>(EvictReason::kTableFull) + 1);
[[nodiscard]] std::string_view name_of(EvictReason reason);

// Whose the events are that nobody but administrators hears of.
inline constexpr Owner kAdministrators = Owner::of_user(0);

struct Event {
  EventKind kind = EventKind::kDaemonStarted;
  std::string text;
  // The user whose event it is: they and administrators hear of it. Without one everybody does.
  std::optional<Owner> owner{};
  SessionId session{};
  ModelId model{};
  std::optional<DeviceId> device{};
  std::optional<uint64_t> bytes{};
  std::optional<ErrorCode> error{};
  std::string path{};                   // or empty; likewise the next
  std::string sentence{};               // what its client was told
  std::string by{};                     // who brought it about: for the log, and not for clients
  std::string principal{};              // what its owner is called, if it is one; given by emit()
  uint64_t number = 0;                  // given by emit()
  uint64_t wall_ns = 0;                 // likewise
  std::optional<EvictReason> reason{};  // of kModelEvicted and kModelUnloaded
};

// An event of the device's own; it is for everybody, unless it gets an owner.
[[nodiscard]] Event device_event(DeviceId device, EventKind kind, std::string text);

// All that it says, for a log.
[[nodiscard]] std::string text_of(const Event& event);

[[nodiscard]] bool seen_by(const Event& event, const Caller& caller);

class Events {
 public:
  // `djinnctl events` can look back on so many: some minutes of a busy machine.
  static constexpr size_t kRecent = 512;
  static constexpr uint64_t kLimitedAtOnce = 32;  // sixteen users fill what is kept
  static_assert(16 * kLimitedAtOnce == kRecent);
  using Listener = std::function<void(const Event&)>;

  explicit Events(const Clock& clock) : clock_(clock) {}

  // What users are called, without waiting: their number, as long as nobody knows.
  void set_names(std::function<std::string(Owner)> names) { names_ = std::move(names); }
  // "user ann", "user 1000", "principal spiffe://lab/ann".
  [[nodiscard]] std::string user_text(Owner user) const;

  void emit(Event event);
  // Emits an event that its owner may bring about as often as they like: kLimitedAtOnce of a user,
  // then one a second. The next says how many were left out.
  void emit_limited(Event event);
  // Listens for as long as this lives. A listener must not emit events itself.
  void listen(Listener listener) { listeners_.push_back(std::move(listener)); }
  [[nodiscard]] const std::deque<Event>& recent() const { return recent_; }
  // The number of the latest event; 0 before the first.
  [[nodiscard]] uint64_t last() const { return last_; }

 private:
  const Clock& clock_;
  std::function<std::string(Owner)> names_;
  std::vector<Listener> listeners_;
  std::deque<Event> recent_;
  uint64_t last_ = 0;

  struct Limited {
    uint64_t even_ns = 0;  // when time will have made up for those that were told
    uint64_t left_out = 0;
  };
  std::map<Owner, Limited> limited_;
};

}  // namespace djinn::daemon
