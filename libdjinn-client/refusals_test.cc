// SPDX-License-Identifier: Apache-2.0

// What a client had of staging and of refs is free again after submissions that were refused, and
// runs that failed.
#include <gtest/gtest.h>

#include <vector>

#include "kernel/srg/builder.h"
#include "libdjinn-client/operations.h"
#include "libdjinn-client/run_builder.h"
#include "libdjinn-client/testing/connected.h"
#include "libdjinn-client/transfer.h"

namespace djinn::client {
namespace {

constexpr uint64_t kSlabBytes = 1 << 18;
constexpr int kRefusals = 10'000;

// y = x + x, of four elements.
srg::Graph small_graph() {
  srg::GraphBuilder g("small");
  const srg::Tensor x = g.input("x", DType::kFloat32, {4});
  g.output("y", g.op("aten::add.Tensor", {x, x}));
  return *std::move(g).finish();
}

class AllIsFreeAgain : public testing::Connected<kSlabBytes> {
 protected:
  // The release of a ref that was dropped goes with the next submission.
  void TearDown() override {
    EXPECT_TRUE(client_->submit({}, {}));
    EXPECT_TRUE(client_->allocate_staging(kSlabBytes)) << "the slab is free";
    std::vector<RefLease> refs;
    while (refs.size() < limits::kRefs) {
      auto ref = client_->new_ref();
      ASSERT_TRUE(ref) << "slots of the ref table are free: " << refs.size();
      refs.push_back(*std::move(ref));
    }
  }

  // Repeats what must end with that error.
  template <typename Operation>
  void refuse(ErrorCode code, const Operation& operation, int times = kRefusals) {
    for (int i = 0; i < times; ++i) {
      const auto refused = operation();
      ASSERT_FALSE(refused);
      ASSERT_EQ(refused.error().code, code) << "after " << i << ": " << refused.error().message;
    }
  }
  void fail_runs() { daemon_.fail_runs(static_cast<uint16_t>(ErrorCode::kShapeMismatch)); }

  const srg::Graph graph_ = small_graph();
  const std::vector<std::byte> bytes_ = std::vector<std::byte>(1000);
};

TEST_F(AllIsFreeAgain, after_blocks_over_their_limit) {
  const std::vector<std::byte> over(limits::kBindingTableBytes + 1);
  refuse(ErrorCode::kLimitExceeded, [&]() -> Result<client::Run> {
    DJINN_TRY(Runnable runnable, stage_graph(*client_, graph_));
    DJINN_TRY(const RefLease ref, client_->new_ref());
    DJINN_TRY(StagingLease read, client_->stage(bytes_));
    DJINN_TRY(StagingLease written, client_->allocate_staging(bytes_.size()));
    return client_->submit(
        {}, over,
        {list_of(std::move(runnable.graph), std::move(read)), list_of(std::move(written))});
  });
  EXPECT_EQ(daemon_.runs(), 0u);
}

TEST_F(AllIsFreeAgain, after_submissions_that_leave_no_room_for_their_block) {
  refuse(ErrorCode::kQueueFull, [&]() -> Result<client::Run> {
    DJINN_TRY(StagingLease most, client_->allocate_staging(kSlabBytes - 64));
    return client_->submit({}, std::vector<std::byte>(65), {.read = list_of(std::move(most))});
  });
}

TEST_F(AllIsFreeAgain, after_generations_whose_block_is_over_its_limit) {
  ipc::GenerateBlock over;
  over.padding = {0};
  over.prefill_inputs.resize(limits::kBindingTableBytes / 20);
  const std::vector<int32_t> prompt(1000);
  // As many as it takes: sanitizers are slow at encoding such a block.
  constexpr int kTimes = 2 * kSlabBytes / (1000 * sizeof(int32_t));
  refuse(
      ErrorCode::kLimitExceeded, [&] { return submit_generate(*client_, over, prompt); }, kTimes);
}

TEST_F(AllIsFreeAgain, after_runs_whose_output_has_no_room) {
  refuse(ErrorCode::kQueueFull, [&]() -> Status {
    RunBuilder run(*client_, graph_);
    DJINN_CHECK(run.input("x", bytes_));
    DJINN_CHECK(run.output(0, kSlabBytes));
    return run.run(ProgramId{7});
  });
}

TEST_F(AllIsFreeAgain, after_runs_that_fail) {
  fail_runs();
  refuse(ErrorCode::kShapeMismatch, [&]() -> Status {
    RunBuilder run(*client_, graph_);
    DJINN_TRY(const RefLease ref, client_->new_ref());
    DJINN_CHECK(run.input("x", bytes_));
    run.output_ref(0, ref.ref());
    return run.run_once({});
  });
}

TEST_F(AllIsFreeAgain, after_runs_whose_output_is_said_to_be_larger_than_its_place) {
  constexpr int64_t kElements = 4;
  const auto run_once_more = [&]() -> Status {
    RunBuilder run(*client_, graph_);
    DJINN_CHECK(run.output(0, kElements * sizeof(float)));
    DJINN_CHECK(run.run(ProgramId{7}));
    EXPECT_EQ(run.take_output(0).size(), kElements * sizeof(float));
    return {};
  };
  daemon_.say_of_outputs(kElements);
  EXPECT_TRUE(run_once_more());
  for (const int64_t elements : {kElements + 1, INT64_MAX / 4, INT64_MAX, int64_t{-1}}) {
    daemon_.say_of_outputs(elements);
    refuse(ErrorCode::kMalformed, run_once_more, 1);
  }
}

TEST_F(AllIsFreeAgain, after_reads_and_writes_that_fail) {
  fail_runs();
  refuse(ErrorCode::kShapeMismatch, [&] { return put(*client_, bytes_); });
  ipc::ReadBlock view;
  view.ref = {0, 1};
  view.dtype = DType::kUInt8;
  view.sizes = {bytes_.size()};
  view.strides = {1};
  std::vector<std::byte> out(bytes_.size());
  refuse(ErrorCode::kShapeMismatch, [&] { return read(*client_, view, out); });
}

TEST_F(AllIsFreeAgain, after_there_was_no_ref) {
  std::vector<RefLease> all;
  while (all.size() < limits::kRefs) all.push_back(*client_->new_ref());
  refuse(ErrorCode::kLimitExceeded, [&]() -> Result<RefLease> {
    DJINN_TRY(const Runnable runnable, stage_graph(*client_, graph_));
    return client_->new_ref();
  });
  refuse(ErrorCode::kLimitExceeded, [&] { return put(*client_, bytes_); });
}

}  // namespace
}  // namespace djinn::client
