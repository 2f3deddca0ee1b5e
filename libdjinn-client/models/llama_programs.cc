// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/llama_programs.h"

#include <algorithm>
#include <utility>

namespace djinn::client {
namespace {

GeneratorSizes sizes_of_llama(const LlamaConfig& config) {
  return {static_cast<uint32_t>(config.layers),    static_cast<uint32_t>(config.kv_heads),
          static_cast<uint32_t>(config.head_dim),  static_cast<uint32_t>(config.vocabulary),
          static_cast<uint32_t>(config.positions), config.dtype};
}

}  // namespace

LlamaPrograms::LlamaPrograms(Client& client, ModelId model, LlamaConfig config,
                             srg::Numerics numerics)
    : client_(client),
      model_(model),
      config_(std::move(config)),
      numerics_(numerics),
      sizes_(sizes_of_llama(config_)) {}

Result<ProgramId> LlamaPrograms::program(LlamaPhase phase) {
  ProgramId& id = programs_[phase];
  if (!id.valid()) {
    DJINN_TRY(srg::Graph graph, build_llama(config_, {phase, false}));
    graph.numerics = numerics_;
    DJINN_TRY(const auto defined, client_.define_program(graph, model_));
    id = defined.program;
  }
  return id;
}

Status LlamaPrograms::choose(ipc::GenerateBlock& block) {
  const bool padded = std::ranges::any_of(block.padding, [](uint32_t n) { return n != 0; });
  const LlamaPhase decode = padded ? LlamaPhase::kDecodeMasked : LlamaPhase::kDecode;
  const LlamaPhase prefill = padded                    ? LlamaPhase::kPrefillMasked
                             : block.prompt_tokens > 1 ? LlamaPhase::kPrefill
                                                       : decode;
  DJINN_TRY(const ProgramId prefill_id, program(prefill));
  DJINN_TRY(const ProgramId decode_id, program(decode));
  block.prefill = prefill_id.value;
  block.decode = decode_id.value;
  const bool in_parts = numerics_ != srg::Numerics::kExact && !padded;
  if (!in_parts || block.prompt_tokens <= ipc::kPromptPart) return {};
  DJINN_TRY(const ProgramId extend, program(LlamaPhase::kPrefillMasked));
  block.extend = extend.value;
  return {};
}

}  // namespace djinn::client
