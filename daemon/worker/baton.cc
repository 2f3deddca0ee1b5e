// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/baton.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "kernel/base/assert.h"

namespace djinn::worker {
namespace {

// Gives whether it was so long.
bool sleep_on(std::atomic<uint32_t>& turn, uint32_t while_it_is, uint64_t ns_max) {
  const timespec limit{static_cast<time_t>(ns_max / 1'000'000'000),
                       static_cast<long>(ns_max % 1'000'000'000)};
  return ::syscall(SYS_futex, &turn, FUTEX_WAIT, while_it_is, &limit, nullptr, 0) != 0 &&
         errno == ETIMEDOUT;
}

}  // namespace

void Baton::join(pal::Mapping page, uint32_t slot) {
  DJINN_ASSERT(page.size() >= sizeof(ipc::BatonPage) && slot < ipc::kBatonSlots);
  pass(clock_.monotonic_ns());
  mapping_ = std::move(page);
  slot_ = slot;
}

ipc::BatonPage* Baton::page() const {
  return mapping_.valid() ? reinterpret_cast<ipc::BatonPage*>(mapping_.data()) : nullptr;
}

uint64_t Baton::take(uint64_t now_ns) {
  ipc::BatonPage* const page = this->page();
  if (page == nullptr || holds_) return 0;
  taken_ns_ = now_ns;
  const uint64_t others = page->virtual_ns.load(std::memory_order_relaxed);
  virtual_ns_ = std::max(virtual_ns_, others - std::min(others, kUnitNs));
  holds_ = ipc::take_baton(*page, slot_, virtual_ns_);
  if (in_line_) {
    const bool is_given = page->slots[slot_].turn.load() == word(ipc::BatonTurn::kGiven);
    if (holds_ || is_given) holds_ |= leave_line(*page);
    return 0;
  }
  if (holds_) return 0;
  holds_ = wait(*page, now_ns);
  taken_ns_ = clock_.monotonic_ns();
  const uint64_t slept_ns = taken_ns_ - now_ns;
  waited_ns_ += slept_ns;
  return slept_ns;
}

// Gives whether it has it in the end; else it is in line, and goes on beside the holder.
bool Baton::wait(ipc::BatonPage& page, uint64_t now_ns) {
  const bool is_known = lost_patience_ && page.changes.load() == with_change_;
  std::atomic<uint32_t>& turn = page.slots[slot_].turn;
  ipc::enter_baton_line(page, slot_, virtual_ns_);
  in_line_ = true;
  const uint64_t end_ns = now_ns + (is_known ? 0 : kPatienceNs);
  bool taken = ipc::take_baton(page, slot_, virtual_ns_);
  for (uint64_t at = now_ns; at < end_ns && !taken; at = clock_.monotonic_ns()) {
    if (turn.load() != word(ipc::BatonTurn::kWaits)) break;
    const bool is_over = sleep_on(turn, word(ipc::BatonTurn::kWaits), end_ns - at);
    taken = ipc::take_baton(page, slot_, virtual_ns_);
    if (is_over) break;
  }
  if (taken || turn.load() == word(ipc::BatonTurn::kGiven)) return leave_line(page) || taken;
  if (!is_known) ++overruns_;
  lost_patience_ = true;
  with_change_ = page.changes.load();
  return false;
}

// Gives whether it was given the baton.
bool Baton::leave_line(ipc::BatonPage& page) {
  in_line_ = false;
  return ipc::leave_baton_line(page, slot_);
}

void Baton::pass(uint64_t now_ns) {
  ipc::BatonPage* const page = this->page();
  if (in_line_) holds_ |= leave_line(*page);
  if (!holds_) return;
  holds_ = false;
  virtual_ns_ += now_ns - std::min(now_ns, taken_ns_);
  ipc::pass_baton(*page, slot_);
}

bool Baton::is_due(uint32_t units) const {
  return holds_ && page()->waiting.load(std::memory_order_relaxed) != 0 &&
         clock_.monotonic_ns() >= taken_ns_ + units * kUnitNs;
}

uint64_t Baton::pass_if_due(uint32_t units) {
  if (!is_due(units)) return 0;
  const uint64_t now_ns = clock_.monotonic_ns();
  pass(now_ns);
  return take(now_ns);
}

}  // namespace djinn::worker
