// SPDX-License-Identifier: Apache-2.0

// What a run is given to work on.
#include "daemon/worker/binder.h"

#include <algorithm>
#include <array>

#include "daemon/worker/session_for_tests.h"

namespace djinn::worker {
namespace {

constexpr RefHandle kOther{2, 1};

class BinderTest : public SessionTest {
 protected:
  const exec::Program& admit(const srg::Graph& graph) {
    admitted_.push_back(*admit_graph(executor_, ipc::encode(graph), nullptr));
    return *admitted_.back().program;
  }
  ErrorCode begin(const exec::Program& program, std::vector<int64_t> symbols = {}) {
    return code_of(binder_.begin(program, symbols, nullptr));
  }
  std::optional<ErrorCode> bind(const ipc::InputBinding& input) {
    return code_of(binder_.bind(step_, input));
  }
  // Elements of what is bound to the storage.
  template <typename T>
  std::vector<T> bound(size_t storage) const {
    const exec::StorageBinding& binding = binder_.bindings().storages[storage];
    std::vector<T> elements(binding.bytes / sizeof(T));
    memcpy(elements.data(), binding.data.on_host(), binding.bytes);
    return elements;
  }

  Step step_{*session_, {}, {}};
  std::vector<AdmittedProgram> admitted_;
};

srg::Graph two_inputs() {
  srg::GraphBuilder g("two");
  const srg::Tensor x = g.input("x", DType::kFloat32, {4});
  const srg::Tensor y = g.input("y", DType::kFloat32, {4});
  g.op_n(0, "fake::nothing", {x, y});
  return *std::move(g).finish();
}

TEST_F(BinderTest, each_input_has_bytes_once) {
  const exec::Program& program = admit(two_inputs());
  ASSERT_EQ(begin(program), ErrorCode::kOk);
  EXPECT_EQ(bind(from_staging()), ErrorCode::kOk);
  EXPECT_EQ(bind(from_staging()), ErrorCode::kInvalidArgument) << "it is bound";
  ipc::InputBinding nowhere = from_staging();
  nowhere.storage = 2;
  EXPECT_EQ(bind(nowhere), ErrorCode::kInvalidArgument);
  const Status complete = binder_.check_complete();
  ASSERT_FALSE(complete);
  EXPECT_NE(complete.error().message.find("'y'"), std::string::npos);
}

TEST_F(BinderTest, one_ref_is_one_input) {
  ASSERT_EQ(write(kRef), ErrorCode::kOk);
  ASSERT_EQ(write(kOther), ErrorCode::kOk);
  const exec::Program& program = admit(two_inputs());
  ASSERT_EQ(begin(program), ErrorCode::kOk);
  ipc::InputBinding second = from_ref(kRef);
  second.storage = 1;
  EXPECT_EQ(bind(from_ref(kRef)), ErrorCode::kOk);
  EXPECT_EQ(bind(second), ErrorCode::kInvalidArgument);
  second.ref = kOther;
  EXPECT_EQ(bind(second), ErrorCode::kOk);
  EXPECT_TRUE(binder_.check_complete());
  EXPECT_TRUE(binder_.bindings().storages[0].writable);
}

TEST_F(BinderTest, what_the_client_writes_later_no_kernel_reads) {
  const exec::Program& program = admit(add_one());
  ASSERT_EQ(begin(program), ErrorCode::kOk);
  ASSERT_EQ(bind(from_staging()), ErrorCode::kOk);
  std::ranges::fill(staging().subspan(kInputAt, sizeof kInput), std::byte{0xff});
  EXPECT_EQ(bound<float>(0), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_FALSE(binder_.bindings().storages[0].writable);
}

TEST_F(BinderTest, no_more_is_copied_than_staging_has) {
  const exec::Program& program = admit(two_inputs());
  ASSERT_EQ(begin(program), ErrorCode::kOk);
  EXPECT_EQ(bind({0, ipc::InputKind::kStaging, {0, kStagingBytes}, {}}), ErrorCode::kOk);
  EXPECT_EQ(bind({1, ipc::InputKind::kStaging, {0, 16}, {}}), ErrorCode::kLimitExceeded);
  ASSERT_EQ(begin(program), ErrorCode::kOk);
  EXPECT_EQ(bind({0, ipc::InputKind::kStaging, {kStagingBytes - 8, 16}, {}}),
            ErrorCode::kOutOfRange);
  EXPECT_EQ(bind({0, ipc::InputKind::kStaging, {UINT64_MAX, 2}, {}}), ErrorCode::kOutOfRange);
}

TEST_F(BinderTest, symbols_have_the_values_that_the_program_was_admitted_for) {
  srg::GraphBuilder g("symbols");
  const srg::Expr n = g.symbol("n", 2, 8);
  g.op_n(0, "fake::nothing", {g.input("x", DType::kFloat32, {n})});
  const exec::Program& program = admit(*std::move(g).finish());
  EXPECT_EQ(begin(program), ErrorCode::kInvalidArgument) << "it has no value";
  EXPECT_EQ(begin(program, {1}), ErrorCode::kOutOfRange);
  EXPECT_EQ(begin(program, {9}), ErrorCode::kOutOfRange);
  EXPECT_EQ(begin(program, {INT64_MIN}), ErrorCode::kOutOfRange);
  EXPECT_EQ(begin(program, {8}), ErrorCode::kOk);
}

TEST_F(BinderTest, a_group_gives_tokens_positions_and_a_mask_that_leave_its_padding_out) {
  srg::GraphBuilder g("roles");
  const srg::Expr rows = g.symbol("rows", 1, 8, srg::SymbolRole::kBatch);
  const srg::Expr tokens = g.symbol("tokens", 1, 8, srg::SymbolRole::kTokens);
  const srg::Expr past = g.symbol("past", 0, 8, srg::SymbolRole::kPast);
  const auto input = [&](const char* name, DType dtype, srg::Sizes sizes, srg::InputRole role) {
    return g.input(name, dtype, std::move(sizes), role);
  };
  const srg::Expr keys = srg::add(past, tokens);
  g.op_n(0, "fake::nothing",
         {input("ids", DType::kInt64, {rows, tokens}, srg::InputRole::kTokenIds),
          input("positions", DType::kInt64, {rows, tokens}, srg::InputRole::kPositions),
          input("mask", DType::kBool, {rows, 1, tokens, keys}, srg::InputRole::kAttentionMask)});
  const exec::Program& program = admit(*std::move(g).finish());

  const SequenceHandle handle = make_group(3, 2, 16);
  SequenceUse use{*session_->find_sequence(handle), {}, 2};
  ASSERT_EQ(code_of(pager_.ensure(use.group, 3)), kPending);
  ASSERT_TRUE(grant_all());
  use.entry = session_->sequence_entry(*use.group);
  use.entry.length = 1;
  use.entry.padding = {0, 2};
  ASSERT_TRUE(use.group->write_tokens(0, 0, 0, std::array{10, 11, 12}));
  ASSERT_TRUE(use.group->write_tokens(0, 1, 0, std::array{20, 21, 22}));
  ASSERT_TRUE(binder_.begin(program, {}, &use));
  ASSERT_TRUE(binder_.bind_sequence(use));
  ASSERT_TRUE(binder_.check_complete());
  EXPECT_EQ(std::vector(binder_.bindings().symbols.begin(), binder_.bindings().symbols.end()),
            (std::vector<int64_t>{2, 2, 1}));
  EXPECT_EQ(bound<int64_t>(0), (std::vector<int64_t>{11, 12, 21, 22}));
  EXPECT_EQ(bound<int64_t>(1), (std::vector<int64_t>{1, 2, 0, 0}));
  EXPECT_EQ(bound<uint8_t>(2), (std::vector<uint8_t>{1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1}));
}

TEST_F(BinderTest, a_program_with_more_layers_than_the_group_is_refused) {
  srg::GraphBuilder g("layers");
  const srg::Expr capacity = g.symbol("capacity", 1, 64, srg::SymbolRole::kCapacity);
  g.op_n(0, "fake::nothing",
         {g.sequence(1, srg::SequencePart::kKey, DType::kFloat32, {1, 2, capacity, 8})});
  const exec::Program& program = admit(*std::move(g).finish());
  const SequenceHandle handle = make_group(3, 1, 16);
  SequenceUse use{*session_->find_sequence(handle), {}, 1};
  use.entry = session_->sequence_entry(*use.group);
  ASSERT_TRUE(binder_.begin(program, {}, &use));
  EXPECT_EQ(code_of(binder_.bind_sequence(use)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(binder_.check_complete()), ErrorCode::kInvalidArgument);
}

TEST_F(BinderTest, buffers_of_another_shape_than_the_groups_are_refused) {
  const SequenceHandle handle = make_group(3, 1, 16);  // of two heads of 8
  SequenceUse use{*session_->find_sequence(handle), {}, 1};
  use.entry = session_->sequence_entry(*use.group);
  const auto bind = [&](int64_t heads, int64_t dim, bool reads_all = false) {
    srg::GraphBuilder g("shape");
    const srg::Expr capacity = g.symbol("capacity", 1, 64, srg::SymbolRole::kCapacity);
    const srg::Expr tokens = g.symbol("tokens", 1, 64, srg::SymbolRole::kTokens);
    const srg::Tensor keys =
        g.sequence(0, srg::SequencePart::kKey, DType::kFloat32, {1, heads, capacity, dim});
    g.op("aten::slice.Tensor", {keys, 2, 0, tokens, 1});
    if (reads_all) g.op_n(0, "fake::nothing", {keys});
    const exec::Program& program = admit(*std::move(g).finish());
    EXPECT_TRUE(binder_.begin(program, {}, &use));
    return code_of(binder_.bind_sequence(use));
  };
  EXPECT_EQ(bind(2, 8), ErrorCode::kOk);
  EXPECT_EQ(binder_.bindings().tokens_end, 1);
  EXPECT_EQ(bind(1, 16), ErrorCode::kShapeMismatch) << "a token would lie where two do";
  EXPECT_EQ(bind(4, 4), ErrorCode::kShapeMismatch);
  EXPECT_EQ(bind(1, 16, true), ErrorCode::kOk) << "it pays for all of them";
}

}  // namespace
}  // namespace djinn::worker
