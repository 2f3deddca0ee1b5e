// SPDX-License-Identifier: Apache-2.0

// Weights: what a device's memory has of models, as who looks for memory there sees it. Of models
// in the host's memory it is themselves, which go to disk (residency.h); in a GPU's it is their
// copies, which are dropped (copies.h).
#pragma once

#include <cstdint>
#include <vector>

#include "kernel/base/device_id.h"
#include "kernel/base/ids.h"

namespace djinn::daemon {

class Weights {
 public:
  // Whose weights are to go: those of no session of the device, or besides those whose sessions
  // there run nothing.
  enum class Whose : uint8_t { kNobodys, kNobodyRuns };
  struct Begun {
    uint64_t bytes = 0;
    bool runs_hold = false;  // some would have gone but for a run
  };

  // On their way out of the device; of these what a worker lets go of at the end of a step that
  // goes on for long; what never gives way.
  [[nodiscard]] virtual uint64_t leaving_bytes(DeviceId device) const = 0;
  [[nodiscard]] virtual uint64_t held_up_bytes(DeviceId device) const = 0;
  [[nodiscard]] virtual uint64_t pinned_bytes(DeviceId device) const = 0;
  // What would go now if it were asked.
  [[nodiscard]] uint64_t evictable_bytes(DeviceId device) const;
  // Begins to let so many bytes go, those of no session first, and of each kind what was used least
  // recently.
  Begun give_way(DeviceId device, uint64_t bytes, Whose whose);

 protected:
  struct Candidate {
    ModelId model;
    uint64_t bytes;
  };

  ~Weights() = default;

 private:
  // What may go, least recently used first. in_use: of models that sessions of the device hold, or
  // of others.
  [[nodiscard]] virtual std::vector<Candidate> evictable(DeviceId device, bool in_use) const = 0;
  // Whether a run may use it now.
  [[nodiscard]] virtual bool is_run(ModelId model, DeviceId device) const = 0;
  virtual void send_away(ModelId model, DeviceId device) = 0;
};

}  // namespace djinn::daemon
