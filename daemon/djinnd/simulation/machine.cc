// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/machine.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon::simulation {
namespace {

Machine* the_machine = nullptr;

// This is the prime of FNV-1a.
constexpr uint64_t kHashPrime = 0x100000001b3u;
constexpr uint64_t kEventNsMax = 100'000;
// A call of the clock charges this much processor time. Now and then a message costs much more.
constexpr uint64_t kCpuNs = 2'000;
constexpr uint64_t kSlowCpuNs = 20'000'000;

}  // namespace

Machine::Machine(uint64_t seed, Mistake mistake)
    : random_(seed), mistake_(mistake), systemd_(*this), processes_(*this) {
  DJINN_ASSERT(the_machine == nullptr);
  the_machine = this;
}

Machine::~Machine() {
  while (!works_.empty()) finish(works_.front().owner);
  close_handles();
  the_machine = nullptr;
}

Machine& Machine::current() {
  DJINN_ASSERT(the_machine != nullptr);
  return *the_machine;
}

Machine* Machine::current_or_null() {
  return the_machine;
}

uint64_t Machine::thread_cpu_ns() const {
  return cpu_ns_ += kCpuNs;
}

void Machine::note(uint64_t value) {
  hash_ = (hash_ ^ value) * kHashPrime;
}

void Machine::tell_line(const std::string& line) {
  for (const char c : line) note(static_cast<unsigned char>(c));
  lines_.push_back(fmt::format("{:10.3f} ms  {}", static_cast<double>(now_ns_) / 1e6 - 1e6, line));
  if (lines_.size() > kLinesKept) lines_.pop_front();
}

// --- events

bool Machine::step(uint64_t until_ms) {
  close_handles();
  // Sometimes nothing happens for a while, as if the machine were asleep, or busy with others.
  const bool sleeps = faults_ && one_in(64);
  std::vector<Event> events = possible_events();
  if (events.empty() || sleeps) {
    const uint64_t next_ms = next_time_ms(until_ms);
    now_ns_ = std::max(now_ns_, next_ms * 1'000'000);
    if (events.empty() && next_ms >= until_ms) return false;
    if (events.empty()) events = possible_events();
  }
  if (events.empty()) return true;
  now_ns_ += 1 + below(kEventNsMax);
  if (fault(500)) cpu_ns_ += kSlowCpuNs;
  const size_t chosen = below(events.size());
  ++events_;
  note(chosen);
  events[chosen]();
  return true;
}

uint64_t Machine::next_time_ms(uint64_t until_ms) const {
  uint64_t next_ms = until_ms;
  if (const Armed* const timer = next_timer()) next_ms = std::min(next_ms, timer->due_ms);
  for (const Work& work : works_) {
    if (!work.backlog.empty()) next_ms = std::min(next_ms, work.not_before_ms);
  }
  return next_ms;
}

std::vector<Machine::Event> Machine::possible_events() {
  std::vector<Event> events;
  add_ready_descriptors(events);
  for (const Rung& rung : asyncs_) {
    if (!rung.pending) continue;
    events.emplace_back([this, handle = rung.handle] {
      const auto found = std::ranges::find(asyncs_, handle, &Rung::handle);
      found->pending = false;
      found->call(handle);
    });
  }
  if (const Armed* const timer = next_timer(); timer != nullptr && timer->due_ms <= now_ms()) {
    events.emplace_back([this, due = *timer] {
      disarm(due.handle);
      due.call(due.handle);
    });
  }
  for (const Work& work : works_) {
    if (work.backlog.empty() || work.not_before_ms > now_ms()) continue;
    events.emplace_back([this, owner = work.owner] { do_next_work(owner); });
  }
  if (looked_) {
    events.emplace_back([this] {
      looked_ = false;
      for (const Checked& check : std::vector(checks_)) check.call(check.handle);
    });
  }
  return events;
}

void Machine::add_ready_descriptors(std::vector<Event>& events) {
  std::vector<pollfd> looked_at;
  looked_at.reserve(polls_.size());
  for (const Watched& poll : polls_) looked_at.push_back({poll.fd, poll.events, 0});
  if (::poll(looked_at.data(), looked_at.size(), 0) <= 0) return;
  for (size_t i = 0; i < looked_at.size(); ++i) {
    if (looked_at[i].revents == 0) continue;
    events.emplace_back([this, ready = polls_[i]] {
      looked_ = true;
      ready.call(ready.handle, 0, 0);
    });
  }
}

