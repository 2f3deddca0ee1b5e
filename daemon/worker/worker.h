// SPDX-License-Identifier: Apache-2.0

// The life of a worker process, whatever computes in it.
//
//   WORKER --build IDENTITY --channel-fd N --device NAME [--uuid UUID] --threads N
//          [--memory-bytes N] [--policy fair|fifo] [--isa LEVEL] [--kernels TABLE|measure]
//          [--fault-at N] [--pal-fault-at N]
//
// Warms up, confines itself, measures its kernels where it is told to, says that it is ready, and
// obeys djinnd until the channel closes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/child/confinement.h"
#include "daemon/worker/grants.h"
#include "kernel/base/device_id.h"
#include "kernel/base/result.h"
#include "kernel/executor/executor.h"
#include "kernel/pal/device_pal.h"

namespace djinn::worker {

// The device that djinnd names: its memory, and what computes there. It outlives the lane.
class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  [[nodiscard]] virtual pal::DevicePal& pal() = 0;
  [[nodiscard]] virtual exec::Executor& executor() = 0;
  // Bounds the lane's heap where that lies in the device's memory; null: it is granted in bytes
  // (heap.h).
  [[nodiscard]] virtual exec::HeapOwner* heap() { return nullptr; }
  // As djinnd names it; empty of a device that has no such name. Errors: those of asking it.
  [[nodiscard]] virtual Result<std::string> uuid() { return std::string(); }
  // djinnd knows the worker, and grants can be asked for.
  virtual void begin() {}
};

// Opens it, before the process is confined. grants: of the worker, which outlive the device; nobody
// is asked before Device::begin(). Errors: kUnsupported where the program is for other devices;
// those of opening it.
using OpenDevice = std::function<Result<std::unique_ptr<Device>>(DeviceId device, Grants& grants)>;

// What main() calls when it knows that djinnd is of its own build; the exit status. What the
// executor had to do before the process is confined, but warm_up(), is done when it is open.
int run_worker(int argc, char** argv, child::Role role, const OpenDevice& open);

}  // namespace djinn::worker
