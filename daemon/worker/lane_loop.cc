// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/lane_loop.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ipc/bell.h"
#include "ipc/spin.h"
#include "kernel/base/assert.h"
#include "kernel/base/units.h"

namespace djinn::worker {
namespace {

// This is longer than a client needs to copy a row of logits and to answer with its next
// submission, and as short as the wake-up of an idle core: a sleeping lane burns nothing, a
// busy one is met awake.
constexpr uint64_t kSpinNs = 40'000;

// A session that had work within so long is hot. Looking at a ring takes some 10 ns, or 100 where
// its lines have left the caches. While there is work to do, those of hot sessions are looked at so
// often at most, and one call asks for the bells of all others: whoever submits is found within a
// moment that nobody feels, and what that costs does not grow with those that do not.
constexpr uint64_t kHotNs = 1'000'000;
constexpr uint64_t kLookNs = 20'000;
constexpr uint64_t kListenNs = 100'000;
constexpr uint64_t kMailboxKey = 0;   // no session has id 0
constexpr size_t kEventsAtOnce = 64;  // those beyond are heard next time

// A step that is begun inside a pause has so much time at most at its first try, and a unit of the
// processor behind that. One that is likely to take longer is held; if it waits for too long, it
// has what it is likely to take, up to what makes a step long for certain.
constexpr uint64_t kInsideNsMax = 3 * sched::kUnitNs;
constexpr uint64_t kLongNs = 8 * sched::kUnitNs;
// After so many tries it has kLongNs of the processor.
constexpr uint32_t kTriesInsideMax = 3;
static_assert(sched::kUnitNs << kTriesInsideMax == kLongNs);
// What is held has waited for so many times the time that it has inside, when it is let in.
constexpr uint64_t kPatience = 16;
// Units of the baton that a run has while other workers wait. Whoever comes after it finds cold
// caches, so a run that ends within two is not cut.
constexpr uint32_t kUnitsOfRun = 2;
// Without a deadline a submission waits in its session's ring, which takes as many, and its client
// for room there. Of each session one step is in the queue.
static_assert(limits::kSubmissionSlots <= limits::kQueuedSubmissions);
static_assert(limits::kSessionsPerUser <= limits::kQueuedSubmissions);
// A client that submits again whatever it is told, and owes more than others have by now, is told
// in its turn.
constexpr uint32_t kJudgedInARow = 8;

}  // namespace

Result<std::unique_ptr<LaneLoop>> LaneLoop::make(
    exec::Executor& executor, exec::Lane& lane, const Clock& clock, const LaneMemory& memory,
    SchedulePolicy policy, std::function<void(SessionId, const Error&)> broken) {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return system_error("make the lane's epoll instance", errno);
  DJINN_TRY(Fd bell, ipc::make_submission_bell());
  DJINN_CHECK(ipc::watch_submission_bell(epoll, bell, kMailboxKey));
  return std::unique_ptr<LaneLoop>(new LaneLoop(
      executor, lane, clock, memory, policy, std::move(epoll), std::move(bell), std::move(broken)));
}

LaneLoop::LaneLoop(exec::Executor& executor, exec::Lane& lane, const Clock& clock,
                   const LaneMemory& memory, SchedulePolicy policy, Fd epoll, Fd bell,
                   std::function<void(SessionId, const Error&)> broken)
    : executor_(executor),
      clock_(clock),
      state_{lane, memory.waits, ProgramTable(memory.waits), {}, sched::Queue(policy)},
      binder_(lane),
      baton_(clock),
      memory_(memory),
      epoll_(std::move(epoll)),
      bell_(std::move(bell)),
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
  thread_ = std::thread([this] { work(); });
}

void LaneLoop::stop() {
  stopping_.store(true);
  wake();
  if (thread_.joinable()) thread_.join();
}

void LaneLoop::post(Subject subject, std::function<void(State&)> job) {
  DJINN_ASSERT(job);
  {
    const std::lock_guard lock(mutex_);
    mailbox_.push_back({subject, std::move(job)});
  }
  has_mail_.store(true, std::memory_order_release);
  wake();
}

