// SPDX-License-Identifier: Apache-2.0

// A run that is paused between two operators, with other sessions' steps inside: what it gives is
// what it gives alone, whatever comes at a pause.
#include <algorithm>
#include <map>

#include "daemon/worker/member_for_tests.h"
#include "daemon/worker/model_for_tests.h"
#include "daemon/worker/session_for_tests.h"

namespace djinn::worker {
namespace {

constexpr RefHandle kChanged{9, 1};

// Of model_of_operators(), of which the second makes the logits.
constexpr size_t kOperators = 4;

// A model for generate(). waits_at: in front of that operator, or behind the last, it takes until
// it is given up. weight: the first one reads it.
srg::Graph model_of_operators(size_t waits_at = SIZE_MAX, const char* weight = nullptr) {
  srg::GraphBuilder g("model");
  const srg::Expr rows = g.symbol("rows", 1, limits::kRows, srg::SymbolRole::kBatch);
  const srg::Expr tokens = g.symbol("tokens", 1, 64, srg::SymbolRole::kTokens);
  const srg::Tensor ids = g.input("ids", DType::kInt64, {rows, tokens}, srg::InputRole::kTokenIds);
  for (size_t at = 0; at <= kOperators; ++at) {
    if (at == waits_at) g.op_n(0, "fake::wait", {});
    if (at == 0 && weight != nullptr) {
      g.op("fake::add_one", {g.weight(weight, DType::kFloat32, {4})});
    } else if (at == 1) {
      const srg::Tensor logits = g.op("fake::logits", {ids});
      g.claim(logits, DType::kFloat32, {rows, 100});
      g.output("logits", logits);
    } else if (at < kOperators) {
      g.op_n(0, "fake::nothing", {});
    }
  }
  return *std::move(g).finish();
}

// What a worker that dies now leaves of memory that others have as well.
class Left {
 public:
  Left(int fd, uint64_t bytes) : fd_(::dup(fd)), content_(*pal::read_memfd(fd_, bytes)) {}
  void bring_back() const {
    const auto mapped = pal::map_shared(fd_, content_.size(), pal::Access::kReadWrite);
    copy_bytes(content_, mapped->bytes());
  }

 private:
  Fd fd_;
  std::vector<std::byte> content_;
};

// --- one runner: what happens at each operator is the test's

class PausesTest : public SessionTest {
 protected:
  static constexpr ProgramId kOfOperators{6};

