// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/generation.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/half.h"
#include "kernel/executor/sample.h"

namespace djinn::worker {
namespace {

exec::SamplingRule rule_of(const ipc::GenerateBlock& block) {
  exec::SamplingRule rule;
  rule.greedy = block.greedy;
  rule.temperature = block.temperature;
  rule.top_k = block.top_k;
  rule.top_p = block.top_p;
  rule.min_p = block.min_p;
  rule.repetition_penalty = block.repetition_penalty;
  rule.seed = block.seed;
  return rule;
}

// --- before the first token

Status check_room(const ipc::GenerateBlock& block, const Sequence& group, uint64_t length) {
  const uint64_t needed = uint64_t{block.prompt_tokens} + block.max_new_tokens;
  if (range_fits(length, needed, group.layout().capacity())) return {};
  return Error{ErrorCode::kOutOfRange,
               "The sequence group holds " + std::to_string(group.layout().capacity()) +
                   " tokens a row, and prompt and new tokens need " +
                   std::to_string(length + needed) + ". Make a larger group or ask for fewer."};
}

Status check_block(const ipc::GenerateBlock& block, const Sequence& group,
                   const gc::SequenceEntry& entry) {
  DJINN_CHECK(exec::check(rule_of(block)));
  if (block.rows != entry.rows) {
    return Error{ErrorCode::kInvalidArgument, "The prompt has " + std::to_string(block.rows) +
                                                  " rows, and the sequence group " +
                                                  std::to_string(entry.rows) + "."};
  }
  if (block.prompt_tokens == 0 || block.max_new_tokens == 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "A generation needs at least one prompt token and one new token."};
  }
  const bool padded = std::ranges::any_of(block.padding, [](uint32_t n) { return n != 0; });
  if (padded && entry.length != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "Rows can be padded on the left only when the sequence group is empty."};
  }
  DJINN_CHECK(check_padding(block.padding, block.prompt_tokens));
  return check_room(block, group, entry.length);
}

// Writes what the step takes of the prompt as the group's tokens, to slots at and beyond the
// committed length, so that nothing is lost if the step is repeated.
Status write_prompt(Step& step, const ipc::GenerateBlock& block, const SequenceUse& use,
                    uint64_t read) {
  DJINN_TRY(const auto prompt, step.session.staged(block.prompt));
  const uint64_t row_bytes = uint64_t{block.prompt_tokens} * sizeof(int32_t);
  if (prompt.size() != row_bytes * block.rows) {
    return Error{ErrorCode::kInvalidArgument,
                 "The prompt's staging range must hold int32 [rows, prompt_tokens]."};
  }
  DJINN_ASSERT(read + use.tokens <= block.prompt_tokens);
  DJINN_ASSERT(use.past() + use.tokens <= use.group->committed());
  static thread_local std::vector<int32_t> ids;
  ids.resize(use.tokens);
  for (uint32_t row = 0; row < block.rows; ++row) {
    const std::byte* const first = prompt.data() + row * row_bytes + read * sizeof(int32_t);
    memcpy(ids.data(), first, ids.size() * sizeof(int32_t));
    DJINN_CHECK(use.group->write_tokens(use.entry.bank, row, use.past(), ids));
  }
  return {};
}

// --- from logits to tokens

float as_float(double value) {
  return static_cast<float>(value);
}

template <typename T>
float converted(const std::byte* at) {
  T value;
  memcpy(&value, at, sizeof value);
  return as_float(value);
}

// Converts a logit of another dtype to float32, as transformers' own loop does; a float64 is
// rounded.
float to_float(const std::byte* at, DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return converted<double>(at);
    case DType::kFloat16:
      return converted<Half>(at);
    default:
      DJINN_ASSERT(dtype == DType::kBFloat16);
      return converted<BFloat16>(at);
  }
}

// The buffers that a row is copied to and sorted in lie beside the slab and are granted to nobody:
// 4 MiB for this many logits, and some 20 while they are sorted. The largest vocabularies have 0.9
// million.
constexpr int64_t kVocabularyMax = int64_t{1} << 20;

