// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/operations.h"

#include <string.h>

#include <algorithm>
#include <array>
#include <utility>

#include "daemon/worker/admission_budget.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/srg/beginning.h"
#include "kernel/srg/verify.h"

namespace djinn::worker {
namespace {

// --- a run's outputs

// `what` names the view in the error's sentence.
Status put_in_staging(Step& step, exec::Lane& lane, const exec::OutputView& view,
                      const ipc::StagingRange& range, std::string_view what) {
  DJINN_TRY(const auto area, step.session.staging_range(range));
  uint64_t bytes = size_of(view.dtype);
  for (const int64_t size : view.sizes) bytes *= static_cast<uint64_t>(size);
  if (bytes > area.size()) {
    return Error{ErrorCode::kOutOfRange, std::string(what) + " has " + std::to_string(bytes) +
                                             " bytes, and is given room for " +
                                             std::to_string(area.size()) +
                                             ". Give it more, or take a ref."};
  }
  step.session.counts.bytes_out += bytes;
  return lane.copy_out(view, area.first(bytes));
}

// Gives the place that was prepared for the output if the output was made there or can be copied
// there, else a new one. A place of another size, or one on which another output lies, stays
// unused.
Outcome<Refs::Storage> storage_for(Step& step, std::span<const exec::OutputView> views, size_t i) {
  DJINN_ASSERT(i < views.size());
  Refs& refs = step.session.refs();
  const exec::OutputView& view = views[i];
  const Refs::Storage place = refs.place_of(i);
  const auto is_there = [&](const exec::OutputView& one) { return one.storage == place.data; };
  const bool fits = place.bytes != 0 && place.bytes == view.storage_bytes;
  if (fits && (is_there(view) || std::ranges::none_of(views, is_there))) return refs.take_place(i);
  return refs.allocate(view.storage_bytes);
}

Outcome<void> put_in_ref(Step& step, exec::Lane& lane, std::span<const exec::OutputView> views,
                         size_t i, RefHandle handle) {
  const exec::OutputView& view = views[i];
  if (view.aliases != srg::kLocalStorage) {
    return Error{
        ErrorCode::kInvalidArgument,
        "An output is a view of an input or of sequence state, which has a handle already. "
        "Clone it in the graph, or use that handle."};
  }
  DJINN_TRY(const Refs::Storage storage, storage_for(step, views, i));
  DJINN_ASSERT(storage.bytes == view.storage_bytes);
  if (storage.data != view.storage) lane.copy(view.storage, storage.data, view.storage_bytes);
  step.session.refs().stage_new(step.session.state(), handle, storage);
  return {};
}

Status check_distinct(std::span<const exec::OutputView> views, const ipc::RunBlock& block) {
  for (size_t i = 0; i < views.size(); ++i) {
    for (size_t j = i + 1; j < views.size(); ++j) {
      const bool both_refs = block.outputs[i].kind == ipc::OutputKind::kRef &&
                             block.outputs[j].kind == ipc::OutputKind::kRef;
      if (both_refs && views[i].storage == views[j].storage && views[i].storage_bytes != 0) {
        return Error{ErrorCode::kInvalidArgument,
                     "Two outputs share one storage. Take one of them as a ref, and the other as a "
                     "view of it."};
      }
    }
  }
  return {};
}

ipc::OutputDescription describe(const exec::OutputView& view) {
  DJINN_ASSERT(view.strides.size() == view.sizes.size());
  ipc::OutputDescription out;
  out.dtype = static_cast<uint32_t>(view.dtype);
  out.rank = static_cast<uint32_t>(std::min<size_t>(view.sizes.size(), limits::kRank));
  out.offset = view.storage_offset;
  std::copy_n(view.sizes.begin(), out.rank, out.sizes.begin());
  std::copy_n(view.strides.begin(), out.rank, out.strides.begin());
  return out;
}

Status describe_outputs(Step& step, std::span<const exec::OutputView> views,
                        const ipc::StagingRange& range) {
  if (range.bytes == 0) return {};
  DJINN_TRY(const auto area, step.session.staging_range(range));
  DJINN_ASSERT(area.size() / sizeof(ipc::OutputDescription) >= views.size());  // check_block()
  for (size_t i = 0; i < views.size(); ++i) {
    const ipc::OutputDescription description = describe(views[i]);
    memcpy(area.data() + i * sizeof description, &description, sizeof description);
    step.session.counts.bytes_out += sizeof description;
  }
  return {};
}

Outcome<void> place_outputs(Step& step, exec::Lane& lane, std::span<const exec::OutputView> views,
                            const exec::Program& program, const ipc::RunBlock& block) {
  DJINN_ASSERT(views.size() == block.outputs.size());
  DJINN_CHECK(check_distinct(views, block));
  // Refs come first: where memory for one is on its way the run will be repeated, and in staging an
  // input may lie where an output goes.
  for (size_t i = 0; i < views.size(); ++i) {
    if (block.outputs[i].kind != ipc::OutputKind::kRef) continue;
    DJINN_CHECK(put_in_ref(step, lane, views, i, block.outputs[i].ref));
  }
  for (size_t i = 0; i < views.size(); ++i) {
    if (block.outputs[i].kind != ipc::OutputKind::kStaging) continue;
    DJINN_CHECK(put_in_staging(step, lane, views[i], block.outputs[i].staging,
                               "Output " + program.outputs()[i].name.substr(0, 100)));
  }
  return describe_outputs(step, views, block.result);
}

// A run that fails poisons the refs that it would have made, whatever the reason, so they are
// doomed before anything else. A wrong handle must still poison its neighbours.
Status doom_outputs(Step& step, const ipc::RunBlock& block) {
  Status first;
  for (const ipc::OutputBinding& output : block.outputs) {
    if (output.kind != ipc::OutputKind::kRef) continue;
    Status free = step.session.refs().check_free(step.session.state(), output.ref);
    if (free && std::ranges::find(step.doomed, output.ref) != step.doomed.end()) {
      free = Error{ErrorCode::kInvalidArgument, "Two outputs are bound to one ref."};
    }
    if (free) step.doomed.push_back(output.ref);
    if (!free && first) first = std::move(free);
  }
  return first;
}

// Gives a copy, of no more bytes than a graph may have.
Result<std::vector<std::byte>> graph_bytes_of(const Step& step) {
  DJINN_CHECK(check_graph_bytes(step.submission.graph_bytes));
  DJINN_TRY(const auto bytes,
            step.session.staged({step.submission.graph_offset, step.submission.graph_bytes}));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Result<srg::Graph> graph_of(const Step& step, const LaneTools& tools) {
  if (static_cast<ipc::Operation>(step.submission.operation) == ipc::Operation::kRun) {
    return tools.programs.graph_of(ProgramId{step.submission.program});
  }
  DJINN_TRY(const std::vector<std::byte> bytes, graph_bytes_of(step));
  return read_graph(bytes);
}

// Dooms the refs that a run of the block may change: it binds them to the inputs in `written`.
void doom_changed(Step& step, std::span<const srg::StorageIndex> written,
                  const ipc::RunBlock& block) {
  for (const ipc::InputBinding& input : block.inputs) {
    const bool changed = input.kind == ipc::InputKind::kRef &&
                         std::ranges::find(written, input.storage) != written.end() &&
                         step.session.refs().find(step.session.state(), input.ref).ok();
    const bool twice = std::ranges::find(step.doomed, input.ref) != step.doomed.end();
    if (changed && !twice) step.doomed.push_back(input.ref);
  }
}

// Refuses a block that is wrong whatever the graph's nodes are.
Status check_block(const Session& session, const srg::Graph& graph, const ipc::RunBlock& block) {
  if (block.outputs.size() != graph.outputs.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 "The program has " + std::to_string(graph.outputs.size()) + " outputs, and " +
                     std::to_string(block.outputs.size()) + " are bound."};
  }
  for (const ipc::InputBinding& input : block.inputs) {
    if (input.storage >= graph.storages.size()) return binds_no_input();
  }
  if (block.result.bytes == 0) return {};
  DJINN_TRY(const auto area, session.staging_range(block.result));
  if (area.size() / sizeof(ipc::OutputDescription) >= graph.outputs.size()) return {};
  return Error{ErrorCode::kOutOfRange, "The result range is too small for all outputs."};
}

// --- a run's sequence group

Status take_padding(const ipc::RunBlock& block, SequenceUse& use) {
  if (block.padding.empty()) return {};
  if (use.past() != 0 || block.padding.size() != use.entry.rows) {
    return Error{ErrorCode::kInvalidArgument,
                 "Rows can be padded on the left only when the sequence group is empty, and each "
                 "needs its number."};
  }
  DJINN_CHECK(check_padding(block.padding, use.tokens));
  std::ranges::copy(block.padding, use.entry.padding.begin());
  return {};
}

// Finds the group that the run binds, and checks that the run's tokens fit it.
Result<SequenceUse> use_sequence(Step& step, const srg::Graph& graph, const ipc::RunBlock& block) {
  DJINN_TRY(auto group, step.session.find_sequence(block.sequence));
  DJINN_TRY(const int64_t tokens, tokens_of(graph, block.symbols));
  SequenceUse use{group, step.session.sequence_entry(*group), static_cast<uint64_t>(tokens)};
  step.group = group.get();
  step.tokens = use.tokens;
  if (!range_fits(use.past(), use.tokens, group->layout().capacity())) {
    return Error{ErrorCode::kOutOfRange,
                 "The sequence group holds " + std::to_string(group->layout().capacity()) +
                     " tokens a row, " + std::to_string(use.past()) +
                     " are used, and the run adds " + std::to_string(use.tokens) +
                     ". Make a larger group, or crop this one."};
  }
  DJINN_CHECK(take_padding(block, use));
  return use;
}

// Copies the numbers [first, first + out.size()) of a storage of int64.
Status copy_ids(exec::Lane& lane, const exec::StorageBinding& storage, uint64_t first,
                std::span<int64_t> out) {
  exec::OutputView view;
  view.dtype = DType::kInt64;
  view.sizes = {static_cast<int64_t>(out.size())};
  view.strides = {1};
  view.storage_offset = first;
  view.storage = storage.data;
  view.storage_bytes = storage.bytes;
  return lane.copy_out(view, std::as_writable_bytes(out));
}

// Keeps a row of `ids`, which are int64 [rows, tokens].
Status keep_row(exec::Lane& lane, const exec::StorageBinding& ids, const SequenceUse& use,
                uint32_t row) {
  std::array<int64_t, 512> part;
  std::array<int32_t, part.size()> tokens;
  for (uint64_t at = 0; at < use.tokens; at += part.size()) {
    const auto some = std::span(part).first(std::min<uint64_t>(part.size(), use.tokens - at));
    DJINN_CHECK(copy_ids(lane, ids, row * use.tokens + at, some));
    std::ranges::transform(some, tokens.begin(),
                           [](int64_t id) { return static_cast<int32_t>(id); });
    DJINN_CHECK(use.group->write_tokens(use.entry.bank, row, use.past() + at,
                                        std::span(tokens).first(some.size())));
  }
  return {};
}

// Keeps the ids that the client bound by role as the group's tokens, so that a generation can go
// on.
Status keep_token_ids(const srg::Graph& graph, exec::Lane& lane, const exec::RunBindings& bindings,
                      const SequenceUse& use) {
  const uint64_t count = uint64_t{use.entry.rows} * use.tokens;
  for (size_t i = 0; i < graph.storages.size(); ++i) {
    if (graph.storages[i].role != srg::InputRole::kTokenIds ||
        bindings.storages[i].bytes != count * sizeof(int64_t)) {
      continue;
    }
    for (uint32_t row = 0; row < use.entry.rows; ++row) {
      DJINN_CHECK(keep_row(lane, bindings.storages[i], use, row));
    }
  }
  return {};
}

void stage_length(Step& step, const SequenceUse& use) {
  gc::SequenceEntry entry = use.entry;
  entry.length = use.past() + use.tokens;
  DJINN_ASSERT(entry.length <= use.group->layout().capacity());
  step.session.state().stage_sequence(use.group->handle().index, entry);
}

// --- a run

bool is_for_once(const Step& step, const srg::Graph& graph) {
  return static_cast<ipc::Operation>(step.submission.operation) == ipc::Operation::kRunOnce &&
         graph.symbols.empty();
}

// Dooms what the run would make, and finds its program.
Outcome<ProgramRun> begin_run(Step& step, LaneTools& tools) {
  ProgramRun run;
  DJINN_TRY(run.block, ipc::decode_run(step.block));
  DJINN_CHECK(doom_outputs(step, run.block));
  DJINN_TRY(run.program, tools.programs.find(ProgramId{step.submission.program}));
  return run;
}

// Gives the use of the sequence group that the run binds; without a group where it binds none.
Outcome<SequenceUse> bind_run(Step& step, LaneTools& tools, Binder& binder,
                              const exec::Program& program, const ipc::RunBlock& block) {
  const srg::Graph& graph = program.graph();
  if (Status fits = check_block(step.session, graph, block); !fits) {
    step.is_whole = true;
    return std::move(fits).error();
  }
  SequenceUse use;
  if (block.sequence.valid()) {
    DJINN_TRY(use, use_sequence(step, graph, block));
    const uint64_t slots =
        program.reaches_capacity() ? use.group->layout().capacity() : use.past() + use.tokens;
    DJINN_CHECK(tools.pager.ensure(use.group, slots));
  }
  DJINN_CHECK(binder.begin(program, block.symbols, use.group ? &use : nullptr));
  for (const ipc::InputBinding& input : block.inputs) DJINN_CHECK(binder.bind(step, input));
  if (use.group) DJINN_CHECK(binder.bind_sequence(use));
  DJINN_CHECK(binder.check_complete());
  DJINN_CHECK(binder.prepare_refs(step, block.outputs));
  if (use.group) DJINN_CHECK(keep_token_ids(graph, tools.lane, binder.bindings(), use));
  return use;
}

Outcome<Ending> end_run(Step& step, exec::Lane& lane, std::span<const exec::OutputView> outputs,
                        const exec::Program& program, const ipc::RunBlock& block,
                        const SequenceUse& use) {
  DJINN_CHECK(place_outputs(step, lane, outputs, program, block));
  if (use.group) stage_length(step, use);
  return Ending::kDone;
}

Outcome<Ending> run(Step& step, LaneTools& tools, exec::Program& program,
                    const ipc::RunBlock& block) {
  Binder& binder = tools.binder;
  DJINN_TRY(const SequenceUse use, bind_run(step, tools, binder, program, block));
  DJINN_CHECK(is_for_once(step, program.graph()) ? tools.lane.run_once(program, binder.bindings())
                                                 : tools.lane.run(program, binder.bindings()));
  return end_run(step, tools.lane, tools.lane.outputs(), program, block, use);
}

// --- a run of a series

// This is what the submission runs its graph with.
struct Work {
  std::shared_ptr<MappedModel> model;
  ipc::RunBlock block;
};

Status go_on(Step& step, AdmissionBudget& budget) {
  if (!budget.is_due()) return {};
  step.session.state().beat();
  if (step.session.gives_up(step.submission.run)) {
    return Error{ErrorCode::kCancelled, "The run was given up before it had begun."};
  }
  const auto used = budget.used_ns();
  if (used) return {};
  step.is_whole = true;
  return used.error();
}

// Admits the graph as a part of the step, and runs it. This admission shows life, ends where the
// run is given up, and may take as long as a program's. Numerics are a program's: this is exact,
// but for weights that fast kernels alone can read.
Outcome<Ending> admit_and_run(Step& step, LaneTools& tools, srg::Graph graph,
                              const std::shared_ptr<MappedModel>& model,
                              const ipc::RunBlock& block) {
  AdmissionBudget budget(tools.clock, limits::kAdmissionCpuMs);
  const bool needs_fast = model != nullptr && exec::reads_forms(graph, model->weights());
  graph.numerics = needs_fast ? srg::Numerics::kFast : srg::Numerics::kExact;
  exec::AdmissionLimits limits = admission_limits();
  limits.go_on = [&step, &budget] { return go_on(step, budget); };
  DJINN_TRY(const AdmittedProgram admitted,
            admit_verified(tools.executor, std::move(graph), model, limits));
  Outcome<Ending> ending = run(step, tools, *admitted.program, block);
  tools.lane.forget(*admitted.program);
  return ending;
}

// Gives the bindings that the beginning takes.
ipc::RunBlock block_for(const srg::Beginning& beginning, const ipc::RunBlock& whole) {
  ipc::RunBlock block;
  block.symbols = whole.symbols;
  for (ipc::InputBinding input : whole.inputs) {
    if (input.storage >= beginning.storages.size() || !beginning.storages[input.storage]) continue;
    input.storage = *beginning.storages[input.storage];
    block.inputs.push_back(input);
  }
  for (const size_t output : beginning.outputs) {
    DJINN_ASSERT(output < whole.outputs.size());  // check_block()
    block.outputs.push_back(whole.outputs[output]);
  }
  return block;
}

Outcome<Ending> run_beginning(Step& step, LaneTools& tools, const Work& work,
                              const srg::Beginning& beginning) {
  DJINN_CHECK(srg::verify(beginning.graph));
  return admit_and_run(step, tools, beginning.graph, work.model, block_for(beginning, work.block));
}

void spare(Step& step, const srg::Beginning& beginning, const ipc::RunBlock& block) {
  for (const size_t output : beginning.outputs) {
    std::erase(step.doomed, block.outputs[output].ref);
  }
}

// Gives the node that failed, if the lane has begun a run since `begun` of them.
std::optional<size_t> failed_at(const exec::Lane& lane, uint64_t begun) {
  return lane.stats().begun != begun ? lane.failed_at() : std::nullopt;
}

bool ends_search(const Outcome<Ending>& ending) {
  return ending.is_pending() ||
         (ending.has_failed() && ending.error().code == ErrorCode::kCancelled);
}

// Runs the longest beginning that can be run, and gives the error of the node behind it.
Outcome<Ending> keep_beginning(Step& step, LaneTools& tools, const Work& work) {
  Beginnings& tried = *step.session.beginnings;
  const Grants::Trial trial(tools.grants);  // who asked for the whole was refused already
  while (tried.may_go_on()) {
    ++tried.tries;
    begin_again(step);
    const srg::Beginning beginning = srg::beginning_of(tried.graph, tried.next);
    const uint64_t begun = tools.lane.stats().begun;
    Outcome<Ending> ending = run_beginning(step, tools, work, beginning);
    if (ends_search(ending)) return ending;
    if (!ending && step.is_whole) break;
    if (!ending) {
      tried.note_failure(std::move(ending).error(), tried.next, failed_at(tools.lane, begun));
    } else if (tried.fails == tried.next + 1) {
      spare(step, beginning, work.block);
      step.keeps = true;
      break;
    } else {
      tried.note_success();
    }
  }
  step.failed_node = tried.fails;
  return tried.why;
}

// `whole` runs the submission as it is; `graph` gives the graph that can be cut.
template <typename Whole, typename ToCut>
Outcome<Ending> run_or_keep(Step& step, LaneTools& tools, const Work& work, const Whole& whole,
                            const ToCut& graph) {
  if (step.session.beginnings) return keep_beginning(step, tools, work);
  const uint64_t begun = tools.lane.stats().begun;
  Outcome<Ending> ending = whole();
  if (ending || ends_search(ending) || !step.is_of_series() || step.is_whole) return ending;
  Result<srg::Graph> cut = graph();
  if (!cut || cut->nodes.empty() || work.block.sequence.valid() ||
      !check_block(step.session, *cut, work.block)) {
    return ending;
  }
  const size_t count = cut->nodes.size();
  step.session.beginnings.emplace(*std::move(cut))
      .note_failure(std::move(ending).error(), count, failed_at(tools.lane, begun));
  return keep_beginning(step, tools, work);
}

// --- views of refs

// Checks that the view lies inside its storage. Errors: kOutOfRange, on overflow too.
Status check_inside(const ipc::ReadBlock& block, uint64_t storage_bytes) {
  const Error outside{ErrorCode::kOutOfRange,
                      "What is to be read does not lie inside the ref, which has " +
                          std::to_string(storage_bytes) +
                          (storage_bytes == 1 ? " byte." : " bytes.")};
  uint64_t last = block.offset;
  for (size_t d = 0; d < block.sizes.size(); ++d) {
    if (block.sizes[d] == 0) return {};
    if (block.strides[d] < 0) return outside;
    const auto step = checked_mul(block.sizes[d] - 1, static_cast<uint64_t>(block.strides[d]));
    const auto sum = step ? checked_add(last, *step) : std::nullopt;
    if (!sum) return outside;
    last = *sum;
  }
  const auto count = checked_add<uint64_t>(last, 1);
  const auto bytes = count ? checked_mul<uint64_t>(*count, size_of(block.dtype)) : std::nullopt;
  if (!bytes || *bytes > storage_bytes) return outside;
  return {};
}

// Dooms the ref that a part of a write makes or continues.
Status doom_written(Step& step, const ipc::WriteBlock& block) {
  const Refs& refs = step.session.refs();
  if (block.offset != 0) {
    DJINN_TRY([[maybe_unused]] const auto partial,
              refs.find_partial(step.session.state(), block.ref, block.bytes));
  } else {
    DJINN_CHECK(step.session.refs().check_free(step.session.state(), block.ref));
  }
  step.doomed.push_back(block.ref);
  return {};
}

}  // namespace

Result<int64_t> tokens_of(const srg::Graph& graph, std::span<const int64_t> symbols) {
  for (size_t i = 0; i < graph.symbols.size(); ++i) {
    if (graph.symbols[i].role != srg::SymbolRole::kTokens) continue;
    if (i >= symbols.size() || symbols[i] < 0) break;
    return symbols[i];
  }
  return Error{ErrorCode::kInvalidArgument,
               "A program that runs on a sequence group needs a symbol of role tokens: how many it "
               "appends."};
}

// Undo entries are the worker's own and were checked at attach: a failure here is its own mistake,
// hence the assertion.
void roll_back(Session& session) {
  DJINN_ASSERT(session.state().roll_back(session.refs().extent()).ok());
  session.refs().end_step(Refs::End::kRolledBack);
  session.tell_idle_refs();
}

void begin_again(Step& step) {
  roll_back(step.session);
  step.session.state().begin();
}

// Gives the block of a run whose outputs it has doomed.
static std::optional<ipc::RunBlock> doom_what_is_made(Step& step) {
  const auto operation = static_cast<ipc::Operation>(step.submission.operation);
  if (operation == ipc::Operation::kWriteRef) {
    const auto written = ipc::decode_write(step.block);
    if (written) [[maybe_unused]]
      const Status doomed = doom_written(step, *written);
    return {};
  }
  if (operation != ipc::Operation::kRun && operation != ipc::Operation::kRunOnce) return {};
  auto block = ipc::decode_run(step.block);
  if (!block) return {};
  [[maybe_unused]] const Status doomed = doom_outputs(step, *block);
  return *std::move(block);
}

void doom_made(Step& step) {
  doom_what_is_made(step);
}

void doom_products(Step& step, const LaneTools& tools) {
  const auto block = doom_what_is_made(step);
  if (!block || step.is_of_series()) return;
  const auto graph = graph_of(step, tools);
  if (graph) doom_changed(step, tools.executor.inputs_written(*graph), *block);
}

Outcome<ProgramRun> prepare_run(Step& step, LaneTools& tools, Binder& binder) {
  DJINN_TRY(ProgramRun run, begin_run(step, tools));
  DJINN_TRY(run.use, bind_run(step, tools, binder, *run.program, run.block));
  return run;
}

Outcome<Ending> compute_run(Step& step, LaneTools& tools, const Binder& binder,
                            const ProgramRun& run) {
  DJINN_CHECK(tools.lane.run(*run.program, binder.bindings()));
  return finish_run(step, tools, tools.lane.outputs(), run);
}

Outcome<Ending> finish_run(Step& step, LaneTools& tools, std::span<const exec::OutputView> outputs,
                           const ProgramRun& run) {
  return end_run(step, tools.lane, outputs, *run.program, run.block, run.use);
}

Outcome<Ending> run_program(Step& step, LaneTools& tools) {
  DJINN_TRY(ProgramRun begun, begin_run(step, tools));
  exec::Program& program = *begun.program;
  const Work work{tools.programs.model_of(ProgramId{step.submission.program}),
                  std::move(begun.block)};
  return run_or_keep(
      step, tools, work, [&] { return run(step, tools, program, work.block); },
      [&]() -> Result<srg::Graph> { return program.graph(); });
}

Outcome<Ending> run_graph_once(Step& step, LaneTools& tools) {
  Work work;
  DJINN_TRY(work.block, ipc::decode_run(step.block));
  DJINN_CHECK(doom_outputs(step, work.block));
  DJINN_TRY(const std::vector<std::byte> copy, graph_bytes_of(step));
  DJINN_TRY(work.model, tools.programs.find_model(ModelId{step.submission.model}));
  return run_or_keep(
      step, tools, work,
      [&]() -> Outcome<Ending> {
        DJINN_TRY(srg::Graph graph, read_graph(copy));
        return admit_and_run(step, tools, std::move(graph), work.model, work.block);
      },
      [&] { return read_graph(copy); });
}

Result<Ending> read_ref(Step& step, const LaneTools& tools) {
  DJINN_TRY(const ipc::ReadBlock block, ipc::decode_read(step.block));
  DJINN_TRY(const Refs::Storage storage, step.session.refs().find(step.session.state(), block.ref));
  DJINN_CHECK(check_inside(block, storage.bytes));
  exec::OutputView view;
  view.dtype = block.dtype;
  view.sizes.assign(block.sizes.begin(), block.sizes.end());
  view.strides = block.strides;
  view.storage_offset = block.offset;
  view.storage = storage.data;
  view.storage_bytes = storage.bytes;
  DJINN_CHECK(put_in_staging(step, tools.lane, view, block.staging, "The tensor"));
  return Ending::kDone;
}

Outcome<Ending> write_ref(Step& step) {
  DJINN_TRY(const ipc::WriteBlock block, ipc::decode_write(step.block));
  DJINN_CHECK(doom_written(step, block));
  DJINN_TRY(const auto source, step.session.staged(block.staging));
  if (!range_fits(block.offset, source.size(), block.bytes)) {
    return Error{ErrorCode::kOutOfRange, "A write goes beyond the end of its ref."};
  }
  Refs& refs = step.session.refs();
  gc::SessionState& state = step.session.state();
  if (block.offset != 0) DJINN_CHECK(Refs::check_next_part(state, block.ref, block.offset));
  DJINN_TRY(const Refs::Storage storage, block.offset == 0
                                             ? refs.allocate(block.bytes)
                                             : refs.find_partial(state, block.ref, block.bytes));
  DJINN_ASSERT(storage.bytes == block.bytes);
  DJINN_CHECK(refs.write(storage, block.offset, source));
  const uint64_t written = block.offset + source.size();
  if (written == block.bytes) {
    refs.stage_new(state, block.ref, storage);
  } else {
    refs.stage_partial(state, block.ref, storage, written);
  }
  return Ending::kDone;
}

Result<Ending> release_refs(Step& step) {
  DJINN_TRY(const ipc::ReleaseBlock block, ipc::decode_release(step.block));
  for (size_t i = 0; i < block.refs.size(); ++i) {
    if (std::find(block.refs.begin(), block.refs.begin() + static_cast<ptrdiff_t>(i),
                  block.refs[i]) != block.refs.begin() + static_cast<ptrdiff_t>(i)) {
      return Error{ErrorCode::kInvalidArgument, "A ref is released twice in one submission."};
    }
    DJINN_CHECK(step.session.refs().stage_release(step.session.state(), block.refs[i]));
  }
  return Ending::kDone;
}

Result<Ending> crop_sequence(Step& step) {
  DJINN_TRY(const ipc::CropBlock block, ipc::decode_crop(step.block));
  DJINN_TRY(const auto group, step.session.find_sequence(block.sequence));
  gc::SequenceEntry entry = step.session.sequence_entry(*group);
  if (block.length > entry.length) {
    return Error{ErrorCode::kOutOfRange, "A crop can only shorten: the group has " +
                                             std::to_string(entry.length) + " tokens a row."};
  }
  entry.length = block.length;
  if (entry.length == 0) entry.padding = {};  // it was of the rows that are gone
  step.session.state().stage_sequence(block.sequence.index, entry);
  return Ending::kDone;
}

// The step only reads the rows in use, and writes those of the other bank, which nobody sees before
// the commit.
Outcome<Ending> reorder_sequence(Step& step, const LaneTools& tools) {
  DJINN_TRY(const ipc::ReorderBlock block, ipc::decode_reorder(step.block));
  DJINN_TRY(const auto group, step.session.find_sequence(block.sequence));
  const gc::SequenceEntry before = step.session.sequence_entry(*group);
  if (group->geometry().banks != 2) {
    return Error{ErrorCode::kInvalidArgument,
                 "The sequence group has no second bank of rows. Make it as one that is to be "
                 "reordered."};
  }
  if (block.rows.size() != before.rows) {
    return Error{ErrorCode::kInvalidArgument,
                 "A reorder names " + std::to_string(block.rows.size()) +
                     " rows, and the sequence group has " + std::to_string(before.rows) + "."};
  }
  DJINN_ASSERT(before.bank < 2 && before.rows == group->geometry().rows);
  gc::SequenceEntry after = before;
  after.bank = 1 - before.bank;
  for (size_t row = 0; row < block.rows.size(); ++row) {
    after.padding[row] = before.padding[block.rows[row]];
  }
  DJINN_CHECK(tools.pager.ensure(group, before.length));
  DJINN_CHECK(group->copy_rows(before.bank, after.bank, block.rows, before.length));
  step.session.state().stage_sequence(block.sequence.index, after);
  return Ending::kDone;
}

}  // namespace djinn::worker
