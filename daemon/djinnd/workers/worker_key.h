// SPDX-License-Identifier: Apache-2.0

// WorkerKey: which worker: whose graphs it runs, and the device that it runs them on. A trust
// domain has one worker for each device that it uses.
#pragma once

#include <compare>

#include "kernel/base/device_id.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

struct WorkerKey {
  Owner owner;
  DeviceId device;

  friend constexpr auto operator<=>(const WorkerKey&, const WorkerKey&) noexcept = default;
};

}  // namespace djinn::daemon
