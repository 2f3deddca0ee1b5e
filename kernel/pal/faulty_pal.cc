// SPDX-License-Identifier: Apache-2.0

#include "kernel/pal/faulty_pal.h"

namespace djinn::pal {

Status FaultyPal::count_call() {
  const uint64_t number = calls_.fetch_add(1) + 1;
  if (fault_ && fault_->first == number) return fault_->second;
  return {};
}

Result<Reservation> FaultyPal::reserve(uint64_t bytes) {
  DJINN_CHECK(count_call());
  return inner_.reserve(bytes);
}

Result<Extent> FaultyPal::create(std::string_view name, uint64_t bytes) {
  DJINN_CHECK(count_call());
  return inner_.create(name, bytes);
}

Status FaultyPal::commit(const Extent& extent, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(count_call());
  return inner_.commit(extent, offset, bytes);
}

Status FaultyPal::decommit(const Extent& extent, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(count_call());
  return inner_.decommit(extent, offset, bytes);
}

Status FaultyPal::map(Reservation& reservation, uint64_t offset, const Extent& extent,
                      uint64_t extent_offset, uint64_t bytes, Access access) {
  DJINN_CHECK(count_call());
  return inner_.map(reservation, offset, extent, extent_offset, bytes, access);
}

Status FaultyPal::protect(Reservation& reservation, uint64_t offset, uint64_t bytes,
                          Access access) {
  DJINN_CHECK(count_call());
  return inner_.protect(reservation, offset, bytes, access);
}

Status FaultyPal::unmap(Reservation& reservation, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(count_call());
  return inner_.unmap(reservation, offset, bytes);
}

Status FaultyPal::populate(Reservation& reservation, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(count_call());
  return inner_.populate(reservation, offset, bytes);
}

Status FaultyPal::copy_in(Reservation& reservation, uint64_t offset,
                          std::span<const std::byte> from) {
  DJINN_CHECK(count_call());
  return inner_.copy_in(reservation, offset, from);
}

Status FaultyPal::copy_out(const Reservation& reservation, uint64_t offset,
                           std::span<std::byte> to) {
  DJINN_CHECK(count_call());
  return inner_.copy_out(reservation, offset, to);
}

Status FaultyPal::zero(Reservation& reservation, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(count_call());
  return inner_.zero(reservation, offset, bytes);
}

Status FaultyPal::copy(Reservation& reservation, uint64_t from, uint64_t to, uint64_t bytes) {
  DJINN_CHECK(count_call());
  return inner_.copy(reservation, from, to, bytes);
}

Status FaultyPal::seal(const Extent& extent, Seals seals) {
  DJINN_CHECK(count_call());
  return inner_.seal(extent, seals);
}

Result<Fd> FaultyPal::export_extent(const Extent& extent) {
  DJINN_CHECK(count_call());
  return inner_.export_extent(extent);
}

Result<Extent> FaultyPal::import_extent(Fd fd, uint64_t bytes, Seals required) {
  DJINN_CHECK(count_call());
  return inner_.import_extent(std::move(fd), bytes, required);
}

}  // namespace djinn::pal
