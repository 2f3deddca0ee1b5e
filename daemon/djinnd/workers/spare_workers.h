// SPDX-License-Identifier: Apache-2.0

// SpareWorkers: the pool of each device's workers: who starts on one is of no use on another.
#pragma once

#include <functional>
#include <map>
#include <span>

#include "daemon/djinnd/workers/spare_pool.h"
#include "kernel/base/device_id.h"

namespace djinn::daemon {

class SpareWorkers {
 public:
  // kind: of the pool of a device.
  SpareWorkers(const ChildHost& host, std::span<const DeviceId> devices,
               const std::function<SparePool::Kind(DeviceId)>& kind) {
    for (const DeviceId device : devices) pools_.try_emplace(device, host, kind(device));
  }

  // Of a device that djinnd has.
  [[nodiscard]] SparePool& of(DeviceId device) { return pools_.at(device); }
  [[nodiscard]] std::map<DeviceId, SparePool>& all() { return pools_; }
  // Starts the first spare of each.
  void start() {
    for (auto& [device, pool] : pools_) pool.start();
  }

 private:
  std::map<DeviceId, SparePool> pools_;
};

}  // namespace djinn::daemon
