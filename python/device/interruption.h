// SPDX-License-Identifier: Apache-2.0

// Interruption: what a wait for djinnd asks now and then, namely whether a signal's handler has
// raised something. The wait then ends, and raises that again.
//
//   CtrlC      the same in the middle of the device's work, where no handler may run: only Python's
//              own handler of Ctrl-C is looked at, which uses nothing. Others run after the call
//   Deferred   while one lives, no wait of this thread is ended
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
  // In the child of a fork, before anything else of the device's.
  static void note_fork();

  class Deferred {
   public:
    Deferred();
    ~Deferred();
    Deferred(const Deferred&) = delete;
    Deferred& operator=(const Deferred&) = delete;
  };

 private:
  Place place_;
  std::chrono::steady_clock::time_point due_ = std::chrono::steady_clock::now() + kSlice;
  std::exception_ptr raised_;
};

class CtrlC {
 public:
  // While one lives, a wait of this thread also ends when it comes to take longer than a slice: its
  // caller waits where all handlers may run.
  class Hurry {
   public:
    Hurry();
    ~Hurry();
    Hurry(const Hurry&) = delete;
    Hurry& operator=(const Hurry&) = delete;
  };

  // Whether the wait is to end. Where Ctrl-C was pressed every wait of this thread does, until that
  // is raised. May be asked often.
  static bool ends_wait();
  // Throws KeyboardInterrupt if it was, also where a turn that ended has pressed it again.
  static void raise_again();
  // Python's flag is set again if a wait has taken it and nobody has raised it: the end of a turn.
  static void press_again();
};

}  // namespace djinn::device
