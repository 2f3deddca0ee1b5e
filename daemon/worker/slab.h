// Slab: the lane's volatile section: one memfd from djinnd, mapped, replaced when a plan needs
// more.
#pragma once

#include <span>

#include "daemon/worker/grants.h"
#include "kernel/pal/memfd.h"

namespace djinn::worker {

class Slab {
 public:
  explicit Slab(Grants& grants) : grants_(grants) {}

  // At least bytes, zeroed and backed by pages; what the former one held is gone. Lane's thread.
  Result<std::span<std::byte>> grow(uint64_t bytes);

 private:
  Grants& grants_;
  pal::Mapping mapping_;
};

}  // namespace djinn::worker
