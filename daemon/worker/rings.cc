// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/rings.h"

#include <errno.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ipc/bell.h"
#include "kernel/base/assert.h"
#include "kernel/base/units.h"

namespace djinn::worker {
namespace {

// A session that had work within so long is hot. Looking at a ring takes some 10 ns, or 100 where
// its lines have left the caches. While there is work to do, those of hot sessions are looked at so
// often at most, and one call asks for the bells of all others: whoever submits is found within a
// moment that nobody feels, and what that costs does not grow with those that do not.
constexpr uint64_t kHotNs = 1'000'000;
constexpr uint64_t kLookNs = 20'000;
constexpr uint64_t kListenNs = 100'000;
constexpr uint64_t kMailboxKey = 0;   // no session has id 0
constexpr size_t kEventsAtOnce = 64;  // those beyond are heard next time

}  // namespace

Result<Rings> Rings::make(const Clock& clock, const Fd& mailbox_bell) {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return system_error("make the lane's epoll instance", errno);
  DJINN_CHECK(ipc::watch_submission_bell(epoll, mailbox_bell, kMailboxKey));
  return Rings(clock, std::move(epoll));
}

Status Rings::watch(const Session& session) {
  DJINN_ASSERT(session.id().value != kMailboxKey);
  return ipc::watch_submission_bell(epoll_, session.submission_bell(), session.id().value);
}

void Rings::unwatch(const Session& session) {
  ipc::unwatch_submission_bell(epoll_, session.submission_bell());
}

Seat& Rings::add(Session& session) {
  const auto [found, is_new] = seats_.try_emplace(session.id());
  DJINN_ASSERT(is_new);
  Seat& seat = found->second;
  seat.session = &session;
  hot_.push_back(&seat);
  return seat;
}

void Rings::remove(SessionId id) {
  const auto seat = seats_.find(id);
  if (seat == seats_.end()) return;
  std::erase(hot_, &seat->second);
  seats_.erase(seat);
}

uint64_t Rings::count_queued() const {
  uint64_t queued = 0;
  for (const Seat* const seat : hot_) {
    if (seat->session->ring().has_submission()) queued += seat->session->ring().open();
  }
  return queued;
}

void Rings::hear(uint64_t now_ns) {
  if (hot_.size() < seats_.size() && now_ns >= listened_ns_ + kListenNs) listen(0);
}

bool Rings::is_time_to_look(uint64_t now_ns, bool must) {
  if (!must && now_ns < looked_ns_ + kLookNs) return false;
  looked_ns_ = now_ns;
  return true;
}

// From then on its client rings.
bool Rings::cools(Seat& seat, uint64_t now_ns) {
  const bool is_idle = seat.standing == Seat::Standing::kIdle && now_ns >= seat.worked_ns + kHotNs;
  seat.is_cold = is_idle && seat.session->ring().prepare_to_sleep();
  return seat.is_cold;
}

// Waits for a bell so long, or for ever (-1).
void Rings::listen(int wait_ms) {
  std::array<epoll_event, kEventsAtOnce> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), wait_ms);
  const uint64_t now_ns = clock_->monotonic_ns();
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

// The rings of the others sleep already.
bool Rings::prepare_to_sleep() {
  bool quiet = true;
  for (const Seat* const seat : hot_) {
    if (seat->standing == Seat::Standing::kIdle) quiet &= seat->session->ring().prepare_to_sleep();
  }
  return quiet;
}

void Rings::sleep() {
  listen(sleep_ms_max());
}

// -1: for ever.
int Rings::sleep_ms_max() const {
  uint64_t until_ns = UINT64_MAX;
  for (const Seat* const seat : hot_) {
    const bool may_be_late = seat->standing == Seat::Standing::kWaiting && seat->begin_by_ns != 0;
    if (may_be_late) until_ns = std::min(until_ns, seat->begin_by_ns);
  }
  if (until_ns == UINT64_MAX) return -1;
  const uint64_t now_ns = clock_->monotonic_ns();
  const uint64_t ms = ms_rounded_up(until_ns - std::min(until_ns, now_ns)) + 1;
  return static_cast<int>(std::min<uint64_t>(ms, INT32_MAX));
}

void Rings::finish_sleep() {
  const uint64_t now_ns = clock_->monotonic_ns();
  for (const Seat* const seat : hot_) {
    seat->session->ring().finish_sleep();
    // A session that awaits something has waited while the lane slept; the others had no work.
    if (seat->standing != Seat::Standing::kWaiting) {
      seat->session->progression.could_not_begin_before(now_ns);
    }
  }
  looked_ns_ = 0;  // whoever woke it may be one of those
}

}  // namespace djinn::worker
