// SPDX-License-Identifier: Apache-2.0

// Sessions that share a lane: who waits keeps nobody, who breaks the protocol ends nobody else.
#include "daemon/worker/lane_loop.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "daemon/worker/step_kind.h"
#include "daemon/worker/worker_for_tests.h"
#include "kernel/sched/queue_for_tests.h"

namespace djinn::worker {
namespace {

class LaneLoopTest : public WorkerTest {
 protected:
  explicit LaneLoopTest(SchedulePolicy policy = SchedulePolicy::kFair) : WorkerTest(policy) {}

  // The lane has looked at each of the sessions, so many, that have just come. That is a decision.
  void look_at(size_t sessions) {
    for (size_t seen = 0; seen < sessions;) {
      on_lane([&](LaneLoop::State& state) { seen = state.queue.decisions().size(); });
    }
  }
};

TEST_F(LaneLoopTest, what_is_posted_runs_once_and_in_order_however_it_sleeps) {
  std::vector<int> ran;
  for (int i = 0; i < 100; ++i) {
    if (i % 10 == 0) {
      on_lane([&](LaneLoop::State&) { ran.push_back(i); });  // it may sleep after that
    } else {
      loop_->post([&ran, i](LaneLoop::State&) { ran.push_back(i); });
    }
  }
  on_lane([](LaneLoop::State&) {});
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
}

TEST_F(LaneLoopTest, each_submission_is_done_whether_the_lane_sleeps_or_not) {
  const auto session = attach(1);
  for (int run = 0; run < 200; ++run) {
    session->run(one_operator("fake::nothing"));
    ASSERT_EQ(session->completion(), ErrorCode::kOk);
  }
  EXPECT_EQ(loop_->counts().read().submissions[static_cast<size_t>(ipc::Operation::kRunOnce)],
            200u);
}

TEST_F(LaneLoopTest, who_submits_one_run_does_not_wait_for_all_that_another_has_submitted) {
  const auto many = attach(1);
  const auto one = attach(2);
  look_at(2);
  on_lane([&](LaneLoop::State&) {
    for (int run = 0; run < 50; ++run) many->run(one_operator("fake::nothing"));
    one->run(one_operator("fake::nothing"));
  });
  for (int run = 0; run < 50; ++run) ASSERT_EQ(many->completion(), ErrorCode::kOk);
  ASSERT_EQ(one->completion(), ErrorCode::kOk);
  on_lane([&](LaneLoop::State& state) {
    auto decisions = state.queue.decisions();
    decisions.erase(decisions.begin(), decisions.begin() + 2);
    const auto first_of = [&](SessionId id) {
      return std::ranges::find(decisions, id, &sched::Decision::session)->number;
    };
    EXPECT_LT(first_of(one->id), first_of(many->id) + 5);
    for (const sched::Decision& decision : decisions) EXPECT_GT(decision.measured_ns, 0u);
  });
}

// So who has many short runs has no more of the lane than who has few long ones.
TEST_F(LaneLoopTest, what_a_lane_does_from_one_short_run_to_the_next_is_charged) {
  constexpr int kRuns = 64;
  const auto session = attach(1);
  on_lane([&](LaneLoop::State&) {  // they are all there at once
    for (int run = 0; run < kRuns; ++run) session->run(one_operator("fake::nothing"));
  });
  for (int run = 0; run < kRuns; ++run) ASSERT_EQ(session->completion(), ErrorCode::kOk);
  std::vector<sched::Decision> decisions;
  on_lane([&](LaneLoop::State& state) { decisions = state.queue.decisions(); });
  ASSERT_GT(std::ssize(decisions), kRuns / 2);
  decisions.erase(decisions.begin(), decisions.end() - kRuns / 2);  // it woke for the first ones
  uint64_t charged_ns = 0;
  for (const sched::Decision& one : decisions) charged_ns += one.measured_ns;
  EXPECT_GE(charged_ns, decisions.back().at_ns - decisions.front().at_ns);
}

TEST_F(LaneLoopTest, a_session_is_of_the_class_that_it_came_with_and_its_decisions_say_so) {
  const auto idle = attach(1, ServiceClass::kIdle);
  const auto batch = attach(2, ServiceClass::kBatch);
  look_at(2);
  on_lane([&](LaneLoop::State&) {
    for (int run = 0; run < 20; ++run) idle->run(one_operator("fake::nothing"));
    for (int run = 0; run < 20; ++run) batch->run(one_operator("fake::nothing"));
  });
  for (int run = 0; run < 20; ++run) ASSERT_EQ(batch->completion(), ErrorCode::kOk);
  for (int run = 0; run < 20; ++run) ASSERT_EQ(idle->completion(), ErrorCode::kOk);
  command({ipc::GetLaneSchedule{}});
  const auto schedule = heard<ipc::LaneSchedule>();
  EXPECT_EQ(schedule.policy, SchedulePolicy::kFair);
  ASSERT_EQ(schedule.decisions.size(), 42u);
  for (size_t at = 2; at < 42; ++at) {
    const ipc::ScheduleDecision& decision = schedule.decisions[at];
    EXPECT_EQ(decision.number, at + 1);
    EXPECT_EQ(decision.session, at < 22 ? batch->id : idle->id);
    EXPECT_EQ(decision.service, at < 22 ? ServiceClass::kBatch : ServiceClass::kIdle);
    EXPECT_GT(decision.measured_ns, 0u);
  }
}

// However many they are: those that submit nothing cost the steps of the others nothing.
TEST_F(LaneLoopTest, a_ring_that_was_idle_is_not_looked_at_before_its_client_rings) {
  std::vector<std::unique_ptr<TestSession>> idle;
  for (uint64_t id = 2; id <= 20; ++id) idle.push_back(attach(id));
  const auto busy = attach(1);
  const auto work = [&] {
    busy->run(one_operator("fake::nothing"));
    ASSERT_EQ(busy->completion(), ErrorCode::kOk);
  };
  const uint64_t until_ns = clock_.monotonic_ns() + 5 * kNsPerMs;
  while (clock_.monotonic_ns() < until_ns) work();
  work();
  for (const auto& session : idle) {
    EXPECT_TRUE(session->ring.worker_must_be_woken());
    ipc::Submission submission;
    submission.operation = static_cast<uint16_t>(ipc::Operation::kNop);
    submission.run = ++session->last_run;
    ASSERT_TRUE(session->ring.publish(submission));
  }
  for (int run = 0; run < 200; ++run) work();
  for (const auto& session : idle) EXPECT_FALSE(*session->ring.take()) << "it has not rung";
  for (const auto& session : idle) session->run(one_operator("fake::nothing"));
  for (const auto& session : idle) {
    EXPECT_EQ(session->completion(), ErrorCode::kOk);
    EXPECT_EQ(session->completion(), ErrorCode::kOk);
  }
}

// Most of them have had no work for so long that the lane does not look at them before they ring.
TEST_F(LaneLoopTest, each_of_many_idle_sessions_is_found_when_it_submits) {
  std::vector<std::unique_ptr<TestSession>> sessions;
  for (uint64_t id = 1; id <= 40; ++id) sessions.push_back(attach(id));
  TestSession& busy = *sessions.back();
  for (size_t at = 0; at + 1 < sessions.size(); ++at) {
    // The lane is awake and at work when the idle one submits.
    for (int run = 0; run < 100; ++run) busy.run(one_operator("fake::nothing"));
    sessions[at]->run(one_operator("fake::nothing"));
    ASSERT_EQ(sessions[at]->completion(), ErrorCode::kOk);
    for (int run = 0; run < 100; ++run) ASSERT_EQ(busy.completion(), ErrorCode::kOk);
    // And now it sleeps, or will.
    sessions[at]->run(one_operator("fake::nothing"));
    ASSERT_EQ(sessions[at]->completion(), ErrorCode::kOk);
  }
}

TEST_F(LaneLoopTest, an_idle_session_that_breaks_the_protocol_is_told_once) {
  const auto session = attach(1);
  look_at(1);
  // Long enough for the lane to think of it as one that is idle.
  const uint64_t until_ns = clock_.monotonic_ns() + 5 * kNsPerMs;
  while (clock_.monotonic_ns() < until_ns) std::this_thread::yield();
  session->control().submissions_published.word = UINT64_MAX;
  session->ring_bell();
  EXPECT_EQ(heard<ipc::SessionBroken>().session, session->id);
  on_lane([](LaneLoop::State&) {});
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(LaneLoopTest, a_client_that_takes_back_what_was_picked_up_ends_its_own_session_alone) {
  const auto takes_back = attach(1);
  const auto goes_on = attach(2);
  takes_back->run(one_operator("fake::take_heap", {1 << 20}));
  const auto request = heard<ipc::GrantRequest>();
  on_lane([&](LaneLoop::State&) { takes_back->control().submissions_published.word = 0; });
  grant(request);
  EXPECT_EQ(takes_back->completion(), ErrorCode::kOk);
  heard<ipc::GrantReturn>();
  EXPECT_EQ(heard<ipc::SessionBroken>().session, takes_back->id);
  goes_on->run(one_operator("fake::nothing"));
  EXPECT_EQ(goes_on->completion(), ErrorCode::kOk);
}

TEST_F(LaneLoopTest, a_session_that_waits_for_memory_keeps_no_other_waiting) {
  const auto waits = attach(1);
  const auto goes_on = attach(2);
  waits->run(one_operator("fake::take_heap", {1 << 20}));
  const auto request = heard<ipc::GrantRequest>();
  for (int run = 0; run < 20; ++run) {
    goes_on->run(one_operator("fake::nothing"));
    ASSERT_EQ(goes_on->completion(), ErrorCode::kOk);
  }
  EXPECT_FALSE(*waits->ring.take());
  grant(request);
  EXPECT_EQ(waits->completion(), ErrorCode::kOk);
}

// A model of fast numerics for generate(), whose steps take so much of the heap.
srg::Graph generating(int64_t heap_bytes) {
  srg::GraphBuilder g("generating");
  const srg::Expr rows = g.symbol("rows", 1, limits::kRows, srg::SymbolRole::kBatch);
  const srg::Expr tokens = g.symbol("tokens", 1, 64, srg::SymbolRole::kTokens);
  const srg::Tensor ids = g.input("ids", DType::kInt64, {rows, tokens}, srg::InputRole::kTokenIds);
  if (heap_bytes > 0) g.op_n(0, "fake::take_heap", {heap_bytes});
  const srg::Tensor logits = g.op("fake::logits", {ids});
  g.claim(logits, DType::kFloat32, {rows, 100});
  g.output("logits", logits);
  srg::Graph graph = *std::move(g).finish();
  graph.numerics = srg::Numerics::kFast;
  return graph;
}

// Sessions that generate with it, each with a group of its own.
class GeneratingLaneTest : public LaneLoopTest {
 protected:
  static constexpr ProgramId kPrefill{5}, kDecode{6};
  static constexpr SequenceHandle kGroup{3, 1};

  // Token steps take so much of the heap.
  void prepare(uint64_t count, int64_t heap_bytes) {
    for (uint64_t id = 1; id <= count; ++id) sessions_.push_back(attach(id));
    look_at(count);
    const uint64_t bytes = gc::SequenceLayout::make(1, 1, 2, 8, sizeof(float), 64)->file_bytes();
    on_lane([&](LaneLoop::State& state) {
      for (const auto& [id, of_heap] : {std::pair{kPrefill, int64_t{0}}, {kDecode, heap_bytes}}) {
        state.programs.expect_program(id, {}, std::make_shared<const std::vector<std::byte>>());
        auto admitted = admit_graph(executor_, ipc::encode(generating(of_heap)), nullptr);
        state.programs.add_program(id, *std::move(admitted));
      }
      for (const auto& session : sessions_) {
        Fd memory = *pal::make_memfd("group", bytes, pal::Seals::kShared);
        state.sessions.at(session->id)
            ->add_sequence(*Sequence::map(session->id, kGroup, {1, 1, 2, 8, DType::kFloat32, 64},
                                          std::move(memory), bytes, Fd(), *pal_));
      }
    });
  }
  // Of a prompt of one token.
  static void generate(TestSession& session, uint32_t tokens) {
    ipc::GenerateBlock block;
    block.prefill = kPrefill.value;
    block.decode = kDecode.value;
    block.sequence = kGroup;
    block.rows = 1;
    block.prompt_tokens = 1;
    block.prompt = {TestSession::kOutputAt, sizeof(int32_t)};  // zeros
    block.padding = {0};
    block.max_new_tokens = tokens;
    submit(session, ipc::Operation::kGenerate, block);
  }

  // Its group is empty again.
  static void crop(TestSession& session) {
    submit(session, ipc::Operation::kCropSequence, ipc::CropBlock{kGroup, 0});
  }
  // The block lies where no run of TestSession's has anything.
  template <typename Block>
  static void submit(TestSession& session, ipc::Operation operation, const Block& block) {
    ipc::Submission submission;
    submission.operation = static_cast<uint16_t>(operation);
    submission.binding_offset = TestSession::kOutputAt + 4096;
    session.submit_bytes(ipc::encode(block), submission);
  }

  std::vector<std::unique_ptr<TestSession>> sessions_;
};

TEST_F(GeneratingLaneTest, steps_that_join_and_lack_memory_wait_each_until_it_has_come) {
  constexpr int kTokens = 5;
  prepare(3, 1 << 20);
  on_lane([&](LaneLoop::State& state) {
    for (const auto& session : sessions_) {
      generate(*session, kTokens);
      // What it will compute is known before it begins, of a program that never ran.
      Session& worked = *state.sessions.at(session->id);
      auto next = NextStep::of(worked, state.programs);
      ASSERT_TRUE(next);
      const auto expected = next->expected();
      ASSERT_TRUE(expected);
      EXPECT_EQ(expected->work.operators, generating(0).nodes.size());
    }
  });
  const auto request = heard<ipc::GrantRequest>();
  for (bool wait = false; !wait; std::this_thread::yield()) {
    on_lane([&](LaneLoop::State& state) {
      wait = std::ranges::all_of(state.sessions, [](const auto& one) { return one.second->waits; });
    });
  }
  grant(request);
  for (const auto& session : sessions_) {  // each token, and the end
    for (int told = 0; told <= kTokens; ++told) ASSERT_EQ(session->completion(), ErrorCode::kOk);
  }
  EXPECT_GT(loop_->counts().read().runs_together, 0u);
}

// What the first one has behind it is looked at before the second one's step is charged.
TEST_F(GeneratingLaneTest, of_two_that_end_in_one_step_the_first_may_go_on_with_a_deadline) {
  prepare(2, 0);
  for (uint32_t round = 0; round < 20; ++round) {
    const uint32_t tokens = 2 + round % 3;
    on_lane([&](LaneLoop::State&) {
      for (const auto& session : sessions_) {
        session->begin_by_ns = 0;
        generate(*session, tokens);
      }
      sessions_.front()->begin_by_ns = UINT64_MAX;
      sessions_.front()->run(one_operator("fake::nothing"));
    });
    for (const auto& session : sessions_) {
      const bool is_first = session == sessions_.front();
      const uint32_t completions = tokens + 1 + (is_first ? 1 : 0);
      for (uint32_t i = 0; i < completions; ++i) ASSERT_EQ(session->completion(), ErrorCode::kOk);
    }
    for (const auto& session : sessions_) {
      session->begin_by_ns = 0;
      crop(*session);
      ASSERT_EQ(session->completion(), ErrorCode::kOk);
    }
  }
  EXPECT_GT(loop_->counts().read().runs_together, 0u);
}

// Who comes is found while a run goes on, and is not picked before that has ended.
class ArrivalsTest : public LaneLoopTest {
 protected:
  ArrivalsTest() : LaneLoopTest(SchedulePolicy::kFifo) {}
};

TEST_F(ArrivalsTest, a_run_that_is_another_one_when_its_turn_comes_joins_nobody) {
  constexpr ProgramId kStep{5};
  constexpr SequenceHandle kGroup{3, 1};
  const ipc::SequenceGeometry geometry{1, 1, 2, 8, DType::kFloat32, 64};
  const uint64_t bytes = gc::SequenceLayout::make(1, 1, 2, 8, sizeof(float), 64)->file_bytes();
  const auto busy = attach(1);
  const std::array<std::unique_ptr<TestSession>, 2> sessions{attach(2), attach(3)};
  look_at(3);
  on_lane([&](LaneLoop::State& state) {
    state.programs.expect_program(kStep, {}, std::make_shared<const std::vector<std::byte>>());
    state.programs.add_program(kStep, *admit_graph(executor_, ipc::encode(generating(0)), nullptr));
    for (const auto& session : sessions) {
      Fd memory = *pal::make_memfd("group", bytes, pal::Seals::kShared);
      state.sessions.at(session->id)
          ->add_sequence(
              *Sequence::map(session->id, kGroup, geometry, std::move(memory), bytes, Fd(), *pal_));
    }
  });
  busy->run(one_operator("fake::wait"));
  while (busy->op() != "fake::wait") std::this_thread::yield();
  ipc::RunBlock block;
  block.sequence = kGroup;
  block.symbols = {1, 1};
  block.outputs = {{ipc::OutputKind::kStaging, {TestSession::kOutputAt, 400}, {}}};
  ipc::Submission submission;
  submission.operation = static_cast<uint16_t>(ipc::Operation::kRun);
  submission.program = kStep.value;
  for (const auto& session : sessions) session->submit(block, submission);
  for (size_t ready = 0; ready < sessions.size(); std::this_thread::yield()) {
    on_lane([&](LaneLoop::State& state) { ready = state.queue.ready_with(kStep.value).size(); });
  }
  block.symbols = {1, 2};
  copy_bytes(ipc::encode(block), sessions[1]->staging());
  busy->ring.cancel_through(busy->last_run);
  EXPECT_EQ(busy->completion(), ErrorCode::kCancelled);
  for (const auto& session : sessions) EXPECT_EQ(session->completion(), ErrorCode::kOk);
  on_lane([&](LaneLoop::State& state) {
    for (size_t i = 0; i < sessions.size(); ++i) {
      const Session& session = *state.sessions.at(sessions[i]->id);
      EXPECT_EQ(session.sequence_entry(**session.find_sequence(kGroup)).length, i + 1);
    }
  });
  EXPECT_EQ(loop_->counts().read().runs_together, 0u);
}

TEST_F(LaneLoopTest, a_session_that_leaves_gives_back_what_it_asked_for) {
  const auto waits = attach(1);
  waits->run(one_operator("fake::take_heap", {1 << 20}));
  const auto request = heard<ipc::GrantRequest>();
  command({ipc::DetachSession{waits->id}});
  EXPECT_EQ(heard<ipc::Detached>().session, waits->id);
  grant(request);
  EXPECT_EQ(heard<ipc::GrantReturn>().bytes, request.bytes);
}

TEST_F(LaneLoopTest, what_one_asked_for_is_not_given_back_while_another_waits_for_it) {
  const auto first = attach(1);
  const auto second = attach(2);
  first->run(one_operator("fake::take_heap", {1 << 20}));
  const auto request = heard<ipc::GrantRequest>();
  second->run(one_operator("fake::take_heap", {1 << 20}));
  for (bool waits = false; !waits; std::this_thread::yield()) {
    on_lane([&](LaneLoop::State& state) { waits = state.sessions.at(second->id)->waits; });
  }
  command({ipc::DetachSession{first->id}});
  EXPECT_EQ(heard<ipc::Detached>().session, first->id);
  grant(request);
  EXPECT_EQ(second->completion(), ErrorCode::kOk);
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(LaneLoopTest, a_session_that_breaks_the_protocol_is_set_aside_and_its_neighbour_goes_on) {
  const auto breaks = attach(1);
  const auto goes_on = attach(2);
  breaks->run(one_operator("fake::nothing"));
  ASSERT_EQ(breaks->completion(), ErrorCode::kOk);
  breaks->last_run = 0;
  breaks->run(one_operator("fake::nothing"));
  const auto broken = heard<ipc::SessionBroken>();
  EXPECT_EQ(broken.session, breaks->id);
  EXPECT_EQ(broken.code, ErrorCode::kProtocolViolation);
  goes_on->run(one_operator("fake::nothing"));
  EXPECT_EQ(goes_on->completion(), ErrorCode::kOk);
}

TEST_F(LaneLoopTest, a_run_that_computes_is_given_up_by_its_client_and_the_lane_goes_on) {
  const auto session = attach(1);
  const auto other = attach(2);
  session->run(one_operator("fake::wait"));
  while (session->op() != "fake::wait") std::this_thread::yield();
  session->ring.cancel_through(session->last_run);
  EXPECT_EQ(session->completion(), ErrorCode::kCancelled);
  other->run(one_operator("fake::nothing"));
  EXPECT_EQ(other->completion(), ErrorCode::kOk);
}

// Nobody answers for the memory that it asked for.
TEST_F(LaneLoopTest, a_run_that_waits_for_memory_is_refused_at_its_deadline) {
  const auto session = attach(1);
  session->begin_by_ns = clock_.monotonic_ns() + 50 * kNsPerMs;
  session->run(one_operator("fake::take_heap", {1 << 20}));
  EXPECT_EQ(session->completion(), ErrorCode::kQueueFull);
  EXPECT_GT(clock_.monotonic_ns(), session->begin_by_ns);
  session->begin_by_ns = 0;
  session->run(one_operator("fake::nothing"));
  EXPECT_EQ(session->completion(), ErrorCode::kOk);
}

TEST_F(LaneLoopTest, behind_too_many_nobody_with_a_deadline_is_queued) {
  const auto first = attach(1);
  const auto second = attach(2);
  const auto last = attach(3);
  look_at(3);
  on_lane([&](LaneLoop::State&) {
    for (int run = 0; run < 200; ++run) first->run(one_operator("fake::nothing"));
    for (int run = 0; run < 200; ++run) second->run(one_operator("fake::nothing"));
    last->begin_by_ns = clock_.monotonic_ns() + 100 * kNsPerSecond;
    last->run(one_operator("fake::nothing"));
  });
  EXPECT_EQ(last->completion(), ErrorCode::kQueueFull);
  for (int run = 0; run < 200; ++run) ASSERT_EQ(first->completion(), ErrorCode::kOk);
  for (int run = 0; run < 200; ++run) ASSERT_EQ(second->completion(), ErrorCode::kOk);
  last->run(one_operator("fake::nothing"));
  EXPECT_EQ(last->completion(), ErrorCode::kOk);
  EXPECT_EQ(loop_->counts().read().submissions_refused, 1u);
}

TEST_F(LaneLoopTest, as_many_sessions_as_a_user_may_have_are_served_where_none_has_a_deadline) {
  constexpr int kRuns = 3;
  std::vector<std::unique_ptr<TestSession>> sessions;
  for (uint64_t id = 1; id <= limits::kSessionsPerUser; ++id) sessions.push_back(attach(id));
  on_lane([&](LaneLoop::State&) {
    for (const auto& session : sessions) {
      for (int run = 0; run < kRuns; ++run) session->run(one_operator("fake::nothing"));
    }
  });
  static_assert(limits::kSessionsPerUser * kRuns > limits::kQueuedSubmissions);
  for (const auto& session : sessions) {
    for (int run = 0; run < kRuns; ++run) ASSERT_EQ(session->completion(), ErrorCode::kOk);
  }
  EXPECT_EQ(loop_->counts().read().submissions_refused, 0u);
}

TEST_F(LaneLoopTest, deadlines_that_mean_nothing_harm_nobody_else) {
  const auto strange = attach(1);
  const auto other = attach(2);
  for (int run = 0; run < 200; ++run) {
    const bool is_past = run % 2 == 0;
    strange->begin_by_ns = is_past ? 1 + uint64_t(run) : UINT64_MAX - uint64_t(run);
    strange->run(one_operator("fake::nothing"));
    other->run(one_operator("fake::nothing"));
    ASSERT_EQ(other->completion(), ErrorCode::kOk);
    ASSERT_EQ(strange->completion(), is_past ? ErrorCode::kQueueFull : ErrorCode::kOk);
  }
}

// Too many are queued, behind a run that goes on for ever.
TEST_F(ArrivalsTest, who_submits_again_whatever_it_is_told_is_told_in_its_turn) {
  const auto asks = attach(1);
  const auto busy = attach(2);
  const std::array<std::unique_ptr<TestSession>, 2> others{attach(3), attach(4)};
  look_at(4);
  busy->run(one_operator("fake::wait"));
  while (busy->op() != "fake::wait") std::this_thread::yield();
  for (const auto& other : others) {
    for (int run = 0; run < 200; ++run) other->run(one_operator("fake::nothing"));
  }
  asks->begin_by_ns = UINT64_MAX;
  for (int run = 0; run < 8; ++run) {
    asks->run(one_operator("fake::nothing"));
    ASSERT_EQ(asks->completion(), ErrorCode::kQueueFull);
  }
  on_lane([&](LaneLoop::State& state) {
    state.queue.charge_judging(asks->id, sched::Arrival::kWoke, 0, 100 * sched::kUnitNs);
  });
  asks->run(one_operator("fake::nothing"));
  busy->ring.cancel_through(busy->last_run);
  EXPECT_EQ(busy->completion(), ErrorCode::kCancelled);
  for (const auto& other : others) {
    for (int run = 0; run < 200; ++run) ASSERT_EQ(other->completion(), ErrorCode::kOk);
  }
  EXPECT_EQ(asks->completion(), ErrorCode::kOk) << "it was queued";
  EXPECT_EQ(loop_->counts().read().submissions_refused, 8u);
}

// While another's run goes on, which is one of them, and of those before nothing is lost.
TEST_F(ArrivalsTest, of_those_with_a_deadline_the_256th_is_queued_and_the_257th_refused_at_once) {
  constexpr uint32_t kOthers = limits::kQueuedSubmissions - 2;
  const auto busy = attach(1);
  const auto others = attach(2);
  const std::array<std::unique_ptr<TestSession>, 2> ask{attach(3), attach(4)};
  look_at(4);
  busy->run(one_operator("fake::wait"));
  while (busy->op() != "fake::wait") std::this_thread::yield();
  for (uint32_t run = 0; run < kOthers; ++run) others->run(one_operator("fake::nothing"));
  for (bool found = false; !found;) {
    on_lane([&](LaneLoop::State& state) { found = state.queue.has_ready(); });
  }
  const auto charged_ns = [&] {
    int64_t ns = 0;
    on_lane([&](LaneLoop::State& state) {
      ns = sched::QueueForTests::virtual_ns(state.queue, ask[0]->id);
    });
    return ns;
  };
  const int64_t before_ns = charged_ns();
  for (const auto& one : ask) one->begin_by_ns = UINT64_MAX;
  ask[0]->run(one_operator("fake::nothing"));
  while (charged_ns() == before_ns) std::this_thread::yield();  // for being judged
  ask[1]->run(one_operator("fake::nothing"));
  EXPECT_EQ(ask[1]->completion(), ErrorCode::kQueueFull);
  busy->ring.cancel_through(busy->last_run);
  EXPECT_EQ(busy->completion(), ErrorCode::kCancelled);
  for (uint32_t run = 0; run < kOthers; ++run) ASSERT_EQ(others->completion(), ErrorCode::kOk);
  EXPECT_EQ(ask[0]->completion(), ErrorCode::kOk);
  EXPECT_EQ(loop_->counts().read().submissions_refused, 1u);
}

// Who may make the lane work out anew what each step computes does so at the cost of its own steps.
TEST_F(LaneLoopTest, to_work_out_a_step_of_a_kind_that_never_ran_is_its_sessions_time) {
  constexpr ProgramId kLarge{5};
  srg::Graph graph = one_operator("fake::nothing");
  graph.nodes.resize(8000, graph.nodes.front());
  const auto session = attach(1);
  look_at(1);
  uint64_t takes_ns = UINT64_MAX;
  int64_t before_ns = 0;
  on_lane([&](LaneLoop::State& state) {
    state.programs.expect_program(kLarge, {}, std::make_shared<const std::vector<std::byte>>());
    state.programs.add_program(kLarge, *admit_graph(executor_, ipc::encode(graph), nullptr));
    for (int again = 0; again < 5; ++again) {
      const uint64_t begun_ns = clock_.monotonic_ns();
      EXPECT_EQ(sched::work_at(graph, {}).operators, graph.nodes.size());
      takes_ns = std::min(takes_ns, clock_.monotonic_ns() - begun_ns);
    }
    before_ns = sched::QueueForTests::virtual_ns(state.queue, session->id);
  });
  session->begin_by_ns = 1;  // too late, so that no time but that is its own
  session->run(kLarge, {});
  EXPECT_EQ(session->completion(), ErrorCode::kQueueFull);
  on_lane([&](LaneLoop::State& state) {
    const int64_t after_ns = sched::QueueForTests::virtual_ns(state.queue, session->id);
    constexpr int64_t kWeightOfVirtualTime = 4, kWeight = 2;  // as queue.h says
    EXPECT_GT((after_ns - before_ns) * kWeight / kWeightOfVirtualTime, int64_t(takes_ns / 2));
  });
}

TEST_F(LaneLoopTest, ends_with_sessions_that_wait) {
  const auto session = attach(1);
  session->run(one_operator("fake::take_heap", {1 << 20}));
  heard<ipc::GrantRequest>();
  end();
  EXPECT_EQ(ended_, ErrorCode::kDisconnected);
}

}  // namespace
}  // namespace djinn::worker