// Checks output 0 of the program: logits [rows, vocabulary], or [rows, tokens, vocabulary], of
// which the last token counts.
Status check_logits(const exec::OutputView& logits, uint32_t rows) {
  const size_t rank = logits.sizes.size();
  const bool shaped = (rank == 2 || rank == 3) && logits.sizes[0] == rows && logits.sizes[1] > 0;
  const bool is_number = logits.dtype == DType::kFloat16 || logits.dtype == DType::kBFloat16 ||
                         logits.dtype == DType::kFloat32 || logits.dtype == DType::kFloat64;
  if (!shaped || !is_number) {
    return Error{ErrorCode::kInvalidArgument,
                 "The first output of a generating program must be logits [rows, vocabulary] or "
                 "[rows, tokens, vocabulary] in float16, bfloat16, float32 or float64."};
  }
  const int64_t vocabulary = logits.sizes.back();
  if (vocabulary <= kVocabularyMax) return {};
  return Error{ErrorCode::kLimitExceeded,
               fmt::format("The logits have {} numbers a row; a vocabulary may have {} at most.",
                           vocabulary, kVocabularyMax)};
}

// These are the logits of one row, in float32.
struct Scores {
  std::vector<float> numbers;
  std::vector<std::byte> raw;  // of another dtype
};

Status copy_row(exec::Lane& lane, const exec::OutputView& logits, uint32_t row, Scores& out) {
  const size_t last = logits.sizes.size() - 1;
  const auto vocabulary = static_cast<size_t>(logits.sizes[last]);
  exec::OutputView one = logits;
  one.sizes = {logits.sizes[last]};
  one.strides = {logits.strides[last]};
  one.storage_offset += static_cast<uint64_t>(row * logits.strides[0]);
  if (last == 2) {
    one.storage_offset += static_cast<uint64_t>((logits.sizes[1] - 1) * logits.strides[1]);
  }
  out.numbers.resize(vocabulary);
  const auto numbers = std::as_writable_bytes(std::span(out.numbers));
  if (logits.dtype == DType::kFloat32) return lane.copy_out(one, numbers);
  const uint32_t width = size_of(logits.dtype);
  out.raw.resize(vocabulary * width);
  DJINN_CHECK(lane.copy_out(one, out.raw));
  for (size_t i = 0; i < vocabulary; ++i) {
    out.numbers[i] = to_float(out.raw.data() + i * width, logits.dtype);
  }
  return {};
}

