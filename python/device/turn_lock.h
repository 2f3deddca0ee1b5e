// SPDX-License-Identifier: Apache-2.0

// TurnLock: a mutex that knows whose turn it is. A thread that has it and asks for it once more
// gets an error, where a mutex would have it wait for itself.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "python/device/torch_headers.h"

namespace djinn::device {

class TurnLock {
 public:
  // Throws where this thread has it.
  void lock() {
    refuse_mine();
    mutex_.lock();
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  // The same, and gives up after that time: false.
  template <typename Duration>
  bool try_lock_for(const Duration& duration) {
    refuse_mine();
    if (!mutex_.try_lock_for(duration)) return false;
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
  }
  // False where this thread has it, too.
  bool try_lock() {
    if (is_mine() || !mutex_.try_lock()) return false;
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
  }
  void unlock() {
    owner_.store({}, std::memory_order_relaxed);
    mutex_.unlock();
  }

 private:
  // Another thread's id may be read while it changes, but never as this one's.
  [[nodiscard]] bool is_mine() const {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  void refuse_mine() const {
    TORCH_CHECK(!is_mine(),
                "The device is used from inside of one of its own calls, which has not ended: code "
                "that PyTorch calls in the middle of an operator must not use its tensors.");
  }

  std::timed_mutex mutex_;
  std::atomic<std::thread::id> owner_;
};

}  // namespace djinn::device
