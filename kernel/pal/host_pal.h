// SPDX-License-Identifier: Apache-2.0

// HostPal: the host's memory as a device. Extents are memfds; a reservation is a PROT_NONE mapping,
// into which extents are put with MAP_FIXED.
//
// invariant: no use of committed memory ends in a SIGBUS or wakes the OOM killer on our behalf:
// what the machine does not have is refused by commit().
#pragma once

#include <memory>

#include "kernel/pal/available_memory.h"
#include "kernel/pal/device_pal.h"

namespace djinn::pal {

class HostPal final : public DevicePal, private Reservation::Owner {
 public:
  // Opens what a confined process could not open later.
  static Result<std::unique_ptr<HostPal>> make();
  explicit HostPal(AvailableMemory available);
  HostPal(const HostPal&) = delete;  // reservations point here
  HostPal& operator=(const HostPal&) = delete;

  [[nodiscard]] const DeviceProperties& properties() const override { return properties_; }
  Result<Reservation> reserve(uint64_t bytes) override;
  Result<Extent> create(std::string_view name, uint64_t bytes) override;
  Status commit(const Extent& extent, uint64_t offset, uint64_t bytes) override;
  Status decommit(const Extent& extent, uint64_t offset, uint64_t bytes) override;
  Status map(Reservation& reservation, uint64_t offset, const Extent& extent,
             uint64_t extent_offset, uint64_t bytes, Access access) override;
  Status protect(Reservation& reservation, uint64_t offset, uint64_t bytes, Access access) override;
  Status unmap(Reservation& reservation, uint64_t offset, uint64_t bytes) override;
  Status populate(Reservation& reservation, uint64_t offset, uint64_t bytes) override;
  Status copy_in(Reservation& reservation, uint64_t offset,
                 std::span<const std::byte> from) override;
  Status copy_out(const Reservation& reservation, uint64_t offset,
                  std::span<std::byte> to) override;
  Status zero(Reservation& reservation, uint64_t offset, uint64_t bytes) override;
  Status copy(Reservation& reservation, uint64_t from, uint64_t to, uint64_t bytes) override;
  Status seal(const Extent& extent, Seals seals) override;
  Result<Fd> export_extent(const Extent& extent) override;
  Result<Extent> import_extent(Fd fd, uint64_t bytes, Seals required) override;

 private:
  void release(std::byte* data, uint64_t bytes,
               const Reservation::Mappings& mapped) noexcept override;

  AvailableMemory available_;
  DeviceProperties properties_;
};

}  // namespace djinn::pal