void LaneLoop::wake() {
  ipc::ring_submission_bell(bell_);
}

void LaneLoop::add_session(std::unique_ptr<Session> session) {
  DJINN_ASSERT(session && session->id().value != kMailboxKey);
  auto shared = std::make_shared<std::unique_ptr<Session>>(std::move(session));
  post([this, shared](State& state) {
    Session& added = **shared;
    added.progression.could_not_begin_before(clock_.monotonic_ns());
    const SessionId id = added.id();
    DJINN_ASSERT(!state.sessions.contains(id));
    const Status watched =
        ipc::watch_submission_bell(epoll_, added.submission_bell(), added.id().value);
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
  ipc::Spin spin(clock_, kSpinNs);
  bool slept = false;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const bool mail = run_mailbox() != Mail::kNone;
    const bool worked = run_turn();
    if (!mail && !worked) {
      if (baton_.takes_part()) baton_.pass(clock_.monotonic_ns());
      if (spin.wait()) continue;
      if (!state_.queue.has_ready()) {
        sleep();
        slept = true;
      }
    }
    spin.restart();
    if (worked && std::exchange(slept, false)) spin.share_core();
  }
}

LaneLoop::Mail LaneLoop::run_mailbox() {
  if (!has_mail_.load(std::memory_order_acquire)) return Mail::kNone;
  std::vector<Job> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs.swap(mailbox_);
    has_mail_.store(false, std::memory_order_relaxed);
  }
  auto next = jobs.begin();
  while (next != jobs.end() && !is_used_aside(next->subject)) (next++)->run(state_);
  if (next == jobs.end()) return Mail::kDone;
  const std::lock_guard lock(mutex_);
  mailbox_.insert(mailbox_.begin(), std::make_move_iterator(next),
                  std::make_move_iterator(jobs.end()));
  has_mail_.store(true, std::memory_order_release);
  return Mail::kWaits;
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
  Seat& seat = seats_[session.id()];
  seat.session = &session;
  hot_.push_back(&seat);
  state_.queue.add(session.id(), session.service());
  const Status queued = enqueue(seat, sched::Arrival::kWoke, clock_.monotonic_ns());
  if (!queued) set_aside(session.id(), queued.error());
}

Status LaneLoop::enqueue(Seat& seat, sched::Arrival arrival, uint64_t now_ns) {
  DJINN_ASSERT(seat.standing != Standing::kQueued);
  // Without a submission it is a look at a session that has just come, or breaks the protocol.
  auto next = NextStep::of(*seat.session, state_.programs);
  seat.worked_ns = now_ns;
  seat.begin_by_ns = 0;
  seat.kind = next ? next->kind() : StepKind{};
  seat.behind.reset();
  const uint64_t kind = seat.kind.number;
  if (next && !times_.knows(kind)) {
    if (const auto expected = next->expected()) {
      times_.expect(kind, expected->work, expected->kernels);
    }
  }
  seat.batch = next ? next->batch() : StepBatch{};
  seat.predicted_ns = times_.predict_ns(kind);
  seat.is_sure = times_.is_sure(kind);
  const sched::ReadyStep step{seat.session->id(), arrival,       seat.predicted_ns,
                              seat.batch.key,     is_long(seat), seat.is_sure};
  if (next) {
    DJINN_TRY(const bool refused, refuse_at_once(seat, step, now_ns));
    if (refused) return {};
  }
  seat.standing = Standing::kQueued;
  state_.queue.enqueue(step, now_ns);
  return {};
}

// --- deadlines

