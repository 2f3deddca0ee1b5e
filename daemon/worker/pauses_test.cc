// SPDX-License-Identifier: Apache-2.0

// A run that is paused between two operators, with other sessions' steps inside: what it gives is
// what it gives alone, whatever comes at a pause.
#include <algorithm>
#include <map>

#include "daemon/worker/member_for_tests.h"
#include "daemon/worker/session_for_tests.h"

namespace djinn::worker {
namespace {

constexpr RefHandle kChanged{9, 1};

// --- one runner: what happens at each operator is the test's

class PausesTest : public SessionTest {
 protected:
  PausesTest() {
    auto admitted = admit_graph(executor_, ipc::encode(fast_model()), nullptr);
    programs_.expect_program(Member::kProgram, {},
                             std::make_shared<const std::vector<std::byte>>());
    programs_.add_program(Member::kProgram, *std::move(admitted));
  }
  static srg::Graph fast_model() {
    srg::Graph graph = counting_model();
    graph.numerics = srg::Numerics::kFast;
    return graph;
  }
  // Changes its input in place twice, and gives what it was before, and one.
  static srg::Graph training_step() {
    srg::GraphBuilder g("step");
    const srg::Tensor x = g.input("x", DType::kFloat32, {4});
    const srg::Tensor y = g.op("fake::add_one", {x});
    g.claim(y, DType::kFloat32, {4});
    g.op("fake::add_one_", {x});
    g.op_n(0, "fake::nothing", {});
    g.op("fake::add_one_", {x});
    g.output("y", y);
    return *std::move(g).finish();
  }
  void submit_training_step() {
    ipc::RunBlock block;
    block.inputs = {from_ref(kChanged)};
    block.outputs = {to_staging()};
    submit_graph(training_step(), block);
  }
  Numbers read_ref(RefHandle ref) {
    EXPECT_EQ(read(ref), ErrorCode::kOk);
    return output();
  }
  // Without a step.
  [[nodiscard]] Numbers bytes_of(RefHandle ref) const {
    Numbers numbers{};
    const auto storage = session_->refs().find(session_->state(), ref);
    EXPECT_TRUE(storage);
    memcpy(numbers.data(), storage->data.on_host(), sizeof numbers);
    return numbers;
  }
  // At the operator of that number, of those to come, and never again.
  void at_operator(size_t number, std::function<bool()> what) {
    between_ = [number, what = std::move(what), at = size_t{0}](Session&) mutable {
      return at++ == number ? what() : true;
    };
  }
  // What a step of another session's, inside a pause, comes to.
  Runner::Advance inside(Member& member) {
    const Runner::Pause pause(runner_);
    EXPECT_TRUE(runner_.is_aside(kSession));
    EXPECT_EQ(gc::read_progress(state_head())->running_step, 0u) << "no death is counted for it";
    EXPECT_TRUE(gc::read_progress(state_head())->in_flight);
    const auto advanced = runner_.advance(*member.session);
    EXPECT_TRUE(advanced);
    programs_.end_step();
    return *advanced;
  }
  // A step of it, whatever it waits for.
  Runner::Advance advance_until_it_does_not_wait() {
    for (;;) {
      const Runner::Advance advanced = advance();
      programs_.end_step();
      if (advanced != Runner::Advance::kWaiting) return advanced;
      grant_all();
    }
  }

