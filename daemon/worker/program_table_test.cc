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
  }
  // The model, with a program that reads it.
  void add(bool parked = false) {
    model_ = *MappedModel::map(kModel, files_.fds(parked), parked, *pal_);
    programs_.add_model(model_);
    auto admitted = admit_graph(executor_, graph_on("v"), model_);
    ASSERT_TRUE(admitted) << admitted.error().message;
    programs_.add_program(kProgram, *std::move(admitted));
  }
  ErrorCode found() { return code_of(programs_.find(kProgram)); }

  std::unique_ptr<pal::HostPal> pal_ = *pal::HostPal::make();
  TestModel files_;
  exec::FakeExecutor executor_;
  std::unique_ptr<exec::Lane> lane_ = *executor_.make_lane({});
  Waits waits_{[] {}};
  ProgramTable programs_{waits_};
  std::shared_ptr<MappedModel> model_;
  std::vector<ModelId> wanted_;
};

TEST_F(ProgramTableTest, a_program_is_found_until_it_is_dropped) {
  EXPECT_EQ(found(), ErrorCode::kNotFound);
  add();
  EXPECT_EQ(found(), ErrorCode::kOk);
  programs_.drop_program(kProgram, *lane_);
  EXPECT_EQ(found(), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(programs_.look_up(kProgram)), ErrorCode::kNotFound);
  programs_.drop_program(kProgram, *lane_);
}

TEST_F(ProgramTableTest, a_parked_model_is_wanted_once_until_it_is_back) {
  add();
  programs_.park_model(kModel, *pal_);
  for (int times = 0; times < 3; ++times) EXPECT_EQ(found(), ErrorCode::kPending);
  EXPECT_EQ(code_of(programs_.find_model(kModel)), ErrorCode::kPending);
  EXPECT_EQ(wanted_, std::vector{kModel});
  EXPECT_TRUE(programs_.look_up(kProgram)) << "to be read, and not run";
  ASSERT_TRUE(model_->map_again(files_.fds(), *pal_));
  model_->unpark();
  programs_.add_model(model_);
  EXPECT_EQ(found(), ErrorCode::kOk);
  programs_.park_model(kModel, *pal_);
  EXPECT_EQ(found(), ErrorCode::kPending);
  EXPECT_EQ(wanted_, (std::vector{kModel, kModel}));
}

TEST_F(ProgramTableTest, a_model_that_does_not_come_is_told_once_and_wanted_again) {
  add(true);
  EXPECT_EQ(found(), ErrorCode::kPending);
  programs_.lose_model(kModel, {ErrorCode::kFileChanged, "Its files have changed."});
  EXPECT_EQ(found(), ErrorCode::kFileChanged);
  EXPECT_EQ(found(), ErrorCode::kPending);
  EXPECT_EQ(wanted_.size(), 2u);
}

TEST_F(ProgramTableTest, a_loss_that_nobody_waited_for_is_told_to_nobody) {
  add();
  programs_.lose_model(kModel, {ErrorCode::kFileChanged, "Its files have changed."});
  EXPECT_EQ(found(), ErrorCode::kOk);
  programs_.park_model(kModel, *pal_);
  EXPECT_EQ(found(), ErrorCode::kPending);
}

TEST_F(ProgramTableTest, a_model_goes_with_its_programs_and_no_other) {
  add();
  constexpr ProgramId kOther{4};
  srg::GraphBuilder g("alone");
  g.op_n(0, "fake::nothing", {});
  auto alone = admit_graph(executor_, ipc::encode(*std::move(g).finish()), nullptr);
  ASSERT_TRUE(alone);
  programs_.add_program(kOther, *std::move(alone));
  programs_.drop_model(kModel, *lane_);
  EXPECT_EQ(found(), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(programs_.find_model(kModel)), ErrorCode::kNotFound);
  EXPECT_TRUE(programs_.find(kOther));
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
