// SPDX-License-Identifier: Apache-2.0

// Interrupt: how another thread, or a signal handler, ends the call that a thread waits in.
//
//   call      what a thread is in the middle of; one at a time, and each has a number of its own
//   raised    the number of the call that is to end; a call that comes later has another number
//   asked     what the call asks while it waits, for who cannot raise it from elsewhere: Python,
//             whose signal handlers run on the thread that waits
//
// invariant: who raises touches two atomic words and one descriptor, whatever the call does.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::client {

// Asked several times a second while a call waits, on its thread; true ends the wait. Empty: never.
using CancelPredicate = std::function<bool()>;
inline constexpr uint64_t kAskMs = 25;  // a person who presses Ctrl-C does not notice it

class Interrupt {
 public:
  Interrupt() = default;
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Before the first call; again in the child of a fork, whose interrupts are its own from then on.
  // Errors: kLimitExceeded (descriptors), kSystem.
  Status open();

  // Any thread, and signal handlers: it changes no errno. Does nothing where there is no call.
  void raise() noexcept;

  // While one lives, its thread is in a call.
  class Call {
   public:
    // A call within a call, by a callback, is part of it.
    explicit Call(Interrupt& interrupt, CancelPredicate asked = {})
        : interrupt_(interrupt), is_outer_(interrupt.call_ == 0) {
      if (is_outer_) interrupt_.begin(std::move(asked));
    }
    ~Call() {
      if (is_outer_) interrupt_.end();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Interrupt& interrupt_;
    bool is_outer_;
  };

  // Forgets a call of another thread. In the child of a fork, which has no other threads.
  void forget_call() { end(); }

  // --- the call's thread
  [[nodiscard]] bool is_raised() const noexcept;
  // Whether the call is to be asked while it waits, and asking: it is raised then, if it is to end.
  [[nodiscard]] bool must_ask() const { return asked_ != nullptr; }
  void ask();
  // Becomes readable when it is raised, and perhaps without; take() has it so no more.
  [[nodiscard]] int fd() const { return bell_.get(); }
  void take() noexcept;

 private:
  void begin(CancelPredicate asked) noexcept;
  void end() noexcept;

  Fd bell_;
  pid_t opened_by_ = 0;
  uint64_t last_call_ = 0;
  CancelPredicate asked_;             // of the call
  std::atomic<uint64_t> call_ = 0;    // 0: none
  std::atomic<uint64_t> raised_ = 0;  // 0: never
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "signal handlers use it");
};

}  // namespace djinn::client
