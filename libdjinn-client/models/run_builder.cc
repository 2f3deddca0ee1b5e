// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/run_builder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ipc/codec/srg_codec.h"
#include "kernel/base/bytes.h"

namespace djinn::client {

RunBuilder::RunBuilder(Client& client, const srg::Graph& graph) : client_(client), graph_(graph) {
  block_.symbols.resize(graph.symbols.size());
  block_.outputs.resize(graph.outputs.size());
}

RunBuilder::~RunBuilder() {
  for (const ipc::StagingRange& range : held_) client_.free_staging(range);
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

Result<ipc::StagingRange> RunBuilder::allocate(uint64_t bytes) {
  DJINN_TRY(const ipc::StagingRange range, client_.allocate_staging(bytes));
  held_.push_back(range);
  return range;
}

Status RunBuilder::input(std::string_view name, std::span<const std::byte> bytes) {
  DJINN_TRY(const uint32_t storage, input_storage(name));
  DJINN_TRY(const ipc::StagingRange range, allocate(bytes.size()));
  copy_bytes(bytes, client_.staging(range));
  block_.inputs.push_back({storage, ipc::InputKind::kStaging, range, {}});
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
  DJINN_TRY(block_.outputs[index].staging, allocate(bytes));
  block_.outputs[index].kind = ipc::OutputKind::kStaging;
  return {};
}

void RunBuilder::output_ref(size_t index, RefHandle ref) {
  block_.outputs[index].kind = ipc::OutputKind::kRef;
  block_.outputs[index].ref = ref;
}

Status RunBuilder::run(ProgramId program) {
  SubmissionTarget target;
  target.operation = ipc::Operation::kRun;
  target.program = program;
  return submit_and_wait(target);
}

Status RunBuilder::run_once(ModelId model) {
  const std::vector<std::byte> graph = ipc::encode(graph_);
  SubmissionTarget target;
  target.operation = ipc::Operation::kRunOnce;
  target.model = model;
  DJINN_TRY(target.graph, allocate(graph.size()));
  copy_bytes(graph, client_.staging(target.graph));
  return submit_and_wait(target);
}

Status RunBuilder::submit_and_wait(const SubmissionTarget& target) {
  DJINN_TRY(block_.result, allocate(block_.outputs.size() * sizeof(ipc::OutputDescription)));
  DJINN_TRY(const Run run, client_.submit(target, ipc::encode(block_)));
  DJINN_TRY(Outcome outcome, client_.wait(run));
  if (outcome.error != ErrorCode::kOk) return Error{outcome.error, std::move(outcome.message)};
  const auto result = client_.staging(block_.result);
  described_.clear();
  for (size_t i = 0; i < block_.outputs.size(); ++i) {
    DJINN_TRY(described_.emplace_back(), ipc::decode_description(result, i));
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
  const ipc::OutputDescription& shape = description(index);
  uint64_t bytes = size_of(static_cast<DType>(shape.dtype));
  for (uint32_t d = 0; d < shape.rank; ++d) bytes *= static_cast<uint64_t>(shape.sizes[d]);
  const auto area = client_.staging(output.staging);
  const auto used = area.first(std::min<uint64_t>(bytes, area.size()));
  return {used.begin(), used.end()};
}

}  // namespace djinn::client
