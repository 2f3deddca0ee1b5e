// SPDX-License-Identifier: Apache-2.0

// Deaths: what the deaths of workers mean for the sessions that they served: which run is refused,
// which session ends, and whom the next worker goes without for a while (ARCHITECTURE section 8).
// How long that is, workers/recovery.h knows.
//
//   own death   a worker's, in a step of the session alone, and of no graph that somebody defined;
//               a death in a step of several accuses nobody: the next worker runs their steps one
//               by one
//   killer      a session that has had one
//
// invariant: a killer's next step begins when all others that its worker serves, and that have
// work, have had one, or have let kTurnsMs pass.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "daemon/djinnd/sessions/session.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/recovery.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "kernel/base/clock.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class Deaths {
 public:
  // Whoever waits for what a dead worker's successor is to let go of waits for so long: on a busy
  // machine a worker takes seconds to start, and other sessions' turns take kTurnsMs.
  static constexpr uint64_t kSuccessorMs = 10'000;

  struct Verdict {
    bool progressed = false;   // the next worker may come at once, as far as this session tells
    std::optional<Error> end;  // of the session, which cannot go on
  };

  Deaths(const Clock& clock, const Domains& domains, const SessionTable& sessions)
      : clock_(clock), domains_(domains), sessions_(sessions) {}

  // Whether a worker that has just died was in steps of several of its sessions.
  [[nodiscard]] bool is_shared(WorkerKey key) const;
  // A worker died that served the session. The run in flight may be refused from now on
  // (Session::refusal).
  // shared: as is_shared() said, before anything was noted.
  Verdict note(Session& session, const WorkerDeath& death, bool shared);
  // Likewise, but its client is gone: the death is its own no less. Gives whether it was.
  bool note_last(Session& session);
  // A worker died in steps of several of its sessions: no session is accused, and yet who connects
  // anew after each such death is held back like other newcomers.
  void note_shared(WorkerKey key) { newcomers_[key].note_death(clock_.monotonic_ns()); }
  // It has defined a graph that ended a worker.
  void note_deadly_graph(Session& session);

  // The next worker is there.
  void worker_ready(WorkerKey key);
  // Whether nothing holds the session back from it: deaths of its own, those of its user's other
  // newcomers, or others' turns. To be asked again soon.
  [[nodiscard]] bool may_have_worker(const Session& session) const;
  // Whether it has lost its worker, and the next one is to be told of it soon: it is not held back
  // for deaths of its own, and the last one was less than kSuccessorMs ago.
  [[nodiscard]] bool returns_soon(const Session& session) const;
  // The worker was told of it.
  static void note_attached(Session& session);

 private:
  static constexpr uint64_t kTurnsMs = 1000;

  void note_killer(Session& session);
  // Deaths of its own, or of its user's other newcomers, hold it back.
  [[nodiscard]] bool is_quarantined(const Session& session) const;
  // Of its worker, sessions that are no killers, have work, and were given no step yet.
  [[nodiscard]] bool others_await_turn(const Session& session) const;

  const Clock& clock_;
  const Domains& domains_;
  const SessionTable& sessions_;
  std::map<WorkerKey, Newcomers> newcomers_;  // of users one of whose sessions ended a worker
};

}  // namespace djinn::daemon
