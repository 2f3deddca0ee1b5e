// SPDX-License-Identifier: Apache-2.0

// RunBuilder: one synchronous run of a program with inputs and outputs in staging: what the model
// classes and the bindings share. Its inputs are given back when the run is done, its outputs when
// the builder is destroyed.
#pragma once

#include <string_view>
#include <vector>

#include "libdjinn-client/operations.h"

namespace djinn::client {

class RunBuilder {
 public:
  // graph: of the program that will run; both outlive this.
  RunBuilder(Client& client, const srg::Graph& graph);

  void symbol(std::string_view name, int64_t value);
  void sequence(SequenceHandle sequence) { block_.sequence = sequence; }
  // Copies bytes to staging and binds them. Errors: kNotFound for a name that is no input.
  Status input(std::string_view name, std::span<const std::byte> bytes);
  Status input_ref(std::string_view name, RefHandle ref);
  // Output number index of the graph goes to staging, at most so many bytes.
  Status output(size_t index, uint64_t bytes);
  void output_ref(size_t index, RefHandle ref);

  // Runs and waits, once. The error of a failed run comes back as Error.
  Status run(ProgramId program);
  // Runs, as run(), a graph that is used once.
  Status run_once(ModelId model);

  // Bytes of an output; empty when it was not asked for. Precondition: run() has returned.
  [[nodiscard]] std::vector<std::byte> take_output(size_t index) const;
  // How an output turned out. Precondition: run() has returned.
  [[nodiscard]] const ipc::OutputDescription& description(size_t index) const;

 private:
  Result<uint32_t> input_storage(std::string_view name) const;
  Status run(Runnable runnable);

  Client& client_;
  const srg::Graph& graph_;
  ipc::RunBlock block_;
  std::vector<StagingLease> inputs_;
  std::vector<StagingLease> outputs_;  // of the same index, or of nothing; and the descriptions
  std::vector<ipc::OutputDescription> described_;
};

}  // namespace djinn::client