  PausesTest() {
    add_program(Member::kProgram, counting_model());
    add_program(kOfOperators, model_of_operators());
  }
  void add_program(ProgramId id, srg::Graph graph) {
    graph.numerics = srg::Numerics::kFast;
    auto admitted = admit_graph(executor_, ipc::encode(graph), nullptr);
    programs_.expect_program(id, {}, std::make_shared<const std::vector<std::byte>>());
    programs_.add_program(id, *std::move(admitted));
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
  // The rest of what it has submitted, and how that ended.
  std::optional<ErrorCode> finish(Member& member) {
    while (*runner_.advance(*member.session) != Runner::Advance::kIdle) programs_.end_step();
    tokens_ = member.told();
    return std::exchange(member.ended, std::nullopt);
  }
  using SessionTest::finish;
  static std::vector<int32_t> tokens_behind(int32_t prompt) {
    return {prompt + 1, prompt + 2, prompt + 3, prompt + 4, prompt + 5};
  }
  // What is left of another session, and of this one.
  static void keep(std::vector<Left>& all, const Member& member) {
    const std::vector<int> fds = member.client.fds();
    all.emplace_back(fds[0], ipc::SessionLayout::bytes(TestSession::kStagingBytes));
    all.emplace_back(fds[1], gc::state_bytes(TestSession::kGeometry));
    all.emplace_back(fds[4], TestSession::kRefBytes);
    all.emplace_back(member.memory.get(), member.bytes);
  }
  void keep(std::vector<Left>& all) const {
    all.emplace_back(memory_.get(), ipc::SessionLayout::bytes(kStagingBytes));
    all.emplace_back(state_.get(), gc::state_bytes(kGeometry));
    all.emplace_back(refs_.get(), kRefBytes);
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
  std::vector<int32_t> tokens_;  // what finish() was told
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

// The next worker sees what is in the memory at the pause, when another's step is over.
TEST_F(PausesTest, a_worker_that_dies_at_any_pause_leaves_what_the_next_one_repeats) {
  ASSERT_EQ(write(kChanged), ErrorCode::kOk);
  Numbers expected = kInput;
  for (size_t at = 0; at < 4; ++at) {
    const Numbers before = expected;
    Numbers given = expected;
    for (size_t i = 0; i < given.size(); ++i) {
      given[i] += 1;
      expected[i] += 2;
    }
    other_.generate(int32_t(at));
    std::vector<Left> all;
    at_operator(at, [&] {
      EXPECT_EQ(inside(other_), Runner::Advance::kWorked);
      const Runner::Pause pause(runner_);
      keep(all);
      keep(all, other_);
      return true;
    });
    submit_training_step();
    ASSERT_EQ(advance_until_it_does_not_wait(), Runner::Advance::kWorked);
    EXPECT_EQ(bytes_of(kChanged), expected);
    between_ = {};
    session_.reset();
    other_.session.reset();
    for (const Left& one : all) one.bring_back();
    attach();
    other_.attach();
    EXPECT_EQ(bytes_of(kChanged), before) << "it is undone";
    EXPECT_EQ(advance_until_it_does_not_wait(), Runner::Advance::kWorked);
    EXPECT_EQ(ended(), ErrorCode::kOk);
    EXPECT_EQ(bytes_of(kChanged), expected);
    EXPECT_EQ(output(), given);
    EXPECT_EQ(finish(other_), ErrorCode::kOk);
    EXPECT_EQ(tokens_, tokens_behind(int32_t(at)));
  }
}

TEST_F(PausesTest, a_worker_that_dies_at_any_pause_of_a_prompt_leaves_its_group_as_it_was) {
  for (size_t at = 0; at < kOperators; ++at) {
    Member prompt(12, *pal_, grants_, faults_);
    prompt.generate(20, kOfOperators);
    other_.generate(int32_t(at));
    std::vector<Left> all;
    at_operator(at, [&] {
      const Runner::Pause pause(runner_);
      EXPECT_TRUE(runner_.is_aside(prompt.client.id));
      EXPECT_EQ(*runner_.advance(*other_.session), Runner::Advance::kWorked);
      programs_.end_step();
      keep(all, prompt);
      keep(all, other_);
      return true;
    });
    ASSERT_EQ(*runner_.advance(*prompt.session), Runner::Advance::kWorked);
    programs_.end_step();
    EXPECT_EQ(prompt.length(), 1u);
    between_ = {};
    prompt.session.reset();
    other_.session.reset();
    for (const Left& one : all) one.bring_back();
    prompt.attach();
    other_.attach();
    EXPECT_EQ(prompt.length(), 0u);
    for (Member* const member : {&other_, &prompt}) {
      EXPECT_EQ(finish(*member), ErrorCode::kOk);
      EXPECT_EQ(tokens_, tokens_behind(member == &prompt ? 20 : int32_t(at)));
    }
  }
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

TEST_F(PausesTest, a_run_that_is_given_up_at_any_pause_ends_and_leaves_nothing) {
  for (uint32_t at = 0; at < 4; ++at) {
    const RefHandle changed{20 + at, 1}, made{30 + at, 1};
    ASSERT_EQ(write(changed), ErrorCode::kOk);
    other_.generate(int32_t(at));
    at_operator(at, [&] {
      client_.cancel_through(next_run_ - 1);
      return inside(other_) == Runner::Advance::kWorked;
    });
    ipc::RunBlock block;
    block.inputs = {from_ref(changed)};
    block.outputs = {to_ref(made)};
    submit_graph(training_step(), block);
    EXPECT_EQ(finish(), ErrorCode::kCancelled);
    EXPECT_EQ(lane_->failed_at(), std::nullopt);
    between_ = {};
    for (const RefHandle ref : {changed, made}) {
      EXPECT_EQ(read(ref), ErrorCode::kPoisoned);
      EXPECT_EQ(release(ref), ErrorCode::kOk);
    }
    session_->trim_refs();
    grant_all();  // what was given back is heard of
    EXPECT_EQ(granted_bytes_[ipc::GrantKind::kRefs], 0u);
    EXPECT_EQ(finish(other_), ErrorCode::kOk);
    EXPECT_EQ(tokens_, tokens_behind(int32_t(at)));
  }
}

TEST_F(PausesTest, a_prompt_that_is_given_up_at_any_pause_can_be_given_again) {
  Member prompt(12, *pal_, grants_, faults_);
  for (size_t at = 0; at < kOperators; ++at) {
    other_.generate(int32_t(at));
    at_operator(at, [&] {
      prompt.client.ring.cancel_through(prompt.client.last_run);
      const Runner::Pause pause(runner_);
      EXPECT_EQ(*runner_.advance(*other_.session), Runner::Advance::kWorked);
      programs_.end_step();
      return true;
    });
    prompt.generate(20, kOfOperators);
    EXPECT_EQ(finish(prompt), ErrorCode::kCancelled);
    EXPECT_TRUE(tokens_.empty());
    EXPECT_EQ(prompt.length(), 0u);
    EXPECT_FALSE(prompt.session->state().in_flight());
    between_ = {};
    EXPECT_EQ(finish(other_), ErrorCode::kOk);
    EXPECT_EQ(tokens_, tokens_behind(int32_t(at)));
    other_.generate(0);
    EXPECT_EQ(finish(other_), ErrorCode::kOk);
  }
  prompt.generate(20, kOfOperators);
  EXPECT_EQ(finish(prompt), ErrorCode::kOk);
  EXPECT_EQ(tokens_, tokens_behind(20));
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
  breaks->ring_bell();
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

// A session that is in its prompt, at the operator that is the parameter, on the first of two
// groups, beside another session.
class PausedPromptTest : public PausedLaneTest, public ::testing::WithParamInterface<size_t> {
 protected:
  static constexpr ProgramId kSlow{5}, kOther{6};
  static constexpr ModelId kModel = TestModel::kId;
  static constexpr SequenceHandle kUsed{3, 1}, kUnused{4, 1};
  static constexpr uint64_t kInputAt = TestSession::kOutputAt + 4096;

  PausedPromptTest() {
    session_ = attach(1);
    other_ = attach(2);
    add_model();
    for (const ProgramId id : {kSlow, kOther}) add_program(id);
    on_lane([&](LaneLoop::State& state) {
      const uint64_t bytes = gc::SequenceLayout::make(1, 1, 2, 8, sizeof(float), 64)->file_bytes();
      for (const SequenceHandle handle : {kUsed, kUnused}) {
        Fd memory = *pal::make_memfd("group", bytes, pal::Seals::kShared);
        std::shared_ptr<Sequence> group =
            *Sequence::map(session_->id, handle, {1, 1, 2, 8, DType::kFloat32, 64},
                           std::move(memory), bytes, Fd(), *pal_);
        (handle == kUsed ? used_ : unused_) = group;
        state.sessions.at(session_->id)->add_sequence(std::move(group));
      }
    });
    generate();
  }
  void add_model() {
    const std::vector<Fd> fds = TestModel().fds();
    std::vector<int> numbers;
    for (const Fd& fd : fds) numbers.push_back(fd.get());
    command({ipc::AddModel{kModel, false}}, numbers);
    EXPECT_EQ(heard<ipc::ModelAdded>().code, ErrorCode::kOk);
  }
  void add_program(ProgramId id) {
    const Fd graph =
        *pal::make_sealed_memfd("graph", ipc::encode(model_of_operators(GetParam(), "v")));
    command({ipc::AddProgram{id, kModel}}, {graph.get()});
    EXPECT_EQ(heard<ipc::ProgramAdded>().program, id);
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
    ipc::Submission submission;
    submission.operation = static_cast<uint16_t>(ipc::Operation::kGenerate);
    session_->submit_bytes(ipc::encode(block), submission);
    await_pause();
  }
  void await_pause() const {
    while (session_->op() != "fake::wait") std::this_thread::yield();
  }
  uint64_t repeated() { return loop_->counts().read().runs_repeated; }
  void expect_other_has_its_result() {
    const std::vector<std::byte> graph = ipc::encode(add_one());
    copy_bytes(graph, other_->staging().subspan(TestSession::kGraphAt));
    copy_bytes(std::as_bytes(std::span(kInput)), other_->staging().subspan(kInputAt));
    ipc::RunBlock block;
    block.inputs = {{0, ipc::InputKind::kStaging, {kInputAt, sizeof kInput}, {}}};
    block.outputs = {{ipc::OutputKind::kStaging, {TestSession::kOutputAt, sizeof(Numbers)}, {}}};
    ipc::Submission submission;
    submission.operation = static_cast<uint16_t>(ipc::Operation::kRunOnce);
    submission.graph_offset = TestSession::kGraphAt;
    submission.graph_bytes = graph.size();
    other_->submit(block, submission);
    EXPECT_EQ(other_->completion(), ErrorCode::kOk);
    Numbers given{};
    memcpy(given.data(), other_->staging().data() + TestSession::kOutputAt, sizeof given);
    EXPECT_EQ(given, kInputAndOne);
  }
  // Of what the prompt has of the session.
  void expect_nothing_is_left() {
    on_lane([&](LaneLoop::State& state) {
      Session& session = *state.sessions.at(session_->id);
      EXPECT_FALSE(session.state().in_flight());
      EXPECT_FALSE(state.waits.is_waiting(session_->id));
      const auto group = used_.lock();
      EXPECT_EQ(group ? session.sequence_entry(*group).length : 0, 0u);
    });
  }

  std::unique_ptr<TestSession> session_, other_;
  std::weak_ptr<Sequence> used_, unused_;
};

TEST_P(PausedPromptTest, it_is_given_up) {
  expect_other_has_its_result();
  give_up(*session_);
  expect_nothing_is_left();
  EXPECT_EQ(repeated(), 0u);
  generate();
  give_up(*session_);
}

TEST_P(PausedPromptTest, what_it_does_not_use_is_let_go_of_while_it_is_paused) {
  command({ipc::ReleaseSequence{session_->id, kUnused}});
  EXPECT_EQ(heard<ipc::SequenceDropped>().sequence, kUnused);
  EXPECT_TRUE(unused_.expired());
  command({ipc::DropProgram{kOther}});
  command({ipc::WakeLane{}});
  heard<ipc::LaneAwake>();
  expect_other_has_its_result();
  EXPECT_EQ(repeated(), 0u);
  give_up(*session_);
  expect_nothing_is_left();
}

TEST_P(PausedPromptTest, a_group_that_it_uses_is_let_go_of_when_it_was_abandoned) {
  command({ipc::ReleaseSequence{session_->id, kUsed}});
  EXPECT_EQ(heard<ipc::SequenceDropped>().sequence, kUsed);
  EXPECT_EQ(session_->completion(), ErrorCode::kNotFound) << "it begins again, without";
  EXPECT_EQ(repeated(), 1u);
  EXPECT_TRUE(used_.expired());
  expect_nothing_is_left();
  expect_other_has_its_result();
}

TEST_P(PausedPromptTest, a_group_that_it_uses_is_written_out_and_comes_back) {
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
  expect_other_has_its_result();
  give_up(*session_);
  expect_nothing_is_left();
}

TEST_P(PausedPromptTest, a_program_that_it_runs_is_let_go_of_when_it_was_abandoned) {
  command({ipc::DropProgram{kSlow}});
  EXPECT_EQ(session_->completion(), ErrorCode::kNotFound);
  EXPECT_EQ(repeated(), 1u);
  expect_nothing_is_left();
  expect_other_has_its_result();
}

TEST_P(PausedPromptTest, a_model_that_it_reads_is_parked_when_it_was_abandoned_and_comes_back) {
  command({ipc::ParkModel{kModel}});
  EXPECT_EQ(heard<ipc::ModelParked>().model, kModel);
  EXPECT_EQ(heard<ipc::ModelWanted>().model, kModel);
  expect_other_has_its_result();
  EXPECT_FALSE(*session_->ring.take());
  add_model();
  await_pause();
  EXPECT_EQ(repeated(), 1u);
  give_up(*session_);
  expect_nothing_is_left();
}

TEST_P(PausedPromptTest, a_model_that_it_reads_is_let_go_of_when_it_was_abandoned) {
  command({ipc::DropModel{kModel}});
  EXPECT_EQ(heard<ipc::ModelDropped>().model, kModel);
  EXPECT_EQ(session_->completion(), ErrorCode::kNotFound);
  EXPECT_EQ(repeated(), 1u);
  expect_nothing_is_left();
  expect_other_has_its_result();
}

TEST_P(PausedPromptTest, its_session_goes_with_all_that_it_has) {
  command({ipc::DetachSession{session_->id}});
  EXPECT_EQ(heard<ipc::Detached>().session, session_->id);
  EXPECT_TRUE(used_.expired());
  EXPECT_TRUE(unused_.expired());
  EXPECT_EQ(repeated(), 1u);
  expect_other_has_its_result();
  command({ipc::ParkModel{kModel}});
  EXPECT_EQ(heard<ipc::ModelParked>().model, kModel) << "nothing uses it";
}

INSTANTIATE_TEST_SUITE_P(Operators, PausedPromptTest, ::testing::Range(size_t{0}, kOperators + 1));

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
