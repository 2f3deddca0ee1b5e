// SPDX-License-Identifier: Apache-2.0

// Turn: while one lives, its thread has the device's lock, and not the GIL. So whoever waits for
// the lock, or for djinnd, keeps no Python thread from going on.
//
//   WithoutGil   lets go of the GIL, if this thread has it
//   Pause        lets go of the lock for a while: what the device holds may have changed then
#pragma once

#include <mutex>

#include "python/device/turn_lock.h"

namespace djinn::device {

class WithoutGil {
 public:
  // Throws in a signal's handler that interrupts a wait with the device's lock.
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* state_ = nullptr;
};

class Turn {
 public:
  // Waits for the lock, and throws what a signal's handler raised meanwhile.
  explicit Turn(TurnLock& mutex);
  // A Ctrl-C that a wait has taken, and that was not raised, is Python's again: it comes out of the
  // call in which it was pressed.
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  [[nodiscard]] std::unique_lock<TurnLock>& lock() { return lock_; }

  class Pause {
   public:
    explicit Pause(Turn& turn) : turn_(turn) { turn_.lock_.unlock(); }
    ~Pause() { turn_.lock_.lock(); }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Turn& turn_;
  };

 private:
  WithoutGil without_gil_;
  std::unique_lock<TurnLock> lock_;
};

}  // namespace djinn::device
