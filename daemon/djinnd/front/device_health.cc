// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/front/device_health.h"

#include <fmt/format.h>

#include "daemon/djinnd/host/version.h"

namespace djinn::daemon {

DeviceHealth::DeviceHealth(SpareWorkers& workers, SparePool& loaders, Sessions& sessions,
                           Models& models, Published& published, Events& events)
    : workers_(workers), sessions_(sessions), events_(events) {
  for (auto& [device, pool] : workers.all()) {
    pool.on_change([this, device = device] { workers_changed(device); });
  }
  loaders.on_change([this, &loaders, &models, &published] {
    note_upgrade(loaders);
    models.refuse_waiting();
    published.refuse_waiting();
  });
}

void DeviceHealth::workers_changed(DeviceId device) {
  const SparePool& pool = workers_.of(device);
  note_upgrade(pool);
  const bool is_news = pool.fails() ? lost_.insert(device).second : lost_.erase(device) > 0;
  if (is_news) {
    const EventKind kind = pool.fails() ? EventKind::kDeviceLost : EventKind::kDeviceBack;
    const char* const what = pool.fails() ? "lost: its workers do not start" : "back";
    events_.emit(device_event(device, kind, fmt::format("device {} is {}", text_of(device), what)));
  }
  if (!pool.fails()) return;
  sessions_.refuse_waiting(device, pool.failure());
  end_vain_waits();
}

void DeviceHealth::end_vain_waits() {
  for (const auto& [device, pool] : workers_.all()) {
    if (pool.has_other_build()) sessions_.end_waiting(device, pool.failure());
  }
}

// This is said once, because only a restart helps, and that makes a new djinnd.
void DeviceHealth::note_upgrade(const SparePool& pool) {
  if (!pool.has_other_build() || std::exchange(upgrade_told_, true)) return;
  events_.emit({EventKind::kUpgradePending,
                fmt::format("djinnd was upgraded while version {} of it ran, which cannot use what "
                            "is installed now: restart it",
                            kVersion),
                {}});
}

}  // namespace djinn::daemon
