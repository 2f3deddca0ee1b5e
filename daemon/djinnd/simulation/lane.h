// SPDX-License-Identifier: Apache-2.0

// Lane: of a simulated worker. The scheduler's queue says whose step is next, and is asked as by a
// real lane (daemon/worker/lane_loop.h). Nothing is computed, but time passes: what a step takes,
// what it is predicted to take, and what it can share or be paused for, is the seed's.
//
//   now      the lane's own time. It comes to the machine's whenever the worker looks after it: a
//            session that submits meanwhile is found then
//   unit     the sessions whose step is computed: one, or several that share it
//   aside    the session whose run is paused, while others' steps are computed inside
//   queued   of a seat: its session has a step, and is not picked
//   due      what a ready session's weight says that it should have had while others had time
//
// It judges the queue by what it knows itself:
//
//   pick     is of a session that is ready; of the class idle only while no other is ready; of fifo
//            who came first; and somebody is picked if somebody is ready
//   share    whoever is ready is due no more than two of the longest steps, or units, since it is;
//            its virtual time is no farther from that of its kind than four of them
//   time     no session's virtual time goes back; by four of them at most where it has long runs:
//            whoever was held is where it was beside the others, of whom some are others now
//   account  there is one for each session that is here, and no other
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/djinnd/simulation/attached_session.h"
#include "kernel/base/ids.h"
#include "kernel/base/schedule.h"
#include "kernel/sched/forecast.h"
#include "kernel/sched/queue.h"
#include "kernel/sched/turns.h"

namespace djinn::daemon::simulation {

class Machine;

class Lane {
 public:
  explicit Lane(Machine& machine);

  // Also of a session that a former worker has left in mid-run. session: stays where it is until
  // remove(). is_refused: its submission in flight is to fail.
  void add(SessionId id, ServiceClass service, AttachedSession& session, bool is_refused);
  // Of one that is not here: nothing.
  void remove(SessionId id);
  // Until the machine's time.
  void run();

  [[nodiscard]] bool has_work() const;
  // What did not hold, if anything did not.
  [[nodiscard]] const std::optional<std::string>& wrong() const { return wrong_; }

 private:
  struct Seat {
    AttachedSession* session = nullptr;
    ServiceClass service = ServiceClass::kNormal;
    bool is_queued = false;
    bool is_refused = false;  // of the submission that is begun
    uint64_t steps = 0;       // of the submission, behind the one that is queued or picked
    // The step that is queued or picked.
    sched::ReadyStep step;
    uint64_t whole_ns = 0;
    uint64_t left_ns = 0;
    bool can_be_paused = false;
    uint32_t tries_inside = 0;  // it was abandoned so often
    uint64_t came = 0;          // the how-manieth submission it is of
    int64_t due_ns = 0;         // since it is ready
    int64_t virtual_ns = 0;     // when it was looked at last
    bool was_long = false;      // likewise: its step could be paused
  };

  void look();
  void find_submission(Seat& seat, sched::Arrival arrival);
  // Gives whether it was foreseen to begin too late, and was ended.
  bool is_refused_at_once(Seat& seat);
  [[nodiscard]] sched::Backlog backlog_of(SessionId id);
  void begin_submission(Seat& seat);
  void next_step(Seat& seat);
  void enqueue(Seat& seat, sched::Arrival arrival);
  void cancel(Seat& seat);

  // Nobody's step is computed: what is to happen now. False: there is nothing.
  bool take_turn();
  [[nodiscard]] bool has_ended_aside();
  void begin(const sched::Turn& turn);
  void compute(uint64_t end_ns);
  void pass(uint64_t ns);
  void note_due(uint64_t ns);
  void end_slice(Seat& seat);
  void give_up(Seat& seat);
  void end_unit();
  void end_step(Seat& seat);

  void fail(const std::string& what);
  [[nodiscard]] bool is_ready(const Seat& seat) const;
  void check_pick(const Seat& seat);
  void check();
  void check_shares();

  Machine& machine_;
  sched::Queue queue_;
  uint64_t now_ns_;
  std::map<SessionId, Seat> seats_;
  std::vector<SessionId> unit_;
  uint64_t ends_ns_ = 0;   // the unit's step is not paused or abandoned before
  uint64_t spent_ns_ = 0;  // on it, and not charged
  uint64_t arrivals_ = 0;
  uint64_t longest_ns_ = 0;  // that anybody was computed without a pause
  std::optional<std::string> wrong_;
};

}  // namespace djinn::daemon::simulation
