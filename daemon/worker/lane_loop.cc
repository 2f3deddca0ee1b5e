// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/lane_loop.h"

#include <algorithm>
#include <utility>

#include "ipc/bell.h"
#include "kernel/base/assert.h"
#include "kernel/base/spin.h"
#include "kernel/sched/turns.h"

namespace djinn::worker {
namespace {

// This is longer than a client needs to copy a row of logits and to answer with its next
// submission, and as short as the wake-up of an idle core: a sleeping lane burns nothing, a
// busy one is met awake.
constexpr uint64_t kSpinNs = 40'000;

// Units of the baton that a run has while other workers wait. Whoever comes after it finds cold
// caches, so a run that ends within two is not cut.
constexpr uint32_t kUnitsOfRun = 2;

}  // namespace

Result<std::unique_ptr<LaneLoop>> LaneLoop::make(
    exec::Executor& executor, exec::Lane& lane, const Clock& clock, const LaneMemory& memory,
    SchedulePolicy policy, std::function<void(SessionId, const Error&)> broken) {
  DJINN_TRY(Fd bell, ipc::make_submission_bell());
  DJINN_TRY(Rings rings, Rings::make(clock, bell));
  return std::unique_ptr<LaneLoop>(new LaneLoop(
      executor, lane, clock, memory, policy, std::move(rings), std::move(bell), std::move(broken)));
}

LaneLoop::LaneLoop(exec::Executor& executor, exec::Lane& lane, const Clock& clock,
                   const LaneMemory& memory, SchedulePolicy policy, Rings rings, Fd bell,
                   std::function<void(SessionId, const Error&)> broken)
    : executor_(executor),
      clock_(clock),
      state_{lane, memory.waits, ProgramTable(memory.waits), {}, sched::Queue(policy)},
      binder_(lane),
      baton_(clock),
      memory_(memory),
      mailbox_(std::move(bell)),
      rings_(std::move(rings)),
      slices_(clock, state_.queue),
      broken_(std::move(broken)) {}

LaneLoop::~LaneLoop() {
  stop();
}

void LaneLoop::start(SequencePager& pager) {
  DJINN_ASSERT(!runner_ && !thread_.joinable());
  runner_ = std::make_unique<Runner>(
      LaneTools{executor_, state_.lane, memory_.waits, state_.programs, pager, binder_, clock_,
                memory_.grants},
      clock_, counts_, [this](Session& session) { return between_operators(session); });
  deadlines_.emplace(
      Deadlines::Lane{clock_, *runner_, rings_, slices_, state_.queue, state_.programs, times_});
  thread_ = std::thread([this] { work(); });
}

void LaneLoop::stop() {
  stopping_.store(true);
  wake();
  if (thread_.joinable()) thread_.join();
}

void LaneLoop::post(Subject subject, std::function<void(State&)> job) {
  DJINN_ASSERT(job);
  mailbox_.post(subject, [this, job = std::move(job)] { job(state_); });
}

void LaneLoop::add_session(std::unique_ptr<Session> session) {
  DJINN_ASSERT(session);
  auto shared = std::make_shared<std::unique_ptr<Session>>(std::move(session));
  post([this, shared](State& state) {
    Session& added = **shared;
    added.progression.could_not_begin_before(clock_.monotonic_ns());
    const SessionId id = added.id();
    DJINN_ASSERT(!state.sessions.contains(id));
    const Status watched = rings_.watch(added);
    // The client may have waited since before a former worker's death: the bell makes it look
    // again.
    added.ring_completion_bell();
    state.sessions[id] = std::move(*shared);
    if (!watched) return set_aside(id, watched.error());
    take_seat(added);
  });
}

void LaneLoop::remove_session(SessionId id, std::function<void()> done) {
  post(id, [this, id, done = std::move(done)](State&) {
    erase_session(id);
    done();
  });
}

void LaneLoop::trim_refs(SessionId id, std::function<void()> done) {
  post([this, id, done = std::move(done)](State& state) {
    if (const auto found = state.sessions.find(id); found != state.sessions.end()) {
      clear_binders();
      state.lane.trim();  // outputs may lie in what goes
      found->second->trim_refs();
    }
    done();
  });
}

void LaneLoop::join_baton(pal::Mapping page, uint32_t slot) {
  auto shared = std::make_shared<pal::Mapping>(std::move(page));
  post([this, shared, slot](State&) { baton_.join(std::move(*shared), slot); });
}

// --- the lane's thread

void LaneLoop::work() {
  Spin spin(clock_, kSpinNs);
  bool slept = false;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const bool mail = run_mailbox() != Mailbox::Mail::kNone;
    if (mail) slices_.end_turn();
    const bool worked = run_turn();
    if (!worked) slices_.end_turn();
    if (!mail && !worked) {
      if (baton_.takes_part()) baton_.pass(clock_.monotonic_ns());
      if (spin.wait()) continue;
      if (!state_.queue.has_ready()) {
        sleep();
        slept = true;
      }
    }
    spin.restart();
    if (worked && std::exchange(slept, false)) {
      spin.share_core();
      slices_.end_turn();
    }
  }
}

