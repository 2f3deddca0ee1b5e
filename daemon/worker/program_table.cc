// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/program_table.h"

#include <utility>

#include "ipc/codec/srg_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/srg/verify.h"

namespace djinn::worker {
namespace {

// What a graph without a model binds its (absent) weights to.
const exec::WeightTable& no_weights() {
  static const exec::WeightTable empty({});
  return empty;
}

}  // namespace

Result<srg::Graph> read_graph(std::span<const std::byte> graph_bytes) {
  if (graph_bytes.size() > limits::kGraphBytes) {
    return Error{ErrorCode::kLimitExceeded, "The graph is larger than 16 MiB. Split it."};
  }
  DJINN_TRY(srg::Graph graph, ipc::decode_graph(graph_bytes));
  DJINN_CHECK(srg::verify(graph));
  return graph;
}

Result<AdmittedProgram> admit_graph(exec::Executor& executor,
                                    std::span<const std::byte> graph_bytes,
                                    std::shared_ptr<MappedModel> model) {
  DJINN_TRY(srg::Graph graph, read_graph(graph_bytes));
  const exec::WeightTable& weights = model ? model->weights() : no_weights();
  // What activations may take is the slab's grant, which djinnd decides at the first run.
  DJINN_TRY(auto program,
            executor.admit(std::move(graph), weights, {.activation_bytes_max = UINT64_MAX}));
  return AdmittedProgram{std::move(model), std::move(program)};
}

void ProgramTable::add_model(std::shared_ptr<MappedModel> model) {
  DJINN_ASSERT(model);
  const ModelId id = model->id();
  const bool is_here = !model->parked();
  if (is_here) wanted_.erase(id);
  models_[id] = std::move(model);
  if (is_here) waits_.arrived(AwaitedModel{id});
}

void ProgramTable::park_model(ModelId id, pal::DevicePal& pal) {
  const auto found = models_.find(id);
  if (found != models_.end()) found->second->park(pal);
}

void ProgramTable::lose_model(ModelId id, const Error& error) {
  const auto wanted = wanted_.find(id);
  if (wanted == wanted_.end()) return;
  wanted->second = error;
  waits_.arrived(AwaitedModel{id});
}

Status ProgramTable::need(const MappedModel& model) {
  if (!model.parked()) return {};
  const auto [wanted, fresh] = wanted_.try_emplace(model.id());
  if (wanted->second) {
    Error why = *std::move(wanted->second);
    wanted_.erase(wanted);
    return why;
  }
  DJINN_ASSERT(want_);
  if (fresh) want_(model.id());
  return waits_.await(AwaitedModel{model.id()});
}

void ProgramTable::drop_model(ModelId id, exec::Lane& lane) {
  std::erase_if(programs_, [&](const auto& entry) {
    const bool of_model = entry.second.model && entry.second.model->id() == id;
    if (of_model) lane.forget(*entry.second.program);
    return of_model;
  });
  models_.erase(id);
  wanted_.erase(id);
  waits_.arrived(AwaitedModel{id});
}

void ProgramTable::add_program(ProgramId id, AdmittedProgram program) {
  DJINN_ASSERT(id.valid() && program.program);
  programs_[id] = std::move(program);
}

void ProgramTable::drop_program(ProgramId id, exec::Lane& lane) {
  const auto found = programs_.find(id);
  if (found == programs_.end()) return;
  lane.forget(*found->second.program);
  programs_.erase(found);
}

static Error no_such_program() {
  return {ErrorCode::kNotFound, "There is no such program. Define it first."};
}

Result<exec::Program*> ProgramTable::find(ProgramId id) {
  const auto found = programs_.find(id);
  if (found == programs_.end()) return no_such_program();
  if (found->second.model) DJINN_CHECK(need(*found->second.model));
  return found->second.program.get();
}

Result<const exec::Program*> ProgramTable::look_up(ProgramId id) const {
  const auto found = programs_.find(id);
  if (found == programs_.end()) return no_such_program();
  return found->second.program.get();
}

Result<std::shared_ptr<MappedModel>> ProgramTable::find_model(ModelId id) {
  if (!id.valid()) return std::shared_ptr<MappedModel>();
  const auto found = models_.find(id);
  if (found == models_.end()) {
    return Error{ErrorCode::kNotFound, "There is no such model. Open it first."};
  }
  DJINN_CHECK(need(*found->second));
  return found->second;
}

}  // namespace djinn::worker
