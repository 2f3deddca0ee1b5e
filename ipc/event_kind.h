// SPDX-License-Identifier: Apache-2.0

// EventKind: the kinds of things that happen in djinnd and are told: in the journal, by `djinnctl
// events`, as D-Bus signals and as metrics. A closed list; new ones are added at its end.
#pragma once

#include <cstdint>
#include <string_view>

namespace djinn::ipc {

enum class EventKind : uint8_t {
  kDaemonStarted = 0,
  kDaemonStopping = 1,
  kConfigReloaded = 2,
  kConfigRefused = 3,  // the former configuration stays
  kDraining = 4,
  kResumed = 5,
  kSessionNew = 6,
  kSessionRefused = 7,  // a connection that did not become a session
  kSessionEnded = 8,    // by djinnd, with an error
  kSessionRemoved = 9,  // all that it held is released
  kRunRefused = 10,     // its workers died of it
  kModelLoading = 11,
  kModelLoaded = 12,
  kModelKept = 13,  // taken over from the djinnd before
  kModelFailed = 14,
  kModelEvicted = 15,   // its bytes are released; the model stays
  kModelUnloaded = 16,  // it is gone
  kProgramRefused = 17,
  kWorkerStarted = 18,
  kWorkerKilled = 19,  // by djinnd
  kWorkerLost = 20,
  kDeviceLost = 21,  // its workers do not start
  kDeviceBack = 22,
  kMemoryPressure = 23,  // a threshold was crossed
  kMemoryRefused = 24,   // a request found no memory
  kWatchdogWithheld = 25,
  kSequenceSpilled = 26,   // an idle session's, to disk
  kSequenceRestored = 27,  // it is in memory again
  kUpgradePending = 28,    // the installed worker or loader is of another build
  kModelNotKept = 29,      // would not outlive a restart: systemd's store has no room
  kConfigIgnored = 30,     // a line of it counts for nothing
  kSpillUnavailable = 31,  // sequence groups cannot go to disk
  kRunCancelled = 32,      // of a session that lives on, by djinnctl cancel
  kModelPinned = 33,       // for a user, by djinnctl pin
  kModelUnpinned = 34,     // by djinnctl unpin, or by an eviction that was forced
  kConfigWarning = 35,     // a setting is taken as it is, and will hardly do what was meant
  kCopyPlaced = 36,        // a model has a copy in a GPU's memory, which was compared
  kCopyDropped = 37,       // its memory is free
  kCopyDiffered = 38,      // its bytes were others than the host's
};
inline constexpr uint8_t kEventKinds = 39;
static_assert(kEventKinds == static_cast<uint8_t>(EventKind::kCopyDiffered) + 1);

// "model-loaded"; empty for a number that is none.
[[nodiscard]] std::string_view name_of(EventKind kind);

}  // namespace djinn::ipc
