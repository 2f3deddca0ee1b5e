// SPDX-License-Identifier: Apache-2.0

// Generations: each token is one step, told once, whoever computes it. The model says that the next
// token is the last one, and one.
#include "daemon/worker/generation.h"

#include "daemon/worker/session_for_tests.h"

namespace djinn::worker {
namespace {

constexpr ProgramId kPrefill{5};
using Tokens = std::vector<int32_t>;

class GenerationTest : public SessionTest {
 protected:
  GenerationTest() { define(counting_model()); }

  void define(srg::Graph graph, ProgramId id = kPrefill) {
    auto admitted = admit_graph(executor_, ipc::encode(graph), nullptr);
    ASSERT_TRUE(admitted) << admitted.error().message;
    programs_.drop_program(id, *lane_);
    programs_.expect_program(id, {}, std::make_shared<const std::vector<std::byte>>());
    programs_.add_program(id, *std::move(admitted));
  }
  // kRef holds kInput, and is to be the input behind the ids.
  ipc::InputBinding written_ref() {
    EXPECT_EQ(write(kRef), ErrorCode::kOk);
    return {1, ipc::InputKind::kRef, {}, kRef};
  }
  Numbers value_of_ref() {
    EXPECT_EQ(read(kRef), ErrorCode::kOk);
    return output();
  }
  // As many workers as the generation takes: each is followed by another, wherever it is.
  void finish_by_many() {
    while (!ended()) {
      if (advance() == Runner::Advance::kWaiting) grant_all();
      attach();
    }
  }
  // The prompt has as many tokens in each row.
  ipc::GenerateBlock block(SequenceHandle group, const Tokens& prompt, uint32_t rows = 1) {
    copy_bytes(std::as_bytes(std::span(prompt)), staging().subspan(kInputAt));
    ipc::GenerateBlock block;
    block.prefill = block.decode = kPrefill.value;
    block.sequence = group;
    block.rows = rows;
    block.prompt_tokens = static_cast<uint32_t>(prompt.size()) / rows;
    block.prompt = {kInputAt, prompt.size() * sizeof(int32_t)};
    block.padding.assign(rows, 0);
    block.max_new_tokens = 5;
    block.pad_token = -1;
    return block;
  }
  void generate(const ipc::GenerateBlock& block) { submit(ipc::Operation::kGenerate, block); }
  // The row's, in the order in which they were told.
  [[nodiscard]] Tokens told(uint32_t row = 0) const {
    Tokens tokens;
    for (const ipc::Completion& one : told_) {
      if (one.kind != static_cast<uint16_t>(ipc::CompletionKind::kToken)) continue;
      if (row < one.first_row || row >= one.first_row + one.row_count) continue;
      EXPECT_EQ(one.index, tokens.size());
      tokens.push_back(one.tokens[row - one.first_row]);
    }
    return tokens;
  }
};

TEST_F(GenerationTest, each_token_is_told_as_it_comes_and_stays_in_the_group) {
  const SequenceHandle group = make_group(3, 1, 64);
  generate(block(group, {10, 11}));
  EXPECT_EQ(advance(), Runner::Advance::kWaiting) << "for its token slots";
  ASSERT_TRUE(grant_all());
  EXPECT_EQ(advance(), Runner::Advance::kWaited);
  EXPECT_EQ(ended(), std::nullopt);
  EXPECT_EQ(told(), (Tokens{12}));
  EXPECT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(told(), (Tokens{12, 13, 14, 15, 16}));
  EXPECT_EQ(told_.back().index, 5u);
  EXPECT_EQ(tokens_of(group), (Tokens{10, 11, 12, 13, 14, 15})) << "the last was never run";
}

TEST_F(GenerationTest, another_one_goes_on_in_the_same_group) {
  const SequenceHandle group = make_group(3, 1, 64);
  generate(block(group, {10}));
  ASSERT_EQ(finish(), ErrorCode::kOk);
  told_.clear();
  generate(block(group, {15, 40}));
  ASSERT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(told(), (Tokens{41, 42, 43, 44, 45}));
  EXPECT_EQ(length_of(group), 11u);
}

TEST_F(GenerationTest, a_row_that_has_stopped_is_padded_until_the_last_one_stops) {
  const SequenceHandle group = make_group(3, 2, 64);
  ipc::GenerateBlock wanted = block(group, {10, 20}, 2);
  wanted.stop_tokens = {12, 24};
  generate(wanted);
  EXPECT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(told(0), (Tokens{11, 12, -1, -1}));
  EXPECT_EQ(told(1), (Tokens{21, 22, 23, 24}));
}

TEST_F(GenerationTest, no_stop_token_is_drawn_before_the_least_number_of_tokens) {
  const SequenceHandle group = make_group(3, 1, 64);
  ipc::GenerateBlock wanted = block(group, {10});
  wanted.stop_tokens = {0, 12};
  wanted.min_new_tokens = 3;
  generate(wanted);
  EXPECT_EQ(finish(), ErrorCode::kOk);
  // 12 is forbidden at the second, and all others are alike: the lowest is drawn that is not 0.
  EXPECT_EQ(told(), (Tokens{11, 1, 2, 3, 4}));
}

TEST_F(GenerationTest, rows_of_a_whole_group_are_told_in_as_many_completions_as_it_takes) {
  const SequenceHandle group = make_group(3, limits::kRows, 8);
  Tokens prompt;
  for (uint32_t row = 0; row < limits::kRows; ++row) prompt.push_back(static_cast<int32_t>(row));
  ipc::GenerateBlock wanted = block(group, prompt, limits::kRows);
  wanted.max_new_tokens = 2;
  generate(wanted);
  EXPECT_EQ(finish(), ErrorCode::kOk);
  for (uint32_t row = 0; row < limits::kRows; ++row) {
    const auto last = static_cast<int32_t>(row);
    EXPECT_EQ(told(row), (Tokens{last + 1, last + 2}));
  }
}

TEST_F(GenerationTest, a_row_has_no_more_logits_than_a_vocabulary) {
  constexpr int64_t kMost = 1 << 20;
  for (const int64_t vocabulary : {kMost, kMost + 1}) {
    define(counting_model(false, vocabulary));
    generate(block(make_group(3, 1, 64), {10}));
    EXPECT_EQ(finish(), vocabulary == kMost ? ErrorCode::kOk : ErrorCode::kLimitExceeded);
  }
}

TEST_F(GenerationTest, a_worker_that_follows_another_goes_on_and_tells_no_token_twice) {
  const SequenceHandle group = make_group(3, 1, 64);
  generate(block(group, {10}));
  finish_by_many();
  EXPECT_EQ(told(), (Tokens{11, 12, 13, 14, 15}));
  EXPECT_EQ(tokens_of(group), (Tokens{10, 11, 12, 13, 14}));
}

TEST_F(GenerationTest, one_that_is_given_up_keeps_the_tokens_that_were_told) {
  const SequenceHandle group = make_group(3, 1, 64);
  generate(block(group, {10}));
  while (told().size() < 2) {
    if (advance() == Runner::Advance::kWaiting) grant_all();
    ASSERT_EQ(ended(), std::nullopt);
  }
  client_.cancel_through(1);
  EXPECT_EQ(finish(), ErrorCode::kCancelled);
  EXPECT_EQ(told(), (Tokens{11, 12}));
  EXPECT_EQ(tokens_of(group), (Tokens{10, 11}));
  generate(block(group, {50}));
  EXPECT_EQ(finish(), ErrorCode::kOk);
}

TEST_F(GenerationTest, what_is_refused_leaves_the_group_as_it_was) {
  const SequenceHandle group = make_group(3, 1, 8);
  ipc::GenerateBlock too_long = block(group, {10});
  too_long.max_new_tokens = 8;
  generate(too_long);
  EXPECT_EQ(finish(), ErrorCode::kOutOfRange);
  ipc::GenerateBlock too_many_rows = block(group, {10, 11}, 2);
  generate(too_many_rows);
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
  ipc::GenerateBlock too_hot = block(group, {10});
  too_hot.greedy = false;
  too_hot.temperature = -1;
  generate(too_hot);
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
  ipc::GenerateBlock all_padding = block(group, {10});
  all_padding.padding = {1};
  generate(all_padding);
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
  ipc::GenerateBlock half_a_prompt = block(group, {10, 11});
  half_a_prompt.prompt.bytes = 4;
  generate(half_a_prompt);
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
  ipc::GenerateBlock no_program = block(group, {10});
  no_program.prefill = 77;
  generate(no_program);
  EXPECT_EQ(finish(), ErrorCode::kNotFound);
  EXPECT_EQ(length_of(group), 0u);
  EXPECT_EQ(told(), Tokens{});
  generate(block(group, {10}));
  EXPECT_EQ(finish(), ErrorCode::kOk);
}

constexpr Numbers kInputAndFive{6, 7, 8, 9};

TEST_F(GenerationTest, each_token_writes_what_the_one_before_it_left) {
  define(counting_model(true));
  ipc::GenerateBlock wanted = block(make_group(3, 1, 64), {10});
  wanted.prefill_inputs = wanted.decode_inputs = {written_ref()};
  generate(wanted);
  EXPECT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(value_of_ref(), kInputAndFive);
}

TEST_F(GenerationTest, a_token_that_is_repeated_writes_once) {
  define(counting_model(true));
  const ipc::InputBinding ref = written_ref();
  told_.clear();
  ipc::GenerateBlock wanted = block(make_group(3, 1, 64), {10});
  wanted.prefill_inputs = wanted.decode_inputs = {ref};
  generate(wanted);
  finish_by_many();
  EXPECT_EQ(told(), (Tokens{11, 12, 13, 14, 15}));
  EXPECT_EQ(value_of_ref(), kInputAndFive);
}

// Steps that were computed together may be computed again.
TEST_F(GenerationTest, a_token_that_writes_joins_no_others) {
  srg::Graph graph = counting_model(true);
  graph.numerics = srg::Numerics::kFast;
  define(graph);
  const ipc::InputBinding ref = written_ref();
  told_.clear();
  ipc::GenerateBlock wanted = block(make_group(3, 1, 64), {10});
  wanted.prefill_inputs = wanted.decode_inputs = {ref};
  generate(wanted);
  while (!ended()) {
    const auto advanced = runner_.advance(*session_, batch_of_next_step(*session_, programs_));
    ASSERT_TRUE(advanced);
    ASSERT_NE(*advanced, Runner::Advance::kJoins);
    if (*advanced == Runner::Advance::kWaiting) grant_all();
  }
  EXPECT_EQ(value_of_ref(), kInputAndFive);
}

TEST_F(GenerationTest, one_that_is_given_up_leaves_what_its_last_token_wrote) {
  define(counting_model(true));
  const ipc::InputBinding ref = written_ref();
  told_.clear();
  ipc::GenerateBlock wanted = block(make_group(3, 1, 64), {10});
  wanted.prefill_inputs = wanted.decode_inputs = {ref};
  generate(wanted);
  while (told().size() < 2) {
    if (advance() == Runner::Advance::kWaiting) grant_all();
    ASSERT_EQ(ended(), std::nullopt);
  }
  client_.cancel_through(next_run_ - 1);
  EXPECT_EQ(finish(), ErrorCode::kCancelled);
  EXPECT_EQ(value_of_ref(), kInputAndTwo);
}

TEST_F(GenerationTest, a_program_that_writes_an_input_without_a_ref_generates_nothing) {
  define(counting_model(true));
  generate(block(make_group(3, 1, 64), {10}));
  EXPECT_EQ(finish(), ErrorCode::kInvalidArgument);
}

// The late program alone writes, so the ref counts its tokens.
TEST_F(GenerationTest, a_late_program_computes_the_tokens_behind_so_many) {
  constexpr ProgramId kLate{6};
  define(counting_model(true), kLate);
  const ipc::InputBinding ref = written_ref();
  told_.clear();
  ipc::GenerateBlock wanted = block(make_group(3, 1, 64), {10});
  wanted.late_decode = kLate.value;
  wanted.late_from = 3;
  wanted.late_inputs = {ref};
  generate(wanted);
  finish_by_many();
  EXPECT_EQ(told(), (Tokens{11, 12, 13, 14, 15}));
  EXPECT_EQ(value_of_ref(), kInputAndTwo) << "those after 3 and 4 tokens";
}

// As counting_model(true), of an input whose size each generation gives.
srg::Graph sized_model() {
  srg::GraphBuilder g("model");
  const srg::Expr tokens = g.symbol("tokens", 1, 64, srg::SymbolRole::kTokens);
  const srg::Expr source = g.symbol("source", 1, 4);
  const srg::Tensor ids = g.input("ids", DType::kInt64, {1, tokens}, srg::InputRole::kTokenIds);
  const srg::Tensor logits = g.op("fake::logits", {ids});
  g.claim(logits, DType::kFloat32, {1, 100});
  g.output("logits", logits);
  g.op("fake::add_one_", {g.input("x", DType::kFloat32, {source})});
  return *std::move(g).finish();
}

TEST_F(GenerationTest, sizes_without_a_role_are_those_that_the_generation_gives) {
  define(sized_model());
  const ipc::InputBinding ref = written_ref();
  const SequenceHandle group = make_group(3, 1, 64);
  const auto generated = [&](std::vector<int64_t> symbols) {
    ipc::GenerateBlock wanted = block(group, {10});
    wanted.max_new_tokens = 1;
    wanted.prefill_inputs = {ref};
    wanted.symbols = std::move(symbols);
    generate(wanted);
    return finish();
  };
  EXPECT_EQ(generated({}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(generated({5}), ErrorCode::kOutOfRange);
  EXPECT_EQ(value_of_ref(), kInput);
  EXPECT_EQ(generated({2}), ErrorCode::kOk);
  EXPECT_EQ(value_of_ref(), (Numbers{2, 3, 3, 4}));
}

TEST_F(GenerationTest, one_whose_memory_is_refused_says_what_djinnd_says) {
  const SequenceHandle group = make_group(3, 1, 64);
  generate(block(group, {10}));
  EXPECT_EQ(advance(), Runner::Advance::kWaiting);
  wait_for_moves();
  answer(ErrorCode::kOutOfMemory);
  wait_for_moves();
  EXPECT_EQ(advance(), Runner::Advance::kWaited);
  EXPECT_EQ(ended(), ErrorCode::kOutOfMemory);
  generate(block(group, {10}));
  EXPECT_EQ(finish(), ErrorCode::kOk) << "another one may have it";
}

// --- prompts in parts

// As counting_model(), for prompts of several parts. writes: each run of it is counted in a ref.
srg::Graph long_model(int64_t tokens_max, bool writes, srg::Numerics numerics,
                      int64_t heap_bytes = 0) {
  srg::GraphBuilder g("model");
  const srg::Expr rows = g.symbol("rows", 1, limits::kRows, srg::SymbolRole::kBatch);
  const srg::Expr tokens = g.symbol("tokens", 1, tokens_max, srg::SymbolRole::kTokens);
  const srg::Tensor ids = g.input("ids", DType::kInt64, {rows, tokens}, srg::InputRole::kTokenIds);
  if (heap_bytes > 0) g.op_n(0, "fake::take_heap", {heap_bytes});
  const srg::Tensor logits = g.op("fake::logits", {ids});
  g.claim(logits, DType::kFloat32, {rows, 1000});
  g.output("logits", logits);
  if (writes) g.op("fake::add_one_", {g.input("x", DType::kFloat32, {4})});
  srg::Graph graph = *std::move(g).finish();
  graph.numerics = numerics;
  return graph;
}

class PromptTest : public GenerationTest {
 protected:
  static constexpr ProgramId kDecode{6}, kExtend{7};

  PromptTest() { define_all(srg::Numerics::kFast); }

  void define_all(srg::Numerics numerics) {
    define(long_model(512, false, numerics), kPrefill);
    define(long_model(1, false, numerics), kDecode);
    define(long_model(512, true, numerics), kExtend);
  }
  // So many tokens from first on.
  ipc::GenerateBlock prompt(SequenceHandle group, int32_t first, size_t tokens, uint32_t rows = 1) {
    if (!ref_) ref_ = written_ref();
    Tokens ids(tokens * rows);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = first + static_cast<int32_t>(i % tokens);
    ipc::GenerateBlock wanted = block(group, ids, rows);
    wanted.decode = kDecode.value;
    wanted.extend = kExtend.value;
    wanted.extend_inputs = {*ref_};
    wanted.max_new_tokens = 2;
    told_.clear();
    return wanted;
  }
  // The group's length behind each step, from the first that changes it to the first token's.
  std::vector<uint64_t> lengths(SequenceHandle group, const ipc::GenerateBlock& wanted) {
    std::vector<uint64_t> found{length_of(group)};
    generate(wanted);
    for (std::optional<ErrorCode> end; !end; end = ended()) {
      const bool is_at_prompt = told().empty();
      EXPECT_TRUE(!is_at_prompt || batch_of_next_step(*session_, programs_).key == 0)
          << "it makes no token";
      if (advance() == Runner::Advance::kWaiting) grant_all();
      if (is_at_prompt && length_of(group) != found.back()) found.push_back(length_of(group));
    }
    found.erase(found.begin());
    return found;
  }

  // How often the program of later parts has run.
  float extended() { return value_of_ref()[0] - kInput[0]; }

  using Lengths = std::vector<uint64_t>;
  std::optional<ipc::InputBinding> ref_;
};

TEST_F(PromptTest, parts_end_at_multiples_of_their_length_and_with_the_prompt) {
  const SequenceHandle group = make_group(3, 1, 512);
  EXPECT_EQ(lengths(group, prompt(group, 10, 300)), (Lengths{128, 256, 300}));
  EXPECT_EQ(told(), (Tokens{310, 311}));
  EXPECT_EQ(extended(), 2);
  Tokens expected(300);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = 10 + static_cast<int32_t>(i);
  expected.push_back(310);
  EXPECT_EQ(tokens_of(group), expected);
}

TEST_F(PromptTest, behind_other_tokens_the_first_part_is_what_is_missing_to_a_multiple) {
  const SequenceHandle group = make_group(3, 1, 512);
  ipc::GenerateBlock first = prompt(group, 10, 100);
  first.max_new_tokens = 1;
  EXPECT_EQ(lengths(group, first), (Lengths{100}));
  EXPECT_EQ(lengths(group, prompt(group, 500, 200)), (Lengths{128, 256, 300}));
  EXPECT_EQ(told(), (Tokens{700, 701}));
  EXPECT_EQ(extended(), 2);
}

TEST_F(PromptTest, a_part_of_one_token_is_computed_as_a_token_is) {
  const SequenceHandle group = make_group(3, 1, 512);
  EXPECT_EQ(lengths(group, prompt(group, 10, 129)), (Lengths{128, 129}));
  EXPECT_EQ(told(), (Tokens{139, 140}));
  EXPECT_EQ(extended(), 0);
}

TEST_F(PromptTest, one_that_is_no_longer_than_a_part_runs_in_one_pass) {
  const SequenceHandle group = make_group(3, 2, 512);
  EXPECT_EQ(lengths(group, prompt(group, 10, 128, 2)), (Lengths{128}));
  EXPECT_EQ(extended(), 0);
}

TEST_F(PromptTest, exact_ones_and_those_of_padded_rows_run_in_one_pass) {
  const SequenceHandle padded = make_group(3, 1, 512);
  ipc::GenerateBlock wanted = prompt(padded, 10, 300);
  wanted.padding = {1};
  EXPECT_EQ(lengths(padded, wanted), (Lengths{300}));
  define_all(srg::Numerics::kExact);
  const SequenceHandle group = make_group(4, 1, 512);
  ipc::GenerateBlock exact = prompt(group, 10, 300);
  generate(exact);
  EXPECT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(told(), (Tokens{310, 311}));
  EXPECT_EQ(extended(), 0);
}

TEST_F(PromptTest, a_worker_that_follows_another_repeats_no_part_that_was_read) {
  const SequenceHandle group = make_group(3, 1, 512);
  generate(prompt(group, 10, 500));
  finish_by_many();
  EXPECT_EQ(told(), (Tokens{510, 511}));
  EXPECT_EQ(extended(), 3);
  EXPECT_EQ(length_of(group), 501u);
}

TEST_F(PromptTest, one_that_is_given_up_between_two_parts_leaves_what_was_read) {
  const SequenceHandle group = make_group(3, 1, 512);
  generate(prompt(group, 10, 300));
  while (length_of(group) == 0) {
    if (advance() == Runner::Advance::kWaiting) grant_all();
  }
  client_.cancel_through(next_run_ - 1);
  EXPECT_EQ(finish(), ErrorCode::kCancelled);
  EXPECT_EQ(length_of(group), 128u);
  EXPECT_EQ(told(), Tokens{});
}

TEST_F(PromptTest, one_that_has_begun_is_not_refused_at_its_deadline) {
  const SequenceHandle next = make_group(4, 1, 512);
  constexpr uint64_t kWithinNs = 3600 * kNsPerSecond;  // longer than any test
  begin_by_ns_ = clock_.monotonic_ns() + kWithinNs;
  generate(prompt(next, 10, 300));
  for (std::optional<ErrorCode> end; !end && length_of(next) == 0; end = ended()) {
    if (advance() == Runner::Advance::kWaiting) grant_all();
  }
  clock_.move_on(kWithinNs + 1);
  EXPECT_EQ(finish(), ErrorCode::kOk);
}

TEST_F(PromptTest, a_part_that_waits_for_memory_begins_nothing_anew) {
  define(long_model(512, true, srg::Numerics::kFast, 1 << 20), kExtend);
  const SequenceHandle group = make_group(3, 1, 512);
  generate(prompt(group, 10, 500));
  bool waited = false;
  for (std::optional<ErrorCode> end; !end; end = ended()) {
    const bool is_behind_a_part = length_of(group) > 0;
    const uint64_t begun_ns = session_->progression.begun_ns;
    if (advance() != Runner::Advance::kWaiting) continue;
    if (is_behind_a_part) {
      EXPECT_EQ(session_->progression.begun_ns, begun_ns);
      waited = true;
    }
    grant_all();
  }
  EXPECT_TRUE(waited);
}

TEST_F(PromptTest, rows_that_are_gone_leave_no_padding) {
  const SequenceHandle group = make_group(3, 1, 512);
  ipc::GenerateBlock padded = prompt(group, 10, 20);
  padded.padding = {3};
  generate(padded);
  ASSERT_EQ(finish(), ErrorCode::kOk);
  submit(ipc::Operation::kCropSequence, ipc::CropBlock{group, 0});
  ASSERT_EQ(finish(), ErrorCode::kOk);
  EXPECT_EQ(lengths(group, prompt(group, 10, 300)), (Lengths{128, 256, 300}));
}

}  // namespace
}  // namespace djinn::worker
