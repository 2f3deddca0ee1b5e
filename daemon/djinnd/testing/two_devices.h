// SPDX-License-Identifier: Apache-2.0

// TwoDevices: the host and another device of the same size, each with extents of its own.
#pragma once

#include <array>

#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/memory/host_extents.h"
#include "daemon/djinnd/testing/own_extents.h"

namespace djinn::daemon::testing {

class TwoDevices {
 public:
  TwoDevices(Loop& loop, DeviceId other, uint64_t device_bytes)
      : work(loop, "memory"),
        devices(std::array{DeviceMemory{kHostDevice, device_bytes, of_host},
                           DeviceMemory{other, device_bytes, of_other}},
                device_bytes, quotas_) {}

 private:
  const Quotas quotas_;

 public:
  WorkQueue work;  // makes and frees the extents

 private:
  HostExtents host_{work};

 public:
  OwnExtents of_host{host_};
  OwnExtents of_other{host_};
  const Devices devices;
};

}  // namespace djinn::daemon::testing
