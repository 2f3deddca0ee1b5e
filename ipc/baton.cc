// SPDX-License-Identifier: Apache-2.0

#include "ipc/baton.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>

#include "kernel/base/assert.h"

namespace djinn::ipc {
namespace {

// Wakes who sleeps on the word, in whatever process; waits for nobody.
void wake(std::atomic<uint32_t>& turn) {
  ::syscall(SYS_futex, &turn, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// Gives the one of them that has had least; not for none.
uint32_t least_served(const BatonPage& page, uint64_t waiting) {
  DJINN_ASSERT(waiting != 0);
  auto least = static_cast<uint32_t>(std::countr_zero(waiting));
  for (uint64_t rest = waiting; rest != 0; rest &= rest - 1) {
    const auto slot = static_cast<uint32_t>(std::countr_zero(rest));
    const auto had = [&](uint32_t of) { return page.slots[of].virtual_ns.load(); };
    if (had(slot) < had(least)) least = slot;
  }
  return least;
}

// Of a baton that is free. Each is tried once: a slot whose bit is nonsense keeps nobody here.
void give(BatonPage& page) {
  uint64_t tried = 0;
  while (const uint64_t waiting = page.waiting.load() & ~tried) {
    const uint32_t next = least_served(page, waiting);
    tried |= baton_bit(next);
    uint32_t free = 0;
    if (!page.holder.compare_exchange_strong(free, next + 1)) return;  // who took it passes it on
    BatonSlot& slot = page.slots[next];
    uint32_t waits = word(BatonTurn::kWaits);
    if (slot.turn.compare_exchange_strong(waits, word(BatonTurn::kGiven))) {
      page.virtual_ns.store(slot.virtual_ns.load());
      page.changes.fetch_add(1);
      return wake(slot.turn);
    }
    uint32_t held = next + 1;  // it has lost its patience
    if (!page.holder.compare_exchange_strong(held, 0)) return;
  }
}

}  // namespace

bool take_baton(BatonPage& page, uint32_t slot, uint64_t virtual_ns) {
  DJINN_ASSERT(slot < kBatonSlots);
  uint32_t free = 0;
  const bool taken = page.holder.compare_exchange_strong(free, slot + 1);
  // Who was to give it may have died on the way.
  if (!taken && free != slot + 1) return false;
  page.virtual_ns.store(virtual_ns, std::memory_order_relaxed);
  page.changes.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void pass_baton(BatonPage& page, uint32_t slot) {
  DJINN_ASSERT(slot < kBatonSlots);
  uint32_t held = slot + 1;
  if (page.holder.compare_exchange_strong(held, 0)) give(page);
}

void enter_baton_line(BatonPage& page, uint32_t slot, uint64_t virtual_ns) {
  DJINN_ASSERT(slot < kBatonSlots);
  page.slots[slot].virtual_ns.store(virtual_ns);
  page.slots[slot].turn.store(word(BatonTurn::kWaits));
  page.waiting.fetch_or(baton_bit(slot));
}

bool leave_baton_line(BatonPage& page, uint32_t slot) {
  DJINN_ASSERT(slot < kBatonSlots);
  page.waiting.fetch_and(~baton_bit(slot));
  return page.slots[slot].turn.exchange(word(BatonTurn::kNone)) == word(BatonTurn::kGiven);
}

void leave_baton(BatonPage& page, uint32_t slot) {
  leave_baton_line(page, slot);
  pass_baton(page, slot);
}

}  // namespace djinn::ipc
