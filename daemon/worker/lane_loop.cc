// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/lane_loop.h"

#include <errno.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ipc/bell.h"
#include "ipc/spin.h"
#include "kernel/base/assert.h"

namespace djinn::worker {
namespace {

// This is longer than a client needs to copy a row of logits and to answer with its next
// submission, and as short as the wake-up of an idle core: a sleeping lane burns nothing, a
// busy one is met awake.
constexpr uint64_t kSpinNs = 40'000;
constexpr uint64_t kMailboxKey = 0;   // no session has id 0
constexpr size_t kEventsAtOnce = 64;  // those beyond end the next sleep

}  // namespace

Result<std::unique_ptr<LaneLoop>> LaneLoop::make(
    exec::Executor& executor, exec::Lane& lane, const Clock& clock, const LaneMemory& memory,
    std::function<void(SessionId, const Error&)> broken) {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return system_error("make the lane's epoll instance", errno);
  DJINN_TRY(Fd bell, ipc::make_submission_bell());
  DJINN_CHECK(ipc::watch_submission_bell(epoll, bell, kMailboxKey));
  return std::unique_ptr<LaneLoop>(new LaneLoop(executor, lane, clock, memory, std::move(epoll),
                                                std::move(bell), std::move(broken)));
}

LaneLoop::LaneLoop(exec::Executor& executor, exec::Lane& lane, const Clock& clock,
                   const LaneMemory& memory, Fd epoll, Fd bell,
                   std::function<void(SessionId, const Error&)> broken)
    : executor_(executor),
      clock_(clock),
      state_{lane, memory.waits, ProgramTable(memory.waits), {}},
      binder_(lane),
      memory_(memory),
      epoll_(std::move(epoll)),
      bell_(std::move(bell)),
      broken_(std::move(broken)) {}

LaneLoop::~LaneLoop() {
  stop();
}

void LaneLoop::start(SequencePager& pager) {
  DJINN_ASSERT(!runner_ && !thread_.joinable());
  runner_ =
      std::make_unique<Runner>(LaneTools{executor_, state_.lane, memory_.waits, state_.programs,
                                         pager, binder_, clock_, memory_.grants},
                               clock_, counts_);
  thread_ = std::thread([this] { work(); });
}

void LaneLoop::stop() {
  stopping_.store(true);
  wake();
  if (thread_.joinable()) thread_.join();
}

void LaneLoop::post(std::function<void(State&)> job) {
  DJINN_ASSERT(job);
  {
    const std::lock_guard lock(mutex_);
    mailbox_.push_back(std::move(job));
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
    if (!watched) set_aside(id, watched.error());
  });
}

void LaneLoop::remove_session(SessionId id, std::function<void()> done) {
  post([this, id, done = std::move(done)](State&) {
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

// --- the lane's thread

void LaneLoop::work() {
  ipc::Spin spin(clock_, kSpinNs);
  bool slept = false;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const bool mail = run_mailbox();
    const bool worked = run_round();
    if (!mail && !worked) {
      if (spin.wait()) continue;
      sleep();
      slept = true;
    }
    spin.restart();
    if (worked && std::exchange(slept, false)) spin.share_core();
  }
}

bool LaneLoop::run_mailbox() {
  if (!has_mail_.load(std::memory_order_acquire)) return false;
  std::vector<std::function<void(State&)>> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs.swap(mailbox_);
    has_mail_.store(false, std::memory_order_relaxed);
  }
  for (const auto& job : jobs) job(state_);
  return true;
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

bool LaneLoop::note(Session& session, Runner::Advance advance, uint64_t now_ns) {
  using enum Runner::Advance;
  const SessionId id = session.id();
  blocked_.erase(id);
  if (advance == kBlocked) blocked_.insert(id);
  if (advance == kWaiting) state_.waits.suspend(id);
  if (advance == kWaited) stop_waiting(id);
  if (advance == kIdle || advance == kBlocked) session.progression.could_not_begin_before(now_ns);
  return advance == kWorked || advance == kWaited;
}

bool LaneLoop::can_go_on(SessionId id) const {
  DJINN_ASSERT(state_.sessions.contains(id));
  return !blocked_.contains(id) && !state_.waits.is_waiting(id);
}

bool LaneLoop::run_round() {
  bool worked = false;
  const uint64_t now_ns = clock_.monotonic_ns();
  state_.waits.take_arrivals();
  for (auto it = state_.sessions.begin(); it != state_.sessions.end();) {
    const SessionId id = it->first;
    Session& session = *it->second;
    ++it;
    if (state_.waits.is_waiting(id) && !session.is_cancelled()) continue;
    const auto advance = runner_->advance(session, state_.sessions.size() > 1);
    if (!runner_->has_joined()) state_.programs.end_step();
    if (advance) {
      worked |= note(session, *advance, now_ns);
    } else {
      set_aside(id, advance.error());
    }
  }
  if (!runner_->has_joined()) return worked;
  runner_->end_joined(
      [&](Session& session, Runner::Advance advance) { worked |= note(session, advance, now_ns); });
  state_.programs.end_step();
  return worked;
}

void LaneLoop::clear_binders() {
  binder_.clear();
  if (runner_ && !runner_->has_joined()) runner_->clear();
}

// Also gives back what the lane's heap keeps for its next run.
void LaneLoop::erase_session(SessionId id) {
  clear_binders();
  state_.lane.trim();  // outputs may lie in the session's memory
  if (const auto found = state_.sessions.find(id); found != state_.sessions.end()) {
    ipc::unwatch_submission_bell(epoll_, found->second->submission_bell());
    state_.sessions.erase(found);
  }
  blocked_.erase(id);
  stop_waiting(id);
}

void LaneLoop::set_aside(SessionId id, const Error& error) {
  erase_session(id);
  broken_(id, error);
}

bool LaneLoop::prepare_to_sleep() {
  bool quiet = true;
  for (const auto& [id, session] : state_.sessions) {
    if (can_go_on(id)) quiet &= session->ring().prepare_to_sleep();
  }
  return quiet && !has_mail_.load(std::memory_order_acquire) && !state_.waits.has_arrivals();
}

void LaneLoop::sleep() {
  if (prepare_to_sleep()) {
    std::array<epoll_event, kEventsAtOnce> events;
    ::epoll_wait(epoll_.get(), events.data(), events.size(), -1);
  }
  const uint64_t now_ns = clock_.monotonic_ns();
  for (const auto& [id, session] : state_.sessions) {
    session->ring().finish_sleep();
    // A session that awaits something has waited while the lane slept; the others had no work.
    if (!state_.waits.is_waiting(id)) session->progression.could_not_begin_before(now_ns);
  }
}

}  // namespace djinn::worker
