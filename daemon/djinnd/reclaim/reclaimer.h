// SPDX-License-Identifier: Apache-2.0

// Reclaimer: what gives way as a device's memory gets short, and in which order (ARCHITECTURE
// section 4, Tiers). It asks Residency and Sequences what could go, and says go; they do it.
//
// When somebody asks for memory and there is none:
//
//   lanes of workers that serve no session; what is granted for refs and heaps and holds nothing;
//   models that no session holds, least recently used first; then models whose sessions run
//   nothing; then sequence groups of such sessions. All that is needed, or nothing.
//
// In a GPU's memory models are their copies, whose sessions are those on the GPU; and sequence
// groups stay.
//
// While somebody waits for it, it is looked whether it still comes: what waits for a lane to end a
// step comes too late for them once that step has taken long (lane_steps.h), and something else
// gives way, or they are refused. Groups that nobody can move because their worker has just died
// count as coming until its successor has them (deaths.h), and all the rest stays until then.
//
// After each grant, and when a model falls idle:
//
//   above idle_percent   what is granted for refs and heaps and holds nothing, of sessions that
//                        have run nothing for a while; models that no session holds; then sequence
//                        groups of such sessions
//   above all_percent    those of all sessions that run nothing, too, and lanes of workers that
//                        serve no session
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/memory/memory.h"
#include "daemon/djinnd/memory/reclaim.h"
#include "daemon/djinnd/models/models.h"
#include "daemon/djinnd/reclaim/pressure.h"
#include "daemon/djinnd/sessions/sessions.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class Reclaimer final : public Reclaim {
 public:
  // Is asked for the memory's bytes from then on.
  Reclaimer(Loop& loop, Memory& memory, Models& models, Sessions& sessions, Events& events,
            Thresholds thresholds);

  void set(Thresholds thresholds);

  bool make_room(uint64_t bytes) override;
  [[nodiscard]] uint64_t pinned_bytes() const override;
  [[nodiscard]] uint64_t held_up_bytes() const override;
  [[nodiscard]] uint64_t leaving_bytes(Owner user) const override;
  [[nodiscard]] uint64_t leaving_bytes(Memory::Holder session) const override;
  void take_back_idle(Owner user) override;
  // Looks soon whether something is to give way.
  void changed() override;
  void refused(const Error& why, std::optional<Owner> user) override;

 private:
  friend struct DaemonForTests;

  void look();
  // While somebody waits.
  void watch_waiting();
  void emit_pressure();
  // Begins as long as more than so many bytes are granted. of_sessions: with what belongs to
  // sessions that run nothing. Whether a model was passed over because its sessions run.
  bool shrink_to(uint64_t bytes, bool of_sessions);
  [[nodiscard]] DeviceId device() const { return memory_.device(); }
  // Bytes of all that comes free by itself, and soon.
  [[nodiscard]] uint64_t coming_bytes() const;

  Memory& memory_;
  Models& models_;
  Weights& weights_;
  Sessions& sessions_;
  Events& events_;
  Thresholds thresholds_;
  PressureLevel level_ = PressureLevel::kNone;
  Timer soon_;
  Timer later_;    // when another session may have become idle
  Timer waiting_;  // while somebody waits
};

}  // namespace djinn::daemon
