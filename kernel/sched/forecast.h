// SPDX-License-Identifier: Apache-2.0

// Forecast: how long a step that is ready will wait. A copy of the queue takes the steps that are
// ready, and those that come behind them, in the order that its policy says, as if each took as
// long as predicted and nobody else came.
//
// Steps that would be computed together are taken one by one: each is predicted to take its share.
// Pure, as the queue; linear in the picks that come before the step's, of which kPicksForeseen are
// looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernel/sched/queue.h"

namespace djinn::sched {

// What a session has to do from now on.
struct Backlog {
  uint64_t step_ns = 0;     // left of the step that is ready, held, or being computed
  bool has_slices = false;  // that step can be paused
  bool is_long = false;     // likewise, and while another has slices it is held
  bool is_sure = true;      // how long it takes
  uint64_t steps = 0;       // that come behind it, of the same submission
  uint64_t each_ns = 0;     // of these
  uint64_t behind = 0;      // submissions behind that one
  uint64_t behind_ns = 0;   // of each of these, which are one step like the first
};
using BacklogOf = std::function<Backlog(SessionId session)>;

inline constexpr size_t kPicksForeseen = 1024;

struct Forecast {
  uint64_t wait_ns = 0;
  bool is_least = false;  // it waits for so long at least: nobody has looked further
};

// Until the session's step begins. backlog_of is called once for each session that is picked before
// it. Precondition: the session is ready or held, in this copy at least.
[[nodiscard]] Forecast forecast(Queue queue, SessionId session, uint64_t now_ns,
                                const BacklogOf& backlog_of);
// Likewise, if this step were queued now.
[[nodiscard]] Forecast forecast(Queue queue, const ReadyStep& step, uint64_t now_ns,
                                const BacklogOf& backlog_of);

}  // namespace djinn::sched