  Member other_{11, *pal_, grants_, faults_};
};

TEST_F(PausesTest, a_run_that_is_paused_at_any_operator_gives_what_it_gives_alone) {
  for (size_t at = 0; at < 3; ++at) {
    other_.generate(int32_t(at));
    size_t paused = 0;
    at_operator(at, [&] {
      ++paused;
      return inside(other_) == Runner::Advance::kWorked;
    });
    submit_run(add_one("fake::nothing"), at % 2 == 0 ? to_staging() : to_ref({uint32_t(at), 1}));
    EXPECT_EQ(finish(), ErrorCode::kOk);
    EXPECT_EQ(paused, at < 2 ? 1u : 0u) << "the graph has two";
    EXPECT_EQ(at % 2 == 0 ? output() : read_ref({uint32_t(at), 1}), kInputAndOne);
    between_ = {};
    while (*runner_.advance(*other_.session) == Runner::Advance::kWorked) {
    }
    const auto first = int32_t(at);
    EXPECT_EQ(other_.told(), (std::vector{first + 1, first + 2, first + 3, first + 4, first + 5}));
  }
}

TEST_F(PausesTest, a_step_that_writes_refs_in_place_writes_them_once_wherever_it_is_paused) {
  ASSERT_EQ(write(kChanged), ErrorCode::kOk);
  Numbers expected = kInput;
  for (size_t at = 0; at < 4; ++at) {
    other_.generate(1);
    at_operator(at, [&] { return inside(other_) == Runner::Advance::kWorked; });
    submit_training_step();
    ASSERT_EQ(finish(), ErrorCode::kOk);
    for (float& number : expected) ++number;
    EXPECT_EQ(output(), expected) << "what it was before, and one";
    for (float& number : expected) ++number;
    between_ = {};
    EXPECT_EQ(read_ref(kChanged), expected);
    while (*runner_.advance(*other_.session) == Runner::Advance::kWorked) {
    }
  }
}

TEST_F(PausesTest, what_is_abandoned_at_any_operator_is_undone_and_done_again) {
  ASSERT_EQ(write(kChanged), ErrorCode::kOk);
  Numbers expected = kInput;
  for (size_t at = 0; at < 4; ++at) {
    at_operator(at, [] { return false; });
    submit_training_step();
    EXPECT_EQ(advance_until_it_does_not_wait(), Runner::Advance::kAbandoned);
    EXPECT_EQ(ended(), std::nullopt);
    EXPECT_EQ(gc::read_progress(state_head())->running_step, 0u);
    EXPECT_EQ(advance_until_it_does_not_wait(), Runner::Advance::kWorked);
    EXPECT_EQ(ended(), ErrorCode::kOk);
    for (float& number : expected) number += 2;
    between_ = {};
    EXPECT_EQ(read_ref(kChanged), expected);
  }
  EXPECT_GE(counts_.read().runs_repeated, 4u);
}

TEST_F(PausesTest, a_worker_that_dies_at_a_pause_leaves_what_the_next_one_repeats) {
  ASSERT_EQ(write(kChanged), ErrorCode::kOk);
  // The next worker sees what is in the memory at the pause.
  std::vector<std::byte> state, refs;
  at_operator(3, [&] {
    const Runner::Pause pause(runner_);
    state = *pal::read_memfd(state_, gc::state_bytes(kGeometry));
    refs = *pal::read_memfd(refs_, kRefBytes);
    return true;
  });
  submit_training_step();
  ASSERT_EQ(advance_until_it_does_not_wait(), Runner::Advance::kWorked);
  between_ = {};
  const Numbers expected = bytes_of(kChanged);
  session_.reset();
  for (const auto& [fd, bytes] : {std::pair(&state_, &state), std::pair(&refs_, &refs)}) {
    copy_bytes(*bytes, pal::map_shared(*fd, bytes->size(), pal::Access::kReadWrite)->bytes());
  }
  attach();
  EXPECT_EQ(bytes_of(kChanged), kInput) << "it is undone";
  EXPECT_EQ(advance_until_it_does_not_wait(), Runner::Advance::kWorked);
  EXPECT_EQ(bytes_of(kChanged), expected);
  EXPECT_EQ(ended(), ErrorCode::kOk);
}

TEST_F(PausesTest, a_prefill_is_paused_and_its_token_steps_are_not) {
  Member prompt(12, *pal_, grants_, faults_);
  other_.generate(50);
  size_t asked = 0;
  between_ = [&](Session& session) {
    if (session.id() != prompt.client.id) return true;
    ++asked;
    const Runner::Pause pause(runner_);
    EXPECT_EQ(*runner_.advance(*other_.session), Runner::Advance::kWorked);
    programs_.end_step();
    return true;
  };
  prompt.generate(20);
  for (int step = 0; step < 5; ++step) {
    ASSERT_EQ(*runner_.advance(*prompt.session), Runner::Advance::kWorked);
    programs_.end_step();
  }
  EXPECT_EQ(asked, 1u) << "the model has one operator, and a generation one prefill";
  EXPECT_EQ(prompt.told(), (std::vector{21, 22, 23, 24, 25}));
  EXPECT_EQ(other_.told(), (std::vector{51}));
}

TEST_F(PausesTest, steps_that_join_inside_a_pause_are_computed_together) {
  Member third(12, *pal_, grants_, faults_);
  for (Member* member : {&other_, &third}) {
    member->generate(10);
    ASSERT_EQ(*runner_.advance(*member->session), Runner::Advance::kWorked);
  }
  at_operator(0, [&] {
    const Runner::Pause pause(runner_);
    for (Member* member : {&other_, &third}) {
      EXPECT_EQ(*runner_.advance(*member->session, batch_of_next_step(*member->session, programs_)),
                Runner::Advance::kJoins);
    }
    runner_.end_joined(
        [](Session&, Runner::Advance advance) { EXPECT_EQ(advance, Runner::Advance::kWorked); });
    programs_.end_step();
    return true;
  });
  submit_run(add_one(), to_staging());
  EXPECT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(output(), kInputAndOne);
  EXPECT_EQ(lane_->stats().runs_together, 2u);
  for (Member* member : {&other_, &third}) EXPECT_EQ(member->told(), (std::vector{11, 12}));
}

TEST_F(PausesTest, a_step_that_lacks_memory_inside_a_pause_is_done_again_outside) {
  refused_.insert(ipc::GrantKind::kHeap);
  other_.client.run(one_operator("fake::take_heap", {20 << 20}));
  Runner::Advance last{};
  at_operator(0, [&] {
    while ((last = inside(other_)) == Runner::Advance::kWaiting) grant_all();
    return true;
  });
  submit_run(add_one(), to_staging());
  EXPECT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(last, Runner::Advance::kAbandoned) << "what is set aside may have the memory";
  EXPECT_TRUE(other_.told().empty());
  EXPECT_EQ(other_.ended, std::nullopt);
  refused_.clear();
  while (*runner_.advance(*other_.session) == Runner::Advance::kWaiting) grant_all();
  other_.told();
  EXPECT_EQ(other_.ended, ErrorCode::kOk);
}

TEST_F(PausesTest, what_a_run_awaited_before_a_pause_it_awaits_after_it) {
  at_operator(1, [&] { return inside(other_) == Runner::Advance::kIdle; });
  submit_run(add_one("fake::take_heap", {1 << 20}), to_staging());
  EXPECT_EQ(advance(), Runner::Advance::kWaiting);
  waits_.suspend(kSession);
  EXPECT_TRUE(waits_.is_waiting(kSession));
}

TEST_F(PausesTest, a_run_that_is_given_up_while_it_is_paused_ends) {
  at_operator(0, [&] {
    client_.cancel_through(1);
    return inside(other_) == Runner::Advance::kIdle;
  });
  submit_run(add_one(), to_staging());
  EXPECT_EQ(finish(), ErrorCode::kCancelled);
  EXPECT_EQ(lane_->failed_at(), std::nullopt);
}

TEST_F(PausesTest, refs_that_nobody_uses_are_given_back_while_a_run_is_paused) {
  for (const uint32_t index : {1, 2, 3}) ASSERT_EQ(write({index, 1}), ErrorCode::kOk);
  for (const uint32_t index : {1, 3}) ASSERT_EQ(release({index, 1}), ErrorCode::kOk);
  at_operator(0, [&] {
    const Runner::Pause pause(runner_);
    session_->trim_refs();
    return true;
  });
  submit_run(add_one(), to_ref({4, 1}));
  EXPECT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(read_ref({4, 1}), kInputAndOne);
  EXPECT_EQ(read_ref({2, 1}), kInput);
}

// --- the lane

class PausedLaneTest : public WorkerTest {
 protected:
  explicit PausedLaneTest(SchedulePolicy policy = SchedulePolicy::kFair) : WorkerTest(policy) {}