Mailbox::Mail LaneLoop::run_mailbox() {
  return mailbox_.run([this](const Subject& subject) { return is_used_aside(subject); });
}

bool LaneLoop::is_used_aside(const Subject& subject) const {
  if (!runner_ || !runner_->is_paused()) return false;
  struct Used {
    const Runner& runner;
    const ProgramTable& programs;
    bool operator()(std::monostate) const { return false; }
    bool operator()(SessionId id) const { return runner.is_aside(id); }
    bool operator()(const Group& group) const {
      return runner.is_used_aside(group.session, group.sequence);
    }
    bool operator()(ModelId id) const { return programs.is_used_aside(id); }
    bool operator()(ProgramId id) const { return programs.is_used_aside(id); }
  };
  return std::visit(Used{*runner_, state_.programs}, subject);
}

// Slab and heap are asked for on behalf of all sessions, so those questions are forgotten only if
// nobody else waits.
void LaneLoop::stop_waiting(SessionId id) {
  state_.waits.forget(id);
  memory_.grants.forget(ipc::GrantKind::kRefs, id);
  const bool others_wait =
      std::ranges::any_of(state_.sessions, [](const auto& entry) { return entry.second->waits; });
  if (others_wait) return;
  memory_.slab.forget();
  memory_.heap.forget();
}

// Also of one that a former worker has left in mid-run: what it owes its client comes first.
void LaneLoop::take_seat(Session& session) {
  Seat& seat = rings_.add(session);
  state_.queue.add(session.id(), session.service());
  const Status queued = enqueue(seat, sched::Arrival::kWoke, clock_.monotonic_ns());
  if (!queued) set_aside(session.id(), queued.error());
}

// --- looking

Result<bool> LaneLoop::can_go_on(Seat& seat, uint64_t now_ns) {
  Session& session = *seat.session;
  switch (seat.standing) {
    case Seat::Standing::kQueued:
      return false;  // it does
    case Seat::Standing::kIdle:
      // A client that says nonsense of its completions is found out although it submits nothing.
      DJINN_CHECK(session.ring().free_completions());
      return session.ring().has_submission();
    case Seat::Standing::kBlocked: {
      DJINN_TRY(const bool blocked, Runner::is_blocked(session));
      return !blocked;
    }
    case Seat::Standing::kWaiting:
      return !state_.waits.is_waiting(session.id()) || session.is_cancelled() ||
             seat.is_late(now_ns);
  }
  return false;
}

Status LaneLoop::look_at(Seat& seat, uint64_t now_ns) {
  using enum Seat::Standing;
  if (seat.standing == kQueued && seat.session->is_cancelled()) {
    state_.queue.withdraw(seat.id());  // to end it takes no time
  }
  DJINN_TRY(const bool goes_on, can_go_on(seat, now_ns));
  if (goes_on) {
    const auto arrival = seat.has_rung ? sched::Arrival::kWoke : sched::Arrival::kNext;
    DJINN_CHECK(enqueue(seat, seat.standing == kIdle ? arrival : sched::Arrival::kResumes, now_ns));
  } else if (seat.standing == kIdle || seat.standing == kBlocked) {
    seat.session->progression.could_not_begin_before(now_ns);
  }
  return {};
}

