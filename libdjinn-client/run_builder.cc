// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/run_builder.h"

#include <utility>

namespace djinn::client {

RunBuilder::RunBuilder(Client& client, const srg::Graph& graph) : client_(client), graph_(graph) {
  block_.symbols.resize(graph.symbols.size());
  block_.outputs.resize(graph.outputs.size());
  outputs_.resize(graph.outputs.size() + 1);
}

void RunBuilder::symbol(std::string_view name, int64_t value) {
  for (size_t i = 0; i < graph_.symbols.size(); ++i) {
    if (graph_.symbols[i].name == name) block_.symbols[i] = value;
  }
}

Result<uint32_t> RunBuilder::input_storage(std::string_view name) const {
  for (uint32_t i = 0; i < graph_.storages.size(); ++i) {
    const srg::Storage& storage = graph_.storages[i];
    if (storage.kind == srg::StorageKind::kInput && storage.name == name) return i;
  }
  return Error{ErrorCode::kNotFound, "The program has no input '" + std::string(name) + "'."};
}

Status RunBuilder::input(std::string_view name, std::span<const std::byte> bytes) {
  DJINN_TRY(const uint32_t storage, input_storage(name));
  DJINN_TRY(StagingLease staged, client_.stage(bytes));
  block_.inputs.push_back({storage, ipc::InputKind::kStaging, staged.range(), {}});
  inputs_.push_back(std::move(staged));
  return {};
}

Status RunBuilder::input_ref(std::string_view name, RefHandle ref) {
  DJINN_TRY(const uint32_t storage, input_storage(name));
  block_.inputs.push_back({storage, ipc::InputKind::kRef, {}, ref});
  return {};
}

Status RunBuilder::output(size_t index, uint64_t bytes) {
  if (index >= block_.outputs.size()) {
    return Error{ErrorCode::kOutOfRange, "The program has no such output."};
  }
  DJINN_TRY(outputs_[index], client_.allocate_staging(bytes));
  block_.outputs[index].kind = ipc::OutputKind::kStaging;
  block_.outputs[index].staging = outputs_[index].range();
  return {};
}

void RunBuilder::output_ref(size_t index, RefHandle ref) {
  block_.outputs[index].kind = ipc::OutputKind::kRef;
  block_.outputs[index].ref = ref;
}

Status RunBuilder::run(ProgramId program) {
  return run(Runnable{program, {}, {}});
}

Status RunBuilder::run_once(ModelId model) {
  DJINN_TRY(Runnable runnable, stage_graph(client_, graph_, model));
  return run(std::move(runnable));
}

Status RunBuilder::run(Runnable runnable) {
  const uint64_t described_bytes = block_.outputs.size() * sizeof(ipc::OutputDescription);
  DJINN_TRY(outputs_.back(), client_.allocate_staging(described_bytes));
  block_.result = outputs_.back().range();
  DJINN_TRY(const Run run, submit_run(client_, std::move(runnable), block_,
                                      {std::move(inputs_), std::move(outputs_)}));
  DJINN_TRY(Outcome outcome, finish(client_, run));
  outputs_ = std::move(outcome.written);
  for (size_t i = 0; i < block_.outputs.size(); ++i) {
    DJINN_TRY(const ipc::OutputDescription said,
              ipc::decode_description(outputs_.back().bytes(), i));
    const bool is_here = block_.outputs[i].kind == ipc::OutputKind::kStaging;
    if (is_here && ipc::bytes_of(said) > outputs_[i].bytes().size()) return ipc::output_cannot_be();
    described_.push_back(said);
  }
  return {};
}

const ipc::OutputDescription& RunBuilder::description(size_t index) const {
  DJINN_ASSERT(index < described_.size());
  return described_[index];
}

std::vector<std::byte> RunBuilder::take_output(size_t index) const {
  const ipc::OutputBinding& output = block_.outputs[index];
  if (output.kind != ipc::OutputKind::kStaging) return {};
  const auto used = outputs_[index].bytes().first(ipc::bytes_of(description(index)));
  return {used.begin(), used.end()};
}

}  // namespace djinn::client
