// SPDX-License-Identifier: Apache-2.0

// Reclaimers: one for each device.
#pragma once

#include <memory>
#include <vector>

#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/reclaim/reclaimer.h"

namespace djinn::daemon {

class Reclaimers {
 public:
  Reclaimers(Loop& loop, const Devices& devices, Models& models, Sessions& sessions, Events& events,
             Thresholds thresholds) {
    for (const auto memories : {devices.all(), devices.gpus()}) {
      for (const auto& memory : memories) {
        all_.push_back(
            std::make_unique<Reclaimer>(loop, *memory, models, sessions, events, thresholds));
      }
    }
  }

  void set(Thresholds thresholds) {
    for (const auto& reclaimer : all_) reclaimer->set(thresholds);
  }
  void changed() {
    for (const auto& reclaimer : all_) reclaimer->changed();
  }

 private:
  friend struct DaemonForTests;

  std::vector<std::unique_ptr<Reclaimer>> all_;
};

}  // namespace djinn::daemon