const Machine::Armed* Machine::next_timer() const {
  const auto next = std::ranges::min_element(
      timers_, {}, [](const Armed& timer) { return std::pair(timer.due_ms, timer.number); });
  return next == timers_.end() ? nullptr : &*next;
}

// --- threads

void Machine::post(const void* owner, std::function<void()> work) {
  auto found = std::ranges::find(works_, owner, &Work::owner);
  if (found == works_.end()) found = works_.insert(works_.end(), Work{owner, {}});
  if (found->backlog.empty()) found->not_before_ms = fault(8) ? now_ms() + below(3000) : 0;
  found->backlog.push_back(std::move(work));
}

size_t Machine::backlog(const void* owner) const {
  const auto found = std::ranges::find(works_, owner, &Work::owner);
  return found == works_.end() ? 0 : found->backlog.size();
}

void Machine::do_next_work(const void* owner) {
  const auto found = std::ranges::find(works_, owner, &Work::owner);
  const std::function<void()> work = std::move(found->backlog.front());
  found->backlog.pop_front();
  if (found->backlog.empty()) {
    works_.erase(found);
  } else {
    found->not_before_ms = fault(16) ? now_ms() + below(1000) : 0;
  }
  work();
}

void Machine::finish(const void* owner) {
  while (backlog(owner) > 0) do_next_work(owner);
}

// Destroying work may add more.
void Machine::forget_work() {
  while (!works_.empty())
    [[maybe_unused]] const std::vector<Work> forgotten = std::exchange(works_, {});
}

// --- libuv's handles

void Machine::watch(uv_poll_t* handle, int fd, short events, uv_poll_cb call) {
  const auto found = std::ranges::find(polls_, handle, &Watched::handle);
  const Watched watched{handle, fd, events, call};
  if (found == polls_.end()) {
    polls_.push_back(watched);
  } else {
    *found = watched;
  }
}

void Machine::unwatch(const uv_poll_t* handle) {
  std::erase_if(polls_, [&](const Watched& poll) { return poll.handle == handle; });
}

void Machine::arm(uv_timer_t* handle, uint64_t after_ms, uv_timer_cb call) {
  disarm(handle);
  const uint64_t forever = UINT64_MAX - now_ms();
  timers_.push_back({handle, now_ms() + std::min(after_ms, forever), ++timers_started_, call});
}

void Machine::disarm(const uv_timer_t* handle) {
  std::erase_if(timers_, [&](const Armed& timer) { return timer.handle == handle; });
}

bool Machine::is_armed(const uv_timer_t* handle) const {
  return std::ranges::find(timers_, handle, &Armed::handle) != timers_.end();
}

void Machine::add(uv_async_t* handle, uv_async_cb call) {
  asyncs_.push_back({handle, call});
}

void Machine::ring(const uv_async_t* handle) {
  const auto found = std::ranges::find(asyncs_, handle, &Rung::handle);
  DJINN_ASSERT(found != asyncs_.end());
  const bool is_lost = mistake_ == Mistake::kWakeIsLost && found->pending && one_in(4);
  found->pending = !is_lost;
}

void Machine::add(uv_check_t* handle, uv_check_cb call) {
  checks_.push_back({handle, call});
}

void Machine::close(uv_handle_t* handle, uv_close_cb closed) {
  const void* const same = handle;
  std::erase_if(polls_, [&](const Watched& one) { return one.handle == same; });
  std::erase_if(timers_, [&](const Armed& one) { return one.handle == same; });
  std::erase_if(asyncs_, [&](const Rung& one) { return one.handle == same; });
  std::erase_if(checks_, [&](const Checked& one) { return one.handle == same; });
  if (closed != nullptr) closing_.emplace_back(handle, closed);
}

void Machine::close_handles() {
  for (const auto& [handle, closed] : std::exchange(closing_, {})) closed(handle);
}

}  // namespace djinn::daemon::simulation
