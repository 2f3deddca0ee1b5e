// SPDX-License-Identifier: Apache-2.0

// The four ends of a session's two rings (layout and rules: session_memory.h).
//
//   ClientRing   publishes submissions, consumes completions
//   WorkerRing   consumes submissions, publishes completions
//
// invariant (each end): its own published index only grows, and the other side's is believed only
// when published - consumed <= capacity. A breach is kProtocolViolation and ends the session.
// Each end belongs to one thread at a time.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "ipc/session_memory.h"
#include "kernel/base/result.h"

namespace djinn::ipc {

// A mapped session memory, seen as its parts. Does not own the mapping.
class SessionView {
 public:
  // memory: the whole mapping. Errors: kMalformed when it is too small for the layout.
  static Result<SessionView> over(std::span<std::byte> memory);

  [[nodiscard]] SessionControl& control() const;
  [[nodiscard]] Submission& submission(uint64_t index) const;
  [[nodiscard]] Completion& completion(uint64_t index) const;
  // The text area of a submission's slot: NUL-terminated by the worker, not believed by the client.
  [[nodiscard]] std::span<char> error_text(uint64_t submission_index) const;
  [[nodiscard]] std::span<std::byte> staging() const;

 private:
  explicit SessionView(std::span<std::byte> memory);
  std::span<std::byte> memory_;
};

class ClientRing {
 public:
  explicit ClientRing(SessionView view) : view_(view) {}

  // Slots that publish() can still take. Errors: kProtocolViolation.
  Result<uint32_t> free_slots() const;
  // Writes and publishes one submission; returns its index. Errors: kQueueFull, or as free_slots().
  Result<uint64_t> publish(const Submission& submission);
  // True if the worker sleeps and its bell must be rung. Call after publish().
  [[nodiscard]] bool worker_must_be_woken() const;

  // The next completion, if there is one; its slot is free from then on. Errors:
  // kProtocolViolation.
  Result<std::optional<Completion>> take();
  // Completion number `index`, if it is there; its slot stays taken until consume_through().
  // Precondition: it was not consumed. Errors: kProtocolViolation.
  Result<std::optional<Completion>> look_at(uint64_t index) const;
  // Frees the slots of completions [0, index), which look_at() has found.
  void consume_through(uint64_t index);
  [[nodiscard]] uint64_t consumed() const { return consumed_; }
  // True if the worker waits for the slots that take() freed: ring its bell.
  [[nodiscard]] bool worker_is_blocked() const;
  // Before sleeping on the bell: true when there is nothing to take, and the worker will ring.
  [[nodiscard]] bool prepare_to_sleep() { return prepare_to_sleep(consumed_); }
  // The same for who has looked at completions [0, seen).
  [[nodiscard]] bool prepare_to_sleep(uint64_t seen);
  void finish_sleep();

  void cancel_through(uint64_t run);
  void state(const ClientStatement& statement);

 private:
  SessionView view_;
  uint64_t published_ = 0;
  uint64_t consumed_ = 0;
};

class WorkerRing {
 public:
  // completed, completions_published: the worker's own indices, from the state extent.
  WorkerRing(SessionView view, uint64_t completed, uint64_t completions_published);

  // True when submission number completed() is published, and from then on until it is complete: a
  // client that takes one back that was found breaks the protocol. Errors: kProtocolViolation.
  Result<bool> has_submission();
  // A private copy of submission number completed(), which has_submission() has found.
  [[nodiscard]] Submission copy_submission() const { return copy_submission(completed_); }
  // Of submission number `index`. Precondition: completed() <= index < found().
  [[nodiscard]] Submission copy_submission(uint64_t index) const;
  // Submissions [0, found()) were published when has_submission() last looked.
  [[nodiscard]] uint64_t found() const { return found_; }
  // How many of those are not complete.
  [[nodiscard]] uint64_t open() const { return found_ - completed_; }
  void complete_one();  // frees the slot
  [[nodiscard]] uint64_t completed() const { return completed_; }

  // Slots that push() can still take; no fewer than were seen, but for what was pushed since.
  // Errors: kProtocolViolation.
  Result<uint32_t> free_completions();
  // True when there is no room for `count` completions, and the client will ring when it made some.
  // No more than the ring has slots.
  Result<bool> block_until_free(uint32_t count);
  // Writes a completion into the next slot; not yet visible. Precondition: the slot was free when
  // last looked at.
  void push(const Completion& completion);
  [[nodiscard]] uint64_t pushed() const { return pushed_; }
  // Makes all that was pushed visible; true if the client sleeps and must be woken.
  [[nodiscard]] bool publish();
  void set_error_text(uint64_t submission_index, std::string_view text);

  // True when there is nothing to do, and the client will ring.
  [[nodiscard]] bool prepare_to_sleep() { return prepare_to_sleep(completed_); }
  // The same for who has copied submissions [0, seen).
  [[nodiscard]] bool prepare_to_sleep(uint64_t seen);
  void finish_sleep();
  [[nodiscard]] uint64_t cancelled_through() const;
  [[nodiscard]] ClientStatement statement() const;

 private:
  void unblock();

  SessionView view_;
  uint64_t completed_;
  uint64_t found_;  // submissions before this were published, when last looked at
  uint64_t pushed_;
  uint64_t consumed_ = 0;  // at least so many were, when last looked at
  bool blocked_ = false;   // worker_blocked was raised since the last publish()
};

}  // namespace djinn::ipc
