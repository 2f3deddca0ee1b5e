// SPDX-License-Identifier: Apache-2.0

// DevicePal: the one seam between djinnd and a device's memory, in the shape of CUDA's virtual
// memory calls. Beside each call stands the one it mirrors.
//
//   extent        physical memory that one descriptor names; travels between processes
//   reservation   a range of virtual addresses of this process, into which extents are mapped
//   granularity   all offsets and sizes below are multiples of it, but those of copies and zeroing
//
// invariant: an address of a reservation never moves; what is not mapped is inaccessible, not free.
// invariant: mapped ranges of a reservation do not overlap; each is unmapped and protected as the
// whole range that map() was given (CUDA knows no other way).
// invariant: a call that fails leaves mappings, descriptors and committed memory as they were.
//
// One thread at a time for each reservation; extents and the pal itself take any. Destroying a
// reservation unmaps what is left in it; destroying an extent closes its descriptor, and the memory
// goes when the last descriptor and mapping of any process are gone. The pal outlives both.
//
// Every call of a device other than the host can answer kDeviceLost: then so does every later one,
// and the process has to end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/pal/memfd.h"

namespace djinn::pal {

struct DeviceProperties {
  std::string name;                // "cpu:0"
  uint64_t granularity_bytes = 0;  // a power of two
  bool enforces_seals = false;     // false: sealed memory is read-only by convention
  // False: create() commits, decommit() does not exist, and an extent is mapped as a whole.
  bool extents_have_parts = false;
};

struct Extent {
  Fd fd;
  uint64_t bytes = 0;
};

class Reservation {
 public:
  struct Mapped {
    uint64_t bytes = 0;
    Access access = Access::kNone;
    bool write_sealed = false;
  };
  using Mappings = std::map<uint64_t, Mapped>;  // by offset
  // Takes the addresses back when a reservation goes, with what is mapped there.
  class Owner {
   public:
    virtual void release(std::byte* data, uint64_t bytes, const Mappings& mapped) noexcept = 0;

   protected:
    ~Owner() = default;
  };

  Reservation() = default;
  Reservation(Owner& owner, std::byte* data, uint64_t bytes) noexcept
      : owner_(&owner), data_(data), bytes_(bytes) {}
  ~Reservation() { reset(); }
  Reservation(Reservation&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        mapped_(std::exchange(other.mapped_, {})) {}
  Reservation& operator=(Reservation&& other) noexcept;
  void reset() noexcept;

  // The first address. On the host it can be dereferenced where it is mapped; elsewhere it is an
  // address of the device.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] uint64_t size() const noexcept { return bytes_; }

  // For implementations of DevicePal: what is mapped, by offset. The checks are the same for all
  // devices, so they live here.
  // Errors: kOutOfRange, kAlreadyExists if a byte of the range is mapped.
  [[nodiscard]] Status check_unmapped(uint64_t offset, uint64_t bytes) const;
  // The mapping that is exactly this range. Errors: kNotFound.
  [[nodiscard]] Result<Mapped*> exactly(uint64_t offset, uint64_t bytes);
  // That all of the range is mapped, and permits the access. Errors: kOutOfRange,
  // kPermissionDenied.
  [[nodiscard]] Status check_access(uint64_t offset, uint64_t bytes, Access access) const;
  void note_mapped(uint64_t offset, Mapped mapped) { mapped_.emplace(offset, mapped); }
  void note_unmapped(uint64_t offset) { mapped_.erase(offset); }

 private:
  Owner* owner_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  Mappings mapped_;
};

// Checks that are the same for all devices. Errors: kInvalidArgument.
[[nodiscard]] Status check_aligned(const DeviceProperties& device, uint64_t offset, uint64_t bytes);
// Errors: kOutOfRange.
[[nodiscard]] Status check_in_extent(const Extent& extent, uint64_t offset, uint64_t bytes);
// What DevicePal::map() is given. Errors: kInvalidArgument, kOutOfRange, kAlreadyExists;
// kUnsupported for a part of an extent that has none.
[[nodiscard]] Status check_mapping(const DeviceProperties& device, const Reservation& reservation,
                                   uint64_t offset, const Extent& extent, uint64_t extent_offset,
                                   uint64_t bytes);
// The error of decommit() where extents have no parts.
[[nodiscard]] Error no_parts_error();

class DevicePal {
 public:
  virtual ~DevicePal() = default;
  [[nodiscard]] virtual const DeviceProperties& properties() const = 0;