// One that was picked up waits for memory, and was found in time. Where the client has no room for
// the answer, or a former worker has left something to tell, it has it in its turn. The time that
// this takes is the session's, and not that of a run that computes meanwhile.
Result<bool> LaneLoop::refuse_at_once(Seat& seat, const sched::ReadyStep& step, uint64_t now_ns) {
  Session& session = *seat.session;
  seat.begin_by_ns = session.begin_by_ns();
  if (seat.begin_by_ns == 0 || session.state().in_flight()) return false;
  if (session.state().step_published() < session.state().step()) return false;
  if (seat.refusals >= kJudgedInARow && state_.queue.owes_a_unit(step.session)) return false;
  const bool is_beside = runner_->is_between_operators() && !runner_->is_paused();
  const uint64_t begun_ns = clock_.monotonic_ns();
  DJINN_TRY(const bool refused, judge(seat, step, now_ns));
  seat.refusals = refused ? seat.refusals + 1 : 0;
  const uint64_t took_ns = clock_.monotonic_ns() - begun_ns;
  state_.queue.charge_judging(step.session, step.arrival, begun_ns, took_ns);
  if (is_beside) {
    slice_.since_ns += took_ns;
    slice_.ends_ns += took_ns;
  }
  return refused;
}

// What is refused beside a run that computes is not that run's.
Result<bool> LaneLoop::judge(Seat& seat, const sched::ReadyStep& step, uint64_t now_ns) {
  Session& session = *seat.session;
  auto why = why_not_in_time(step, seat.begin_by_ns, now_ns);
  if (!why) return false;
  DJINN_TRY(const bool blocked, Runner::is_blocked(session));
  if (blocked) return false;
  std::optional<Runner::Pause> pause;
  if (runner_->is_between_operators() && !runner_->is_paused()) pause.emplace(*runner_);
  session.refuse(*std::move(why));
  // Where what a former worker had not told takes the room, the client hears of it when it has made
  // some.
  DJINN_TRY(const auto advance, runner_->advance(session));
  note(seat, advance, now_ns);
  return true;
}

std::optional<Error> LaneLoop::why_not_in_time(const sched::ReadyStep& step, uint64_t begin_by_ns,
                                               uint64_t now_ns) {
  const uint64_t queued = count_queued();
  if (queued > limits::kQueuedSubmissions) {
    return Error{ErrorCode::kQueueFull,
                 fmt::format("{} submissions are queued, and one that is to begin in time is taken "
                             "behind {} at most. Submit it again later.",
                             queued, limits::kQueuedSubmissions)};
  }
  sched::Queue queue = state_.queue;
  queue.enqueue(step, now_ns);
  const auto foreseen = sched::forecast(std::move(queue), step.session, now_ns,
                                        [this](SessionId id) { return backlog_of(id); });
  const uint64_t left_ns = begin_by_ns - std::min(begin_by_ns, now_ns);
  if (foreseen.wait_ns <= left_ns) return std::nullopt;
  return Error{ErrorCode::kQueueFull,
               fmt::format("The run would begin in {} {} ms, behind what is queued, and may wait "
                           "for {} ms. Submit it again later, or let it wait longer.",
                           foreseen.is_least ? "more than" : "about",
                           ms_rounded_up(foreseen.wait_ns), ms_rounded_up(left_ns))};
}

sched::Backlog LaneLoop::backlog_of(SessionId id) {
  Seat& seat = seats_.at(id);
  // It is looked at, that is all; or its last step is over, and not charged yet.
  if (seat.kind.number == 0 || seat.session->ring().open() == 0) return {};
  if (!seat.behind) {
    auto next = NextStep::of(*seat.session, state_.programs);
    seat.behind = next ? next->behind() : StepsBehind{};
  }
  const uint64_t ns = times_.predict_ns(seat.kind.number);
  sched::Backlog backlog{.step_ns = ns,
                         .has_slices = !seat.kind.is_token,
                         .is_long = is_long(seat),
                         .is_sure = seat.is_sure,
                         .steps = seat.behind->count,
                         .each_ns = times_.predict_ns(seat.behind->kind)};
  // Of the run that is computed, or paused, a part is over.
  if (runner_->is_asking(id)) backlog.step_ns -= std::min(ns, slice_.charged_ns);
  backlog.step_ns += ns * seat.behind->parts;
  backlog.behind = seat.session->ring().open() - 1;
  backlog.behind_ns = ns;
  return backlog;
}

