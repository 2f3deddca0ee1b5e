// SPDX-License-Identifier: Apache-2.0

// Slices: for how long a step that is computed by itself goes on before its lane asks the queue
// again, and what of its time is its session's.
//
//   slice     of a run outside of a pause: a unit, or what the queue says (kernel/sched/queue.h)
//   inside    a pause a step has a time at its first try, and twice as much at each after that. One
//             that takes longer is abandoned. Time that others on the machine had is not counted
//             against it: when its time is over it has as much of the processor
//   long      likely to take longer than a step may inside: it is held while a run has slices. A
//             host on which others compute makes short ones look long, so what is held for many
//             times as long as it may take inside is begun there all the same
//   truly     long is what took so long of the processor: it waits until the run with slices ends
//   turn      what the lane does from the end of one step to the begin of the next, to end the one
//             and to find the other, is the next one's time: of a run that takes microseconds it is
//             as much as the step. Unless the lane had nothing to do, or did what is nobody's
#pragma once

#include <cstdint>

#include "daemon/worker/rings.h"
#include "daemon/worker/seat.h"
#include "kernel/base/clock.h"
#include "kernel/sched/queue.h"

namespace djinn::worker {

// Of a step that is computed by itself.
struct Slice {
  uint64_t since_ns = 0;       // from when on it was not charged
  uint64_t charged_ns = 0;     // before that
  uint64_t turn_ns = 0;        // of its turn, before it began; counted as the step's
  uint64_t ends_ns = 0;        // a run is not paused before; inside a pause: not abandoned
  uint64_t cpu_ends_ns = 0;    // inside a pause, after ends_ns: nor before, in the thread's time
  uint64_t cpu_inside_ns = 0;  // how much that is
  uint64_t cpu_begun_ns = 0;   // of a step that is held while another has slices; else 0
  bool has_run_out = false;    // inside a pause
};

// Lane's thread.
class Slices {
 public:
  Slices(const Clock& clock, sched::Queue& queue) : clock_(clock), queue_(queue) {}

  // It is likely to take longer than a step may inside a pause.
  [[nodiscard]] static bool is_long(const Seat& seat);

  // --- between two steps
  // Behind a step this changes nothing: its end was the turn's begin.
  void begin_turn(uint64_t now_ns);
  // What the lane did in this turn is nobody's.
  void end_turn() { turn_since_ns_ = 0; }

  // --- around a step
  enum class Place { kOutside, kInside };  // of a pause
  // Its first slice begins. Gives that of the step that is set aside, for end().
  [[nodiscard]] Slice begin(const Seat& seat, uint64_t begun_ns, Place place);
  // Gives its last one.
  Slice end(const Slice& aside, uint64_t ended_ns);
  // That step was abandoned inside a pause. What ran out of all the time that there is inside is
  // long; what did not is begun there again, also where it lacked memory that the run which is set
  // aside may have.
  static void note_abandoned(Seat& seat, const Slice& slice);
  // Or has come to its end.
  void note_done(Seat& seat, const Slice& slice) const;

  // --- between two operators of the step that is being computed
  // Of its run so much was charged since it began.
  [[nodiscard]] uint64_t charged_ns() const { return slice_.charged_ns; }
  // Its session, or in a turn whose is next, has nothing to do with so much of the time.
  void skip(uint64_t took_ns);
  [[nodiscard]] bool is_over(uint64_t now_ns) const { return now_ns >= slice_.ends_ns; }
  // Under fifo a run goes on: when to ask again who has come.
  void extend(uint64_t now_ns) { slice_.ends_ns = now_ns + sched::kUnitNs; }
  // The run has slices from now on, and was charged for all but a part of a unit.
  void charge_units(SessionId session, uint64_t now_ns);
  // It is charged for all.
  void charge(SessionId session, uint64_t now_ns);
  // After a pause.
  void begin_next(uint64_t now_ns);
  // Inside a pause: the step is not to be abandoned yet.
  bool goes_on_inside();
  // What was held for too long is not held any more.
  void let_in_who_waited(const Rings& rings, uint64_t now_ns);

 private:
  const Clock& clock_;
  sched::Queue& queue_;
  Slice slice_;
  uint64_t turn_since_ns_ = 0;  // 0: there is none, or what was done in it is nobody's
};

}  // namespace djinn::worker
