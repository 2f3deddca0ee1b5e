// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/bundle_programs.h"

#include <utility>

#include "kernel/base/assert.h"
#include "libdjinn-client/transfer.h"

namespace djinn::client {
namespace {

GeneratorSizes sizes_of_bundle(const Bundle& bundle) {
  const ipc::SequenceGeometry& group = bundle.geometry;
  return {group.layers,      group.kv_heads,   group.head_dim,
          bundle.vocabulary, bundle.positions, group.dtype};
}

}  // namespace

BundlePrograms::BundlePrograms(Client& client, ModelId model, Bundle bundle, srg::Numerics numerics)
    : client_(client),
      model_(model),
      numerics_(numerics),
      sizes_(sizes_of_bundle(bundle)),
      constants_(std::move(bundle.constants)) {
  for (BundleProgram& program : bundle.programs) programs_.push_back({std::move(program), {}});
}

BundlePrograms::BundlePrograms(Client& client, const BundlePrograms& other)
    : client_(client),
      model_(other.model_),
      numerics_(other.numerics_),
      sizes_(other.sizes_),
      constants_(other.constants_) {
  for (const Program& program : other.programs_) programs_.push_back({program.made, {}});
}

std::unique_ptr<BundlePrograms> BundlePrograms::of_session(Client& client) const {
  return std::unique_ptr<BundlePrograms>(new BundlePrograms(client, *this));
}

BundlePrograms::Program* BundlePrograms::find(BundlePhase phase, uint64_t tokens) {
  Program* found = nullptr;
  for (Program& program : programs_) {
    const bool is_one = program.made.phase == phase && program.made.from <= tokens;
    if (is_one) found = &program;
  }
  return found;
}

Result<ProgramId> BundlePrograms::prepare(Program& program,
                                          std::vector<ipc::InputBinding>& inputs) {
  if (!program.id.valid()) {
    srg::Graph graph = program.made.graph;
    graph.numerics = numerics_;
    DJINN_TRY(const auto defined, client_.define_program(graph, model_));
    program.id = defined.program;
  }
  while (!program.made.inputs.empty() && refs_.size() < constants_.size()) {
    DJINN_TRY(RefLease ref, put(client_, constants_[refs_.size()]));
    refs_.push_back(std::move(ref));
  }
  for (const auto& [storage, constant] : program.made.inputs) {
    inputs.push_back({storage, ipc::InputKind::kRef, {}, refs_[constant].ref()});
  }
  return program.id;
}

Status BundlePrograms::choose(ipc::GenerateBlock& block) {
  DJINN_ASSERT(block.rows == 1);  // as its programs are, whose sizes are an exported call's
  const uint64_t prompt = block.prompt_tokens;
  Program* const prefill =
      prompt > 1 ? find(BundlePhase::kPrefill, prompt) : find(BundlePhase::kDecode, 0);
  Program* const decode = find(BundlePhase::kDecode, prompt);
  if (prefill == nullptr || decode == nullptr) {
    return Error{ErrorCode::kMalformed, "The bundle has no program for a prompt of " +
                                            std::to_string(prompt) +
                                            " tokens. Export the model again."};
  }
  DJINN_TRY(const ProgramId prefill_id, prepare(*prefill, block.prefill_inputs));
  DJINN_TRY(const ProgramId decode_id, prepare(*decode, block.decode_inputs));
  block.prefill = prefill_id.value;
  block.decode = decode_id.value;
  // It is for prompts that have the same masks from end to end.
  Program* const extend = find(BundlePhase::kExtend, prompt);
  const bool in_parts = numerics_ != srg::Numerics::kExact && prompt > ipc::kPromptPart;
  if (in_parts && extend != nullptr && extend->made.from == prefill->made.from) {
    DJINN_TRY(const ProgramId extend_id, prepare(*extend, block.extend_inputs));
    block.extend = extend_id.value;
  }
  // The last step has the prompt and all new tokens but two before it in the group.
  const uint64_t more = block.max_new_tokens > 2 ? block.max_new_tokens - 2 : 0;
  Program* const last = find(BundlePhase::kDecode, prompt + more);
  if (last == decode) return {};
  DJINN_ASSERT(last != nullptr);
  DJINN_TRY(const ProgramId late, prepare(*last, block.late_inputs));
  block.late_decode = late.value;
  block.late_from = last->made.from;
  return {};
}

}  // namespace djinn::client