void forbid_stop_tokens(std::span<float> row, const ipc::GenerateBlock& block) {
  for (const int32_t token : block.stop_tokens) {
    if (token >= 0 && static_cast<size_t>(token) < row.size()) {
      row[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
    }
  }
}

bool stops(const ipc::GenerateBlock& block, int32_t token) {
  return std::ranges::find(block.stop_tokens, token) != block.stop_tokens.end();
}

// Draws one token for each unfinished row and writes it behind the group's new length.
Status draw(const ipc::GenerateBlock& block, exec::Lane& lane, const exec::OutputView& logits,
            const SequenceUse& use, gc::StepRecord& record) {
  DJINN_CHECK(check_logits(logits, block.rows));
  const uint64_t length = use.past() + use.tokens;
  DJINN_ASSERT(block.rows == use.entry.rows && block.rows <= gc::kRowsMax);
  DJINN_ASSERT(length < use.group->committed());  // the drawn token's slot
  static thread_local Scores scores;
  static thread_local std::vector<int32_t> tokens;
  // Only the penalty looks at the tokens before.
  const bool is_penalised = block.repetition_penalty != 1.0f;
  if (is_penalised) {
    tokens.reserve(use.group->layout().capacity());
    tokens.resize(length);
  }
  for (uint32_t row = 0; row < block.rows; ++row) {
    int32_t token = block.pad_token;
    if (!(record.finished_rows >> row & 1)) {
      DJINN_CHECK(copy_row(lane, logits, row, scores));
      if (record.generated < block.min_new_tokens) forbid_stop_tokens(scores.numbers, block);
      const uint64_t offset = block.random_offset + record.generated * block.rows + row;
      if (is_penalised) DJINN_CHECK(use.group->read_tokens(use.entry.bank, row, 0, tokens));
      DJINN_TRY(token, exec::sample(scores.numbers, tokens, rule_of(block), offset));
      if (stops(block, token)) record.finished_rows |= uint64_t{1} << row;
    }
    DJINN_CHECK(use.group->write_tokens(use.entry.bank, row, length, std::span(&token, 1)));
    record.tokens[row] = token;
  }
  return {};
}

bool all_finished(const gc::StepRecord& record, uint32_t rows) {
  static_assert(gc::kRowsMax <= 64, "finished_rows has a bit for each");
  const uint64_t all = rows == 64 ? ~uint64_t{0} : (uint64_t{1} << rows) - 1;
  return (record.finished_rows & all) == all;
}

// --- a step

bool is_at_prompt(const gc::StepRecord& record) {
  return record.generated == 0;
}

Result<SequenceUse> begin_use(Step& step, const ipc::GenerateBlock& block,
                              const gc::StepRecord& record, bool in_parts) {
  DJINN_TRY(auto group, step.session.find_sequence(block.sequence));
  SequenceUse use{group, step.session.sequence_entry(*group), 1};
  if (is_at_prompt(record)) {
    if (record.prompt_read == 0) DJINN_CHECK(check_block(block, *group, use.entry));
    use.tokens = next_part(block, use.past(), record.prompt_read, in_parts);
  }
  step.group = group.get();
  step.tokens = use.tokens;
  if (!is_at_prompt(record)) return use;
  if (use.entry.length == 0) {
    std::copy_n(block.padding.begin(), std::min<size_t>(block.padding.size(), gc::kRowsMax),
                use.entry.padding.begin());
  }
  return use;
}

void stage_group(Step& step, const SequenceUse& use) {
  gc::SequenceEntry entry = use.entry;
  entry.length = use.past() + use.tokens;
  DJINN_ASSERT(entry.length <= use.group->layout().capacity());
  step.session.state().stage_sequence(use.group->handle().index, entry);
}

Result<const ipc::GenerateBlock*> block_of(Step& step) {
  if (!step.session.generation) {
    DJINN_TRY(ipc::GenerateBlock block, ipc::decode_generate(step.block));
    step.session.generation = std::move(block);
  }
  return &*step.session.generation;
}

// The program of a step, with what is bound to it.
struct Part {
  ProgramId program;
  const std::vector<ipc::InputBinding>& inputs;
};

Part part_of(const ipc::GenerateBlock& block, const gc::StepRecord& record,
             const SequenceUse& use) {
  const bool at_prompt = is_at_prompt(record);
  const ProgramId program = at_prompt
                                ? prompt_program(block, use.past(), record.prompt_read, use.tokens)
                                : token_program(block, use.past());
  if (at_prompt && program.value == block.prefill) return {program, block.prefill_inputs};
  if (at_prompt && program.value == block.extend) return {program, block.extend_inputs};
  if (program.value == block.decode) return {program, block.decode_inputs};
  return {program, block.late_inputs};
}

// Whether the numerics are fast says the program, which is what djinnd's configuration made of it.
Outcome<bool> runs_in_parts(Step& step, LaneTools& tools, const ipc::GenerateBlock& block,
                            const gc::StepRecord& record) {
  if (!is_at_prompt(record) || !wants_parts(block)) return false;
  DJINN_TRY(auto group, step.session.find_sequence(block.sequence));
  const gc::SequenceEntry entry = step.session.sequence_entry(*group);
  if (std::ranges::any_of(entry.padding, [](uint32_t n) { return n != 0; })) return false;
  DJINN_TRY(exec::Program* const program, tools.programs.find(ProgramId{block.prefill}));
  return program->graph().numerics != srg::Numerics::kExact;
}

// A part of the prompt that is not its last: its logits are nobody's.
Ending end_part(Step& step, const TokenRun& run, gc::StepRecord& record) {
  stage_group(step, run.use);
  record.prompt_read += run.use.tokens;
  record.tokens_in_step = 0;
  return Ending::kToken;
}

// Gives the values of the program's symbols as Binder::begin() takes them: those without a role
// have the block's, in their order, and nothing is given from the first on that it has none for.
std::vector<int64_t> symbols_of(const exec::Program& program, const ipc::GenerateBlock& block) {
  std::vector<int64_t> values;
  auto next = block.symbols.begin();
  for (const srg::Symbol& symbol : program.graph().symbols) {
    const bool is_plain = symbol.role == srg::SymbolRole::kPlain;
    if (is_plain && next == block.symbols.end()) break;
    values.push_back(is_plain ? *next++ : 0);
  }
  return values;
}

// Binds what the program reads beside the group, and saves what it writes there. A token that fails
// dooms nothing: what it wrote is put back, and with the group's length goes on from what the last
// token left.
Outcome<void> bind_inputs(Step& step, Binder& binder, const Part& part, const SequenceUse& use) {
  for (const ipc::InputBinding& input : part.inputs) DJINN_CHECK(binder.bind(step, input));
  DJINN_CHECK(binder.bind_sequence(use));
  DJINN_CHECK(binder.check_complete());
  Outcome<void> prepared = binder.prepare_refs(step, {});
  step.doomed.clear();
  return prepared;
}

Error given_up() {
  return {ErrorCode::kCancelled,
          "The generation was given up, by its own program or by djinnctl cancel."};
}

}  // namespace

