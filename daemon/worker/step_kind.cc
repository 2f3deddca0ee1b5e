// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/step_kind.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "daemon/worker/generation.h"
#include "ipc/binding.h"
#include "ipc/limits.h"

namespace djinn::worker {
namespace {

// Of a larger graph nobody computes what a step takes before it has run once.
constexpr size_t kValuesMax = 16 * 1024;

uint64_t mixed(uint64_t a, uint64_t b) {
  // The finalizer of SplitMix64 (Steele, Lea, Flood, 2014), so that near numbers end up far apart.
  uint64_t x = a * 0x9e3779b97f4a7c15 + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// What a run's symbols are, as far as they are told before it begins.
struct RunSize {
  ProgramId program;
  SequenceHandle sequence;
  std::vector<int64_t> symbols{};  // of a run; of a generation the next two say more
  int64_t rows = 1;
  int64_t tokens = 1;
  int64_t past = 0;   // of a part of a prompt
  uint64_t left = 0;  // likewise: of the prompt, these tokens included
};

// A private copy of the block; empty where it does not fit.
std::vector<std::byte> copy_block(Session& session, const ipc::Submission& submission) {
  const auto staging = session.staging();
  const uint64_t begin = submission.binding_offset;
  const uint64_t bytes = submission.binding_bytes;
  const bool fits = bytes <= limits::kBindingTableBytes && begin <= staging.size() &&
                    bytes <= staging.size() - begin;
  if (!fits) return {};
  const auto block = staging.subspan(begin, bytes);
  return {block.begin(), block.end()};
}

std::optional<RunSize> size_of_run(Session& session, const ipc::Submission& submission) {
  auto block = ipc::decode_run(copy_block(session, submission));
  if (!block) return std::nullopt;
  return RunSize{{submission.program}, block->sequence, std::move(block->symbols)};
}

int64_t tokens_of_group(Session& session, SequenceHandle handle) {
  const auto group = session.find_sequence(handle);
  return group ? static_cast<int64_t>(session.sequence_entry(**group).length) : 0;
}

// Of a generation, and not its first.
bool makes_token(const Session& session) {
  return session.progression.token_ns != 0 && session.generation;
}

// Precondition: it makes one.
ProgramId program_of_token(Session& session) {
  const ipc::GenerateBlock& block = *session.generation;
  return token_program(block, static_cast<uint64_t>(tokens_of_group(session, block.sequence)));
}

// What the session has of a generation before its first token may be of the one before.
std::optional<RunSize> size_of_generation(Session& session, const ipc::Submission& submission) {
  if (makes_token(session)) {
    const ipc::GenerateBlock& block = *session.generation;
    return RunSize{program_of_token(session), block.sequence, {}, block.rows, 1};
  }
  const auto block = ipc::decode_generate(copy_block(session, submission));
  if (!block) return std::nullopt;
  RunSize size{{block->prefill}, block->sequence, {}, block->rows, block->prompt_tokens};
  if (!wants_parts(*block)) return size;
  const gc::StepRecord record = session.state().record();
  const bool goes_on = record.kind == gc::StepKind::kToken && record.run == submission.run;
  const uint64_t read = goes_on ? std::min<uint64_t>(record.prompt_read, block->prompt_tokens) : 0;
  const auto past = static_cast<uint64_t>(tokens_of_group(session, block->sequence));
  const uint64_t tokens = next_part(*block, past, read, true);
  size.program = prompt_program(*block, past, read, tokens);
  size.tokens = static_cast<int64_t>(tokens);
  size.past = static_cast<int64_t>(past);
  size.left = block->prompt_tokens - read;
  return size;
}

// Values that nobody has told, and those out of their range, are the nearest that may be.
std::vector<int64_t> symbols_of(const srg::Graph& graph, const RunSize& run, int64_t past) {
  std::vector<int64_t> values;
  for (size_t i = 0; i < graph.symbols.size(); ++i) {
    const srg::Symbol& symbol = graph.symbols[i];
    const bool told = i < run.symbols.size();
    int64_t value = told ? run.symbols[i] : symbol.max;
    if (symbol.role == srg::SymbolRole::kPast && run.sequence.valid()) value = past;
    if (!told && symbol.role == srg::SymbolRole::kBatch) value = run.rows;
    if (!told && symbol.role == srg::SymbolRole::kTokens) value = run.tokens;
    values.push_back(std::clamp(value, symbol.min, std::max(symbol.min, symbol.max)));
  }
  return values;
}

// Prompts whose lengths agree in their first three bits take about the same time.
uint64_t length_class(uint64_t tokens) {
  const auto bits = static_cast<uint64_t>(std::bit_width(tokens));
  return bits <= 3 ? tokens : bits << 8 | tokens >> (bits - 3);
}

uint64_t kind_of_token(ProgramId program) {
  return mixed(1, program.value);
}

// Where the block says nonsense, a kind of its session's own: the step will fail.
uint64_t kind_of_generation(Session& session, const ipc::Submission& submission) {
  if (makes_token(session)) return kind_of_token(program_of_token(session));
  const auto run = size_of_generation(session, submission);
  if (!run) return mixed(2, session.id().value);
  const auto tokens = static_cast<uint64_t>(run->rows) * static_cast<uint64_t>(run->tokens);
  const uint64_t length =
      length_class(tokens) << 32 | length_class(static_cast<uint64_t>(run->past));
  return mixed(3, mixed(run->program.value, length));
}

// Without a token before it the step is of a prompt, which is long enough by itself.
StepBatch batch_of_token(Session& session, const ProgramTable& programs) {
  const gc::StepRecord& record = session.state().record();
  const bool goes_on =
      record.kind == gc::StepKind::kToken && record.generated > 0 && session.generation;
  if (!goes_on) return {};
  const ipc::GenerateBlock& block = *session.generation;
  if (!block.symbols.empty()) return {};  // its sizes are its own
  ProgramId decode{block.decode};
  if (block.late_decode != 0) {
    const auto group = session.find_sequence(block.sequence);
    if (!group) return {};  // the step says why
    decode = token_program(block, session.sequence_entry(**group).length);
  }
  return programs.joins_steps(decode) ? StepBatch{decode.value, block.rows} : StepBatch{};
}

// block: the submission's. Precondition: the program's token steps join.
StepBatch batch_of_run(const Session& session, ProgramId program, std::span<const std::byte> bytes,
                       const ProgramTable& programs) {
  const auto block = ipc::decode_run(bytes);
  if (!block) return {};
  const auto group = session.find_sequence(block->sequence);
  const auto tokens = tokens_of(programs.peek(program)->program->graph(), block->symbols);
  if (!group || !tokens || *tokens != 1) return {};
  return {program.value, (*group)->geometry().rows};
}

bool may_join_steps(const ipc::Submission& submission, const ProgramTable& programs) {
  return submission.operation == static_cast<uint16_t>(ipc::Operation::kRun) &&
         programs.joins_steps(ProgramId{submission.program});
}

}  // namespace

StepBatch batch_of_next_step(Session& session, const ProgramTable& programs) {
  if (session.is_on_probation()) return {};
  // A run that is in flight has waited, or was abandoned: it goes on by itself.
  if (session.state().in_flight()) return batch_of_token(session, programs);
  const auto submitted = session.ring().has_submission();
  if (!submitted || !*submitted) return {};
  const ipc::Submission submission = session.ring().copy_submission();
  if (!may_join_steps(submission, programs)) return {};
  return batch_of_run(session, {submission.program}, copy_block(session, submission), programs);
}

StepBatch batch_of(const Step& step, const ProgramTable& programs) {
  if (step.session.is_on_probation()) return {};
  if (may_join_steps(step.submission, programs)) {
    return batch_of_run(step.session, {step.submission.program}, step.block, programs);
  }
  return batch_of_token(step.session, programs);
}

StepKind kind_of_next_step(Session& session) {
  const ipc::Submission submission = session.ring().copy_submission();
  const uint64_t operation = submission.operation;
  switch (static_cast<ipc::Operation>(operation)) {
    case ipc::Operation::kRun:
      return {mixed(operation, submission.program)};
    case ipc::Operation::kRunOnce:
      return {mixed(operation, mixed(submission.graph_bytes, session.id().value))};
    case ipc::Operation::kGenerate:
      return {mixed(operation, kind_of_generation(session, submission)), makes_token(session)};
    default:
      return {mixed(operation, 0)};
  }
}

StepsBehind steps_behind(Session& session) {
  const ipc::Submission submission = session.ring().copy_submission();
  const uint64_t operation = submission.operation;
  if (operation != static_cast<uint64_t>(ipc::Operation::kGenerate)) return {};
  const auto block = makes_token(session) ? Result<ipc::GenerateBlock>(*session.generation)
                                          : ipc::decode_generate(copy_block(session, submission));
  if (!block) return {};
  const uint64_t made = makes_token(session) ? session.state().record().generated : 0;
  const uint64_t left = block->max_new_tokens - std::min<uint64_t>(block->max_new_tokens, made);
  StepsBehind steps{left - std::min<uint64_t>(left, 1)};
  auto past = static_cast<uint64_t>(tokens_of_group(session, block->sequence));
  if (const auto size = size_of_generation(session, submission); size && !makes_token(session)) {
    past += size->left > 0 ? size->left : block->prompt_tokens;
    const uint64_t behind = size->left - std::min(size->left, static_cast<uint64_t>(size->tokens));
    steps.parts = (behind + ipc::kPromptPart - 1) / ipc::kPromptPart;
  }
  steps.kind = mixed(operation, kind_of_token(token_program(*block, past)));
  return steps;
}

std::optional<ExpectedStep> expected_step(Session& session, const ProgramTable& programs) {
  const ipc::Submission submission = session.ring().copy_submission();
  std::optional<RunSize> run;
  if (submission.operation == static_cast<uint64_t>(ipc::Operation::kRun)) {
    run = size_of_run(session, submission);
  } else if (submission.operation == static_cast<uint64_t>(ipc::Operation::kGenerate)) {
    run = size_of_generation(session, submission);
  }
  const AdmittedProgram* const admitted = run ? programs.peek(run->program) : nullptr;
  if (admitted == nullptr) return std::nullopt;
  const exec::Program& program = *admitted->program;
  if (program.graph().values.size() > kValuesMax) return std::nullopt;
  const auto symbols = symbols_of(program.graph(), *run, tokens_of_group(session, run->sequence));
  return ExpectedStep{sched::work_at(program.graph(), symbols, admitted->forms),
                      program.fast_nodes() > 0 ? sched::Kernels::kFast : sched::Kernels::kExact};
}

}  // namespace djinn::worker