// What a client says of its ring that cannot be is found out when it is looked at.
uint64_t LaneLoop::count_queued() {
  uint64_t queued = 0;
  for (const Seat* const seat : hot_) {
    if (seat->session->ring().has_submission()) queued += seat->session->ring().open();
  }
  return queued;
}

// A step that makes a token is never long, however large its model is: it is a unit. What may not
// be long is not taken for long, since it would be held: to abandon it costs less.
bool LaneLoop::is_long(const Seat& seat) {
  if (seat.is_held_back) return true;
  const bool is_token_run = seat.token_kind != 0 && seat.kind.number == seat.token_kind;
  if (seat.kind.is_token || is_token_run) return false;
  return seat.is_sure && seat.predicted_ns > kInsideNsMax;
}

Result<bool> LaneLoop::can_go_on(Seat& seat, uint64_t now_ns) {
  Session& session = *seat.session;
  switch (seat.standing) {
    case Standing::kQueued:
      return false;  // it does
    case Standing::kIdle:
      // A client that says nonsense of its completions is found out although it submits nothing.
      DJINN_CHECK(session.ring().free_completions());
      return session.ring().has_submission();
    case Standing::kBlocked: {
      DJINN_TRY(const bool blocked, Runner::is_blocked(session));
      return !blocked;
    }
    case Standing::kWaiting:
      return !state_.waits.is_waiting(session.id()) || session.is_cancelled() ||
             is_late(seat, now_ns);
  }
  return false;
}

Status LaneLoop::look_at(Seat& seat, uint64_t now_ns) {
  if (seat.standing == Standing::kQueued && seat.session->is_cancelled()) {
    state_.queue.withdraw(seat.session->id());  // to end it takes no time
  }
  DJINN_TRY(const bool goes_on, can_go_on(seat, now_ns));
  if (goes_on) {
    const bool was_idle = seat.standing == Standing::kIdle;
    const auto arrival = seat.has_rung ? sched::Arrival::kWoke : sched::Arrival::kNext;
    DJINN_CHECK(enqueue(seat, was_idle ? arrival : sched::Arrival::kResumes, now_ns));
  } else if (seat.standing == Standing::kIdle || seat.standing == Standing::kBlocked) {
    seat.session->progression.could_not_begin_before(now_ns);
  }
  return {};
}

void LaneLoop::look_for_work(uint64_t now_ns) {
  std::vector<std::pair<SessionId, Error>> broken;
  const auto look = [&](Seat& seat) {
    if (const Status looked = look_at(seat, now_ns); !looked) {
      broken.emplace_back(seat.session->id(), looked.error());
    }
  };
  for (size_t i = 0; i < hot_.size();) {
    Seat& seat = *hot_[i];
    look(seat);
    seat.has_rung = false;
    if (cools(seat, now_ns)) {
      hot_[i] = hot_.back();
      hot_.pop_back();
    } else {
      ++i;
    }
  }
  if (broken.empty()) return;
  std::optional<Runner::Pause> pause;  // what is given up beside a run is not that run's
  if (runner_->is_between_operators() && !runner_->is_paused()) pause.emplace(*runner_);
  for (const auto& [id, error] : broken) set_aside(id, error);
}

// From then on its client rings.
bool LaneLoop::cools(Seat& seat, uint64_t now_ns) {
  const bool is_idle = seat.standing == Standing::kIdle && now_ns >= seat.worked_ns + kHotNs;
  seat.is_cold = is_idle && seat.session->ring().prepare_to_sleep();
  return seat.is_cold;
}

