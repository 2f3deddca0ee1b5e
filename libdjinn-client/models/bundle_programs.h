// SPDX-License-Identifier: Apache-2.0

// The programs of a bundle, as a generator uses them: which of them a prompt of so many tokens
// takes, and each token behind it.
#pragma once

#include <memory>
#include <vector>

#include "libdjinn-client/client.h"
#include "libdjinn-client/models/bundle.h"
#include "libdjinn-client/models/generation_programs.h"

namespace djinn::client {

class BundlePrograms : public GenerationPrograms {
 public:
  // client outlives this, and has the bundle's model open. Files are not needed any more.
  BundlePrograms(Client& client, ModelId model, Bundle bundle, srg::Numerics numerics);

  // The same for another session that has the same model open.
  [[nodiscard]] std::unique_ptr<BundlePrograms> of_session(Client& client) const;

  [[nodiscard]] ModelId model() const { return model_; }
  [[nodiscard]] const GeneratorSizes& sizes() const override { return sizes_; }
  [[nodiscard]] uint32_t rows_max() const override { return 1; }
  Status choose(ipc::GenerateBlock& block) override;

 private:
  BundlePrograms(Client& client, const BundlePrograms& other);
  struct Program {
    BundleProgram made;
    ProgramId id;  // invalid: not defined yet
  };
  // The last that is from so many tokens on; nullptr: none is.
  Program* find(BundlePhase phase, uint64_t tokens);
  // Defined once. Its inputs: refs of this generator's.
  Result<ProgramId> prepare(Program& program, std::vector<ipc::InputBinding>& inputs);

  Client& client_;
  ModelId model_;
  srg::Numerics numerics_;
  GeneratorSizes sizes_;
  std::vector<std::vector<std::byte>> constants_;
  std::vector<RefLease> refs_;  // of the constants, where they were put
  std::vector<Program> programs_;
};

}  // namespace djinn::client