void LaneLoop::look_for_work(uint64_t now_ns) {
  std::vector<std::pair<SessionId, Error>> broken;
  rings_.look(now_ns, [&](Seat& seat) {
    if (const Status looked = look_at(seat, now_ns); !looked) {
      broken.emplace_back(seat.id(), looked.error());
    }
  });
  if (broken.empty()) return;
  std::optional<Runner::Pause> pause;  // what is given up beside a run is not that run's
  if (runner_->is_between_operators() && !runner_->is_paused()) pause.emplace(*runner_);
  for (const auto& [id, error] : broken) set_aside(id, error);
}

void LaneLoop::look_around(uint64_t now_ns) {
  if (state_.waits.has_arrivals()) state_.waits.take_arrivals();
  rings_.hear(now_ns);
  const bool must_look = !state_.queue.has_ready() || std::exchange(waits_for_client_, false);
  if (rings_.is_time_to_look(now_ns, must_look)) look_for_work(now_ns);
}

Status LaneLoop::enqueue(Seat& seat, sched::Arrival arrival, uint64_t now_ns) {
  DJINN_ASSERT(seat.standing != Seat::Standing::kQueued);
  seat.worked_ns = now_ns;
  seat.begin_by_ns = 0;
  // Without a submission it is a look at a session that has just come, or breaks the protocol.
  const Seat::Ahead ahead = seat.look_ahead(state_.programs, times_, clock_);
  const sched::ReadyStep step{
      seat.id(), arrival, seat.predicted_ns, seat.batch.key, Slices::is_long(seat), seat.is_sure};
  if (ahead.worked_out_since_ns != 0) deadlines_->charge(step, ahead.worked_out_since_ns);
  if (ahead.is_submitted) {
    DJINN_TRY(const bool refused, deadlines_->refuse_at_once(seat, step, now_ns));
    if (refused) return {};
  }
  seat.standing = Seat::Standing::kQueued;
  state_.queue.enqueue(step, now_ns);
  return {};
}

// --- turns

// Gives when it has the turn. Who came meanwhile may be before who was there; to judge them is not
// the time of who is picked.
uint64_t LaneLoop::take_turn(uint64_t now_ns) {
  const uint64_t slept_ns = baton_.take(now_ns);
  counts_.note_turn(slept_ns, baton_.overruns());
  if (slept_ns == 0) return now_ns;
  slices_.skip(slept_ns);
  look_around(now_ns + slept_ns);
  return clock_.monotonic_ns();
}

bool LaneLoop::run_turn() {
  uint64_t now_ns = clock_.monotonic_ns();
  slices_.begin_turn(now_ns);
  look_around(now_ns);
  if (sched::is_wait_next(state_.queue, now_ns)) {
    waits_for_client_ = true;
    return false;
  }
  if (!state_.queue.has_ready()) return false;
  now_ns = take_turn(clock_.monotonic_ns());  // nor is it to judge who came before
  const auto turn = sched::next_turn(state_.queue, now_ns);
  if (!turn) return false;
  const bool worked = run_unit(unit_of(turn->session, now_ns), now_ns);
  if (baton_.is_due(1)) baton_.pass(clock_.monotonic_ns());
  return worked;
}

// Gives the picked one and those that share its step, as many as are computed at once, always in
// the same order, so that each finds its place in the lane's memory as it left it.
std::vector<SessionId> LaneLoop::unit_of(SessionId picked, uint64_t now_ns) {
  const StepBatch& batch = rings_.at(picked).batch;
  uint32_t rows = batch.rows;
  const auto takes = [&](SessionId id) {
    const uint32_t more = rings_.at(id).batch.rows;
    DJINN_ASSERT(more > 0);
    if (rows + more > limits::kRows) return false;
    rows += more;
    return true;
  };
  auto unit = sched::unit_of(state_.queue, picked, batch.key, now_ns, takes);
  std::ranges::sort(unit);
  return unit;
}

