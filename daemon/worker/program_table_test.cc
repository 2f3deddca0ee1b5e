// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/program_table.h"

#include <gtest/gtest.h>

#include "daemon/worker/code_for_tests.h"
#include "daemon/worker/model_for_tests.h"
#include "ipc/limits.h"
#include "kernel/executor/fake_executor_for_tests.h"
#include "kernel/pal/host_pal.h"
#include "kernel/srg/builder.h"

namespace djinn::worker {
namespace {

constexpr ProgramId kProgram{3};
constexpr ModelId kModel = TestModel::kId;

std::vector<std::byte> graph_on(const char* weight) {
  srg::GraphBuilder g("test");
  const srg::Tensor y = g.op("fake::add_one", {g.weight(weight, DType::kFloat32, {4})});
  g.claim(y, DType::kFloat32, {4});
  g.output("y", y);
  return ipc::encode(*std::move(g).finish());
}

class ProgramTableTest : public ::testing::Test {
 protected:
  ProgramTableTest() {
    programs_.on_want([this](ModelId model) { wanted_.push_back(model); });
    programs_.on_need([this](ProgramId program) { needed_.push_back(program); });
  }
  // The model, with a program that reads it.
  void add(bool parked = false) {
    model_ = *MappedModel::map(kModel, files_.fds(parked), parked, *pal_);
    programs_.add_model(model_);
    auto admitted = admit_graph(executor_, graph_on("v"), model_);
    ASSERT_TRUE(admitted) << admitted.error().message;
    expect(kProgram, kModel);
    programs_.add_program(kProgram, *std::move(admitted));
  }
  void expect(ProgramId id, ModelId model) {
    programs_.expect_program(id, model,
                             std::make_shared<const std::vector<std::byte>>(graph_on("v")));
  }
  // In a step of its own.
  std::optional<ErrorCode> found() {
    const auto code = code_of(programs_.find(kProgram));
    programs_.end_step();
    return code;
  }

