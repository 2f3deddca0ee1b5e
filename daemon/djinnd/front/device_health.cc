// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/front/device_health.h"

#include <fmt/format.h>

#include <utility>

#include "daemon/djinnd/host/version.h"

namespace djinn::daemon {

DeviceHealth::DeviceHealth(DeviceId device, SparePool& workers, SparePool& loaders,
                           Sessions& sessions, Models& models, Events& events)
    : device_(device), workers_(workers), sessions_(sessions), events_(events) {
  workers.on_change([this] { workers_changed(); });
  loaders.on_change([this, &loaders, &models] {
    note_upgrade(loaders);
    models.refuse_waiting();
  });
}

void DeviceHealth::workers_changed() {
  note_upgrade(workers_);
  const bool lost = workers_.fails();
  if (std::exchange(lost_, lost) != lost) {
    const EventKind kind = lost ? EventKind::kDeviceLost : EventKind::kDeviceBack;
    const char* const what = lost ? "lost: its workers do not start" : "back";
    events_.emit(
        device_event(device_, kind, fmt::format("device {} is {}", text_of(device_), what)));
  }
  if (!lost) return;
  sessions_.refuse_waiting(workers_.failure());
  end_vain_waits();
}

void DeviceHealth::end_vain_waits() {
  if (workers_.has_other_build()) sessions_.end_waiting(workers_.failure());
}

// Said once: it takes a restart, and then another djinnd is there.
void DeviceHealth::note_upgrade(const SparePool& pool) {
  if (!pool.has_other_build() || std::exchange(upgrade_told_, true)) return;
  events_.emit({EventKind::kUpgradePending,
                fmt::format("djinnd was upgraded while version {} of it ran, which cannot use what "
                            "is installed now: restart it",
                            kVersion),
                {}});
}

}  // namespace djinn::daemon
