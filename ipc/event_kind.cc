// SPDX-License-Identifier: Apache-2.0

#include "ipc/event_kind.h"

#include <algorithm>
#include <array>

namespace djinn::ipc {
namespace {

constexpr std::array<std::string_view, kEventKinds> kNames = {
    "daemon-started",  "daemon-stopping",   "config-reloaded",  "config-refused",
    "draining",        "resumed",           "session-new",      "session-refused",
    "session-ended",   "session-removed",   "run-refused",      "model-loading",
    "model-loaded",    "model-kept",        "model-failed",     "model-evicted",
    "model-unloaded",  "program-refused",   "worker-started",   "worker-killed",
    "worker-lost",     "device-lost",       "device-back",      "memory-pressure",
    "memory-refused",  "watchdog-withheld", "sequence-spilled", "sequence-restored",
    "upgrade-pending", "model-not-kept",    "config-ignored",   "spill-unavailable",
    "run-cancelled",   "model-pinned",      "model-unpinned",   "config-warning",
    "copy-placed",     "copy-dropped",      "copy-differed"};
static_assert(std::ranges::none_of(kNames, &std::string_view::empty), "Each kind has a name.");

}  // namespace

std::string_view name_of(EventKind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : std::string_view();
}

}  // namespace djinn::ipc
