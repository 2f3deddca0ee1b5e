// SPDX-License-Identifier: Apache-2.0

// What djinnd commands, and what a worker answers.
#include "daemon/worker/control_loop.h"

#include <sys/socket.h>

#include "daemon/worker/model_for_tests.h"
#include "daemon/worker/worker_for_tests.h"

namespace djinn::worker {
namespace {

constexpr ProgramId kProgram{3};
constexpr ProgramId kSlow{4};
constexpr ModelId kModel = TestModel::kId;
constexpr SequenceHandle kGroup{2, 1};

class ControlLoopTest : public WorkerTest {
 protected:
  static std::vector<int> numbers(const std::vector<Fd>& fds) {
    std::vector<int> numbers;
    for (const Fd& fd : fds) numbers.push_back(fd.get());
    return numbers;
  }
  ErrorCode add_model(bool parked = false) {
    const std::vector<Fd> fds = model_.fds(parked);
    command({ipc::AddModel{kModel, parked}}, numbers(fds));
    return heard<ipc::ModelAdded>().code;
  }
  void add_program(const srg::Graph& graph, ModelId model, ProgramId id = kProgram) {
    const Fd fd = *pal::make_sealed_memfd("graph", ipc::encode(graph));
    ipc::AddProgram add;
    add.program = id;
    add.model = model;
    command({add}, {fd.get()});
  }
  // One more than the model's weights.
  static srg::Graph reads_weights(const char* name = "v") {
    srg::GraphBuilder g("test");
    const srg::Tensor y = g.op("fake::add_one", {g.weight(name, DType::kFloat32, {4})});
    g.claim(y, DType::kFloat32, {4});
    g.output("y", y);
    return *std::move(g).finish();
  }
  // A graph whose admission does not end by itself, and is under way.
  void add_slow_program(ModelId model = {}) {
    add_program(one_operator("fake::wait_in_admission"), model, kSlow);
    EXPECT_EQ(heard<ipc::ProgramLookedAt>().program, kSlow);
  }
  // A session, beside a program that it may run on the model.
  std::unique_ptr<TestSession> attach_with_program(bool parked = false) {
    EXPECT_EQ(add_model(parked), ErrorCode::kOk);
    add_program(reads_weights(), kModel);
    heard<ipc::ProgramAdded>();
    return attach(1);
  }
  void run_program(TestSession& session) {
    session.run(kProgram, {{ipc::OutputKind::kStaging, {TestSession::kOutputAt, 16}, {}}});
  }
  // The lane is in a step that goes on until it is given up.
  static void begin_to_wait(TestSession& session, const srg::Graph& graph) {
    session.run(graph);
    while (session.op() != "fake::wait") std::this_thread::yield();
  }
  static std::array<float, 4> output(TestSession& session) {
    std::array<float, 4> numbers{};
    memcpy(numbers.data(), session.staging().data() + TestSession::kOutputAt, sizeof numbers);
    return numbers;
  }
  // A group of the session's; its memory.
  Fd add_group(SessionId session) {
    const ipc::SequenceGeometry geometry{1, 1, 2, 8, DType::kFloat32, 16};
    const auto layout = gc::SequenceLayout::make(1, 1, 2, 8, sizeof(float), 16);
    Fd memfd = *pal::make_memfd("group", layout->file_bytes(), pal::Seals::kShared);
    ipc::AddSequence add;
    add.session = session;
    add.sequence = kGroup;
    add.geometry = geometry;
    command({add}, {memfd.get()});
    return memfd;
  }

