// SPDX-License-Identifier: Apache-2.0

#include "ipc/ring.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <thread>

#include "kernel/base/fd.h"
#include "kernel/base/random.h"

namespace djinn::ipc {
namespace {

constexpr uint64_t kStagingBytes = 4096;
constexpr uint32_t kSlots = limits::kSubmissionSlots;

// A session's memory with both ends, as a fresh session has them.
struct Session {
  struct alignas(4096) Memory {
    std::array<std::byte, SessionLayout::bytes(kStagingBytes)> bytes{};
  };
  std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  SessionView view = SessionView::over(memory->bytes).value();
  ClientRing client{view};
  WorkerRing worker{view, 0, 0};
};

Submission numbered(uint64_t run) {
  Submission submission;
  submission.operation = static_cast<uint16_t>(Operation::kNop);
  submission.run = run;
  submission.binding_offset = run * 3;
  submission.program = ~run;
  return submission;
}

Completion done(const Submission& submission) {
  Completion completion;
  completion.kind = static_cast<uint16_t>(CompletionKind::kDone);
  completion.run = submission.run;
  completion.random_offset = submission.binding_offset ^ submission.program;
  return completion;
}

void work_one(WorkerRing& worker) {
  ASSERT_TRUE(worker.has_submission().value());
  worker.push(done(worker.copy_submission()));
  worker.complete_one();
  (void)worker.publish();
}

// --- one thread

TEST(Ring, memory_smaller_than_its_layout_is_refused) {
  std::vector<std::byte> memory(SessionLayout::bytes(0) - 1);
  EXPECT_EQ(SessionView::over(memory).error().code, ErrorCode::kMalformed);
}

TEST(Ring, the_parts_of_session_memory_do_not_overlap) {
  const Session session;
  const auto* submissions_end = &session.view.submission(kSlots - 1) + 1;
  const auto* completions_end = &session.view.completion(limits::kCompletionSlots - 1) + 1;
  EXPECT_LE(reinterpret_cast<const std::byte*>(&session.view.control() + 1),
            reinterpret_cast<const std::byte*>(&session.view.submission(0)));
  EXPECT_LE(static_cast<const void*>(submissions_end), &session.view.completion(0));
  EXPECT_LE(static_cast<const void*>(completions_end), session.view.error_text(0).data());
  EXPECT_LE(static_cast<const void*>(session.view.error_text(kSlots - 1).data() +
                                     limits::kErrorTextBytes),
            session.view.staging().data());
  EXPECT_EQ(session.view.staging().size(), kStagingBytes);
}

TEST(Ring, a_full_submission_ring_takes_one_more_for_each_completed) {
  Session session;
  for (uint64_t run = 1; run <= kSlots; ++run) {
    ASSERT_EQ(session.client.publish(numbered(run)).value(), run - 1);
  }
  EXPECT_EQ(session.client.free_slots().value(), 0u);
  EXPECT_EQ(session.client.publish(numbered(0)).error().code, ErrorCode::kQueueFull);
  ASSERT_TRUE(session.worker.has_submission().value());
  EXPECT_EQ(session.worker.copy_submission().run, 1u);
  // Picked up is not completed: the slot is still taken.
  EXPECT_EQ(session.client.publish(numbered(0)).error().code, ErrorCode::kQueueFull);
  session.worker.complete_one();
  EXPECT_TRUE(session.client.publish(numbered(kSlots + 1)));
  EXPECT_EQ(session.client.publish(numbered(0)).error().code, ErrorCode::kQueueFull);
}

TEST(Ring, completions_are_invisible_until_published) {
  Session session;
  session.worker.push(done(numbered(1)));
  EXPECT_FALSE(session.client.take().value());
  EXPECT_FALSE(session.worker.publish());
  EXPECT_EQ(session.client.take().value()->run, 1u);
  EXPECT_FALSE(session.client.take().value());
}

TEST(Ring, a_full_completion_ring_blocks_its_worker_until_the_client_took_enough) {
  Session session;
  for (uint32_t i = 0; i < limits::kCompletionSlots; ++i) session.worker.push(done(numbered(i)));
  (void)session.worker.publish();
  EXPECT_EQ(session.worker.free_completions().value(), 0u);
  EXPECT_FALSE(session.client.worker_is_blocked());
  EXPECT_TRUE(session.worker.block_until_free(2).value());
  ASSERT_TRUE(session.client.take().value());
  EXPECT_TRUE(session.client.worker_is_blocked());
  EXPECT_TRUE(session.worker.block_until_free(2).value());
  ASSERT_TRUE(session.client.take().value());
  EXPECT_FALSE(session.worker.block_until_free(2).value());
  session.worker.push(done(numbered(9)));
  (void)session.worker.publish();
  EXPECT_FALSE(session.client.worker_is_blocked());
}

TEST(Ring, submissions_that_are_not_complete_can_be_copied_ahead) {
  Session session;
  for (uint64_t run = 1; run <= 3; ++run) ASSERT_TRUE(session.client.publish(numbered(run)));
  ASSERT_TRUE(session.worker.has_submission().value());
  EXPECT_EQ(session.worker.found(), 3u);
  EXPECT_EQ(session.worker.copy_submission(2).run, 3u);
  EXPECT_EQ(session.worker.copy_submission(0).run, 1u);
  EXPECT_FALSE(session.worker.prepare_to_sleep(2)) << "one was not copied";
  EXPECT_TRUE(session.worker.prepare_to_sleep(3));
  ASSERT_TRUE(session.client.publish(numbered(4)));
  EXPECT_TRUE(session.client.worker_must_be_woken());
}

TEST(Ring, completions_that_are_looked_at_keep_their_slots) {
  Session session;
  for (uint32_t i = 0; i < limits::kCompletionSlots; ++i) session.worker.push(done(numbered(i)));
  (void)session.worker.publish();
  for (uint64_t i = 0; i < limits::kCompletionSlots; ++i) {
    EXPECT_EQ(session.client.look_at(i).value()->run, i);
  }
  EXPECT_FALSE(session.client.look_at(limits::kCompletionSlots).value());
  EXPECT_EQ(session.worker.free_completions().value(), 0u);
  EXPECT_TRUE(session.client.prepare_to_sleep(limits::kCompletionSlots));
  EXPECT_FALSE(session.client.prepare_to_sleep(3));
  session.client.consume_through(3);
  EXPECT_EQ(session.worker.free_completions().value(), 3u);
  EXPECT_EQ(session.client.take().value()->run, 3u);
}

TEST(Ring, a_worker_reads_what_its_client_has_stated) {
  Session session;
  ClientStatement statement{{1, 2, 3}, 4};
  session.client.state(statement);
  EXPECT_EQ(session.worker.statement(), statement);
}

TEST(Ring, who_is_about_to_sleep_is_woken_and_who_is_awake_is_not) {
  Session session;
  ASSERT_TRUE(session.client.publish(numbered(1)));
  EXPECT_FALSE(session.client.worker_must_be_woken());
  EXPECT_FALSE(session.worker.prepare_to_sleep()) << "there is work";
  work_one(session.worker);
  EXPECT_TRUE(session.worker.prepare_to_sleep());
  ASSERT_TRUE(session.client.publish(numbered(2)));
  EXPECT_TRUE(session.client.worker_must_be_woken());
  session.worker.finish_sleep();
  EXPECT_FALSE(session.client.worker_must_be_woken());

  EXPECT_FALSE(session.client.prepare_to_sleep()) << "there is a completion";
  ASSERT_TRUE(session.client.take().value());
  EXPECT_TRUE(session.client.prepare_to_sleep());
  session.worker.push(done(numbered(2)));
  EXPECT_TRUE(session.worker.publish());
  session.client.finish_sleep();
  EXPECT_FALSE(session.worker.publish());
}

TEST(Ring, a_new_worker_goes_on_where_the_state_extent_says) {
  Session session;
  for (uint64_t run = 1; run <= 5; ++run) ASSERT_TRUE(session.client.publish(numbered(run)));
  work_one(session.worker);
  work_one(session.worker);
  ASSERT_TRUE(session.worker.block_until_free(limits::kCompletionSlots).value());
  // The worker died after it had committed run 3 and before it told the client.
  WorkerRing successor(session.view, 3, 2);
  EXPECT_FALSE(session.client.worker_is_blocked());
  EXPECT_EQ(session.client.free_slots().value(), kSlots - 2);
  EXPECT_TRUE(successor.has_submission().value());
  EXPECT_EQ(successor.copy_submission().run, 4u);
  successor.push(done(numbered(3)));
  (void)successor.publish();
  for (uint64_t run = 1; run <= 3; ++run) EXPECT_EQ(session.client.take().value()->run, run);
}

TEST(Ring, error_texts_end_within_their_slot) {
  Session session;
  const std::string text(2 * limits::kErrorTextBytes, 'e');
  session.worker.set_error_text(kSlots + 3, text);
  const std::span<char> area = session.view.error_text(3);
  EXPECT_EQ(strnlen(area.data(), area.size()), limits::kErrorTextBytes - 1);
  EXPECT_EQ(session.view.error_text(4)[0], '\0');
  session.worker.set_error_text(3, "short");
  EXPECT_STREQ(area.data(), "short");
}

TEST(Ring, cancellation_reaches_the_worker) {
  Session session;
  EXPECT_EQ(session.worker.cancelled_through(), 0u);
  session.client.cancel_through(7);
  EXPECT_EQ(session.worker.cancelled_through(), 7u);
}

// --- hostile indices

uint64_t published_after(Session& session, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_TRUE(session.client.publish(numbered(i + 1)));
    work_one(session.worker);
  }
  return count;
}

TEST(Ring, a_submission_index_out_of_range_is_a_protocol_violation) {
  Session session;
  const uint64_t at = published_after(session, 10);
  uint64_t& published = session.view.control().submissions_published.word;
  for (const uint64_t hostile : {uint64_t{0}, at - 1, at + kSlots + 1, UINT64_MAX}) {
    published = hostile;
    EXPECT_EQ(session.worker.has_submission().error().code, ErrorCode::kProtocolViolation);
    EXPECT_FALSE(session.worker.prepare_to_sleep()) << "a violation must be seen, not slept over";
  }
  published = at + kSlots;
  EXPECT_TRUE(session.worker.has_submission().value());
}

TEST(Ring, what_was_found_is_not_taken_back) {
  Session session;
  EXPECT_TRUE(session.client.publish(numbered(1)));
  EXPECT_TRUE(session.worker.has_submission().value());
  uint64_t& published = session.view.control().submissions_published.word;
  published = 0;
  EXPECT_EQ(session.worker.has_submission().error().code, ErrorCode::kProtocolViolation);
  EXPECT_EQ(session.worker.open(), 1u);
  EXPECT_EQ(session.worker.copy_submission().run, 1u);
  published = 1;
  for (uint32_t i = 0; i < 3; ++i) session.worker.push(done(numbered(i)));
  (void)session.worker.publish();
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(session.client.take().value());
  EXPECT_EQ(session.worker.free_completions().value(), limits::kCompletionSlots);
  session.view.control().completions_consumed.word = 2;
  EXPECT_EQ(session.worker.free_completions().error().code, ErrorCode::kProtocolViolation);
}

TEST(Ring, a_consumed_index_out_of_range_is_a_protocol_violation) {
  Session session;
  for (uint32_t i = 0; i < limits::kCompletionSlots; ++i) session.worker.push(done(numbered(i)));
  (void)session.worker.publish();
  ASSERT_TRUE(session.client.take().value());
  ASSERT_EQ(session.worker.free_completions().value(), 1u);
  session.worker.push(done(numbered(0)));
  uint64_t& consumed = session.view.control().completions_consumed.word;
  for (const uint64_t hostile : {uint64_t{0}, uint64_t{limits::kCompletionSlots} + 2, UINT64_MAX}) {
    consumed = hostile;
    EXPECT_EQ(session.worker.free_completions().error().code, ErrorCode::kProtocolViolation);
    EXPECT_EQ(session.worker.block_until_free(1).error().code, ErrorCode::kProtocolViolation);
  }
  consumed = 1;
  EXPECT_EQ(session.worker.free_completions().value(), 0u);
}

TEST(Ring, what_was_found_and_what_was_seen_free_is_not_taken_back) {
  Session session;
  for (uint64_t run = 1; run <= 3; ++run) ASSERT_TRUE(session.client.publish(numbered(run)));
  ASSERT_TRUE(session.worker.has_submission().value());
  uint64_t& published = session.view.control().submissions_published.word;
  for (const uint64_t less : {uint64_t{2}, uint64_t{1}, uint64_t{0}}) {
    published = less;
    EXPECT_EQ(session.worker.has_submission().error().code, ErrorCode::kProtocolViolation);
    EXPECT_EQ(session.worker.open(), 3u);
    EXPECT_EQ(session.worker.copy_submission().run, 1u);
  }
  published = 3;
  EXPECT_TRUE(session.worker.has_submission().value());

  for (uint64_t run = 1; run <= 3; ++run) work_one(session.worker);
  ASSERT_TRUE(session.client.take().value());
  ASSERT_TRUE(session.client.take().value());
  ASSERT_EQ(session.worker.free_completions().value(), limits::kCompletionSlots - 1);
  uint64_t& consumed = session.view.control().completions_consumed.word;
  consumed = 1;
  EXPECT_EQ(session.worker.free_completions().error().code, ErrorCode::kProtocolViolation);
  consumed = 2;
  EXPECT_EQ(session.worker.free_completions().value(), limits::kCompletionSlots - 1);
}

TEST(Ring, what_a_former_worker_had_found_is_completed_though_the_client_took_it_back) {
  Session session;
  ASSERT_TRUE(session.client.publish(numbered(1)));
  session.view.control().submissions_published.word = 0;
  WorkerRing successor(session.view, 0, 0);
  EXPECT_FALSE(successor.has_submission().value());
  successor.complete_one();
  EXPECT_EQ(successor.open(), 0u);
  EXPECT_EQ(successor.has_submission().error().code, ErrorCode::kProtocolViolation);
}

TEST(RingDeathTest, a_completion_has_no_place_but_in_a_slot_that_was_seen_free) {
  Session session;
  for (uint32_t i = 0; i < limits::kCompletionSlots; ++i) session.worker.push(done(numbered(i)));
  (void)session.worker.publish();
  ASSERT_TRUE(session.client.take().value());
  EXPECT_DEATH(session.worker.push(done(numbered(0))), "kCompletionSlots");
}

TEST(Ring, a_worker_that_lost_its_mind_ends_the_session_too) {
  Session session;
  const uint64_t at = published_after(session, kSlots + 10);
  uint64_t& completed = session.view.control().submissions_completed.word;
  for (const uint64_t hostile : {uint64_t{0}, at - kSlots - 1, at + 1, UINT64_MAX}) {
    completed = hostile;
    EXPECT_EQ(session.client.free_slots().error().code, ErrorCode::kProtocolViolation);
    EXPECT_EQ(session.client.publish(numbered(0)).error().code, ErrorCode::kProtocolViolation);
  }
  while (session.client.take().value()) continue;
  uint64_t& published = session.view.control().completions_published.word;
  for (const uint64_t hostile : {uint64_t{0}, at - 1, at + limits::kCompletionSlots + 1}) {
    published = hostile;
    EXPECT_EQ(session.client.take().error().code, ErrorCode::kProtocolViolation);
  }
}

TEST(Ring, random_words_never_lead_outside_the_memory) {
  Random random(5);
  Session session;
  for (int i = 0; i < 20000; ++i) {
    auto* line = reinterpret_cast<ControlLine*>(&session.view.control()) + random.below(4);
    line->word = random.below(2) == 0 ? random.next() : random.below(3000);
    (void)session.client.publish(numbered(1));
    (void)session.client.take();
    const auto found = session.worker.has_submission();
    if (found && *found) (void)session.worker.copy_submission();
    const auto free = session.worker.free_completions();
    if (free && *free > 0) session.worker.push(done(numbered(1)));
    session.worker.set_error_text(random.next(), "x");
  }
}

// --- two threads

// Wakes the other side; a wait that takes half a minute is a lost wake-up.
class Bell {
 public:
  Bell() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  void ring() {
    const uint64_t one = 1;
    ASSERT_EQ(::write(fd_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  // False when nobody rang.
  bool wait() {
    pollfd waiting{fd_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 30'000) != 1) return false;
    uint64_t rings = 0;
    return ::read(fd_.get(), &rings, sizeof rings) == static_cast<ssize_t>(sizeof rings);
  }

 private:
  Fd fd_;
};

// Both sides of a session on two threads. A side that fails ends; the other then fails at its bell.
struct Traffic {
  Session session;
  Bell submission_bell, completion_bell;
  uint64_t runs = 0;
  uint64_t taken = 0;
  bool sleeps = true;

  [[nodiscard]] static bool fine() { return !testing::Test::HasFatalFailure(); }

  void rest(Bell& bell, bool may_sleep) const {
    if (may_sleep && sleeps) {
      ASSERT_TRUE(bell.wait()) << "lost wake-up";
    } else {
      std::this_thread::yield();
    }
  }

  void worker_step(WorkerRing& ring) {
    if (ring.block_until_free(1).value()) return rest(submission_bell, true);
    if (!ring.has_submission().value()) {
      rest(submission_bell, ring.prepare_to_sleep());
      return ring.finish_sleep();
    }
    ring.push(done(ring.copy_submission()));
    ring.complete_one();
    if (ring.publish()) completion_bell.ring();
  }
  void work() {
    while (session.worker.completed() < runs && fine()) worker_step(session.worker);
  }

  void take_or_rest(ClientRing& ring) {
    const auto completion = ring.take().value();
    if (!completion) {
      rest(completion_bell, ring.prepare_to_sleep());
      return ring.finish_sleep();
    }
    const Completion expected = done(numbered(++taken));
    ASSERT_EQ(completion->run, expected.run);
    ASSERT_EQ(completion->random_offset, expected.random_offset);
    if (ring.worker_is_blocked()) submission_bell.ring();
  }
  uint64_t submit(uint64_t submitted, uint64_t count) {
    while (count-- > 0 && session.client.publish(numbered(submitted + 1))) ++submitted;
    if (session.client.worker_must_be_woken()) submission_bell.ring();
    return submitted;
  }
  void submit_and_take(uint64_t seed) {
    Random random(seed);
    uint64_t submitted = 0;
    while (taken < runs && fine()) {
      submitted = submit(submitted, std::min(random.below(2 * kSlots), runs - submitted));
      for (uint64_t n = random.below(kSlots); taken < submitted && n > 0 && fine(); --n) {
        take_or_rest(session.client);
      }
    }
  }

  void go(uint64_t seed) {
    std::thread worker([this] { work(); });
    submit_and_take(seed);
    worker.join();
    EXPECT_EQ(taken, runs);
  }
};

TEST(Ring, once_a_million_items_cross_in_order_and_unchanged) {
  Traffic traffic;
  traffic.runs = 1'000'000;
  traffic.sleeps = false;
  traffic.go(6);
}

TEST(Ring, sleeping_whenever_there_is_nothing_to_do_loses_no_wake_up) {
  Traffic traffic;
  traffic.runs = 200'000;
  traffic.go(7);
}

TEST(Ring, one_item_at_a_time_sleeps_at_both_ends_and_loses_no_wake_up) {
  Traffic traffic;
  traffic.runs = 20'000;
  std::thread worker([&] { traffic.work(); });
  while (traffic.taken < traffic.runs && Traffic::fine()) {
    const uint64_t submitted = traffic.submit(traffic.taken, 1);
    while (traffic.taken < submitted && Traffic::fine())
      traffic.take_or_rest(traffic.session.client);
  }
  worker.join();
}

TEST(Ring, a_worker_with_more_to_say_than_slots_loses_no_wake_up) {
  Traffic traffic;
  traffic.runs = 200'000;
  std::thread worker([&] {
    constexpr uint32_t kAtOnce = limits::kCompletionSlots / 8;
    for (uint64_t pushed = 0; pushed < traffic.runs && Traffic::fine();) {
      if (traffic.session.worker.block_until_free(kAtOnce).value()) {
        traffic.rest(traffic.submission_bell, true);
        continue;
      }
      for (uint32_t i = 0; i < kAtOnce; ++i) traffic.session.worker.push(done(numbered(++pushed)));
      if (traffic.session.worker.publish()) traffic.completion_bell.ring();
    }
  });
  while (traffic.taken < traffic.runs && Traffic::fine())
    traffic.take_or_rest(traffic.session.client);
  worker.join();
}

}  // namespace
}  // namespace djinn::ipc
