// SPDX-License-Identifier: Apache-2.0

// Deadlines: a submission may say when it is to have begun. Found, it is refused at once if the
// queue foresees that it will not have (kernel/sched/forecast.h), or if it is behind too many. What
// it takes to judge that is the session's time, as its steps are, and not that of a run that
// computes meanwhile. That the time has passed, at its turn or while it waits for memory, the
// runner finds.
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/worker/program_table.h"
#include "daemon/worker/rings.h"
#include "daemon/worker/runner.h"
#include "daemon/worker/slices.h"
#include "kernel/base/clock.h"
#include "kernel/base/result.h"
#include "kernel/sched/forecast.h"
#include "kernel/sched/queue.h"
#include "kernel/sched/step_times.h"

namespace djinn::worker {

// Lane's thread.
class Deadlines {
 public:
  struct Lane {
    const Clock& clock;
    Runner& runner;
    Rings& rings;
    Slices& slices;
    sched::Queue& queue;
    const ProgramTable& programs;
    const sched::StepTimes& times;
  };
  explicit Deadlines(const Lane& lane) : lane_(lane) {}

  // Ends a submission that has just come and cannot begin in time; gives whether it did. step: as
  // the seat's session is to be queued, and is not yet. An Error: the client broke the protocol.
  Result<bool> refuse_at_once(Seat& seat, const sched::ReadyStep& step, uint64_t now_ns);
  // Likewise of such a step: its session pays for what was worked out of it since then, before it
  // is queued.
  void charge(const sched::ReadyStep& step, uint64_t begun_ns);

 private:
  Result<bool> judge(Seat& seat, const sched::ReadyStep& step, uint64_t now_ns);
  std::optional<Error> why_not_in_time(const sched::ReadyStep& step, uint64_t begin_by_ns,
                                       uint64_t now_ns);
  [[nodiscard]] sched::Backlog backlog_of(SessionId id);
  [[nodiscard]] bool is_beside_a_run() const;

  Lane lane_;
};

}  // namespace djinn::worker
