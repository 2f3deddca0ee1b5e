// SPDX-License-Identifier: Apache-2.0

// Reclaim: the seam between the books of the memory and who knows what could be freed.
#pragma once

#include <cstdint>
#include <optional>

#include "kernel/base/owner.h"
#include "kernel/base/result.h"
#include "kernel/vmu/grants.h"

namespace djinn::daemon {

class Reclaim {
 public:
  virtual ~Reclaim() = default;
  // Begins to free so many bytes, and says whether that much will come free. Memory::freed() is
  // called as it does, and when it may not any more.
  virtual bool make_room(uint64_t bytes) = 0;
  // Bytes that never give way, for who is refused.
  [[nodiscard]] virtual uint64_t pinned_bytes() const = 0;
  // What others let go of and what comes free at the end of a step that goes on for long: nobody
  // waits for it.
  [[nodiscard]] virtual uint64_t held_up_bytes() const = 0;
  // What comes free by itself of what the user has.
  [[nodiscard]] virtual uint64_t leaving_bytes(Owner user) const = 0;
  // Likewise of what a session has.
  [[nodiscard]] virtual uint64_t leaving_bytes(vmu::Holder session) const = 0;
  // Begins to take back what the user's sessions have and do not use.
  virtual void take_back_idle(Owner user) = 0;
  // Called after each grant and each release, and when something may have fallen idle.
  virtual void changed() = 0;
  // Called for each request that no memory was found for. user: whom it would have been charged to,
  // if anybody.
  virtual void refused(const Error& why, std::optional<Owner> user) = 0;
};

}  // namespace djinn::daemon
