// SPDX-License-Identifier: Apache-2.0

// ProgramTable: the programs and mapped models of this worker's trust domain. The lane's thread
// owns it; others only post to the lane. The control thread parks models itself, and what it finds
// in use it leaves to the lane.
//
//   expected   on its way: the admitter has it, and runs of it wait
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "daemon/worker/model_store.h"
#include "daemon/worker/waits.h"
#include "ipc/messages.h"
#include "kernel/executor/executor.h"
#include "kernel/srg/weight_form.h"

namespace djinn::worker {

// invariant: the model outlives the program, whose stacks point into its mappings.
struct AdmittedProgram {
  std::shared_ptr<MappedModel> model;  // null: the graph names no weights
  std::unique_ptr<exec::Program> program;
  ipc::Workload workload = ipc::Workload::kUnknown;  // of admit_graph() alone
  srg::WeightForms forms = {};                       // of its weights; likewise
};

// Errors: kLimitExceeded.
[[nodiscard]] Status check_graph_bytes(uint64_t bytes);
// Decodes and verifies. Any thread. Errors: the decoder's, the verifier's.
Result<srg::Graph> read_graph(std::span<const std::byte> graph_bytes);

// Those of any graph. The slab's grant bounds activations; djinnd decides it at the first run.
exec::AdmissionLimits admission_limits();

// Decodes, verifies and admits a graph that is kept as a program, and says what it is for. Any
// thread. Errors: read_graph's, exec::Executor::admit's.
Result<AdmittedProgram> admit_graph(exec::Executor& executor,
                                    std::span<const std::byte> graph_bytes,
                                    std::shared_ptr<MappedModel> model,
                                    const exec::AdmissionLimits& limits = admission_limits());

// Admits a graph that read_graph() has passed; that of one run is not asked what it is for.
Result<AdmittedProgram> admit_verified(exec::Executor& executor, srg::Graph graph,
                                       std::shared_ptr<MappedModel> model,
                                       const exec::AdmissionLimits& limits);

class ProgramTable {
 public:
  explicit ProgramTable(Waits& waits) : waits_(waits) {}

  // want: called once for a parked model that a run needs, until it is back or lost.
  void on_want(std::function<void(ModelId)> want) { want_ = std::move(want); }

  // need: called when a run needs a program that is expected.
  void on_need(std::function<void(ProgramId)> need) { need_program_ = std::move(need); }

  void add_model(std::shared_ptr<MappedModel> model);
  // A model that is here has its bytes again, or had: whoever waits for it looks.
  void model_came(ModelId id);
  // Between two steps.
  void park_model(ModelId id, pal::DevicePal& pal);
  // A wanted model does not come: the next run that needs it is told so, and asks again after that.
  void lose_model(ModelId id, const Error& error);
  // Drops a model with all its programs; the lane forgets their plans.
  void drop_model(ModelId id, exec::Lane& lane);
  // graph: its bytes. model: invalid where it names no weights.
  void expect_program(ProgramId id, ModelId model,
                      std::shared_ptr<const std::vector<std::byte>> graph);
  // One that was expected. Of one that was dropped meanwhile neither does anything.
  void add_program(ProgramId id, AdmittedProgram program);
  void refuse_program(ProgramId id);
  void drop_program(ProgramId id, exec::Lane& lane);

  // To be run; its model is in use until end_step(). Pending while it or its model is on its way,
  // which the step awaits then. Errors: kNotFound; once, why the model does not come.
  Outcome<exec::Program*> find(ProgramId id);
  // To be looked at, whether its model is there or not; null: it is not here.
  [[nodiscard]] const AdmittedProgram* peek(ProgramId id) const;
  // Whether token steps of several sessions may be computed together by the program: own kernels
  // compute a part of it, and it writes no ref, so that it can be computed again. Of one that is
  // not here: no.
  [[nodiscard]] bool joins_steps(ProgramId id) const;
  // The model of a program that find() has given; null: none.
  [[nodiscard]] std::shared_ptr<MappedModel> model_of(ProgramId id) const;
  // To be read: its model may be parked, and it may be expected. Errors: kNotFound; of an expected
  // one as read_graph.
  Result<srg::Graph> graph_of(ProgramId id) const;
  // To be run on, and in use likewise. An invalid id gives null: no model. Pending, and errors:
  // as find().
  Outcome<std::shared_ptr<MappedModel>> find_model(ModelId id);
  // The models that the step used may be parked.
  void end_step();

  // The step is set aside, and others begin and end until it goes on.
  void pause();
  void resume();
  // Whether the step that is set aside uses it.
  [[nodiscard]] bool is_used_aside(ModelId id) const;
  [[nodiscard]] bool is_used_aside(ProgramId id) const;

 private:
  Outcome<void> need(const std::shared_ptr<MappedModel>& model);

  struct Expected {
    ModelId model;
    std::shared_ptr<const std::vector<std::byte>> graph;
  };
  // Whether it was.
  bool expect_no_more(ProgramId id);

  Waits& waits_;
  std::unordered_map<ModelId, std::shared_ptr<MappedModel>> models_;
  std::unordered_map<ProgramId, AdmittedProgram> programs_;
  std::unordered_map<ProgramId, Expected> expected_;
  std::unordered_map<ModelId, std::optional<Error>> wanted_;  // with why it does not come
  struct Used {
    std::vector<std::shared_ptr<MappedModel>> models;
    std::vector<ProgramId> programs;
  };
  Used used_;   // by the present step
  Used aside_;  // by one that is set aside
  std::function<void(ModelId)> want_;
  std::function<void(ProgramId)> need_program_;
};

}  // namespace djinn::worker
