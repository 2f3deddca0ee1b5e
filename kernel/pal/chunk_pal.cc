// SPDX-License-Identifier: Apache-2.0

#include "kernel/pal/chunk_pal.h"

#include "kernel/base/assert.h"

namespace djinn::pal {

Result<std::unique_ptr<ChunkPal>> ChunkPal::make(std::string name, uint64_t granularity_bytes) {
  DJINN_TRY(std::unique_ptr<HostPal> host, HostPal::make());
  DJINN_ASSERT(granularity_bytes % host->properties().granularity_bytes == 0);
  DeviceProperties properties = host->properties();
  properties.name = std::move(name);
  properties.granularity_bytes = granularity_bytes;
  properties.extents_have_parts = false;
  return std::unique_ptr<ChunkPal>(new ChunkPal(std::move(host), std::move(properties)));
}

Result<Reservation> ChunkPal::reserve(uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, 0, bytes));
  return host_->reserve(bytes);
}

Result<Extent> ChunkPal::create(std::string_view name, uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, 0, bytes));
  DJINN_TRY(Extent extent, host_->create(name, bytes));
  DJINN_CHECK(host_->commit(extent, 0, bytes));
  return extent;
}

// Extents of create() are committed already. Sparse extents that others made are committed as they
// are used; sequence groups are such, until a device has a layout of its own for them.
Status ChunkPal::commit(const Extent& extent, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, offset, bytes));
  return host_->commit(extent, offset, bytes);
}

Status ChunkPal::decommit(const Extent&, uint64_t, uint64_t) {
  return no_parts_error();
}

Status ChunkPal::map(Reservation& reservation, uint64_t offset, const Extent& extent,
                     uint64_t extent_offset, uint64_t bytes, Access access) {
  DJINN_CHECK(check_mapping(properties_, reservation, offset, extent, extent_offset, bytes));
  return host_->map(reservation, offset, extent, extent_offset, bytes, access);
}

Status ChunkPal::protect(Reservation& reservation, uint64_t offset, uint64_t bytes, Access access) {
  return host_->protect(reservation, offset, bytes, access);
}

Status ChunkPal::unmap(Reservation& reservation, uint64_t offset, uint64_t bytes) {
  return host_->unmap(reservation, offset, bytes);
}

Status ChunkPal::populate(Reservation& reservation, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, offset, bytes));
  return host_->populate(reservation, offset, bytes);
}

Status ChunkPal::copy_in(Reservation& reservation, uint64_t offset,
                         std::span<const std::byte> from) {
  return host_->copy_in(reservation, offset, from);
}

Status ChunkPal::copy_out(const Reservation& reservation, uint64_t offset,
                          std::span<std::byte> to) {
  return host_->copy_out(reservation, offset, to);
}

Status ChunkPal::zero(Reservation& reservation, uint64_t offset, uint64_t bytes) {
  return host_->zero(reservation, offset, bytes);
}

Status ChunkPal::copy(Reservation& reservation, uint64_t from, uint64_t to, uint64_t bytes) {
  return host_->copy(reservation, from, to, bytes);
}

Status ChunkPal::seal(const Extent& extent, Seals seals) {
  return host_->seal(extent, seals);
}

Result<Fd> ChunkPal::export_extent(const Extent& extent) {
  return host_->export_extent(extent);
}

Result<Extent> ChunkPal::import_extent(Fd fd, uint64_t bytes, Seals required) {
  DJINN_CHECK(check_aligned(properties_, 0, bytes));
  return host_->import_extent(std::move(fd), bytes, required);
}

}  // namespace djinn::pal