  // A run that computes until it is given up.
  std::unique_ptr<TestSession> computing(uint64_t id, ServiceClass of = ServiceClass::kNormal) {
    auto session = attach(id, of);
    session->run(one_operator("fake::wait"));
    while (session->op() != "fake::wait") std::this_thread::yield();
    return session;
  }
  void give_up(TestSession& session) {
    session.ring.cancel_through(session.last_run);
    EXPECT_EQ(session.completion(), ErrorCode::kCancelled);
  }
  std::vector<ipc::ScheduleDecision> decisions() {
    command({ipc::GetLaneSchedule{}});
    return heard<ipc::LaneSchedule>().decisions;
  }
};

TEST_F(PausedLaneTest, a_run_that_computes_for_long_keeps_no_other_session_waiting) {
  const auto is_long = computing(1);
  const auto other = attach(2);  // comes while it computes
  for (int run = 0; run < 20; ++run) {
    other->run(one_operator("fake::nothing"));
    ASSERT_EQ(other->completion(), ErrorCode::kOk);
  }
  EXPECT_FALSE(*is_long->ring.take());
  give_up(*is_long);
  const auto taken = decisions();
  const auto is_slice = [&](const ipc::ScheduleDecision& one) {
    return one.session == is_long->id && one.reason == PickReason::kSlice && !one.paused.valid();
  };
  const auto is_inside = [&](const ipc::ScheduleDecision& one) {
    return one.session == other->id && one.paused == is_long->id;
  };
  EXPECT_GE(std::ranges::count_if(taken, is_slice), 1);
  EXPECT_GE(std::ranges::count_if(taken, is_inside), 20);
}

TEST_F(PausedLaneTest, a_session_whose_client_leaves_while_its_run_is_paused_goes) {
  const auto is_long = computing(1);
  command({ipc::DetachSession{is_long->id}});
  EXPECT_EQ(heard<ipc::Detached>().session, is_long->id);
  const auto other = attach(2);
  other->run(one_operator("fake::nothing"));
  EXPECT_EQ(other->completion(), ErrorCode::kOk);
}

TEST_F(PausedLaneTest, a_session_that_breaks_the_protocol_is_set_aside_beside_a_run_that_goes_on) {
  const auto breaks = attach(2);
  const auto is_long = computing(1);
  command({ipc::WakeLane{}});
  heard<ipc::LaneAwake>();
  breaks->control().submissions_published.word = UINT64_MAX;
  EXPECT_EQ(heard<ipc::SessionBroken>().session, breaks->id);
  EXPECT_FALSE(*is_long->ring.take());
  give_up(*is_long);
}

// It was begun inside the other's pause, and is held until that one ends.
TEST_F(PausedLaneTest, a_run_that_is_held_is_given_up_at_once) {
  const auto first = computing(1);
  const auto second = computing(2);
  const auto is_held = [&] {
    const auto taken = decisions();
    const auto of_second = [&](const auto& one) { return one.session == second->id; };
    return std::ranges::any_of(taken, of_second) && taken.back().session == first->id;
  };
  while (!is_held()) std::this_thread::yield();
  give_up(*second);
  EXPECT_FALSE(*first->ring.take());
  give_up(*first);
}

TEST_F(PausedLaneTest, the_lane_answers_between_two_operators) {
  const auto is_long = computing(1);
  command({ipc::WakeLane{}});
  heard<ipc::LaneAwake>();
  command({ipc::TrimRefs{is_long->id}});
  EXPECT_EQ(heard<ipc::RefsTrimmed>().session, is_long->id);
  give_up(*is_long);
}

// A model for generate() whose prompts take until they are given up.
srg::Graph slow_model() {
  srg::GraphBuilder g("slow");
  const srg::Expr rows = g.symbol("rows", 1, limits::kRows, srg::SymbolRole::kBatch);
  const srg::Expr tokens = g.symbol("tokens", 1, 64, srg::SymbolRole::kTokens);
  const srg::Tensor ids = g.input("ids", DType::kInt64, {rows, tokens}, srg::InputRole::kTokenIds);
  g.op_n(0, "fake::wait", {});
  const srg::Tensor logits = g.op("fake::logits", {ids});
  g.claim(logits, DType::kFloat32, {rows, 100});
  g.output("logits", logits);
  return *std::move(g).finish();
}

// A session that is in its prompt, on the first of two groups.
class PausedPromptTest : public PausedLaneTest {
 protected:
  static constexpr ProgramId kSlow{5}, kOther{6};
  static constexpr SequenceHandle kUsed{3, 1}, kUnused{4, 1};