bool wants_parts(const ipc::GenerateBlock& block) {
  return block.extend != 0 && std::ranges::all_of(block.padding, [](uint32_t n) { return n == 0; });
}

uint64_t next_part(const ipc::GenerateBlock& block, uint64_t past, uint64_t read, bool in_parts) {
  DJINN_ASSERT(read <= block.prompt_tokens);
  const uint64_t left = block.prompt_tokens - read;
  return in_parts ? std::min(left, ipc::kPromptPart - past % ipc::kPromptPart) : left;
}

// A part of one token is computed as a token behind a prompt is.
ProgramId prompt_program(const ipc::GenerateBlock& block, uint64_t past, uint64_t read,
                         uint64_t tokens) {
  const bool is_part = tokens < block.prompt_tokens;
  if (is_part && tokens == 1) return token_program(block, past);
  return ProgramId{is_part && read > 0 ? block.extend : block.prefill};
}

ProgramId token_program(const ipc::GenerateBlock& block, uint64_t past) {
  const bool is_late = block.late_decode != 0 && past >= block.late_from;
  return ProgramId{is_late ? block.late_decode : block.decode};
}

Outcome<TokenRun> prepare_token(Step& step, LaneTools& tools, Binder& binder,
                                const gc::StepRecord& record) {
  DJINN_TRY(const ipc::GenerateBlock* const block, block_of(step));
  if (step.session.is_cancelled()) return given_up();
  DJINN_TRY(const bool in_parts, runs_in_parts(step, tools, *block, record));
  DJINN_TRY(SequenceUse use, begin_use(step, *block, record, in_parts));
  DJINN_ASSERT(record.generated < block->max_new_tokens);
  const Part part = part_of(*block, record, use);
  DJINN_TRY(exec::Program* const program, tools.programs.find(part.program));
  // K and V take use.tokens slots; the drawn token takes one more.
  const uint64_t slots =
      program->reaches_capacity() ? use.group->layout().capacity() : use.past() + use.tokens + 1;
  DJINN_CHECK(tools.pager.ensure(use.group, slots));
  if (is_at_prompt(record)) DJINN_CHECK(write_prompt(step, *block, use, record.prompt_read));
  DJINN_CHECK(binder.begin(*program, symbols_of(*program, *block), &use));
  DJINN_CHECK(bind_inputs(step, binder, part, use));
  return TokenRun{block, std::move(use), program};
}

Outcome<Ending> finish_token(Step& step, LaneTools& tools,
                             std::span<const exec::OutputView> outputs, const TokenRun& run,
                             gc::StepRecord& record) {
  const ipc::GenerateBlock& block = *run.block;
  const bool is_part =
      is_at_prompt(record) && record.prompt_read + run.use.tokens < block.prompt_tokens;
  if (is_part) return end_part(step, run, record);
  if (outputs.empty()) {
    return Error{ErrorCode::kInvalidArgument, "A generating program needs logits as first output."};
  }
  DJINN_CHECK(draw(block, tools.lane, outputs[0], run.use, record));
  stage_group(step, run.use);
  record.generated += 1;
  record.tokens_in_step = block.rows;
  record.random_offset = block.random_offset + record.generated * block.rows;
  const bool last = record.generated == block.max_new_tokens || all_finished(record, block.rows);
  return last ? Ending::kDone : Ending::kToken;
}

Outcome<Ending> compute_token(Step& step, LaneTools& tools, const Binder& binder,
                              const TokenRun& run, gc::StepRecord& record) {
  Outcome<void> ran = tools.lane.run(*run.program, binder.bindings());
  if (ran.has_failed() && ran.error().code == ErrorCode::kCancelled) return given_up();
  DJINN_CHECK(std::move(ran));
  return finish_token(step, tools, tools.lane.outputs(), run, record);
}

Outcome<Ending> generate_token(Step& step, LaneTools& tools, gc::StepRecord& record) {
  DJINN_TRY(const TokenRun run, prepare_token(step, tools, tools.binder, record));
  return compute_token(step, tools, tools.binder, run, record);
}

}  // namespace djinn::worker
