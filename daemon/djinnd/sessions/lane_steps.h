// SPDX-License-Identifier: Apache-2.0

// LaneSteps: in which steps the lanes are, and which of these go on for long. A lane answers djinnd
// between two operators, and how long one takes its author says: nobody else's requests wait for
// it.
//
//   long   it has gone on for kLongMs since a look first saw it
#pragma once

#include <cstdint>
#include <map>

#include "daemon/djinnd/sessions/session.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "kernel/base/clock.h"
#include "kernel/base/ids.h"

namespace djinn::daemon {

class LaneSteps {
 public:
  // A step of an honest run is far shorter, and who waits for memory may wait so long.
  static constexpr uint64_t kLongMs = 2000;

  LaneSteps(const Clock& clock, const SessionTable& sessions)
      : clock_(clock), sessions_(sessions) {}

  // Notes the steps that the lanes are in. To be called again and again while somebody waits.
  void look();
  // Whether the worker's lane is in a step that is long.
  [[nodiscard]] bool is_long(WorkerKey key) const;

 private:
  struct Step {
    SessionId session;
    uint64_t number;
    uint64_t since_ns;  // monotonic
  };

  const Clock& clock_;
  const SessionTable& sessions_;
  std::map<WorkerKey, Step> steps_;  // as of the last look
};

}  // namespace djinn::daemon