  PausedPromptTest() {
    session_ = attach(1);
    on_lane([&](LaneLoop::State& state) {
      for (const ProgramId id : {kSlow, kOther}) {
        state.programs.expect_program(id, {}, std::make_shared<const std::vector<std::byte>>());
        state.programs.add_program(id, *admit_graph(executor_, ipc::encode(slow_model()), nullptr));
      }
      const uint64_t bytes = gc::SequenceLayout::make(1, 1, 2, 8, sizeof(float), 64)->file_bytes();
      for (const SequenceHandle group : {kUsed, kUnused}) {
        Fd memory = *pal::make_memfd("group", bytes, pal::Seals::kShared);
        state.sessions.at(session_->id)
            ->add_sequence(*Sequence::map(session_->id, group, {1, 1, 2, 8, DType::kFloat32, 64},
                                          std::move(memory), bytes, Fd(), *pal_));
      }
    });
    generate();
  }
  void generate() {
    ipc::GenerateBlock block;
    block.prefill = block.decode = kSlow.value;
    block.sequence = kUsed;
    block.rows = 1;
    block.prompt_tokens = 1;
    block.prompt = {TestSession::kOutputAt, sizeof(int32_t)};
    block.padding = {0};
    block.max_new_tokens = 5;
    const std::vector<std::byte> encoded = ipc::encode(block);
    copy_bytes(encoded, session_->staging());
    ipc::Submission submission;
    submission.operation = static_cast<uint16_t>(ipc::Operation::kGenerate);
    submission.run = ++session_->last_run;
    submission.binding_bytes = static_cast<uint32_t>(encoded.size());
    EXPECT_TRUE(session_->ring.publish(submission));
    if (session_->ring.worker_must_be_woken()) ring();
    while (session_->op() != "fake::wait") std::this_thread::yield();
  }
  void ring() { loop_->wake(); }
  uint64_t repeated() { return loop_->counts().read().runs_repeated; }

