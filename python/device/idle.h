// SPDX-License-Identifier: Apache-2.0

// IdleWatch: a thread that notices when nothing has been recorded for a while.
//
//   asleep   waits without a timeout: what came up to now was dealt with
//   awake    looks again each kIdle, until nothing new came between two looks
//
// invariant: all state is guarded by the mutex that the owner gave, which idle() is called under.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <thread>

#include "python/device/turn_lock.h"

namespace djinn::device {

class IdleWatch {
 public:
  // idle: must not throw, nor need the GIL.
  IdleWatch(TurnLock& mutex, std::function<void()> idle) : mutex_(mutex), idle_(std::move(idle)) {}
  IdleWatch(const IdleWatch&) = delete;
  IdleWatch& operator=(const IdleWatch&) = delete;

  // There is something to be dealt with once nothing more comes. Called under the mutex. It costs a
  // counter, but for the call that finds the thread asleep.
  void touch() {
    ++touched_;
    if (!awake_) wake();
  }
  // Ends the thread, and there will be no other. Called without the mutex.
  void stop();

 private:
  void wake();
  void watch();

  TurnLock& mutex_;
  const std::function<void()> idle_;
  std::condition_variable_any changed_;
  uint64_t touched_ = 0;
  bool awake_ = false;
  bool stopped_ = false;
  std::thread thread_;  // from the first touch on
};

}  // namespace djinn::device
