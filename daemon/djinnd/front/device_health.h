// SPDX-License-Identifier: Apache-2.0

// DeviceHealth: what it means for those on a device, and for everybody, that children cannot be
// started.
//
//   lost       a device whose workers do not start; it is back when one has
//   upgraded   the programs on disk are another version's: this djinnd cannot use them
#pragma once

#include <set>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/front/published.h"
#include "daemon/djinnd/models/models.h"
#include "daemon/djinnd/sessions/sessions.h"
#include "daemon/djinnd/workers/spare_workers.h"
#include "kernel/base/device_id.h"

namespace djinn::daemon {

class DeviceHealth {
 public:
  // Listens to all pools.
  DeviceHealth(SpareWorkers& workers, SparePool& loaders, Sessions& sessions, Models& models,
               Published& published, Events& events);

  // Where no worker of this build can come, whoever waits for one does so in vain.
  void end_vain_waits();

 private:
  void workers_changed(DeviceId device);
  void note_upgrade(const SparePool& pool);

  SpareWorkers& workers_;
  Sessions& sessions_;
  Events& events_;
  std::set<DeviceId> lost_;
  bool upgrade_told_ = false;
};

}  // namespace djinn::daemon
