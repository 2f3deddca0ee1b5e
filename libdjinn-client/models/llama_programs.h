// SPDX-License-Identifier: Apache-2.0

// The programs of the Llama builder, as a generator uses them.
#pragma once

#include <map>

#include "libdjinn-client/client.h"
#include "libdjinn-client/models/generation_programs.h"
#include "libdjinn-client/models/llama.h"

namespace djinn::client {

class LlamaPrograms : public GenerationPrograms {
 public:
  // client outlives this, and has the model open.
  LlamaPrograms(Client& client, ModelId model, LlamaConfig config, srg::Numerics numerics);

  [[nodiscard]] const LlamaConfig& config() const { return config_; }
  [[nodiscard]] const GeneratorSizes& sizes() const override { return sizes_; }
  [[nodiscard]] uint32_t rows_max() const override { return limits::kRows; }
  Status choose(ipc::GenerateBlock& block) override;

 private:
  // Defined once.
  Result<ProgramId> program(LlamaPhase phase);

  Client& client_;
  ModelId model_;
  LlamaConfig config_;
  srg::Numerics numerics_;
  GeneratorSizes sizes_;
  std::map<LlamaPhase, ProgramId> programs_;
};

}  // namespace djinn::client
