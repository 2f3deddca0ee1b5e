// SPDX-License-Identifier: Apache-2.0

// LaneLoop: the lane's thread. It owns sessions, programs and the executor's lane; others post to
// it.
//
//   mailbox   closures from the control thread and wake-ups from the pager, run between steps, or
//             between two operators of a run, which is set aside meanwhile
//   look      for sessions that have work: often at those that had some lately (hot), two loads a
//             ring, no call. The rings of the others (cold) say that the lane sleeps: they ring,
//             and now and then one call asks for all bells. So idle clients cost a step nothing,
//             however many there are
//   turn      a step of the session that the queue picks (kernel/sched/queue.h), and of those that
//             can share it. They are charged for the time: nobody waits for another's generation
//   slice     of a run by itself that has gone on for a unit, under the policy fair. Between two of
//             its operators the queue is asked: while it says others, the run is paused, and they
//             have their turns inside. A run that is predicted to be long is held meanwhile, and
//             one that is nevertheless is abandoned. What is held for many times as long as it may
//             take inside is begun there all the same, each time for longer, so that only what
//             truly is long waits until the run with slices has ended
//   deadline  a submission may say when it is to have begun. Found, it is refused at once if the
//             queue foresees that it will not have (kernel/sched/forecast.h), or if it is behind
//             too many; and when its turn comes, or while it waits for memory, if that has passed.
//             What it takes to judge that is the session's time, as its steps are
//   sleep     after a short spin without work: on all submission bells and the mailbox's, at once;
//             none of them is read, since clients have theirs, too (ipc/bell.h)
//
// The rule of jobs: what lets go of something says of what (Subject). If the run that is set aside
// uses that, it is abandoned, and done again after the job (ARCHITECTURE rule 10); every other job
// runs while it is set aside.
//
// invariant: while the thread sleeps, every session's ring says so, and each was looked at after
// that. Of a cold session both are so whatever the thread does.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "daemon/worker/baton.h"
#include "daemon/worker/heap.h"
#include "daemon/worker/lane_counts.h"
#include "daemon/worker/runner.h"
#include "daemon/worker/slab.h"
#include "daemon/worker/step_kind.h"
#include "kernel/base/clock.h"
#include "kernel/base/fd.h"
#include "kernel/sched/forecast.h"
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
  struct Group {
    SessionId session;
    SequenceHandle sequence;
  };
  // What a job lets go of, if anything: no run may be in the midst of using it.
  using Subject = std::variant<std::monostate, SessionId, Group, ModelId, ProgramId>;
  // Runs job on the lane's thread, as the rule of jobs says, in the order of these calls. Any
  // thread.
  void post(Subject subject, std::function<void(State&)> job);
  void post(std::function<void(State&)> job) { post({}, std::move(job)); }
  // Ends a sleep of the lane. Any thread.
  void wake();

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
  // What a session is to the lane.
  //
  // invariant: kQueued == its account in the queue is ready, or picked in this turn
  enum class Standing : uint8_t {
    kIdle,     // nothing is submitted
    kQueued,   // it has work
    kBlocked,  // until its client reads completions
    kWaiting,  // for what its step awaits
  };
  struct Seat {
    Session* session = nullptr;
    Standing standing = Standing::kIdle;
    bool is_cold = false;       // its ring is not looked at before it has rung
    bool has_rung = false;      // it was cold until then, and was not looked at since
    uint64_t worked_ns = 0;     // when it had work last
    StepKind kind;              // of the step that is queued
    StepBatch batch;            // likewise
    uint64_t predicted_ns = 0;  // likewise
    bool is_sure = false;       // of that
    uint64_t token_kind = 0;    // of its runs that made a token; 0: it had none
    uint64_t long_kind = 0;     // of its last one that took kLongNs of the processor; 0: none did
    bool is_held_back = false;  // of the step that is queued: it was abandoned inside a pause
    uint32_t tries_inside = 0;  // likewise: how often for its time
    uint64_t begin_by_ns = 0;   // of the submission that waits, and has not begun; 0: none does
    uint32_t refusals = 0;      // of its submissions with deadlines, since one was in time
    // Behind the step that is queued, once somebody has asked: to tell takes reading the block.
    std::optional<StepsBehind> behind;
  };
  // Of a step that is computed by itself.
  struct Slice {
    uint64_t since_ns = 0;       // from when on it was not charged
    uint64_t charged_ns = 0;     // before that
    uint64_t ends_ns = 0;        // a run is not paused before; inside a pause: not abandoned
    uint64_t cpu_ends_ns = 0;    // inside a pause, after ends_ns: nor before, in the thread's time
    uint64_t cpu_inside_ns = 0;  // how much that is
    uint64_t cpu_begun_ns = 0;   // of a step that is held while another has slices; else 0
    bool has_run_out = false;    // inside a pause
  };
  struct Job {
    Subject subject;
    std::function<void(State&)> run;
  };

  LaneLoop(exec::Executor& executor, exec::Lane& lane, const Clock& clock, const LaneMemory& memory,
           SchedulePolicy policy, Fd epoll, Fd bell,
           std::function<void(SessionId, const Error&)> broken);
  void work();
  // What became of the mailbox: it was empty, all is done, or a job waits for the run aside to go.
  enum class Mail { kNone, kDone, kWaits };
  Mail run_mailbox();
  [[nodiscard]] bool is_used_aside(const Subject& subject) const;
  bool run_turn();
  // Looks for arrivals and work, where it is time to.
  void look_around(uint64_t now_ns);
  void listen(int wait_ms);
  void take_seat(Session& session);
  // Queues those of the hot sessions that can go on.
  void look_for_work(uint64_t now_ns);
  Status look_at(Seat& seat, uint64_t now_ns);
  Result<bool> can_go_on(Seat& seat, uint64_t now_ns);
  [[nodiscard]] static bool is_late(const Seat& seat, uint64_t now_ns) {
    return seat.begin_by_ns != 0 && now_ns > seat.begin_by_ns;
  }
  // Gives whether the session is one of the cold ones now.
  [[nodiscard]] static bool cools(Seat& seat, uint64_t now_ns);
  Status enqueue(Seat& seat, sched::Arrival arrival, uint64_t now_ns);
  // Ends a submission that has just come and cannot begin in time; gives whether it did.
  Result<bool> refuse_at_once(Seat& seat, const sched::ReadyStep& step, uint64_t now_ns);
  Result<bool> judge(Seat& seat, const sched::ReadyStep& step, uint64_t now_ns);
  std::optional<Error> why_not_in_time(const sched::ReadyStep& step, uint64_t begin_by_ns,
                                       uint64_t now_ns);
  [[nodiscard]] sched::Backlog backlog_of(SessionId id);
  uint64_t count_queued();
  struct StepTime {
    uint64_t begun_ns = 0;
    uint64_t ended_ns = 0;
    uint64_t to_charge_ns = 0;  // what of the time is this session's, beside what was charged
    Slice slice;                // its last one; of a step that was joined none
  };
  std::vector<SessionId> unit_of(SessionId picked, uint64_t now_ns);
  bool run_unit(const std::vector<SessionId>& unit, uint64_t begun_ns);
  [[nodiscard]] Slice slice_of(const Seat& seat, uint64_t begun_ns) const;
  [[nodiscard]] static bool is_long(const Seat& seat);
  [[nodiscard]] static uint64_t inside_ns(const Seat& seat);
  bool goes_on_inside();
  void let_in_who_waited(uint64_t now_ns);
  // As Runner::BetweenOperators; the same, of one's parts.
  bool between_operators(Session& session);
  uint64_t take_turn(uint64_t now_ns);
  void pass_turn_if_due();
  bool run_jobs_aside();
  void charge_slice(SessionId id, uint64_t now_ns);
  bool give_way(Session& session);
  bool run_others(Session& session, std::optional<Runner::Pause>& pause);
  void hold_back(Seat& seat, const StepTime& time);
  bool end_step(SessionId id, Runner::Advance advance, const StepTime& time);
  void note(Seat& seat, Runner::Advance advance, uint64_t begun_ns);
  Status queue_again(Seat& seat, uint64_t now_ns);
  // It awaits nothing any more; of what it asked for, nobody may want anything.
  void stop_waiting(SessionId id);
  void set_aside(SessionId id, const Error& error);
  void erase_session(SessionId id);
  void clear_binders();
  [[nodiscard]] bool prepare_to_sleep();
  [[nodiscard]] int sleep_ms_max() const;
  void sleep();

  exec::Executor& executor_;
  const Clock& clock_;
  LaneCounts counts_;
  State state_;
  Binder binder_;
  Baton baton_;
  LaneMemory memory_;
  sched::StepTimes times_;
  Slice slice_;                      // of the step that is being computed
  std::map<SessionId, Seat> seats_;  // of each session
  // invariant: those seats that are not cold; the cold ones are idle, and their rings sleep
  std::vector<Seat*> hot_;
  bool waits_for_client_ = false;  // before it takes a long step
  uint64_t looked_ns_ = 0;         // when, at all of those
  uint64_t listened_ns_ = 0;       // when, to the bells of the others
  std::unique_ptr<Runner> runner_;
  Fd epoll_;
  Fd bell_;
  std::function<void(SessionId, const Error&)> broken_;
  std::mutex mutex_;
  std::vector<Job> mailbox_;
  std::atomic<bool> has_mail_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace djinn::worker
