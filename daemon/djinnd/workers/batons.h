// SPDX-License-Identifier: Apache-2.0

// Batons: the page of each device through which its workers take turns at computing (ipc/baton.h).
// djinnd makes it, and gives each worker a slot while it lives; it decides nothing there.
//
// invariant: a slot has one worker at a time, and what a dead one held or waited for is cleared
// before the next has it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "daemon/djinnd/workers/worker_key.h"
#include "ipc/baton.h"
#include "kernel/base/device_id.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {

class Batons {
 public:
  struct Place {
    uint32_t slot = 0;
    int page = -1;  // the memfd; stays djinnd's
  };
  // Of a worker that has none. Errors: kLimitExceeded when all slots are taken, kOutOfMemory.
  Result<Place> enter(WorkerKey key);
  // It is gone; does nothing where it had none.
  void leave(WorkerKey key);

 private:
  struct Page {
    Fd memfd;
    pal::Mapping mapping;
    std::array<std::optional<WorkerKey>, ipc::kBatonSlots> slots;
    [[nodiscard]] ipc::BatonPage& baton() const;
  };
  static Result<std::unique_ptr<Page>> make_page();

  std::map<DeviceId, std::unique_ptr<Page>> pages_;
};

}  // namespace djinn::daemon