// Waits for a bell so long, or for ever (-1). Whoever has rung is hot.
void LaneLoop::listen(int wait_ms) {
  std::array<epoll_event, kEventsAtOnce> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), wait_ms);
  const uint64_t now_ns = clock_.monotonic_ns();
  const uint64_t quiet_until_ns = wait_ms == 0 ? listened_ns_ : now_ns;
  listened_ns_ = now_ns;
  // A bell is heard once. It may be that of one which is hot, and blocked or waiting, for which the
  // lane would go to sleep.
  if (count > 0) looked_ns_ = 0;
  for (int i = 0; i < count; ++i) {
    const auto found = seats_.find(SessionId{events[static_cast<size_t>(i)].data.u64});
    if (found == seats_.end() || !found->second.is_cold) continue;
    Seat& seat = found->second;
    seat.is_cold = false;
    seat.has_rung = true;
    seat.session->ring().finish_sleep();
    seat.session->progression.could_not_begin_before(quiet_until_ns);
    hot_.push_back(&seat);
  }
}

void LaneLoop::look_around(uint64_t now_ns) {
  if (state_.waits.has_arrivals()) state_.waits.take_arrivals();
  if (hot_.size() < seats_.size() && now_ns >= listened_ns_ + kListenNs) listen(0);
  const bool must_look = !state_.queue.has_ready() || std::exchange(waits_for_client_, false);
  if (!must_look && now_ns < looked_ns_ + kLookNs) return;
  looked_ns_ = now_ns;
  look_for_work(now_ns);
}

// Gives how long that took. Who came meanwhile may be before who was there.
uint64_t LaneLoop::take_turn(uint64_t now_ns) {
  const uint64_t slept_ns = baton_.take(now_ns);
  counts_.note_turn(slept_ns, baton_.overruns());
  if (slept_ns > 0) look_around(now_ns + slept_ns);
  return slept_ns;
}

bool LaneLoop::run_turn() {
  uint64_t now_ns = clock_.monotonic_ns();
  look_around(now_ns);
  if (state_.queue.is_worth_waiting(now_ns)) {
    waits_for_client_ = true;
    return false;
  }
  if (!state_.queue.has_ready()) return false;
  now_ns = clock_.monotonic_ns();  // to judge who came is not the time of who is picked
  now_ns += take_turn(now_ns);
  const auto picked = state_.queue.pick(now_ns);
  if (!picked) return false;
  const bool worked = run_unit(unit_of(*picked, now_ns), now_ns);
  if (baton_.is_due(1)) baton_.pass(clock_.monotonic_ns());
  return worked;
}

// Gives the picked one and those that share its step, as many as are computed at once, always in
// the same order, so that each finds its place in the lane's memory as it left it.
std::vector<SessionId> LaneLoop::unit_of(SessionId picked, uint64_t now_ns) {
  std::vector<SessionId> unit{picked};
  const Seat& seat = seats_.at(picked);
  if (seat.batch.key == 0) return unit;
  const bool is_idle = seat.session->service() == ServiceClass::kIdle;
  uint32_t rows = seat.batch.rows;
  for (const SessionId id : state_.queue.ready_with(seat.batch.key)) {
    const Seat& other = seats_.at(id);
    const uint32_t more = other.batch.rows;
    DJINN_ASSERT(more > 0);
    // Others' steps take longer with one that is to run while no other can.
    const bool may_join = is_idle || other.session->service() != ServiceClass::kIdle;
    if (rows + more > limits::kRows || !may_join) continue;
    rows += more;
    state_.queue.join(id, now_ns);
    unit.push_back(id);
  }
  std::ranges::sort(unit);
  return unit;
}

bool LaneLoop::run_unit(const std::vector<SessionId>& unit, uint64_t begun_ns) {
  bool worked = false;
  uint64_t shared_ns = 0;
  for (const SessionId id : unit) {
    Seat& seat = seats_.at(id);
    const Slice outside = std::exchange(slice_, slice_of(seat, begun_ns));
    const auto advance =
        runner_->advance(*seat.session, unit.size() > 1 ? seat.batch : StepBatch());
    const Slice slice = std::exchange(slice_, outside);
    const uint64_t ended_ns = clock_.monotonic_ns();
    if (!advance) {
      set_aside(id, advance.error());
    } else if (*advance == Runner::Advance::kJoins) {
      shared_ns += ended_ns - begun_ns;
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
      const uint32_t rows = seats_.at(session.id()).batch.rows;
      ended.push_back({session.id(), advance, rows});
      all_rows += rows;
    });
  }
  state_.programs.end_step();
  const uint64_t ended_ns = clock_.monotonic_ns();
  shared_ns += ended_ns - begun_ns;
  for (const auto& [id, advance, rows] : ended) {
    worked |= end_step(id, advance, {begun_ns, ended_ns, shared_ns * rows / all_rows, Slice{}});
  }
  return worked;
}

