// SPDX-License-Identifier: Apache-2.0

// Mailbox: what other threads have the lane do, between two steps, or between two operators of a
// run, which is set aside meanwhile.
//
// The rule of jobs: what lets go of something says of what (Subject). If the run that is set aside
// uses that, it is abandoned, and done again after the job (ARCHITECTURE rule 10); every other job
// runs while it is set aside.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <variant>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/base/ids.h"

namespace djinn::worker {

class Mailbox {
 public:
  struct Group {
    SessionId session;
    SequenceHandle sequence;
  };
  // What a job lets go of, if anything: no run may be in the midst of using it.
  using Subject = std::variant<std::monostate, SessionId, Group, ModelId, ProgramId>;

  // bell: rings for whoever sleeps (ipc/bell.h).
  explicit Mailbox(Fd bell) : bell_(std::move(bell)) {}

  [[nodiscard]] const Fd& bell() const { return bell_; }
  // Any thread; the jobs run in the order of these calls.
  void post(Subject subject, std::function<void()> job);
  // Ends a sleep of the lane. Any thread.
  void ring();

  // --- the lane's thread
  [[nodiscard]] bool has_mail() const { return has_mail_.load(std::memory_order_acquire); }
  // What became of it: it was empty, all is done, or a job waits for the run aside to go.
  enum class Mail { kNone, kDone, kWaits };
  // Runs the jobs before the first whose subject is used.
  Mail run(const std::function<bool(const Subject&)>& is_used);

 private:
  struct Job {
    Subject subject;
    std::function<void()> run;
  };

  Fd bell_;
  std::mutex mutex_;
  std::vector<Job> jobs_;
  std::atomic<bool> has_mail_{false};
};

}  // namespace djinn::worker
