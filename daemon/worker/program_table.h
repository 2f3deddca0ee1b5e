// SPDX-License-Identifier: Apache-2.0

// ProgramTable: the admitted programs and mapped models of this worker's trust domain. The lane's
// thread owns it; the control thread only posts to the lane.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "daemon/worker/model_store.h"
#include "daemon/worker/waits.h"
#include "kernel/executor/executor.h"

namespace djinn::worker {

// invariant: the model outlives the program, whose stacks point into its mappings.
struct AdmittedProgram {
  std::shared_ptr<MappedModel> model;  // null: the graph names no weights
  std::unique_ptr<exec::Program> program;
};

// Decodes and verifies. Any thread. Errors: the decoder's, the verifier's.
Result<srg::Graph> read_graph(std::span<const std::byte> graph_bytes);

// Decodes, verifies and admits a graph: the one way a program comes to be, run-once graphs
// included. Any thread. Errors: read_graph's, exec::Executor::admit's.
Result<AdmittedProgram> admit_graph(exec::Executor& executor,
                                    std::span<const std::byte> graph_bytes,
                                    std::shared_ptr<MappedModel> model);

class ProgramTable {
 public:
  explicit ProgramTable(Waits& waits) : waits_(waits) {}

  // want: called once for a parked model that a run needs, until it is back or lost.
  void on_want(std::function<void(ModelId)> want) { want_ = std::move(want); }

  // New, or one that is here and parked and has its bytes again.
  void add_model(std::shared_ptr<MappedModel> model);
  void park_model(ModelId id, pal::DevicePal& pal);
  // A wanted model does not come: the next run that needs it is told so, and asks again after that.
  void lose_model(ModelId id, const Error& error);
  // Drops a model with all its programs; the lane forgets their plans.
  void drop_model(ModelId id, exec::Lane& lane);
  void add_program(ProgramId id, AdmittedProgram program);
  void drop_program(ProgramId id, exec::Lane& lane);

  // To be run. Errors: kNotFound; kPending while its model is on its way back, which the step
  // awaits then; once, why it does not come.
  Result<exec::Program*> find(ProgramId id);
  // To be read: its model may be parked. Errors: kNotFound.
  Result<const exec::Program*> look_up(ProgramId id) const;
  // To be run on. An invalid id gives null: no model. Errors: as find().
  Result<std::shared_ptr<MappedModel>> find_model(ModelId id);

 private:
  Status need(const MappedModel& model);

  Waits& waits_;
  std::unordered_map<ModelId, std::shared_ptr<MappedModel>> models_;
  std::unordered_map<ProgramId, AdmittedProgram> programs_;
  std::unordered_map<ModelId, std::optional<Error>> wanted_;  // with why it does not come
  std::function<void(ModelId)> want_;
};

}  // namespace djinn::worker