  std::unique_ptr<TestSession> session_;
};

TEST_F(PausedPromptTest, what_it_does_not_use_is_let_go_of_while_it_is_paused) {
  command({ipc::ReleaseSequence{session_->id, kUnused}});
  EXPECT_EQ(heard<ipc::SequenceDropped>().sequence, kUnused);
  command({ipc::DropProgram{kOther}});
  command({ipc::WakeLane{}});
  heard<ipc::LaneAwake>();
  EXPECT_EQ(repeated(), 0u);
  give_up(*session_);
}

TEST_F(PausedPromptTest, a_group_that_it_uses_is_let_go_of_when_it_was_abandoned) {
  command({ipc::ReleaseSequence{session_->id, kUsed}});
  EXPECT_EQ(heard<ipc::SequenceDropped>().sequence, kUsed);
  EXPECT_EQ(session_->completion(), ErrorCode::kNotFound) << "it begins again, without";
  EXPECT_EQ(repeated(), 1u);
}

TEST_F(PausedPromptTest, a_group_that_it_uses_is_written_out_and_comes_back) {
  const Fd file = nameless_file();
  command({ipc::SpillSequence{session_->id, kUsed}}, {file.get()});
  EXPECT_EQ(heard<ipc::SequenceSpilled>().code, ErrorCode::kOk);
  while (session_->op() != "fake::wait") {  // it is asked back for
    if (!nothing_is_said()) {
      const auto event = ipc::decode_worker_event(djinnd_.receive()->bytes);
      if (const auto* request = std::get_if<ipc::GrantRequest>(&event->body)) grant(*request);
    }
  }
  EXPECT_EQ(repeated(), 1u);
  give_up(*session_);
}

TEST_F(PausedPromptTest, a_program_that_it_runs_is_let_go_of_when_it_was_abandoned) {
  command({ipc::DropProgram{kSlow}});
  EXPECT_EQ(session_->completion(), ErrorCode::kNotFound);
  EXPECT_EQ(repeated(), 1u);
}

// The second one is not known to be long when it first comes. It is begun inside of a pause of the
// first, is abandoned, and is done when the first has ended, at the latest.
TEST_F(PausedLaneTest, of_two_long_runs_one_is_paused_and_the_other_waits_and_a_third_starves_not) {
  const auto first = computing(1);
  const auto second = computing(2);
  const auto third = attach(3);
  for (int run = 0; run < 20; ++run) {
    third->run(one_operator("fake::nothing"));
    ASSERT_EQ(third->completion(), ErrorCode::kOk);
  }
  give_up(*first);
  while (second->op() != "fake::wait") std::this_thread::yield();
  for (int run = 0; run < 20; ++run) {
    third->run(one_operator("fake::nothing"));
    ASSERT_EQ(third->completion(), ErrorCode::kOk);
  }
  give_up(*second);
}

// What a busy host made look long, or memory was short for, is not to wait for a run of minutes.
TEST_F(PausedLaneTest, what_was_abandoned_inside_a_pause_is_begun_there_again) {
  const auto first = computing(1);
  const auto second = computing(2);
  while (loop_->counts().read().runs_repeated < 2) std::this_thread::yield();
  EXPECT_FALSE(*first->ring.take());
  give_up(*first);
  while (second->op() != "fake::wait") std::this_thread::yield();
  give_up(*second);
}

TEST_F(PausedLaneTest, a_long_run_of_the_class_idle_is_abandoned_for_another_long_one) {
  const auto idle = computing(1, ServiceClass::kIdle);
  const auto other = computing(2);
  const auto third = attach(3);
  third->run(one_operator("fake::nothing"));
  ASSERT_EQ(third->completion(), ErrorCode::kOk);
  while (other->op() != "fake::wait") std::this_thread::yield();
  give_up(*other);
  while (idle->op() != "fake::wait") std::this_thread::yield();
  give_up(*idle);
}

TEST_F(PausedLaneTest, a_worker_that_is_told_to_end_abandons_the_run) {
  const auto is_long = computing(1);
  end();
  EXPECT_FALSE(*is_long->ring.take());
  EXPECT_EQ(is_long->op(), "");
}

class FifoLaneTest : public PausedLaneTest {
 protected:
  FifoLaneTest() : PausedLaneTest(SchedulePolicy::kFifo) {}
};

TEST_F(FifoLaneTest, no_other_step_is_done_before_a_run_has_ended) {
  const auto is_long = computing(1);
  const auto other = attach(2);
  other->run(one_operator("fake::nothing"));
  const uint64_t until_ns = clock_.monotonic_ns() + 5 * sched::kUnitNs;
  while (clock_.monotonic_ns() < until_ns) {
    command({ipc::WakeLane{}});
    heard<ipc::LaneAwake>();
  }
  EXPECT_FALSE(*other->ring.take());
  give_up(*is_long);
  EXPECT_EQ(other->completion(), ErrorCode::kOk);
  for (const ipc::ScheduleDecision& one : decisions()) EXPECT_NE(one.reason, PickReason::kSlice);
}

// --- deadlines

TEST_F(FifoLaneTest, who_cannot_begin_in_time_behind_a_run_is_refused_while_that_computes) {
  const auto is_long = computing(1);
  const auto other = attach(2);
  const uint64_t until_ns = clock_.monotonic_ns() + 200 * kNsPerMs;
  while (clock_.monotonic_ns() < until_ns) std::this_thread::yield();
  give_up(*is_long);
  is_long->run(one_operator("fake::wait"));
  while (is_long->op() != "fake::wait") std::this_thread::yield();
  other->begin_by_ns = clock_.monotonic_ns() + 100 * kNsPerMs;
  other->run(one_operator("fake::nothing"));
  EXPECT_EQ(other->completion(), ErrorCode::kQueueFull);
  EXPECT_FALSE(*is_long->ring.take()) << "it goes on";
  EXPECT_EQ(loop_->counts().read().submissions_refused, 1u);
  other->begin_by_ns = UINT64_MAX;
  other->run(one_operator("fake::nothing"));
  give_up(*is_long);
  EXPECT_EQ(other->completion(), ErrorCode::kOk);
}

TEST_F(FifoLaneTest, who_takes_back_what_was_queued_harms_nobody_who_has_a_deadline) {
  const auto takes_back = attach(2);
  const auto other = attach(3);
  for (TestSession* const session : {takes_back.get(), other.get()}) {
    session->run(one_operator("fake::nothing"));
    ASSERT_EQ(session->completion(), ErrorCode::kOk);
  }
  const auto is_long = computing(1);
  takes_back->run(one_operator("fake::nothing"));
  for (bool is_queued = false; !is_queued; std::this_thread::yield()) {
    on_lane([&](LaneLoop::State& state) { is_queued = state.queue.has_ready(); });
  }
  on_lane([&](LaneLoop::State&) {
    takes_back->control().submissions_published.word = 1;
    other->begin_by_ns = 1;
    other->run(one_operator("fake::nothing"));
  });
  EXPECT_EQ(other->completion(), ErrorCode::kQueueFull) << "behind both";
  EXPECT_FALSE(*is_long->ring.take());
  give_up(*is_long);
  EXPECT_EQ(heard<ipc::SessionBroken>().session, takes_back->id);
}

// Under `fair` a run that goes on for long is in nobody's way but that of another long one.
TEST_F(PausedLaneTest, who_has_a_deadline_is_refused_behind_no_run_that_can_be_paused) {
  const auto is_long = computing(1);
  const auto other = attach(2);
  for (int run = 0; run < 20; ++run) {
    other->begin_by_ns = clock_.monotonic_ns() + 60 * kNsPerSecond;
    other->run(one_operator("fake::nothing"));
    ASSERT_EQ(other->completion(), ErrorCode::kOk);
  }
  other->begin_by_ns = 1;
  other->run(one_operator("fake::nothing"));
  EXPECT_EQ(other->completion(), ErrorCode::kQueueFull);
  EXPECT_FALSE(*is_long->ring.take());
  give_up(*is_long);
}

}  // namespace
}  // namespace djinn::worker
