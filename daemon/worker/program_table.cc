// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/program_table.h"

#include <algorithm>
#include <utility>

#include "ipc/codec/srg_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/sched/annotate.h"
#include "kernel/srg/verify.h"

namespace djinn::worker {
namespace {

// A graph without a model is admitted against this empty table.
const exec::WeightTable& no_weights() {
  static const exec::WeightTable empty({});
  return empty;
}

// Gives the message's word for what the scheduler says of an admitted graph. It annotates a copy.
ipc::Workload workload_of(srg::Graph graph) {
  using Said = sched::Workload;
  using Told = ipc::Workload;
  constexpr auto same = [](Said said, Told told) {
    return static_cast<uint8_t>(said) == static_cast<uint8_t>(told);
  };
  static_assert(same(Said::kUnknown, Told::kUnknown) && same(Said::kDecode, Told::kDecode) &&
                same(Said::kTextEncoder, Told::kTextEncoder) && same(Said::kAudio, Told::kAudio) &&
                same(Said::kPrefill, Told::kPrefill) && same(Said::kVision, Told::kVision) &&
                same(Said::kMultimodal, Told::kMultimodal) &&
                same(Said::kTraining, Told::kTraining));
  sched::annotate(graph);
  return static_cast<Told>(sched::classify(graph));
}

// Gives the forms that the model has the graph's weights in; empty where all are plain.
srg::WeightForms forms_of(const srg::Graph& graph, const exec::WeightTable& weights) {
  srg::WeightForms forms;
  for (size_t i = 0; i < graph.storages.size(); ++i) {
    if (graph.storages[i].kind != srg::StorageKind::kWeight) continue;
    const exec::Weight* const weight = weights.find(graph.storages[i].name);
    if (weight == nullptr || weight->form == srg::WeightForm::kPlain) continue;
    forms.resize(graph.storages.size(), srg::WeightForm::kPlain);
    forms[i] = weight->form;
  }
  return forms;
}

}  // namespace

Status check_graph_bytes(uint64_t bytes) {
  static_assert(limits::kGraphBytes == 16u << 20);
  if (bytes <= limits::kGraphBytes) return {};
  return Error{ErrorCode::kLimitExceeded, "The graph is larger than 16 MiB. Split it."};
}

Result<srg::Graph> read_graph(std::span<const std::byte> graph_bytes) {
  DJINN_CHECK(check_graph_bytes(graph_bytes.size()));
  DJINN_TRY(srg::Graph graph, ipc::decode_graph(graph_bytes));
  DJINN_CHECK(srg::verify(graph));
  return graph;
}

exec::AdmissionLimits admission_limits() {
  return {.activation_bytes_max = UINT64_MAX, .evaluations_max = limits::kAdmissionEvaluations};
}

Result<AdmittedProgram> admit_graph(exec::Executor& executor,
                                    std::span<const std::byte> graph_bytes,
                                    std::shared_ptr<MappedModel> model,
                                    const exec::AdmissionLimits& limits) {
  DJINN_TRY(srg::Graph graph, read_graph(graph_bytes));
  DJINN_TRY(AdmittedProgram admitted,
            admit_verified(executor, std::move(graph), std::move(model), limits));
  admitted.workload = workload_of(admitted.program->graph());
  if (admitted.model) {
    admitted.forms = forms_of(admitted.program->graph(), admitted.model->weights());
  }
  return admitted;
}

Result<AdmittedProgram> admit_verified(exec::Executor& executor, srg::Graph graph,
                                       std::shared_ptr<MappedModel> model,
                                       const exec::AdmissionLimits& limits) {
  const exec::WeightTable& weights = model ? model->weights() : no_weights();
  DJINN_TRY(auto program, executor.admit(std::move(graph), weights, limits));
  return AdmittedProgram{std::move(model), std::move(program)};
}

void ProgramTable::add_model(std::shared_ptr<MappedModel> model) {
  DJINN_ASSERT(model);
  const ModelId id = model->id();
  models_[id] = std::move(model);
}

// The model may be parked again already: then the next run asks for it anew.
void ProgramTable::model_came(ModelId id) {
  DJINN_ASSERT(models_.contains(id));
  wanted_.erase(id);
  waits_.arrived(AwaitedModel{id});
}

void ProgramTable::park_model(ModelId id, pal::DevicePal& pal) {
  DJINN_ASSERT(used_.models.empty() && !is_used_aside(id));
  const auto found = models_.find(id);
  if (found != models_.end()) DJINN_ASSERT(found->second->park(pal));
}

void ProgramTable::lose_model(ModelId id, const Error& error) {
  const auto wanted = wanted_.find(id);
  if (wanted == wanted_.end()) return;
  wanted->second = error;
  waits_.arrived(AwaitedModel{id});
}

Outcome<void> ProgramTable::need(const std::shared_ptr<MappedModel>& model) {
  if (std::ranges::find(used_.models, model) != used_.models.end()) return {};
  if (model->use()) {
    used_.models.push_back(model);
    return {};
  }
  const auto [wanted, fresh] = wanted_.try_emplace(model->id());
  if (wanted->second) {
    Error why = *std::move(wanted->second);
    wanted_.erase(wanted);
    return why;
  }
  DJINN_ASSERT(want_);
  if (fresh) want_(model->id());
  return waits_.await(AwaitedModel{model->id()});
}

void ProgramTable::end_step() {
  for (const auto& model : used_.models) model->end_use();
  used_.models.clear();
  used_.programs.clear();
}

void ProgramTable::pause() {
  DJINN_ASSERT(aside_.models.empty() && aside_.programs.empty());
  std::swap(used_, aside_);
}

void ProgramTable::resume() {
  DJINN_ASSERT(used_.models.empty() && used_.programs.empty());
  std::swap(used_, aside_);
}

bool ProgramTable::is_used_aside(ModelId id) const {
  return std::ranges::any_of(aside_.models, [&](const auto& model) { return model->id() == id; });
}

bool ProgramTable::is_used_aside(ProgramId id) const {
  return std::ranges::find(aside_.programs, id) != aside_.programs.end();
}

void ProgramTable::drop_model(ModelId id, exec::Lane& lane) {
  DJINN_ASSERT(!is_used_aside(id));
  std::erase_if(programs_, [&](const auto& entry) {
    const bool of_model = entry.second.model && entry.second.model->id() == id;
    if (of_model) lane.forget(*entry.second.program);
    return of_model;
  });
  std::erase_if(expected_, [&](const auto& entry) {
    const bool of_model = entry.second.model == id;
    if (of_model) waits_.arrived(AwaitedProgram{entry.first});
    return of_model;
  });
  models_.erase(id);
  wanted_.erase(id);
  waits_.arrived(AwaitedModel{id});
}

void ProgramTable::expect_program(ProgramId id, ModelId model,
                                  std::shared_ptr<const std::vector<std::byte>> graph) {
  DJINN_ASSERT(id.valid() && graph && !programs_.contains(id));
  expected_[id] = {model, std::move(graph)};
}

bool ProgramTable::expect_no_more(ProgramId id) {
  if (expected_.erase(id) == 0) return false;
  waits_.arrived(AwaitedProgram{id});
  return true;
}

void ProgramTable::add_program(ProgramId id, AdmittedProgram program) {
  DJINN_ASSERT(id.valid() && program.program);
  if (expect_no_more(id)) programs_[id] = std::move(program);
}

void ProgramTable::refuse_program(ProgramId id) {
  expect_no_more(id);
}

void ProgramTable::drop_program(ProgramId id, exec::Lane& lane) {
  DJINN_ASSERT(!is_used_aside(id));
  expect_no_more(id);
  const auto found = programs_.find(id);
  if (found == programs_.end()) return;
  lane.forget(*found->second.program);
  programs_.erase(found);
}

static Error no_such_program() {
  return {ErrorCode::kNotFound, "There is no such program. Define it first."};
}

Outcome<exec::Program*> ProgramTable::find(ProgramId id) {
  if (expected_.contains(id)) {
    DJINN_ASSERT(need_program_);
    need_program_(id);
    return waits_.await(AwaitedProgram{id});
  }
  const auto found = programs_.find(id);
  if (found == programs_.end()) return no_such_program();
  if (found->second.model) DJINN_CHECK(need(found->second.model));
  used_.programs.push_back(id);
  return found->second.program.get();
}

const AdmittedProgram* ProgramTable::peek(ProgramId id) const {
  const auto found = programs_.find(id);
  return found == programs_.end() ? nullptr : &found->second;
}

bool ProgramTable::joins_steps(ProgramId id) const {
  const AdmittedProgram* const admitted = peek(id);
  return admitted != nullptr && admitted->program->fast_nodes() > 0 &&
         admitted->program->writes_nothing();
}

std::shared_ptr<MappedModel> ProgramTable::model_of(ProgramId id) const {
  const auto found = programs_.find(id);
  DJINN_ASSERT(found != programs_.end());
  return found->second.model;
}

Result<srg::Graph> ProgramTable::graph_of(ProgramId id) const {
  if (const auto expected = expected_.find(id); expected != expected_.end()) {
    return read_graph(*expected->second.graph);
  }
  const auto found = programs_.find(id);
  if (found == programs_.end()) return no_such_program();
  return found->second.program->graph();
}

Outcome<std::shared_ptr<MappedModel>> ProgramTable::find_model(ModelId id) {
  if (!id.valid()) return std::shared_ptr<MappedModel>();
  const auto found = models_.find(id);
  if (found == models_.end()) {
    return Error{ErrorCode::kNotFound, "There is no such model. Open it first."};
  }
  DJINN_CHECK(need(found->second));
  return found->second;
}

}  // namespace djinn::worker
