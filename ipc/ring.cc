// SPDX-License-Identifier: Apache-2.0

#include "ipc/ring.h"

#include <string.h>

#include <algorithm>
#include <atomic>

#include "kernel/base/assert.h"

namespace djinn::ipc {
namespace {

uint64_t read_word(const ControlLine& line) {
  return std::atomic_ref(const_cast<uint64_t&>(line.word)).load(std::memory_order_acquire);
}
void write_word(ControlLine& line, uint64_t value) {
  std::atomic_ref(line.word).store(value, std::memory_order_release);
}

// These set and clear a sleeper's flag. Each access is a read-modify-write, so all have one order:
// either the sleeper finds what was published, or the publisher finds the flag raised. Fences would
// do as well, but thread sanitizers do not understand them.
void raise(ControlLine& flag) {
  std::atomic_ref(flag.word).exchange(1, std::memory_order_acq_rel);
}
void lower(ControlLine& flag) {
  std::atomic_ref(flag.word).exchange(0, std::memory_order_acq_rel);
}
bool is_raised(ControlLine& flag) {
  return std::atomic_ref(flag.word).fetch_add(0, std::memory_order_acq_rel) != 0;
}

Error breach(std::string_view what) {
  return {ErrorCode::kProtocolViolation, std::string(what)};
}

}  // namespace

// --- SessionView

SessionView::SessionView(std::span<std::byte> memory) : memory_(memory) {
  DJINN_ASSERT(memory_.size() >= SessionLayout::kStagingOffset);
}

Result<SessionView> SessionView::over(std::span<std::byte> memory) {
  if (memory.size() < SessionLayout::bytes(0)) {
    return Error{ErrorCode::kMalformed, "The session memory is smaller than its layout."};
  }
  return SessionView(memory);
}

SessionControl& SessionView::control() const {
  return *reinterpret_cast<SessionControl*>(memory_.data() + SessionLayout::kControlOffset);
}
Submission& SessionView::submission(uint64_t index) const {
  return reinterpret_cast<Submission*>(
      memory_.data() + SessionLayout::kSubmissionsOffset)[index & (limits::kSubmissionSlots - 1)];
}
Completion& SessionView::completion(uint64_t index) const {
  return reinterpret_cast<Completion*>(
      memory_.data() + SessionLayout::kCompletionsOffset)[index & (limits::kCompletionSlots - 1)];
}
std::span<char> SessionView::error_text(uint64_t submission_index) const {
  const uint64_t slot = submission_index & (limits::kSubmissionSlots - 1);
  const auto area = memory_.subspan(
      SessionLayout::kErrorTextsOffset + slot * limits::kErrorTextBytes, limits::kErrorTextBytes);
  return {reinterpret_cast<char*>(area.data()), area.size()};
}
std::span<std::byte> SessionView::staging() const {
  return memory_.subspan(SessionLayout::kStagingOffset);
}

// --- ClientRing

Result<uint32_t> ClientRing::free_slots() const {
  const uint64_t completed = read_word(view_.control().submissions_completed);
  if (completed > published_ || published_ - completed > limits::kSubmissionSlots) {
    return breach("The daemon's submission index is out of range.");
  }
  return static_cast<uint32_t>(limits::kSubmissionSlots - (published_ - completed));
}

Result<uint64_t> ClientRing::publish(const Submission& submission) {
  DJINN_TRY(const uint32_t free, free_slots());
  if (free == 0) {
    return Error{ErrorCode::kQueueFull,
                 "The submission ring is full. Wait for a completion and submit again."};
  }
  DJINN_ASSERT(free <= limits::kSubmissionSlots);  // so the slot is nobody's
  view_.submission(published_) = submission;
  write_word(view_.control().submissions_published, ++published_);
  return published_ - 1;
}

bool ClientRing::worker_must_be_woken() const {
  return is_raised(view_.control().worker_waiting);
}

Result<std::optional<Completion>> ClientRing::take() {
  DJINN_TRY(const std::optional<Completion> completion, look_at(consumed_));
  if (completion) consume_through(consumed_ + 1);
  return completion;
}

Result<std::optional<Completion>> ClientRing::look_at(uint64_t index) const {
  DJINN_ASSERT(index >= consumed_);
  const uint64_t published = read_word(view_.control().completions_published);
  if (published < index || published - consumed_ > limits::kCompletionSlots) {
    return breach("The daemon's completion index is out of range.");
  }
  if (published == index) return std::optional<Completion>();
  return std::optional<Completion>(view_.completion(index));
}

void ClientRing::consume_through(uint64_t index) {
  DJINN_ASSERT(index >= consumed_);
  consumed_ = index;
  write_word(view_.control().completions_consumed, consumed_);
}

bool ClientRing::worker_is_blocked() const {
  return is_raised(view_.control().worker_blocked);
}

bool ClientRing::prepare_to_sleep(uint64_t seen) {
  raise(view_.control().client_waiting);
  if (read_word(view_.control().completions_published) == seen) return true;
  finish_sleep();
  return false;
}
void ClientRing::finish_sleep() {
  lower(view_.control().client_waiting);
}

void ClientRing::cancel_through(uint64_t run) {
  write_word(view_.control().cancelled_through, run);
}

void ClientRing::state(const ClientStatement& statement) {
  ClientStatement& shared = view_.control().statement;
  const auto put = [](uint64_t& word, uint64_t value) {
    std::atomic_ref(word).store(value, std::memory_order_relaxed);
  };
  for (size_t i = 0; i < statement.calls.size(); ++i) put(shared.calls[i], statement.calls[i]);
  put(shared.local_models, statement.local_models);
}

// --- WorkerRing

WorkerRing::WorkerRing(SessionView view, uint64_t completed, uint64_t completions_published)
    : view_(view),
      completed_(completed),
      found_(completed),
      pushed_(completions_published),
      consumed_(pushed_ - std::min<uint64_t>(pushed_, limits::kCompletionSlots)) {
  DJINN_ASSERT(consumed_ <= pushed_);
  // A former worker may have died after it wrote the state extent and before it wrote these words.
  write_word(view_.control().submissions_completed, completed_);
  write_word(view_.control().completions_published, pushed_);
  lower(view_.control().worker_waiting);  // it may also have died asleep
  lower(view_.control().worker_blocked);
}

Result<bool> WorkerRing::has_submission() {
  const uint64_t published = read_word(view_.control().submissions_published);
  if (published < found_ || published - completed_ > limits::kSubmissionSlots) {
    return breach("The submission index is out of range.");
  }
  found_ = published;
  DJINN_ASSERT(found_ >= completed_);
  return published != completed_;
}

Submission WorkerRing::copy_submission(uint64_t index) const {
  DJINN_ASSERT(completed_ <= index && index < found_);
  Submission copy;
  // The bytes are copied. A client that writes the slot at the same time fools only itself.
  memcpy(&copy, &view_.submission(index), sizeof copy);
  return copy;
}

void WorkerRing::complete_one() {
  write_word(view_.control().submissions_completed, ++completed_);
  found_ = std::max(found_, completed_);  // a former worker may have found it
}

Result<uint32_t> WorkerRing::free_completions() {
  const uint64_t consumed = read_word(view_.control().completions_consumed);
  if (consumed < consumed_ || consumed > pushed_) {
    return breach("The completion index is out of range.");
  }
  consumed_ = consumed;
  DJINN_ASSERT(pushed_ - consumed_ <= limits::kCompletionSlots);
  return static_cast<uint32_t>(limits::kCompletionSlots - (pushed_ - consumed));
}

Result<bool> WorkerRing::block_until_free(uint32_t count) {
  DJINN_ASSERT(count <= limits::kCompletionSlots);  // or it would be waited for for ever
  DJINN_TRY(uint32_t free, free_completions());
  if (free >= count) return false;
  blocked_ = true;
  raise(view_.control().worker_blocked);
  DJINN_TRY(free, free_completions());
  if (free < count) return true;
  unblock();
  return false;
}

void WorkerRing::unblock() {
  if (!blocked_) return;
  blocked_ = false;
  lower(view_.control().worker_blocked);
}

void WorkerRing::push(const Completion& completion) {
  DJINN_ASSERT(pushed_ - consumed_ < limits::kCompletionSlots);
  view_.completion(pushed_++) = completion;
}

bool WorkerRing::publish() {
  DJINN_ASSERT(pushed_ - consumed_ <= limits::kCompletionSlots);
  write_word(view_.control().completions_published, pushed_);
  unblock();
  return is_raised(view_.control().client_waiting);
}

void WorkerRing::set_error_text(uint64_t submission_index, std::string_view text) {
  const std::span<char> area = view_.error_text(submission_index);
  DJINN_ASSERT(area.size() == limits::kErrorTextBytes);
  const size_t length = std::min(text.size(), area.size() - 1);
  memcpy(area.data(), text.data(), length);
  area[length] = '\0';
}

bool WorkerRing::prepare_to_sleep(uint64_t seen) {
  raise(view_.control().worker_waiting);
  if (read_word(view_.control().submissions_published) == seen) return true;
  finish_sleep();
  return false;
}
void WorkerRing::finish_sleep() {
  lower(view_.control().worker_waiting);
}

uint64_t WorkerRing::cancelled_through() const {
  return read_word(view_.control().cancelled_through);
}

ClientStatement WorkerRing::statement() const {
  ClientStatement& shared = view_.control().statement;
  const auto get = [](uint64_t& word) {
    return std::atomic_ref(word).load(std::memory_order_relaxed);
  };
  ClientStatement statement;
  for (size_t i = 0; i < statement.calls.size(); ++i) statement.calls[i] = get(shared.calls[i]);
  statement.local_models = get(shared.local_models);
  return statement;
}

}  // namespace djinn::ipc
