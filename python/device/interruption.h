// SPDX-License-Identifier: Apache-2.0

// Interruption: what a wait for djinnd asks now and then, namely whether a signal's handler has
// raised something. The wait then ends, and raises that again.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>

namespace djinn::device {

// A wait looks this often. A person who presses Ctrl-C does not notice it, and it bounds what a
// wake-up costs that another thread took, which is rare.
inline constexpr std::chrono::milliseconds kSlice(50);

class Interruption {
 public:
  // kWithLock: it takes the GIL with the device's lock, which is sound because nobody waits for the
  // lock with the GIL. The handler must not use the device, which its own thread has.
  // kWithoutLock: it may be asked often.
  enum class Place : uint8_t { kWithLock, kWithoutLock };
  explicit Interruption(Place place) : place_(place) {}

  // Whether the wait is to end.
  bool operator()();
  // Throws what the handler raised, if it raised something.
  void raise_again() const;
  // Whether this thread is inside of such a handler, and has the device's lock.
  [[nodiscard]] static bool runs_handler();

 private:
  Place place_;
  std::chrono::steady_clock::time_point due_ = std::chrono::steady_clock::now() + kSlice;
  std::exception_ptr raised_;
};

}  // namespace djinn::device
