// SPDX-License-Identifier: Apache-2.0

// CudaPal: the memory of one NVIDIA GPU.
//
//   extent        memory of one cuMemCreate, exported at once: Extent.fd is that descriptor, and
//                 the driver's own handle is given back before create() returns
//   reservation   addresses that the driver reserved; an address means nothing to the host
//
// A descriptor is all that an extent costs, and exporting it is duplicating it. Each map() imports
// it anew (four calls of the driver), and no handle lives longer than a call: the mapping keeps the
// memory. Memory goes when the last descriptor and mapping of all processes are gone.
//
// Calls leave the device's primary context current on the thread that made them: whoever works with
// another context on that thread sets it again.
//
// invariant: every copy has ended when its call returns, also one that failed.
// invariant: after a sticky code, or a release that the driver refused, the device is lost to this
// process: every later call answers kDeviceLost and the process has to end. Reservations can still
// go. No other call answers kDeviceLost: what the driver refuses for another reason is kSystem,
// unless a better code names it.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "kernel/pal/cuda/driver_api.h"
#include "kernel/pal/device_pal.h"

namespace djinn::pal::cuda {

// What a device is called. uuid: "GPU-12345678-1234-...", as NVIDIA's tools write it.
struct DeviceNames {
  std::string name;
  std::string uuid;
  int cuda_version = 0;  // the driver's, 13'000
};

struct DeviceMemory {
  uint64_t free_bytes = 0;  // whoever has the rest
  uint64_t total_bytes = 0;
};

class CudaPal final : public DevicePal, private Reservation::Owner {
 public:
  // The driver's device of this ordinal, with its primary context, which this process shares with
  // whatever else computes in it. nodes: where the driver's are, for what they tell where it does
  // not start. Errors: kNotFound, kPermissionDenied, kUnsupported (an old driver, a device without
  // virtual memory management, a part of one, MPS), kBusy (a compute mode that refuses a second
  // process), kOutOfMemory, kSystem, kDeviceLost.
  static Result<std::unique_ptr<CudaPal>> make(const DriverApi& api, int ordinal,
                                               const std::string& nodes = "/dev");
  ~CudaPal() override;
  CudaPal(const CudaPal&) = delete;  // reservations point here
  CudaPal& operator=(const CudaPal&) = delete;

  [[nodiscard]] const DeviceProperties& properties() const override { return properties_; }
  [[nodiscard]] Result<DeviceNames> names();
  [[nodiscard]] Result<DeviceMemory> memory();
  Result<Reservation> reserve(uint64_t bytes) override;
  // Committed and zeroed. The name is lost: the driver has no place for it.
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
  // Maps the memory for a moment, for the driver tells a size no other way.
  Result<Extent> import_extent(Fd fd, uint64_t bytes, Seals required) override;

 private:
  friend class Staging;

  // A handle of the driver's, for as long as one call.
  class Handle;

  CudaPal(const DriverApi& api, int ordinal);
  Status open(int ordinal, const std::string& nodes);
  Status start_driver(const std::string& nodes);
  Status check_whole();
  Status check_sharing();
  Status check_compute_mode();
  void release(std::byte* data, uint64_t bytes,
               const Reservation::Mappings& mapped) noexcept override;

  // kDeviceLost once the device is lost.
  [[nodiscard]] Status check_alive() const;
  // check_alive(), and the context is current on the calling thread.
  [[nodiscard]] Status enter();
  // The Error that a code is, if it is one; notes a sticky one.
  [[nodiscard]] Status judge(std::string_view what, Code code);
  // Of a call that gives something back: the device is lost if it failed.
  Status judge_release(Code code) noexcept;

  [[nodiscard]] AllocationProperties allocation_properties() const;
  // Errors: kLimitExceeded where this process can have no more descriptors.
  [[nodiscard]] Result<Fd> export_handle(const Handle& handle);
  // Errors: kInvalidArgument for what is no memory of this device.
  [[nodiscard]] Result<Handle> import_handle(const Fd& fd);
  // Maps the whole memory of a handle, and leaves nothing mapped where it fails.
  [[nodiscard]] Status map_handle(Reservation& reservation, uint64_t offset, const Handle& handle,
                                  uint64_t bytes, Access access);
  [[nodiscard]] Status set_access(DevicePtr address, uint64_t bytes, Access access);
  // Whether the memory of a handle can be mapped as so many bytes. Errors: what says nothing of its
  // size.
  [[nodiscard]] Result<bool> maps_as(const Reservation& scratch, const Handle& handle,
                                     uint64_t bytes);
  // Errors: kOutOfRange where the memory of a handle has not exactly so many bytes.
  [[nodiscard]] Status check_size(const Handle& handle, uint64_t bytes);
  // Waits until no copy is under way, also where `submitted` says that it was not begun.
  [[nodiscard]] Status finish(std::string_view what, Code submitted);

  const DriverApi api_;
  Device device_ = 0;  // known from open() on
  DeviceProperties properties_;
  Context context_ = nullptr;  // null until it is retained
  Stream stream_ = nullptr;    // of the copies
  std::atomic<Code> lost_{Code::kSuccess};
};

}  // namespace djinn::pal::cuda
