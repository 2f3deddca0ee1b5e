// SPDX-License-Identifier: Apache-2.0

// Baton: which of a device's workers computes. It lies in a page that djinnd makes for each device,
// and that all its workers map; no client ever does.
//
//   slot     what a worker is called there; djinnd gives it
//   holder   who computes. Free: one compare-and-swap takes it
//   turn     the word that a worker sleeps on until the holder gives it the baton: the one that
//            has had the least time
//
// Nobody is trusted. All that stands here is a hint of who should compute, so a worker that writes
// nonsense, keeps the baton or is gone costs the others no more than their patience
// (daemon/worker/baton.h).
//
// invariant: who waits has its bit in `waiting`, and looked at the holder after it was set there;
// who lets go looks at `waiting` after that. So one of the two sees the other.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace djinn::ipc {

inline constexpr uint32_t kBatonSlots = 64;  // a bit each; no device has more workers

enum class BatonTurn : uint32_t { kNone = 0, kWaits = 1, kGiven = 2 };

[[nodiscard]] constexpr uint32_t word(BatonTurn turn) {
  return static_cast<uint32_t>(turn);
}

struct alignas(64) BatonSlot {
  std::atomic<uint32_t> turn;        // BatonTurn; a futex
  std::atomic<uint64_t> virtual_ns;  // what it has had, when it began to wait
};

struct BatonPage {
  alignas(64) std::atomic<uint32_t> holder;  // slot + 1; 0: free
  std::atomic<uint32_t> changes;             // how often it was given or taken
  std::atomic<uint64_t> waiting;             // a bit a slot
  std::atomic<uint64_t> virtual_ns;          // what the holder had had when it came
  std::array<BatonSlot, kBatonSlots> slots;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

// Takes it if it is free. Never waits.
[[nodiscard]] bool take_baton(BatonPage& page, uint32_t slot, uint64_t virtual_ns);
// Lets it go, and gives it to whoever waits and has had least; does nothing where the slot does not
// hold it.
void pass_baton(BatonPage& page, uint32_t slot);
// Who waits stands in line. Leaving it gives whether the baton was given to the slot meanwhile.
void enter_baton_line(BatonPage& page, uint32_t slot, uint64_t virtual_ns);
bool leave_baton_line(BatonPage& page, uint32_t slot);
// djinnd's, of a worker that is gone.
void leave_baton(BatonPage& page, uint32_t slot);

[[nodiscard]] constexpr uint64_t baton_bit(uint32_t slot) {
  return uint64_t{1} << slot;
}

}  // namespace djinn::ipc
