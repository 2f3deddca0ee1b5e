// SPDX-License-Identifier: Apache-2.0

// Staging: pinned memory of the host's through which extents are filled and read: from pageable
// memory a copy would wait for the processor first.
//
//   slot   a pinned buffer and the event after its last copy; four are in use in turn, so that the
//          processor fills or reads one while the device copies others
//
// One thread copies to and from the slots. What that costs on a GPU is in docs/CUDA.md.
//
// invariant: no copy is under way when a call returns, also one that failed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/pal/cuda/cuda_pal.h"

namespace djinn::pal::cuda {

class Staging {
 public:
  static constexpr uint64_t kSlotBytes = uint64_t{4} << 20;

  // pal: outlives this. Errors: kOutOfMemory, kSystem, kDeviceLost.
  static Result<std::unique_ptr<Staging>> make(CudaPal& pal);
  ~Staging();
  Staging(const Staging&) = delete;  // the driver has the slots' addresses
  Staging& operator=(const Staging&) = delete;

  // Copies a part of a file to what is mapped there for writing. Errors: kIo where the file is
  // shorter; those of CudaPal::copy_in.
  Status upload(const Fd& file, uint64_t from, Reservation& reservation, uint64_t to,
                uint64_t bytes);
  // Gives read() what is mapped there, piece by piece, from the beginning. Errors: those of
  // CudaPal::copy_out.
  Status download(const Reservation& reservation, uint64_t from, uint64_t bytes,
                  const std::function<void(std::span<const std::byte>)>& read);

 private:
  struct Slot {
    std::byte* data = nullptr;
    Event event = nullptr;
  };
  static constexpr size_t kSlots = 4;

  explicit Staging(CudaPal& pal) : pal_(pal) {}
  Status allocate();
  Status submit_uploads(const Fd& file, uint64_t from, DevicePtr to, uint64_t bytes);
  Status submit_download(const Slot& slot, DevicePtr from, uint64_t bytes);
  Status read_slots(DevicePtr from, uint64_t bytes,
                    const std::function<void(std::span<const std::byte>)>& read);
  // Waits until the slot's last copy is done.
  Status wait(const Slot& slot);
  // Waits for all copies; what was wrong before goes first.
  Status finish(const Status& before);

  CudaPal& pal_;
  std::array<Slot, kSlots> slots_;
};

}  // namespace djinn::pal::cuda