bool LaneLoop::run_unit(const std::vector<SessionId>& unit, uint64_t begun_ns) {
  bool worked = false;
  uint64_t shared_ns = 0, shared_turn_ns = 0;
  for (const SessionId id : unit) {
    Seat& seat = rings_.at(id);
    const auto place = runner_->is_paused() ? Slices::Place::kInside : Slices::Place::kOutside;
    const Slice aside = slices_.begin(seat, begun_ns, place);
    const auto advance =
        runner_->advance(*seat.session, unit.size() > 1 ? seat.batch : StepBatch());
    const uint64_t ended_ns = clock_.monotonic_ns();
    const Slice slice = slices_.end(aside, ended_ns);
    if (!advance) {
      set_aside(id, advance.error());
    } else if (*advance == Runner::Advance::kJoins) {
      shared_ns += ended_ns - slice.since_ns;
      shared_turn_ns += slice.turn_ns;
    } else {
      if (*advance == Runner::Advance::kWaiting) state_.waits.suspend(id);
      worked |= end_step(id, *advance, {begun_ns, ended_ns, ended_ns - slice.since_ns, slice});
    }
    begun_ns = clock_.monotonic_ns();
  }
  struct Ended {
    SessionId id;
    Runner::Advance advance;
    uint32_t rows;
  };
  std::vector<Ended> ended;
  uint32_t all_rows = 0;
  if (runner_->has_joined()) {
    runner_->end_joined([&](Session& session, Runner::Advance advance) {
      // At once: what the next one awaits takes the place of what this one does.
      if (advance == Runner::Advance::kWaiting) state_.waits.suspend(session.id());
      const uint32_t rows = rings_.at(session.id()).batch.rows;
      ended.push_back({session.id(), advance, rows});
      all_rows += rows;
    });
  }
  state_.programs.end_step();
  const uint64_t ended_ns = clock_.monotonic_ns();
  shared_ns += ended_ns - begun_ns;
  if (!ended.empty()) {
    slices_.end_turn();
    slices_.begin_turn(ended_ns);
  }
  for (const auto& [id, advance, rows] : ended) {
    Slice part;
    part.turn_ns = shared_turn_ns * rows / all_rows;
    worked |= end_step(id, advance, {begun_ns, ended_ns, shared_ns * rows / all_rows, part});
  }
  return worked;
}

// --- pauses

bool LaneLoop::between_operators(Session& session) {
  if (stopping_.load(std::memory_order_relaxed)) return false;
  if (runner_->is_paused()) return slices_.goes_on_inside();
  pass_turn_if_due();
  if (mailbox_.has_mail() && !run_jobs_aside()) return false;
  const uint64_t now_ns = clock_.monotonic_ns();
  if (!slices_.is_over(now_ns)) return true;
  if (state_.queue.policy() == SchedulePolicy::kFifo) {
    look_around(now_ns);  // who comes and cannot begin in time is told
    slices_.extend(now_ns);
    return true;
  }
  slices_.charge_units(session.id(), now_ns);
  look_around(now_ns);
  slices_.let_in_who_waited(rings_, now_ns);
  const auto next = sched::after_slice(state_.queue);
  if (next == sched::AfterSlice::kGivesWay) return give_way(session);
  return next == sched::AfterSlice::kGoesOn;
}

// Others' turns are nobody's time.
void LaneLoop::pass_turn_if_due() {
  const uint64_t slept_ns = baton_.pass_if_due(kUnitsOfRun);
  if (slept_ns == 0) return;
  counts_.note_turn(slept_ns, baton_.overruns());
  slices_.skip(slept_ns);
}

// Jobs are nobody's time.
bool LaneLoop::run_jobs_aside() {
  const uint64_t begun_ns = clock_.monotonic_ns();
  const Runner::Pause pause(*runner_);
  const bool waits = run_mailbox() == Mailbox::Mail::kWaits;
  slices_.skip(clock_.monotonic_ns() - begun_ns);
  return !waits;
}

bool LaneLoop::give_way(Session& session) {
  slices_.charge(session.id(), clock_.monotonic_ns());
  state_.queue.end_slice(session.id());
  std::optional<Runner::Pause> pause;
  const bool goes_on = run_others(session, pause);
  pause.reset();
  slices_.begin_next(clock_.monotonic_ns());
  return goes_on;
}

