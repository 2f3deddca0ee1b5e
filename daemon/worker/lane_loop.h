// SPDX-License-Identifier: Apache-2.0

// LaneLoop: the lane's thread. It owns sessions, programs and the executor's lane; others post to
// it.
//
//   mailbox   closures from the control thread and wake-ups from the pager, run between steps
//   round     one step of each session that has work: nobody waits for another's whole generation
//   sleep     after a short spin without work: on all submission bells and the mailbox's, at once;
//             none of them is read, since clients have theirs, too (ipc/bell.h)
//
// invariant: while the thread sleeps, every session's ring says so, and each was looked at after
// that.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "daemon/worker/heap.h"
#include "daemon/worker/lane_counts.h"
#include "daemon/worker/runner.h"
#include "daemon/worker/slab.h"
#include "kernel/base/clock.h"
#include "kernel/base/fd.h"

namespace djinn::worker {

// What the lane's runs take beside sessions' own memory, and what they wait for.
struct LaneMemory {
  Waits& waits;
  Grants& grants;
  Slab& slab;
  GrantedHeap& heap;
};

class LaneLoop {
 public:
  // lane: one of the executor's. broken: called on the lane's thread for a session that broke the
  // protocol, after it was set aside.
  static Result<std::unique_ptr<LaneLoop>> make(
      exec::Executor& executor, exec::Lane& lane, const Clock& clock, const LaneMemory& memory,
      std::function<void(SessionId, const Error&)> broken);
  ~LaneLoop();

  // The state that posted closures work on.
  struct State {
    exec::Lane& lane;
    Waits& waits;
    ProgramTable programs;
    std::map<SessionId, std::unique_ptr<Session>> sessions;
  };
  // Runs job on the lane's thread, between two steps. Any thread.
  void post(std::function<void(State&)> job);
  // Ends a sleep of the lane. Any thread.
  void wake();

  void add_session(std::unique_ptr<Session> session);             // via post
  void remove_session(SessionId id, std::function<void()> done);  // via post; done on lane's thread

  // Gives back what the session's refs do not use; done on lane's thread, also where it is not
  // here.
  void trim_refs(SessionId id, std::function<void()> done);

  // Before start(): called on the lane's thread when a run needs a model that is parked.
  void on_model_wanted(std::function<void(ModelId)> wanted) {
    state_.programs.on_want(std::move(wanted));
  }

  // Starts the thread. pager outlives this.
  void start(SequencePager& pager);
  void stop();

  [[nodiscard]] const LaneCounts& counts() const { return counts_; }

 private:
  LaneLoop(exec::Executor& executor, exec::Lane& lane, const Clock& clock, const LaneMemory& memory,
           Fd epoll, Fd bell, std::function<void(SessionId, const Error&)> broken);
  void work();
  bool run_mailbox();
  bool run_round();
  // It awaits nothing any more; of what it asked for, nobody may want anything.
  void stop_waiting(SessionId id);
  // Gives whether anything was done.
  bool note(Session& session, Runner::Advance advance, uint64_t now_ns);
  [[nodiscard]] bool can_go_on(SessionId id) const;
  void set_aside(SessionId id, const Error& error);
  void erase_session(SessionId id);
  void clear_binders();
  [[nodiscard]] bool prepare_to_sleep();
  void sleep();

  exec::Executor& executor_;
  const Clock& clock_;
  LaneCounts counts_;
  State state_;
  Binder binder_;
  LaneMemory memory_;
  // Sessions that have work and cannot go on now are no reason to stay awake. Whose client does not
  // read completions is looked at in each round; whose step awaits something, when it has arrived.
  std::set<SessionId> blocked_;
  std::unique_ptr<Runner> runner_;
  Fd epoll_;
  Fd bell_;
  std::function<void(SessionId, const Error&)> broken_;
  std::mutex mutex_;
  std::vector<std::function<void(State&)>> mailbox_;
  std::atomic<bool> has_mail_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace djinn::worker