  TestModel model_;
};

TEST_F(ControlLoopTest, a_program_runs_on_the_model_that_came_before_it) {
  ASSERT_EQ(add_model(), ErrorCode::kOk);
  add_program(reads_weights(), kModel);
  const auto added = heard<ipc::ProgramAdded>();
  EXPECT_EQ(added.program, kProgram);
  ASSERT_EQ(added.outputs.size(), 1u);
  EXPECT_EQ(added.outputs[0].name, "y");
  const auto session = attach(1);
  run_program(*session);
  ASSERT_EQ(session->completion(), ErrorCode::kOk);
  EXPECT_EQ(output(*session), (std::array<float, 4>{6, 7, 8, 9}));
}

TEST_F(ControlLoopTest, a_program_is_told_with_its_name_and_what_it_is_for) {
  srg::GraphBuilder g("st\u202eep");
  const srg::Tensor x = g.input("x", DType::kFloat32, {4});
  {
    const auto phase = g.phase(srg::Phase::kDecode);
    g.output("y", g.op("fake::add_one", {x}));
  }
  add_program(*std::move(g).finish(), {});
  const auto added = heard<ipc::ProgramAdded>();
  EXPECT_EQ(added.name, "st?ep") << "what djinnd would refuse as a name is replaced";
  EXPECT_EQ(added.workload, ipc::Workload::kDecode);
}

TEST_F(ControlLoopTest, a_program_that_is_not_admitted_is_refused_with_the_reason) {
  add_program(one_operator("fake::refuse"), {});
  EXPECT_EQ(heard<ipc::ProgramRefused>().code, ErrorCode::kUnsupported);
  add_program(reads_weights(), kModel);
  EXPECT_EQ(heard<ipc::ProgramRefused>().code, ErrorCode::kNotFound) << "there is no model";
  ASSERT_EQ(add_model(), ErrorCode::kOk);
  add_program(reads_weights("nowhere"), kModel);
  EXPECT_EQ(heard<ipc::ProgramRefused>().code, ErrorCode::kNotFound);
  command({ipc::AddProgram{kProgram, {}}});
  EXPECT_EQ(heard<ipc::ProgramRefused>().code, ErrorCode::kMalformed) << "without a graph";
}

TEST_F(ControlLoopTest, a_graph_that_is_looked_at_for_long_keeps_no_session_from_anything) {
  add_slow_program();
  const auto session = attach(1);
  session->run(one_operator("fake::nothing"));
  EXPECT_EQ(session->completion(), ErrorCode::kOk);
  command({ipc::DetachSession{session->id}});
  EXPECT_EQ(heard<ipc::Detached>().session, session->id);
}

TEST_F(ControlLoopTest, a_graph_that_is_looked_at_for_long_waits_behind_others) {
  add_slow_program();
  ASSERT_EQ(add_model(), ErrorCode::kOk);
  add_program(reads_weights(), kModel);
  EXPECT_EQ(heard<ipc::ProgramAdded>().program, kProgram);
}

TEST_F(ControlLoopTest, a_run_awaits_its_program_until_that_is_admitted_or_dropped) {
  ASSERT_EQ(add_model(), ErrorCode::kOk);
  const auto session = attach(1);
  add_slow_program();
  add_program(reads_weights(), kModel);
  command({ipc::WakeLane{}});
  heard<ipc::LaneAwake>();  // and has heard of the programs
  run_program(*session);
  EXPECT_EQ(session->completion(), ErrorCode::kOk);
  EXPECT_EQ(output(*session), (std::array<float, 4>{6, 7, 8, 9}));
  heard<ipc::ProgramAdded>();
  session->run(kSlow, {});
  command({ipc::WakeLane{}});
  heard<ipc::LaneAwake>();
  EXPECT_FALSE(*session->ring.take());
  command({ipc::DropProgram{kSlow}});
  EXPECT_EQ(session->completion(), ErrorCode::kNotFound);
}

TEST_F(ControlLoopTest, a_model_that_is_dropped_ends_the_look_at_its_programs) {
  ASSERT_EQ(add_model(), ErrorCode::kOk);
  add_slow_program(kModel);
  command({ipc::DropModel{kModel}});
  EXPECT_EQ(heard<ipc::ModelDropped>().model, kModel);
  add_program(one_operator("fake::nothing"), {});
  EXPECT_EQ(heard<ipc::ProgramAdded>().program, kProgram);
}

TEST_F(ControlLoopTest, a_parked_model_is_wanted_by_a_run_which_goes_on_as_it_is_back) {
  const auto session = attach_with_program();
  command({ipc::ParkModel{kModel}});
  EXPECT_EQ(heard<ipc::ModelParked>().model, kModel);
  run_program(*session);
  EXPECT_EQ(heard<ipc::ModelWanted>().model, kModel);
  EXPECT_FALSE(*session->ring.take());
  ASSERT_EQ(add_model(), ErrorCode::kOk);
  EXPECT_EQ(session->completion(), ErrorCode::kOk);
  EXPECT_EQ(output(*session), (std::array<float, 4>{6, 7, 8, 9}));
}

TEST_F(ControlLoopTest, a_step_keeps_no_bytes_of_models_that_it_does_not_use) {
  const auto session = attach_with_program();
  begin_to_wait(*session, one_operator("fake::wait"));
  command({ipc::ParkModel{kModel}});
  EXPECT_EQ(heard<ipc::ModelParked>().model, kModel);
  ASSERT_EQ(add_model(), ErrorCode::kOk);  // which the lane answers amid the step
  command({ipc::ParkModel{kModel}});
  EXPECT_EQ(heard<ipc::ModelParked>().model, kModel) << "however often";
  command({ipc::DropModel{kModel}});
  EXPECT_EQ(heard<ipc::ModelDropped>().model, kModel);
  while (session->op() != "fake::wait") std::this_thread::yield();  // the lane was amid the answer
  EXPECT_EQ(loop_->counts().read().runs_repeated, 0u) << "it goes on";
  session->ring.cancel_through(session->last_run);
  EXPECT_EQ(session->completion(), ErrorCode::kCancelled);
  run_program(*session);
  EXPECT_EQ(session->completion(), ErrorCode::kNotFound) << "nothing is left of it";
}

TEST_F(ControlLoopTest, a_step_is_abandoned_before_the_bytes_that_it_uses_go) {
  const auto session = attach(1);
  ASSERT_EQ(add_model(), ErrorCode::kOk);
  srg::GraphBuilder g("test");
  const srg::Tensor y = g.op("fake::add_one", {g.weight("v", DType::kFloat32, {4})});
  g.claim(y, DType::kFloat32, {4});
  g.output("y", y);
  g.op_n(0, "fake::wait", {});
  add_program(*std::move(g).finish(), kModel);
  heard<ipc::ProgramAdded>();
  const auto command_in_a_step = [&](const ipc::WorkerCommand& said) {
    run_program(*session);
    while (session->op() != "fake::wait") std::this_thread::yield();
    command(said);
  };
  command_in_a_step({ipc::ParkModel{kModel}});
  EXPECT_EQ(heard<ipc::ModelParked>().model, kModel);
  EXPECT_EQ(heard<ipc::ModelWanted>().model, kModel) << "the step is to be done again";
  session->ring.cancel_through(session->last_run);
  command({ipc::WakeLane{}});
  heard<ipc::LaneAwake>();
  EXPECT_EQ(session->completion(), ErrorCode::kCancelled);
  ASSERT_EQ(add_model(), ErrorCode::kOk);
  command_in_a_step({ipc::DropModel{kModel}});
  EXPECT_EQ(heard<ipc::ModelDropped>().model, kModel);
  EXPECT_EQ(session->completion(), ErrorCode::kNotFound);
}

TEST_F(ControlLoopTest, a_run_whose_model_is_lost_says_why) {
  const auto session = attach_with_program(true);
  run_program(*session);
  heard<ipc::ModelWanted>();
  command({ipc::ModelLost{kModel, ErrorCode::kFileChanged, "Its files have changed."}});
  EXPECT_EQ(session->completion(), ErrorCode::kFileChanged);
}

TEST_F(ControlLoopTest, a_model_that_is_dropped_takes_its_programs_along) {
  const auto session = attach_with_program();
  command({ipc::DropModel{kModel}});
  EXPECT_EQ(heard<ipc::ModelDropped>().model, kModel);
  run_program(*session);
  EXPECT_EQ(session->completion(), ErrorCode::kNotFound);
}

TEST_F(ControlLoopTest, a_model_without_its_extents_is_refused) {
  const std::vector<Fd> fds = model_.fds(true);
  command({ipc::AddModel{kModel, false}}, numbers(fds));
  EXPECT_EQ(heard<ipc::ModelAdded>().code, ErrorCode::kMalformed);
}

TEST_F(ControlLoopTest, a_session_without_its_descriptors_is_broken) {
  const TestSession session(SessionId{1});
  command({session.command()}, {session.fds()[0]});
  const auto broken = heard<ipc::SessionBroken>();
  EXPECT_EQ(broken.session, session.id);
  EXPECT_EQ(broken.code, ErrorCode::kMalformed);
}

TEST_F(ControlLoopTest, no_step_runs_before_the_last_group_of_a_session_is_back) {
  TestSession session(SessionId{1});
  session.run(one_operator("fake::nothing"));
  ipc::AttachSession attach = session.command();
  attach.sequences = 1;
  command({attach}, session.fds());
  heard<ipc::Attached>();
  // What the lane does first it has done when it answers.
  command({ipc::WakeLane{}});
  heard<ipc::LaneAwake>();
  EXPECT_FALSE(*session.ring.take());
  const Fd memfd = add_group(session.id);
  EXPECT_EQ(heard<ipc::SequenceAdded>().code, ErrorCode::kOk);
  EXPECT_EQ(session.completion(), ErrorCode::kOk);
}

TEST_F(ControlLoopTest, a_session_that_leaves_before_its_last_group_is_back_never_runs) {
  TestSession session(SessionId{1});
  session.run(one_operator("fake::nothing"));
  ipc::AttachSession attach = session.command();
  attach.sequences = 1;
  command({attach}, session.fds());
  heard<ipc::Attached>();
  command({ipc::DetachSession{session.id}});
  heard<ipc::Detached>();
  const Fd memfd = add_group(session.id);
  EXPECT_EQ(heard<ipc::SequenceAdded>().code, ErrorCode::kOk);
  command({ipc::WakeLane{}});
  heard<ipc::LaneAwake>();
  EXPECT_FALSE(*session.ring.take());
}

TEST_F(ControlLoopTest, a_group_goes_to_its_file_and_is_dropped_when_nobody_touches_it) {
  const auto session = attach(1);
  const Fd memfd = add_group(session->id);
  EXPECT_EQ(heard<ipc::SequenceAdded>().code, ErrorCode::kOk);
  const Fd file = nameless_file();
  command({ipc::SpillSequence{session->id, kGroup}}, {file.get()});
  EXPECT_EQ(heard<ipc::SequenceSpilled>().code, ErrorCode::kOk);
  command({ipc::SpillSequence{session->id, kGroup}}, {file.get()});
  EXPECT_EQ(heard<ipc::SequenceSpilled>().code, ErrorCode::kBusy) << "it is there already";
  command({ipc::ReleaseSequence{session->id, kGroup}});
  EXPECT_EQ(heard<ipc::SequenceDropped>().sequence, kGroup);
  command({ipc::SpillSequence{session->id, kGroup}}, {file.get()});
  EXPECT_EQ(heard<ipc::SequenceSpilled>().code, ErrorCode::kNotFound);
}

TEST_F(ControlLoopTest, a_group_without_its_memory_is_refused) {
  const auto session = attach(1);
  ipc::AddSequence add;
  add.session = session->id;
  add.sequence = kGroup;
  add.geometry = {1, 1, 2, 8, DType::kFloat32, 16};
  command({add});
  EXPECT_EQ(heard<ipc::SequenceAdded>().code, ErrorCode::kMalformed);
}

TEST_F(ControlLoopTest, counts_are_told_although_the_lane_computes) {
  const auto session = attach(1);
  session->run(one_operator("fake::nothing"));
  ASSERT_EQ(session->completion(), ErrorCode::kOk);
  session->run(one_operator("fake::wait"));
  while (session->op() != "fake::wait") std::this_thread::yield();
  command({ipc::GetWorkerStats{}});
  EXPECT_EQ(heard<ipc::WorkerStats>().submissions[static_cast<size_t>(ipc::Operation::kRunOnce)],
            1u);
  session->ring.cancel_through(session->last_run);
  EXPECT_EQ(session->completion(), ErrorCode::kCancelled);
}

TEST_F(ControlLoopTest, a_slab_comes_with_its_memory) {
  const auto session = attach(1);
  session->run(one_operator("fake::take_slab", {100}));
  const auto request = heard<ipc::GrantRequest>();
  EXPECT_EQ(request.kind, ipc::GrantKind::kSlab);
  const Fd memfd = *pal::make_memfd("slab", request.bytes, pal::Seals::kSize);
  command({ipc::GiveMemory{request.request, request.bytes}}, {memfd.get()});
  EXPECT_EQ(session->completion(), ErrorCode::kOk);
}

TEST_F(ControlLoopTest, what_is_no_command_ends_the_worker) {
  const std::vector<std::byte> nonsense(64, std::byte{0xff});
  ASSERT_TRUE(djinnd_.send(nonsense));
  control_.join();
  EXPECT_NE(ended_, ErrorCode::kOk);
  EXPECT_NE(ended_, ErrorCode::kDisconnected);
  grants_.close();
  loop_->stop();
}

}  // namespace
}  // namespace djinn::worker