// Until it is the session's turn, or its run is to end or to be abandoned.
bool LaneLoop::run_others(Session& session, std::optional<Runner::Pause>& pause) {
  sched::Queue& queue = state_.queue;
  Spin spin(clock_, kSpinNs);
  bool goes_on = true;
  while (!session.is_cancelled()) {
    goes_on = !stopping_.load(std::memory_order_relaxed);
    if (goes_on && mailbox_.has_mail()) {
      if (!pause) pause.emplace(*runner_);
      goes_on = run_mailbox() != Mailbox::Mail::kWaits;
      slices_.end_turn();
    }
    if (!goes_on) break;
    const uint64_t now_ns = clock_.monotonic_ns();
    slices_.begin_turn(now_ns);
    look_around(now_ns);
    if (sched::is_wait_next(queue, now_ns)) {
      slices_.end_turn();
      waits_for_client_ = true;
      if (!spin.wait()) spin.restart();
      continue;
    }
    const uint64_t picked_ns = clock_.monotonic_ns();
    const auto turn = sched::next_turn(queue, picked_ns);
    DJINN_ASSERT(turn);  // the session's run is ready, if nobody else is
    if (turn->kind != sched::TurnKind::kStep) return turn->kind == sched::TurnKind::kSlice;
    if (!pause) pause.emplace(*runner_);
    run_unit(unit_of(turn->session, picked_ns), picked_ns);
    const uint64_t slept_ns = baton_.pass_if_due(1);
    counts_.note_turn(slept_ns, baton_.overruns());
    slices_.skip(slept_ns);
  }
  queue.resume(session.id(), clock_.monotonic_ns());
  return goes_on;
}

// --- the end of a step

// Gives whether anything was done.
bool LaneLoop::end_step(SessionId id, Runner::Advance advance, const StepTime& time) {
  Seat& seat = rings_.at(id);
  state_.queue.charge(id, time.to_charge_ns, time.ended_ns);
  seat.worked_ns = time.ended_ns;
  seat.note(advance, time.begun_ns);
  const uint64_t took_ns = time.slice.charged_ns + time.to_charge_ns - time.slice.turn_ns;
  if (advance == Runner::Advance::kAbandoned) {
    if (runner_->is_paused()) Slices::note_abandoned(seat, time.slice);
    if (took_ns > seat.predicted_ns) times_.note(seat.kind.number, took_ns);
    if (const Status queued = enqueue(seat, sched::Arrival::kAgain, time.ended_ns); !queued) {
      set_aside(id, queued.error());
    }
    return true;
  }
  const bool waited = advance == Runner::Advance::kWaited;
  if (!waited && advance != Runner::Advance::kWorked) return false;
  slices_.note_done(seat, time.slice);
  if (seat.session->was_token) seat.token_kind = seat.kind.number;
  times_.note(seat.kind.number, took_ns);
  if (waited) stop_waiting(id);
  if (const Status queued = queue_again(seat, time.ended_ns); !queued)
    set_aside(id, queued.error());
  return true;
}

// After a step that ended.
Status LaneLoop::queue_again(Seat& seat, uint64_t now_ns) {
  Session& session = *seat.session;
  // What its client says of the ring meanwhile does not matter to a submission that was picked up.
  const bool goes_on = session.progression.begun_ns != 0;
  if (!goes_on) {
    DJINN_TRY(const bool submitted, session.ring().has_submission());
    if (!submitted) return {};
  }
  return enqueue(seat, goes_on ? sched::Arrival::kGoesOn : sched::Arrival::kNext, now_ns);
}

void LaneLoop::clear_binders() {
  if (!runner_ || !runner_->is_paused()) binder_.clear();
  if (runner_ && !runner_->has_joined()) runner_->clear();
}

// Also gives back what the lane's heap keeps for its next run.
void LaneLoop::erase_session(SessionId id) {
  DJINN_ASSERT(!runner_ || !runner_->is_aside(id));
  DJINN_ASSERT(!runner_ || !runner_->is_between_operators() || runner_->is_paused());
  clear_binders();
  state_.lane.trim();  // outputs may lie in the session's memory
  if (const auto found = state_.sessions.find(id); found != state_.sessions.end()) {
    rings_.unwatch(*found->second);
    state_.sessions.erase(found);
  }
  rings_.remove(id);
  state_.queue.remove(id);
  stop_waiting(id);
}

void LaneLoop::set_aside(SessionId id, const Error& error) {
  erase_session(id);
  broken_(id, error);
}

// Of what others say and ring for, the ring may have been heard while there was work.
void LaneLoop::sleep() {
  const bool quiet = rings_.prepare_to_sleep() && !stopping_.load(std::memory_order_acquire) &&
                     !mailbox_.has_mail() && !state_.waits.has_arrivals();
  if (quiet) rings_.sleep();
  rings_.finish_sleep();
}

}  // namespace djinn::worker
