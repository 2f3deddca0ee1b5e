// SPDX-License-Identifier: Apache-2.0

// Interrupt: how another thread, or a signal handler, ends the call that a thread waits in.
//
//   call      what a thread is in the middle of; one at a time, and each has a number of its own
//   raised    the number of the call that is to end; a call that comes later has another number
//
// invariant: who raises touches two atomic words and one descriptor, whatever the call does.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::client {

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
    explicit Call(Interrupt& interrupt) : interrupt_(interrupt), is_outer_(interrupt.call_ == 0) {
      if (is_outer_) interrupt_.begin();
    }
    ~Call() {
      if (is_outer_) interrupt_.call_ = 0;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Interrupt& interrupt_;
    bool is_outer_;
  };

  // --- the call's thread
  [[nodiscard]] bool is_raised() const noexcept;
  // Becomes readable when it is raised, and perhaps without; take() has it so no more.
  [[nodiscard]] int fd() const { return bell_.get(); }
  void take() noexcept;

 private:
  void begin() noexcept;

  Fd bell_;
  pid_t opened_by_ = 0;
  uint64_t last_call_ = 0;
  std::atomic<uint64_t> call_ = 0;    // 0: none
  std::atomic<uint64_t> raised_ = 0;  // 0: never
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "signal handlers use it");
};

}  // namespace djinn::client
