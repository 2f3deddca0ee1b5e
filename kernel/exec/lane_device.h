// SPDX-License-Identifier: Apache-2.0

// LaneDevice: what a lane needs of a device that is not the host. A lane of the host has none.
//
// One thread: the lane's. What goes on a stream is done in order, some time after the call has
// returned. So an error of what was launched, or of a copy, is told by whoever waits.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kernel/base/device_address.h"
#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/pieces.h"
#include "kernel/exec/plan_cache.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Launches pieces of a lane's planned runs at once, where it has kept what they launched.
class LanePieces : public PieceRunner {
 public:
  using Placements = std::shared_ptr<const Plan::Placements>;
  // A run begins that has that plan. Both live until it has ended; runs come one after the other.
  virtual void begin(const AdmittedGraph& program, const Placements& plan, Replayer& places) = 0;
  // What was kept of the program, which is about to go; of all.
  virtual void forget(const AdmittedGraph& program) = 0;
  virtual void drop() = 0;
};

class LaneDevice {
 public:
  virtual ~LaneDevice() = default;
  // Of all that the lane does.
  [[nodiscard]] virtual c10::Stream stream() const = 0;
  [[nodiscard]] virtual DeviceMemory& memory() = 0;
  [[nodiscard]] virtual LanePieces& pieces() = 0;
  // Before the first run, with the stream current: libraries make their handles, and take the
  // memory that they keep, which no plan may have.
  virtual void warm_up() = 0;

  // Copies on the stream. `from` may be changed when this returns.
  virtual void copy_in(std::span<const std::byte> from, DeviceAddress to) = 0;
  // Waits until all before it is done, and so is this. Error: kDeviceLost for that, or for what was
  // before it.
  virtual Status copy_out(DeviceAddress from, std::span<std::byte> to) = 0;
  virtual void copy(DeviceAddress from, DeviceAddress to, uint64_t bytes) = 0;
  // Until all before it is done. Error: as copy_out().
  virtual Status wait() = 0;
  // Of the host, for what is copied out: it costs nobody memory that a run might have. Not empty.
  [[nodiscard]] virtual std::span<std::byte> room() = 0;
};

// As Executor::make_lane(), of that device. Precondition of a planned lane: install_device_memory()
// was given the device's.
Result<std::unique_ptr<Lane>> make_lane_on(std::unique_ptr<LaneDevice> device, LaneOptions options);

}  // namespace djinn::exec