// --- slices

LaneLoop::Slice LaneLoop::slice_of(const Seat& seat, uint64_t begun_ns) const {
  Slice slice;
  slice.since_ns = begun_ns;
  slice.ends_ns = begun_ns + (runner_->is_paused() ? inside_ns(seat) : sched::kUnitNs);
  slice.cpu_inside_ns = sched::kUnitNs << seat.tries_inside;
  if (is_long(seat)) slice.cpu_begun_ns = clock_.thread_cpu_ns();
  return slice;
}

// Twice as much after each time that it was not enough. So is what it has of the processor then.
uint64_t LaneLoop::inside_ns(const Seat& seat) {
  uint64_t first_ns = sched::kUnitNs;
  if (seat.is_sure && seat.predicted_ns > kLongNs) {
    first_ns = kInsideNsMax;
  } else if (seat.is_sure) {
    first_ns = std::max(first_ns, seat.predicted_ns);
  }
  return std::min(first_ns << seat.tries_inside, kLongNs);
}

// Steps that are held. A host on which others compute makes short ones look long, and what lacked
// memory may have it now: nobody is to wait for them as long as somebody's run takes.
void LaneLoop::let_in_who_waited(uint64_t now_ns) {
  std::vector<SessionId> waited;
  for (const SessionId id : state_.queue.held()) {
    const Seat& seat = seats_.at(id);
    const bool is_truly_long = seat.long_kind != 0 && seat.long_kind == seat.kind.number;
    if (!is_truly_long && now_ns - seat.worked_ns >= kPatience * inside_ns(seat)) {
      waited.push_back(id);
    }
  }
  for (const SessionId id : waited) state_.queue.let_go(id);
}

// A step inside a pause that takes longer than was expected of it has units more of the processor:
// where others compute on the machine, that they had it is no fault of this one.
bool LaneLoop::goes_on_inside() {
  if (clock_.monotonic_ns() < slice_.ends_ns) return true;
  const uint64_t cpu_ns = clock_.thread_cpu_ns();
  if (slice_.cpu_ends_ns == 0) slice_.cpu_ends_ns = cpu_ns + slice_.cpu_inside_ns;
  slice_.has_run_out = cpu_ns >= slice_.cpu_ends_ns;
  return !slice_.has_run_out;
}

bool LaneLoop::between_operators(Session& session) {
  if (stopping_.load(std::memory_order_relaxed)) return false;
  if (runner_->is_paused()) return goes_on_inside();
  pass_turn_if_due();
  if (has_mail_.load(std::memory_order_acquire) && !run_jobs_aside()) return false;
  const uint64_t now_ns = clock_.monotonic_ns();
  sched::Queue& queue = state_.queue;
  if (now_ns < slice_.ends_ns) return true;
  if (queue.policy() == SchedulePolicy::kFifo) {
    look_around(now_ns);  // who comes and cannot begin in time is told
    slice_.ends_ns = now_ns + sched::kUnitNs;
    return true;
  }
  if (!queue.has_slices()) queue.begin_slices(session.id());
  if (now_ns >= slice_.since_ns + sched::kUnitNs) charge_slice(session.id(), now_ns);
  look_around(now_ns);
  let_in_who_waited(now_ns);
  if (queue.must_give_up()) return false;
  return !queue.has_ready() || give_way(session);
}

// Others' turns are nobody's time.
void LaneLoop::pass_turn_if_due() {
  const uint64_t slept_ns = baton_.pass_if_due(kUnitsOfRun);
  if (slept_ns == 0) return;
  counts_.note_turn(slept_ns, baton_.overruns());
  slice_.since_ns += slept_ns;
  slice_.ends_ns += slept_ns;
}

