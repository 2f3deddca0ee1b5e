// SPDX-License-Identifier: Apache-2.0

// HostLane: a lane whose device is the host, so that its memory is this process's.
#pragma once

#include <cstring>

#include "kernel/executor/executor.h"
#include "kernel/executor/output.h"

namespace djinn::exec {

class HostLane : public Lane {
 public:
  void copy_in(std::span<const std::byte> from, DeviceAddress to) final {
    std::memcpy(to.on_host(), from.data(), from.size());
  }
  Status copy_out(const OutputView& view, std::span<std::byte> out) final {
    return copy_elements(view, out);
  }
  void copy(DeviceAddress from, DeviceAddress to, uint64_t bytes) final {
    std::memcpy(to.on_host(), from.on_host(), bytes);
  }
  Status wait() final { return {}; }
};

}  // namespace djinn::exec
