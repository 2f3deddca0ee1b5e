// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/step_kind.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "daemon/worker/generation.h"
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

int64_t tokens_of_group(Session& session, SequenceHandle handle) {
  const auto group = session.find_sequence(handle);
  return group ? static_cast<int64_t>(session.sequence_entry(**group).length) : 0;
}

// Prompts whose lengths agree in their first three bits take about the same time.
uint64_t length_class(uint64_t tokens) {
  const auto bits = static_cast<uint64_t>(std::bit_width(tokens));
  return bits <= 3 ? tokens : bits << 8 | tokens >> (bits - 3);
}

uint64_t kind_of_token(ProgramId program) {
  return mixed(1, program.value);
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

// Precondition: the program's token steps join.
StepBatch batch_of_run(const Session& session, ProgramId program, const ipc::RunBlock& block,
                       const ProgramTable& programs) {
  const auto group = session.find_sequence(block.sequence);
  const auto tokens = tokens_of(programs.peek(program)->program->graph(), block.symbols);
  if (!group || !tokens || *tokens != 1) return {};
  return {program.value, (*group)->geometry().rows};
}

bool may_join_steps(const ipc::Submission& submission, const ProgramTable& programs) {
  return submission.operation == static_cast<uint16_t>(ipc::Operation::kRun) &&
         programs.joins_steps(ProgramId{submission.program});
}

}  // namespace

StepBatch batch_of(const Step& step, const ProgramTable& programs) {
  if (step.session.is_on_probation()) return {};
  if (!may_join_steps(step.submission, programs)) return batch_of_token(step.session, programs);
  const auto block = ipc::decode_run(step.block);
  if (!block) return {};
  return batch_of_run(step.session, {step.submission.program}, *block, programs);
}

// --- NextStep

std::optional<NextStep> NextStep::of(Session& session, const ProgramTable& programs) {
  const auto submitted = session.ring().has_submission();
  if (!submitted || !*submitted) return std::nullopt;
  return NextStep(session, programs, session.ring().copy_submission());
}

bool NextStep::is(ipc::Operation operation) const {
  return submission_.operation == static_cast<uint16_t>(operation);
}

bool NextStep::makes_token() const {
  return session_.progression.token_ns != 0 && session_.generation;
}

const ipc::RunBlock* NextStep::run_block() {
  if (!run_block_) run_block_ = ipc::decode_run(copy_block(session_, submission_));
  return *run_block_ ? &**run_block_ : nullptr;
}

// What the session has of a generation before its first token may be of the one before.
const ipc::GenerateBlock* NextStep::generate_block() {
  if (makes_token()) return &*session_.generation;
  if (!generate_block_) generate_block_ = ipc::decode_generate(copy_block(session_, submission_));
  return *generate_block_ ? &**generate_block_ : nullptr;
}

std::optional<NextStep::RunSize> NextStep::size_of_run() {
  const ipc::RunBlock* const block = run_block();
  if (block == nullptr) return std::nullopt;
  return RunSize{{submission_.program}, block->sequence, block->symbols};
}

std::optional<NextStep::RunSize> NextStep::size_of_generation() {
  const ipc::GenerateBlock* const block = generate_block();
  if (block == nullptr) return std::nullopt;
  const auto past = static_cast<uint64_t>(tokens_of_group(session_, block->sequence));
  if (makes_token()) {
    return RunSize{token_program(*block, past), block->sequence, {}, block->rows, 1};
  }
  RunSize size{{block->prefill}, block->sequence, {}, block->rows, block->prompt_tokens};
  if (!wants_parts(*block)) return size;
  const gc::StepRecord record = session_.state().record();
  const bool goes_on = record.kind == gc::StepKind::kToken && record.run == submission_.run;
  const uint64_t read = goes_on ? std::min<uint64_t>(record.prompt_read, block->prompt_tokens) : 0;
  const uint64_t tokens = next_part(*block, past, read, true);
  size.program = prompt_program(*block, past, read, tokens);
  size.tokens = static_cast<int64_t>(tokens);
  size.past = static_cast<int64_t>(past);
  size.left = block->prompt_tokens - read;
  return size;
}

// Where the block says nonsense, a kind of its session's own: the step will fail.
uint64_t NextStep::kind_of_generation() {
  const auto run = size_of_generation();
  if (!run) return mixed(2, session_.id().value);
  if (makes_token()) return kind_of_token(run->program);
  const auto tokens = static_cast<uint64_t>(run->rows) * static_cast<uint64_t>(run->tokens);
  const uint64_t length =
      length_class(tokens) << 32 | length_class(static_cast<uint64_t>(run->past));
  return mixed(3, mixed(run->program.value, length));
}

StepKind NextStep::kind() {
  const uint64_t operation = submission_.operation;
  switch (static_cast<ipc::Operation>(operation)) {
    case ipc::Operation::kRun:
      return {mixed(operation, submission_.program)};
    case ipc::Operation::kRunOnce:
      return {mixed(operation, mixed(submission_.graph_bytes, session_.id().value))};
    case ipc::Operation::kGenerate:
      return {mixed(operation, kind_of_generation()), makes_token()};
    default:
      return {mixed(operation, 0)};
  }
}

StepBatch NextStep::batch() {
  if (session_.is_on_probation()) return {};
  // A run that is in flight has waited, or was abandoned: it goes on by itself.
  if (session_.state().in_flight()) return batch_of_token(session_, programs_);
  if (!may_join_steps(submission_, programs_)) return {};
  const ipc::RunBlock* const block = run_block();
  if (block == nullptr) return {};
  return batch_of_run(session_, {submission_.program}, *block, programs_);
}

StepsBehind NextStep::behind() {
  if (!is(ipc::Operation::kGenerate)) return {};
  const ipc::GenerateBlock* const block = generate_block();
  if (block == nullptr) return {};
  const uint64_t made = makes_token() ? session_.state().record().generated : 0;
  const uint64_t left = block->max_new_tokens - std::min<uint64_t>(block->max_new_tokens, made);
  StepsBehind steps{left - std::min<uint64_t>(left, 1)};
  auto past = static_cast<uint64_t>(tokens_of_group(session_, block->sequence));
  if (const auto size = size_of_generation(); size && !makes_token()) {
    past += size->left > 0 ? size->left : block->prompt_tokens;
    const uint64_t later = size->left - std::min(size->left, static_cast<uint64_t>(size->tokens));
    steps.parts = (later + ipc::kPromptPart - 1) / ipc::kPromptPart;
  }
  steps.kind = mixed(submission_.operation, kind_of_token(token_program(*block, past)));
  return steps;
}

// Values that nobody has told, and those out of their range, are the nearest that may be.
std::vector<int64_t> NextStep::symbols_of(const srg::Graph& graph, const RunSize& run,
                                          int64_t past) {
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

std::optional<ExpectedStep> NextStep::expected() {
  std::optional<RunSize> run;
  if (is(ipc::Operation::kRun)) run = size_of_run();
  if (is(ipc::Operation::kGenerate)) run = size_of_generation();
  const AdmittedProgram* const admitted = run ? programs_.peek(run->program) : nullptr;
  if (admitted == nullptr) return std::nullopt;
  const exec::Program& program = *admitted->program;
  if (program.graph().values.size() > kValuesMax) return std::nullopt;
  const auto symbols = symbols_of(program.graph(), *run, tokens_of_group(session_, run->sequence));
  return ExpectedStep{sched::work_at(program.graph(), symbols, admitted->forms),
                      program.fast_nodes() > 0 ? sched::Kernels::kFast : sched::Kernels::kExact};
}

}  // namespace djinn::worker
