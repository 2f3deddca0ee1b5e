// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/deadlines.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ipc/limits.h"
#include "kernel/base/units.h"

namespace djinn::worker {
namespace {

// Without a deadline a submission waits in its session's ring, which takes as many, and its client
// for room there. Of each session one step is in the queue.
static_assert(limits::kSubmissionSlots <= limits::kQueuedSubmissions);
static_assert(limits::kSessionsPerUser <= limits::kQueuedSubmissions);
// A client that submits again whatever it is told, and owes more than others have by now, is told
// in its turn.
constexpr uint32_t kJudgedInARow = 8;

}  // namespace

bool Deadlines::is_beside_a_run() const {
  return lane_.runner.is_between_operators() && !lane_.runner.is_paused();
}

// One that was picked up waits for memory, and was found in time. Where the client has no room for
// the answer, or a former worker has left something to tell, it has it in its turn.
Result<bool> Deadlines::refuse_at_once(Seat& seat, const sched::ReadyStep& step, uint64_t now_ns) {
  Session& session = *seat.session;
  seat.begin_by_ns = session.begin_by_ns();
  if (seat.begin_by_ns == 0 || session.state().in_flight()) return false;
  if (session.state().step_published() < session.state().step()) return false;
  if (seat.refusals >= kJudgedInARow && lane_.queue.owes_a_unit(step.session)) return false;
  const uint64_t begun_ns = lane_.clock.monotonic_ns();
  DJINN_TRY(const bool refused, judge(seat, step, now_ns));
  seat.refusals = refused ? seat.refusals + 1 : 0;
  charge(step, begun_ns);
  return refused;
}

void Deadlines::charge(const sched::ReadyStep& step, uint64_t begun_ns) {
  const uint64_t took_ns = lane_.clock.monotonic_ns() - begun_ns;
  lane_.queue.charge_judging(step.session, step.arrival, begun_ns, took_ns);
  lane_.slices.skip(took_ns);
}

// What is refused beside a run that computes is not that run's.
Result<bool> Deadlines::judge(Seat& seat, const sched::ReadyStep& step, uint64_t now_ns) {
  Session& session = *seat.session;
  auto why = why_not_in_time(step, seat.begin_by_ns, now_ns);
  if (!why) return false;
  DJINN_TRY(const bool blocked, Runner::is_blocked(session));
  if (blocked) return false;
  std::optional<Runner::Pause> pause;
  if (is_beside_a_run()) pause.emplace(lane_.runner);
  session.refuse(*std::move(why));
  // Where what a former worker had not told takes the room, the client hears of it when it has made
  // some.
  DJINN_TRY(const auto advance, lane_.runner.advance(session));
  seat.note(advance, now_ns);
  return true;
}

std::optional<Error> Deadlines::why_not_in_time(const sched::ReadyStep& step, uint64_t begin_by_ns,
                                                uint64_t now_ns) {
  const uint64_t queued = lane_.rings.count_queued();
  if (queued > limits::kQueuedSubmissions) {
    return Error{ErrorCode::kQueueFull,
                 fmt::format("With it {} submissions are queued, and one that is to begin in time "
                             "is taken among {} at most. Submit it again later.",
                             queued, limits::kQueuedSubmissions)};
  }
  const auto foreseen =
      sched::forecast(lane_.queue, step, now_ns, [this](SessionId id) { return backlog_of(id); });
  const uint64_t left_ns = begin_by_ns - std::min(begin_by_ns, now_ns);
  if (foreseen.wait_ns <= left_ns) return std::nullopt;
  return Error{ErrorCode::kQueueFull,
               fmt::format("The run would begin in {} {} ms, behind what is queued, and may wait "
                           "for {} ms. Submit it again later, or let it wait longer.",
                           foreseen.is_least ? "more than" : "about",
                           ms_rounded_up(foreseen.wait_ns), ms_rounded_up(left_ns))};
}

sched::Backlog Deadlines::backlog_of(SessionId id) {
  Seat& seat = lane_.rings.at(id);
  // It is looked at, that is all; or its last step is over, and not charged yet.
  if (seat.kind.number == 0 || seat.session->ring().open() == 0) return {};
  const StepsBehind& behind = seat.steps_behind(lane_.programs);
  const uint64_t ns = lane_.times.predict_ns(seat.kind.number);
  sched::Backlog backlog{.step_ns = ns,
                         .has_slices = !seat.kind.is_token,
                         .is_long = Slices::is_long(seat),
                         .is_sure = seat.is_sure,
                         .steps = behind.count,
                         .each_ns = lane_.times.predict_ns(behind.kind)};
  // Of the run that is computed, or paused, a part is over.
  if (lane_.runner.is_asking(id)) backlog.step_ns -= std::min(ns, lane_.slices.charged_ns());
  backlog.step_ns += ns * behind.parts;
  backlog.behind = seat.session->ring().open() - 1;
  backlog.behind_ns = ns;
  return backlog;
}

}  // namespace djinn::worker
