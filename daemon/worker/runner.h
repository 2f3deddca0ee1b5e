// SPDX-License-Identifier: Apache-2.0

// Runner: executes a session's submissions, one step at a time, and publishes what was committed.
//
//   pick up     copy the submission and its block, once, into the state extent
//   begin       mark the step as running
//   operation   validate, compute, stage (operations.h, generation.h)
//   commit      one word makes it real; a failed step is rolled back first, and commits its error
//   publish     tell the client; repeated after a crash between commit and here
//
// Lane's thread only.
#pragma once

#include "daemon/worker/lane_counts.h"
#include "daemon/worker/operations.h"
#include "kernel/base/clock.h"

namespace djinn::worker {

class Runner {
 public:
  Runner(LaneTools tools, const Clock& clock, LaneCounts& counts)
      : tools_(tools), clock_(clock), counts_(counts) {}

  enum class Advance {
    kIdle,     // nothing is submitted
    kWorked,   // a step was done
    kWaited,   // likewise, after it had waited: it awaits nothing any more
    kBlocked,  // until the client reads completions; it rings then
    kWaiting,  // for what the step awaits (waits.h)
  };
  // Whether a step has no room for what it publishes; then the client rings when there is more. An
  // Error means that the client broke the protocol.
  static Result<bool> is_blocked(Session& session);
  // One step of the session. An Error means that the client broke the protocol.
  Result<Advance> advance(Session& session);

 private:
  Status pick_up(Session& session);
  void count(Step& step, const gc::StepRecord& record);
  void count_for_session(const Step& step, const gc::StepRecord& record);
  Error give_up(Step& step);
  Outcome<Ending> perform(Step& step, gc::StepRecord& record);
  void commit(Step& step, gc::StepRecord record);
  void fail(Step& step, gc::StepRecord record, const Error& error);
  void publish(Session& session);
  static void give_up_for_now(Session& session);

  LaneTools tools_;
  const Clock& clock_;
  LaneCounts& counts_;
  uint64_t plan_misses_ = 0;  // of the lane, when its session was last told
};

}  // namespace djinn::worker