// Jobs are nobody's time.
bool LaneLoop::run_jobs_aside() {
  const uint64_t begun_ns = clock_.monotonic_ns();
  const Runner::Pause pause(*runner_);
  const bool waits = run_mailbox() == Mail::kWaits;
  const uint64_t took_ns = clock_.monotonic_ns() - begun_ns;
  slice_.since_ns += took_ns;
  slice_.ends_ns += took_ns;
  return !waits;
}

void LaneLoop::charge_slice(SessionId id, uint64_t now_ns) {
  const uint64_t took_ns = now_ns - slice_.since_ns;
  state_.queue.charge_running(id, took_ns);
  slice_.charged_ns += took_ns;
  slice_.since_ns = now_ns;
}

bool LaneLoop::give_way(Session& session) {
  const uint64_t ended_ns = clock_.monotonic_ns();
  charge_slice(session.id(), ended_ns);
  state_.queue.end_slice(session.id());
  std::optional<Runner::Pause> pause;
  const bool goes_on = run_others(session, pause);
  pause.reset();
  slice_.since_ns = clock_.monotonic_ns();
  slice_.ends_ns = slice_.since_ns + state_.queue.slice_ns();
  return goes_on;
}

// Until it is the session's turn, or its run is to end or to be abandoned.
bool LaneLoop::run_others(Session& session, std::optional<Runner::Pause>& pause) {
  sched::Queue& queue = state_.queue;
  const SessionId id = session.id();
  ipc::Spin spin(clock_, kSpinNs);
  bool goes_on = true;
  while (!session.is_cancelled()) {
    goes_on = !stopping_.load(std::memory_order_relaxed);
    if (goes_on && has_mail_.load(std::memory_order_acquire)) {
      if (!pause) pause.emplace(*runner_);
      goes_on = run_mailbox() != Mail::kWaits;
    }
    const uint64_t now_ns = clock_.monotonic_ns();
    if (goes_on) look_around(now_ns);
    if (!goes_on || queue.must_give_up()) {
      goes_on = false;
      break;
    }
    if (queue.is_worth_waiting(now_ns)) {
      waits_for_client_ = true;
      if (!spin.wait()) spin.restart();
      continue;
    }
    const uint64_t picked_ns = clock_.monotonic_ns();
    const auto picked = queue.pick(picked_ns);
    DJINN_ASSERT(picked);
    if (*picked == id) return true;
    if (!pause) pause.emplace(*runner_);
    run_unit(unit_of(*picked, picked_ns), picked_ns);
    counts_.note_turn(baton_.pass_if_due(1), baton_.overruns());
  }
  queue.resume(id, clock_.monotonic_ns());
  return goes_on;
}

// --- the end of a step

// The step was abandoned. What ran out of all the time that there is inside is long; what did not
// is begun there again, also where it lacked memory that the run which is set aside may have.
void LaneLoop::hold_back(Seat& seat, const StepTime& time) {
  if (!runner_->is_paused()) return;
  seat.is_held_back = true;
  if (!time.slice.has_run_out) return;
  if (seat.tries_inside == kTriesInsideMax) {
    seat.long_kind = seat.kind.number;
  } else {
    ++seat.tries_inside;
  }
}

