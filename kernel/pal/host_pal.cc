// SPDX-License-Identifier: Apache-2.0

#include "kernel/pal/host_pal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "kernel/base/assert.h"
#include "kernel/base/device_id.h"
#include "kernel/pal/huge_pages.h"

namespace djinn::pal {
namespace {

constexpr int kReservedFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

int protection_bits(Access access) {
  switch (access) {
    case Access::kNone:
      return PROT_NONE;
    case Access::kRead:
      return PROT_READ;
    case Access::kReadWrite:
      return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

// Puts inaccessible addresses where a mapping was, so that nobody else's mmap can land there.
bool reserve_again(std::byte* at, uint64_t bytes) {
  return ::mmap(at, bytes, PROT_NONE, kReservedFlags | MAP_FIXED, -1, 0) != MAP_FAILED;
}

// Gives the bytes of the range that have been touched. What is allocated but untouched is not
// counted.
uint64_t touched_bytes(const Fd& memfd, uint64_t offset, uint64_t bytes) {
  const auto end = static_cast<off_t>(offset + bytes);
  uint64_t touched = 0;
  for (auto at = static_cast<off_t>(offset); at < end;) {
    const off_t data = ::lseek(memfd.get(), at, SEEK_DATA);
    if (data < 0 || data >= end) break;  // ENXIO: only a hole follows
    const off_t hole = std::min(::lseek(memfd.get(), data, SEEK_HOLE), end);
    if (hole <= data) break;
    touched += static_cast<uint64_t>(hole - data);
    at = hole;
  }
  return touched;
}

Error sealed_error() {
  return {ErrorCode::kPermissionDenied,
          "the extent is sealed against writing. Copy what is to be changed."};
}

}  // namespace

Result<std::unique_ptr<HostPal>> HostPal::make() {
  DJINN_TRY(AvailableMemory available, AvailableMemory::open());
  return std::make_unique<HostPal>(std::move(available));
}

HostPal::HostPal(AvailableMemory available)
    : available_(std::move(available)),
      properties_{text_of(kHostDevice), static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)), true,
                  true} {}

Result<Reservation> HostPal::reserve(uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, 0, bytes));
  DJINN_TRY(Mapping addresses, reserve_addresses(bytes));
  const std::span<std::byte> reserved = addresses.release();
  return Reservation(*this, reserved.data(), reserved.size());
}

void HostPal::release(std::byte* data, uint64_t bytes, const Reservation::Mappings&) noexcept {
  const int failed = ::munmap(data, bytes);
  DJINN_ASSERT(failed == 0);
}

Result<Extent> HostPal::create(std::string_view name, uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, 0, bytes));
  DJINN_TRY(Fd fd, make_memfd(name, bytes, Seals::kSize));
  return Extent{std::move(fd), bytes};
}

Status HostPal::commit(const Extent& extent, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, offset, bytes));
  DJINN_CHECK(check_in_extent(extent, offset, bytes));
  // The exact count costs a walk through the pages; it is only worth it when memory is short.
  if (!available_.check(bytes)) {
    DJINN_CHECK(available_.check(bytes - touched_bytes(extent.fd, offset, bytes)));
  }
  return commit_ahead(extent.fd, offset, bytes);
}

Status HostPal::decommit(const Extent& extent, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, offset, bytes));
  return pal::decommit(extent.fd, offset, bytes);
}

Status HostPal::map(Reservation& reservation, uint64_t offset, const Extent& extent,
                    uint64_t extent_offset, uint64_t bytes, Access access) {
  DJINN_CHECK(check_mapping(properties_, reservation, offset, extent, extent_offset, bytes));
  DJINN_TRY(const bool write_sealed, has_seals(extent.fd, Seals::kWrite));
  if (write_sealed && access == Access::kReadWrite) return sealed_error();
  std::byte* const at = reservation.data() + offset;
  const int flags = MAP_FIXED | (write_sealed ? MAP_PRIVATE : MAP_SHARED);
  if (::mmap(at, bytes, protection_bits(access), flags, extent.fd.get(),
             static_cast<off_t>(extent_offset)) == MAP_FAILED) {
    const int reason = errno;
    // A failed MAP_FIXED may already have taken away what was there.
    DJINN_ASSERT(reserve_again(at, bytes));
    return system_error("map an extent", reason);
  }
  reservation.note_mapped(offset, {bytes, access, write_sealed});
  return {};
}

Status HostPal::protect(Reservation& reservation, uint64_t offset, uint64_t bytes, Access access) {
  DJINN_TRY(Reservation::Mapped * mapped, reservation.exactly(offset, bytes));
  // The kernel would permit this, and give this process private copies of what it writes.
  if (mapped->write_sealed && access == Access::kReadWrite) return sealed_error();
  if (::mprotect(reservation.data() + offset, bytes, protection_bits(access)) != 0) {
    return system_error("change the access to an extent", errno);
  }
  mapped->access = access;
  return {};
}

Status HostPal::unmap(Reservation& reservation, uint64_t offset, uint64_t bytes) {
  DJINN_TRY([[maybe_unused]] const auto* mapped, reservation.exactly(offset, bytes));
  if (!reserve_again(reservation.data() + offset, bytes)) {
    return system_error("unmap an extent", errno);
  }
  reservation.note_unmapped(offset);
  return {};
}

Status HostPal::populate(Reservation& reservation, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, offset, bytes));
  DJINN_CHECK(reservation.check_access(offset, bytes, Access::kReadWrite));
  return populate_write({reservation.data() + offset, bytes});
}

Status HostPal::copy_in(Reservation& reservation, uint64_t offset,
                        std::span<const std::byte> from) {
  DJINN_CHECK(reservation.check_access(offset, from.size(), Access::kReadWrite));
  ::memcpy(reservation.data() + offset, from.data(), from.size());
  return {};
}

Status HostPal::copy_out(const Reservation& reservation, uint64_t offset, std::span<std::byte> to) {
  DJINN_CHECK(reservation.check_access(offset, to.size(), Access::kRead));
  ::memcpy(to.data(), reservation.data() + offset, to.size());
  return {};
}

Status HostPal::zero(Reservation& reservation, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(reservation.check_access(offset, bytes, Access::kReadWrite));
  ::memset(reservation.data() + offset, 0, bytes);
  return {};
}

Status HostPal::copy(Reservation& reservation, uint64_t from, uint64_t to, uint64_t bytes) {
  DJINN_ASSERT(from + bytes <= to || to + bytes <= from);
  DJINN_CHECK(reservation.check_access(from, bytes, Access::kRead));
  DJINN_CHECK(reservation.check_access(to, bytes, Access::kReadWrite));
  ::memcpy(reservation.data() + to, reservation.data() + from, bytes);
  return {};
}

Status HostPal::seal(const Extent& extent, Seals seals) {
  return add_seals(extent.fd, seals);
}

Result<Fd> HostPal::export_extent(const Extent& extent) {
  return extent.fd.duplicate();
}

Result<Extent> HostPal::import_extent(Fd fd, uint64_t bytes, Seals required) {
  DJINN_CHECK(check_aligned(properties_, 0, bytes));
  // Without kSize the extent's maker could shrink it under our mapping, and the next touch would be
  // a SIGBUS.
  DJINN_CHECK(verify_memfd(fd, bytes, Seals::kSize));
  DJINN_CHECK(verify_memfd(fd, bytes, required));
  return Extent{std::move(fd), bytes};
}

}  // namespace djinn::pal
