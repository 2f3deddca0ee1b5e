// SPDX-License-Identifier: Apache-2.0

// Orders: what djinnd has a mover do with its device's memory, one order after the other.
//
// It keeps nothing from one order to the next: extents come with an order, and go when it is
// answered. So any order may be given again, to this mover or to the next.
//
// invariant: each order has one answer, and after one that says kDeviceLost there is none.
#pragma once

#include <vector>

#include "daemon/child/channel.h"
#include "daemon/mover/device.h"
#include "ipc/mover_messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/pal/device_pal.h"

namespace djinn::mover {

class Orders {
 public:
  // channel: outlives this, as device does.
  Orders(child::Channel& channel, Device& device) : channel_(channel), device_(device) {}

  // Answers orders until there are no more. Errors: kDisconnected when djinnd wants no more,
  // kDeviceLost, which has been told; kMalformed where djinnd is not understood.
  Status run();

 private:
  struct Answer {
    decltype(ipc::MoverEvent::body) body;
    Fd extent{};  // of CreateExtent
  };
  using Fds = std::vector<Fd>;

  Result<Answer> carry_out(const ipc::CreateExtent& order, Fds fds);
  Result<Answer> carry_out(const ipc::ZeroExtent& order, Fds fds);
  Result<Answer> carry_out(const ipc::UploadExtent& order, Fds fds);
  Result<Answer> carry_out(const ipc::ChecksumExtent& order, Fds fds);
  Result<Answer> carry_out(const ipc::MeasureDevice& order, Fds fds);
  // The whole of an extent, mapped as long as the reservation lives.
  Result<pal::Reservation> map(Fd extent, uint64_t bytes, pal::Access access);

  child::Channel& channel_;
  Device& device_;
};

}  // namespace djinn::mover
