// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/lane_steps.h"

#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {
namespace {

// Gives 0 if the session is in no step, or if its state cannot be read.
uint64_t running_step_of(const Session& session) {
  if (!session.attached) return 0;
  const auto progress = session.memory.progress();
  return progress ? progress->running_step : 0;
}

}  // namespace

void LaneSteps::look() {
  const auto before = std::exchange(steps_, {});
  for (const auto& [id, session] : sessions_.all()) {
    const uint64_t number = running_step_of(*session);
    if (number == 0) continue;
    const auto seen = before.find(session->worker());
    const bool same =
        seen != before.end() && seen->second.session == id && seen->second.number == number;
    steps_.insert_or_assign(session->worker(),
                            same ? seen->second : Step{id, number, clock_.monotonic_ns()});
  }
}

bool LaneSteps::is_long(WorkerKey key) const {
  const auto found = steps_.find(key);
  if (found == steps_.end()) return false;
  const Step& step = found->second;
  const uint64_t now_ns = clock_.monotonic_ns();
  DJINN_ASSERT(now_ns >= step.since_ns);
  if (now_ns - step.since_ns < kLongMs * kNsPerMs) return false;
  const Session* const session = sessions_.find(step.session, key);
  return session != nullptr && running_step_of(*session) == step.number;
}

}  // namespace djinn::daemon
