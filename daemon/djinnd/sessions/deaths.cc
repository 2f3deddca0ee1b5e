// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/deaths.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {
namespace {

// Makes the error for a run that ends its workers. `op` names the operator, if it is known.
Error refusal_of(const std::string& op, std::optional<uint64_t> overran_ms) {
  if (overran_ms) {
    return {ErrorCode::kTimeout,
            fmt::format("{} ran longer than {} s, which is the most that one may take. The run is "
                        "given up; other runs of the session go on. Give it less to do.",
                        op.empty() ? "A part of the run" : "The operator " + op,
                        static_cast<double>(*overran_ms) / 1000)};
  }
  return {ErrorCode::kWorkerLost,
          fmt::format("The run stopped its worker three times{} and made no progress. It is given "
                      "up; other runs of the session go on.",
                      op.empty() ? "" : ", last in the operator " + op + ",")};
}

}  // namespace

bool Deaths::is_shared(WorkerKey key) const {
  const auto is_in_step = [key](const auto& entry) {
    const Session& session = *entry.second;
    if (session.worker() != key || !session.has_memory()) return false;
    const auto progress = session.memory.progress();
    return progress && progress->running_step != 0;
  };
  return std::ranges::count_if(sessions_.all(), is_in_step) > 1;
}

Deaths::Verdict Deaths::note(Session& session, const WorkerDeath& death, bool shared) {
  const auto progress = session.memory.progress();
  if (!progress.ok()) return {false, progress.error()};
  const bool in_step = progress->running_step != 0;
  const bool is_own = in_step && !death.was_a_graphs() && !shared;
  gc::Progress counted = *progress;
  if (!is_own) counted.running_step = 0;
  session.deaths.note(counted);
  const uint64_t steps =
      progress->commit - std::exchange(session.commit_at_death, progress->commit);
  const bool went_on = steps > (session.refusal ? 1 : 0);  // the refusal is committed as well
  if (steps > 0) session.refusal.reset();
  if (is_own) {
    session.quarantine.note_death(went_on, clock_.monotonic_ns());
    note_killer(session);
  }
  if (in_step) {
    // Otherwise a death before the next worker has attached the session would count for this step
    // again.
    const Status left = session.memory.leave_step();
    if (!left) log("a dead worker's step stays open: {}", left.error().message);
  }
  if (is_own && (death.overran_ms || session.deaths.exhausted())) {
    session.refusal = refusal_of(progress->op, death.overran_ms);
  }
  const OwedAnswer attaching{OwedAnswer::Kind::kAttachSession, session.id.value, {}};
  // The limit is twice the usual one: the submission in flight may be what kills, and it is refused
  // first.
  if (death.suspect == attaching) ++session.attach_deaths;
  Verdict verdict{went_on || is_own || (in_step && shared), {}};
  if (session.attach_deaths >= 2 * limits::kDeathsWithoutProgress || session.deaths.hopeless()) {
    verdict.end = Error{ErrorCode::kWorkerLost, "The worker died whenever it served the session."};
  }
  return verdict;
}

bool Deaths::note_last(Session& session) {
  const auto progress = session.memory.progress();
  const bool in_step = progress && progress->running_step != 0;
  if (in_step) note_killer(session);
  return in_step;
}

void Deaths::note_deadly_graph(Session& session) {
  session.quarantine.note_death(false, clock_.monotonic_ns());
  note_killer(session);
}

void Deaths::note_killer(Session& session) {
  if (std::exchange(session.has_killed, true)) return;  // its own quarantine holds it back
  newcomers_[session.worker()].note_death(clock_.monotonic_ns());
}

void Deaths::worker_ready(WorkerKey key) {
  const uint64_t until_ns = clock_.monotonic_ns() + kTurnsMs * kNsPerMs;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->worker() == key && session->has_killed) session->gives_way_until_ns = until_ns;
  }
}

bool Deaths::may_have_worker(const Session& session) const {
  const uint64_t now_ns = clock_.monotonic_ns();
  if (now_ns < session.gives_way_until_ns && others_await_turn(session)) return false;
  return !is_quarantined(session);
}

bool Deaths::is_quarantined(const Session& session) const {
  const uint64_t now_ns = clock_.monotonic_ns();
  const bool has_spare = domains_.has_spare(session.device);
  if (!session.quarantine.is_over(now_ns, has_spare)) return true;
  const auto others = newcomers_.find(session.worker());
  if (others == newcomers_.end() || others->second.is_over(now_ns, has_spare)) return false;
  const auto progress = session.memory.progress();
  return !progress || progress->commit == 0;
}

bool Deaths::returns_soon(const Session& session) const {
  if (session.attached) {
    // A worker that is dead is still theirs until its death was noted of each of its sessions.
    if (domains_.ready(session.worker())) return false;
  } else if (clock_.monotonic_ns() - session.lost_worker_ns >= kSuccessorMs * kNsPerMs) {
    return false;
  }
  return domains_.is_to_be_ready(session.worker()) && !is_quarantined(session);
}

// It is not enough that the worker was told of the other session first: in a new worker its step
// may wait for memory, and the killer's next step could begin before it.
bool Deaths::others_await_turn(const Session& session) const {
  return std::ranges::any_of(sessions_.all(), [&](const auto& entry) {
    const Session& other = *entry.second;
    if (other.worker() != session.worker() || other.has_killed || !other.attached) return false;
    const auto progress = other.memory.progress();
    return progress && progress->commit == other.commit_at_attach && other.runs();
  });
}

void Deaths::note_attached(Session& session) {
  DJINN_ASSERT(session.attached);
  if (const auto progress = session.memory.progress()) session.commit_at_attach = progress->commit;
}

}  // namespace djinn::daemon
