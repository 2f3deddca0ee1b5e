// Slab: the lane's volatile section: one memfd from djinnd, mapped, replaced when a plan needs
// more.
#pragma once

#include <span>

#include "daemon/worker/grants.h"
#include "kernel/pal/device_pal.h"

namespace djinn::worker {

class Slab {
 public:
  Slab(pal::DevicePal& pal, Grants& grants) : pal_(pal), grants_(grants) {}

  // At least bytes, zeroed and backed by pages; what the former one held is gone. Lane's thread.
  // Errors: as Grants::take(), which leaves the former one as it was; those of the pal.
  Result<std::span<std::byte>> grow(uint64_t bytes);

 private:
  pal::DevicePal& pal_;
  Grants& grants_;
  pal::Reservation memory_;
};

}  // namespace djinn::worker
