// SPDX-License-Identifier: Apache-2.0

#include "kernel/pal/device_pal.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::pal {

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    reset();
    owner_ = std::exchange(other.owner_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    mapped_ = std::exchange(other.mapped_, {});
  }
  return *this;
}

void Reservation::reset() noexcept {
  if (owner_ == nullptr) return;
  std::exchange(owner_, nullptr)->release(data_, bytes_, mapped_);
  data_ = nullptr;
  bytes_ = 0;
  mapped_.clear();
}

Status Reservation::check_unmapped(uint64_t offset, uint64_t bytes) const {
  if (bytes == 0 || !range_fits(offset, bytes, bytes_)) {
    return Error{
        ErrorCode::kOutOfRange,
        fmt::format("[{}, +{}) is no range of a reservation of {} bytes", offset, bytes, bytes_)};
  }
  const auto next = mapped_.lower_bound(offset);
  const bool meets_next = next != mapped_.end() && next->first - offset < bytes;
  const bool meets_previous =
      next != mapped_.begin() && offset - std::prev(next)->first < std::prev(next)->second.bytes;
  if (!meets_next && !meets_previous) return {};
  return Error{ErrorCode::kAlreadyExists,
               fmt::format("something is mapped in [{}, +{}). Unmap it first.", offset, bytes)};
}

Result<Reservation::Mapped*> Reservation::exactly(uint64_t offset, uint64_t bytes) {
  const auto found = mapped_.find(offset);
  if (found != mapped_.end() && found->second.bytes == bytes) return &found->second;
  return Error{ErrorCode::kNotFound, fmt::format("no mapping is [{}, +{})", offset, bytes)};
}

Status Reservation::check_access(uint64_t offset, uint64_t bytes, Access access) const {
  const auto nothing_there = [&] {
    return Error{ErrorCode::kOutOfRange,
                 fmt::format("something of [{}, +{}) is not mapped", offset, bytes)};
  };
  auto next = mapped_.upper_bound(offset);
  if (next == mapped_.begin() || !range_fits(offset, bytes, bytes_)) return nothing_there();
  uint64_t at = offset;
  for (--next; next != mapped_.end() && next->first <= at; ++next) {
    const uint64_t mapped_end = next->first + next->second.bytes;
    if (mapped_end < at || (mapped_end == at && bytes > 0)) break;
    if (next->second.access < access) {
      return Error{
          ErrorCode::kPermissionDenied,
          fmt::format("what is mapped in [{}, +{}) does not permit the access", offset, bytes)};
    }
    at = mapped_end;
    if (at - offset >= bytes) return {};
  }
  return nothing_there();
}

Status check_aligned(const DeviceProperties& device, uint64_t offset, uint64_t bytes) {
  const uint64_t granularity = device.granularity_bytes;
  if (offset % granularity == 0 && bytes % granularity == 0 && bytes != 0) return {};
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("offset {} and size {} must be multiples of {}, and the size not zero",
                           offset, bytes, granularity)};
}

Status check_in_extent(const Extent& extent, uint64_t offset, uint64_t bytes) {
  if (range_fits(offset, bytes, extent.bytes)) return {};
  return Error{ErrorCode::kOutOfRange, fmt::format("[{}, +{}) is not inside an extent of {} bytes",
                                                   offset, bytes, extent.bytes)};
}

Error no_parts_error() {
  return {ErrorCode::kUnsupported,
          "an extent of this device has no parts: it is mapped and given back as a whole. Make "
          "smaller extents."};
}

Status check_mapping(const DeviceProperties& device, const Reservation& reservation,
                     uint64_t offset, const Extent& extent, uint64_t extent_offset,
                     uint64_t bytes) {
  DJINN_CHECK(check_aligned(device, offset, bytes));
  DJINN_CHECK(check_aligned(device, extent_offset, bytes));
  DJINN_CHECK(reservation.check_unmapped(offset, bytes));
  DJINN_CHECK(check_in_extent(extent, extent_offset, bytes));
  if (!device.extents_have_parts && bytes != extent.bytes) return no_parts_error();
  return {};
}

Status back_with_pages(DevicePal& pal, const Extent& extent, Reservation& reservation,
                       uint64_t offset, uint64_t bytes, const std::function<void()>& after_each) {
  DJINN_ASSERT(after_each != nullptr);
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t piece = std::min(kPieceBytes, bytes - done);
    DJINN_CHECK(pal.commit(extent, offset + done, piece));
    DJINN_CHECK(pal.populate(reservation, offset + done, piece));
    done += piece;
    after_each();
  }
  return {};
}

}  // namespace djinn::pal
