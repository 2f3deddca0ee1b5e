// SPDX-License-Identifier: Apache-2.0

// QuotaRefusals: tells that a quota refuses memory to a session, or to the lane of a user's worker.
// It tells of each of them once in a while, since who is refused may ask again at once; and of a
// user's sessions and worker together no more than of their other refusals (Events::emit_limited).
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "daemon/djinnd/events/events.h"
#include "kernel/base/clock.h"
#include "kernel/base/device_id.h"
#include "kernel/base/ids.h"
#include "kernel/base/owner.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class QuotaRefusals {
 public:
  QuotaRefusals(const Clock& clock, Events& events) : clock_(clock), events_(events) {}

  // A user's request for a device's memory has ended so; it is told if a quota refused it. session:
  // not valid where a lane asked.
  void note(Owner user, DeviceId device, SessionId session, const Status& status);
  // The session has ended.
  void forget(Owner user, SessionId session) { told_ns_.erase({user, session}); }

 private:
  const Clock& clock_;
  Events& events_;
  std::map<std::pair<Owner, SessionId>, uint64_t> told_ns_;  // when each was last told of
};

}  // namespace djinn::daemon