  // Addresses without memory. cuMemAddressReserve. Errors: kInvalidArgument (granularity),
  // kOutOfMemory.
  virtual Result<Reservation> reserve(uint64_t bytes) = 0;

  // Zeroed memory; where extents have parts not yet committed, so that it may be larger than the
  // machine.
  // cuMemCreate. The name is for people. Errors: kInvalidArgument, kOutOfMemory, kLimitExceeded.
  virtual Result<Extent> create(std::string_view name, uint64_t bytes) = 0;

  // Makes the range really there, so that no use of it can fail later; keeps its content, and does
  // nothing where it is committed. A no-op on devices whose create() commits. Errors: kOutOfMemory.
  virtual Status commit(const Extent& extent, uint64_t offset, uint64_t bytes) = 0;
  // Gives the memory of the range back; it reads as zeros and may be committed again. Errors:
  // kPermissionDenied for a sealed extent, kUnsupported where extents have no parts.
  virtual Status decommit(const Extent& extent, uint64_t offset, uint64_t bytes) = 0;

  // cuMemMap and cuMemSetAccess. An extent sealed for writing maps for reading only. Errors:
  // kInvalidArgument (granularity, a descriptor of no memory), kAlreadyExists, kOutOfRange,
  // kPermissionDenied, kOutOfMemory, kUnsupported for a part of an extent where
  // properties().extents_have_parts is false.
  virtual Status map(Reservation& reservation, uint64_t offset, const Extent& extent,
                     uint64_t extent_offset, uint64_t bytes, Access access) = 0;
  // cuMemSetAccess. Errors: kNotFound, kPermissionDenied.
  virtual Status protect(Reservation& reservation, uint64_t offset, uint64_t bytes,
                         Access access) = 0;
  // cuMemUnmap. The addresses stay reserved. Errors: kNotFound.
  virtual Status unmap(Reservation& reservation, uint64_t offset, uint64_t bytes) = 0;

  // Takes the first-touch faults of a committed range that is mapped for writing. A no-op on
  // devices without them. Errors: kOutOfMemory, kOutOfRange, kPermissionDenied.
  virtual Status populate(Reservation& reservation, uint64_t offset, uint64_t bytes) = 0;

  // Blocking; a range may lie in several mappings, back to back. cuMemcpyHtoD, cuMemcpyDtoH,
  // cuMemsetD8. Errors: kOutOfRange, kPermissionDenied.
  virtual Status copy_in(Reservation& reservation, uint64_t offset,
                         std::span<const std::byte> from) = 0;
  virtual Status copy_out(const Reservation& reservation, uint64_t offset,
                          std::span<std::byte> to) = 0;
  virtual Status zero(Reservation& reservation, uint64_t offset, uint64_t bytes) = 0;
  // Within one reservation, between ranges that do not overlap. cuMemcpyDtoD.
  virtual Status copy(Reservation& reservation, uint64_t from, uint64_t to, uint64_t bytes) = 0;

  // Seals an extent for all processes and for ever. Errors: kBusy while a writer is left anywhere,
  // kUnsupported where properties().enforces_seals is false.
  virtual Status seal(const Extent& extent, Seals seals) = 0;

  // A descriptor to send. cuMemExportToShareableHandle. Errors: kLimitExceeded.
  virtual Result<Fd> export_extent(const Extent& extent) = 0;
  // Takes a descriptor from outside and distrusts it: kind, size, at least these seals where the
  // device enforces any.
  // cuMemImportFromShareableHandle. Errors: kInvalidArgument, kOutOfRange.
  virtual Result<Extent> import_extent(Fd fd, uint64_t bytes, Seals required) = 0;
};

// Commits a range of the extent and populates it, in pieces: a kernel that is busy takes seconds
// for a gibibyte. Reservation maps the extent from its beginning on. after_each: called after each
// piece of at most kPieceBytes. Errors: as commit() and populate(); what was done stays.
inline constexpr uint64_t kPieceBytes = uint64_t{64} << 20;
Status back_with_pages(DevicePal& pal, const Extent& extent, Reservation& reservation,
                       uint64_t offset, uint64_t bytes, const std::function<void()>& after_each);

}  // namespace djinn::pal
