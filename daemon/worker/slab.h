// SPDX-License-Identifier: Apache-2.0

// Slab: the lane's volatile section: one memfd from djinnd, mapped, replaced when a plan needs
// more.
//
// invariant: what is mapped is what djinnd counts for the lane, but while a larger one is on its
// way.
#pragma once

#include <functional>
#include <span>

#include "daemon/worker/grants.h"
#include "kernel/pal/device_pal.h"

namespace djinn::worker {

class Slab {
 public:
  Slab(pal::DevicePal& pal, Grants& grants) : pal_(pal), grants_(grants) {}

  // At least bytes, zeroed and backed by pages; the former one is gone then. Lane's thread.
  // after_each: of pal::back_with_pages(). Pending, and errors: as Grants::take(), and those of the
  // pal; the former one stays.
  Outcome<std::span<std::byte>> grow(uint64_t bytes, const std::function<void()>& after_each);
  // Who asked for more may be gone.
  void forget() { grants_.forget(ipc::GrantKind::kSlab, {}, memory_.size()); }

 private:
  Status replace(Grants::Answer answer, const std::function<void()>& after_each);

  pal::DevicePal& pal_;
  Grants& grants_;
  pal::Reservation memory_;
};

}  // namespace djinn::worker
