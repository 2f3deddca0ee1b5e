// SPDX-License-Identifier: Apache-2.0

// Chunks: memory of a device whose extents have no parts, which djinnd gives by the extent for
// places of a window (kernel/vmu/window.h): of a session's refs, and of a lane's heap.
//
//   HeapChunks   where a heap's window has its grants. Its first chunk, the base, was made by the
//                worker itself before djinnd knew it, for what libraries keep: djinnd is told of it
//                as it knows the worker, and it stays
#pragma once

#include <span>
#include <vector>

#include "daemon/worker/grants.h"
#include "kernel/pal/device_pal.h"
#include "kernel/vmu/window.h"

namespace djinn::worker {

// Lane's thread. Gives what GrantSource::ask() does; of memory that cannot be taken in nothing is
// kept. session: of kRefs. Errors, and pending: as Grants::take(), and those of the pal;
// kOutOfMemory for too many places.
Outcome<std::vector<vmu::Chunk>> take_chunks(Grants& grants, pal::DevicePal& pal,
                                             ipc::GrantKind kind, SessionId session,
                                             std::span<const vmu::Range> places,
                                             vmu::Amount amount);

class HeapChunks final : public vmu::GrantSource {
 public:
  // pal and grants outlive this.
  HeapChunks(Grants& grants, pal::DevicePal& pal) : grants_(grants), pal_(pal) {}

  // The memory of a window of so many bytes, with its base. Errors: those of the pal.
  Result<vmu::WindowMemory> open(uint64_t window_bytes, uint64_t base_bytes);
  // djinnd knows this worker, and can be asked from now on. Before, there is the base alone.
  // own_bytes: all that this process has taken of the device, the base among it.
  void begin(uint64_t own_bytes);

  Outcome<std::vector<vmu::Chunk>> ask(std::span<const vmu::Range> places,
                                       vmu::Amount amount) override;
  void give_back(uint64_t bytes) override;
  void give_back(vmu::Range chunk) override;
  void backed() override {}

 private:
  Grants& grants_;
  pal::DevicePal& pal_;
  bool has_begun_ = false;
};

}  // namespace djinn::worker
