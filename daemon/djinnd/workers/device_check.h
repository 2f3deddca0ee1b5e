// SPDX-License-Identifier: Apache-2.0

// DeviceCheck: whether a GPU's memory can be used: an extent of one granule is made and filled,
// what came there is summed, it is zeroed, and summed again.
//
// Any bytes would do that are not what memory may hold by itself. A mover that knew the key before
// it is told could keep a sum in place of the bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/workers/mover_link.h"
#include "kernel/base/fd.h"
#include "kernel/base/keyed_checksum.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class DeviceCheck {
 public:
  // Error: why it cannot be used; kDeviceLost where the mover lost the device.
  using Done = std::function<void(Status)>;

  // link: of the device's mover. work: makes what is uploaded and frees what was made; its thread
  // may wait for the driver. Both outlive this.
  DeviceCheck(Loop& loop, MoverLink& link, WorkQueue& work);

  // Of a ready mover that has no order; it gets none of others until done is called.
  void begin(uint64_t granule_bytes, Done done);
  // Nobody is told: the mover is gone.
  void drop();

 private:
  // What is uploaded, and the sums that are right.
  struct Sample {
    Fd memfd;
    ChecksumKey key{};
    Checksum filled{};
    Checksum zero{};
  };

  [[nodiscard]] static Result<Sample> make_sample(uint64_t bytes);
  void has_sample(Result<Sample> sample);
  void create();
  void upload();
  void check_filled();
  void zero();
  void check_zero();
  void order(MoverLink::Body body, const std::vector<int>& fds,
             std::function<void(MoverAnswer)> then);
  void end(Status status);
  void free_all();

  MoverLink& link_;
  WorkQueue& work_;
  uint64_t bytes_ = 0;
  Done done_;
  uint64_t nth_ = 0;  // of the checks
  std::optional<Sample> sample_;
  Fd extent_;
  Timer stuck_;  // while the sample is made, behind what the thread frees
};

}  // namespace djinn::daemon
