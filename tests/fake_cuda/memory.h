// SPDX-License-Identifier: Apache-2.0

// Memory: the fake device's memory and its addresses, as one process sees them.
//
//   Physical     memory of one cuMemCreate: a memfd, whose last page says what it is
//   handle       one of several names of a Physical; with its last one the memfd is closed, and
//                the pages go when no mapping and no exported descriptor of any process is left
//   reservation  inaccessible addresses of this process
//   mapping      a whole Physical at addresses of a reservation, inaccessible until set_access()
//
// invariant: an address of the device is an address of this process, and its pages are accessible
// exactly as set_access() said.
// Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <shared_mutex>

#include "kernel/base/fd.h"
#include "tests/fake_cuda/options.h"

namespace djinn::fake_cuda {

using pal::cuda::AccessDescription;
using pal::cuda::AccessFlags;
using pal::cuda::Allocation;
using pal::cuda::AllocationProperties;
using pal::cuda::DevicePtr;

inline constexpr uint64_t kGranuleBytes = uint64_t{2} << 20;
inline constexpr unsigned char kPoison = 0xA5;  // what fresh memory is full of

// Where an address lies: in which reservation of the process, counted from 1, and how far behind
// its beginning.
struct Place {
  uint64_t reservation = 0;
  uint64_t offset = 0;
};

class Memory {
 public:
  explicit Memory(const Options& options)
      : total_bytes_(options.memory_bytes),
        device_(options.uuid),
        maps_partly_(options.partial_maps == 1) {}

  Code create(Allocation* out, uint64_t bytes, const AllocationProperties& properties);
  Code release(Allocation handle);
  Code export_handle(int* fd, Allocation handle);
  Code import_handle(Allocation* out, int fd);

  Code reserve(DevicePtr* out, uint64_t bytes, uint64_t alignment);
  Code free_addresses(DevicePtr address, uint64_t bytes);
  Code map(DevicePtr address, uint64_t bytes, uint64_t offset, Allocation handle);
  Code unmap(DevicePtr address, uint64_t bytes);
  Code set_access(DevicePtr address, uint64_t bytes, const AccessDescription& description);

  [[nodiscard]] uint64_t total_bytes() const { return total_bytes_; }
  // What this process has neither created nor imported, mapped or not.
  [[nodiscard]] uint64_t free_bytes() const;

  // Nothing where no memory is mapped.
  [[nodiscard]] std::optional<Place> find(DevicePtr address) const;
  // Whether all of the range is mapped and set so that it permits the access.
  [[nodiscard]] bool permits(DevicePtr address, uint64_t bytes, AccessFlags access) const;
  // Runs work while no address is mapped, unmapped or set, if both ranges permit what is done with
  // them; false otherwise. A range of no bytes permits everything.
  template <typename Work>
  bool with(DevicePtr read, DevicePtr written, uint64_t read_bytes, uint64_t written_bytes,
            Work work) const {
    const std::shared_lock lock(mutex_);
    if (!permits_locked(read, read_bytes, AccessFlags::kRead)) return false;
    if (!permits_locked(written, written_bytes, AccessFlags::kReadWrite)) return false;
    work();
    return true;
  }

 private:
  struct Physical {
    Fd memfd;
    uint64_t bytes = 0;
    AllocationProperties properties;
    uint64_t handles = 0;
  };
  using Shared = std::shared_ptr<Physical>;
  struct Mapping {
    uint64_t bytes = 0;
    AccessFlags access = AccessFlags::kNone;
    Shared physical;
  };
  using Mappings = std::map<DevicePtr, Mapping>;
  struct Reserved {
    uint64_t bytes = 0;
    uint64_t number = 0;
  };

  Allocation add_handle(Shared physical);
  [[nodiscard]] uint64_t used_locked() const;
  [[nodiscard]] bool is_reserved(DevicePtr address, uint64_t bytes) const;
  [[nodiscard]] bool meets_mapping(DevicePtr address, uint64_t bytes) const;
  // Whether the range is made of whole mappings.
  [[nodiscard]] bool is_whole(DevicePtr address, uint64_t bytes) const;
  [[nodiscard]] bool permits_locked(DevicePtr address, uint64_t bytes, AccessFlags access) const;

  const uint64_t total_bytes_;
  const Uuid device_;
  const bool maps_partly_;
  mutable std::shared_mutex mutex_;
  Allocation last_handle_ = 0x1000;  // a handle is no descriptor: do not let them be equal
  std::map<Allocation, Shared> handles_;
  std::set<Allocation> imports_;  // those of handles_ that cannot be exported
  std::map<ino_t, std::weak_ptr<Physical>> physical_;
  std::map<DevicePtr, Reserved> reservations_;
  uint64_t reservations_made_ = 0;
  Mappings mappings_;
};

}  // namespace djinn::fake_cuda
