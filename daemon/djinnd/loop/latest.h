// SPDX-License-Identifier: Apache-2.0

// Latest: one place for the newest of something that one thread makes and another takes. Neither
// ever waits for the other.
#pragma once

#include <atomic>
#include <memory>

namespace djinn::daemon {

template <typename T>
class Latest {
 public:
  Latest() = default;
  Latest(const Latest&) = delete;
  Latest& operator=(const Latest&) = delete;
  ~Latest() { take(); }

  // Replaces what was not taken.
  void put(std::unique_ptr<const T> value) {
    const std::unique_ptr<const T> former(
        place_.exchange(value.release(), std::memory_order_acq_rel));
  }
  // Nothing if none was put since the last time.
  std::unique_ptr<const T> take() {
    return std::unique_ptr<const T>(place_.exchange(nullptr, std::memory_order_acq_rel));
  }

 private:
  std::atomic<const T*> place_{nullptr};
};

}  // namespace djinn::daemon
