// SPDX-License-Identifier: Apache-2.0

// CopyReclaimer: what gives way as a GPU's memory gets short: copies of models, least recently
// placed first, but those of models that somebody has pinned, that a run may use now, or that an
// opener waits for.
//
//   when somebody asks    as many as it takes; all that is needed, or nothing
//   after each grant      above idle_percent, as long as more than that is granted
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/memory/memory.h"
#include "daemon/djinnd/memory/reclaim.h"
#include "daemon/djinnd/memory/thresholds.h"
#include "daemon/djinnd/models/copies.h"
#include "daemon/djinnd/reclaim/pressure.h"

namespace djinn::daemon {

class CopyReclaimer final : public Reclaim {
 public:
  // Is asked for the memory's bytes from then on.
  CopyReclaimer(Loop& loop, Memory& memory, Copies& copies, Events& events, Thresholds thresholds);

  void set(Thresholds thresholds);

  bool make_room(uint64_t bytes) override;
  [[nodiscard]] uint64_t pinned_bytes() const override;
  // A step that goes on for long does keep a copy that leaves, and this does not know how much.
  [[nodiscard]] uint64_t held_up_bytes() const override { return 0; }
  // A copy is for all users, and what is a user's or a session's there does not give way.
  [[nodiscard]] uint64_t leaving_bytes(Owner) const override { return 0; }
  [[nodiscard]] uint64_t leaving_bytes(vmu::Holder) const override { return 0; }
  void take_back_idle(Owner) override {}
  void changed() override;
  void refused(const Error& why, std::optional<Owner> user) override;

 private:
  void look();
  [[nodiscard]] DeviceId device() const { return memory_.device(); }

  Memory& memory_;
  Copies& copies_;
  Events& events_;
  Thresholds thresholds_;
  PressureLevel level_ = PressureLevel::kNone;
  Timer soon_;
};

}  // namespace djinn::daemon