  std::unique_ptr<pal::HostPal> pal_ = *pal::HostPal::make();
  TestModel files_;
  exec::FakeExecutor executor_;
  std::unique_ptr<exec::Lane> lane_ = *executor_.make_lane({});
  Waits waits_{[] {}};
  ProgramTable programs_{waits_};
  std::shared_ptr<MappedModel> model_;
  std::vector<ModelId> wanted_;
  std::vector<ProgramId> needed_;
};

TEST_F(ProgramTableTest, a_program_is_found_until_it_is_dropped) {
  EXPECT_EQ(found(), ErrorCode::kNotFound);
  add();
  EXPECT_EQ(found(), ErrorCode::kOk);
  programs_.drop_program(kProgram, *lane_);
  EXPECT_EQ(found(), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(programs_.graph_of(kProgram)), ErrorCode::kNotFound);
  programs_.drop_program(kProgram, *lane_);
}

TEST_F(ProgramTableTest, an_expected_program_is_needed_and_awaited_until_it_is_there_or_is_not) {
  constexpr SessionId kSession{1};
  const auto await = [&] {
    expect(kProgram, kModel);
    waits_.begin_step();
    EXPECT_EQ(found(), kPending);
    waits_.suspend(kSession);
    EXPECT_TRUE(programs_.graph_of(kProgram)) << "what it may write is known already";
    waits_.take_arrivals();
    EXPECT_TRUE(waits_.is_waiting(kSession));
  };
  const auto waits_on = [&] {
    waits_.take_arrivals();
    return waits_.is_waiting(kSession);
  };
  await();
  EXPECT_EQ(needed_, std::vector{kProgram});
  programs_.refuse_program(kProgram);
  EXPECT_FALSE(waits_on());
  EXPECT_EQ(found(), ErrorCode::kNotFound);
  await();
  programs_.drop_program(kProgram, *lane_);
  EXPECT_FALSE(waits_on());
  await();
  programs_.drop_model(kModel, *lane_);
  EXPECT_FALSE(waits_on());
  model_ = *MappedModel::map(kModel, files_.fds(), false, *pal_);
  programs_.add_program(kProgram, *admit_graph(executor_, graph_on("v"), model_));
  EXPECT_EQ(found(), ErrorCode::kNotFound) << "it was dropped meanwhile";
  await();
  programs_.add_program(kProgram, *admit_graph(executor_, graph_on("v"), model_));
  EXPECT_FALSE(waits_on());
  EXPECT_EQ(found(), ErrorCode::kOk);
}

TEST_F(ProgramTableTest, a_parked_model_is_wanted_once_until_it_is_back) {
  add();
  programs_.park_model(kModel, *pal_);
  for (int times = 0; times < 3; ++times) EXPECT_EQ(found(), kPending);
  EXPECT_EQ(code_of(programs_.find_model(kModel)), kPending);
  EXPECT_EQ(wanted_, std::vector{kModel});
  EXPECT_TRUE(programs_.graph_of(kProgram)) << "to be read, and not run";
  ASSERT_TRUE(model_->map_again(files_.fds(), *pal_));
  programs_.model_came(kModel);
  EXPECT_EQ(found(), ErrorCode::kOk);
  programs_.park_model(kModel, *pal_);
  EXPECT_EQ(found(), kPending);
  EXPECT_EQ(wanted_, (std::vector{kModel, kModel}));
}

TEST_F(ProgramTableTest,
       a_model_that_goes_again_before_the_lane_heard_that_it_came_is_wanted_anew) {
  add(true);
  EXPECT_EQ(found(), kPending);
  ASSERT_TRUE(model_->map_again(files_.fds(), *pal_));
  ASSERT_TRUE(model_->park(*pal_));
  EXPECT_EQ(found(), kPending);
  EXPECT_EQ(wanted_.size(), 1u) << "that it came is still to be heard";
  programs_.model_came(kModel);
  EXPECT_EQ(found(), kPending);
  EXPECT_EQ(wanted_.size(), 2u);
}

TEST_F(ProgramTableTest, what_a_step_has_found_is_in_use_until_it_ends) {
  add();
  EXPECT_TRUE(programs_.find(kProgram));
  EXPECT_TRUE(programs_.find_model(kModel)) << "once more in the same step";
  EXPECT_FALSE(model_->park(*pal_));
  programs_.end_step();
  EXPECT_TRUE(model_->park(*pal_));
}

TEST_F(ProgramTableTest, a_model_that_does_not_come_is_told_once_and_wanted_again) {
  add(true);
  EXPECT_EQ(found(), kPending);
  programs_.lose_model(kModel, {ErrorCode::kFileChanged, "Its files have changed."});
  EXPECT_EQ(found(), ErrorCode::kFileChanged);
  EXPECT_EQ(found(), kPending);
  EXPECT_EQ(wanted_.size(), 2u);
}

TEST_F(ProgramTableTest, a_loss_that_nobody_waited_for_is_told_to_nobody) {
  add();
  programs_.lose_model(kModel, {ErrorCode::kFileChanged, "Its files have changed."});
  EXPECT_EQ(found(), ErrorCode::kOk);
  programs_.park_model(kModel, *pal_);
  EXPECT_EQ(found(), kPending);
}

TEST_F(ProgramTableTest, a_model_goes_with_its_programs_and_no_other) {
  add();
  constexpr ProgramId kOtherProgram{4};
  srg::GraphBuilder g("alone");
  g.op_n(0, "fake::nothing", {});
  auto alone = admit_graph(executor_, ipc::encode(*std::move(g).finish()), nullptr);
  ASSERT_TRUE(alone);
  expect(kOtherProgram, {});
  programs_.add_program(kOtherProgram, *std::move(alone));
  programs_.drop_model(kModel, *lane_);
  EXPECT_EQ(found(), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(programs_.find_model(kModel)), ErrorCode::kNotFound);
  EXPECT_TRUE(programs_.find(kOtherProgram));
}

TEST_F(ProgramTableTest, no_model_is_one_to_run_on) {
  const auto none = programs_.find_model({});
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, nullptr);
}

TEST_F(ProgramTableTest, what_is_no_graph_is_not_admitted) {
  EXPECT_FALSE(admit_graph(executor_, {}, nullptr));
  EXPECT_FALSE(admit_graph(executor_, std::vector<std::byte>(100, std::byte{0xff}), nullptr));
  EXPECT_EQ(code_of(read_graph(std::vector<std::byte>(limits::kGraphBytes + 1))),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(code_of(admit_graph(executor_, graph_on("nowhere"), nullptr)), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace djinn::worker
