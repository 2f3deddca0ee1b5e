// SPDX-License-Identifier: Apache-2.0

// A session's submissions, from the ring to the completion.
#include "daemon/worker/runner.h"

#include <algorithm>
#include <thread>

#include "daemon/worker/session_for_tests.h"

namespace djinn::worker {
namespace {

class RunnerTest : public SessionTest {};

TEST_F(RunnerTest, nothing_is_done_where_nothing_is_submitted) {
  EXPECT_EQ(advance(), Runner::Advance::kIdle);
  EXPECT_EQ(ended(), std::nullopt);
}

TEST_F(RunnerTest, a_run_gives_its_client_what_the_lane_computed) {
  submit_run(add_one(), to_staging());
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  EXPECT_EQ(ended(), ErrorCode::kOk);
  EXPECT_EQ(output(), kInputAndOne);
}

TEST_F(RunnerTest, a_run_whose_ref_needs_memory_waits_before_it_computes_and_is_told_once) {
  submit_run(add_one(), to_ref());
  EXPECT_EQ(advance(), Runner::Advance::kWaiting);
  EXPECT_EQ(lane_->stats().begun, 0u);
  EXPECT_EQ(ended(), std::nullopt);
  answer();
  EXPECT_EQ(advance(), Runner::Advance::kWaited);
  EXPECT_EQ(ended(), ErrorCode::kOk);
  EXPECT_EQ(ended(), std::nullopt);
  submit_read();
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  EXPECT_EQ(ended(), ErrorCode::kOk);
  EXPECT_EQ(output(), kInputAndOne);
}

TEST_F(RunnerTest, a_run_that_is_refused_memory_fails_with_what_djinnd_says) {
  submit_run(add_one(), to_ref());
  // A refs section that is refused a large grant asks for what it needs.
  for (int asked = 0; asked < 3 && advance() == Runner::Advance::kWaiting; ++asked) {
    answer(ErrorCode::kQuotaExceeded);
  }
  EXPECT_EQ(ended(), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(lane_->stats().begun, 0u);
}

TEST_F(RunnerTest, a_run_that_computed_before_its_heap_was_there_is_repeated_and_counted) {
  submit_run(add_one("fake::take_heap", {1 << 20}), to_staging());
  EXPECT_EQ(advance(), Runner::Advance::kWaiting);
  EXPECT_EQ(counts_.read().runs_repeated, 1u);
  answer();
  EXPECT_EQ(advance(), Runner::Advance::kWaited);
  EXPECT_EQ(ended(), ErrorCode::kOk);
  EXPECT_EQ(output(), kInputAndOne);
}

TEST_F(RunnerTest, the_second_run_of_what_needs_heap_asks_for_nothing_and_is_not_repeated) {
  const srg::Graph graph = add_one("fake::take_heap", {20 << 20});
  submit_run(graph, to_staging());
  ASSERT_EQ(advance(), Runner::Advance::kWaiting);
  answer();
  ASSERT_EQ(advance(), Runner::Advance::kWaited);
  ASSERT_EQ(ended(), ErrorCode::kOk);
  const uint64_t repeated = counts_.read().runs_repeated;
  for (int more = 0; more < 3; ++more) {
    submit_run(graph, to_staging());
    EXPECT_EQ(advance(), Runner::Advance::kWorked);
    EXPECT_EQ(ended(), ErrorCode::kOk);
  }
  EXPECT_EQ(counts_.read().runs_repeated, repeated);
  EXPECT_FALSE(grant_all());
}

TEST_F(RunnerTest, a_lane_that_is_trimmed_keeps_none_of_its_heap) {
  submit_run(add_one("fake::take_heap", {20 << 20}), to_staging());
  ASSERT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(granted_bytes_[ipc::GrantKind::kHeap], 20u << 20);
  lane_->trim();
  grant_all();
  EXPECT_EQ(granted_bytes_[ipc::GrantKind::kHeap], 0u);
}

TEST_F(RunnerTest, what_a_failed_run_would_have_made_is_poisoned) {
  submit_run(add_one("fake::fail"), to_ref());
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(read(kRef), ErrorCode::kPoisoned);
}

TEST_F(RunnerTest, a_run_that_was_given_up_ends_before_its_next_operator) {
  submit_run(add_one(), to_staging());
  client_.cancel_through(1);
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  EXPECT_EQ(ended(), ErrorCode::kCancelled);
}

TEST_F(RunnerTest, a_run_that_is_given_up_while_it_computes_ends_and_the_next_one_is_not) {
  submit_run(add_one("fake::wait"), to_ref());
  EXPECT_EQ(advance(), Runner::Advance::kWaiting);
  answer();
  std::thread client([this] {
    while (!gc::read_progress(state_head())->op.starts_with("fake::wait"))
      std::this_thread::yield();
    client_.cancel_through(1);
  });
  EXPECT_EQ(advance(), Runner::Advance::kWaited);
  client.join();
  EXPECT_EQ(ended(), ErrorCode::kCancelled);
  submit_run(add_one(), to_staging());
  EXPECT_EQ(finish(), ErrorCode::kOk);
}

TEST_F(RunnerTest, a_run_that_is_given_up_while_its_graph_is_looked_at_ends_and_showed_life) {
  submit_run(add_one("fake::wait_in_admission"), to_staging());
  std::thread client([this] {
    const auto progress = [this] { return *gc::read_progress(state_head()); };
    while (progress().running_step == 0) std::this_thread::yield();
    const uint64_t before = progress().heartbeat;
    while (progress().heartbeat < before + 2) std::this_thread::yield();
    client_.cancel_through(1);
  });
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  client.join();
  EXPECT_EQ(ended(), ErrorCode::kCancelled);
}

TEST_F(RunnerTest, a_run_that_is_given_up_while_it_waits_for_memory_asks_for_nothing_again) {
  submit_run(add_one(), to_ref());
  EXPECT_EQ(advance(), Runner::Advance::kWaiting);
  client_.cancel_through(1);
  EXPECT_EQ(advance(), Runner::Advance::kWaited);
  EXPECT_EQ(ended(), ErrorCode::kCancelled);
  EXPECT_EQ(read(kRef), ErrorCode::kPoisoned) << "nothing made it";
  EXPECT_EQ(lane_->stats().begun, 0u);
}

TEST_F(RunnerTest, each_submission_is_told_once_and_in_order_whatever_became_of_it) {
  constexpr uint64_t kRuns = 24;
  for (uint64_t run = 1; run <= kRuns; ++run) {
    switch (run % 4) {
      case 0:
        submit_run(add_one("fake::fail"), to_staging());
        break;
      case 1:
        submit_run(add_one(), to_ref({static_cast<uint32_t>(run), 1}));
        break;
      case 2:
        submit_read({999, 1});
        break;
      default:
        submit_run(add_one("fake::take_heap", {run << 22}), to_staging());
    }
    // What the next one overwrites in staging is copied with the first step.
    while (!ended()) {
      if (advance() == Runner::Advance::kWaiting) grant_all();
      if (run % 3 == 0) attach();
    }
  }
  EXPECT_EQ(advance(), Runner::Advance::kIdle);
  ASSERT_EQ(told_.size(), kRuns);
  for (uint64_t run = 1; run <= kRuns; ++run) EXPECT_EQ(told_[run - 1].run, run);
  EXPECT_EQ(std::ranges::count(told_, 0, &ipc::Completion::error), 12);
}

TEST_F(RunnerTest, a_client_that_reads_no_completion_stops_its_session_and_loses_none) {
  uint64_t submitted = 0;
  uint64_t done = 0;
  bool blocked = false;
  while (!blocked) {
    while (*client_.free_slots() > 0) {
      submit(ipc::Operation::kReleaseRefs, ipc::ReleaseBlock{});
      ++submitted;
    }
    const Runner::Advance advanced = advance();
    blocked = advanced == Runner::Advance::kBlocked;
    done += advanced == Runner::Advance::kWorked ? 1 : 0;
    ASSERT_LE(done, uint64_t{limits::kCompletionSlots});
  }
  EXPECT_EQ(advance(), Runner::Advance::kBlocked);
  while (done < submitted) {
    while (ended()) {
    }
    done += advance() == Runner::Advance::kWorked ? 1 : 0;
  }
  while (ended()) {
  }
  ASSERT_EQ(told_.size(), submitted);
  for (uint64_t i = 0; i < submitted; ++i) EXPECT_EQ(told_[i].run, i + 1);
}

TEST_F(RunnerTest, a_worker_that_follows_another_tells_nothing_twice_and_goes_on) {
  submit_run(add_one(), to_staging());
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  attach();
  EXPECT_EQ(advance(), Runner::Advance::kIdle);
  EXPECT_EQ(ended(), ErrorCode::kOk);
  EXPECT_EQ(ended(), std::nullopt);
  submit_run(add_one(), to_staging());
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  EXPECT_EQ(ended(), ErrorCode::kOk);
}

TEST_F(RunnerTest, what_another_had_committed_leaves_no_room_for_a_step_where_there_was_some) {
  gc::SessionState* state = &session_->state();
  uint64_t told = 0;  // before the last step
  for (;;) {
    while (*client_.free_slots() > 0) submit(ipc::Operation::kReleaseRefs, ipc::ReleaseBlock{});
    const uint64_t before = state->completions_published();
    if (advance() == Runner::Advance::kBlocked) break;
    told = before;
  }
  // It died between the commit and telling of it.
  state->set_completions_published(told);
  state->set_step_published(state->step() - 1);
  attach();
  state = &session_->state();
  const uint64_t step = state->step();
  EXPECT_EQ(advance(), Runner::Advance::kBlocked);
  EXPECT_EQ(state->step(), step);
  EXPECT_EQ(state->step_published(), step);
}

TEST_F(RunnerTest, what_ended_its_workers_is_refused_and_no_operator_called) {
  submit_run(add_one(), to_ref());
  EXPECT_EQ(advance(), Runner::Advance::kWaiting);  // and it dies
  refusal_ = ErrorCode::kWorkerLost;
  attach();
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  EXPECT_EQ(ended(), ErrorCode::kWorkerLost);
  EXPECT_EQ(lane_->stats().begun, 0u);
  EXPECT_EQ(read(kRef), ErrorCode::kPoisoned);
}

// --- a series of runs

// The ref kState, plus one in place; kRef, which is x and one; then what may fail; then kState plus
// one again, and another result, for kLater.
class SeriesTest : public RunnerTest {
 protected:
  static constexpr RefHandle kState{2, 1};
  static constexpr RefHandle kLater{3, 1};

  void SetUp() override {
    ASSERT_EQ(write(kState), ErrorCode::kOk);
    series_ = 5;
  }
  void submit_steps(std::string_view fails, std::vector<srg::Arg> arguments = {}) {
    ipc::RunBlock block;
    block.inputs = {from_staging(), {1, ipc::InputKind::kRef, {}, kState}};
    block.outputs = {to_ref(), to_ref(kLater)};
    submit_graph(steps(fails, std::move(arguments)), block);
  }
  static srg::Graph steps(std::string_view fails, std::vector<srg::Arg> arguments = {}) {
    srg::GraphBuilder g("steps");
    const srg::Tensor x = g.input("x", DType::kFloat32, {4});
    const srg::Tensor state = g.input("state", DType::kFloat32, {4});
    g.op("fake::add_one_", {state});
    const srg::Tensor y = g.op("fake::add_one", {x});
    g.claim(y, DType::kFloat32, {4});
    g.output("y", y);
    g.op_n(0, fails, std::move(arguments));
    g.op("fake::add_one_", {state});
    const srg::Tensor z = g.op("fake::add_one", {x});
    g.claim(z, DType::kFloat32, {4});
    g.output("z", z);
    return *std::move(g).finish();
  }
  void submit_add_one_in_place() {
    ipc::RunBlock block;
    block.inputs = {from_ref(kState)};
    submit_graph(add_one_in_place(), block);
  }
  Numbers value_of(RefHandle ref) {
    EXPECT_EQ(read(ref), ErrorCode::kOk);
    return output();
  }
};

TEST_F(SeriesTest, what_comes_before_an_operator_that_fails_has_happened_and_the_rest_has_not) {
  submit_steps("fake::fail");
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(told_.back().index, 3u) << "the node that failed";
  EXPECT_EQ(value_of(kState), kInputAndOne);
  EXPECT_EQ(value_of(kRef), kInputAndOne);
  EXPECT_EQ(read(kLater), ErrorCode::kPoisoned);
}

TEST_F(SeriesTest, a_graph_that_is_not_admitted_is_run_up_to_the_operator_that_is_at_fault) {
  submit_steps("fake::refuse");
  EXPECT_EQ(finish(), ErrorCode::kUnsupported);
  EXPECT_EQ(value_of(kState), kInputAndOne);
  EXPECT_EQ(value_of(kRef), kInputAndOne);
  EXPECT_EQ(read(kLater), ErrorCode::kPoisoned);
}

TEST_F(SeriesTest, what_comes_before_an_operator_that_is_refused_memory_has_happened) {
  refused_ = {ipc::GrantKind::kHeap};
  submit_steps("fake::take_heap", {1 << 20});
  EXPECT_EQ(finish(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(refusals_told_, 1) << "not those of the beginnings that were tried";
  EXPECT_EQ(value_of(kState), kInputAndOne);
  EXPECT_EQ(value_of(kRef), kInputAndOne);
  EXPECT_EQ(read(kLater), ErrorCode::kPoisoned);
}

TEST_F(SeriesTest, a_run_behind_one_that_failed_changes_nothing_until_the_series_is_another) {
  submit_steps("fake::fail");
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
  submit_add_one_in_place();
  EXPECT_EQ(finish(), ErrorCode::kPoisoned);
  EXPECT_EQ(value_of(kState), kInputAndOne);
  attach();
  submit_add_one_in_place();
  EXPECT_EQ(finish(), ErrorCode::kPoisoned) << "another worker knows, too";
  series_ = 6;
  submit_add_one_in_place();
  EXPECT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(value_of(kState), kInputAndTwo);
}

TEST_F(SeriesTest, a_worker_that_follows_while_a_beginning_waits_for_memory_keeps_the_same) {
  refused_ = {ipc::GrantKind::kHeap};
  submit_steps("fake::take_heap", {1 << 20});
  int followed = 0;
  for (; !ended(); ++followed) {
    if (advance() == Runner::Advance::kWaiting) grant_all();
    if (followed % 2 == 0) attach();
    ASSERT_LT(followed, 100);
  }
  EXPECT_GT(followed, 1);
  EXPECT_EQ(value_of(kState), kInputAndOne);
  EXPECT_EQ(value_of(kRef), kInputAndOne);
  EXPECT_EQ(read(kLater), ErrorCode::kPoisoned);
}

TEST_F(SeriesTest, what_ended_its_workers_leaves_what_it_would_have_changed_as_it_was) {
  submit_steps("fake::take_heap", {1 << 20});
  EXPECT_EQ(advance(), Runner::Advance::kWaiting);  // and it dies
  refusal_ = ErrorCode::kWorkerLost;
  attach();
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  EXPECT_EQ(ended(), ErrorCode::kWorkerLost);
  EXPECT_EQ(value_of(kState), kInput);
  EXPECT_EQ(read(kRef), ErrorCode::kPoisoned);
}

TEST_F(SeriesTest, where_the_block_does_not_fit_the_graph_nothing_has_happened) {
  using Change = void (*)(ipc::RunBlock&);
  const Change changes[] = {
      [](ipc::RunBlock& block) { block.outputs.clear(); },
      [](ipc::RunBlock& block) { block.outputs.pop_back(); },
      [](ipc::RunBlock& block) {
        block.outputs.push_back(to_ref({9, 1}));
      },
      [](ipc::RunBlock& block) {
        block.inputs.push_back({9, ipc::InputKind::kRef, {}, kState});
      },
      [](ipc::RunBlock& block) {
        block.result = {kInputAt, 8};
      },
  };
  uint32_t slot = 10;
  for (const Change change : changes) {
    ++series_;
    ipc::RunBlock block;
    block.inputs = {from_staging(), {1, ipc::InputKind::kRef, {}, kState}};
    block.outputs = {to_ref({slot++, 1}), to_ref({slot++, 1})};
    change(block);
    submit_graph(steps("fake::nothing"), block);
    const ErrorCode code = finish();
    EXPECT_TRUE(code == ErrorCode::kInvalidArgument || code == ErrorCode::kOutOfRange);
    EXPECT_EQ(value_of(kState), kInput);
  }
}

// Its client wrote other bytes over them while the step waited.
TEST_F(SeriesTest, a_beginning_is_of_the_graph_that_failed_whatever_lies_in_staging_by_then) {
  const auto other_of = [](size_t bytes) {
    for (std::string filler = "a";; filler += 'a') {
      srg::GraphBuilder g("other");
      g.op_n(0, "fake::nothing", {filler});
      std::vector<std::byte> other = ipc::encode(*std::move(g).finish());
      if (other.size() >= bytes) return other;
    }
  };
  const size_t bytes = ipc::encode(steps("fake::take_heap", {1 << 20})).size();
  const std::vector<std::byte> other = other_of(bytes);
  ASSERT_EQ(other.size(), bytes);
  refused_ = {ipc::GrantKind::kHeap};
  submit_steps("fake::take_heap", {1 << 20});
  bool changed = false;
  for (int count = 0; !ended(); ++count) {
    if (advance() == Runner::Advance::kWaiting) grant_all();
    if (session_->beginnings) changed = true;
    if (changed) copy_bytes(other, staging().subspan(kGraphAt));
    ASSERT_LT(count, 100);
  }
  EXPECT_TRUE(changed);
  EXPECT_EQ(value_of(kState), kInputAndOne);
  EXPECT_EQ(value_of(kRef), kInputAndOne);
}

TEST_F(SeriesTest, a_run_of_no_series_keeps_nothing_where_it_fails) {
  series_ = 0;
  submit_steps("fake::fail");
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(read(kState), ErrorCode::kPoisoned);
  EXPECT_EQ(read(kRef), ErrorCode::kPoisoned);
}

TEST_F(RunnerTest, an_operation_that_nobody_knows_fails_and_leaves_its_session) {
  submit(static_cast<ipc::Operation>(ipc::kOperations), ipc::ReleaseBlock{});
  EXPECT_EQ(finish(), ErrorCode::kUnsupported);
  submit_run(add_one(), to_staging());
  EXPECT_EQ(finish(), ErrorCode::kOk);
}

TEST_F(RunnerTest, a_block_that_lies_outside_of_staging_fails_its_run_alone) {
  ipc::Submission submission;
  submission.operation = static_cast<uint16_t>(ipc::Operation::kReadRef);
  submission.run = next_run_++;
  submission.binding_offset = kStagingBytes - 8;
  submission.binding_bytes = 16;
  ASSERT_TRUE(client_.publish(submission));
  EXPECT_EQ(finish(), ErrorCode::kMalformed);
}

TEST_F(RunnerTest, a_run_with_the_number_of_another_breaks_the_protocol) {
  submit_run(add_one(), to_staging());
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  next_run_ = 1;
  submit_run(add_one(), to_staging());
  const auto advanced = runner_.advance(*session_);
  ASSERT_FALSE(advanced);
  EXPECT_EQ(advanced.error().code, ErrorCode::kProtocolViolation);
}

// --- deadlines

constexpr uint64_t kLongAgo = 1;
constexpr uint64_t kLongNs = 3600 * kNsPerSecond;  // longer than any test

TEST_F(RunnerTest, a_run_whose_deadline_has_passed_is_refused_and_has_changed_nothing) {
  ASSERT_EQ(write({2, 1}), ErrorCode::kOk);
  begin_by_ns_ = kLongAgo;
  ipc::RunBlock block;
  block.inputs = {from_ref({2, 1})};
  submit_graph(add_one_in_place(), block);
  EXPECT_EQ(finish(), ErrorCode::kQueueFull);
  submit_run(add_one(), to_ref());
  EXPECT_EQ(finish(), ErrorCode::kQueueFull);
  EXPECT_EQ(lane_->stats().begun, 0u);
  EXPECT_EQ(counts_.read().submissions_refused, 2u);
  EXPECT_EQ(counts_.read().submissions_failed, 2u);
  begin_by_ns_ = 0;
  ASSERT_EQ(read({2, 1}), ErrorCode::kOk) << "it would have been changed";
  EXPECT_EQ(output(), kInput);
  EXPECT_EQ(read(kRef), ErrorCode::kPoisoned) << "it would have been made";
}

TEST_F(RunnerTest, a_run_that_waits_for_memory_until_its_deadline_is_refused) {
  begin_by_ns_ = clock_.monotonic_ns() + kLongNs;
  submit_run(add_one(), to_ref());
  ASSERT_EQ(advance(), Runner::Advance::kWaiting);
  clock_.move_on(kLongNs + 1);
  EXPECT_EQ(advance(), Runner::Advance::kWaited);
  EXPECT_EQ(ended(), ErrorCode::kQueueFull);
  EXPECT_EQ(lane_->stats().begun, 0u);
}

TEST_F(RunnerTest, a_run_that_had_begun_when_its_worker_died_is_repeated_whatever_its_deadline) {
  begin_by_ns_ = clock_.monotonic_ns() + kLongNs;
  between_ = [](Session&) { return false; };
  submit_run(add_one(), to_staging());
  ASSERT_EQ(advance(), Runner::Advance::kAbandoned);
  between_ = {};
  clock_.move_on(kLongNs + 1);
  attach();
  EXPECT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(output(), kInputAndOne);
}

TEST_F(RunnerTest, runs_of_a_series_behind_one_that_was_refused_are_refused) {
  series_ = 1;
  begin_by_ns_ = kLongAgo;
  submit_run(add_one(), to_ref());
  EXPECT_EQ(finish(), ErrorCode::kQueueFull);
  begin_by_ns_ = 0;
  submit_run(add_one(), to_staging());
  EXPECT_EQ(finish(), ErrorCode::kPoisoned);
}

}  // namespace
}  // namespace djinn::worker
