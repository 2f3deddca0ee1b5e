// SPDX-License-Identifier: Apache-2.0

// ChunkPal: the host's memory with the manners of a GPU's: extents have no parts, and the
// granularity is what the test says. What is built for such devices is tried on it.
#pragma once

#include <memory>
#include <utility>

#include "kernel/pal/host_pal.h"

namespace djinn::pal {

class ChunkPal final : public DevicePal {
 public:
  // granularity_bytes: a multiple of the host's, and a power of two. Errors: those of
  // HostPal::make().
  static Result<std::unique_ptr<ChunkPal>> make(std::string name, uint64_t granularity_bytes);

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
  ChunkPal(std::unique_ptr<HostPal> host, DeviceProperties properties)
      : host_(std::move(host)), properties_(std::move(properties)) {}

  std::unique_ptr<HostPal> host_;
  DeviceProperties properties_;
};

}  // namespace djinn::pal
