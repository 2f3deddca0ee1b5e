// SPDX-License-Identifier: Apache-2.0

// What kernels take beside their results is granted, or refused before they are called.
#include "kernel/exec/scratch.h"

#include <gtest/gtest.h>

#include <functional>

#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

// Remembers the most that was asked for.
struct Asked final : HeapOwner {
  uint64_t most = 0;
  uint64_t prepared = 0;
  std::optional<Pending> begins;  // what a run is told that is about to
  Outcome<void> answer;           // to whoever needs it at once
  uint64_t settled = UINT64_MAX;
  std::optional<Pending> prepare(uint64_t bytes) override {
    prepared = bytes;
    return begins;
  }
  Outcome<void> allow(uint64_t bytes) override {
    most = std::max(most, bytes);
    return answer;
  }
  void settle(uint64_t bytes) override { settled = bytes; }
};

constexpr int64_t kLength = int64_t{1} << 20;  // of a row that holds one byte
constexpr uint64_t kPairs = 16 * kLength;

struct Call {
  const char* op;
  std::vector<srg::Argument> arguments;
};

std::vector<Call> calls() {
  return {{"aten::topk", {integer(1), integer(-1), arg(true), arg(true)}},
          {"aten::mode", {integer(-1), arg(false)}},
          {"aten::sort", {integer(-1), arg(false)}},
          {"aten::sort.stable", {arg("stable", true), arg("dim", srg::Expr(-1))}}};
}

// rows of kLength elements, all of them one byte, through the operator.
srg::Graph graph_of(const Call& call, int64_t rows) {
  GraphBuilder b;
  const auto x = b.on_storage(b.storage(srg::StorageKind::kInput, "x"), DType::kUInt8,
                              {rows, kLength}, std::vector<srg::Expr>{0, 0});
  std::vector<srg::Argument> arguments = call.arguments;
  arguments.insert(arguments.begin(), arg(x));
  for (const auto ref : b.call_many(call.op, std::move(arguments), 2)) b.output(ref);
  return std::move(b.graph);
}

class ScratchTest : public ::testing::Test {
 protected:
  ScratchTest() {
    LaneOptions options;
    options.threads = 2;
    options.planned = false;
    options.heap = &asked;
    world.lane = *executor().make_lane(std::move(options));
  }
  Outcome<void> run(const Call& call, int64_t rows, uint64_t quota) {
    asked.most = 0;
    world.lane->set_owner({.id = 1, .bytes_max = quota});
    DJINN_CHECK(world.admit(graph_of(call, rows)));
    return world.run({}, {at::full({1}, 1, at::kByte)});
  }

  Asked asked;
  World world{{}};
};

TEST_F(ScratchTest, counts_against_the_quota_of_who_runs_it) {
  for (const Call& call : calls()) {
    const Outcome<void> refused = run(call, 1, kPairs - 1);
    ASSERT_FALSE(refused) << call.op;
    EXPECT_EQ(refused.error().code, ErrorCode::kQuotaExceeded) << refused.error().message;
    const Outcome<void> ran = run(call, 1, 2 * kPairs);
    EXPECT_TRUE(ran) << call.op << ": " << ran.error().message;
  }
}

TEST_F(ScratchTest, is_granted_while_the_kernel_runs_and_no_longer) {
  for (const Call& call : calls()) {
    const uint64_t before = Heap::live_bytes();
    ASSERT_TRUE(run(call, 1, UINT64_MAX)) << call.op;
    EXPECT_GE(asked.most, before + kPairs) << call.op;
    world.lane->trim();
    EXPECT_EQ(asked.settled, before) << call.op;
  }
}

TEST_F(ScratchTest, that_is_on_its_way_ends_the_run_as_pending_and_not_as_failed) {
  asked.answer = Pending{};
  for (const Call& call : calls()) {
    EXPECT_TRUE(run(call, 1, UINT64_MAX).is_pending()) << call.op;
    EXPECT_EQ(asked.settled, UINT64_MAX) << "what the run had, it needs again";
  }
  asked.answer = Outcome<void>();
  EXPECT_TRUE(run(calls()[0], 1, UINT64_MAX));
}

TEST_F(ScratchTest, is_that_of_a_row_for_each_thread) {
  const Call topk = calls()[0];
  for (const int64_t rows : {1, 2, 8}) {
    const uint64_t before = Heap::live_bytes();
    ASSERT_TRUE(run(topk, rows, UINT64_MAX));
    EXPECT_GE(asked.most, before + kPairs * std::min<uint64_t>(rows, 2)) << rows;
    EXPECT_LT(asked.most, before + kPairs * std::min<uint64_t>(rows, 2) + kPairs) << rows;
  }
}

TEST_F(ScratchTest, is_asked_for_before_a_programs_next_run_begins) {
  World planned({}, true);
  LaneOptions options;
  options.threads = 2;
  options.grow_slab = planned.slab.grow();
  options.heap = &asked;
  planned.lane = *executor().make_lane(std::move(options));
  ASSERT_TRUE(planned.admit(graph_of(calls()[0], 1)));
  const uint64_t before = Heap::live_bytes();
  const std::vector<at::Tensor> x{at::full({1}, 1, at::kByte)};
  asked.begins = Pending{};
  EXPECT_TRUE(planned.run({}, x).is_pending());
  EXPECT_EQ(planned.lane->stats().begun, 0u) << "of the first, too, what it can do with";
  asked.begins = {};
  for (int run = 0; run < 3; ++run) ASSERT_TRUE(planned.run({}, x));
  EXPECT_GE(asked.prepared, before + kPairs);
  const uint64_t begun = planned.lane->stats().begun;
  asked.begins = Pending{};
  EXPECT_TRUE(planned.run({}, x).is_pending());
  EXPECT_EQ(planned.lane->stats().begun, begun);
}

TEST(Scratch, of_a_vocabularys_logits_asks_nobody) {
  EXPECT_LT(16u * 256 * 1024, HeldBytes::kUncounted);
}

TEST(Scratch, of_counts_of_an_embeddings_weights_is_theirs) {
  const Scratch counts = scratch_of("aten::embedding_dense_backward");
  ASSERT_NE(counts, nullptr);
  std::vector<c10::IValue> stack{at::Tensor(), at::Tensor(), int64_t{1000}, int64_t{-1}, true};
  EXPECT_EQ(counts(stack), 8000u);
  stack[4] = false;
  EXPECT_EQ(counts(stack), 0u);
}

}  // namespace
}  // namespace djinn::exec
