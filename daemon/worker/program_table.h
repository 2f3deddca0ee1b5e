// ProgramTable: the admitted programs and mapped models of this worker's trust domain. The lane's
// thread owns it; the control thread only posts to the lane.
#pragma once

#include <memory>
#include <unordered_map>

#include "daemon/worker/model_store.h"
#include "kernel/exec/executor.h"

namespace djinn::worker {

// invariant: the model outlives the program, whose stacks point into its mappings.
struct AdmittedProgram {
  std::shared_ptr<const MappedModel> model;  // null: the graph names no weights
  std::unique_ptr<exec::Program> program;
};

// Decodes and verifies. Any thread. Errors: the decoder's, the verifier's.
Result<srg::Graph> read_graph(std::span<const std::byte> graph_bytes);

// Decodes, verifies and admits a graph: the one way a program comes to be, run-once graphs
// included. Any thread. Errors: read_graph's, exec::Program::admit's.
Result<AdmittedProgram> admit_graph(std::span<const std::byte> graph_bytes,
                                    std::shared_ptr<const MappedModel> model);

class ProgramTable {
 public:
  void add_model(std::shared_ptr<const MappedModel> model);
  // Drops a model with all its programs; the lane forgets their plans.
  void drop_model(ModelId id, exec::Lane& lane);
  void add_program(ProgramId id, AdmittedProgram program);
  void drop_program(ProgramId id, exec::Lane& lane);

  // Errors: kNotFound.
  Result<exec::Program*> find(ProgramId id) const;
  // An invalid id gives null: no model. Errors: kNotFound.
  Result<std::shared_ptr<const MappedModel>> find_model(ModelId id) const;

 private:
  std::unordered_map<ModelId, std::shared_ptr<const MappedModel>> models_;
  std::unordered_map<ProgramId, AdmittedProgram> programs_;
};

}  // namespace djinn::worker
