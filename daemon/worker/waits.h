// SPDX-License-Identifier: Apache-2.0

// Waits: what the steps of a lane wait for, and whose step can be repeated now that it has come.
//
//   Awaited   memory that djinnd was asked for, a model that is on its way back, a program that is
//             looked at, or a sequence group that grows or moves
//
// Who gives a step what it needs either has it, refuses it, or says that it is on its way: await()
// notes what, and gives Pending, which ends the step for now. The lane's loop then keeps the
// session waiting until what it awaits has arrived: no other news makes it try again.
//
// invariant: whoever is given Pending awaits something, and arrived() is called for that once it is
// there, is refused, or can come no more.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/messages.h"
#include "kernel/base/ids.h"
#include "kernel/base/outcome.h"

namespace djinn::worker {

struct AwaitedGrant {
  ipc::GrantKind kind = ipc::GrantKind::kRefs;
  SessionId session;  // none: it is the lane's
  bool operator==(const AwaitedGrant&) const = default;
};
struct AwaitedModel {
  ModelId model;
  bool operator==(const AwaitedModel&) const = default;
};
struct AwaitedProgram {
  ProgramId program;
  bool operator==(const AwaitedProgram&) const = default;
};
struct AwaitedSequence {
  SessionId session;
  SequenceHandle sequence;
  bool operator==(const AwaitedSequence&) const = default;
};
using Awaited = std::variant<AwaitedGrant, AwaitedModel, AwaitedProgram, AwaitedSequence>;

class Waits {
 public:
  // wake: called in arrived(), on its thread: the lane has something to look at.
  explicit Waits(std::function<void()> wake) : wake_(std::move(wake)) {}

  // --- lane's thread
  // The next step awaits nothing yet.
  void begin_step() { of_step_ = {}; }
  // The step is set aside with what it has awaited so far: others' begin until it is taken up
  // again.
  void set_aside() { aside_ = std::exchange(of_step_, {}); }
  void take_up() { of_step_ = std::exchange(aside_, {}); }
  // The step cannot go on before that has arrived.
  Pending await(const Awaited& what);
  // The session's step has ended as pending, and its session waits for what that step awaited,
  // unless some of it has come while the step went on.
  void suspend(SessionId session);
  // The session waits for nothing any more, or is gone.
  void forget(SessionId session) { waiting_.erase(session); }
  [[nodiscard]] bool is_waiting(SessionId session) const { return waiting_.contains(session); }
  // Those for whom something has arrived wait no longer.
  void take_arrivals();

  // --- any thread
  void arrived(const Awaited& what);
  // Something has that take_arrivals() has not taken.
  [[nodiscard]] bool has_arrivals() const { return has_arrivals_.load(std::memory_order_acquire); }

 private:
  std::function<void()> wake_;
  struct OfStep {
    std::vector<Awaited> what;
    bool came = false;  // some of it
  };
  OfStep of_step_;
  OfStep aside_;
  std::map<SessionId, std::vector<Awaited>> waiting_;
  std::mutex mutex_;
  std::vector<Awaited> arrivals_;
  std::atomic<bool> has_arrivals_{false};
};

}  // namespace djinn::worker
