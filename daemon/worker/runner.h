// SPDX-License-Identifier: Apache-2.0

// Runner: executes a session's submissions, one step at a time, and publishes what was committed.
//
//   pick up     copy the submission and its block, once, into the state extent
//   begin       mark the step as running
//   operation   validate, compute, stage (operations.h, generation.h)
//   commit      one word makes it real; a failed step is rolled back first, and commits its error
//   publish     tell the client; repeated after a crash between commit and here
//   pause       between two operators of a run its step is set aside, and others' are done
//   meanwhile.
//               A step inside a pause is not paused; where it lacks memory, it may be for what is
//               set aside, so it is done again outside of a pause
//   abandon     a step is rolled back between two operators, to be done again
//   join        token steps of several sessions with one program of fast numerics, of generations
//               and runs alike, are begun one by one, computed together, and committed one by one.
//               One that turns out to be another step than its client had said is abandoned
//
// Lane's thread only.
#pragma once

#include <deque>
#include <functional>
#include <variant>
#include <vector>

#include "daemon/worker/generation.h"
#include "daemon/worker/lane_counts.h"
#include "daemon/worker/operations.h"
#include "daemon/worker/step_kind.h"
#include "kernel/base/clock.h"

namespace djinn::worker {

class Runner {
 public:
  // Asked between two operators of a run that is computed by itself and is no token step beyond the
  // first of a generation: false abandons its step. Others' steps may be done meanwhile, while a
  // Pause lives.
  using BetweenOperators = std::function<bool(Session& session)>;

  Runner(LaneTools tools, const Clock& clock, LaneCounts& counts, BetweenOperators between = {})
      : tools_(tools), clock_(clock), counts_(counts), between_(std::move(between)) {}

  enum class Advance {
    kIdle,       // nothing is submitted
    kWorked,     // a step was done
    kWaited,     // likewise, after it had waited: it awaits nothing any more
    kBlocked,    // until the client reads completions; it rings then
    kWaiting,    // for what the step awaits (waits.h)
    kJoins,      // its step has begun, and end_joined() ends it
    kAbandoned,  // its step was rolled back, and is to be done again
  };
  // Whether a step has no room for what it publishes; then the client rings when there is more. An
  // Error means that the client broke the protocol.
  static Result<bool> is_blocked(Session& session);
  // One step of the session. An Error means that the client broke the protocol. unit: what
  // NextStep::batch() said of the session, where others' steps of that key may come before
  // end_joined(), which is called before anything else is done to a session that has joined. No
  // step is set aside then. None: the step is computed by itself.
  Result<Advance> advance(Session& session, const StepBatch& unit = {});

  // Sets the step that asks aside. Precondition: it is not inside a pause.
  class Pause {
   public:
    explicit Pause(Runner& runner);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Runner& runner_;
    Grants::NoTrial no_trial_;
  };
  [[nodiscard]] bool is_paused() const { return aside_ != nullptr; }
  // Whether a step is computing and asks what is to be done meanwhile.
  [[nodiscard]] bool is_between_operators() const { return asks_ != nullptr; }
  // Whether that step is the session's.
  [[nodiscard]] bool is_asking(SessionId session) const;
  // Whether the step that is set aside is the session's; whether it has bound that group of its.
  [[nodiscard]] bool is_aside(SessionId session) const;
  [[nodiscard]] bool is_used_aside(SessionId session, SequenceHandle sequence) const;

  // How the step of a session that had joined ended, as advance() says.
  using OnEnd = std::function<void(Session& session, Advance advance)>;
  void end_joined(const OnEnd& on_end);
  [[nodiscard]] bool has_joined() const { return !joined_.empty(); }

  // Gives back what inputs of joined steps, and of those inside pauses, were copied to.
  // Precondition: none has joined.
  void clear();

 private:
  // A step between its beginning and its commit.
  struct Begun {
    Step step;
    gc::StepRecord record;
    bool waited = false;
    bool is_abandoned = false;
  };
  // What a step computes: of a generation; of a run.
  using Bound = std::variant<TokenRun, ProgramRun>;
  struct Joined {
    Begun begun;
    Binder* binder;
    Bound bound;
  };

  [[nodiscard]] bool may_join(const Begun& begun, const StepBatch& unit) const;
  Outcome<Bound> bind(Begun& begun, Binder& binder);
  Outcome<Ending> compute(Begun& begun, const Binder& binder, const Bound& bound);
  Outcome<Ending> finish(Begun& begun, const Bound& bound,
                         std::span<const exec::OutputView> outputs);
  Result<Advance> join(Begun begun);
  [[nodiscard]] uint64_t copied_bytes() const;
  std::vector<bool> compute_joined();
  [[nodiscard]] LaneTools& tools() { return aside_ != nullptr ? inner_tools_ : tools_; }
  void refuse_if_late(const Begun& begun);
  void watch(Begun& begun);
  std::function<bool(std::string_view)> pulse_of(Begun& begun);
  bool goes_on(Begun& begun, std::string_view op);
  void settle_lane(const Outcome<Ending>& ending);
  [[nodiscard]] bool is_to_abandon(const Begun& begun, const Outcome<Ending>& ending) const;
  Advance end(Begun& begun, const Outcome<Ending>& ending, uint64_t begun_before);
  Status pick_up(Session& session);
  void count(Step& step, const gc::StepRecord& record);
  void count_for_session(const Step& step, const gc::StepRecord& record);
  Error give_up(Step& step);
  Outcome<Ending> perform(Step& step, gc::StepRecord& record);
  void commit(Step& step, gc::StepRecord record);
  void fail(Step& step, gc::StepRecord record, const Error& error);
  void publish(Session& session);
  static void give_up_for_now(Begun& begun);

  LaneTools tools_;
  const Clock& clock_;
  LaneCounts& counts_;
  BetweenOperators between_;
  Begun* asks_ = nullptr;             // the step that is between two operators
  Begun* aside_ = nullptr;            // that is set aside
  Binder inner_binder_{tools_.lane};  // of steps inside a pause
  LaneTools inner_tools_{tools_.executor, tools_.lane,   tools_.waits, tools_.programs,
                         tools_.pager,    inner_binder_, tools_.clock, tools_.grants};
  std::deque<Binder> binders_;  // of joined steps, in their order
  std::vector<Joined> joined_;
  uint64_t plan_misses_ = 0;  // of the lane, when its session was last told
};

}  // namespace djinn::worker
