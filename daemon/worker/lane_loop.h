// SPDX-License-Identifier: Apache-2.0

// LaneLoop: the lane's thread. It owns sessions, programs and the executor's lane; others post to
// it.
//
//   mailbox   what others have it do (mailbox.h), between two steps, or inside a pause
//   look      for sessions that have work: at rings, and for bells of those that are not looked at
//             (rings.h). What cannot begin in time is refused (deadlines.h)
//   turn      a step of the session that the queue picks (kernel/sched/queue.h), and of those that
//             can share it. They are charged for the time: nobody waits for another's generation
//   pause     of a run by itself that has gone on for a slice (slices.h), under the policy fair.
//             Between two of its operators the queue is asked: while it says others, they have
//             their turns inside. One inside that takes too long is abandoned
//   sleep     after a short spin without work
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "daemon/worker/baton.h"
#include "daemon/worker/deadlines.h"
#include "daemon/worker/heap.h"
#include "daemon/worker/lane_counts.h"
#include "daemon/worker/mailbox.h"
#include "daemon/worker/rings.h"
#include "daemon/worker/runner.h"
#include "daemon/worker/slab.h"
#include "daemon/worker/slices.h"
#include "kernel/base/clock.h"
#include "kernel/sched/queue.h"
#include "kernel/sched/step_times.h"

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
  // lane: one of the executor's. policy: of the order of steps. broken: called on the lane's thread
  // for a session that broke the protocol, after it was set aside.
  static Result<std::unique_ptr<LaneLoop>> make(
      exec::Executor& executor, exec::Lane& lane, const Clock& clock, const LaneMemory& memory,
      SchedulePolicy policy, std::function<void(SessionId, const Error&)> broken);
  ~LaneLoop();

  // The state that posted closures work on.
  struct State {
    exec::Lane& lane;
    Waits& waits;
    ProgramTable programs;
    std::map<SessionId, std::unique_ptr<Session>> sessions;
    sched::Queue queue;
  };
  using Group = Mailbox::Group;
  using Subject = Mailbox::Subject;
  // Runs job on the lane's thread, as the mailbox's rule of jobs says, in the order of these calls.
  // Any thread.
  void post(Subject subject, std::function<void(State&)> job);
  void post(std::function<void(State&)> job) { post({}, std::move(job)); }
  // Ends a sleep of the lane. Any thread.
  void wake() { mailbox_.ring(); }

  void add_session(std::unique_ptr<Session> session);             // via post
  void remove_session(SessionId id, std::function<void()> done);  // via post; done on lane's thread

  // Gives back what the session's refs do not use; done on lane's thread, also where it is not
  // here.
  void trim_refs(SessionId id, std::function<void()> done);

  // From then on it takes turns with the device's other workers. page, slot: as Baton::join().
  void join_baton(pal::Mapping page, uint32_t slot);

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
           SchedulePolicy policy, Rings rings, Fd bell,
           std::function<void(SessionId, const Error&)> broken);
  void work();
  Mailbox::Mail run_mailbox();
  [[nodiscard]] bool is_used_aside(const Subject& subject) const;

  // Looks for arrivals and work, where it is time to.
  void look_around(uint64_t now_ns);
  // Queues those of the hot sessions that can go on.
  void look_for_work(uint64_t now_ns);
  Status look_at(Seat& seat, uint64_t now_ns);
  Result<bool> can_go_on(Seat& seat, uint64_t now_ns);
  Status enqueue(Seat& seat, sched::Arrival arrival, uint64_t now_ns);

  bool run_turn();
  uint64_t take_turn(uint64_t now_ns);
  std::vector<SessionId> unit_of(SessionId picked, uint64_t now_ns);
  bool run_unit(const std::vector<SessionId>& unit, uint64_t begun_ns);

  // As Runner::BetweenOperators; the same, of one's parts.
  bool between_operators(Session& session);
  void pass_turn_if_due();
  bool run_jobs_aside();
  bool give_way(Session& session);
  bool run_others(Session& session, std::optional<Runner::Pause>& pause);

  struct StepTime {
    uint64_t begun_ns = 0;
    uint64_t ended_ns = 0;
    uint64_t to_charge_ns = 0;  // what of the time is this session's, beside what was charged
    Slice slice;                // its last one; of a step that was joined a part
  };
  bool end_step(SessionId id, Runner::Advance advance, const StepTime& time);
  Status queue_again(Seat& seat, uint64_t now_ns);

  void take_seat(Session& session);
  // It awaits nothing any more; of what it asked for, nobody may want anything.
  void stop_waiting(SessionId id);
  void set_aside(SessionId id, const Error& error);
  void erase_session(SessionId id);
  void clear_binders();
  void sleep();

  exec::Executor& executor_;
  const Clock& clock_;
  LaneCounts counts_;
  State state_;
  Binder binder_;
  Baton baton_;
  LaneMemory memory_;
  sched::StepTimes times_;
  Mailbox mailbox_;
  Rings rings_;
  Slices slices_;
  bool waits_for_client_ = false;  // before it takes a long step
  std::unique_ptr<Runner> runner_;
  std::optional<Deadlines> deadlines_;  // with the runner
  std::function<void(SessionId, const Error&)> broken_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace djinn::worker
