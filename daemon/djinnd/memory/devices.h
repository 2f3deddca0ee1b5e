// SPDX-License-Identifier: Apache-2.0

// Devices: the memory of each device that djinnd grants. A device's books, queue, quotas and
// pressure are its own: who exhausts one is felt on no other. So is what makes its extents: whoever
// needs or frees one names the device, and does not know what kind of memory it is.
//
//   all    those whose memory djinnd makes itself: what models are loaded into
//   gpus   whose memory movers make; of models they have copies
//
// Sessions may be on each of both.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/djinnd/memory/extent_source.h"
#include "daemon/djinnd/memory/memory.h"
#include "daemon/djinnd/memory/quotas.h"
#include "kernel/base/device_id.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

// How much of a device's memory may be granted, and where it comes from.
struct DeviceMemory {
  DeviceId device;
  uint64_t bytes;
  ExtentSource& extents;  // outlives the Devices
};

class Devices {
 public:
  // memories: of different devices, the first of which is that of whoever names none, and no GPU.
  // quotas: as for Memory.
  Devices(std::span<const DeviceMemory> memories, uint64_t session_quota_bytes,
          const Quotas& quotas);

  // Of a device that djinnd has.
  [[nodiscard]] Memory& of(DeviceId device) const;
  // Likewise: makes, seals and frees the device's extents, and no other's.
  [[nodiscard]] ExtentSource& extents_of(DeviceId device) const;
  [[nodiscard]] Memory& first() const { return *all_.front(); }
  // By what somebody calls it; the first for "". Null where there is no such device.
  [[nodiscard]] Memory* find(std::string_view device) const;
  // In the order in which they were given.
  [[nodiscard]] std::span<const std::unique_ptr<Memory>> all() const { return all_; }
  [[nodiscard]] std::span<const std::unique_ptr<Memory>> gpus() const { return gpus_; }

  // Of all but GPUs.
  [[nodiscard]] uint64_t total_bytes() const;
  [[nodiscard]] uint64_t granted_bytes() const;
  [[nodiscard]] uint64_t held_by(std::initializer_list<vmu::HolderKind> kinds) const;

  // As Memory does, on each, GPUs too.
  void set_session_quota(uint64_t bytes);
  void reconsider() const;
  void freed() const;
  [[nodiscard]] Status check() const;

 private:
  [[nodiscard]] Memory* known(DeviceId device) const;

  std::vector<std::unique_ptr<Memory>> all_;
  std::vector<std::unique_ptr<Memory>> gpus_;
  std::map<DeviceId, ExtentSource*> extents_;
};

}  // namespace djinn::daemon