// Gives whether anything was done.
bool LaneLoop::end_step(SessionId id, Runner::Advance advance, const StepTime& time) {
  Seat& seat = seats_.at(id);
  state_.queue.charge(id, time.to_charge_ns, time.ended_ns);
  seat.worked_ns = time.ended_ns;
  note(seat, advance, time.begun_ns);
  const uint64_t took_ns = time.slice.charged_ns + time.to_charge_ns;
  if (advance == Runner::Advance::kAbandoned) {
    hold_back(seat, time);
    if (took_ns > seat.predicted_ns) times_.note(seat.kind.number, took_ns);
    if (const Status queued = enqueue(seat, sched::Arrival::kAgain, time.ended_ns); !queued) {
      set_aside(id, queued.error());
    }
    return true;
  }
  const bool waited = advance == Runner::Advance::kWaited;
  if (!waited && advance != Runner::Advance::kWorked) return false;
  seat.is_held_back = false;
  seat.tries_inside = 0;
  const uint64_t cpu_begun_ns = time.slice.cpu_begun_ns;
  if (cpu_begun_ns != 0 && clock_.thread_cpu_ns() - cpu_begun_ns >= kLongNs) {
    seat.long_kind = seat.kind.number;
  }
  if (seat.session->was_token) seat.token_kind = seat.kind.number;
  times_.note(seat.kind.number, took_ns);
  if (waited) stop_waiting(id);
  if (const Status queued = queue_again(seat, time.ended_ns); !queued)
    set_aside(id, queued.error());
  return true;
}

// begun_ns: when the step that did not end, or could not begin, was tried.
void LaneLoop::note(Seat& seat, Runner::Advance advance, uint64_t begun_ns) {
  Session& session = *seat.session;
  switch (advance) {
    case Runner::Advance::kWorked:
    case Runner::Advance::kWaited:
    case Runner::Advance::kIdle:
    case Runner::Advance::kAbandoned:
      seat.standing = Standing::kIdle;
      break;
    case Runner::Advance::kBlocked:
      seat.standing = Standing::kBlocked;
      break;
    case Runner::Advance::kWaiting:
      seat.standing = Standing::kWaiting;
      break;
    case Runner::Advance::kJoins:
      DJINN_ASSERT(false);  // its step has not ended
      break;
  }
  const bool had_nothing =
      advance == Runner::Advance::kIdle || advance == Runner::Advance::kBlocked;
  if (had_nothing) session.progression.could_not_begin_before(begun_ns);
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
    ipc::unwatch_submission_bell(epoll_, found->second->submission_bell());
    state_.sessions.erase(found);
  }
  if (const auto seat = seats_.find(id); seat != seats_.end()) {
    std::erase(hot_, &seat->second);
    seats_.erase(seat);
  }
  state_.queue.remove(id);
  stop_waiting(id);
}

void LaneLoop::set_aside(SessionId id, const Error& error) {
  erase_session(id);
  broken_(id, error);
}

// The rings of the others sleep already. Of what others say and ring for, the ring may have been
// heard while there was work.
bool LaneLoop::prepare_to_sleep() {
  bool quiet = !stopping_.load(std::memory_order_acquire);
  for (const Seat* const seat : hot_) {
    if (seat->standing == Standing::kIdle) quiet &= seat->session->ring().prepare_to_sleep();
  }
  return quiet && !has_mail_.load(std::memory_order_acquire) && !state_.waits.has_arrivals();
}

// Until the first deadline of a submission that waits for memory, if one does; else for ever (-1).
int LaneLoop::sleep_ms_max() const {
  uint64_t until_ns = UINT64_MAX;
  for (const Seat* const seat : hot_) {
    const bool may_be_late = seat->standing == Standing::kWaiting && seat->begin_by_ns != 0;
    if (may_be_late) until_ns = std::min(until_ns, seat->begin_by_ns);
  }
  if (until_ns == UINT64_MAX) return -1;
  const uint64_t now_ns = clock_.monotonic_ns();
  const uint64_t ms = ms_rounded_up(until_ns - std::min(until_ns, now_ns)) + 1;
  return static_cast<int>(std::min<uint64_t>(ms, INT32_MAX));
}

void LaneLoop::sleep() {
  if (prepare_to_sleep()) listen(sleep_ms_max());
  const uint64_t now_ns = clock_.monotonic_ns();
  for (const Seat* const seat : hot_) {
    seat->session->ring().finish_sleep();
    // A session that awaits something has waited while the lane slept; the others had no work.
    if (seat->standing != Standing::kWaiting) {
      seat->session->progression.could_not_begin_before(now_ns);
    }
  }
  looked_ns_ = 0;  // whoever woke it may be one of those
}

}  // namespace djinn::worker
