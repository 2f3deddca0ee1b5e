// SPDX-License-Identifier: Apache-2.0

// What each kind of submission does, and what a refused one leaves: nothing.
#include "daemon/worker/operations.h"

#include <functional>

#include "daemon/worker/session_for_tests.h"

namespace djinn::worker {
namespace {

constexpr RefHandle kOther{2, 1};
constexpr RefHandle kNobody{99, 1};

class OperationsTest : public SessionTest {
 protected:
  // All of the extent in one piece; it is released again.
  ErrorCode take_all(uint32_t generation) {
    submit_first_part({50, generation}, kRefBytes);
    const ErrorCode code = finish();
    return code == ErrorCode::kOk ? release({50, generation}) : code;
  }
};

TEST_F(OperationsTest, a_refused_submission_leaves_nothing_in_the_sessions_memory) {
  struct Refused {
    const char* what;
    std::function<void(RefHandle)> submit;  // ref: what it would make
    ErrorCode code;
    bool poisons;
  };
  ipc::OutputBinding outside = to_staging();
  outside.staging.offset = kStagingBytes;
  const auto run = [this](const srg::Graph& graph, std::vector<ipc::OutputBinding> outputs) {
    ipc::RunBlock block;
    block.inputs = {from_staging()};
    block.outputs = std::move(outputs);
    submit_graph(graph, block);
  };
  srg::GraphBuilder g("two");
  const srg::Tensor x = g.input("x", DType::kFloat32, {4});
  for (const char* name : {"y", "z"}) {
    const srg::Tensor y = g.op("fake::add_one", {x});
    g.claim(y, DType::kFloat32, {4});
    g.output(name, y);
  }
  const srg::Graph two = *std::move(g).finish();
  const std::vector<Refused> all{
      {"an operator that fails", [&](RefHandle ref) { run(add_one("fake::fail"), {to_ref(ref)}); },
       ErrorCode::kInvalidArgument, true},
      {"an operator that is not admitted",
       [&](RefHandle ref) { run(add_one("fake::refuse"), {to_ref(ref)}); }, ErrorCode::kUnsupported,
       true},
      {"more outputs than the graph has",
       [&](RefHandle ref) {
         run(add_one(), {to_ref(ref), to_staging()});
       },
       ErrorCode::kInvalidArgument, true},
      {"an output beside a ref that does not fit into staging",
       [&](RefHandle ref) {
         run(two, {to_ref(ref), outside});
       },
       ErrorCode::kOutOfRange, true},
      {"two outputs in one ref",
       [&](RefHandle ref) {
         run(two, {to_ref(ref), to_ref(ref)});
       },
       ErrorCode::kInvalidArgument, true},
      {"a write beyond its ref",
       [&](RefHandle ref) {
         submit(ipc::Operation::kWriteRef, ipc::WriteBlock{ref, {kInputAt, 16}, 0, 8});
       },
       ErrorCode::kOutOfRange, true},
      {"a write of more than the session may have",
       [&](RefHandle ref) { submit_first_part(ref, kRefBytes + 1); }, ErrorCode::kQuotaExceeded,
       true},
      {"a ref that nobody has made", [&](RefHandle) { submit_read(kNobody); }, ErrorCode::kNotFound,
       false},
      {"the release of a ref that nobody has made", [&](RefHandle) { submit_release({kNobody}); },
       ErrorCode::kNotFound, false},
      {"a crop of a group that nobody has made",
       [&](RefHandle) {
         submit(ipc::Operation::kCropSequence, ipc::CropBlock{{1, 1}, 0});
       },
       ErrorCode::kNotFound, false},
  };
  uint32_t generation = 0;
  for (const Refused& one : all) {
    for (int times = 0; times < 20; ++times) {
      const RefHandle ref{1, ++generation};
      one.submit(ref);
      ASSERT_EQ(finish(), one.code) << one.what;
      ASSERT_EQ(release(ref), one.poisons ? ErrorCode::kOk : ErrorCode::kNotFound) << one.what;
    }
    ASSERT_EQ(take_all(generation), ErrorCode::kOk) << one.what;
    EXPECT_LE(granted_bytes_[ipc::GrantKind::kRefs], kRefBytes) << one.what;
  }
}

TEST_F(OperationsTest, a_run_in_place_changes_its_ref_and_makes_no_copy_of_it) {
  ASSERT_EQ(write(kRef), ErrorCode::kOk);
  ipc::RunBlock block;
  block.inputs = {from_ref(kRef)};
  submit_graph(add_one_in_place(), block);
  EXPECT_EQ(finish(), ErrorCode::kOk);
  ASSERT_EQ(read(kRef), ErrorCode::kOk);
  EXPECT_EQ(output(), kInputAndOne);
}

TEST_F(OperationsTest, a_run_in_place_that_is_repeated_changes_its_ref_once) {
  ASSERT_EQ(write(kRef), ErrorCode::kOk);
  srg::GraphBuilder g("twice");
  g.op("fake::add_one_", {g.input("x", DType::kFloat32, {4})});
  g.op_n(0, "fake::take_heap", {1 << 20});
  ipc::RunBlock block;
  block.inputs = {from_ref(kRef)};
  submit_graph(*std::move(g).finish(), block);
  EXPECT_EQ(advance(), Runner::Advance::kWaiting) << "after its first write";
  attach();
  EXPECT_EQ(finish(), ErrorCode::kOk);
  ASSERT_EQ(read(kRef), ErrorCode::kOk);
  EXPECT_EQ(output(), kInputAndOne);
}

TEST_F(OperationsTest, a_ref_whose_run_in_place_fails_is_poisoned) {
  ASSERT_EQ(write(kRef), ErrorCode::kOk);
  ipc::RunBlock block;
  block.inputs = {from_ref(kRef)};
  submit_graph(add_one_in_place("fake::fail"), block);
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(read(kRef), ErrorCode::kPoisoned);
  EXPECT_EQ(release(kRef), ErrorCode::kOk);
}

TEST_F(OperationsTest, what_is_written_in_place_is_a_ref) {
  ipc::RunBlock block;
  block.inputs = {from_staging()};
  submit_graph(add_one_in_place(), block);
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
}

TEST_F(OperationsTest, the_output_of_one_run_is_the_input_of_the_next) {
  submit_run(add_one(), to_ref());
  ASSERT_EQ(finish(), ErrorCode::kOk);
  ipc::RunBlock block;
  block.inputs = {from_ref(kRef)};
  block.outputs = {to_ref(kOther)};
  submit_graph(add_one(), block);
  ASSERT_EQ(finish(), ErrorCode::kOk);
  ASSERT_EQ(read(kOther), ErrorCode::kOk);
  EXPECT_EQ(output(), kInputAndTwo);
  ASSERT_EQ(read(kRef), ErrorCode::kOk);
  EXPECT_EQ(output(), kInputAndOne);
}

TEST_F(OperationsTest, a_ref_that_is_written_in_parts_can_be_read_when_it_is_whole) {
  from_staging();
  const auto part = [this](uint64_t offset) {
    submit(ipc::Operation::kWriteRef,
           ipc::WriteBlock{kRef, {kInputAt + offset, 8}, offset, sizeof kInput});
    return finish();
  };
  ASSERT_EQ(part(0), ErrorCode::kOk);
  submit_read();
  EXPECT_EQ(advance(), Runner::Advance::kWorked) << "it waits for nothing that will come";
  EXPECT_EQ(ended(), ErrorCode::kBusy);
  ASSERT_EQ(part(8), ErrorCode::kOk);
  ASSERT_EQ(read(kRef), ErrorCode::kOk);
  EXPECT_EQ(output(), kInput);
  EXPECT_EQ(part(8), ErrorCode::kInvalidArgument) << "it is whole";
}

TEST_F(OperationsTest, a_part_that_is_not_the_next_poisons_its_ref) {
  from_staging();
  submit_first_part(kRef, sizeof kInput);
  ASSERT_EQ(finish(), ErrorCode::kOk);
  submit(ipc::Operation::kWriteRef, ipc::WriteBlock{kRef, {kInputAt, 4}, 12, sizeof kInput});
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(read(kRef), ErrorCode::kPoisoned);
}

TEST_F(OperationsTest, what_is_read_lies_inside_its_ref) {
  ASSERT_EQ(write(kRef), ErrorCode::kOk);
  ipc::ReadBlock block;
  block.ref = kRef;
  block.dtype = DType::kFloat32;
  block.sizes = {2};
  block.strides = {3};
  block.staging = {kOutputAt, 8};
  submit(ipc::Operation::kReadRef, block);
  ASSERT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(output()[0], kInput[0]);
  EXPECT_EQ(output()[1], kInput[3]);
  for (const auto& [offset, stride] : std::vector<std::pair<uint64_t, int64_t>>{
           {1, 3}, {0, 4}, {0, -1}, {UINT64_MAX, 1}, {0, INT64_MAX}}) {
    block.offset = offset;
    block.strides = {stride};
    submit(ipc::Operation::kReadRef, block);
    EXPECT_EQ(finish(), ErrorCode::kOutOfRange) << offset << " " << stride;
  }
}

TEST_F(OperationsTest, a_ref_that_is_named_twice_in_a_release_keeps_all_of_them) {
  ASSERT_EQ(write(kRef), ErrorCode::kOk);
  ASSERT_EQ(write(kOther), ErrorCode::kOk);
  submit_release({kOther, kRef, kRef});
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(read(kOther), ErrorCode::kOk);
  submit_release({kOther, kRef});
  EXPECT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(read(kOther), ErrorCode::kNotFound);
}

// --- sequence groups

// Appends what the client binds to the group: tokens of all rows.
srg::Graph append() {
  srg::GraphBuilder g("append");
  const srg::Expr rows = g.symbol("rows", 1, limits::kRows, srg::SymbolRole::kBatch);
  const srg::Expr tokens = g.symbol("tokens", 1, 64, srg::SymbolRole::kTokens);
  const srg::Tensor ids = g.input("ids", DType::kInt64, {rows, tokens}, srg::InputRole::kTokenIds);
  g.op_n(0, "fake::nothing", {ids});
  return *std::move(g).finish();
}

class GroupsTest : public OperationsTest {
 protected:
  // ids: row by row.
  ErrorCode append_to(SequenceHandle group, uint32_t rows, const std::vector<int64_t>& ids) {
    copy_bytes(std::as_bytes(std::span(ids)), staging().subspan(kInputAt));
    ipc::RunBlock block;
    block.sequence = group;
    block.symbols = {rows, static_cast<int64_t>(ids.size() / rows)};
    block.inputs = {{0, ipc::InputKind::kStaging, {kInputAt, ids.size() * sizeof(int64_t)}, {}}};
    submit_graph(append(), block);
    return finish();
  }
  ErrorCode crop(SequenceHandle group, uint64_t length) {
    submit(ipc::Operation::kCropSequence, ipc::CropBlock{group, length});
    return finish();
  }
  ErrorCode reorder(SequenceHandle group, std::vector<uint32_t> rows) {
    submit(ipc::Operation::kReorderSequence, ipc::ReorderBlock{group, std::move(rows)});
    return finish();
  }
};

using Tokens = std::vector<int32_t>;

TEST_F(GroupsTest, runs_append_to_a_group_and_a_crop_takes_the_last_of_it_away) {
  const SequenceHandle group = make_group(3, 1, 16);
  ASSERT_EQ(append_to(group, 1, {10, 11, 12}), ErrorCode::kOk);
  ASSERT_EQ(append_to(group, 1, {13}), ErrorCode::kOk);
  EXPECT_EQ(tokens_of(group), (Tokens{10, 11, 12, 13}));
  EXPECT_EQ(crop(group, 5), ErrorCode::kOutOfRange) << "it can only shorten";
  EXPECT_EQ(crop(group, 2), ErrorCode::kOk);
  EXPECT_EQ(tokens_of(group), (Tokens{10, 11}));
  ASSERT_EQ(append_to(group, 1, {20}), ErrorCode::kOk);
  EXPECT_EQ(tokens_of(group), (Tokens{10, 11, 20}));
}

TEST_F(GroupsTest, what_does_not_fit_into_a_group_leaves_it_as_it_was) {
  const SequenceHandle group = make_group(3, 1, 4);
  ASSERT_EQ(append_to(group, 1, {10, 11, 12}), ErrorCode::kOk);
  EXPECT_EQ(append_to(group, 1, {13, 14}), ErrorCode::kOutOfRange);
  EXPECT_EQ(tokens_of(group), (Tokens{10, 11, 12}));
  EXPECT_EQ(append_to(group, 1, {13}), ErrorCode::kOk);
}

TEST_F(GroupsTest, a_reorder_gives_rows_what_others_have_and_another_worker_finds_it_so) {
  const SequenceHandle group = make_group(3, 3, 8, 2);
  ASSERT_EQ(append_to(group, 3, {10, 11, 20, 21, 30, 31}), ErrorCode::kOk);
  ASSERT_EQ(reorder(group, {2, 0, 0}), ErrorCode::kOk);
  attach();
  EXPECT_EQ(tokens_of(group, 0), (Tokens{30, 31}));
  EXPECT_EQ(tokens_of(group, 1), (Tokens{10, 11}));
  EXPECT_EQ(tokens_of(group, 2), (Tokens{10, 11}));
  ASSERT_EQ(append_to(group, 3, {1, 2, 3}), ErrorCode::kOk);
  EXPECT_EQ(tokens_of(group, 2), (Tokens{10, 11, 3}));
}

TEST_F(GroupsTest, a_reorder_that_is_refused_moves_no_row) {
  const SequenceHandle group = make_group(3, 2, 8, 2);
  ASSERT_EQ(append_to(group, 2, {10, 20}), ErrorCode::kOk);
  EXPECT_EQ(reorder(group, {0}), ErrorCode::kInvalidArgument) << "each row is named";
  EXPECT_NE(reorder(group, {2, 0}), ErrorCode::kOk) << "there is no third one";
  EXPECT_EQ(tokens_of(group, 0), (Tokens{10}));
  const SequenceHandle one_bank = make_group(4, 2, 8);
  EXPECT_EQ(reorder(one_bank, {1, 0}), ErrorCode::kInvalidArgument);
}

TEST_F(GroupsTest, a_group_that_was_dropped_is_not_taken_for_its_slots_new_tenant) {
  const SequenceHandle group = make_group(3, 1, 16);
  session_->drop_sequence(group);
  EXPECT_EQ(crop(group, 0), ErrorCode::kNotFound);
  make_group(3, 1, 16);
  EXPECT_EQ(crop({3, 2}, 0), ErrorCode::kStaleHandle);
}

}  // namespace
}  // namespace djinn::worker
